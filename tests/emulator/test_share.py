"""The parts of a split tile share its finishing on Hopper: who is still there does (split_k.h)."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jaxbw import emulator
from jaxbw._native import limits

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .installed import load, text

HOPPER: dict[str, Any] = dict(family="sm90", output="bf16", stages=3)
NARROW: dict[str, Any] = HOPPER | dict(block_n=64)
WIDE_TAIL: dict[str, Any] = HOPPER | dict(block_n=256, split_k=5, split_tail=True)
ALL: dict[str, Any] = dict(
    c="f32", bias="bf16", residual="f16", save=True, alpha=0.5, activation="relu"
)
SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("pct", 1)]

# What is shared, each in a launch: a slice has 1 to 8 chunks.
CASES = {
    "cast": Case(136, 200, 520, **HOPPER, split_k=5),
    "more parts than boxes": Case(136, 72, 520, **NARROW, split_k=7),
    "wide": Case(136, 264, 400, **HOPPER, block_n=256, split_k=5),
    "192 columns": Case(136, 200, 400, **HOPPER, block_n=192, split_k=5),
    "float32": Case(136, 136, 400, **HOPPER | dict(output="f32"), split_k=5),
    "rows": Case(136, 133, 400, **HOPPER, split_k=5),
    "columns": Case(24, 200, 400, **HOPPER, block_n=32, swap_ab=True, split_k=6),
    "elementwise": Case(
        136, 264, 400, **HOPPER, block_n=256, split_k=5, bias="f32", activation="relu"
    ),
    "elementwise, 192 columns": Case(
        136, 200, 400, **HOPPER, block_n=192, split_k=5, bias="f32", alpha=0.5, activation="relu"
    ),
    "gated": Case(136, 120, 400, **HOPPER, gated=True, activation="relu", split_k=5),
    "gated, wide": Case(136, 200, 400, **HOPPER, block_n=256, gated=True, bias="f16", split_k=5),
    "general": Case(136, 136, 400, **NARROW, **ALL, split_k=5),
    "general, gated": Case(136, 133, 400, **HOPPER, gated=True, save=True, split_k=5),
    "general, columns": Case(24, 133, 400, **HOPPER, **ALL, block_n=32, swap_ab=True, split_k=6),
    "two m64": Case(264, 200, 400, **HOPPER, block_m=256, split_k=5),
    "two m64, general": Case(264, 200, 400, **HOPPER, **ALL, block_m=256, split_k=5),
    "pingpong": Case(200, 136, 400, **NARROW, block_m=64, pingpong=True, split_k=5),
    "two m64, pingpong": Case(
        200, 136, 400, **HOPPER, block_m=128, pingpong=True, split_k=5, gated=True
    ),
    "2x1": Case(264, 136, 400, **NARROW, cluster=(2, 1), split_k=5),
    "2x2": Case(264, 264, 400, **NARROW, cluster=(2, 2), split_k=5, raster="n"),
    "batch": Case(72, 70, 400, batch=3, **NARROW, split_k=5),
    "split tail": Case(600, 300, 400, **HOPPER, split_k=5, split_tail=True),
    "clusters of parts": Case(136, 72, 600, **NARROW | dict(stages=None), cluster_k=2, split_k=3),
}  # fmt: skip


def run(case: Case, sm_count: int, **options: Any) -> gemm_launch.Outcome:
    return gemm_launch.launch(
        options.pop("module", None) or load(case.kernel),
        case.config(),
        case.matmul(),
        sm_count=sm_count,
        **options,
    )


@pytest.mark.sampled(4 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("clusters", [1, 3, 32])
@pytest.mark.parametrize("name", CASES)
def test_split_tiles_are_finished(name: str, clusters: int, schedule: tuple[str, int]) -> None:
    """As many clusters as the machine holds at a time: one, some of the parts, all of them."""
    case = CASES[name]
    kind, seed = schedule
    outcome = run(case, clusters * case.config().clusters, schedule=kind, seed=seed)
    gemm_cases.verify(case, case.matmul(), outcome)


# Four tiles, the last one split: where three go before it by TMA, which reads staging buffers that
# its sums want next.
TAILS = {
    "elementwise": Case(136, 264, 400, **WIDE_TAIL, bias="f32", activation="relu"),
    "192 columns": Case(
        136, 200, 400, **WIDE_TAIL | dict(block_n=192), bias="f32", activation="relu"
    ),
    "float32": Case(136, 264, 400, **WIDE_TAIL | dict(output="f32"), bias="f32"),
    "gated": Case(136, 136, 400, **WIDE_TAIL, gated=True, activation="relu"),
    "two m64": Case(264, 136, 400, **WIDE_TAIL | dict(block_n=128), block_m=256, alpha=0.5),
    "pingpong": Case(72, 264, 400, **WIDE_TAIL, block_m=64, pingpong=True, activation="relu"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TAILS)
def test_a_split_tile_waits_for_the_stores_of_whole_ones(name: str) -> None:
    case = TAILS[name]
    for schedule, seed in SCHEDULES:
        outcome = run(case, 3, schedule=schedule, seed=seed)
        gemm_cases.verify(case, case.matmul(), outcome)


def as_counted(case: Case, sm_count: int, **options: Any) -> npt.NDArray[np.integer[Any]]:
    """What counters would hold if nobody made them zero in the end."""
    kept, count = re.subn(r"red\.relaxed\.gpu\.global\.inc\.u32 [^;]*;", "", text(case.kernel))
    assert count >= 1
    module = emulator.Module(kept, "kept.ptx")
    return run(case, sm_count, module=module, **options).counters


def stayers(case: Case, sm_count: int, **options: Any) -> npt.NDArray[np.integer[Any]]:
    """How many parts shared each slice; all have begun and arrived."""
    counters = as_counted(case, sm_count, **options)
    assert (counters >> 24 == case.split_k).all()
    assert (counters >> 8 & 0xFF == case.split_k).all()
    return counters >> 16 & 0xFF


def test_who_is_there_when_all_have_begun_stays() -> None:
    case = CASES["cast"]  # four tiles in five parts
    alone = stayers(case, 1, schedule="eager")
    assert set(alone.tolist()) <= {0, 1}  # the last part of a tile, if anyone
    together = stayers(case, 20, schedule="latest")
    assert (together == case.split_k).all()
    mixed = [stayers(case, 20, schedule="random", seed=seed) for seed in range(16)]
    assert set(np.concatenate(mixed).tolist()) >= {1, 2, 3, 4}


def test_from_so_many_parts_on_they_share() -> None:
    """The selection's model knows the kernel's constant."""
    for parts in (limits("sm90")["min_shared_parts"] - 1, limits("sm90")["min_shared_parts"]):
        begun = as_counted(replace(CASES["cast"], split_k=parts), 16) >> 24
        assert (begun == (parts if parts == limits("sm90")["min_shared_parts"] else 0)).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["cast", "elementwise", "general", "two m64, pingpong", "more parts than boxes"]
)
def test_the_bits_do_not_depend_on_who_stays(name: str) -> None:
    case = replace(CASES[name], integers=False)
    ways = [(1, "eager", 0), (3, "latest", 0), *((32, "random", seed) for seed in range(4))]
    outcomes = [run(case, sms, schedule=schedule, seed=seed) for sms, schedule, seed in ways]
    counted = [as_counted(case, sms, schedule=schedule, seed=seed) for sms, schedule, seed in ways]
    assert len({counters.tobytes() for counters in counted}) > 1
    assert len({b"".join(x.tobytes() for x in (o.d, *o.saved)) for o in outcomes}) == 1


# Weaker orders, and a warp that stays but does not wait.
MUTANTS = {
    "sums are not acquired": (r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
    "arrivals order nothing": (r"atom\.add\.acq_rel", "atom.add.relaxed"),
    "nobody waits": (r"(nanosleep\.u32 [^@]*ld\.acquire\.gpu[^@]*)@%p\d+ bra\s+\S+;", r"\1"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", ["cast", "general"])
def test_what_orders_the_sums_is_needed(name: str, mutant: str) -> None:
    case = CASES[name]
    changed, count = re.subn(*MUTANTS[mutant], text(case.kernel))
    assert count >= 1
    module = emulator.Module(changed, "mutant.ptx")
    found = [
        finding.kind
        for schedule, seed in SCHEDULES
        for finding in run(case, 32, module=module, schedule=schedule, seed=seed).report.findings
    ]
    assert set(found) == {"race"}
