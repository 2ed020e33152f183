"""Device times of XLA's form of random matmuls, and of our kernel beside it.

    python benchmarks/measure_xla.py --seed 11 --seconds 300 --out xla.jsonl
    python benchmarks/measure_xla.py --of record.jsonl --out now.jsonl   # its matmuls again

What the model of XLA's time is made from and judged by. Of each matmul there are the form that
`implementation="xla"` lowers to ("xla"), the kernel that would be chosen ("kernel"), and with an
epilogue what a user would write without us ("jnp"); by turns, in bursts, inputs rotating.

XLA times kernels when it compiles, for seconds. So matmuls are compiled in batches, several at a
time, and each batch is measured when nothing compiles. That XLA's measurements disturb each other
can be ruled out by a second run of the same seed with --workers 1.

Each matmul is a line of JSON, written when it is done; those that --out has are left out: a run can
be resumed, and stops when its time is over.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw
from jaxbw._src.epilogue import ACTIVATIONS
from jaxbw._src.lab.bench.contest import guarded
from jaxbw._src.lab.bench.inputs import MOST_SETS, ROTATED_BYTES, Operands
from jaxbw._src.lab.bench.measure import bursts
from jaxbw._src.lab.bench.timer import Cupti, Rotation, Timer
from jaxbw._src.lab.bench.timer import Matmul as Calls
from jaxbw._src.lab.tuning.arrays import operands as arrays_of
from jaxbw._src.lab.tuning.measure import AGREEMENT
from jaxbw._src.lab.tuning.xla_form import cut_out
from jaxbw._src.selection import manifest
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.select import select
from jaxbw._src.selection.tuned_matmuls import config_to_json
from measuring import matmuls, model_matmuls
from measuring.configurations import whole_lines
from measuring.environment import running_gpu
from measuring.matmuls import Matmul
from measuring.xla_times import Row, read

ROUNDS = 5
IDLE_S = 0.012  # before a burst of 4 ms at most: the clock recovers
BATCH = 24  # matmuls that are compiled, then measured
_DRAWN = 2**28  # values of which operands are cut


@dataclass(frozen=True)
class Compiled:
    """A matmul that is ready to be measured.

    Attributes:
      arms: what competes, by name.
      operands: gives sets of operands.
      difference: of two results, in the norm, over the norm of the second one.
      details: for the row.
    """

    arms: Mapping[str, Calls]
    operands: Callable[[], list[Operands]]
    difference: Callable[[Any, Any], Any]
    details: Row


class Compiler(Protocol):
    """What makes matmuls ready; tests have one without a GPU."""

    def compile(self, matmul: Matmul) -> Compiled:
        """May be called by several threads at a time."""
        ...


def call(matmul: Matmul, implementation: str) -> Callable[..., Any]:
    """The matmul in terms of jaxbw, of operands in the order of `arrays_of`, without batch."""
    epilogue = matmuls.EPILOGUES[matmul.epilogue](np.dtype(matmul.dtype))

    def run(lhs: Any, rhs: Any, *others: Any) -> Any:
        lhs, rhs = _as_written(matmul, lhs, rhs)
        terms: dict[str, Any] = {
            "activation": epilogue.activation,
            "implementation": implementation,
        }
        if epilogue.gated:
            _, up = _as_written(matmul, lhs, others[0])
            return jaxbw.gated_matmul(lhs, rhs, up, **terms)
        names = [name for name in ("bias", "residual") if getattr(epilogue, name) is not None]
        return jaxbw.matmul(lhs, rhs, **dict(zip(names, others, strict=True)), **terms)

    return run


def jnp_call(matmul: Matmul) -> Callable[..., Any]:
    """The same as a user of jax.numpy writes it: in the operands' dtype throughout."""
    epilogue = matmuls.EPILOGUES[matmul.epilogue](np.dtype(matmul.dtype))
    activation = ACTIVATIONS[epilogue.activation]

    def run(lhs: Any, rhs: Any, *others: Any) -> Any:
        rest = list(others)
        lhs, rhs = _as_written(matmul, lhs, rhs)
        if epilogue.gated:
            _, up = _as_written(matmul, lhs, rest.pop(0))
            return activation(lhs @ rhs) * (lhs @ up)
        z = lhs @ rhs
        z = activation(z if epilogue.bias is None else z + rest.pop(0))
        return z if epilogue.residual is None else z + rest.pop(0)

    return run


