"""jaxbw.collective_matmul on the GPUs of one host, beside what XLA makes of the same matmul.

    python benchmarks/collective_matmul.py --devices 2 --out results.json
    python benchmarks/collective_matmul.py --tiny --out results.json    on the CPU: does it run?

Cases: gathering rows of x before the matmul, scattering rows of the result behind it, and both of
their backward passes. Arms:

- jaxbw as it is called, with one collective, and its ring; both with either scheduler, too, and the
  ring with XLA's matmuls;
- XLA's all-gather or reduce-scatter beside its matmul, in a shard_map;
- jnp.matmul of sharded arrays, partitioned by XLA: as shipped, and with its own way of overlapping,
  "windowed einsum", alone and with pipelined collectives and all else that the flags offer.

A time is the host's for a run of calls, divided by their number, on all devices; arms take turns in
random order, and ratios have 95 % bootstrap intervals of whole rounds. Some elements of each result
are compared with float64. A profile of each arm says which share of the traffic was hidden behind
work, and behind which kernels. An arm of XLA's that XLA refuses to compile is noted as "refused";
one whose result rounding does not explain is no peer; either of ours stops the run. No case is
begun that would not end within --budget seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.lab.bench import environment, statistics
from jaxbw._src.lab.interleaving import interleaved

AXIS = "model"
# The first two tell the most, if there is no time for all.
SHAPES = ((8192, 8192, 8192), (4096, 28672, 8192), (16384, 8192, 8192), (8192, 16384, 8192))
TINY = ((16, 32, 64),)
ROWS, COLUMNS = P(AXIS, None), P(None, AXIS)
SHARDINGS = {"gather": (ROWS, COLUMNS, COLUMNS), "scatter": (COLUMNS, ROWS, ROWS)}  # x, w, y
CHECKED = 64  # rows, by as many columns
PROFILED = 3  # calls

Options = dict[str, str | bool]
OVERLAP: Options = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # Else transfers wait for each other: the scheduler takes all matmuls for equally short.
    "xla_gpu_enable_analytical_latency_estimator": True,
    "xla_gpu_enable_command_buffer": "",
}
WINDOWED: Options = OVERLAP | {
    "xla_gpu_threshold_for_windowed_einsum_mib": "0",
    "xla_gpu_multi_streamed_windowed_einsum": True,
}
PIPELINED: Options = WINDOWED | {
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_pipelined_p2p": True,
    # The first two from jax 0.12 on.
    "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_pipeline_reduce_scatter": "COLLECTIVE_PIPELINING_MODE_ON",
}

Matmul = Callable[[Any, Any], Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """What is computed: y = x @ w of m x k and k x n, or the gradients of x and w by that of y."""

    form: str  # "gather" or "scatter"
    backward: bool
    m: int
    n: int
    k: int


def cases(
    shapes: Sequence[tuple[int, int, int]], forms: Sequence[str] = tuple(SHARDINGS)
) -> Iterator[Case]:
    """Of each shape the forms, forward and, when all of these are through, backward."""
    for backward, (m, n, k), form in itertools.product((False, True), shapes, forms):
        yield Case(form, backward, m, n, k)


@dataclass(frozen=True)
class Arm:
    """How: a matmul of whole arrays, as XLA sees them, and the compiler's options."""

    matmul: Callable[[Mesh, str], Matmul]
    options: Options
    is_ours: bool = False


def ours(
    overlap: bool | None, implementation: str | None = None, config: jaxbw.GemmConfig | None = None
) -> Callable[[Mesh, str], Matmul]:
    """jaxbw's: its default, one collective, or its ring."""

    def matmul(mesh: Mesh, form: str) -> Matmul:
        keywords: dict[str, Any] = {
            "gather_lhs" if form == "gather" else form: 0,
            "overlap": overlap,
            "implementation": implementation,
            "config": config,
        }

        def local(x: Any, w: Any) -> Any:
            return jaxbw.collective_matmul(x, w, AXIS, **keywords)

        *specs, out = SHARDINGS[form]
        return jax.shard_map(local, mesh=mesh, in_specs=tuple(specs), out_specs=out)

    return matmul


