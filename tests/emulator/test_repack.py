"""The repack kernels' PTX in the emulator: every element in its place, nothing else touched."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from jaxbw._src.selection import manifest
from jaxbw.emulator import Module

from ..alignment import aligned

THREADS = 256
IN_FLIGHT = 3  # kRepackInFlight
TYPES: dict[str, Any] = {"16bit": np.uint16, "32bit": np.uint32}
FAMILIES = ("sm90", "sm100")


def check(
    family: str, kind: str, batch: int, rows: int, columns: int, transposed: bool, **launch: Any
) -> None:
    """Repacks random bits into a destination [batch, rows, columns] and compares all of it."""
    check_all(family, kind, [Copy(batch, rows, columns, transposed)], **launch)


@dataclass(frozen=True)
class Copy:
    batch: int
    rows: int
    columns: int
    transposed: bool = False

    def pieces(self, itemsize: int) -> int:
        """repack_pieces() of cuda/gemm/repack.h."""
        if self.transposed:
            return self.batch * -(-self.rows // 64) * -(-self.columns // 64)
        vectors = -(-self.columns * itemsize // 16)
        lanes = min(32, 1 << (-(-vectors // IN_FLIGHT) - 1).bit_length())
        rows_of_a_piece = THREADS // lanes
        chunks = -(-vectors // (lanes * IN_FLIGHT))
        return -(-self.batch * self.rows // rows_of_a_piece) * chunks


def check_all(family: str, kind: str, copies: Sequence[Copy], **launch: Any) -> None:
    """One launch for all copies. What lies behind a row, in its last 16 bytes, is undefined."""
    dtype = TYPES[kind]
    name = f"jaxbw_{family}_repack_{kind}"
    module = Module((manifest.directory() / f"{name}.ptx").read_text(), f"{name}.ptx")
    per_vector = 16 // np.dtype(dtype).itemsize
    params, buffers, expected = b"", [], []
    for copy in copies:
        batch, rows, columns = copy.batch, copy.rows, copy.columns
        written = -(-columns // per_vector) * per_vector
        pitch = written + per_vector
        shape = (batch, columns, rows) if copy.transposed else (batch, rows, columns)
        source = aligned(shape, dtype)
        random = np.random.default_rng(rows * columns)
        source[...] = random.integers(0, np.iinfo(dtype).max, source.shape, dtype)
        source.flags.writeable = False
        destination = aligned((batch, rows, pitch), dtype)
        destination[...] = 0xA5A5
        wanted = destination.copy()
        wanted[:, :, :columns] = source.swapaxes(1, 2) if copy.transposed else source
        expected.append((wanted, destination, slice(columns, written)))
        buffers += [source, destination]
        params += struct.pack(  # RepackCopy in cuda/params.h
            "<QQIIIIII",
            source.ctypes.data,
            destination.ctypes.data,
            *(rows, columns, batch, pitch, copy.transposed, copy.pieces(dtype().itemsize)),
        )
    params += bytes(40 * (3 - len(copies)))
    report = module.launch(
        name, block=THREADS, args=[params], buffers=buffers, **{"grid": 2} | launch
    )
    assert not report.findings
    for wanted, destination, undefined in expected:
        destination[:, :, undefined] = wanted[:, :, undefined]
        np.testing.assert_array_equal(destination, wanted)


# Rows from one element to several chunks of 128 vectors; every alignment of a row's start.
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


@pytest.mark.parametrize("grid", [1, 3, 40])
def test_all_operands_of_a_matmul_in_one_launch(grid: int) -> None:
    check_all("sm90", "16bit", [Copy(2, 17, 129), Copy(1, 1, 7), Copy(1, 40, 1030)], grid=grid)
    check_all("sm100", "32bit", [Copy(1, 70, 130, True), Copy(3, 5, 9)], grid=grid)
