"""The custom call that quantizes to blocks: what it loads and launches."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ...alignment import aligned
from . import xla
from .conftest import FakeDriver

TARGET = "jaxbw_quantize_blocks_v1"
KERNEL = "jaxbw_sm90_quantize_blocks_bf16"
NUMBERS = {"columns": 2, "rows": 0, "square": 0}


def arrays(matrices: int, rows: int, columns: int) -> tuple[Any, Any, Any]:
    """x, and what it is in MXFP8 in either direction."""
    made: list[Any] = []
    for others, k in ((rows, columns), (columns, rows)):
        data = aligned((matrices, others, -(-k // 32) * 32), ml_dtypes.float8_e4m3fn)
        made.append([data, aligned((matrices, -(-others // 128), -(-k // 128), 512), np.uint8)])
    return aligned((matrices, rows, columns), ml_dtypes.bfloat16), *made


def program(**numbers: int) -> xla.Program:
    return xla.Program({"kernel": KERNEL, **NUMBERS, **numbers}, TARGET)


def test_a_kernel_is_loaded_once_and_before(fake: FakeDriver) -> None:
    for _ in range(2):
        program().run("initialize")
    assert len(fake.calls("cuLibraryLoadFromFile")) == len(fake.calls("cuKernelGetFunction")) == 1
    fake.log.unlink()
    x, along, _ = arrays(1, 4, 64)
    program().run("execute", [x], along)
    asked = {line.split('"')[3] for line in fake.log.read_text().splitlines()}
    assert asked == {"cuLaunchKernelEx"}  # what a CUDA graph can capture
    assert [xla.traits(stage, TARGET) for stage in ("initialize", "execute")] == [0, 1]


@pytest.mark.parametrize(
    ("columns", "rows", "square"), [(2, 0, 0), (0, 2, 0), (2, 2, 0), (1, 2, 1), (2, 1, 1)]
)
def test_launches(fake: FakeDriver, columns: int, rows: int, square: int) -> None:
    """A block for each tile, and the address of all that is wanted."""
    x, along, down = arrays(3, 300, 130)
    wanted = [pair[2 - count :] for pair, count in ((along, columns), (down, rows))]
    program(columns=columns, rows=rows, square=square).run(
        "execute", [x], [*wanted[0], *wanted[1]], stream=0x1230
    )
    (call,) = fake.calls("cuLaunchKernelEx")
    assert (call["kernel"], call["stream"]) == (KERNEL, 0x1230)
    assert (call["grid"], call["block"]) == ([3 * 3 * 2], [512])
    assert call["numbers"] == [300, 130, 2, 6, 0, square, 8]
    addresses = [[0] * (2 - len(each)) + [a.ctypes.data for a in each] for each in wanted]
    assert call["addresses"] == [x.ctypes.data, 0, *addresses[0], *addresses[1]]


def test_what_is_refused(fake: FakeDriver) -> None:
    x, (data, scale), _ = arrays(1, 4, 64)
    off = aligned(data.shape, data.dtype, past=1)
    with pytest.raises(xla.FfiError, match=f"{TARGET}: data is at address .*multiple of 16"):
        program().run("execute", [x], [off, scale])
    with pytest.raises(xla.FfiError, match="scale has another dtype"):
        program().run("execute", [x], [data, scale.view(ml_dtypes.float8_e4m3fn)])
    other = xla.Program({"kernel": "jaxbw_sm100_quantize_blocks_bf16", **NUMBERS}, TARGET)
    with pytest.raises(xla.FfiError, match="compute capability"):
        other.run("initialize")
    assert not fake.calls("cuLaunchKernelEx")
