"""What run_sanitizers.py takes for clean and for found; on the GPU, a sample of its runs."""

from pathlib import Path

import pytest

from ..emulator.gemm_launch import ACTIVATIONS
from . import direct, environment, sanitize
from .run_sanitizers import (
    FOUND,
    TOOLS,
    Outcome,
    command,
    error_count,
    findings_of,
    plant,
    run_tool,
    summary,
)

MEMCHECK = "========= ERROR SUMMARY: {} errors"
RACECHECK = "========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)"


@pytest.mark.parametrize("count", [0, 1, 12])
def test_summary_of_each_tool(count: int) -> None:
    assert error_count(f"ok\n{MEMCHECK.format(count)}\n") == count
    assert error_count(f"ok\n{RACECHECK.format(count, count)}\n") == count
    assert error_count("========= ERROR SUMMARY: 1 error") == 1
    assert error_count("Segmentation fault") is None


@pytest.mark.parametrize(
    ("exit_code", "errors", "clean", "found"),
    [
        (0, 0, True, False),
        (FOUND, 3, False, True),
        (1, 0, False, False),  # the program failed by itself
        (0, None, False, False),  # the tool did not get to its summary
        (0, 3, False, False),  # --error-exitcode was not obeyed
        (FOUND, None, False, False),
    ],
)
def test_verdict(exit_code: int, errors: int | None, clean: bool, found: bool) -> None:
    outcome = Outcome(exit_code, errors, 1.0, {}, {}, "")
    assert (outcome.clean, outcome.found) == (clean, found)


def test_a_run_that_does_not_end_is_not_clean(tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho started; sleep 60")
    tool.chmod(0o755)
    outcome = run_tool(str(tool), "memcheck", ["program"], timeout=0.5)
    assert not outcome.clean
    assert "no end after 0.5 s" in outcome.output_tail


def test_launches_are_counted_by_instance(tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    lines = (
        "ok jaxbw_a 8x8x8",
        "FAILED jaxbw_b 8x8x8",
        "ok jaxbw_a jaxbw_c 9x9x9",
        MEMCHECK.format(0),
    )
    tool.write_text("#!/bin/sh\n" + "\n".join(f"echo '{line}'" for line in lines))
    tool.chmod(0o755)
    outcome = run_tool(str(tool), "memcheck", ["program"], timeout=10)
    assert outcome.launches == {"jaxbw_a": 2, "jaxbw_c": 1}
    found = Outcome(FOUND, 1, 1.0, {}, {}, "")
    bad = Outcome(FOUND, 2, 3.0, {"jaxbw_b": 1}, {}, "")
    said = summary("memcheck", found, [outcome, bad])
    assert (said["planted_bug_found"], said["clean"]) == (True, False)
    assert (said["instances"], said["launches"], said["seconds"]) == (3, 4, 3.0)
    assert len(said["not_clean"]) == 1


def test_findings_belong_to_the_launch_that_is_told_next() -> None:
    report = (
        "========= Invalid read of 4 bytes\n=========     at f+0x10\n=========     by thread 0\n"
    )
    output = f"ok jaxbw_a 1x1x1\n{report}{report}FAILED jaxbw_b 2x2x2\nok jaxbw_b 3x3x3\n{report}"
    what = "Invalid read of 4 bytes at f+0x10"
    assert findings_of(output) == {f"{what}, in FAILED jaxbw_b 2x2x2": 2, what: 1}


def test_only_what_is_held_to_be_false_is_let_pass(tmp_path: Path) -> None:
    """The lines are those of an H200's run, their addresses shortened."""
    tool = tmp_path / "compute-sanitizer"
    false = (
        "========= Host API memory access error at host access to 0x7f704c864200 of size 64 bytes\n"
        "=========     Uninitialized access to 0x7f704c864200 on access by cudaMemcpy source"
    )
    true = (
        "========= Uninitialized __global__ memory read of size 4 bytes\n"
        "=========     at jaxbw_a+0x60"
    )

    def outcome(reports: list[str], said: str, name: str = "initcheck") -> Outcome:
        text = "\n".join([*reports, "ok jaxbw_a 8x8x8", said, MEMCHECK.format(len(reports))])
        tool.write_text(f"#!/bin/sh\ncat << END\n{text}\nEND\nexit {FOUND if reports else 0}")
        tool.chmod(0o755)
        return run_tool(str(tool), name, ["program"], timeout=10)

    right, wrong = "3 of 3 launches are right", "2 of 3 launches are right"
    assert outcome([], right).clean
    assert outcome([false, false], right).clean
    assert not outcome([false, false], wrong).clean
    assert not outcome([false, true], right).clean
    assert not outcome([false], right, "memcheck").clean


def test_every_tool_has_a_planted_bug() -> None:
    folder = Path(__file__).parent / "planted"
    assert {path.stem for path in folder.iterdir()} == set(TOOLS)


def test_every_instance_is_launched() -> None:
    drawn = [case for kernel in direct.kernels("sm90") for case in sanitize.cases(kernel)]
    assert {case.kernel for case in drawn} == {kernel.name for kernel in direct.kernels("sm90")}
    for axis in ("gated", "save", "swap_ab", "store", "in_place", "split_tail", "bias_along_m"):
        assert len({getattr(case, axis) for case in drawn}) == 2, axis
    assert {case.activation for case in drawn} == {*ACTIVATIONS}


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("tool", TOOLS)
def test_a_planted_bug_is_found_and_an_instance_is_clean(tool: str, tmp_path: Path) -> None:
    try:
        sanitizer = environment.find_program("compute-sanitizer")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    planted = run_tool(sanitizer, tool, command(tool, "--planted", str(plant(tool, tmp_path))), 100)
    assert planted.found, planted.output_tail
    instances = str(len(direct.kernels("sm90")))
    outcome = run_tool(sanitizer, tool, command(tool, "--part", "0", instances), 100)
    assert outcome.clean, outcome.output_tail
