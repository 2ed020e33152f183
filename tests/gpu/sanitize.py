"""Launches for compute-sanitizer: `compute-sanitizer python -m tests.gpu.sanitize`.

Every instance of the family, each in launches that are drawn from all that is legal, always the
same. Without guard regions, since the tool watches allocations and would not see an access inside
one; and small, since it slows kernels down a hundredfold. Prints a line for each launch; exit
status 1 says that a result was wrong.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxbw import _native
from jaxbw._src.selection import manifest
from jaxbw._src.selection.kernel_table import Kernel

from ..emulator import gemm_draw
from ..emulator.gemm_cases import Case
from . import direct

DRAWS = 10  # launches of an instance
SMALL = gemm_draw.Gpu(132, ks=(8, 65, 200, 584), area=1 << 16, work=1 << 22)
# More than one wave, on few elements of K.
WAVES = gemm_draw.Gpu(132, ks=(24, 72), area=1 << 20, work=1 << 26)
PLANTED = direct.Case(136, 136, 72)  # the launch in which planted bugs have to be found


def cases(kernel: Kernel) -> Iterator[Case]:
    """The launches of an instance."""
    for number in range(DRAWS):
        rng = random.Random(f"{kernel.name} {number}")
        gpu, waves = (SMALL, rng.choice((0.0, 0.05))) if number else (WAVES, 1.25)
        yield gemm_draw.draw_sm90_case(rng, kernel, waves, gpu)


def launched(case: Case) -> list[str]:
    """The kernels that serve a case."""
    by_role = {k.role: k.name for k in manifest.kernels() if k.family == "sm90"}
    names = [case.kernel]
    if case.repacked:
        names.append(by_role["repack"])
    if case.plan().reduces_apart and not case.split_tail:  # a tail may be empty
        names.append(by_role["reduce"])
    return names


def main() -> int:
    """The command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"))
    parser.add_argument("--fresh", action="store_true", help="no poison: for initcheck")
    parser.add_argument("--peers", action="store_true", help="only where CTAs share operands")
    parser.add_argument("--kernels", default="", help="a part of their names")
    parser.add_argument("--planted", type=Path, help="a folder of kernels; launches one case")
    given = parser.parse_args()
    options = {"guard_bytes": 0, "poison": not given.fresh}
    if given.planted is not None:
        _native.set_kernel_directory(str(given.planted))
        direct.launch(PLANTED, PLANTED.matmul(), **options)
        return 0
    part, parts = given.part
    failures = launches = 0
    kernels = [kernel for kernel in direct.kernels("sm90") if given.kernels in kernel.name]
    for kernel in kernels[part::parts]:
        for case in cases(kernel):
            if given.peers and case.cluster == (1, 1) and kernel.role != "skinny":
                continue
            launches += 1
            try:
                direct.check(case, **options)
            except (AssertionError, RuntimeError) as error:
                failures += 1
                print(f"FAILED {case.kernel} {case}\n  {error}", flush=True)
            else:
                print("ok", *launched(case), case, flush=True)
    print(f"{launches - failures} of {launches} launches are right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
