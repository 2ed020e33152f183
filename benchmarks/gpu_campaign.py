"""All that is due on a borrowed GPU, the most worth first, as far as the minutes go.

    python benchmarks/gpu_campaign.py --minutes 9 --dry-run      # what it would do; needs no GPU
    python benchmarks/gpu_campaign.py --minutes 9 --out build/campaign --send "$OUT"

A step (measuring/campaign_steps.py) is due where there is no record of this kind of GPU, or where
files that it watches differ from those of the commit of every record. Each runs as a process of its
own with a time limit; what it prints is in its folder. One that fails stops no other. Run again
with the same --out, it leaves out what is done, and tries last what did not end well; a step whose
command, kernels or watched files have changed begins anew. After each step, report.json, report.txt
and outputs.tar.gz with all folders are written to --send.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxbw import _native
from measuring.builds import parse_builds
from measuring.campaign_plan import Repository, Task, plan
from measuring.campaign_steps import STEPS, Step

ROOT = Path(__file__).resolve().parents[1]
LATE = 1.5  # times the expected seconds, and a step is stopped
LINES = 15  # of the output of a step that did not end well
# What the tools print where their time was over before all was measured.
UNFINISHED = re.compile(r"cases are left\.|s are over; run again to go on")
# Multicast over NVLink can put GPUs out of service that others share.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


@dataclass(frozen=True)
class Outcome:
    """How a step ended: "done", "unfinished", "failed", "stopped" or "no time"."""

    step: str
    outcome: str
    seconds: float = 0.0
    command: str = ""
    folder: str = ""
    tail: tuple[str, ...] = ()


def describe(tasks: Sequence[Task], seconds: float) -> str:
    """The plan as text: what fits, by the expected seconds, and what does not."""
    fits, rest, left = list[str](), list[str](), seconds
    for task in tasks:
        text = f"  {task.step.name:16} {task.step.seconds:4} s  {task.step.why}: {task.reason}"
        if task.before:
            text += f" ({task.before} before)"
        if task.step.seconds <= left:
            fits.append(text)
            left -= task.step.seconds
        else:
            rest.append(text)
    lines = [f"{seconds - left:.0f} of {seconds:.0f} s are planned:", *fits]
    return "\n".join([*lines, "there is no time for:", *rest] if rest else lines)


def attempt(task: Task, limit: float) -> Outcome:
    """Runs a step, and notes in its folder how it ended."""
    task.folder.mkdir(parents=True, exist_ok=True)
    log, start = task.folder / "log.txt", time.monotonic()
    command = [sys.executable, *shlex.split(task.command)[1:]]
    environment = os.environ | NO_MULTICAST | {"PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        # A process group, so that all of its processes can be ended. Not a session, which would go
        # on where a lent machine ends the campaign.
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=ROOT, env=environment, process_group=0
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = log.read_text(errors="replace")
    if code is None:
        outcome = "stopped"
    elif code:
        outcome = "failed"
    else:
        outcome = "unfinished" if UNFINISHED.search(said) else "done"
    seconds = round(time.monotonic() - start, 1)
    tail = () if outcome == "done" else tuple(said.splitlines()[-LINES:])
    found = Outcome(task.step.name, outcome, seconds, task.command, task.folder.name, tail)
    (task.folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(found), indent=1))
    return found


def run(tasks: Sequence[Task], seconds: float, out: Path, send: Path, about: str) -> list[Outcome]:
    """Runs what there is time for; a report and the archive after each step."""
    end, outcomes = time.monotonic() + seconds, list[Outcome]()
    for task in tasks:
        left = end - time.monotonic()
        if task.step.seconds > left:
            outcomes.append(Outcome(task.step.name, "no time"))
            continue
        print(f"{task.step.name}: {task.command}", flush=True)
        outcomes.append(attempt(task, min(left, LATE * task.step.seconds)))
        print(f"  {outcomes[-1].outcome}, {outcomes[-1].seconds:.0f} s", flush=True)
        deliver(outcomes, out, send, about)
    deliver(outcomes, out, send, about)
    return outcomes


def deliver(outcomes: Sequence[Outcome], out: Path, send: Path, about: str) -> None:
    """Writes the report, and packs the folders of all steps, also of runs before."""
    lines = [about]
    for each in outcomes:
        lines.append(f"{each.step:16} {each.outcome:10} {each.seconds:5.0f} s  {each.folder}")
        lines += [f"    {line}" for line in each.tail]
    report = {"about": about, "steps": [dataclasses.asdict(each) for each in outcomes]}
    send.mkdir(parents=True, exist_ok=True)
    (send / "report.txt").write_text("\n".join(lines) + "\n")
    (send / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    with tarfile.open(send / "outputs.tar.gz", "w:gz") as archive:
        for outcome in sorted(out.glob("*/outcome.json")):
            archive.add(outcome.parent, outcome.parent.name)


def gpu_name() -> str:
    """As names of records have it, "h200"; that where there is no GPU, for the plan."""
    names = [device.name for device in _native.devices()]
    return names[0].split()[1].lower() if names else "h200"


def main(arguments: Sequence[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    """The command line; returns the process's exit status, 1 where a step failed or was stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True, help="after which all is over")
    parser.add_argument("--builds", nargs="+", default=[], metavar="NAME=DIR", help="to compare")
    parser.add_argument("--steps", nargs="+", default=[], choices=[step.name for step in steps])
    parser.add_argument(
        "--gpu", default=gpu_name(), help="as in the names of records, such as h200"
    )
    parser.add_argument("--out", type=Path, default=Path("build/campaign"), help="steps' folders")
    parser.add_argument("--send", type=Path, help="the report and the archive; default --out")
    parser.add_argument("--dry-run", action="store_true", help="print the plan only")
    given = parser.parse_args(arguments)
    try:
        builds = parse_builds(given.builds) if given.builds else {}
    except ValueError as error:
        parser.error(str(error).replace("--kernels", "--builds"))
    tasks = plan(steps, Repository(ROOT, given.gpu), given.out, builds, given.steps)
    print(describe(tasks, 60 * given.minutes), flush=True)
    if given.dry_run:
        return 0
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = f"{date}, {given.gpu}, {given.minutes:g} minutes"
    outcomes = run(tasks, 60 * given.minutes, given.out, given.send or given.out, about)
    return int(any(each.outcome in ("failed", "stopped") for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
