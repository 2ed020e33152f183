"""The shipped kernels: complete, free of spills, made of the instructions they are meant to use.

For Blackwell, of which no GPU is at hand, the disassembly is the only evidence of the machine code.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toolchain
from generate import source

from jaxbw._src.selection import kernel_table

ROOT = Path(__file__).resolve().parents[2]
TABLE = kernel_table.load(ROOT / "cuda" / "kernels.toml")
BY_NAME = {kernel.name: kernel for kernel in TABLE}
ALL = list(BY_NAME)
OF_HOPPER = [k for k in TABLE if k.family == "sm90" and k.role in kernel_table.MATMULS]
HOPPER = [k.name for k in OF_HOPPER if k.role != "skinny"]
SKINNY = [k.name for k in OF_HOPPER if k.role == "skinny"]

Opcodes = Callable[[Path], Counter[str]]


def matching(counts: Counter[str], pattern: str) -> set[str]:
    return {opcode for opcode in counts if re.fullmatch(pattern, opcode)}


def test_the_manifest_is_the_table(manifest: dict[str, Any]) -> None:
    assert manifest["version"] == 3
    assert tuple(map(kernel_table.Kernel.from_json, manifest["kernels"])) == TABLE


def test_no_file_is_missing_or_left_over(kernel_dir: Path) -> None:
    ptx = {f"{kernel.source_name}.ptx" for kernel in TABLE}
    expected = {f"{name}.cubin" for name in ALL} | ptx | {"manifest.json"}
    assert {path.name for path in kernel_dir.iterdir()} == expected


def test_ptxas_reported_no_spill(manifest: dict[str, Any]) -> None:
    assert {entry["name"]: entry["spill_bytes"] for entry in manifest["kernels"]} == dict.fromkeys(
        ALL, 0
    )


@pytest.mark.parametrize("name", HOPPER)
def test_hopper_moves_no_more_registers_than_it_was_launched_with(
    name: str, kernel_dir: Path, resource_usage: Callable[[Path], dict[str, int]]
) -> None:
    """32 + 2 * 240 registers fit the register file, but not what 384 threads start with.

    Every launch hung on the H200: the multiplying warps waited for registers that nobody returned.
    The emulator has no register file, and did not see it.
    """
    ptx = (kernel_dir / f"{BY_NAME[name].source_name}.ptx").read_text()
    [returned] = map(int, re.findall(r"setmaxnreg\.dec\S* (\d+)", ptx))
    [taken] = map(int, re.findall(r"setmaxnreg\.inc\S* (\d+)", ptx))
    launched = resource_usage(kernel_dir / f"{name}.cubin")["REG"]
    assert returned + 2 * taken <= 3 * launched


@pytest.mark.parametrize("name", ALL)
def test_the_cubin_uses_no_local_memory(
    name: str,
    kernel_dir: Path,
    manifest: dict[str, Any],
    resource_usage: Callable[[Path], dict[str, int]],
) -> None:
    cubin = kernel_dir / f"{name}.cubin"
    usage = resource_usage(cubin)
    assert (usage["STACK"], usage["LOCAL"]) == (0, 0)
    [entry] = [entry for entry in manifest["kernels"] if entry["name"] == name]
    assert usage["REG"] == entry["registers"]


@pytest.mark.sampled(12)  # disassembly takes most of a second
@pytest.mark.parametrize("name", ALL)
def test_instructions(name: str, kernel_dir: Path, opcodes: Opcodes) -> None:
    counts = opcodes(kernel_dir / f"{name}.cubin")
    assert not matching(counts, r"(LDL|STL)(\..*)?")
    if name in HOPPER:
        assert_hopper_instructions(name, counts)
    if name in SKINNY:
        assert matching(counts, r"HMMA.*") == {
            f"HMMA.16816.F32{'.BF16' if '_bf16_' in name else ''}"
        }
        assert matching(counts, r"LDGSTS.*") == {"LDGSTS.E.BYPASS.LTC128B.128.ZFILL"}
        assert bool(matching(counts, r"LDSM.*MT88.*")) == ("_nn_" in name)
        assert not matching(counts, r"(UTMA|HGMMA|MEMBAR).*")


def assert_hopper_instructions(name: str, counts: Counter[str]) -> None:
    kernel = BY_NAME[name]
    width = f"64x{kernel.block_n}"
    if kernel.input.startswith("8bit"):
        mixes = [f"{a}.{b}" for a in ("E4M3", "E5M2") for b in ("E4M3", "E5M2")]
        assert matching(counts, r"QGMMA\..*") == {f"QGMMA.{width}x32.F32.{mix}" for mix in mixes}
    else:
        mma = {"bf16": "x16.F32.BF16", "f16": "x16.F32", "tf32": "x8.F32.TF32"}[kernel.input]
        assert matching(counts, r"HGMMA\..*") == {f"HGMMA.{width}{mma}"}
    # Arrays whose rows are grouped have tensor maps of rank 4; instances are pruned of the others.
    loads, store = {"3D", "3D.MULTICAST"}, "3D"
    if kernel.role == "grouped":
        loads, store = ({"4D"}, "3D") if kernel.layout == "tn" else ({"3D", "4D"}, "4D")
    if kernel.role == "gathered":  # B alone comes by TMA, A by copies
        loads, store = {"3D"}, "4D"
    copies = {"LDGSTS.E.BYPASS.LTC128B.128"} if kernel.role == "gathered" else set()
    assert matching(counts, r"LDGSTS.*") == copies
    assert matching(counts, r"UTMALDG.*") == {f"UTMALDG.{load}" for load in loads}
    assert matching(counts, r"UTMASTG.*") == {f"UTMASTG.{store}"}
    adds_to_c = kernel.role == "grouped" and kernel.layout == "tn"
    assert len(matching(counts, r"UTMAREDG\.3D\.ADD")) == adds_to_c
    assert matching(counts, r"STSM\.16\..*")


def test_blackwell_pair_instructions(kernel_dir: Path, opcodes: Opcodes) -> None:
    counts = opcodes(kernel_dir / "jaxbw_sm100_16bit_2cta.cubin")
    assert matching(counts, r"UTCHMMA.*") == {"UTCHMMA.2CTA"}
    assert matching(counts, r"UTMALDG.*") == {"UTMALDG.3D.2CTA", "UTMALDG.3D.MULTICAST.2CTA"}
    assert matching(counts, r"UTCBAR.*") == {"UTCBAR.2CTA.MULTICAST"}
    assert_common_blackwell_instructions(counts)


def test_blackwell_single_cta_instructions(kernel_dir: Path, opcodes: Opcodes) -> None:
    counts = opcodes(kernel_dir / "jaxbw_sm100_16bit_1cta.cubin")
    assert matching(counts, r"UTCHMMA.*") == {"UTCHMMA"}
    assert matching(counts, r"UTMALDG.*") == {"UTMALDG.3D", "UTMALDG.3D.MULTICAST"}
    assert not matching(counts, r".*2CTA.*")
    assert_common_blackwell_instructions(counts)


def test_blackwell_grouped_instructions(kernel_dir: Path, opcodes: Opcodes) -> None:
    """Rows and a contraction of groups, results beside them and sums; items at fixed distances."""
    counts = opcodes(kernel_dir / "jaxbw_sm100_grouped_16bit_1cta.cubin")
    assert matching(counts, r"UTCHMMA.*") == {"UTCHMMA"}
    assert matching(counts, r"UTMALDG.*") == {"UTMALDG.3D", "UTMALDG.4D"}
    assert matching(counts, r"UTMASTG.*") == {"UTMASTG.3D", "UTMASTG.4D"}
    assert len(matching(counts, r"UTMAREDG\.3D\.ADD")) == 1
    assert not matching(counts, r"UGETNEXTWORKID.*")
    counts = opcodes(kernel_dir / "jaxbw_sm100_grouped_16bit_2cta.cubin")
    assert matching(counts, r"UTCHMMA.*") == {"UTCHMMA.2CTA"}
    assert matching(counts, r"UTMALDG.*") == {"UTMALDG.3D.2CTA", "UTMALDG.4D.2CTA"}
    counts = opcodes(kernel_dir / "jaxbw_sm100_gathered_16bit_1cta.cubin")
    assert matching(counts, r"UTMALDG.*") == {"UTMALDG.2D.GATHER4", "UTMALDG.3D"}
    for bits, mmas in (("8", ("UTCQMMA{}",)), ("4", ("UTCOMMA{}", "UTCOMMA{}.4X"))):
        counts = opcodes(kernel_dir / f"jaxbw_sm100_grouped_{bits}bit_mx_1cta.cubin")
        assert matching(counts, r"UTC.MMA.*") == {mma.format("") for mma in mmas}
        assert matching(counts, r"UTCCP.*") == {"UTCCP.T.S.4x32dp128bit"}
        assert matching(counts, r"UTMALDG.*") == {"UTMALDG.3D", "UTMALDG.4D"}
        assert matching(counts, r"UTMASTG.*") == {"UTMASTG.4D"}  # of rows alone
        counts = opcodes(kernel_dir / f"jaxbw_sm100_grouped_{bits}bit_mx_2cta.cubin")
        assert matching(counts, r"UTC.MMA.*") == {mma.format(".2CTA") for mma in mmas}
        assert matching(counts, r"UTMALDG.*") == {"UTMALDG.3D.2CTA", "UTMALDG.4D.2CTA"}


@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_quantize_instructions(family: str, kernel_dir: Path, opcodes: Opcodes) -> None:
    """Four blocks on an SM; vectors, packed maxima, and conversions in hardware."""
    name = f"jaxbw_{family}_quantize_bf16"
    counts = opcodes(kernel_dir / f"{name}.cubin")
    for pattern in (r"LDG.*\.128.*", r"V?I?MNMX3?\.S16x2.*", r"F2FP\.SATFINITE\.E[45]M[32]\..*"):
        assert matching(counts, pattern), pattern


@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_instructions_that_quantize_to_blocks(
    family: str, kernel_dir: Path, opcodes: Opcodes
) -> None:
    """Conversions in hardware: to e2m1, too, where there is one."""
    counts = opcodes(kernel_dir / f"jaxbw_{family}_quantize_blocks_bf16.cubin")
    for pattern in (r"LDG.*\.64.*", r"V?I?MNMX3?\.S16x2.*", r"F2FP\.SATFINITE\.E[45]M[32]\..*"):
        assert matching(counts, pattern), pattern
    assert bool(matching(counts, r"F2FP\.SATFINITE\.E2M1\..*")) == (family == "sm100")


def assert_common_blackwell_instructions(counts: Counter[str]) -> None:
    assert matching(counts, r"LDTM\..*"), "accumulators are read from tensor memory"
    assert matching(counts, r"UTMASTG\.3D"), "D is written by TMA"
    assert matching(counts, r"UGETNEXTWORKID.*"), "work is handed out by CLC"
    assert not matching(counts, r"[HI]MMA.*"), "no matmul is left to the old tensor-core path"


# nvcc takes ten seconds and more for a GEMM.
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (BY_NAME[name].role == "gemm"))
        for name in ALL
        if "sm100" in name
    ],
)
def test_the_family_target_costs_nothing(
    name: str, root: Path, kernel_dir: Path, tmp_path: Path, opcodes: Opcodes
) -> None:
    """Built for sm_100a, an instance has the instructions of the one that ships, for sm_100f."""
    tools = toolchain.find()
    cu, ptx, cubin = (tmp_path / f"{name}.{kind}" for kind in ("cu", "ptx", "cubin"))
    cu.write_text(source(BY_NAME[name]))
    flags = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{root / 'cuda'}"]
    toolchain.output(tools.nvcc, "-ptx", "-arch=compute_100a", *flags, "-o", ptx, cu)
    toolchain.output(tools.ptxas, "-O3", "-arch=sm_100a", ptx, "-o", cubin)
    assert opcodes(cubin) == opcodes(kernel_dir / f"{name}.cubin")
