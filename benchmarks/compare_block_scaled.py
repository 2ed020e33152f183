"""Compares the cost model of block-scaled matmuls with what others have published of B200s.

    python benchmarks/compare_block_scaled.py --out benchmarks/results/DATE_model_block_scaled.json

It needs no GPU, and it measures nothing: published are other kernels' figures, modelled is the
configuration that would be chosen here, or, beside kernels without pairs, 128x256 of a CTA.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxbw

_GLUON = "https://github.com/triton-lang/triton/pull/9697"
_DEEPGEMM = "https://github.com/deepseek-ai/DeepGEMM/pull/348"


@dataclass(frozen=True)
class Anchor:
    """A published figure in TFLOP/s, and cuBLAS's beside it, where there is one."""

    source: str
    kernel: str
    format: str
    m: int
    n: int
    k: int
    published: float
    cublas: float | None = None
    pairs: bool = True


def _cubes(kernel: str, format: str, figures: dict[int, tuple[float, float | None]]) -> Any:
    for size, (published, cublas) in figures.items():
        pairs = "1 CTA" not in kernel
        yield Anchor(_GLUON, kernel, format, size, size, size, published, cublas, pairs)


ANCHORS = (
    *_cubes(
        "Gluon, pairs",
        "mxfp8",
        {8192: (2895.0, 2894.5), 16384: (2755.0, 2647.7), 32768: (2632.9, 2587.0)},
    ),
    *_cubes(
        "Gluon, pairs",
        "nvfp4",
        {8192: (5730.0, 5589.8), 16384: (5562.0, 4313.6), 32768: (5362.4, 4933.4)},
    ),
    *_cubes(
        "Gluon, 1 CTA",
        "mxfp8",
        {8192: (2525.9, None), 16384: (2409.3, None), 32768: (2468.7, None)},
    ),
    *_cubes(
        "Gluon, 1 CTA",
        "nvfp4",
        {8192: (4781.9, None), 16384: (4837.0, None), 32768: (4723.3, None)},
    ),
    *(
        Anchor(_DEEPGEMM, "DeepGEMM, float32 results", "mxfp4", m, n, k, published, cublas)
        for m, n, k, published, cublas in (
            (128, 2048, 7168, 328, 338),
            (128, 24576, 1536, 980, 745),
            (512, 2048, 7168, 1178, 1422),
            (512, 7168, 2048, 1439, 1190),
            (1024, 7168, 2048, 2056, 1399),
            (4096, 4096, 7168, 5332, 3939),
            (8192, 8192, 8192, 5702, 5239),
        )
    ),
)


def modelled(anchor: Anchor) -> dict[str, Any]:
    """What the model says of the configuration that runs here."""

    def operand(*shape: int, axis: int) -> Any:
        x = jax.ShapeDtypeStruct(shape, "bfloat16")
        return jax.eval_shape(lambda x: jaxbw.quantize(x, anchor.format, axis=axis), x)

    dtype = "float32" if anchor.source == _DEEPGEMM else "bfloat16"
    lhs = operand(anchor.m, anchor.k, axis=-1)
    # As they lie there: K-major.
    rhs = operand(anchor.n, anchor.k, axis=-1).mT
    choice = jaxbw.explain(
        *(lhs, rhs),
        preferred_element_type=dtype,
        device="B200",
        config=None if anchor.pairs else jaxbw.GemmConfig(128, 256, cta_group=1),
    )
    assert choice.cost is not None
    us = choice.cost.total
    value = 2 * anchor.m * anchor.n * anchor.k / us / 1e6
    return {"value": value, "us": us, "config": str(choice.config)}


def main() -> None:
    """Prints the comparison, and writes it where --out says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for anchor in ANCHORS:
        row = asdict(anchor) | modelled(anchor)
        row["error"] = row["value"] / anchor.published - 1
        rows.append(row)
        shape = f"{anchor.m}x{anchor.n}x{anchor.k}"
        print(
            f"{anchor.kernel:26s} {anchor.format:6s} {shape:18s} published {anchor.published:7.1f}"
            f"  cuBLAS {anchor.cublas or np.nan:7.1f}  modelled {row['value']:7.1f}"
            f"  {row['error']:+6.1%}  {row['us']:8.1f} us  {row['config']}"
        )
    median = statistics.median(abs(row["error"]) for row in rows)
    print(f"median error {median:.1%}")
    if args.out:
        record = {
            "command": f"python benchmarks/compare_block_scaled.py --out {args.out}",
            "note": "other people's measurements, and a model's figures: nothing was measured",
            "jaxbw": jaxbw.__version__,
            "anchors": rows,
            "median_error": median,
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
