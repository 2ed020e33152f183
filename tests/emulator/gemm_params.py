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
        *((name, c_uint32) for name in ("bias_along_m", "activation", "gated", "identity")),
    )


class GemmParams(ctypes.Structure):
    """As in cuda/params.h, but for the alignment of its end, which `encode` adds."""

    _fields_ = (
        *((name, TensorMapWords) for name in ("a", "b", "b_up", "d")),
        ("saved", TensorMapWords * 2),
        ("epilogue", Epilogue),
        ("output", EpilogueResult),
        ("saved_output", EpilogueResult * 2),
        ("store_path", c_uint32),
        *((name, c_uint64) for name in ("a_data", "b_data")),
        *((name, c_uint64) for name in ("row_stride", "column_stride", "batch_stride")),
        *((name, c_uint32) for name in ("m", "n", "k", "batch", "a_batched", "b_batched")),
        *((name, c_uint32) for name in ("block_m", "block_n", "tile_columns")),
        *((name, c_uint32) for name in ("cluster_m", "cluster_n", "stages", "k_spans")),
        *((name, c_uint32) for name in ("operand_swizzle", "accumulators", "store_buffers")),
        *((name, c_uint32) for name in ("scheduler", "raster", "swizzle")),
        *((name, c_uint32) for name in ("cluster_tiles_m", "cluster_tiles_n")),
        *((name, c_uint32) for name in ("whole_tiles", "split_k", "work_items")),
        *((name, c_uint64) for name in ("partials", "counters")),
        *((name, c_uint32) for name in ("input", "a_major", "b_major", "b_is_ready")),
    )

    def encode(self) -> bytes:
        """The bytes of the argument. A launch refuses them where their number is not the PTX's."""
        return bytes(self) + bytes(-ctypes.sizeof(self) % ALIGNMENT)


def words(encoded: bytes) -> TensorMapWords:
    """An encoded tensor map as a member."""
    return TensorMapWords.from_buffer_copy(encoded)
