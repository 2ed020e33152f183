"""What run_sanitizers.py takes for clean and for found. Needs no GPU."""

from pathlib import Path

import pytest

from .run_sanitizers import FOUND, Outcome, error_count, run_tool

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
    outcome = Outcome(exit_code, errors, 1.0, "")
    assert (outcome.clean, outcome.found) == (clean, found)


def test_a_run_that_does_not_end_is_not_clean(tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho started; sleep 60")
    tool.chmod(0o755)
    outcome = run_tool(str(tool), "memcheck", ["program"], timeout=0.5)
    assert not outcome.clean
    assert "no end after 0.5 s" in outcome.output_tail
