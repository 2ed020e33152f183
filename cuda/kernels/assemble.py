"""Assemble the instances of a source from its PTX: run ptxas, keep its reports, refuse bad code.

Refused are register spills, and every diagnostic of ptxas: among them that it serialised wgmma
(C7510 and its like) or ignored setmaxnreg, which leave a kernel correct but slow.
"""

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_DIAGNOSTIC = re.compile(r"\(C\d+\)|\bwarning\b|Potential Performance Loss", re.IGNORECASE)


@dataclass(frozen=True)
class Report:
    """What `ptxas -v` says about one kernel and the functions that it calls."""

    registers: int
    spill_bytes: int
    diagnostics: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Report":
        """Read the output of `ptxas -v`.

        Raises:
          ValueError: it holds no resource usage.
        """
        registers = [int(count) for count in _REGISTERS.findall(text)]
        spills = [int(stores) + int(loads) for stores, loads in _SPILLS.findall(text)]
        if not registers or not spills:
            raise ValueError(f"not a report of ptxas -v:\n{text}")
        diagnostics = tuple(line for line in text.splitlines() if _DIAGNOSTIC.search(line))
        return cls(max(registers), sum(spills), diagnostics)

    def faults(self) -> list[str]:
        """Why the kernel must not ship; empty when it may."""
        spilled = [f"it spills {self.spill_bytes} bytes of registers"] if self.spill_bytes else []
        return [*spilled, *self.diagnostics]


def _assemble(instance: str, source: str, args: argparse.Namespace) -> str | None:
    """Writes the cubin and the report of an instance; or says why not."""
    name, _, replacement = instance.partition(":")
    if replacement:
        word, number = replacement.split("=")
        for old, new in ((args.ptx.stem, name), (word, number)):
            if old not in source:  # without its number an instance would be another one
                return f"{name}: {args.ptx} does not have {old}"
            source = source.replace(old, new)
    cubin = args.cubins / f"{name}.cubin"
    with TemporaryDirectory() as folder:
        ptx = Path(folder) / f"{name}.ptx"
        ptx.write_text(source)
        done = subprocess.run(
            [args.ptxas, "-v", f"-arch={args.arch}", *args.flags, ptx, "-o", cubin],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode != 0:
        return f"ptxas failed on {name}:\n{done.stdout}"
    faults = Report.parse(done.stdout).faults()
    if faults:
        cubin.unlink()
        return "\n  ".join([f"{name}: refused, for", *faults])
    (args.reports / f"{name}.ptxas").write_text(done.stdout)
    return None


def _main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx", type=Path, help="of the source")
    parser.add_argument(
        "--instances",
        nargs="+",
        required=True,
        metavar="NAME[:WORD=BY]",
        help="that take the place of the source's name, and of a word in the PTX",
    )
    parser.add_argument("--ptxas", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--cubins", type=Path, required=True, help="folder")
    parser.add_argument("--reports", type=Path, required=True, help="folder")
    parser.add_argument("flags", nargs="*", help="passed to ptxas")
    args = parser.parse_args()

    # Two at a time: else the last source of a build would leave a core idle.
    with ThreadPoolExecutor(2) as pool:
        assemble = partial(_assemble, source=args.ptx.read_text(), args=args)
        faults = [fault for fault in pool.map(assemble, args.instances) if fault]
    return "\n".join(faults) or None


if __name__ == "__main__":
    sys.exit(_main())
