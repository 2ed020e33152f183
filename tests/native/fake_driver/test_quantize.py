"""The custom call that quantizes: what it loads and launches. The emulator has what it computes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ...alignment import aligned
from . import xla
from .conftest import FakeDriver

TARGET = "jaxbw_quantize_v1"
KERNEL = "jaxbw_sm90_quantize_bf16"
GROUPS, AMAX, DATA, BOTH = range(4)  # QuantizePass


def arrays(shape: tuple[int, ...], workspace: int = 0) -> tuple[Any, list[Any]]:
    """x and the results."""
    e4m3 = ml_dtypes.float8_e4m3fn
    results = [aligned(shape, e4m3), aligned(shape[:1], np.float32)]
    if len(shape) == 4:
        results.append(aligned((*shape[:2], shape[3], shape[2]), e4m3))
    if workspace:
        results.append(aligned((workspace,), np.uint8))
    return aligned(shape, ml_dtypes.bfloat16), results


def execute(shape: tuple[int, ...], workspace: int = 0) -> tuple[Any, list[Any]]:
    x, results = arrays(shape, workspace)
    xla.Program({"kernel": KERNEL}, TARGET).run("execute", [x], results, stream=0x1230)
    return x, results


def test_a_kernel_is_loaded_once_and_before(fake: FakeDriver) -> None:
    for _ in range(2):
        xla.Program({"kernel": KERNEL}, TARGET).run("initialize")
    assert len(fake.calls("cuLibraryLoadFromFile")) == len(fake.calls("cuKernelGetFunction")) == 1
    fake.log.unlink()
    execute((4, 64))
    asked = {line.split('"')[3] for line in fake.log.read_text().splitlines()}
    assert asked == {"cuLaunchKernelEx"}  # what a CUDA graph can capture
    assert [xla.traits(stage, TARGET) for stage in ("initialize", "execute")] == [0, 1]


@pytest.mark.parametrize(
    ("shape", "workspace", "passes"),
    [
        ((100, 64), 0, [GROUPS]),
        ((1, 100_000), 7 * 4, [AMAX, DATA]),
        ((2, 1, 40, 24), 2 * 4, [AMAX, BOTH]),
    ],
)
def test_launches(
    fake: FakeDriver, shape: tuple[int, ...], workspace: int, passes: list[int]
) -> None:
    x, results = execute(shape, workspace)
    launches = fake.calls("cuLaunchKernelEx")
    assert [call["pass"] for call in launches] == passes
    # The second one waits on the device for the first.
    assert [call["overlaps"] for call in launches] == [0, 1][: len(passes)]
    assert {(call["kernel"], call["stream"]) for call in launches} == {(KERNEL, 0x1230)}
    assert all(call["block"] == [256] and call["grid"][0] > 0 for call in launches)
    data, scale, *rest = (array.ctypes.data for array in results)
    transposed = rest.pop(0) if len(shape) == 4 else 0
    wanted = [x.ctypes.data, data, scale, transposed, rest.pop(0) if rest else 0]
    assert all(call["addresses"] == wanted for call in launches)


def test_what_is_refused(fake: FakeDriver) -> None:
    x, results = arrays((4, 64))
    program = xla.Program({"kernel": KERNEL}, TARGET)
    off = aligned((4, 64), results[0].dtype, past=1)
    with pytest.raises(xla.FfiError, match=f"{TARGET}: data is at address .*multiple of 16"):
        program.run("execute", [x], [off, results[1]])
    x, results = arrays((1, 1, 8, 6), 4)
    with pytest.raises(xla.FfiError, match="rows and columns are multiples of 4"):
        program.run("execute", [x], results)
    other = xla.Program({"kernel": "jaxbw_sm100_quantize_bf16"}, TARGET)
    with pytest.raises(xla.FfiError, match="compute capability"):
        other.run("initialize")
    assert not fake.calls("cuLaunchKernelEx")
