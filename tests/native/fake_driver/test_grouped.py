"""The custom call of a grouped matmul: what it launches. The emulator has what it computes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxbw import _native
from jaxbw._native import DataType, Grouped, Major, Plan, Problem
from jaxbw._src.selection.config import GemmConfig

from ...alignment import aligned
from . import xla
from .conftest import FakeDriver

BF16 = ml_dtypes.bfloat16
DEVICES = {"sm90": 0, "sm100": 1}  # of the fake driver
ROWS: dict[str, Any] = dict(m=1000, n=264, k=136, grouped=Grouped.ROWS)
CONTRACTION: dict[str, Any] = dict(
    m=136, n=264, k=1000, lhs_major=Major.MN, grouped=Grouped.CONTRACTION
)


def planned(problem: dict[str, Any], family: str = "sm90", **config: Any) -> Plan:
    sizes = {"batch": 2, "groups": 3, "total_groups": 5}
    given = Problem(**sizes | {"output": DataType.F32} | problem)
    plan = _native.plan(family, given, GemmConfig(128, 128, stages=3, **config), resident=132)
    assert isinstance(plan, Plan), str(plan)
    return plan


def operands(shapes: list[tuple[int, ...]]) -> list[Any]:
    return [aligned(shape, BF16) for shape in shapes] + [
        aligned((2, 5), np.int32),
        aligned((), np.int32),
    ]


@pytest.mark.parametrize("family", ["sm90", "sm100"])
@pytest.mark.parametrize(
    ("problem", "lhs", "rhs", "result", "ranks"),
    [
        (ROWS, (2, 1000, 136), (2, 3, 136, 264), (2, 1000, 264), [4, 3, 4]),
        (CONTRACTION, (2, 1000, 136), (2, 1000, 264), (2, 3, 136, 264), [4, 4, 3]),
    ],
    ids=["rows", "contraction"],
)
def test_two_launches(
    fake: FakeDriver,
    family: str,
    problem: dict[str, Any],
    lhs: Any,
    rhs: Any,
    result: Any,
    ranks: list[int],
) -> None:
    plan, of_table = planned(problem, family), f"jaxbw_{family}_group_table_s32"
    program = xla.Program(plan.attributes)
    program.run("initialize", device=(device := DEVICES[family]))
    loaded = [call["path"].rsplit("/", 1)[1] for call in fake.calls("cuLibraryLoadFromFile")]
    assert {f"{of_table}.cubin", f"{plan.kernel}.cubin"} <= set(loaded)
    fake.log.unlink()
    results = [aligned(result, np.float32), aligned((plan.workspace_bytes,), np.uint8)]
    program.run("execute", operands([lhs, rhs]), results, device=device, stream=0x1230)
    asked = {line.split('"')[3] for line in fake.log.read_text().splitlines()}
    assert asked == {"cuTensorMapEncodeTiled", "cuLaunchKernelEx"}  # all that may be captured
    table, matmul = fake.calls("cuLaunchKernelEx")
    assert (table["kernel"], matmul["kernel"]) == (of_table, plan.kernel)
    assert (table["grid"], table["block"], table["groups"]) == ([1], [512], [2, 5, 3, 1000, 128])
    # The matmul starts beside it, and waits on the device.
    assert (table["overlaps"], matmul["overlaps"]) == (0, 1)
    assert table["stream"] == matmul["stream"] == 0x1230
    maps = fake.calls("cuTensorMapEncodeTiled")
    assert [each["rank"] for each in maps] == ranks
    ragged = maps[0]
    assert ragged["dims"] == [136, 2**30, 2**31 - 1, 2**31 - 1]
    assert ragged["strides"] == [272, 2**34 - 272, 272]


def test_parts_have_counters(fake: FakeDriver) -> None:
    plan = planned(CONTRACTION, split_k=2, split_tail=True)
    assert plan.counters == 6 * 8  # tiles, of warps
    program = xla.Program(plan.attributes)
    arrays = operands([(2, 1000, 136), (2, 1000, 264)])
    results = [aligned((2, 3, 136, 264), np.float32), aligned((plan.workspace_bytes,), np.uint8)]
    program.run("initialize")
    assert [call["bytes"] for call in fake.calls("cuMemAlloc")] == [4 * plan.counters]
    fake.log.unlink()
    program.run("execute", arrays, results)
    assert not fake.calls("cuMemsetD32Async")
    _, matmul = fake.calls("cuLaunchKernelEx")
    assert matmul["work"] == [30, 2, 42]  # whole tiles, parts of each other one, items
    assert matmul["counters"] != 0


def test_gathered_rows(fake: FakeDriver) -> None:
    """Of lhs there is no tensor map, and as many rows of the result as indices."""
    plan = planned(ROWS | {"batch": 1, "source_rows": 70})
    program = xla.Program(plan.attributes)
    results = [aligned((1, 1000, 264), np.float32), aligned((plan.workspace_bytes,), np.uint8)]
    lhs, rhs = aligned((1, 70, 136), BF16), aligned((1, 3, 136, 264), BF16)
    rows, sizes = aligned((1000,), np.int32), aligned((1, 5), np.int32)
    given = [lhs, rhs, rows, sizes, aligned((), np.int32)]
    program.run("execute", given, results)
    table, matmul = fake.calls("cuLaunchKernelEx")
    assert table["kernel"] == "jaxbw_sm90_group_table_s32"
    assert matmul["kernel"] == "jaxbw_sm90_gathered_bf16_nn_64x128"
    assert [each["rank"] for each in fake.calls("cuTensorMapEncodeTiled")] == [3, 4]
    for wrong in (rows[:, None], rows.view(np.float32)):
        with pytest.raises(xla.FfiError, match=r"a grouped call has|lhs_rows has another dtype"):
            program.run("execute", [lhs, rhs, wrong, *given[3:]], results)


def test_what_is_refused(fake: FakeDriver) -> None:
    plan = planned(ROWS)
    program = xla.Program(plan.attributes)
    results = [aligned((2, 1000, 264), np.float32), aligned((plan.workspace_bytes,), np.uint8)]
    lhs, rhs, sizes, offset = operands([(2, 1000, 136), (2, 3, 136, 264)])
    for given, message in (
        ([lhs, rhs, sizes], "has lhs, rhs, group_sizes and group_offset"),
        ([lhs, rhs, sizes.view(np.float32), offset], "group_sizes has another dtype"),
        ([lhs, rhs, sizes, aligned((1,), np.int32)], "of ranks 3, 4, 2 and 0"),
        ([lhs[:, :, :128], rhs, sizes, offset], r"rhs is \[2,3,136,264\]; here it is"),
        ([lhs, rhs[0], sizes, offset], "of ranks 3, 4, 2 and 0"),
    ):
        with pytest.raises(xla.FfiError, match=message):
            program.run("execute", given, results)
    assert not fake.calls("cuLaunchKernelEx")


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        ("sm90", "jaxbw_sm90_grouped_8bit_nt_64x128"),
        ("sm100", "jaxbw_sm100_grouped_8bit_1cta"),
    ],
)
def test_float8(fake: FakeDriver, family: str, kernel: str) -> None:
    """Operands of two types, scales behind them, and maps of bytes."""
    narrow: dict[str, Any] = dict(lhs=DataType.E4M3, rhs=DataType.E5M2, rhs_major=Major.K)
    scaled = dict(lhs_scale=True, rhs_scale=True)
    plan, device = planned(ROWS | {"k": 144} | narrow | scaled, family), DEVICES[family]
    program = xla.Program(plan.attributes)
    results = [aligned((2, 1000, 264), np.float32), aligned((plan.workspace_bytes,), np.uint8)]
    lhs = aligned((2, 1000, 144), ml_dtypes.float8_e4m3fn)
    rhs = aligned((2, 3, 264, 144), ml_dtypes.float8_e5m2)
    of_rows, of_columns = aligned((2, 1000), np.float32), aligned((2, 3, 264), np.float32)
    *_, sizes, offset = operands([])
    given = [lhs, rhs, of_rows, of_columns, sizes, offset]
    program.run("execute", given, results, device=device)
    _, matmul = fake.calls("cuLaunchKernelEx")
    assert matmul["kernel"] == plan.kernel == kernel
    assert fake.calls("cuTensorMapEncodeTiled")[0]["strides"] == [144, 2**34 - 144, 144]
    for given, message in (
        ([lhs, rhs, sizes, offset], "a grouped call has"),
        ([lhs, rhs, of_rows, of_columns[:, 0], sizes, offset], r"rhs_scale is \[2,264\]; here it"),
        ([lhs, rhs.view(np.uint8), of_rows, of_columns, sizes, offset], "or 8 bits each"),
    ):
        with pytest.raises(xla.FfiError, match=message):
            program.run("execute", given, results, device=device)


def test_block_scaled(fake: FakeDriver) -> None:
    """Scales lie in a tile for each that the table may list, and in those of each matrix."""
    blocks: dict[str, Any] = dict(lhs=DataType.E4M3, rhs=DataType.E4M3, rhs_major=Major.K, mx=32)
    plan = planned(ROWS | {"batch": 1, "k": 144} | blocks, "sm100")
    assert (plan.kernel, plan.tiles_m) == ("jaxbw_sm100_grouped_8bit_mx_1cta", 13)
    program = xla.Program(plan.attributes)
    results = [aligned((1, 1000, 264), np.float32), aligned((plan.workspace_bytes,), np.uint8)]
    lhs = aligned((1, 1000, 144), ml_dtypes.float8_e4m3fn)
    rhs = aligned((3, 264, 144), ml_dtypes.float8_e4m3fn)[None]
    of_rows, of_columns = aligned((1, 13, 2, 512), np.uint8), aligned((3, 3, 2, 512), np.uint8)
    sizes, offset = aligned((1, 5), np.int32), aligned((), np.int32)
    given = [lhs, rhs, of_rows, of_columns, sizes, offset]
    program.run("execute", given, results, device=DEVICES["sm100"])
    _, matmul = fake.calls("cuLaunchKernelEx")
    assert matmul["kernel"] == plan.kernel
    maps = fake.calls("cuTensorMapEncodeTiled")
    assert [each["rank"] for each in maps] == [4, 3, 4, 3, 3]
    assert [each["dims"] for each in maps[3:]] == [[256, 2, 13], [256, 2, 9]]
    given[2] = aligned((1, 8, 2, 512), np.uint8)  # of rows without groups
    with pytest.raises(
        xla.FfiError, match=r"lhs_tiles is \[1,8,2,512\]; here it is \[1,13,2,512\]"
    ):
        program.run("execute", given, results, device=DEVICES["sm100"])
