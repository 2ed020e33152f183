"""The choice of kernel and configuration: what it prefers, and what it refuses."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw import _native
from jaxbw._native import Plan
from jaxbw._src.epilogue import IDENTITY, Epilogue
from jaxbw._src.families import FAMILIES
from jaxbw._src.primitives.gemm import plan_of
from jaxbw._src.problem import reduce_dot_general
from jaxbw._src.selection import eligibility, manifest, planner
from jaxbw._src.selection import select as select_module
from jaxbw._src.selection.candidates import candidates
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS, Device
from jaxbw._src.selection.search import search
from jaxbw._src.selection.select import select
from jaxbw._src.selection.tuned_matmuls import SWITCH
from jaxbw._src.selection.workload import workload

LAYOUTS = {"nn": (1, 0), "nt": (1, 1), "tn": (0, 0), "tt": (0, 1)}


def problem(
    m: int,
    n: int,
    k: int,
    layout: str = "nn",
    dtype: Any = jnp.bfloat16,
    output: Any = None,
    epilogue: Epilogue = IDENTITY,
) -> Any:
    lhs_k, rhs_k = LAYOUTS[layout]
    lhs = jax.ShapeDtypeStruct((m, k) if lhs_k else (k, m), dtype)
    rhs = jax.ShapeDtypeStruct((n, k) if rhs_k else (k, n), dtype)
    dims = (((lhs_k,), (rhs_k,)), ((), ()))
    result = jnp.dtype(output or dtype)
    return reduce_dot_general(lhs, rhs, dims, result, epilogue=epilogue).problem


def choose(p: Any, device: str, family: str) -> Choice:
    choice = select(p, TARGETS[device], (family,), None, manifest.kernels())
    assert isinstance(choice, Choice)
    return choice


def refusals(
    p: Any, device: Any, implementations: Any, kernels: Any, config: GemmConfig | None = None
) -> Any:
    outcome = select(p, device, implementations, config, kernels)
    assert not isinstance(outcome, Choice)
    return outcome


@pytest.mark.parametrize(
    ("device", "shape", "layout", "tile", "cluster", "waves"),
    [
        ("H200", (4096, 4096, 4096), "nn", (128, 256), (2, 1), 4),
        # (At 4096x14336x4096 three tiles are within 1 %: not a matter of preference.)
        ("H200", (4096, 8192, 4096), "nt", (128, 256), (2, 1), 8),
        # Three waves of whole tiles, and one of 34 that are two parts each.
        ("B200", (4096, 4096, 4096), "nn", (256, 256), (2, 1), 4),
        # One wave of 74 pairs.
        ("B200", (512, 8192, 5376), "nt", (256, 224), (2, 1), 1),
    ],
)
def test_the_model_prefers(
    device: str,
    shape: tuple[int, int, int],
    layout: str,
    tile: Any,
    cluster: Any,
    waves: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    choice = choose(problem(*shape, layout=layout), device, TARGETS[device].family or "")
    assert choice.config is not None
    assert choice.config.tile == tile
    assert choice.config.cluster == cluster
    assert choice.waves == waves


sizes = st.sampled_from([1, 2, 7, 8, 64, 100, 129, 1000, 4096, 50001, 2**20])
EPILOGUES = {
    "none": Epilogue(),
    "all": Epilogue(
        alpha=2.0,
        c=np.dtype("float32"),
        bias=np.dtype("float16"),
        activation="gelu",
        residual=np.dtype("bfloat16"),
        save=True,
    ),
    "gated": Epilogue(activation="silu", gated=True),
    "gated, saved": Epilogue(activation="silu", gated=True, save=True),
}


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    sizes,
    sizes,
    sizes,
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from(["bfloat16", "float16", "float32"]),
    st.sampled_from(["bfloat16", "float32"]),
    st.sampled_from(sorted(EPILOGUES)),
    st.sampled_from(sorted(TARGETS)),
)
def test_a_choice_exists_is_launchable_and_repeats(
    m: int, n: int, k: int, layout: str, dtype: str, output: str, epilogue: str, device: str
) -> None:
    p = problem(m, n, k, layout, dtype, output, EPILOGUES[epilogue])
    family = TARGETS[device].family or ""
    outcome = select(p, TARGETS[device], (family,), None, manifest.kernels())
    search.cache_clear()
    assert outcome == select(p, TARGETS[device], (family,), None, manifest.kernels())
    if not isinstance(outcome, Choice):
        (refusal,) = outcome
        assert "2^40 bytes" in refusal.reason
        assert 4 * max(m, n) * max(n, k) >= 2**40
        return
    config = outcome.config
    assert config is not None
    assert config == outcome.candidates[0].config
    # The runtime's own rules, all of them: it sizes the workspace only of what it would launch.
    plan = plan_of(p, outcome)
    input_ = _native.DataType[{"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]]
    needed = _native.scratch(p.lhs_shape, p.rhs_shape, input_, plan.attributes)
    assert needed == (plan.workspace_bytes, plan.counters)
    assert (plan.kernel, plan.repacked) == (outcome.kernel, outcome.repacked)
    assert (plan.stages, plan.accumulators) == (config.stages, config.accumulators)
    # What is chosen may be given, and is priced alike.
    given = select(p, TARGETS[device], (family,), config, manifest.kernels())
    assert isinstance(given, Choice)
    assert (given.kernel, given.config, given.wave) == (outcome.kernel, config, outcome.wave)
    assert given.cost == outcome.cost


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("epilogue", ["none", "gated"])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("device", ["B200", "H200"])
def test_every_candidate_is_launchable(device: str, layout: str, epilogue: str, dtype: str) -> None:
    """Not only those that win."""
    family = TARGETS[device].family or ""
    p = problem(2000, 3000, 4096, layout, dtype, epilogue=EPILOGUES[epilogue])
    if (family, dtype) == ("sm90", "float32"):
        return
    seen = 0
    for swapped in (False, True):
        work = workload(p, family, swapped=swapped)
        lhs, rhs = (work.b_major, work.a_major) if swapped else (work.a_major, work.b_major)
        table = candidates(
            family,
            lhs,
            rhs,
            work.input,
            gated=work.gated,
            swap_ab=swapped,
            whole=False,
        )
        for row in range(0, len(table), 5):
            config = table.config(row, work.itemsize, swap_ab=swapped)
            given = select(p, TARGETS[device], (family,), config, manifest.kernels())
            assert isinstance(given, Choice), (config, given)
            assert plan_of(p, given).stages == config.stages
            seen += 1
    assert seen > 10


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    sizes,
    sizes.filter(lambda n: n < 2**20),
    sizes.filter(lambda k: k < 2**20),
    st.sampled_from(["H200", "B200"]),
    st.integers(1, 5),
)
def test_a_batch_invariant_choice_depends_on_neither_m_nor_batch(
    m: int, n: int, k: int, device: str, batch: int
) -> None:
    family = TARGETS[device].family or ""
    config = GemmConfig(batch_invariant=True)
    choices = set()
    for p in (
        problem(m, n, k),
        problem(333, n, k),
        dataclasses.replace(problem(m, n, k), batch=batch, rhs_batched=False),
    ):
        choice = select(p, TARGETS[device], (family,), config, manifest.kernels())
        assert isinstance(choice, Choice)
        assert choice.config is not None
        assert choice.config.batch_invariant
        assert (choice.config.split_k, choice.config.swap_ab) == (1, False)
        choices.add((choice.kernel, choice.config))
    assert len(choices) == 1


SHAPES = [(8192, 8192, 8192), (2048, 2048, 512), (512, 512, 16384), (16, 4096, 4096)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scheduler_without_a_tile_leaves_the_rest_to_the_choice(
    shape: tuple[int, int, int],
) -> None:
    def chosen(device: str, scheduler: str | None) -> GemmConfig:
        family, config = TARGETS[device].family or "", GemmConfig(scheduler=scheduler)
        choice = select(problem(*shape), TARGETS[device], (family,), config, manifest.kernels())
        assert isinstance(choice, Choice)
        assert choice.config is not None
        return choice.config

    hopper = chosen("H200", "dynamic")
    assert hopper.scheduler == "none"
    assert not hopper.pingpong  # of one item, a warpgroup would have all
    assert chosen("H200", "none") == hopper
    assert chosen("H200", "static") == chosen("H200", None)
    blackwell = chosen("B200", "dynamic")
    assert blackwell.scheduler == "clc"
    assert blackwell == chosen("B200", None)
    assert [chosen("B200", name).scheduler for name in ("static", "none")] == ["static", "none"]


def test_a_tile_with_a_dynamic_scheduler() -> None:
    for device, name in (("H200", "none"), ("B200", "clc")):
        costs = []
        for scheduler in ("dynamic", None):
            config, family = GemmConfig(128, 128, scheduler=scheduler), TARGETS[device].family or ""
            p = problem(4096, 4096, 4096)
            choice = select(p, TARGETS[device], (family,), config, manifest.kernels())
            assert isinstance(choice, Choice)
            assert choice.config is not None
            assert choice.cost is not None
            if scheduler is not None:
                assert choice.config.scheduler == name
            costs.append(choice.cost.total)
        # On Hopper each wave is launched anew, and takes longer for it.
        assert (costs[0] > costs[1]) == (device == "H200")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GemmConfig(scheduler="clc"), "sm90 takes 'static' or 'none' or 'dynamic'"),
        (GemmConfig(stages=3), "stages without a tile"),
    ],
)
def test_what_is_said_of_a_choice_is_checked(config: GemmConfig, reason: str) -> None:
    p = problem(256, 256, 512)
    (refusal,) = select(p, TARGETS["H200"], ("sm90",), config, manifest.kernels())  # type: ignore[misc]
    assert reason in str(refusal)
    free = select(p, TARGETS["H200"], None, config, manifest.kernels())
    assert isinstance(free, Choice)
    assert free.implementation == "xla"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GemmConfig(100, 64), "sm100 with the given configuration: block_m is 100"),
        (GemmConfig(256, 160, cta_group=2, cluster=(2, 1), stages=7), "takes 1 to 6"),
        (GemmConfig(128, 128, split_k=9), "no more than 8 parts"),
    ],
)
def test_a_given_configuration_is_refused_with_the_reason(config: GemmConfig, reason: str) -> None:
    p = problem(256, 256, 512)
    (refusal,) = select(p, TARGETS["B200"], ("sm100",), config, manifest.kernels())  # type: ignore[misc]
    assert reason in str(refusal)


def test_precisions_of_float32() -> None:
    for precision, served in (
        (None, True),
        (jax.lax.Precision.DEFAULT, True),
        (jax.lax.DotAlgorithmPreset.TF32_TF32_F32, True),
        (jax.lax.Precision.HIGHEST, False),
        (jax.lax.DotAlgorithmPreset.F32_F32_F32, False),
    ):
        p = dataclasses.replace(problem(256, 256, 256, dtype="float32"), precision=precision)
        outcome = select(p, TARGETS["B200"], ("sm100",), None, manifest.kernels())
        assert isinstance(outcome, Choice) == served, precision
        if isinstance(outcome, Choice):
            assert (outcome.kernel or "").startswith("jaxbw_sm100_tf32_")


def test_unaligned_operands_are_repacked_and_it_costs() -> None:
    aligned = choose(problem(1024, 1024, 1024), "B200", "sm100")
    odd = choose(problem(1024, 1023, 1024), "B200", "sm100")
    assert aligned.cost is not None
    assert odd.cost is not None
    assert aligned.cost.repack == 0 < odd.cost.repack
    assert (aligned.repacked, odd.repacked) == ((), ("rhs",))
    assert choose(problem(1024, 1024, 1023), "B200", "sm100").repacked == ("lhs",)
    # One row, whatever its length, starts where the array does.
    assert choose(problem(1, 1024, 1023), "B200", "sm100").repacked == ()


@pytest.mark.parametrize("family", ["sm90", "sm100"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float8_e4m3fn"])
def test_a_price_is_of_what_the_planner_does(family: str, layout: str, dtype: str) -> None:
    """What a price says of a problem's arrays, whatever the configuration."""
    sizes = (
        (256, 256, 256),
        (8, 264, 264),
        (264, 1020, 68),
        (1, 264, 264),
        (66, 65, 67),
        (1, 1, 7),
    )
    for size in sizes:
        for residual in (None, np.dtype(np.float16)):
            output = "float16" if dtype == "float8_e4m3fn" else None
            p = problem(*size, layout, dtype, output, Epilogue(residual=residual))
            plan = planner.plan(p, family, GemmConfig(128, 128))
            assert isinstance(plan, Plan), str(plan)
            work = workload(p, family, swapped=False)
            assert plan.repacked == eligibility.repacked(p, family)
            assert work.repacks == bool(plan.repacked)
            if plan.formula != "general":
                assert work.tma_rows == (plan.store_path == "tma")
            if family == "sm90":
                assert work.residual_by_tma == (plan.residual_stages > 0)


