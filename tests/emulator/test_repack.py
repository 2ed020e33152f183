"""The repack kernels' PTX in the emulator: every element in its place, nothing else touched."""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jaxbw.emulator import Module
from jaxbw.selection import manifest

THREADS = 256
TYPES: dict[str, Any] = {"16bit": np.uint16, "32bit": np.uint32}
FAMILIES = ("sm90", "sm100")


def aligned(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """An array at a multiple of 16 bytes, as all of XLA's are."""
    count = int(np.prod(shape))
    memory = np.empty(count * np.dtype(dtype).itemsize + 16, np.uint8)
    start = -memory.ctypes.data % 16
    end = start + count * np.dtype(dtype).itemsize
    result: npt.NDArray[Any] = memory[start:end].view(dtype).reshape(shape)
    return result


def check(
    family: str, kind: str, batch: int, rows: int, columns: int, transposed: bool, **launch: Any
) -> None:
    """Repacks random bits into a destination [batch, rows, columns] and compares all of it."""
    dtype = TYPES[kind]
    name = f"jaxbw_{family}_repack_{kind}"
    module = Module((manifest.directory() / f"{name}.ptx").read_text(), f"{name}.ptx")
    per_vector = 16 // np.dtype(dtype).itemsize
    pitch = -(-columns // per_vector) * per_vector
    source = aligned((batch, columns, rows) if transposed else (batch, rows, columns), dtype)
    random = np.random.default_rng(rows * columns)
    source[...] = random.integers(0, np.iinfo(dtype).max, source.shape, dtype)
    source.flags.writeable = False
    destination = aligned((batch, rows, pitch), dtype)
    destination[...] = 0xA5A5
    expected = destination.copy()
    expected[:, :, :columns] = source.swapaxes(1, 2) if transposed else source
    # RepackParams in cuda/params.h.
    params = struct.pack(
        "<QQIIIII4x",
        source.ctypes.data,
        destination.ctypes.data,
        *(rows, columns, batch, pitch, transposed),
    )
    report = module.launch(
        name, block=THREADS, args=[params], buffers=[source, destination], **{"grid": 2} | launch
    )
    assert not report.findings
    np.testing.assert_array_equal(destination, expected)


# Rows from one element to several chunks of 512 vectors; every alignment of a row's start.
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("batch", "rows", "columns"),
    [(1, 300, 1), (1, 70, 5), (3, 9, 13), (2, 17, 129), (1, 3, 4101), (1, 16, 255), (2, 1, 7)],
)
def test_a_copy_gets_another_pitch(kind: str, batch: int, rows: int, columns: int) -> None:
    check("sm100", kind, batch, rows, columns, transposed=False)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("batch", "rows", "columns"), [(1, 1, 1), (1, 64, 64), (2, 65, 130), (3, 7, 201), (1, 200, 3)]
)
def test_a_transpose(kind: str, batch: int, rows: int, columns: int) -> None:
    check("sm100", kind, batch, rows, columns, transposed=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", [1, 7, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_any_grid_and_schedule(family: str, grid: int, transposed: bool) -> None:
    check(family, "16bit", 2, 67, 70, transposed, grid=grid, schedule="random", seed=grid)
