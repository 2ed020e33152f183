"""What is found at which level: docs/emulator.md gives the reasons."""

import re
from typing import Any

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import STORE_R0, module, text
from .test_findings import GLOBAL_PAIRS, INIT, LOAD, PAIRS, WAIT, Pair

# Of the faults of test_findings, those that GPUs bear and production kernels have.
BORNE = {
    "exit while a bulk store reads",
    "register used before wait::ld",
    "barrier initialised without a fence",
}


def found(body: str, checks: str, threads: int = 32, grid: int = 1) -> set[str]:
    kinds: set[str] = set()
    for schedule, seed in [("eager", 0), ("latest", 0), *[("random", seed) for seed in range(4)]]:
        out = emulator.empty(256, np.uint32)
        out[:] = 0
        options: dict[str, Any] = dict(schedule=schedule, seed=seed, checks=checks)
        report = module(body).launch("kernel", grid=grid, block=threads, args=[out], **options)
        kinds |= {finding.kind for finding in report.findings}
    return kinds


@pytest.mark.parametrize("pair", PAIRS + GLOBAL_PAIRS)
def test_hardware_finds_what_can_make_results_wrong(
    pair: Pair, request: pytest.FixtureRequest
) -> None:
    borne = request.node.callspec.id in BORNE
    assert found(pair.bad, "hardware", pair.threads, pair.grid) == (set() if borne else {pair.kind})
    assert found(pair.good, "hardware", pair.threads, pair.grid) == set()


TMEM = """
  setp.ge.u32 %p0, %tid, 32;
  @%p0 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [memory + 2048], 32;
ALLOCATED:
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  ld.shared.b32 %r1, [memory + 2048];
  @!%p0 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {{%tid}};
  @!%p0 tcgen05.wait::st.sync.aligned;
  {load}
  tcgen05.fence::before_thread_sync;
  {meet}
  tcgen05.fence::after_thread_sync;
  {rest} bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;
DONE:
"""


def tmem(load: str, meet: str = "bar.sync 0;", rest: str = "@%p0", fences: bool = True) -> str:
    body = TMEM.format(load=load, meet=meet, rest=rest)
    return body if fences else re.sub(r"tcgen05\.fence::\w+;", "", body)


TMEM_LOAD = "@!%p0 tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r1];"
USE = "@!%p0 st.shared.b32 [memory], %r0;"
ONE_STORES = "setp.eq.u32 %p2, %tid, 0; @%p2 st.shared.b32 [memory], %r0;"
COPY = "@!%p0 mov.b32 %f0, %r0;"
TMEM_WAIT = "@!%p0 tcgen05.wait::ld.sync.aligned;"


@pytest.mark.parametrize(
    ("between", "hardware", "strict"),
    [
        pytest.param(TMEM_LOAD + TMEM_WAIT + ONE_STORES, set(), set(), id="waited for"),
        pytest.param(TMEM_LOAD + ONE_STORES, set(), {"in-flight register"}, id="used"),
        pytest.param(
            TMEM_LOAD + COPY + ONE_STORES.replace("%r0", "%f0"),
            set(),
            {"in-flight register"},
            id="a copy is used",
        ),
        pytest.param(TMEM_LOAD + COPY, {"race"}, {"race"}, id="copied"),
        pytest.param(TMEM_LOAD, {"race"}, {"race"}, id="neither"),
    ],
)
def test_who_uses_a_loaded_register_knows_that_the_load_is_over(
    between: str, hardware: set[str], strict: set[str]
) -> None:
    """As the scoreboard of a GPU has it: else columns are freed under the load."""
    body = tmem(between)
    assert found(body, "hardware", threads=64) == hardware
    assert found(body, "strict", threads=64) == strict


def test_tensor_memory_needs_no_fence_where_threads_meet() -> None:
    load, other = TMEM_LOAD + TMEM_WAIT, "@!%p0"
    assert found(tmem(load, rest=other), "strict", threads=64) == set()
    assert found(tmem(load, rest=other, fences=False), "strict", threads=64) == {"race"}
    assert found(tmem(load, rest=other, fences=False), "hardware", threads=64) == set()


def test_what_threads_have_written_is_overwritten_without_a_proxy_fence() -> None:
    written = "st.shared.b32 [memory], 7;" + INIT + LOAD + "WAIT:" + WAIT
    fenced = written.replace(INIT, INIT + "fence.proxy.async.shared::cta;")
    assert found(written, "strict", threads=1) == {"race"}
    assert found(written, "hardware", threads=1) == set()
    assert found(fenced, "strict", threads=1) == set()


