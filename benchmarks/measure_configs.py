"""Device times of many launch configurations, to calibrate and to judge the selection by.

    python benchmarks/measure_configs.py --draw 60 --seed 1 --out calibration.jsonl
    python benchmarks/measure_configs.py --shapes 4096,4096,4096,nn --count 400 --out one.jsonl
    python benchmarks/measure_configs.py --draw 60 --epilogue bias_gelu --out fused.jsonl

Which ones, and how often, jaxbw/_src/lab/tuning/measure.py says. Each matmul is a line of JSON;
those that --out has already are left out: a run can be resumed.
"""

from __future__ import annotations

import argparse

import jax.numpy as jnp

from jaxbw._src.lab.bench.case import DTYPES
from jaxbw._src.lab.tuning.launching import Gpu
from jaxbw._src.lab.tuning.measure import Effort
from measuring import matmuls
from measuring.configurations import parse, run


def main() -> None:
    """Parses arguments, measures, prints a line for each matmul."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K,LAYOUT[,EPILOGUE]")
    parser.add_argument("--least", type=int, default=1, help="m, n and k of the random matmuls")
    parser.add_argument(
        "--multiples", type=int, nargs="+", default=matmuls.MULTIPLES, help="sizes are of one of"
    )
    matmuls.add_types(parser)
    arguments, device = parse(parser, draw=0, seed=1)
    wanted = [matmuls.parse(text) for text in arguments.shapes]
    wanted += matmuls.draw(
        *(arguments.draw, arguments.seed, arguments.epilogue, arguments.least, arguments.multiples)
    )
    wanted = matmuls.of_types(wanted, arguments)
    effort = Effort(count=arguments.count)
    bench = Gpu(jnp.dtype(DTYPES[arguments.dtype]))
    for matmul, measured in run(bench, wanted, device, effort, arguments.out, arguments.budget):
        fastest = measured[0]
        by_model = min(measured, key=lambda each: each.modelled)
        ratio = by_model.microseconds / fastest.microseconds
        print(
            f"{matmul!s:24} {fastest.microseconds:9.2f} us, the model's first {ratio:5.3f} of it; "
            f"{len(measured)}: {fastest.config}",
            flush=True,
        )


if __name__ == "__main__":
    main()
