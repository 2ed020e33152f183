"""Hostile PTX raises; it never kills or holds up the process. `fuzz.py` runs longer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbw import emulator

from . import hostile_ptx


@settings(max_examples=300, deadline=None)
@given(case=st.integers(0, 2**32))
def test_hostile_kernels_run_or_raise(case: int) -> None:
    hostile_ptx.run(case)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_any_text_parses_or_raises(text: str) -> None:
    try:
        emulator.Module(text)
    except emulator.EmulatorError:
        pass


def test_a_case_is_a_function_of_its_number() -> None:
    assert hostile_ptx.text(5) == hostile_ptx.text(5)
    assert len({hostile_ptx.text(case) for case in range(20)}) == 20


def test_cases_reach_the_machine() -> None:
    outcomes = [hostile_ptx.run(random.Random(i).randrange(2**32)) for i in range(200)]
    assert outcomes.count("ran") > 10
    assert len(set(outcomes)) > 15


# Found by fuzzing.


def test_a_character_that_is_not_ascii_is_named() -> None:
    with pytest.raises(emulator.EmulatorError, match=r"kernel.ptx:2: PTX is ASCII"):
        emulator.Module("\n\x80")


def test_a_list_of_targets_is_no_label() -> None:
    lists = "".join(f"L{i}: .branchtargets E;" for i in range(9))
    text = f".visible .entry kernel() {{ bra L8; {lists} E: ret; }}"
    with pytest.raises(emulator.EmulatorError, match="needs a label"):
        emulator.Module(text).launch("kernel", grid=1, block=1)
