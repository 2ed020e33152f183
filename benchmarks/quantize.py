"""jaxbw.quantize on one GPU: the kernel, XLA, and a copy of as many bytes.

    python benchmarks/quantize.py --out results.json

The bytes of a call are x, data, and with `both` the transposed data, once each. The copy reads half
of them and writes as many: an elementwise operation of XLA's. Device time by CUPTI, in bursts, arms
in random order, arrays rotating over 400 MB; a number is the median over all calls. First, the
kernel's bits are compared with XLA's.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw
from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.bench.measure import bursts
from jaxbw._src.lab.bench.timer import Cupti, Matmul, Rotation

ROTATED = 400e6  # bytes
GOAL = 0.8  # of the copy's bandwidth


@dataclass(frozen=True)
class Case:
    """What is quantized, and how."""

    rows: int
    columns: int
    dtype: str
    axis: int | None
    both: bool

    @property
    def bytes(self) -> int:
        """What has to be read and written."""
        return self.rows * self.columns * (jnp.dtype(self.dtype).itemsize + 1 + self.both)

    def __str__(self) -> str:
        form = "tensor" if self.axis is None else "rows"
        return f"{self.rows}x{self.columns} {self.dtype} {form}{', both' if self.both else ''}"


CASES = [
    Case(rows, columns, dtype, axis, both)
    for rows, columns in ((4096, 4096), (8192, 8192), (64, 8192), (4095, 4097))
    for dtype in ("bfloat16", "float32")
    for axis, both in ((None, False), (None, True), (-1, False), (-1, True))
]


def arms(case: Case, key: jax.Array) -> dict[str, Rotation]:
    """The calls to be timed, by name."""
    count = max(2, int(ROTATED // case.bytes) + 1)
    shape = (case.rows, case.columns)
    arrays = [(jax.random.normal(k, shape, case.dtype),) for k in jax.random.split(key, count)]
    half = [(jnp.zeros(case.bytes // 8, jnp.uint32) + i,) for i in range(count)]
    run = {
        name: jax.jit(
            partial(
                jaxbw.quantize, format="e4m3", axis=case.axis, both=case.both, implementation=name
            )
        )
        for name in ("kernel", "xla")
    }
    for kernels, xlas in zip(*(jax.tree.leaves(f(*arrays[0])) for f in run.values()), strict=True):
        left, right = (np.atleast_1d(np.asarray(a)).view(np.uint8) for a in (kernels, xlas))
        assert (left == right).all(), case
    found = {name: Rotation(Matmul(f), arrays) for name, f in run.items()}
    return found | {"copy": Rotation(Matmul(jax.jit(jnp.bitwise_not)), half)}


def measure(case: Case, timer: Cupti, rounds: int) -> dict[str, Any]:
    """Microseconds and GB/s of each arm; the kernel's share of the copy's bandwidth."""
    timings = bursts(timer, arms(case, jax.random.key(0)), rounds=rounds, seed=0)
    row: dict[str, Any] = {"case": asdict(case), "bytes": case.bytes, "arms": {}}
    for name, timing in timings.items():
        us = timing.median_us
        row["arms"][name] = {
            "us": us,
            "gb_per_s": case.bytes / us / 1e3,
            "kernels": timing.kernels,
            "rounds_us": timing.rounds,
        }
    row["of_copy"] = row["arms"]["copy"]["us"] / row["arms"]["kernel"]["us"]
    return row


def main() -> None:
    """Parse arguments, measure, print a table, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    timer = Cupti()
    described = environment.describe(0, arguments.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
    }
    rows = []
    for case in CASES:
        row = measure(case, timer, arguments.rounds)
        rows.append(row)
        cells = [f"{n} {a['us']:8.2f} us {a['gb_per_s']:6.0f} GB/s" for n, a in row["arms"].items()]
        goal = "" if row["of_copy"] >= GOAL else f"  below {GOAL:.0%}"
        print(
            f"{case!s:34} {'  '.join(cells)}  {row['of_copy']:4.0%} of the copy{goal}", flush=True
        )
        results = {"environment": described, "rows": rows}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
