"""Grouped matmuls on one GPU: our kernels, lax.ragged_dot, and one dense matmul of as many rows.

    python benchmarks/ragged.py --out results.json

Forward, and the two matmuls of the gradient: of lhs by transposed weights, and of the weights by a
ragged contraction. With --epilogues instead those in one kernel, "fused", beside kernels that
write float32 and XLA's operations, "apart": "gated" is silu(x gate) * (x up), "sums" adds up the
gradients of weights of four microbatches in float32. With --float8 the forward matmul of operands
in e4m3 with a scale for each row, and for each column of each matrix, beside bfloat16's, and one
dense matmul of float8; --tiles are then of "highest". Its "training" is the value and both
gradients, of arrays in bfloat16, which `fp8_ragged_dot` quantizes at each call. With --gathered
one matmul, "chosen", and two, "chosen gated", of rows that indices choose of as many tokens as
there are: gathered by the kernel's "load", by XLA "before", or given as an array, "sorted".

Sizes are uniform, Zipf's, of one group alone, and random; their sum is m.
Device time by CUPTI, in bursts, arms in random order, arrays rotating over 400 MB, two sets at
least; a number is the median over all calls. lax.ragged_dot is timed up to m = 4096, where XLA's
temporaries fit: it multiplies every row by every group's weights.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shlex
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxbw
from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.bench.measure import bursts
from jaxbw._src.lab.bench.timer import Cupti, Matmul, Rotation
from jaxbw._src.primitives.ragged_gemm import ragged_gemm
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.policy import Policy
from jaxbw._src.selection.ragged import RaggedChoice, choose
from measuring.environment import running_gpu
from measuring.ragged_cases import FORMS, MICROBATCHES, Case, problem_of, sizes_of

ROTATED = 400e6  # bytes
EPILOGUES = ("gated", "sums")
FLOAT8 = ("float8", "training")
GATHERED = ("chosen", "chosen gated")
TOP_K = {"Mixtral": 2}  # experts of a token; others have 8


def cases(quick: bool, forms: tuple[str, ...]) -> list[Case]:
    """What is timed."""
    layers = [
        ("Mixtral", 8, 4096, 14336, (64, 512, 2048)),
        ("DeepSeek-V3", 64, 7168, 2048, (8, 64, 128, 512)),
        ("Qwen3-30B", 128, 2048, 768, (8, 64, 128, 512)),
    ]
    if forms == FLOAT8:  # which leave room for all experts
        layers[1:] = [("DeepSeek-V3", 256, 7168, 2048, (8, 128, 512))]
    found = []
    for layer, groups, k, n, rows in layers:
        for each in rows:
            for form in forms:
                for kind in group_sizes.KINDS:
                    case = Case(layer, groups, each * groups, k, n, form, kind)
                    is_short = kind == "uniform" and each in (8, 128, 512) and form != "dlhs"
                    if is_short or not quick:
                        found.append(case)
    return found


def dense(case: Case, lhs: Any, rhs: Any) -> Any:
    """The same rows by one group's weights; of the contraction, all rows together."""
    if case.form == "drhs":
        return jaxbw.matmul(lhs[0].T, rhs[0])
    return jaxbw.matmul(lhs[0], rhs[0, 0].T if case.form == "dlhs" else rhs[0, 0])


def by_lax(case: Case, lhs: Any, rhs: Any, sizes: Any) -> Any:
    """lax.ragged_dot, or for the weights' gradient lax.ragged_dot_general."""
    contract = (((0,), (0,)), ((), ()))
    if case.form == "drhs":
        numbers = lax.RaggedDotDimensionNumbers(contract, [0], [])
        return lax.ragged_dot_general(lhs[0], rhs[0], sizes[0], numbers)
    if case.form == "dlhs":
        rhs = rhs.swapaxes(2, 3)
    return lax.ragged_dot(lhs[0], rhs[0], sizes[0])