def _as_written(matmul: Matmul, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """[m, k] and [k, n] of operands as they lie in memory."""
    return lhs if matmul.layout[0] == "n" else lhs.T, rhs if matmul.layout[1] == "n" else rhs.T


def shapes(matmul: Matmul) -> list[jax.ShapeDtypeStruct]:
    """The operands in memory: lhs, rhs, the second right operand, bias, residual."""
    return [
        jax.ShapeDtypeStruct(shape[1:] if len(shape) == 3 else shape, dtype)
        for shape, dtype in arrays_of(matmul.problem)
    ]


class Gpu:
    """Compiles for the first GPU of JAX, and cuts operands out of one large array there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        draw = jax.random.normal(jax.random.key(0), (_DRAWN,), jnp.float32)
        self._drawn = jax.block_until_ready(draw.astype(jnp.bfloat16))

    def compile(self, matmul: Matmul) -> Compiled:
        """Its arms, each with the seconds that it took; an arm that fails is left out."""
        given = shapes(matmul)
        family = self._device.family or ""
        choice = select(matmul.problem, self._device, (family,), None, manifest.kernels())
        details: Row = {}
        functions = {"xla": call(matmul, "xla")}
        if isinstance(choice, Choice) and choice.config is not None and choice.cost is not None:
            functions["kernel"] = call(matmul, family)
            details["config"] = config_to_json(choice.config)
            details["modelled"] = round(choice.cost.total, 3)
        if matmul.epilogue != "none":
            functions["jnp"] = jnp_call(matmul)
        arms: dict[str, Calls] = {}
        seconds = details["compile_s"] = {}
        for name, function in functions.items():
            begin = time.monotonic()
            arms[name] = Calls(jax.jit(function).lower(*given).compile())
            seconds[name] = round(time.monotonic() - begin, 2)
        cut = jax.jit(lambda drawn, starts: cut_out(drawn, starts, given))
        starts = jax.ShapeDtypeStruct((len(given),), jnp.int32)
        cut_compiled = cut.lower(self._drawn, starts).compile()
        result = jax.ShapeDtypeStruct((matmul.m, matmul.n), matmul.dtype)
        difference = jax.jit(_difference).lower(result, result).compile()
        return Compiled(arms, lambda: self._sets(given, cut_compiled), difference, details)

    def _sets(self, given: list[jax.ShapeDtypeStruct], cut: Any) -> list[Operands]:
        """Sets of operands, enough of them that none is in L2 when it comes again."""
        size = sum(math.prod(each.shape) * each.dtype.itemsize for each in given)
        count = min(MOST_SETS, max(2, math.ceil(ROTATED_BYTES / size)))
        starts = np.random.default_rng(0).integers(0, _DRAWN, (count, len(given)), np.int32)
        return [tuple(cut(self._drawn, each)) for each in starts]


def _difference(found: Any, expected: Any) -> Any:
    found, expected = found.astype(jnp.float32), expected.astype(jnp.float32)
    return jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected)


def measured(matmul: Matmul, compiled: Compiled, timer: Timer, device: Device) -> Row:
    """The row of a matmul: microseconds of each arm, a median for each round.

    Raises:
      RuntimeError: results differ.
    """
    sets = compiled.operands()
    arms = {name: Rotation(calls, sets) for name, calls in compiled.arms.items()}
    reference = arms["xla"].first()
    for name, calls in arms.items():
        difference = float(compiled.difference(calls.first(), reference))
        if not difference < AGREEMENT:
            raise RuntimeError(f"{name} is {difference:.2g} off")
    timings = bursts(timer, arms, rounds=ROUNDS, seed=0, idle_s=IDLE_S)
    return {
        **dataclasses.asdict(matmul),
        **{"device": device.name, "jax": jax.__version__},
        "us": {
            name: [round(statistics.median(calls), 3) for calls in timing.rounds]
            for name, timing in timings.items()
        },
        "kernels": {name: timing.kernels for name, timing in timings.items()},
        **compiled.details,
    }


def run(
    compiler: Compiler,
    timer: Timer,
    wanted: Iterable[Matmul],
    device: Device,
    out: pathlib.Path,
    *,
    seconds: float,
    workers: int,
    batch: int = BATCH,
) -> Iterator[tuple[Matmul, Row | str]]:
    """Measures what the file does not have yet, until the time is over; appends as it goes.

    Gives each row, or why there is none.
    """
    end, done = time.monotonic() + seconds, read(out)
    out.write_text("".join(line + "\n" for line in whole_lines(out)))
    left = (matmul for matmul in wanted if matmul not in done)

    def in_time(matmul: Matmul) -> Compiled | str | None:
        return guarded(compiler.compile, matmul) if time.monotonic() < end else None

    with ThreadPoolExecutor(workers) as pool:
        while some := list(itertools.islice(left, batch)):
            for matmul, compiled in zip(some, list(pool.map(in_time, some)), strict=True):
                if compiled is None or time.monotonic() >= end:
                    return
                if isinstance(compiled, str):
                    yield matmul, compiled
                    continue
                row = guarded(measured, matmul, compiled, timer, device)
                if not isinstance(row, str):
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                yield matmul, row


def main() -> None:
    """Parses arguments, measures, prints a line for each matmul."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random matmuls")
    parser.add_argument("--of", type=pathlib.Path, help="instead: those that a record has")
    parser.add_argument("--seconds", type=float, default=300, help="after which it stops")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="that compile")
    parser.add_argument("--batch", type=int, default=BATCH, help="compiled, then measured")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    device = running_gpu(parser)
    wanted = read(arguments.of) if arguments.of else model_matmuls.draw(arguments.seed)
    found = run(
        *(Gpu(device), Cupti(), wanted, device, arguments.out),
        seconds=arguments.seconds,
        workers=arguments.workers,
        batch=arguments.batch,
    )
    begin = time.monotonic()
    for count, (matmul, row) in enumerate(found, 1):
        if isinstance(row, str):
            text = row
        else:
            times = {name: statistics.median(rounds) for name, rounds in row["us"].items()}
            text = "  ".join(f"{name} {us:8.2f} us" for name, us in times.items())
        print(f"{time.monotonic() - begin:5.0f} s {count:4} {matmul!s:30} {text}", flush=True)


if __name__ == "__main__":
    main()
