"""The choice of kernel and configuration: what it prefers, and what it refuses."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw import _native
from jaxbw.problem import reduce_dot_general
from jaxbw.selection import config as configs
from jaxbw.selection import cost_model, manifest
from jaxbw.selection.devices import DEFAULT_TARGETS, TARGETS, Device
from jaxbw.selection.select import Choice, select

LAYOUTS = {"nn": (1, 0), "nt": (1, 1), "tn": (0, 0), "tt": (0, 1)}


def problem(
    m: int, n: int, k: int, layout: str = "nn", dtype: Any = jnp.bfloat16, output: Any = None
) -> Any:
    lhs_k, rhs_k = LAYOUTS[layout]
    lhs = jax.ShapeDtypeStruct((m, k) if lhs_k else (k, m), dtype)
    rhs = jax.ShapeDtypeStruct((n, k) if rhs_k else (k, n), dtype)
    dims = (((lhs_k,), (rhs_k,)), ((), ()))
    return reduce_dot_general(lhs, rhs, dims, jnp.dtype(output or dtype)).problem


def choose(p: Any, device: str, family: str) -> Choice:
    choice = select(p, TARGETS[device], (family,), None, manifest.kernels())
    assert isinstance(choice, Choice)
    return choice


def refusals(p: Any, device: Any, implementations: Any, kernels: Any) -> Any:
    outcome = select(p, device, implementations, None, kernels)
    assert not isinstance(outcome, Choice)
    return outcome


@pytest.mark.parametrize(
    ("device", "shape", "layout", "tile", "cluster", "waves"),
    [
        ("H200", (4096, 4096, 4096), "nn", (128, 256), (2, 1), 4),
        ("H200", (8192, 8192, 8192), "nn", (128, 256), (2, 1), 16),
        # 256x128 fills 98.8 % of seven waves, 256x256 86 % of four.
        ("B200", (4096, 4096, 4096), "nn", (256, 128), (2, 1), 7),
        # One wave of 74 pairs. MN-major rhs cannot be loaded in tiles 224 wide.
        ("B200", (512, 8192, 5376), "nt", (256, 224), (2, 1), 1),
        ("B200", (512, 8192, 5376), "nn", (256, 256), (2, 1), 1),
    ],
)
def test_prefers(
    device: str, shape: tuple[int, int, int], layout: str, tile: Any, cluster: Any, waves: int
) -> None:
    choice = choose(problem(*shape, layout=layout), device, TARGETS[device].family or "")
    assert choice.config is not None
    assert (choice.config.block_m, choice.config.block_n) == tile
    assert choice.config.cluster == cluster
    assert choice.waves == waves


def test_a_single_wave_of_sm90_has_no_cluster() -> None:
    choice = choose(problem(1024, 1024, 4096), "H200", "sm90")
    assert choice.waves == 1
    assert choice.config is not None
    assert choice.config.cluster == (1, 1)


sizes = st.sampled_from([1, 2, 8, 64, 100, 128, 129, 1000, 4096, 50000])


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    sizes,
    sizes,
    sizes,
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from(["bfloat16", "float16"]),
    st.sampled_from(["bfloat16", "float32"]),
    st.sampled_from(sorted(TARGETS)),
)
def test_a_choice_is_launchable_and_repeats(
    m: int, n: int, k: int, layout: str, dtype: str, output: str, device: str
) -> None:
    p = problem(m, n, k, layout, dtype, output)
    family = TARGETS[device].family or ""
    outcome = select(p, TARGETS[device], (family,), None, manifest.kernels())
    assert outcome == select(p, TARGETS[device], (family,), None, manifest.kernels())
    if not isinstance(outcome, Choice):
        assert all("multiple of 16" in refusal.reason for refusal in outcome)
        return
    config = outcome.config
    assert config is not None
    assert configs.refusal(config, family) is None
    assert configs.layout_refusal(config, p.lhs_major, p.rhs_major) is None
    (kernel,) = (kernel for kernel in manifest.kernels() if kernel.name == outcome.kernel)
    assert kernel.layout in ("any", p.layout)
    assert config.stages == _native.max_stages(
        family, config.block_m, config.block_n, config.cta_group
    )
    assert 1 <= config.swizzle <= max(1, cost_model.grid(p, config)[0])
    work = math.prod(cost_model.grid(p, config))
    assert outcome.waves == math.ceil(
        work / (TARGETS[device].sm_count // math.prod(config.cluster))
    )


BASE = {
    "sm90": jaxbw.GemmConfig(128, 128),
    "sm100": jaxbw.GemmConfig(256, 128, cta_group=2, cluster=(2, 1)),
}


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("sm90", {"block_m": 64}, "block_m is 64"),
        ("sm90", {"block_n": 96}, "multiples of 64"),
        ("sm90", {"block_n": 320}, "up to 256"),
        ("sm90", {"block_k": 128}, "block_k is 128"),
        ("sm90", {"cta_group": 2}, "sm90 takes 1"),
        ("sm90", {"cluster": (4, 4)}, "1 to 8 CTAs"),
        ("sm90", {"cluster": (0, 1)}, "1 to 8 CTAs"),
        ("sm90", {"stages": 1}, "takes 2 to"),
        ("sm90", {"stages": 99}, "takes 2 to"),
        ("sm90", {"swizzle": 0}, "1 or more"),
        ("sm90", {"split_k": 2}, "split_k is 1"),
        ("sm90", {"swap_ab": True}, "swap_ab False"),
        ("sm100", {"cluster": (1, 1)}, "not a multiple of cta_group 2"),
        ("sm100", {"block_m": 128}, "computes 256 rows"),
        ("sm100", {"block_n": 48}, "multiples of 32"),
        ("sm100", {"cta_group": 4}, "1 or 2"),
    ],
)
def test_refused_configs(family: str, change: Any, reason: str) -> None:
    assert configs.refusal(BASE[family], family) is None
    assert reason in (configs.refusal(dataclasses.replace(BASE[family], **change), family) or "")


@pytest.mark.parametrize(
    ("config", "majors", "reason"),
    [
        (jaxbw.GemmConfig(256, 224, cta_group=2, cluster=(2, 1)), "K K", None),
        (jaxbw.GemmConfig(256, 224, cta_group=2, cluster=(2, 1)), "K MN", "112 wide"),
        (jaxbw.GemmConfig(128, 96), "K MN", "96 wide"),
        (jaxbw.GemmConfig(128, 96, cluster=(8, 1)), "K K", "equal parts of 96 rows"),
        (jaxbw.GemmConfig(128, 128, cluster=(8, 1)), "K MN", None),
    ],
)
def test_what_tiles_take_which_layouts(config: Any, majors: str, reason: str | None) -> None:
    lhs, rhs = (_native.Major.__members__[name] for name in majors.split())
    found = configs.layout_refusal(config, lhs, rhs)
    assert found is None if reason is None else reason in (found or "")


def test_config_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="cluster is a pair"):
        jaxbw.GemmConfig(128, 128, cluster=[2, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "implementations", "reason"),
    [
        (None, ("sm90",), "no CUDA GPU"),
        (
            TARGETS["B200"],
            ("sm90",),
            r"this is B200, compute capability 10.0; the kernels need compute capability 9.0",
        ),
        (
            TARGETS["H200"],
            ("sm100",),
            r"this is H200, compute capability 9.0; the kernels need compute capability 10.0",
        ),
        (Device("old", (9, 0), 132, 0, "its driver is old"), ("sm90",), "its driver is old"),
    ],
)
def test_devices_that_do_not_fit(device: Any, implementations: Any, reason: str) -> None:
    p = problem(256, 256, 256)
    (refusal,) = refusals(p, device, implementations, manifest.kernels())
    assert reason in refusal.reason
    fallback = select(p, device, (*implementations, "xla"), None, manifest.kernels())
    assert isinstance(fallback, Choice)
    assert fallback.implementation == "xla"


def test_without_kernels_xla_serves() -> None:
    p = problem(256, 256, 256)
    choice = select(p, TARGETS["H200"], None, None, ())
    assert isinstance(choice, Choice)
    assert choice.implementation == "xla"
    assert "built without them" in choice.refused[0].reason
    (refusal,) = refusals(p, TARGETS["H200"], ("sm90",), ())
    assert "built without them" in refusal.reason


def test_a_sequence_is_tried_in_order() -> None:
    p = problem(256, 256, 256)
    for device, expected in (("H200", "sm90"), ("B200", "sm100")):
        choice = select(p, TARGETS[device], ("sm100", "sm90"), None, manifest.kernels())
        assert isinstance(choice, Choice)
        assert choice.implementation == expected
    odd = problem(256, 255, 256)
    choice = select(odd, TARGETS["H200"], ("sm90", "xla"), None, manifest.kernels())
    assert isinstance(choice, Choice)
    assert choice.implementation == "xla"
    assert "pad its last dimension to 256" in choice.refused[0].reason


def test_targets() -> None:
    assert [TARGETS[name].sm_count for name in ("B200", "H200", "H100")] == [148, 132, 132]
    assert {TARGETS[DEFAULT_TARGETS[family]].family for family in DEFAULT_TARGETS} == {
        "sm90",
        "sm100",
    }
    assert Device("A100", (8, 0), 108, 0).family is None
    assert Device("RTX 5090", (12, 0), 170, 0).family is None


def test_an_absent_or_foreign_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "directory", lambda: tmp_path)
    assert manifest.kernels.__wrapped__() == ()
    (tmp_path / "manifest.json").write_text('{"version": 0, "kernels": []}')
    with pytest.raises(ImportError, match="version 0, this jaxbw reads 1: reinstall it"):
        manifest.kernels.__wrapped__()


def test_the_manifest_is_this_package() -> None:
    kernels = manifest.kernels()
    assert {kernel.family for kernel in kernels} == {"sm90", "sm100"}
    for kernel in kernels:
        assert (manifest.directory() / f"{kernel.name}.cubin").is_file()
