"""Which steps of a GPU campaign are due, by git and by the records in benchmarks/results."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxbw._src.selection import manifest
from measuring.campaign_steps import START, Step


@dataclass(frozen=True)
class Task:
    """A step that is due: why, what is run, and where its files are."""

    step: Step
    reason: str
    command: str
    folder: Path

    @property
    def before(self) -> str:
        """How it ended when it was tried before; "" where it was not."""
        file = self.folder / "outcome.json"
        return str(json.loads(file.read_text())["outcome"]) if file.exists() else ""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.before == "done" and any(self.folder.glob(f"*_{self.step.record}"))


@dataclass(frozen=True)
class Repository:
    """A checkout, and its records of one kind of GPU."""

    root: Path
    gpu: str

    def git(self, *arguments: str) -> str | None:
        """What git prints; None where it fails, as without a history."""
        command = ["git", "-C", str(self.root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    def records(self, pattern: str) -> list[Path]:
        """By date."""
        return sorted((self.root / "benchmarks/results").glob(f"*_{self.gpu}_{pattern}"))

    def commits(self, record: Path) -> list[str]:
        """Those that a record was made of; where it does not say, the one that added its text."""
        said: list[str] = []
        if record.suffix == ".txt":
            said = re.findall(r"^commit: (.*)", record.read_text(), re.MULTILINE)
        elif record.suffix == ".json":
            content = json.loads(record.read_text())
            sessions = content.get("sessions", {"": content.get("environment", content)})
            said = [str(session.get("commit")) for session in sessions.values()]
        # "+", "-dirty" and remarks may follow.
        found = [match[0] for text in said if (match := re.match(r"[0-9a-f]{7,40}", text))]
        return found or [self.git("log", "-1", "--format=%H", "--", str(record)) or "unknown"]

    def changed(self, record: Path, watches: Sequence[str]) -> list[str] | None:
        """The watched files that differ from those of a record; None where git cannot tell."""
        differing: set[str] = set()
        for commit in self.commits(record):
            names = self.git("diff", "--name-only", commit, "--", *watches)
            if names is None:
                return None
            differing.update(names.splitlines())
        return sorted(differing)

    def due(self, step: Step) -> tuple[str, list[str]]:
        """Why a step is due, "" where it is not; and the files that changed."""
        records = self.records(step.due_by or step.record)
        if not records:
            return f"there is no record of the {self.gpu}", []
        known = [(self.changed(record, step.watches), record.name) for record in records]
        differing = [(files, name) for files, name in known if files is not None]
        if not differing:
            return f"the commit of {records[-1].name} is not known here", []
        files, name = min(differing, key=lambda each: len(each[0]))
        return f"changed since {name}: {_count(files)}" if files else "", files

    def seed(self, step: Step) -> int:
        """The first one that is in no name of a record."""
        names = [record.name.split("_", 2)[2] for record in self.records(step.record)]
        taken = [int(number) for name in names for number in re.findall(r"_(\d+)", name)]
        return max([step.first_seed - 1, *taken]) + 1


def plan(
    steps: Sequence[Step],
    repository: Repository,
    out: Path,
    builds: Mapping[str, Path],
    chosen: Sequence[str] = (),
) -> list[Task]:
    """What is to be done: the untried first, then what did not end well.

    Args:
      out: the folder of all steps' folders.
      chosen: the names of steps that are taken instead of those that are due.
    """
    tasks = []
    for step in steps:
        reason, changed = repository.due(step)
        changed = [name for name in changed if (repository.root / name).exists()]
        if "{builds}" in step.command:
            reason = "builds are prepared"
        if chosen:
            reason = "chosen" if step.name in chosen else ""
        needed = {"{builds}": builds, "{changed}": changed}
        if not reason or any(name in step.command and not of for name, of in needed.items()):
            continue
        folder = out / f"{step.name}.{_state(step, repository, builds)}"
        suite = repository.records("bench.json")
        command = step.command.format(
            out=shlex.quote(str(folder.resolve() / repository.gpu)),
            budget=step.seconds - START,
            seed=repository.seed(step),
            changed=shlex.join(changed),
            tuned=f"--tuned {shlex.quote(str(suite[-1]))}" if suite else "",
            builds=shlex.join(f"{name}={path.resolve()}" for name, path in builds.items()),
        )
        tasks.append(Task(step, reason, command, folder))
    return sorted((task for task in tasks if not task.complete), key=lambda task: bool(task.before))


def _count(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files"


def _state(step: Step, repository: Repository, builds: Mapping[str, Path]) -> str:
    """Another one where the command, watched files, or the kernels that it runs are others."""
    digest = hashlib.sha256(step.command.encode())
    for arguments in (["ls-files", "-s"], ["diff"]):
        digest.update((repository.git(*arguments, "--", *step.watches) or "").encode())
    runs = builds if "{builds}" in step.command else {"": manifest.directory()}
    for name, directory in runs.items():
        digest.update(name.encode())
        for path in sorted(directory.glob("*.cubin")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:8]