def collectives(mesh: Mesh, form: str) -> Matmul:
    """One collective and one matmul."""

    def local(x: Any, w: Any) -> Any:
        if form == "gather":
            return lax.all_gather(x, AXIS, tiled=True) @ w
        return lax.psum_scatter(x @ w, AXIS, tiled=True)

    *specs, out = SHARDINGS[form]
    return jax.shard_map(local, mesh=mesh, in_specs=tuple(specs), out_specs=out)


def partitioned(mesh: Mesh, form: str) -> Matmul:
    """What XLA's partitioner does with a matmul of sharded arrays."""
    return jnp.matmul


STATIC, DYNAMIC = (jaxbw.GemmConfig(scheduler=name) for name in ("static", "dynamic"))
ARMS = {
    "jaxbw": Arm(ours(None), OVERLAP, is_ours=True),
    "one collective": Arm(ours(False), OVERLAP, is_ours=True),
    "one collective, static": Arm(ours(False, config=STATIC), OVERLAP, is_ours=True),
    "one collective, dynamic": Arm(ours(False, config=DYNAMIC), OVERLAP, is_ours=True),
    "ring": Arm(ours(True), OVERLAP, is_ours=True),
    "ring, static": Arm(ours(True, config=STATIC), OVERLAP, is_ours=True),
    "ring, matmuls by XLA": Arm(ours(True, "xla"), OVERLAP, is_ours=True),
    "collective and product": Arm(collectives, OVERLAP),
    "XLA as shipped": Arm(partitioned, {}),
    "XLA windowed": Arm(partitioned, WINDOWED),
    "XLA windowed, pipelined": Arm(partitioned, PIPELINED),
}


def operands(case: Case, mesh: Mesh) -> list[jax.Array]:
    """x, w and, for a backward pass, the cotangent of y; iid normal, drawn where they lie."""
    shapes = [(case.m, case.k), (case.k, case.n), (case.m, case.n)][: 2 + case.backward]
    arrays = []
    for i, (shape, spec) in enumerate(zip(shapes, SHARDINGS[case.form], strict=False)):
        sharding = NamedSharding(mesh, spec)

        def draw(i: int = i, shape: tuple[int, int] = shape) -> jax.Array:
            return jax.random.normal(jax.random.key(i), shape, jnp.bfloat16)

        arrays.append(jax.jit(draw, out_shardings=sharding)())
    return arrays


@cache
def is_known(option: str) -> bool:
    """Whether this jaxlib has a compiler's option."""
    program = jax.jit(lambda: 0).lower()
    value = PIPELINED[option]  # which has all of them
    try:
        program.compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


def compile_arm(
    arm: Arm, options: Options, case: Case, mesh: Mesh, given: Sequence[jax.Array]
) -> Any:
    """The program of an arm."""
    matmul = arm.matmul(mesh, case.form)

    def backward(x: Any, w: Any, cotangent: Any) -> Any:
        return jax.vjp(matmul, x, w)[1](cotangent)

    shardings = [NamedSharding(mesh, spec) for spec in SHARDINGS[case.form]]
    out = tuple(shardings[:2]) if case.backward else shardings[2]
    function: Any = backward if case.backward else matmul
    lowered = jax.jit(function, out_shardings=out).lower(*given)
    return lowered.compile(compiler_options=options)


class Oracle:
    """What some elements of each result of a case must be, computed once for all arms."""

    def __init__(self, case: Case, given: Sequence[jax.Array]) -> None:
        x, w, *cotangent = given
        pairs = [(cotangent[0], w.T), (x.T, cotangent[0])] if case.backward else [(x, w)]
        roundings = 1 + len(x.sharding.device_set)
        random = np.random.default_rng(0)
        self._checks = []
        for left, right in pairs:
            rows, columns = (
                np.sort(random.choice(size, min(CHECKED, size), replace=False))
                for size in (left.shape[0], right.shape[1])
            )
            a, b = _wide(left[rows]), _wide(right[:, columns])
            bound = roundings * 2.0**-8 + 2 * a.shape[1] * 2.0**-24
            self._checks.append((rows, columns, a @ b, bound * (np.abs(a) @ np.abs(b))))

    def error(self, results: Any) -> float:
        """The largest error, as a part of what rounding explains.

        That is one rounding of the result to bfloat16 and of each partial sum of a device, and the
        float32 sums of K terms.
        """
        errors = [
            np.abs(_wide(result[rows[:, None], columns]) - reference) / bound
            for (rows, columns, reference, bound), result in zip(
                self._checks, jax.tree.leaves(results), strict=True
            )
        ]
        return float(np.max([each.max() for each in errors]))  # nan if there is one


