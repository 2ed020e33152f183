"""benchmarks/gpu_campaign.py: what is due by made-up records, and steps that go wrong."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_campaign
import pytest

from measuring.campaign_plan import Repository, Task, plan
from measuring.campaign_steps import STEPS, Step

ROOT = Path(__file__).parents[2]
CUDA, SELECTION = ("cuda", ":!cuda/emulator"), ("jaxbw/_src/selection",)


class Checkout(Repository):
    """One whose files, records and commits a test makes."""

    def write(self, name: str, text: str) -> str:
        """Commits a file; returns the commit."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.git("add", ".")
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        assert self.git(*who, "commit", "-m", name) is not None
        commit = self.git("rev-parse", "--short=8", "HEAD")
        assert commit
        return commit

    def record(self, name: str, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.write(f"benchmarks/results/2026-11-23_{name}", text)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "checkout", "h200")
    made.root.mkdir()
    assert made.git("init", "-q") is not None
    made.write("jaxbw/_src/selection/select.py", "one")
    made.write("cuda/gemm.cu", "one")
    return made


def step(name: str, code: str = "", **fields: Any) -> Step:
    """One that runs Python, and leaves a record behind."""
    write = "open('{out}_" + name + ".json', 'w').close()"
    command = f'python -c "{code or write}"'
    known = {"seconds": 60, "record": f"{name}.json", "watches": CUDA}
    return Step(name, "why", **{"command": command, **known, **fields})


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.step.name for task in tasks]


def test_a_step_is_due_where_what_it_watches_has_changed(checkout: Checkout) -> None:
    old = checkout.write("cuda/gemm.cu", "two")
    now = checkout.write("cuda/gemm.cu", "three")
    checkout.record("h200_calibration.jsonl", "{}")  # says no commit: its own one counts
    checkout.record("h200_kernels.json", {"environment": {"commit": f"{old}-dirty"}})
    checkout.record("h200_choices.json", {"environment": {"commit": old}})
    checkout.record("h200_rows.json", {"sessions": {"a": {"commit": old}, "b": {"commit": now}}})
    checkout.record("h200_tests.txt", f"date: today\ncommit: {old}\n")
    checkout.record("h200_tests_2.txt", f"date: today\ncommit: {now}-dirty\n")
    checkout.record("h200_lost.json", {"environment": {"commit": "0123456"}})
    checkout.record("h100_other.json", {"environment": {"commit": now}})
    checkout.write("cuda/emulator/ptx.cc", "not watched")
    steps = [
        step("calibration", record="calibration*.jsonl*"),
        step("kernels"),
        step("choices", watches=SELECTION),
        step("rows"),
        step("tests", record="tests*.txt"),
        step("lost"),
        step("other"),
    ]
    found = plan(steps, checkout, checkout.root / "out", {})
    assert {task.step.name: task.reason for task in found} == {
        "kernels": "changed since 2026-11-23_h200_kernels.json: cuda/gemm.cu",
        "rows": "changed since 2026-11-23_h200_rows.json: cuda/gemm.cu",
        "lost": "the commit of 2026-11-23_h200_lost.json is not known here",
        "other": "there is no record of the h200",
    }
    (checkout.root / "cuda/gemm.cu").write_text("not committed")
    assert "tests" in names(plan(steps, checkout, checkout.root / "out", {}))
    assert names(plan(steps, checkout, checkout.root / "out", {}, ["choices"])) == ["choices"]


def test_commands_name_seed_builds_and_changed_tests(checkout: Checkout) -> None:
    now = checkout.write("tests/gpu/test_old.py", "")
    checkout.record("h200_tests.txt", f"commit: {now}\n")
    checkout.record("h200_judged_2037.json", {"environment": {"commit": "0123456"}})
    judged = step("judged", "{seed} {budget}", record="judged_*.json", first_seed=2026)
    files = step("files", "{changed}", watches=("tests/gpu/test_*.py",), due_by="tests*.txt")
    builds = step("builds", "{builds}")
    steps = (judged, files, builds)
    assert names(plan(steps, checkout, checkout.root, {})) == ["judged"]
    checkout.write("tests/gpu/test_new.py", "")
    found = plan(steps, checkout, checkout.root, {"a": Path("/k/a"), "b": Path("/k/b")})
    said = [re.sub(r'.* -c "(.*)"', r"\1", task.command) for task in found]
    assert said == ["2038 40", "tests/gpu/test_new.py", "a=/k/a b=/k/b"]


