"""Tuning of grouped matmuls: what is measured, stored, and found again; and no bits change."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.cli import tune
from jaxbw._src.lab.cli.main import main
from jaxbw._src.lab.tuning import autotune, find
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import devices, ragged
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls, add, new_entry

from .made_up_gpu import MadeUpGpu

H200 = TARGETS["H200"]
X = jax.ShapeDtypeStruct((512, 128), jnp.bfloat16)
EXPERTS = jax.ShapeDtypeStruct((8, 128, 512), jnp.bfloat16)
SIZES = jax.ShapeDtypeStruct((8,), jnp.int32)


def by_swizzle(config: GemmConfig) -> float:
    """Another one than the rule's is the fastest."""
    return 10.0 + abs(config.tile[1] - 256) + abs(config.swizzle - 4) + config.split_k


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUpGpu:
    made_up = MadeUpGpu(by_swizzle)
    monkeypatch.setattr(devices, "running_device", lambda: H200)
    monkeypatch.setattr(tune, "gpu", lambda sizes: made_up)
    monkeypatch.setattr(autotune, "gpu", lambda sizes: made_up)
    monkeypatch.chdir(tmp_path)
    return made_up


def reasons(function: Any, *args: Any) -> list[str]:
    report = jaxbw.explain_function(function, *args, device="H200")
    return [each.choice.reason for each in report.matmuls]


def problem_of(rows_per_group: int | None = None, **changed: Any) -> RaggedProblem:
    def call(x: Any, w: Any, sizes: Any) -> Any:
        return jaxbw.ragged_dot(x, w, sizes, rows_per_group=rows_per_group)

    (found,) = find.matmuls(call, X, EXPERTS, SIZES)
    assert isinstance(found.problem, RaggedProblem)
    return replace(found.problem, **changed)


def stored(path: Path, problem: RaggedProblem, config: GemmConfig) -> Path:
    kept = {"configurations": 20, "date": "2026-11-27", "xla_us": None}
    add(path, new_entry(problem, H200, config, us=1.5, untuned_us=2.0, **kept))
    return path


# --- measuring


def test_the_command_stores_what_is_fastest_and_calls_find_it(
    gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["512x512x128", "--groups", "8", "--layouts", "nn", "nt"]
    assert main(["tune", *arguments]) == 0
    told = capsys.readouterr().out
    assert "[1/2] ragged bf16[1,512,128] @ bf16[1,8,128,512] -> bf16[1,512,512], 8 groups, " in told
    assert "64 rows of one: 11.00 us, " in told
    assert "XLA" not in told.replace("JAXBW_TUNED", "")
    for entry in TunedMatmuls.load("tuned.json").entries.values():
        assert (entry.us, entry.xla_us, entry.is_for_xla) == (11.0, None, False)
        assert entry.configurations == 20
        assert entry.config.swizzle == 4
        assert entry.us < entry.untuned_us
    (plain,) = reasons(jaxbw.ragged_dot, X, EXPERTS, SIZES)
    assert plain == "the tile for 64 rows of a group"
    with jaxbw.use_tuned("tuned.json"):
        (tuned,) = reasons(jaxbw.ragged_dot, X, EXPERTS, SIZES)
        of_mt = reasons(lambda x, w, s: jaxbw.ragged_dot(x, w.mT, s), X, EXPERTS.update(
            shape=(8, 512, 128)
        ), SIZES)  # fmt: skip
        with jaxbw.target("H200"):
            text = jax.jit(jaxbw.ragged_dot).trace(X, EXPERTS, SIZES)
            assert "swizzle = 4" in text.lower(lowering_platforms=("cuda",)).as_text()
    assert tuned == "tuned: the fastest of 20 configurations, 11.00 us, by tuned.json"
    assert of_mt == [tuned]


def test_a_step_has_its_gradients_and_sums_in_place(gpu: MadeUpGpu, tmp_path: Path) -> None:
    numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())

    def step(x: Any, w: Any, sizes: Any, total: Any) -> Any:
        y, pull = jax.vjp(lambda x, w: jaxbw.ragged_dot(x, w, sizes), x, w)
        added = jaxbw.ragged_dot_general(
            x, y, sizes, numbers, c=total, preferred_element_type=jnp.float32
        )
        return pull(y), added

    total = jax.ShapeDtypeStruct((8, 128, 512), jnp.float32)
    path = tmp_path / "t.json"
    outcomes = jaxbw.autotune(step, X, EXPERTS, SIZES, total, path=path)
    assert len(outcomes) == len(TunedMatmuls.load(path).entries) == 4
    assert all(each.entry is not None and each.entry.config.split_k == 1 for each in outcomes)
    assert max(config.split_k for burst in gpu.bursts for config in burst) == 4
    with jaxbw.use_tuned(path):
        found = reasons(step, X, EXPERTS, SIZES, total)
    assert len(found) == 4
    assert all(reason.startswith("tuned: the fastest of") for reason in found)
    assert jaxbw.autotune(step, X, EXPERTS, SIZES, total, path=path) == []


def test_what_no_kernel_takes_and_what_there_is_not(
    gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "512x516x128", "--groups", "8"]) == 0
    assert "not measured: XLA serves it: rhs has rows of 1032 bytes" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["tune", "512x512x128", "--groups", "8", "--layouts", "tt"])
    assert "layouts of grouped matmuls are nn, nt, and tn" in capsys.readouterr().err