def arms(case: Case, device: Device, configs: list[GemmConfig | None]) -> dict[str, Any]:
    """The calls to be timed, by name."""
    problem, sizes = problem_of(case), sizes_of(case)[None]
    shapes = problem.lhs_shape, problem.rhs_shape
    moved = sum(2.0 * np.prod(shape) for shape in (*shapes, problem.output_shape))
    count = max(2, int(ROTATED // moved) + 1)
    keys = jax.random.split(jax.random.key(0), 2 * count)
    arrays = [
        tuple(jax.random.normal(keys[2 * i + j], shapes[j], jnp.bfloat16) for j in range(2))
        for i in range(count)
    ]
    found: dict[str, Any] = {}
    sized = [(*each, jnp.asarray(sizes)) for each in arrays]
    for config in configs:
        choice = choose(problem, device, Policy(implementation=("sm90",), config=config))
        if not isinstance(choice, RaggedChoice):
            print(f"{config}: {choice}")
            continue

        def ours(lhs: Any, rhs: Any, sizes: Any, choice: RaggedChoice = choice) -> Any:
            return ragged_gemm(problem, choice, lhs, rhs, sizes, jnp.int32(0))

        name = "kernel" if config is None else str(choice.config)
        found[name] = Rotation(Matmul(jax.jit(ours)), sized)
    found["dense"] = Rotation(Matmul(jax.jit(partial(dense, case))), arrays)
    if case.m <= 4096 and case.kind == "uniform":
        found["lax"] = Rotation(Matmul(jax.jit(partial(by_lax, case))), sized)
    return found


def float8_and_bfloat16(case: Case, configs: list[GemmConfig | None]) -> dict[str, Any]:
    """The calls to be timed of float8, by name: weights lie as tensor cores take them."""
    sizes = jnp.asarray(sizes_of(case))
    keys = jax.random.split(jax.random.key(0), 2)
    wide = (
        jax.random.normal(keys[0], (case.m, case.k), jnp.bfloat16),
        jax.random.normal(keys[1], (case.groups, case.n, case.k), jnp.bfloat16),
    )
    narrow = tuple(jax.jit(lambda x: jaxbw.quantize(x, "e4m3", axis=-1))(x) for x in wide)
    flat = tuple(leaf for q in narrow for leaf in (q.data, q.scale))

    def of_float8(x: Any, s: Any, w: Any, t: Any) -> tuple[Any, Any]:
        bf16 = np.dtype(jnp.bfloat16)
        return jaxbw.Quantized(x, s, None, bf16), jaxbw.Quantized(w, t, None, bf16).mT

    def grouped(precision: Any, config: Any, *leaves: Any) -> Any:
        x, w = of_float8(*leaves)
        return jaxbw.ragged_dot(x, w, sizes, precision, implementation="sm90", config=config)

    def dense(*leaves: Any) -> Any:
        x, w = of_float8(*leaves[:2], *(leaf[0] for leaf in leaves[2:]))
        return jaxbw.matmul(x, w, implementation="sm90")

    def bfloat16(x: Any, w: Any) -> Any:
        return jaxbw.ragged_dot(x, w.mT, sizes, implementation="sm90")

    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "float8": (partial(grouped, None, None), flat),
        "dense": (dense, flat),
        "bfloat16": (bfloat16, wide),
    }
    for config in configs:
        name = "highest" if config is None else f"highest, {config}"
        calls[name] = (partial(grouped, "highest", config), flat)
    # One set: weights alone are more than the L2 cache.
    return {name: Rotation(Matmul(jax.jit(call)), [xs]) for name, (call, xs) in calls.items()}


def training(case: Case) -> dict[str, Any]:
    """The calls to be timed of a value and its gradients, by name."""
    sizes = jnp.asarray(sizes_of(case))
    shapes = (case.m, case.k), (case.groups, case.k, case.n), (case.m, case.n)
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes, strict=True)]

    def with_gradients(multiply: Any, x: Any, w: Any, bar: Any) -> Any:
        out, pull = jax.vjp(lambda x, w: multiply(x, w, sizes), x, w)
        return out, pull(bar)

    calls = {"float8": jaxbw.fp8_ragged_dot, "bfloat16": jaxbw.ragged_dot}
    return {
        name: Rotation(Matmul(jax.jit(partial(with_gradients, call))), [tuple(arrays)])
        for name, call in calls.items()
    }