def test_the_plan_tells_what_there_is_no_time_for(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is too long leaves its time to those behind it."""
    monkeypatch.setattr(gpu_campaign, "ROOT", checkout.root)
    steps = [step("first"), step("long", seconds=90), step("last")]
    out = checkout.root / "out"
    arguments = ["--minutes", "2", "--gpu", "h200", "--dry-run", "--out", str(out)]
    assert gpu_campaign.main(arguments, steps) == 0
    said = re.findall(r"^(?:there.*|  \w+)", capsys.readouterr().out, re.MULTILINE)
    assert said == ["  first", "  last", "there is no time for:", "  long"]
    assert not out.exists()


def test_a_campaign_goes_on_where_it_was(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_campaign, "ROOT", checkout.root)
    steps = [
        step("bad", "print('what is wrong'); raise SystemExit(3)"),
        step("partial", "print('2 cases are left. The same command goes on with them.')"),
        step("good"),
        step("silent", "print('writes no record')"),
        step("long", seconds=500),
    ]
    out, send = tmp_path / "out", tmp_path / "send"
    tasks = plan(steps, checkout, out, {})
    found = gpu_campaign.run(tasks, 300, out, send, "about")
    assert [each.outcome for each in found] == ["failed", "unfinished", "done", "done", "no time"]
    assert found[0].tail == ("what is wrong",)
    assert sorted(path.name for path in send.iterdir()) == [
        *("outputs.tar.gz", "report.json", "report.txt")
    ]
    report = json.loads((send / "report.json").read_text())
    assert [each["step"] for each in report["steps"]] == names(tasks)
    text = (send / "report.txt").read_text()
    assert "what is wrong" in text
    assert re.search("^long +no time", text, re.MULTILINE)

    carried = tmp_path / "carried"  # as after a loan, to the next machine
    with tarfile.open(send / "outputs.tar.gz") as archive:
        archive.extractall(carried, filter="data")
    again = plan(steps, checkout, carried, {})
    assert names(again) == ["long", "bad", "partial", "silent"]
    assert [task.before for task in again] == ["", "failed", "unfinished", "done"]
    checkout.write("cuda/gemm.cu", "three")
    assert names(plan(steps, checkout, carried, {})) == names(tasks)


def test_a_step_that_hangs_is_stopped_with_its_processes(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_campaign, "ROOT", checkout.root)
    code = "from subprocess import *; p = Popen(['sleep', '99']); print(p.pid); p.wait()"
    hangs = step("hangs", code, seconds=1)
    tasks = plan([hangs, step("next")], checkout, tmp_path / "out", {})
    found = gpu_campaign.run(tasks, 100, tmp_path / "out", tmp_path / "out", "about")
    assert [each.outcome for each in found] == ["stopped", "done"]
    (child,) = found[0].tail
    status = Path(f"/proc/{child}/stat")  # a zombie where nobody waits for orphans
    assert not status.exists() or status.read_text().split()[2] == "Z"


def programs() -> dict[str, set[str]]:
    """What the steps run, with the options that they give to it."""
    found: dict[str, set[str]] = {}
    for each in STEPS:
        program = re.match(r"python( -P)?( -m \S+( bench)?( model)?| \S+)", each.command)
        assert program, each.command
        found.setdefault(program[0], set()).update(re.findall(r" (--[\w-]+)", each.command))
    return found


PROGRAMS = {name: options for name, options in programs().items() if "pytest" not in name}


# JAX is imported once: each program runs in a child, with the path that Python would give it.
ALL_HELP = """
import json, os, runpy, sys
import jaxbw
programs = json.loads(sys.argv[1])
for number, (first, *rest) in enumerate(programs):
    if not os.fork():
        sys.stdout = open(f"{number}.txt", "w")
        sys.argv = [*([first] if first != "-m" else []), *rest, "--help"]
        if first == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(first)
            runpy.run_path(first, run_name="__main__")
        sys.exit(0)
    if os.wait()[1]:
        sys.exit(f"{first} {rest} failed")
"""


@pytest.fixture(scope="module")
def help_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every program says to --help, in a folder without the package."""
    folder = tmp_path_factory.mktemp("help")
    for name in ("benchmarks", "tests"):
        (folder / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-c", ALL_HELP, json.dumps([each.split()[1:] for each in PROGRAMS])],
        cwd=folder,
        env={name: of for name, of in os.environ.items() if name != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {each: (folder / f"{number}.txt").read_text() for number, each in enumerate(PROGRAMS)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_have_the_options_that_steps_give(program: str, help_of: dict[str, str]) -> None:
    """An option that is gone would be found on a machine that is paid by the minute."""
    assert PROGRAMS[program] <= set(re.findall(r"--[\w-]+", help_of[program]))
