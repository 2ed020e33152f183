"""The static report: how instructions are counted, and that the committed page is of these kernels.

After a change of the kernels, `static_report.py --keep-others` writes it anew.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import static_report

from measuring import kernel_counts, sass

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "results" / "static-report.md"
DATA: dict[str, Any] = json.loads(
    (ROOT / "benchmarks" / "results" / "static-report.json").read_text()
)
ROWS, EPILOGUE = kernel_counts.load_table()
WAIT = "SYNCS.PHASECHK.TRANS64.TRYWAIT"


def listing(*lines: str) -> sass.Code:
    """A kernel from lines as nvdisasm prints them: labels, and instructions without addresses."""
    printed, address = [], 0
    for line in lines:
        if line.endswith(":"):
            printed.append(line)
        else:
            printed.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return sass.Code("\n".join(printed))


def lengths(paths: tuple[sass.Path, sass.Path]) -> tuple[int, int]:
    return len(paths[0]), len(paths[1])


def test_an_instruction_is_read_with_its_predicate_and_operands() -> None:
    code = listing("@!P0 LDC.64 R2, c[0x0][0x348]", "EXIT")
    [block] = code.blocks
    first = block.instructions[0]
    assert (first.address, first.guard, first.opcode) == (0, "!P0", "LDC.64")
    assert first.operands == "R2, c[0x0][0x348]"


def test_instructions_under_a_predicate_are_issued() -> None:
    code = listing(".L_0:", "@P1 UTMALDG.3D [UR8], [UR4]", "@!P0 NOP", "@P0 BRA `(.L_0)", "EXIT")
    [loop] = code.loops
    assert lengths(code.rounds(loop, {"UTMALDG.*": 1})) == (3, 3)


SPINNING = {
    # nvcc: a failed try goes to a loop behind the kernel, and from there back.
    "away": [
        *(".L_0:", f"{WAIT} P1, [R2], R3", "NOP", "@!P1 BRA `(.L_8)"),
        *(".L_1:", "UTMALDG.3D [UR8], [UR4]", "@P2 BRA `(.L_0)", "EXIT"),
        *(".L_8:", f"{WAIT} P1, [R2], R3", "@!P1 BRA `(.L_8)", "BRA `(.L_1)"),
    ],
    # A second try in line, over which the first that succeeds jumps.
    "twice": [
        *(".L_0:", f"{WAIT} P1, [R2], R3", "NOP", "@P1 BRA `(.L_1)"),
        *(f"{WAIT} P1, [R2], R3", "@!P1 BRA `(.L_8)"),
        *(".L_1:", "UTMALDG.3D [UR8], [UR4]", "@P2 BRA `(.L_0)", "EXIT"),
        *(".L_8:", f"{WAIT} P1, [R2], R3", "@!P1 NANOSLEEP.SYNCS 0x989680", "@!P1 BRA `(.L_8)"),
        "BRA `(.L_1)",
    ],
    # Spinning in place.
    "tight": [
        *(".L_0:", "NOP", ".L_7:", f"{WAIT} P1, [R2], R3", "@!P1 BRA `(.L_7)"),
        *("UTMALDG.3D [UR8], [UR4]", "@P2 BRA `(.L_0)", "EXIT"),
    ],
}


@pytest.mark.parametrize("lines", SPINNING.values(), ids=SPINNING)
def test_a_wait_is_one_try_that_succeeds(lines: list[str]) -> None:
    code = listing(*lines)
    assert len(code.loops) == 1, "what spins is no loop"
    loop = code.loop_with("UTMALDG.*", WAIT)
    assert lengths(code.rounds(loop, {"UTMALDG.*": 1})) == (5, 5)


def test_the_predicate_of_a_wait_is_followed_to_a_branch_of_a_later_block() -> None:
    """... and not mistaken for one that something else has set since."""
    lines = [".L_0:", f"{WAIT} P1, [R2], R3", "@P3 BRA `(.L_1)", "NOP", "BRA `(.L_1)"]
    tail = [".L_1:", "@P2 BRA `(.L_0)", "EXIT"]
    waits = [*lines[:3], "@!P1 BRA `(.L_9)", *tail, ".L_9:", "BRA `(.L_1)"]
    assert lengths(listing(*waits).rounds(listing(*waits).loops[0], {})) == (3, 4)
    other = [*lines[:3], "ISETP.NE.AND P1, PT, R1, RZ, PT", "@!P1 BRA `(.L_9)", *tail]
    code = listing(*other, ".L_9:", "NOP", "NOP", "BRA `(.L_1)")
    assert lengths(code.rounds(code.loops[0], {})) == (3, 8)


def test_what_an_elected_thread_issues_counts() -> None:
    code = listing(
        *(".L_0:", "ELECT P0, URZ, PT", "@!P0 BRA `(.L_1)", "NOP", "UTCBAR [UR4], URZ"),
        *(".L_1:", "BRA.U UP1, `(.L_0)", "EXIT"),
    )
    assert lengths(code.rounds(code.loops[0], {})) == (5, 5)


def test_a_diverged_warp_is_not_counted() -> None:
    code = listing(
        *(".L_0:", "BRA.DIV UR4, `(.L_9)", "NOP", ".L_1:", "@P0 BRA `(.L_0)", "EXIT"),
        *(".L_9:", "WARPSYNC.COLLECTIVE R4, `(.L_1)", "BRA `(.L_1)"),
    )
    assert lengths(code.rounds(code.loops[0], {})) == (3, 3)


# A loop that loads an operand in one box or in several, with multicast or without.
LOADS = [
    *(".L_0:", f"{WAIT} P1, [R2], R3", "@!P1 BRA `(.L_9)"),
    *("BRA.U !UP0, `(.L_1)", "NOP", "UTMALDG.3D.MULTICAST [UR8], [UR4], UR6", "BRA `(.L_2)"),
    *(".L_1:", "UTMALDG.3D [UR8], [UR4]"),
    *(".L_2:", "NOP", "NOP", "UTMALDG.3D [UR8], [UR4]", "@P3 BRA `(.L_2)"),
    *("@P2 BRA `(.L_0)", "EXIT", ".L_9:", "BRA `(.L_9)"),
]


@pytest.mark.parametrize(
    ("issued", "count"),
    [
        ({"UTMALDG.*": 2, "UTMALDG.*MULTICAST": 0}, 3 + 1 + 4 + 1),
        ({"UTMALDG.*": 2, "UTMALDG.*MULTICAST": 1}, 3 + 3 + 4 + 1),
        ({"UTMALDG.*": 4, "UTMALDG.*MULTICAST": 0}, 3 + 1 + 3 * 4 + 1),
    ],
)
def test_a_configuration_is_named_by_what_it_issues(issued: dict[str, int], count: int) -> None:
    code = listing(*LOADS)
    assert len(code.loops) == 2, "over blocks of K, and over boxes"
    assert lengths(code.round(("UTMALDG.*", WAIT), issued)) == (count, count)


def test_what_is_left_open_is_a_range() -> None:
    code = listing(*LOADS)
    assert lengths(code.round(("UTMALDG.*", WAIT), {"UTMALDG.*": 2})) == (9, 11)


def test_impossible_counts_are_an_error() -> None:
    code = listing(*LOADS)
    with pytest.raises(ValueError, match=r"1 loops have all of .*, none issues"):
        code.round(("UTMALDG.*", WAIT), {"UTMALDG.*": 1})
    with pytest.raises(ValueError, match=r"no loop has all of LDTM"):
        code.loop_with("LDTM.*")


def test_an_indirect_branch_goes_where_the_listing_says() -> None:
    code = listing(
        *(".L_0:", 'BRX R2 -0x10 (*"BRANCH_TARGETS .L_1,.L_2"*)', ".L_1:", "NOP"),
        *(".L_2:", "@P0 BRA `(.L_0)", "EXIT"),
    )
    assert lengths(code.rounds(code.loops[0], {})) == (2, 3)


def test_an_inner_loop_that_is_not_counted_is_an_error() -> None:
    code = listing(
        *(".L_0:", "NOP", ".L_1:", "UTMALDG.3D [UR8], [UR4]", ".L_2:", "NOP", "@P3 BRA `(.L_2)"),
        *("@P2 BRA `(.L_0)", "EXIT"),
    )
    outer = code.loop_with("UTMALDG.*")
    with pytest.raises(ValueError, match=r"an inner loop \(at 0x20\) issues nothing"):
        code.rounds(outer, {"UTMALDG.*": 1})


def test_a_round_of_a_counted_inner_loop_issues_something() -> None:
    """A loop that may skip what it is there for is passed as often as it issues that."""
    inner = [".L_1:", "@P1 BRA `(.L_2)", "UTMASTG.3D [UR8], [UR4]", ".L_2:", "@P3 BRA `(.L_1)"]
    code = listing(".L_0:", "NOP", *inner, "@P2 BRA `(.L_0)", "EXIT")
    outer = code.loops[-1]
    assert lengths(code.rounds(outer, {"UTMASTG.*": 2})) == (1 + 2 * 3 + 1,) * 2


def plain(kernel: kernel_counts.Kernel) -> Any:
    return json.loads(json.dumps(asdict(kernel)))


def test_the_committed_page_is_the_committed_data() -> None:
    assert PAGE.read_text() == static_report.markdown(DATA)


def test_the_committed_table_has_the_built_instances() -> None:
    entries = {entry["name"]: entry for entry in static_report.gemm_entries()}
    assert [i["name"] for i in DATA["instances"]] == list(entries)
    for i in DATA["instances"]:
        row = kernel_counts.instance(entries[i["name"]], EPILOGUE)
        stages, shared = kernel_counts.ring(row.kernel, *row.tile)
        assert (i["registers"], i["spills"]) == (entries[i["name"]]["registers"], 0)
        assert (i["stages"], i["shared"]) == (stages, shared)


# Every instance of sm100, and of sm90 the widest tile.
COUNTED = [i for i in DATA["instances"] if "sm100" in i["name"] or "bf16_nn_64x256" in i["name"]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [i["name"] for i in COUNTED])
def test_the_committed_counts_are_those_of_the_built_kernel(name: str, kernel_dir: Path) -> None:
    cubin = kernel_dir / f"{name}.cubin"
    code = kernel_counts.disassemble(cubin)
    [entry] = [entry for entry in static_report.gemm_entries() if entry["name"] == name]
    [committed] = [i for i in DATA["instances"] if i["name"] == name]
    built = plain(kernel_counts.ours(kernel_counts.instance(entry, EPILOGUE), cubin, code))
    assert built == {key: committed[key] for key in built}
    for row, comparison in zip(ROWS, DATA["comparisons"], strict=True):
        assert (comparison["name"], comparison["why"]) == (row.name, row.why)
        if row.kernel == name:
            assert comparison["kernels"][0] == plain(kernel_counts.ours(row, cubin, code))


def test_each_count_above_the_least_is_explained() -> None:
    assert static_report.unexplained(DATA) == []


def test_each_row_is_compared_with_another_compiler() -> None:
    assert all(len(comparison["kernels"]) > 1 for comparison in DATA["comparisons"])


def test_a_count_above_the_least_is_noticed() -> None:
    def kernel(who: str, load: float) -> dict[str, Any]:
        return {"who": who, "counts": {"load": {"least": load - 1, "most": load, "opcodes": {}}}}

    row = {
        "name": "row",
        "why": {},
        "kernels": [kernel("jaxbw", 9), kernel("a", 9), kernel("b", 8)],
    }
    assert static_report.excess(row) == {"load": (2, "b")}
    assert static_report.unexplained({"comparisons": [row]}) == ["row: load"]
    row["why"] = {"load": "a reason"}
    assert static_report.unexplained({"comparisons": [row]}) == []