def test_results_that_differ_are_refused(
    gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.wrong = next(ragged.candidates(problem_of(), "sm90", 132))
    with pytest.raises(SystemExit):
        main(["tune", "512x512x128", "--groups", "8"])
    assert "is inf off" in capsys.readouterr().err


# --- finding


def test_groups_and_the_rows_that_are_expected_are_part_of_the_key(tmp_path: Path) -> None:
    table = TunedMatmuls.load(stored(tmp_path / "t.json", problem_of(), GemmConfig(128, 128)))
    assert table.find(problem_of(), H200) is not None
    assert table.find(problem_of(64), H200) is not None  # as many as there are on average
    for other in (
        problem_of(128),
        problem_of(total_groups=16),
        problem_of(promoted=True),
        problem_of(source_rows=300),
        problem_of(ragged_contraction=True),
    ):
        assert table.find(other, H200) is None, str(other)


def test_what_cannot_be_launched_today_is_left_to_the_rule(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.json", problem_of(), GemmConfig(128, 128, cluster=(1, 2)))
    with jaxbw.use_tuned(path):
        (reason,) = reasons(jaxbw.ragged_dot, X, EXPERTS, SIZES)
    assert reason.startswith("the tile for 64 rows of a group; not block 128x128xspan, cluster 1x2")
    assert f"as {path} has it: the configuration has a cluster, split_k" in reason


def test_a_given_configuration_comes_first_and_switches_are_those_of_dense_matmuls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What it left in JAX's caches once met the test of the command, which ran behind it."""
    request.addfinalizer(jax.clear_caches)
    path = stored(tmp_path / "t.json", problem_of(), GemmConfig(128, 128, swizzle=2))

    def given(x: Any, w: Any, sizes: Any) -> Any:
        return jaxbw.ragged_dot(x, w, sizes, config=GemmConfig(128, 256))

    with jaxbw.use_tuned(path):
        assert reasons(given, X, EXPERTS, SIZES) == ["the given configuration"]
        with jaxbw.batch_invariant():  # a tile changes no bits
            (kept,) = reasons(jaxbw.ragged_dot, X, EXPERTS, SIZES)
        assert kept.startswith("tuned: ")
        monkeypatch.setenv("JAXBW_TUNED", "off")
        (off,) = reasons(jaxbw.ragged_dot, X, EXPERTS, SIZES)
    assert off == "the tile for 64 rows of a group"
    monkeypatch.setenv("JAXBW_TUNED", str(path))
    jax.clear_caches()  # which the environment is no part of: a process is started with it
    assert reasons(jaxbw.ragged_dot, X, EXPERTS, SIZES) == [kept]


@pytest.mark.parametrize("name", ["emulator-sm90", "emulator"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_tuned_choice_changes_no_bits(name: str, dtype: str, tmp_path: Path) -> None:
    """Of real values, by each tile that is compared: what is tuned is as the rule has it."""
    rng = np.random.default_rng(0)
    device = H200 if name == "emulator-sm90" else TARGETS["B200"]
    x, w = (
        jnp.asarray(rng.standard_normal(s), jnp.float32).astype(dtype)
        for s in ((150, 272), (3, 256, 272))
    )
    sizes = jnp.array([37, 0, 90], jnp.int32)

    def call(x: Any, w: Any) -> Any:
        return jaxbw.ragged_dot(
            x, w.mT, sizes, preferred_element_type=jnp.float32, implementation=name
        )

    expected = np.asarray(jax.jit(call)(x, w))
    (found,) = find.matmuls(call, x, w)
    assert isinstance(found.problem, RaggedProblem)
    family = device.family or ""
    every = ragged.candidates(found.problem, family, device.sm_count)
    wanted = {64, 128, 256} if family == "sm90" else {96, 256}  # what takes a second each
    tiles = [c for c in every if c.swizzle == 2 and c.block_n in wanted]
    assert len(tiles) >= 4
    for number, config in enumerate(tiles):
        path = tmp_path / f"{number}.json"
        kept = {"configurations": 20, "date": "2026-11-27", "xla_us": None}
        add(path, new_entry(found.problem, device, config, us=1.5, untuned_us=2.0, **kept))
        with jaxbw.use_tuned(path), jaxbw.target(device.name):
            (reason,) = [each.choice.reason for each in jaxbw.explain_function(call, x, w).matmuls]
            assert reason.startswith("tuned: ")
            tuned = np.asarray(jax.jit(call)(x, w))
        np.testing.assert_array_equal(tuned.view(np.uint32), expected.view(np.uint32))


# --- sizes


@pytest.mark.parametrize("kind", group_sizes.KINDS)
def test_sizes_sum_to_the_rows_and_repeat(kind: str) -> None:
    for groups, rows in ((8, 4096), (7, 100), (64, 3)):
        sizes = group_sizes.drawn(kind, groups, rows)
        assert sizes.sum() == rows
        assert (sizes >= 0).all()
        np.testing.assert_array_equal(sizes, group_sizes.drawn(kind, groups, rows))


def test_sizes_follow_what_a_call_expects() -> None:
    assert group_sizes.of_problem(problem_of()).tolist() == [[64] * 8]
    few = group_sizes.of_problem(problem_of(256))  # rows for two groups
    assert few.tolist() == [[256, 0, 0, 0, 256, 0, 0, 0]]
    assert group_sizes.of_problem(problem_of(8)).tolist() == [[8] * 8]  # and a tail
    assert group_sizes.of_problem(problem_of(batch=2), "one").sum(axis=1).tolist() == [512, 512]
    with pytest.raises(ValueError, match="uniform, zipf, one, random, not 'even'"):
        group_sizes.drawn("even", 8, 64)
