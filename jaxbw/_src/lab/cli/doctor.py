"""`python -m jaxbw doctor`: what jaxbw finds on this machine, whether it computes rightly, and what
to do about what is wrong.
"""

import argparse
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbw._src.lab.cli import diagnosis, self_test
from jaxbw._src.lab.cli.diagnosis import Facts, Problem
from jaxbw._src.lab.cli.outcome import Outcome
from jaxbw._src.lab.cli.self_test import Verdict

SUMMARY = "look at driver, GPU, JAX and kernels, and try them"
EXAMPLES = ("python -m jaxbw doctor", "python -m jaxbw doctor --json")
# To try next without a GPU.
NEXT = (
    "python -m jaxbw explain 4096 4096 4096 --device B200",
    "python -m jaxbw profile 256 256 512 --emulate sm100",
)
REPORT = "keep what python -m jaxbw doctor --json prints, and open an issue with it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--json", action="store_true", help="everything, for programs")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output; its status is 1 where a test fails, or the installation is damaged."""
    found = diagnosis.facts()
    problems = list(diagnosis.problems(found))
    names = self_test.implementations(found.device, found.platforms)
    # A table that is none would fail every matmul, and is told already.
    verdicts = list(self_test.run(names)) if found.tuned_fault is None else []
    problems += _failures(verdicts)
    text = _json(found, problems, verdicts) if args.json else _text(found, problems, verdicts)
    return Outcome(text, int(any(problem.broken for problem in problems)))


def _failures(verdicts: Sequence[Verdict]) -> Iterator[Problem]:
    """A problem for each implementation that fails."""
    failing = [verdict for verdict in verdicts if verdict.fault is not None]
    for name in dict.fromkeys(verdict.implementation for verdict in failing):
        mine = [verdict for verdict in failing if verdict.implementation == name]
        cases = ", ".join(verdict.case for verdict in mine)
        yield Problem(
            f"the self-test of {name} fails for {cases} ({mine[0].fault})", REPORT, broken=True
        )


def _json(found: Facts, problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> str:
    told: dict[str, Any] = {
        "ok": not any(problem.broken for problem in problems),
        "problems": [{"what": problem.what, "remedy": problem.remedy} for problem in problems],
        "self_test": [vars(verdict) for verdict in verdicts],
    }
    return json.dumps(found.to_json() | told, indent=2)


def _text(found: Facts, problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> str:
    rows = [("jaxbw", f"{found.versions['jaxbw']}, kernels built by CUDA {found.built_for}")]
    rows += [("python", f"{found.versions['python']} on {platform.platform()}")]
    packages = [f"{k} {v}" for k, v in found.versions.items() if k not in ("jaxbw", "python")]
    rows += [("packages", ", ".join(packages))]
    rows += [("JAX", f"computes on {', '.join(found.platforms) or 'nothing'}; FFI {found.ffi}")]
    driver = "none" if found.driver is None else f"for CUDA {found.driver}"
    rows += [("driver", driver if found.driver_problem is None else found.driver_problem)]
    rows += [("GPU", _gpu(gpu)) for gpu in found.gpus] or [("GPU", "none")]
    rows += [("kernels", _kernels(found))]
    if found.tuned is not None:
        rows += [("tuned", found.tuned)]
    rows += [("environment", f"{name}={value}") for name, value in found.environment.items()]
    for name in dict.fromkeys(verdict.implementation for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.implementation == name]
        results = ", ".join(f"{v.case} {'ok' if v.fault is None else 'FAILS'}" for v in mine)
        rows += [("self-test", f"{name}: {results} ({sum(v.seconds for v in mine):.1f} s)")]
    lines = [f"{name:<12} {value}" for name, value in rows]
    closing = [f"Problem: {problem}" for problem in problems] or [_verdict(found)]
    return "\n".join([*lines, "", *closing])


def _gpu(gpu: Mapping[str, Any]) -> str:
    gib = gpu["memory_bytes"] / 2**30
    capability, sms = gpu["compute_capability"], gpu["sm_count"]
    return f"{gpu['name']}, compute capability {capability}, {sms} SMs, {gib:.0f} GiB"


def _kernels(found: Facts) -> str:
    counts = ", ".join(f"{count} of {family}" for family, count in found.kernels.items()) or "none"
    if found.device is None:
        return counts
    if found.serving is None:
        return f"{counts}; none for {found.device}"
    return f"{counts}; {found.serving} serves {found.device.name}"


def _verdict(found: Facts) -> str:
    if found.serving is not None:
        return f"No problem. Matmuls run on {found.serving} kernels here."
    return (
        "No problem. Matmuls run on XLA here: there is no GPU that has kernels. "
        f"What would run on one, and the code of a kernel on this CPU:\n  {NEXT[0]}\n  {NEXT[1]}"
    )