def gathered_and_sorted(case: Case) -> dict[str, Any]:
    """The calls to be timed of rows that are chosen, by name: each group's tokens in order."""
    rng, sizes = np.random.default_rng(case.m), sizes_of(case)
    tokens, is_gated = case.m // TOP_K.get(case.layer, 8), case.form == "chosen gated"
    chosen = [np.sort(rng.choice(tokens, size, replace=size > tokens)) for size in sizes]
    rows = jnp.asarray(np.concatenate(chosen).astype(np.int32))
    groups = jnp.asarray(sizes)
    count = max(2, int(ROTATED // (2.0 * case.groups * case.k * case.n * (1 + is_gated))) + 1)
    keys = jax.random.split(jax.random.key(0), (count, 3))
    weights = (case.groups, case.k, case.n)
    shapes = [(tokens, case.k), weights, *([weights] if is_gated else [])]
    of_tokens = [
        tuple(jax.random.normal(key, s, jnp.bfloat16) for key, s in zip(row, shapes, strict=False))
        for row in keys
    ]
    of_rows = [(x[rows], *experts) for x, *experts in of_tokens]

    def multiply(x: Any, *experts: Any, **options: Any) -> Any:
        call: Any = jaxbw.gated_ragged_dot if is_gated else jaxbw.ragged_dot
        return call(x, *experts, groups, implementation="sm90", **options)

    def before(x: Any, *experts: Any) -> Any:
        return multiply(x.at[rows].get(mode="promise_in_bounds"), *experts)

    calls: dict[str, tuple[Any, list[Any]]] = {
        "load": (partial(multiply, lhs_rows=rows), of_tokens),
        "before": (before, of_tokens),
        "sorted": (multiply, of_rows),
    }
    return {name: Rotation(Matmul(jax.jit(call)), arrays) for name, (call, arrays) in calls.items()}


def fused_and_apart(case: Case) -> dict[str, Any]:
    """The calls to be timed of an epilogue, by name."""
    sizes, f32 = jnp.asarray(sizes_of(case)), jnp.float32
    weights = (case.groups, case.k, case.n)
    shapes = [(case.m, case.k), *([(case.m, case.n)] if case.form == "sums" else [weights] * 2)]
    count = max(2, int(ROTATED // sum(2.0 * np.prod(shape) for shape in shapes)) + 1)
    keys = jax.random.split(jax.random.key(0), (count, len(shapes)))
    arrays = [
        tuple(jax.random.normal(key, s, jnp.bfloat16) for key, s in zip(row, shapes, strict=True))
        for row in keys
    ]
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    gradient = partial(
        jaxbw.ragged_dot_general,
        ragged_dot_dimension_numbers=numbers,
        preferred_element_type=f32,
        implementation="sm90",
    )
    product = partial(jaxbw.ragged_dot, preferred_element_type=f32, implementation="sm90")

    def summed(add: Any, x: Any, dy: Any) -> Any:
        return lax.fori_loop(0, MICROBATCHES, lambda _, c: add(x, dy, c), jnp.zeros(weights, f32))

    def gated_apart(x: Any, gate: Any, up: Any) -> Any:
        return (jax.nn.silu(product(x, gate, sizes)) * product(x, up, sizes)).astype(x.dtype)

    forms: dict[str, dict[str, Any]] = {
        "gated": {
            "fused": lambda x, gate, up: jaxbw.gated_ragged_dot(
                x, gate, up, sizes, implementation="sm90"
            ),
            "apart": gated_apart,
        },
        "sums": {
            "fused": partial(summed, lambda x, dy, c: gradient(x, dy, sizes, c=c)),
            "apart": partial(summed, lambda x, dy, c: c + gradient(x, dy, sizes)),
        },
    }
    calls = forms[case.form].items()
    return {name: Rotation(Matmul(jax.jit(call)), arrays) for name, call in calls}


def measure(case: Case, device: Device, timer: Cupti, rounds: int, configs: Any) -> dict[str, Any]:
    """Microseconds and TFLOP/s of each arm."""
    if case.form in FORMS:
        calls = arms(case, device, configs)
    elif case.form in GATHERED:
        calls = gathered_and_sorted(case)
    elif case.form == "float8":
        calls = float8_and_bfloat16(case, configs)
    else:
        calls = training(case) if case.form == "training" else fused_and_apart(case)
    timings = bursts(timer, calls, rounds=rounds, seed=0)
    row: dict[str, Any] = {"case": asdict(case), "arms": {}}
    for name, timing in timings.items():
        us = timing.median_us
        row["arms"][name] = {
            "us": us,
            "tflops": case.flops / us / 1e6,
            "kernels": timing.kernels,
            "rounds_us": timing.rounds,
        }
    return row


def main() -> None:
    """Parse arguments, measure, print a table, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="uniform sizes of 8, 128 and 512")
    parser.add_argument("--only", default="", help="cases whose text this pattern is found in")
    parser.add_argument(
        "--tiles", nargs="*", default=[], help="also 128x128, 64x128p in turns, 128x128/8, ..."
    )
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--epilogues", action="store_true", help="these alone")
    alone.add_argument("--float8", action="store_true", help="this alone")
    alone.add_argument("--gathered", action="store_true", help="this alone")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    device = running_gpu(parser)
    configs: list[GemmConfig | None] = [None, *map(config_of, arguments.tiles)]
    timer = Cupti()
    described = environment.describe(0, arguments.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
    }
    rows = []
    chosen = {
        EPILOGUES: arguments.epilogues,
        FLOAT8: arguments.float8,
        GATHERED: arguments.gathered,
    }
    forms = next((forms for forms, is_chosen in chosen.items() if is_chosen), FORMS)
    for case in cases(arguments.quick, forms):
        if re.search(arguments.only, str(case)) is None:
            continue
        row = measure(case, device, timer, arguments.rounds, configs)
        rows.append(row)
        cells = [f"{n} {a['us']:9.2f} us {a['tflops']:4.0f} TF" for n, a in row["arms"].items()]
        print(f"{case!s:58} {'  '.join(cells)}", flush=True)
        results = {"environment": described, "rows": rows}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


def config_of(text: str) -> GemmConfig:
    """A tile, "128x256": with "p" warpgroups take turns at tiles, with "n" a CTA has one.

    With "/8" bands are 8 tiles high, else 2048 rows, and 16 tiles at most.
    """
    text, _, band = text.partition("/")
    block_m, block_n = map(int, text.rstrip("pn").split("x"))
    return GemmConfig(
        block_m,
        block_n,
        pingpong="p" in text,
        scheduler="none" if "n" in text else None,
        swizzle=int(band) if band else min(2048 // block_m, 16),
    )


if __name__ == "__main__":
    main()
