"""Races of accesses to parts of a word of shared memory."""

from typing import Any

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import module

SCHEDULES = [("eager", 0), ("latest", 0), *[("random", seed) for seed in range(4)]]
# The first lanes of two warps do something, each by one instruction.
BODY = """
  setp.eq.u32 %p0, %tid, 0;
  setp.eq.u32 %p1, %tid, 32;
  cvt.u16.u32 %h0, %tid;
  {before}
  @%p0 {first}
  {between}
  @%p1 {then}
"""
MEET = "bar.sync 0;"
# Words that are there, and whole.
WRITTEN = "@%p0 st.shared.v4.b32 [memory], {%tid, %tid, %tid, %tid};" + MEET
# Whose last accesses were reads by all.
READ = WRITTEN + "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [memory];" + MEET


def races(before: str, first: str, between: str, then: str, checks: str) -> set[bool]:
    """Whether there are any, in each of some schedules."""
    body = BODY.format(before=before, first=first, between=between, then=then)
    found = set()
    for schedule, seed in SCHEDULES:
        options: dict[str, Any] = dict(schedule=schedule, seed=seed, checks=checks)
        out = emulator.empty(64, np.uint32)
        report = module(body).launch("kernel", grid=1, block=64, args=[out], **options)
        assert {finding.kind for finding in report.findings} <= {"race"}
        found.add(bool(report.findings))
    return found


def byte(at: int) -> str:
    return f"st.shared.b8 [memory + {at}], %h0;"


def half(at: int) -> str:
    return f"st.shared.b16 [memory + {at}], %h0;"


def word(at: int) -> str:
    return f"st.shared.b32 [memory + {at}], %tid;"


PAIRS = [
    (half(0), half(0), True),
    (half(0), half(2), False),
    (byte(1), half(0), True),
    (byte(1), half(2), False),
    (byte(1), byte(0), False),
    (half(2), word(0), True),
    (word(0), half(2), True),
    (word(0), half(4), False),
    (half(2), "ld.shared.b32 %r3, [memory];", True),
    (half(6), "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [memory];", True),
    (half(2), "ld.shared.b16 %h1, [memory];", False),
    (half(2), "ld.shared.b16 %h1, [memory + 2];", True),
    ("ld.shared.b16 %h1, [memory];", half(2), False),
    ("ld.shared.b16 %h1, [memory + 2];", half(2), True),
    ("ld.shared.b32 %r3, [memory];", half(2), True),
    ("st.shared.v2.b16 [memory + 4], {%h0, %h0};", half(6), True),
    ("st.shared.v2.b16 [memory + 4], {%h0, %h0};", half(2), False),
]


@pytest.mark.parametrize("checks", ["hardware", "strict"])
@pytest.mark.parametrize("before", [WRITTEN, READ], ids=["written", "read"])
@pytest.mark.parametrize(("first", "then", "race"), PAIRS)
def test_warps_race_for_the_same_bytes(
    first: str, then: str, race: bool, before: str, checks: str
) -> None:
    assert races(before, first, "", then, checks) == {race}
    assert races(before, first, MEET, then, checks) == {False}


def test_a_part_is_written_where_several_have_read_the_word() -> None:
    everyone = WRITTEN + "ld.shared.b32 %r3, [memory];"
    assert races(everyone, word(8), "", half(2), "hardware") == {True}
    assert races(everyone, word(8), "", half(4), "hardware") == {False}


@pytest.mark.parametrize("fence", ["", "fence.proxy.async.shared::cta;"])
def test_a_copy_reads_what_was_written_in_parts(fence: str) -> None:
    copy = """
  cp.async.bulk.global.shared::cta.bulk_group [%out], [memory], 16;
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;
  @%p1 st.shared.v4.b32 [memory], {%tid, %tid, %tid, %tid};
  @%p1 st.shared.b16 [memory + 2], %h0;"""
    assert races(WRITTEN + fence, half(2), fence + MEET, copy, "hardware") == {not fence}
