"""jaxbw.quantize on one GPU: the kernel, XLA, and a copy of as many bytes.

    python benchmarks/quantize.py --out results.json [--format mxfp8 --format nvfp4 ...]

The bytes of a call are x, data, scales of blocks, and with `both` the transposed ones, once each.
NVFP4 is given its global scale, or XLA would read x once more to find it. The copy reads half of
the bytes and writes as many: an elementwise operation of XLA's. Device time by CUPTI, in bursts,
arms in random order, arrays rotating over 400 MB; a number is the median over all calls. First, the
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
    format: str = "e4m3"
    square: bool = False
    keys: tuple[str, ...] = ()  # "key": rounded stochastically; "rotation"

    @property
    def options(self) -> dict[str, Any]:
        """What `jaxbw.quantize` is told."""
        options = {"format": self.format, "axis": self.axis, "both": self.both}
        keys = {name: jax.random.key(i) for i, name in enumerate(self.keys)}
        return options | ({"square": True} if self.square else {}) | keys

    @property
    def has_global_scale(self) -> bool:
        """Whether one is given."""
        return self.format == "nvfp4"

    @property
    def bytes(self) -> int:
        """What has to be read and written."""
        read = self.rows * self.columns * jnp.dtype(self.dtype).itemsize
        given = jax.ShapeDtypeStruct((self.rows, self.columns), self.dtype)
        leaves = jax.tree.leaves(jax.eval_shape(partial(jaxbw.quantize, **self.options), given))
        bits = {jnp.dtype(jnp.float4_e2m1fn): 4}
        return read + sum(
            int(a.size) * bits.get(a.dtype, 8 * int(a.dtype.itemsize)) // 8 for a in leaves
        )

    def __str__(self) -> str:
        form = {None: "tensor", -1: "rows", -2: "columns"}[self.axis]
        options = (", both" if self.both else "") + (", square" if self.square else "")
        options += "".join(f", {name}" for name in self.keys)
        return f"{self.rows}x{self.columns} {self.dtype} {self.format} {form}{options}"


SHAPES = ((4096, 4096), (8192, 8192), (64, 8192), (4095, 4097))
CASES = (
    [
        Case(rows, columns, dtype, axis, both)
        for rows, columns in SHAPES
        for dtype in ("bfloat16", "float32")
        for axis, both in ((None, False), (None, True), (-1, False), (-1, True))
    ]
    + [
        Case(rows, columns, dtype, axis, both, format, square)
        for format in ("mxfp8", "mxfp4", "nvfp4")
        for rows, columns, dtype in (
            *((*shape, "bfloat16") for shape in SHAPES),
            (8192, 8192, "float32"),
        )
        for axis, both, square in (
            (-1, False, False),
            (-2, False, False),
            (-1, True, False),
            (-1, True, True),
        )
    ]
    + [
        Case(rows, columns, "bfloat16", axis, False, "nvfp4", keys=keys)
        for rows, columns in SHAPES[:2]
        for axis, keys in ((-1, ("key",)), (-2, ("rotation",)), (-2, ("key", "rotation")))
    ]
)


def arms(case: Case, key: jax.Array) -> dict[str, Rotation]:
    """The calls to be timed, by name."""
    count = max(2, int(ROTATED // case.bytes) + 1)
    shape = (case.rows, case.columns)
    scale = (jnp.float32(2e-3),) if case.has_global_scale else ()
    keys = jax.random.split(key, count)
    arrays = [(jax.random.normal(k, shape, case.dtype), *scale) for k in keys]
    half = [(jnp.zeros(case.bytes // 8, jnp.uint32) + i,) for i in range(count)]

    def quantized(name: str, x: Any, *scale: Any) -> Any:
        given = {"global_scale": scale[0]} if scale else {}
        return jaxbw.quantize(x, **case.options, **given, implementation=name)

    run = {name: jax.jit(partial(quantized, name)) for name in ("kernel", "xla")}
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
    formats = sorted({case.format for case in CASES})
    parser.add_argument(
        "--format", action="append", choices=formats, help="only of these; default all"
    )
    arguments = parser.parse_args()
    timer = Cupti()
    described = environment.describe(0, arguments.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
    }
    rows = []
    for case in CASES:
        if case.format not in (arguments.format or formats):
            continue
        row = measure(case, timer, arguments.rounds)
        rows.append(row)
        cells = [f"{n} {a['us']:8.2f} us {a['gb_per_s']:6.0f} GB/s" for n, a in row["arms"].items()]
        goal = "" if row["of_copy"] >= GOAL else f"  below {GOAL:.0%}"
        print(
            f"{case!s:46} {'  '.join(cells)}  {row['of_copy']:4.0%} of the copy{goal}", flush=True
        )
        results = {"environment": described, "rows": rows}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