# Every warp stores the same matrix, or its own.
MATRIX = """
  and.b32 %r2, %tid, 7;
  shl.b32 %r2, %r2, 4;
  add.u32 %r2, %r2, %shared;
  mov.b32 %r3, %tid;
  stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r3};
"""


@pytest.mark.parametrize(
    ("body", "hardware"),
    [
        pytest.param("st.shared.b32 [memory], 7;", set(), id="the same"),
        pytest.param("st.shared.b32 [memory], %tid;", {"race"}, id="different values"),
        pytest.param(MATRIX.replace("%tid", "7"), set(), id="the same, by stmatrix"),
        pytest.param(MATRIX, {"race"}, id="different values, by stmatrix"),
        pytest.param(
            "setp.ge.u32 %p0, %tid, 32; @%p0 st.shared.b32 [memory], 7;\n"
            "@!%p0 st.shared.b32 [memory], 7;",
            {"race"},
            id="by two instructions",
        ),
        pytest.param(
            "st.shared.b32 [memory], 7; ld.shared.b32 %r0, [memory]; bar.sync 0;",
            {"race"},
            id="and somebody reads",
        ),
    ],
)
def test_the_same_value_by_one_instruction_of_several_warps(body: str, hardware: set[str]) -> None:
    assert found(body, "hardware", threads=64) == hardware
    assert found(body, "strict", threads=64) == {"race"}


def test_a_race_names_both_accesses_and_their_sources() -> None:
    body = """
  .loc 1 12 0
  setp.eq.u32 %p0, %tid, 37;
  @%p0 st.shared.v4.b32 [memory], {%tid, %tid, %tid, %tid};
  .loc 1 15 3, function_name $L__info_string0, inlined_at 1 20 0
  setp.eq.u32 %p0, %tid, 3;
  fence.proxy.async.shared::cta;
  @!%p0 bra END;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [memory], 16;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
END:
"""
    lines = text(body).splitlines()
    stored, read = (
        next(i for i, line in enumerate(lines, 1) if opcode in line)
        for opcode in ("st.shared.v4", "cp.async.bulk.global")
    )
    named = text(body) + '.file 1 "/somewhere/kernel.py"\n'
    out = emulator.empty(64, np.uint32)
    options: dict[str, Any] = dict(grid=1, block=64, args=[out], schedule="latest")
    (race,) = emulator.Module(named).launch("kernel", **options).findings
    assert (race.line, race.source, race.other_line) == (read, "kernel.py:15", stored)
    assert race.where == "CTA (0,0,0) warp 0"
    assert race.message == (
        "a read of shared memory at 0x400 by an asynchronous operation of CTA (0,0,0) warp 0 "
        "lane 3 is not ordered after the write by CTA (0,0,0) warp 1 lane 5 "
        f"at line {stored} (kernel.py:12)"
    )
    assert repr(race).startswith(f"race: line {read} (kernel.py:15), CTA (0,0,0) warp 0: a read")


def test_races_are_counted_by_both_lines() -> None:
    body = """
  setp.ge.u32 %p0, %tid, 32;
  @!%p0 bra READ;
  st.shared.b32 [memory], 1;
  st.shared.b32 [memory + 64], 1;
  bra END;
READ:
  mov.u32 %r2, 0;
AGAIN:
  ld.shared.b32 %r0, [%shared];
  add.u32 %shared, %shared, 64;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p1, %r2, 2;
  @%p1 bra AGAIN;
END:
"""
    out = emulator.empty(64, np.uint32)
    report = module(body).launch("kernel", grid=1, block=64, args=[out])
    (first, other) = report.findings
    assert first.line == other.line
    assert first.other_line + 1 == other.other_line
    assert first.count == other.count == 32


def test_findings_of_a_kind_are_grouped() -> None:
    stores = "\n".join(f"st.shared.b32 [memory + {4 * i}], %tid;" for i in range(20))
    out = emulator.empty(64, np.uint32)
    report = module(stores + "ld.shared.b32 %r0, [memory + 400];" + STORE_R0).launch(
        "kernel", grid=1, block=64, args=[out], schedule="eager"
    )
    assert len(report.findings) == 21
    poison, races = sorted(report.summary().splitlines())
    first = min(f.line for f in report.findings)
    # The lanes that execute a store together are one writer.
    assert races.startswith(
        f"race, 20 times at 20 lines: {first}, {first + 1}, {first + 2}, {first + 3}, ...: "
        "a write of shared memory at 0x"
    )
    assert poison.startswith("poison, 64 times at line ")


def test_nothing_found_is_said() -> None:
    report = module("").launch("kernel", grid=1, block=1, args=[emulator.empty(4, np.uint32)])
    assert report.summary() == "no findings"