def _wide(x: jax.Array) -> npt.NDArray[np.float64]:
    return np.asarray(x).astype(np.float64)


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Of one of many calls."""
    start = time.perf_counter()
    for _ in range(calls):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def hidden(traffic: Sequence[Interval], work: Sequence[Interval]) -> float:
    """How much of the time of the traffic something else was at work.

    >>> hidden([(0, 4), (6, 8)], [(1, 2), (1, 3), (7, 9)])
    3.0
    """
    total, position = 0.0, float("-inf")
    for start, end in sorted(work):
        start = max(start, position)
        total += sum(max(0.0, min(end, b) - max(start, a)) for a, b in traffic)
        position = max(position, end)
    return total


def profile(call: Callable[[], Any], folder: pathlib.Path) -> list[dict[str, Any]]:
    """Of each GPU, microseconds of traffic, how many of them were hidden, by what, and of work."""
    with jax.profiler.trace(str(folder)):
        jax.block_until_ready([call() for _ in range(PROFILED)])
    (file,) = folder.rglob("*.xplane.pb")
    devices = []
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        events = [e for line in plane.lines if line.name.startswith("Stream") for e in line.events]
        devices.append(
            overlap([(e.name, (e.start_ns / 1e3, e.end_ns / 1e3)) for e in events], PROFILED)
        )
    return devices


def overlap(events: Sequence[tuple[str, Interval]], calls: int) -> dict[str, Any]:
    """Of a GPU's events in some calls: the traffic of one, what hid it, and the work of one.

    >>> overlap([("nccl", (0, 4)), ("gemm", (1, 3)), ("add", (2, 5))], 1)
    {'traffic_us': 4.0, 'hidden_us': 3.0, 'work_us': 5.0, 'hidden_by_us': {'gemm': 2.0, 'add': 2.0}}
    """
    traffic, work = list[Interval](), dict[str, list[Interval]]()
    for name, interval in events:
        if re.search("nccl|p2p", name, re.IGNORECASE):
            traffic.append(interval)
        else:
            work.setdefault(name, []).append(interval)
    everything = [interval for each in work.values() for interval in each]
    by_name = {name: hidden(traffic, each) / calls for name, each in work.items()}
    most = sorted(by_name, key=lambda name: -by_name[name])[:5]
    return {
        "traffic_us": sum(end - start for start, end in traffic) / calls,
        "hidden_us": hidden(traffic, everything) / calls,
        "work_us": sum(end - start for start, end in everything) / calls,
        "hidden_by_us": {name: by_name[name] for name in most if by_name[name]},
    }


class WrongResultError(Exception):
    """Rounding does not explain a result of jaxbw's."""


def is_right(row: dict[str, Any]) -> bool:
    """Whether rounding explains the result of an arm that ran."""
    return bool(row["error"] <= 1)


