"""A small grid of launches for compute-sanitizer: `compute-sanitizer python -m tests.gpu.sanitize`.

Without guard regions, since the tool watches allocations and would not see an access inside one;
and small, since it slows kernels down a hundredfold. Prints a line for each launch; exit status 1
says that a result was wrong.
"""

import sys

from . import direct
from .direct import Case

# Each has tails, so that every predicate and every out-of-bounds fill is at work; between them they
# have all layouts, all cluster shapes, both dtypes, rings that wrap around, several waves, batches,
# every part of the epilogue, repacked operands, split, swapped and gated products, every way to
# store.
CASES = (
    Case(136, 136, 72),
    Case(264, 328, 200, layout="nt", cluster=(2, 1), stages=2),
    Case(264, 328, 200, layout="tn", cluster=(1, 2), dtype="f16", output="f16"),
    Case(264, 328, 200, layout="tt", cluster=(2, 2), output="bf16", bias="f32", activation="gelu"),
    Case(264, 328, 584, block_n=256, cluster=(2, 1), swizzle=2, bias="bf16", activation="relu"),
    Case(136, 200, 72, block_n=192, batch=3, shared=("rhs",), bias="f16", activation="silu"),
    Case(1, 264, 64, output="bf16"),
    Case(137, 131, 71, layout="tt", output="bf16", c="bf16", in_place=True, residual="f32"),
    Case(
        136,
        264,
        200,
        output="bf16",
        bias="f32",
        bias_along_m=True,
        activation="gelu_exact",
        save=True,
    ),
    Case(136, 136, 72, gated=True, activation="silu", save=True, output="bf16", cluster=(2, 1)),
    Case(264, 200, 584, split_k=3, cluster=(2, 1), c="f32", in_place=True),
    Case(136, 264, 584, split_k=2, split_tail=True, batch=2),
    Case(7, 264, 200, swap_ab=True, layout="nt", bias="bf16", output="bf16", residual="bf16"),
    Case(264, 136, 72, tma_store=False, store_buffers=1, scheduler="none", raster="n"),
    Case(2184, 1160, 72, block_n=64, cluster=(2, 1)),  # 324 tiles: more than one wave on 132 SMs
)


def main() -> int:
    """Launches every case; returns the process's exit status."""
    failures = 0
    for case in CASES:
        try:
            direct.check(case, guard_bytes=0)
        except (AssertionError, RuntimeError) as error:
            failures += 1
            print(f"FAILED {case}\n  {error}", flush=True)
        else:
            print(f"ok {case}", flush=True)
    print(f"{len(CASES) - failures} of {len(CASES)} launches are right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
