"""What is counted of one kernel: ours on the way of a configuration, or another compiler's.

Serves static_report.py, whose table static_report.toml explains the rows.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxbw import _native
from measuring import sass

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "static_report.toml"

WAIT = r"SYNCS.*TRYWAIT"
MMAS = 4  # along K in a block of 64 elements of 16 bits: in one swizzle span of any type
# By family and role, the instructions that its loop has; the first is counted per block or element.
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "sm100": {
        "load": ("UTMALDG.*", WAIT),
        "multiply": (r"UTC\wMMA.*", WAIT),
        "epilogue": ("LDTM.*", "UTMASTG.*"),
    },
    "sm90": {
        # Of lhs, rhs and the second one: the loop that brings a residual has one load in its code.
        "load": ("UTMALDG.*", "UTMALDG.*", "UTMALDG.*", WAIT),
        "multiply": ("HGMMA.*", WAIT),
        # The warps that multiply also store: the loop over tiles, with one block of K.
        "epilogue": ("STSM.*", "UTMASTG.*", "HGMMA.*"),
    },
}
# Columns of a swizzle span of D, the unit of static_report.toml, and of a lane's elements in one:
# a row of 64 (sm100), its part of 16 rows (sm90).
SPAN = 64
SPAN_ELEMENTS = {"sm100": 64, "sm90": 32}
TITLES = {"triton": "Triton", "gluon": "Gluon", "cute": "CuTe DSL"}


@dataclass(frozen=True)
class Row:
    """One comparison; the fields are explained in static_report.toml."""

    name: str
    kernel: str
    tile: tuple[int, int]
    cluster: tuple[int, int]
    layout: str
    epilogue: Mapping[str, int]
    others: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The GPUs that the kernel is for: "sm90" or "sm100"."""
        return self.kernel.split("_")[1]

    @property
    def cta_group(self) -> int:
        """CTAs that share the tile."""
        return 2 if self.kernel.endswith("2cta") else 1

    @property
    def boxes_of(self) -> tuple[int, int]:
        """TMA boxes of a CTA for one block of K, of lhs and rhs.

        One of a K-major operand, else one for each 64 rows or columns of the CTA's part. Where its
        columns are no multiple of 64, sm90 has boxes of 32, sm100 a last one that is not all used.
        """
        rows, columns = (extent // self.cta_group for extent in self.tile)
        width = 32 if self.family == "sm90" and columns % 64 else 64
        return (
            1 if self.layout[0] == "n" else rows // 64,
            1 if self.layout[1] == "t" else -(-columns // width),
        )

    @property
    def boxes(self) -> int:
        """Of both operands."""
        return sum(self.boxes_of)

    @property
    def multicast_boxes(self) -> int:
        """Those of an operand that several CTAs of the cluster need: a row or a column of them."""
        shared = self.cluster[1] > 1, self.cluster[0] > self.cta_group
        return sum(boxes for boxes, needed in zip(self.boxes_of, shared, strict=True) if needed)

    @property
    def issued(self) -> dict[str, Mapping[str, int]]:
        """By role, what ours issues in a round of its loop; a block of K is one swizzle span."""
        issued: dict[str, Mapping[str, int]] = {
            "load": {
                "UTMALDG.*": self.boxes,
                "UTMALDG.*MULTICAST.*": self.multicast_boxes,
                "SYNCS.ARRIVE.*": 1,
                WAIT: 1,
            }
        }
        if self.family == "sm100":
            mma_tiles = max(1, self.tile[0] // self.cta_group // 128)
            multiply = {self.loops["multiply"][0]: MMAS * mma_tiles}
            return issued | {"multiply": multiply | {WAIT: 1}, "epilogue": self.epilogue}
        wgmmas = self.tile[0] // 128  # one below the other, of each of two warpgroups
        spans = self.tile[1] / SPAN
        multiply = {"HGMMA.*": MMAS * wgmmas, WAIT: 1}
        # A box narrower than a span is stored by one instruction, too.
        epilogue = {
            pattern: wgmmas * max(1, int(spans * count)) if count else 0
            for pattern, count in self.epilogue.items()
        }
        if wgmmas == 1 and self.tile[1] <= SPAN:  # sm90_context.h, accumulator_sets
            epilogue["FADD.*"] = self.tile[1] // 2
        # Boxes of the tile before, stored beside a tile's first matmuls, are its epilogue's.
        steady = multiply | {"UTMACMDFLUSH": 0}
        return issued | {"multiply": steady, "epilogue": epilogue | multiply}

    @property
    def loops(self) -> Mapping[str, tuple[str, ...]]:
        """By role, what its loop has."""
        return ROLES[self.family]


@dataclass(frozen=True)
class Count:
    """Warp instructions of one role: on the shortest path that fits, and on the longest."""

    least: float
    most: float
    opcodes: Mapping[str, float]  # of the shortest


@dataclass(frozen=True)
class Kernel:
    """What is read of one kernel."""

    who: str
    registers: int
    spills: int
    shared: int
    counts: Mapping[str, Count]


def load_table(path: Path = TABLE) -> tuple[list[Row], dict[str, Mapping[str, int]]]:
    """The rows of static_report.toml, and the way through the epilogue of each family."""
    table = tomllib.loads(path.read_text())
    common = {"epilogue": table["epilogue"]["sm100"], "why": table["why"]}
    rows = []
    for row in table["row"]:
        keys = {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}
        rows.append(Row(**common | keys))
    return rows, table["epilogue"]


def instance(entry: Mapping[str, Any], epilogue: Mapping[str, Mapping[str, int]]) -> Row:
    """A row for an entry of the manifest, at the largest tile that the instance has."""
    family = entry["name"].split("_")[1]
    if family == "sm100":
        tile, layout = (256 * entry["cta_group"], 256), "nt"
    else:
        tile, layout = (2 * entry["block_m"], entry["block_n"]), entry["layout"]  # cooperative
    cluster = (entry["cta_group"], 1)
    return Row(entry["name"], entry["name"], tile, cluster, layout, epilogue[family])


def tool(name: str) -> str:
    """A program of NVIDIA's wheels, else the one on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations if spec else None) or ():
        path = Path(root) / "cu13" / "bin" / name
        if path.exists():
            return str(path)
    found = shutil.which(name)
    if not found:
        raise FileNotFoundError(f"{name} is missing; `pip install 'jaxbw[test]'` brings it")
    return found


def output(name: str, *arguments: str | Path) -> str:
    """What such a program prints."""
    # cuobjdump looks for nvdisasm on PATH.
    path = f"{Path(tool('nvdisasm')).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [tool(name), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    return done.stdout


def usage(cubin: Path) -> dict[str, int]:
    """What a cubin says of registers (REG), stack (STACK) and local memory (LOCAL)."""
    found = re.findall(r"\b([A-Z]+):(\d+)", output("cuobjdump", "-res-usage", cubin))
    return {key: int(value) for key, value in found}


def resources(cubin: Path) -> tuple[int, int]:
    """Registers of a thread, and its bytes of stack and local memory, where spills are."""
    used = usage(cubin)
    return used["REG"], used["STACK"] + used["LOCAL"]


def disassemble(cubin: Path) -> sass.Code:
    """The control flow of a cubin's kernel."""
    return sass.Code(output("nvdisasm", "-c", cubin))


def ring(kernel: str, block_m: int, block_n: int) -> tuple[int, int]:
    """Stages of a tile's ring, as deep as fits, and the shared memory of a CTA with it."""
    family = kernel.split("_")[1]
    group = 2 if kernel.endswith("2cta") else 1
    stages = _native.max_stages(family, block_m, block_n, group)
    return stages, _native.shared_memory_bytes(family, block_m, block_n, group, stages)


def ours(row: Row, cubin: Path, code: sass.Code) -> Kernel:
    """Our kernel on the way that a row's configuration takes."""
    rounds = {role: code.round(row.loops[role], issued) for role, issued in row.issued.items()}
    counts = {role: _count(rounds[role], 1) for role in ("load", "multiply")}
    elements = SPAN_ELEMENTS[row.family]
    if row.family == "sm100":
        counts["epilogue"] = _count(rounds["epilogue"], elements)
    else:
        tile = elements * row.tile[0] // 128 * row.tile[1] // SPAN
        counts["epilogue"] = _count(rounds["epilogue"], tile, without=rounds["multiply"])
    return Kernel("jaxbw", *resources(cubin), ring(row.kernel, *row.tile)[1], counts)


def theirs(who: str, row: Row) -> Kernel:
    """The same tile by another compiler. Each loop has one way, on which all of it is issued."""
    built = compile_other(who, row)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.cubin)
        file.flush()
        code, used = disassemble(Path(file.name)), resources(Path(file.name))
    counts = {}
    for role, patterns in row.loops.items():
        loop = code.loop_with(*patterns)
        opcodes = code.opcodes(loop)
        issued = {
            pattern: sum(n for opcode, n in opcodes.items() if re.fullmatch(pattern, opcode))
            for pattern in (*patterns, "SYNCS.ARRIVE.*")
        }
        work = issued[patterns[0]]
        if role == "epilogue":
            # LDTM.x64: 64 columns of a lane's row.
            [columns] = {int(o.split(".x")[1]) for o in opcodes if o.startswith("LDTM")}
            covers = float(work * columns)
        else:
            # Triton divides the boxes of a block between several warps: counted are those of all.
            covers = work / (row.boxes if role == "load" else MMAS)
        counts[role] = _count(code.rounds(loop, {k: n for k, n in issued.items() if n}), covers)
    return Kernel(TITLES[who], *used, built.dynamic_smem, counts)


def _count(
    paths: tuple[sass.Path, sass.Path], covers: float, without: tuple[sass.Path, ...] = ()
) -> Count:
    """`without`: the rounds of an inner loop, of which one is in the path and is not to count."""
    least, most = (Counter(i.opcode.split(".")[0] for i in path.instructions) for path in paths)
    if without:
        inner = [Counter(i.opcode.split(".")[0] for i in path.instructions) for path in without]
        least, most = least - inner[0], most - inner[1]
    return Count(
        round(least.total() / covers, 3),
        round(most.total() / covers, 3),
        {opcode: round(n / covers, 3) for opcode, n in least.most_common()},
    )


def compile_other(who: str, row: Row) -> Any:
    """A kernel of tests/independent, for a row's configuration."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    module = importlib.import_module(f"tests.independent.{who}_kernels")
    launching = importlib.import_module("tests.independent.launching")
    problem = launching.Problem(
        *(4096, 4096, 4096),
        lhs_transposed=row.layout[0] == "t",
        rhs_transposed=row.layout[1] == "t",
    )
    pair = row.cta_group == 2
    if who == "cute":
        stages = 4 if pair else 3
        return module.compiled(
            problem, row.tile, row.cluster, pair, stages=stages, columns=8, tma_store=True
        )
    block = (*row.tile, 64)
    if who == "triton":
        return module.descriptors(problem, block, specialize=True)
    ctas = row.cluster[0] * row.cluster[1]
    return module.compiled(module.matmul_persistent, problem, block, ctas, stages=4 if pair else 3)