def test_float32_is_k_major_by_the_time_the_kernel_sees_it() -> None:
    p = problem(1024, 1024, 1024, "tn", "float32")
    choice = choose(p, "B200", "sm100")
    assert choice.repacked == ("lhs", "rhs")
    assert choice.cost is not None
    assert choice.cost.repack > 0
    assert choose(problem(1024, 1024, 1024, "nt", "float32"), "B200", "sm100").repacked == ()
    config = GemmConfig(256, 112, cta_group=2, cluster=(2, 1))  # too narrow for MN-major operands
    assert isinstance(select(p, TARGETS["B200"], ("sm100",), config, manifest.kernels()), Choice)


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
    integers = problem(256, 256, 256, dtype="int8")
    choice = select(integers, TARGETS["H200"], ("sm90", "xla"), None, manifest.kernels())
    assert isinstance(choice, Choice)
    assert choice.implementation == "xla"
    assert (
        "sm90 kernels take bfloat16, float16, float8_e4m3fn, float8_e5m2 and float32"
        in choice.refused[0].reason
    )


def test_explain_takes_a_device() -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    with jaxbw.target("H200"):
        assert jaxbw.explain(x, x, device="B200").implementation == "sm100"
        assert jaxbw.explain(x, x).implementation == "sm90"
    with pytest.raises(ValueError, match=r"explain\(device='B100'\): the targets are B200"):
        jaxbw.explain(x, x, device="B100")


