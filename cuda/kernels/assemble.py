"""Assemble one kernel from the PTX of its source: run ptxas, keep its report, refuse bad code.

Refused are register spills, and every diagnostic of ptxas: among them that it serialised wgmma
(C7510 and its like) or ignored setmaxnreg, which leave a kernel correct but slow.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
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


def _main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx", type=Path, help="of the source")
    parser.add_argument("--replace", nargs="*", default=[], metavar="WORD=BY", help="in the PTX")
    parser.add_argument("--ptxas", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("flags", nargs="*", help="passed to ptxas")
    args = parser.parse_args()

    text = args.ptx.read_text()
    for replacement in args.replace:
        word, by = replacement.split("=")
        if word not in text:  # without its number an instance would be another one
            return f"{args.output.stem}: {args.ptx} does not have {word}"
        text = text.replace(word, by)
    with TemporaryDirectory() as folder:
        ptx = Path(folder) / f"{args.output.stem}.ptx"
        ptx.write_text(text)
        done = subprocess.run(
            [args.ptxas, "-v", f"-arch={args.arch}", *args.flags, ptx, "-o", args.output],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode != 0:
        return f"ptxas failed on {args.output.stem}:\n{done.stdout}"
    faults = Report.parse(done.stdout).faults()
    if faults:
        args.output.unlink()
        return "\n  ".join([f"{args.output.stem}: refused, for", *faults])
    args.report.write_text(done.stdout)
    return None


if __name__ == "__main__":
    sys.exit(_main())
