"""GemmParams, the one argument of our GEMM kernels, as cuda/params.h lays it out."""

import ctypes
from ctypes import c_float, c_uint32, c_uint64

ALIGNMENT = 64  # of the tensor maps, hence of the whole


class TensorMapWords(ctypes.Structure):
    _fields_ = (("words", c_uint64 * 16),)


class EpilogueOperand(ctypes.Structure):
    _fields_ = (("data", c_uint64), ("type", c_uint32))


class EpilogueResult(ctypes.Structure):
    _fields_ = (("data", c_uint64), ("type", c_uint32))


class Epilogue(ctypes.Structure):
    _fields_ = (
        *((name, c_float) for name in ("alpha", "beta")),
        *((name, EpilogueOperand) for name in ("c", "bias", "residual")),
        *((name, c_uint32) for name in ("bias_along_m", "activation", "gated", "formula")),
    )


class Divisor(ctypes.Structure):
    """As in cuda/gemm/division.h."""

    _fields_ = (("value", c_uint32), ("multiplier", c_uint32), ("shift", c_uint32))

    @classmethod
    def of(cls, value: int) -> "Divisor":
        """The divisor of a value."""
        shift = (value - 1).bit_length()
        return cls(value, -(-(1 << (31 + shift)) // value), shift)


class ClusterShape(ctypes.Structure):
    """As in cuda/gemm/cluster_protocol.h."""

    _fields_ = (
        *((name, Divisor) for name in ("m", "n")),
        ("cta_group", c_uint32),
        *((name, Divisor) for name in ("k", "tiles", "ctas", "b_sharers")),
        *((name, c_uint32) for name in ("row_mask", "column_mask")),
    )

    @classmethod
    def of(cls, m: int, n: int, cta_group: int, k: int) -> "ClusterShape":
        """A cluster of m x n x k CTAs."""
        return cls(
            Divisor.of(m),
            Divisor.of(n),
            cta_group,
            Divisor.of(k),
            Divisor.of(m * n),
            Divisor.of(m * n * k),
            Divisor.of(m // cta_group),
            sum(1 << j * m for j in range(n)),
            sum(1 << i for i in range(0, m, cta_group)),
        )


class TileOrder(ctypes.Structure):
    """As in cuda/gemm/tile_order.h."""

    _fields_ = (
        *((name, c_uint32) for name in ("raster", "across", "along")),
        *((name, Divisor) for name in ("batch", "band", "width", "last_width")),
    )

    @classmethod
    def of(cls, tiles_m: int, tiles_n: int, swizzle: int, raster: str) -> "TileOrder":
        """Bands of `swizzle` cluster tiles, cut along "m" or "n"."""
        across, along = (tiles_m, tiles_n) if raster == "m" else (tiles_n, tiles_m)
        width = min(swizzle, across)
        sizes = (across * along, width * along, width, across % width or width)
        return cls(raster == "n", across, along, *map(Divisor.of, sizes))


class GemmParams(ctypes.Structure):
    """As in cuda/params.h, but for the alignment of its end, which `encode` adds."""

    _fields_ = (
        *((name, TensorMapWords) for name in ("a", "b", "b_up", "d")),
        ("saved", TensorMapWords * 2),
        ("residual", TensorMapWords),
        *((name, c_uint32) for name in ("block_m", "block_n", "pingpong", "tile_columns")),
        ("cluster", ClusterShape),
        ("order", TileOrder),
        ("whole_tiles", c_uint32),
        ("split_k", Divisor),
        ("parts", Divisor),
        ("work_items", c_uint32),
        *((name, c_uint32) for name in ("m", "n", "k", "batch", "a_batched", "b_batched")),
        *((name, c_uint32) for name in ("b_is_ready", "stages", "residual_stages")),
        ("store_path", c_uint32),
        *((name, c_uint32) for name in ("k_spans", "accumulators", "scheduler")),
        *((name, c_uint32) for name in ("input", "a_major", "b_major")),
        ("epilogue", Epilogue),
        ("output", EpilogueResult),
        ("saved_output", EpilogueResult * 2),
        *((name, c_uint64) for name in ("row_stride", "column_stride", "batch_stride")),
        ("tile_slices", Divisor),
        *((name, c_uint64) for name in ("partials", "counters")),
    )

    def encode(self) -> bytes:
        """The bytes of the argument. A launch refuses them where their number is not the PTX's."""
        return bytes(self) + bytes(-ctypes.sizeof(self) % ALIGNMENT)


def words(encoded: bytes) -> TensorMapWords:
    """An encoded tensor map as a member."""
    return TensorMapWords.from_buffer_copy(encoded)
