"""Tensor maps (CUtensorMap) of numpy arrays, and arrays aligned as device memory is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxbw._native import emulator as _core

_ALIGNMENT = 256  # bytes; of cudaMalloc
_SWIZZLES = {
    0: _core.datapath.Swizzle.NONE,
    32: _core.datapath.Swizzle.B32,
    64: _core.datapath.Swizzle.B64,
    128: _core.datapath.Swizzle.B128,
}


def empty(shape: int | Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Returns an uninitialised array at a multiple of 256, as device memory has it."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    storage = np.empty(size + _ALIGNMENT, np.uint8)
    start = -storage.ctypes.data % _ALIGNMENT
    array: np.ndarray[Any, Any] = storage[start : start + size].view(dtype).reshape(shape)
    return array


def _element_type(dtype: np.dtype[Any]) -> Any:
    # CUDA has no type for 8-bit floats: they are bytes.
    name = "uint8" if dtype.name.startswith("float8") else dtype.name
    return getattr(_core.datapath.TensorMapType, name.upper())


@dataclass(frozen=True)
class TensorMap:
    """An encoded tensor map, and the array that it describes."""

    encoded: bytes
    array: np.ndarray[Any, Any]

    @classmethod
    def encode(
        cls,
        array: np.ndarray[Any, Any],
        *,
        box: Sequence[int],
        extents: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        swizzle: int = 0,
        element_strides: Sequence[int] | None = None,
        tf32: bool = False,
        padded_fp4: bool = False,
    ) -> "TensorMap":
        """Encodes the map that cuTensorMapEncodeTiled makes of the same arguments.

        Args:
          array: the tensor, C-contiguous.
          box: the box that one instruction moves, in elements, contiguous dimension first.
          extents: extents of the tensor in the same order; by default the array's shape reversed.
          strides: bytes, of all dimensions but the contiguous one; by default a dense tensor's.
          swizzle: width of the swizzle in bytes: 0, 32, 64 or 128.
          element_strides: steps between the elements of a box; by default 1.
          tf32: of a float32 array: loads round to TF32 (CU_TENSOR_MAP_DATA_TYPE_TFLOAT32).
          padded_fp4: of bytes that hold two numbers of 4 bits each, which box and extents count:
            loads leave gaps behind them (CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B).

        Raises:
          EmulatorError: cuTensorMapEncodeTiled would refuse; the message names the rule.
          ValueError: tf32 is asked for, and the array is not float32; or padded_fp4, and it is not
            uint8.
        """
        if tf32 and array.dtype != np.float32:
            raise ValueError(f"tf32 is for float32 arrays, not for {array.dtype}")
        if padded_fp4 and array.dtype != np.uint8:
            raise ValueError(f"padded_fp4 is for uint8 arrays, not for {array.dtype}")
        per_element = 2 if padded_fp4 else 1
        if extents is None:
            extents = (array.shape[-1] * per_element, *array.shape[-2::-1])
        if strides is None:
            strides = [
                int(np.prod(extents[: i + 1])) * array.itemsize // per_element
                for i in range(len(extents) - 1)
            ]
        types = _core.datapath.TensorMapType
        named = types.TFLOAT32 if tf32 else types.U4X16_ALIGN_16B if padded_fp4 else None
        fields = _core.datapath.TensorMapFields(
            _element_type(array.dtype) if named is None else named,
            array.ctypes.data,
            list(extents),
            list(strides),
            list(box),
            element_strides=None if element_strides is None else list(element_strides),
            swizzle=_SWIZZLES[swizzle],
        )
        return cls(fields.encode(), array)
