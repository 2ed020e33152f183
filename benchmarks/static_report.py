"""What the machine code says of our kernels, beside those of other compilers.

  python benchmarks/static_report.py --out benchmarks/results/static-report.md \\
      --json benchmarks/results/static-report.json

Needs no GPU: registers, spills and shared memory of every GEMM instance, and the instructions that
a warp issues for a block of K (the warp that loads and the one that multiplies) and for an element
of D (epilogue). Of Triton, Gluon and the CuTe DSL the kernels of tests/independent are compiled,
and assembled by the ptxas that comes with each. How paths are counted is said in measuring/sass.py;
what is compared, and why a count of ours is higher than another's, in static_report.toml.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxbw import _native
from measuring import sass
from measuring.kernel_counts import (
    TABLE,
    Kernel,
    Row,
    disassemble,
    instance,
    load_table,
    ours,
    ring,
    theirs,
)

KERNELS = Path(_native.__file__).parent / "kernels"
PACKAGES = ("triton", "nvidia-cutlass-dsl")


def gemm_entries() -> list[dict[str, Any]]:
    """The GEMM instances of the installed package, as its manifest describes them.

    Without those of 8 and 4 bits: on Hopper each has four main loops, one for each mix of types,
    and more ways through its code than can be enumerated. Nor Hopper's of TF32, which differ from
    bf16's in the instruction.
    """
    manifest = json.loads((KERNELS / "manifest.json").read_text())
    gemms = [entry for entry in manifest["kernels"] if entry.get("role", "gemm") == "gemm"]
    left_out = ("_8bit", "_4bit", "sm90_tf32")
    return [entry for entry in gemms if not any(each in entry["name"] for each in left_out)]


def report(with_others: bool = True) -> dict[str, Any]:
    """All that is counted, as it stands in the JSON file."""
    rows, epilogue = load_table()
    code: dict[str, sass.Code] = {}

    def read(row: Row) -> Kernel:
        cubin = KERNELS / f"{row.kernel}.cubin"
        if row.kernel not in code:
            code[row.kernel] = disassemble(cubin)
        return ours(row, cubin, code[row.kernel])

    instances = []
    for row in (instance(entry, epilogue) for entry in gemm_entries()):
        stages, _ = ring(row.kernel, *row.tile)
        instances.append(
            {"name": row.kernel, "tile": row.tile, "layout": row.layout, "stages": stages}
            | asdict(read(row))
        )
    comparisons = []
    for row in rows:
        kernels = [read(row), *(theirs(who, row) for who in row.others if with_others)]
        comparisons.append(
            {"name": row.name, "kernel": row.kernel, "why": dict(row.why)}
            | {"kernels": [asdict(kernel) for kernel in kernels]}
        )
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if with_others}
    return {"versions": versions, "instances": instances, "comparisons": comparisons}


def keep_others(table: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with the counts that an earlier one has of other compilers' kernels."""
    known = {comparison["name"]: comparison for comparison in before["comparisons"]}
    for comparison in table["comparisons"]:
        comparison["kernels"] += known[comparison["name"]]["kernels"][1:]
    return table | {"versions": before["versions"]}


def excess(comparison: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """By role in which ours issues more than another: by how many, and than whose, the least."""
    mine, *others = comparison["kernels"]
    found = {}
    for role, count in mine["counts"].items():
        least = min(others, key=lambda other: other["counts"][role]["least"])
        more = count["most"] - least["counts"][role]["least"]
        if more > 0:
            found[role] = (more, least["who"])
    return found


def unexplained(table: Mapping[str, Any]) -> list[str]:
    """Comparisons in which ours issues more, and no reason is given."""
    return [
        f"{comparison['name']}: {role}"
        for comparison in table["comparisons"]
        for role in excess(comparison)
        if not comparison["why"].get(role)
    ]


def _table(header: str, rows: Iterable[Iterable[object]]) -> str:
    columns = header.count("|") + 1
    lines = [f"| {header} |", "|" + " --- |" * columns]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def _span(count: Mapping[str, Any]) -> str:
    low, high = (f"{n:.3g}" for n in (count["least"], count["most"]))
    return low if low == high else f"{low} - {high}"


def _counted(kernel: Mapping[str, Any]) -> list[str]:
    return [_span(kernel["counts"][role]) for role in ("load", "multiply", "epilogue")]


def _difference(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The opcodes of which ours issues more, most first."""
    more = Counter(mine["opcodes"])
    more.subtract(other["opcodes"])
    return ", ".join(f"{opcode} +{n:.3g}" for opcode, n in more.most_common(8) if n > 0.005)


def markdown(table: Mapping[str, Any]) -> str:
    """The committed page."""
    versions = " and ".join(f"{name} {version}" for name, version in table["versions"].items())
    instances = _table(
        "instance | tile | registers | spills | shared | stages | load | multiply | epilogue",
        (
            [
                f"`{i['name']}`",
                " x ".join(map(str, i["tile"])),
                *(i["registers"], i["spills"], i["shared"], i["stages"]),
                *_counted(i),
            ]
            for i in table["instances"]
        ),
    )
    compared, more_of = [], []
    reasons: dict[str, list[str]] = {}  # and the rows that each is for
    for comparison in table["comparisons"]:
        mine, *others = comparison["kernels"]
        for kernel in comparison["kernels"]:
            title = comparison["name"] if kernel is mine else ""
            used = kernel["registers"], kernel["spills"], kernel["shared"]
            compared.append([title, kernel["who"], *used, *_counted(kernel)])
        for role, (more, who) in excess(comparison).items():
            other = next(kernel for kernel in others if kernel["who"] == who)
            extra = _difference(mine["counts"][role], other["counts"][role])
            more_of.append([comparison["name"], role, f"{more:.3g} more than {who}", extra])
            why = f"**{role}**: {comparison['why'].get(role, 'not explained.')}"
            reasons.setdefault(why, []).append(comparison["name"])
    return "\n\n".join(
        [
            tomllib.loads(TABLE.read_text())["intro"].format(versions=versions).rstrip(),
            "## Instances, at their largest tile",
            instances,
            "## Beside other compilers, at equal tile, cta_group, cluster and layout",
            _table(
                "row | kernel | registers | spills | shared | load | multiply | epilogue",
                compared,
            ),
            "## Where ours issues more, and what that buys",
            _table("row | role | how many | of which instructions", more_of),
            *(
                reason if len(reasons) <= 3 else f"{reason} ({'; '.join(names)})"
                for reason, names in reasons.items()
            ),
            "",
        ]
    )


def main() -> None:
    """Count, and write the page and the JSON file behind it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the page, Markdown")
    parser.add_argument("--json", type=Path, required=True, help="the same as data")
    parser.add_argument(
        "--keep-others", action="store_true", help="take the others' counts from the JSON file"
    )
    arguments = parser.parse_args()
    if arguments.keep_others:
        table = keep_others(report(with_others=False), json.loads(arguments.json.read_text()))
    else:
        table = report()
    arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    arguments.out.write_text(markdown(table))
    for comparison in unexplained(table):
        print(f"not explained in {TABLE.name}: {comparison}")


if __name__ == "__main__":
    main()
