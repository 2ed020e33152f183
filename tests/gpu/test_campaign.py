"""Campaigns: workers that die or hang, and runs that go on. Needs no GPU."""

import subprocess
import sys
import time
from pathlib import Path

from .campaign import Notes, Outcome

ROOT = Path(__file__).resolve().parents[2]

# Number 2 dies, 3 hangs, 4 loses its process, 5 finds a fault.
SCRIPT = """
import os, time
from tests.gpu.campaign import Outcome, run

def attempt(number):
    if number == 2:
        os._exit(7)
    if number == 3:
        time.sleep(600)
    return Outcome(number, "wrong" * (number == 5), lost=number == 4)

if __name__ == "__main__":
    for outcome in run(attempt, range(8), jobs=2, limit=5):
        print(outcome.number, outcome.fault or "right", flush=True)
    for outcome in run(attempt, range(1000), jobs=1, budget=0):
        print("no time, yet", outcome.number)
"""


def test_every_attempt_has_one_outcome(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    outcomes = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert outcomes == dict.fromkeys("01467", "right") | {
        "2": "the process died with exit code 7",
        "3": "no end after 5 s",
        "5": "wrong",
    }
    assert time.monotonic() - start < 60


def test_notes_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    notes = Notes(path)
    for number, fault in ((5, "late"), (1, ""), (2, "early")):
        notes.add(Outcome(number, fault, 0.5))
    again = Notes(path)
    assert again.outcomes == notes.outcomes
    assert [outcome.fault for outcome in again.faults] == ["early", "late"]