def test_targets() -> None:
    assert [TARGETS[name].sm_count for name in ("B200", "H200", "H100")] == [148, 132, 132]
    assert {name: TARGETS[family.default_target].family for name, family in FAMILIES.items()} == {
        "sm90": "sm90",
        "sm100": "sm100",
    }
    assert Device("A100", (8, 0), 108, 0).family is None
    assert Device("RTX 5090", (12, 0), 170, 0).family is None


def test_an_absent_or_foreign_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "directory", lambda: tmp_path)
    assert manifest.kernels.__wrapped__() == ()
    (tmp_path / "manifest.json").write_text('{"version": 0, "kernels": []}')
    with pytest.raises(ImportError, match=r"version 0, this jaxbw reads \d: reinstall it"):
        manifest.kernels.__wrapped__()


def test_the_manifest_is_this_package() -> None:
    kernels = manifest.kernels()
    assert {kernel.family for kernel in kernels} == {"sm90", "sm100"}
    for kernel in kernels:
        assert (manifest.directory() / f"{kernel.name}.cubin").is_file()


def test_whether_a_kernel_fits_is_answered_without_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a strict call asks as it is traced; the ranking is for its lowering."""

    def ranked(*_: Any, **__: Any) -> Any:
        raise AssertionError("candidates are ranked")

    monkeypatch.setattr(select_module, "search", ranked)
    x = jax.ShapeDtypeStruct((1024, 1024), "bfloat16")
    for config in (None, GemmConfig(batch_invariant=True), GemmConfig(128, 128)):
        matmul = functools.partial(jaxbw.matmul, implementation="sm90", config=config)
        assert jax.eval_shape(matmul, x, x).shape == (1024, 1024)


def test_a_stage_of_fp8_is_128_deep_on_hopper() -> None:
    """It was refused, since a configuration is checked before its operands are known."""
    config = GemmConfig(128, 128, block_k=128)
    narrow = problem(512, 512, 512, "nt", jnp.float8_e4m3fn, jnp.bfloat16)
    found = select(narrow, TARGETS["H200"], ("sm90",), config, manifest.kernels())
    assert isinstance(found, Choice), found
    wide = problem(512, 512, 512, "nt")
    (refused,) = refusals(wide, TARGETS["H200"], ("sm90",), manifest.kernels(), config)
    assert "block_k is 128; sm90 kernels have 64" in refused.reason