def measure(
    case: Case,
    mesh: Mesh,
    rounds: int,
    calls: int,
    traces: pathlib.Path | None,
    arms: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Arms of a case, by default all; of one that XLA refuses to compile, why, in one line.

    Profiles are left in a folder, if there is one.

    Raises:
      jax.errors.JaxRuntimeError: XLA refuses one of ours, or a program fails when it runs.
      WrongResultError: one of ours is wrong.
    """
    given = operands(case, mesh)
    oracle = Oracle(case, given)
    calls_of, rows = dict[str, Callable[[], Any]](), dict[str, Any]()
    for name in ARMS if arms is None else arms:
        arm = ARMS[name]
        options = {name: value for name, value in arm.options.items() if is_known(name)}
        try:
            program = compile_arm(arm, options, case, mesh, given)
        except jax.errors.JaxRuntimeError as error:
            if arm.is_ours:
                raise
            rows[name] = {"options": options, "refused": str(error).partition("\n")[0]}
            continue
        calls_of[name] = partial(program, *given)
        text = program.as_text() or ""
        found = re.findall(r"= \S+ ((?:collective|all|reduce)-[a-z]+(?:-[a-z]+)?)\(", text)
        rows[name] = {
            "options": options,
            "collectives": {each: found.count(each) for each in sorted(set(found))},
            "error": oracle.error(calls_of[name]()),
            "rounds_us": [],
        }
        if arm.is_ours and not is_right(rows[name]):
            raise WrongResultError(f"{name}, {case}: error {rows[name]['error']:.2f}, 1 is allowed")
    for name in interleaved(calls_of, rounds, seed=0):
        rows[name]["rounds_us"].append(seconds(calls_of[name], calls) * 1e6)
    samples = {name: [[value] for value in rows[name]["rounds_us"]] for name in calls_of}
    for name, call in calls_of.items():
        row = rows[name]
        row["median_us"] = statistics.median(samples[name])
        if is_right(row):
            row["speedup_of_jaxbw"] = asdict(statistics.ratio(samples[name], samples["jaxbw"]))
        if traces is not None:
            folder = traces / "-".join([*map(str, asdict(case).values()), name.replace(" ", "_")])
            row["devices"] = profile(call, folder)
    return rows


def line(case: Case, rows: dict[str, Any]) -> str:
    """The times of a case as text."""
    direction = "backward" if case.backward else "forward"
    lines = [f"{case.form} {direction} {case.m} x {case.n} x {case.k}"]
    for name, row in rows.items():
        if "refused" in row:
            lines.append(f"  {name:26} refused: {row['refused']}")
            continue
        hidden_share = ""
        if "devices" in row:
            traffic = sum(device["traffic_us"] for device in row["devices"])
            share = sum(device["hidden_us"] for device in row["devices"]) / (traffic or 1)
            hidden_share = f"{share:.0%} of {traffic:.0f} us of traffic hidden  "
        compared = "wrong, and no peer"
        if is_right(row):
            ratio = row["speedup_of_jaxbw"]
            compared = (
                f"jaxbw is {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] "
                "times as fast"
            )
        collectives = ", ".join(f"{count} {each}" for each, count in row["collectives"].items())
        lines.append(
            f"  {name:26} {row['median_us']:10.1f} us  {compared}  error {row['error']:.2f}  "
            f"{hidden_share}{collectives}"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, measure, print the times, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU")
    parser.add_argument(
        "--shapes", type=int, default=len(SHAPES), help="how many, from those that tell the most"
    )
    parser.add_argument("--forms", nargs="+", choices=SHARDINGS, default=list(SHARDINGS))
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=list(ARMS), help="which; jaxbw among them"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20, help="of a program in a round")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--no-profile", action="store_true", help="times only")
    parser.add_argument("--traces", type=pathlib.Path, help="keep the profiles in this folder")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    given = parser.parse_args()
    if "jaxbw" not in given.arms:
        parser.error("the arms are compared with jaxbw, which is not among them")
    if given.tiny:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", given.devices)
        given.rounds, given.calls = 2, 1
    mesh = Mesh(np.array(jax.devices()[: given.devices]), (AXIS,))
    if mesh.size != given.devices:
        parser.error(f"there are {mesh.size} devices")

    described = environment.describe(0, given.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
        "devices": [str(device) for device in mesh.devices.flat],
        "inputs": "iid normal bfloat16, the same for all calls of a case",
        "time": "host time of a run of calls on all devices, arms in random order",
    }
    results: dict[str, Any] = {"environment": described, "cases": []}
    with tempfile.TemporaryDirectory() as scratch:
        traces = None if given.no_profile else given.traces or pathlib.Path(scratch)
        begin, longest = time.monotonic(), 0.0
        for case in cases(TINY if given.tiny else SHAPES[: given.shapes], given.forms):
            start = time.monotonic()
            if start - begin + longest > given.budget:
                print("The time is up.")
                break
            rows = measure(case, mesh, given.rounds, given.calls, traces, given.arms)
            longest = max(longest, time.monotonic() - start)
            results["cases"].append(asdict(case) | {"arms": rows})
            print(f"{line(case, rows)}\n  {time.monotonic() - start:.0f} s", flush=True)
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
