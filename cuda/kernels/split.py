"""Cut the PTX of several kernels into files of one kernel each.

split.py UNIT.ptx --output DIR    writes DIR/<kernel>.ptx
"""

import argparse
import re
from pathlib import Path

_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
_END = re.compile(r"^}\n", re.MULTILINE)  # of a kernel: its inner braces are indented


def split(text: str) -> dict[str, str]:
    """The PTX of each kernel, by its name: what stands before all kernels and behind them goes with
    each.

    Raises:
      ValueError: there is no kernel.
    """
    entries = list(_ENTRY.finditer(text))
    if not entries:
        raise ValueError("no kernel in this PTX")
    ends = [next(_END.finditer(text, entry.end())).end() for entry in entries]
    before, behind = text[: entries[0].start()], text[ends[-1] :]
    return {
        entry[1]: before + text[entry.start() : end] + behind
        for entry, end in zip(entries, ends, strict=True)
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    args = parser.parse_args()
    for name, kernel in split(args.ptx.read_text()).items():
        (args.output / f"{name}.ptx").write_text(kernel)


if __name__ == "__main__":
    _main()
