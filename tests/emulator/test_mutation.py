"""A sample of mutation testing (mutation.py): broken kernels are found."""

import itertools
from typing import Any

import pytest

from jaxbw import emulator
from jaxbw._native import limits

from . import installed, mutation
from .gemm_cases import Case
from .mutation_launches import (
    FLOAT8_NAMES,
    GROUPED_NAMES,
    MX_NAMES,
    NAMES,
    SKINNY_NAMES,
    STORING_LAST,
    launches,
)
from .ragged_launch import Ragged
from .redundant import REDUNDANT

EVERY = 72  # of the mutants, one is tried
PARTS = 3  # of those
SCHEDULES = mutation.SCHEDULES[:9]
AMONG = {  # launches
    "sm90": (*range(8), *range(8, 40, 3)),
    "sm100": (0, 1, 4, 7, 8, 10, 11, 13, 15, 17, 21),
}
SHARED = 2  # more of them, whose CTAs share a tile
BROUGHT = 12  # and the last ones of sm90, whose residual comes by TMA


def _among(name: str) -> list[int]:
    """The launches in which a kernel's mutants are tried."""
    if name in SKINNY_NAMES:
        return [*range(len(launches(name)))]
    if name in FLOAT8_NAMES + MX_NAMES + GROUPED_NAMES:
        every = launches(name)
        storing = [
            i for i, x in enumerate(every) if isinstance(x, Ragged) and x.sm_count == STORING_LAST
        ]
        # Floats that TMA stores of a gated tile in MX formats, and what is saved of it: a way of
        # its own to wait for staging buffers, of which one launch in four may be none.
        floats = [
            i
            for i, x in enumerate(every)
            if isinstance(x, Case) and x.mx and x.gated and x.save and x.output == "f32"
        ]
        return [*dict.fromkeys([*range(0, len(every), 4), *storing, *floats[:1]])]
    family = name.split("_")[1]
    cases = [(i, case) for i, case in enumerate(launches(name)) if isinstance(case, Case)]
    shared = [i for i, case in cases if case.cluster_k > 1]
    among = [*AMONG[family], *shared[:SHARED]]
    if family == "sm90":
        # ... and parts that share what is left to do: floats, and behind whole tiles.
        parts = limits("sm90")["min_shared_parts"]
        among += [
            i
            for i, case in cases
            if case.split_k == parts and (case.output == "f32" or case.split_tail)
        ]
        among += range(len(cases))[-BROUGHT:]
    return among


@pytest.mark.sampled(6)
@pytest.mark.parametrize("where", [*itertools.product(NAMES, range(PARTS))], ids=str)
def test_mutants_are_found(where: tuple[str, int]) -> None:
    name, part = where
    installed.text(name)  # or the test is skipped
    among = _among(name)
    for _, mutant in list(mutation.all_mutants((name,)))[part * EVERY :: EVERY * PARTS]:
        if mutation.redundant(name, mutant):
            continue  # found or not, it passes
        reaching = (
            i
            for i in among
            if mutation.reaches(launches(name)[i], mutation.reached(name, i), mutant)
        )
        outcome = mutation.examine(name, mutant, reaching, SCHEDULES)
        assert outcome.verdict != "survived", outcome


def test_a_limit_is_of_the_kernel_alone() -> None:
    """Not of the copy ahead of it, whose lanes part under a random schedule.

    There the copy took 900,000 instructions, the kernel 52,000, and the limit was 40 times what the
    kernel takes under the first schedule: redundant instructions were "found", as hangs.
    """
    name = "jaxbw_sm100_8bit_mx_2cta"
    module = emulator.Module(installed.text(name), name)
    pair: Any = {"block_m": 256, "cta_group": 2, "cluster": (2, 2), "stages": 2}
    case = Case(248, 248, 592, layout="tn", dtype="e4m3", mx=32, output="bf16", **pair)
    _, _, steps = mutation.observe(module, case, ("latest", 0))
    assert mutation.observe(module, case, ("random", 4), 40 * steps)[0] == []


def test_redundant_instructions_exist() -> None:
    sites = {
        site
        for name, mutant in mutation.all_mutants(NAMES)
        for site in mutation.sites(name, mutant)
    }
    assert REDUNDANT.keys() <= sites
