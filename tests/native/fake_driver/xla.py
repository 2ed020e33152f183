"""Calls the FFI handlers as XLA's GPU runtime does, through ffi_harness.cc."""

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import _native

STAGES = {"instantiate": 0, "initialize": 2, "execute": 3}  # XLA_FFI_ExecutionStage
INVALID_ARGUMENT, INTERNAL = 3, 13  # XLA_FFI_Error_Code
DTYPES = {  # XLA_FFI_DataType
    np.dtype(np.int32): 4,
    np.dtype(np.uint8): 6,
    np.dtype(np.float16): 10,
    np.dtype(np.float32): 11,
    np.dtype(np.float64): 12,
    np.dtype(ml_dtypes.bfloat16): 16,
    np.dtype(ml_dtypes.float8_e5m2): 19,
    np.dtype(ml_dtypes.float8_e4m3fn): 20,
}


class Buffer(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("is_float", ctypes.c_int),
        ("number", ctypes.c_int32),
        ("real", ctypes.c_float),
    )


class FfiError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@functools.cache
def _harness() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["JAXBW_FFI_HARNESS"])
    library.harness_register_type(_type("type_id"))
    return library


def _pointer(capsule: object) -> ctypes.c_void_p:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return ctypes.c_void_p(pointer(capsule, None))


def _handler(stage: str, target: str = "jaxbw_gemm_v10") -> ctypes.c_void_p:
    return _pointer(_native.ffi_targets()[target][stage])


def _type(part: str) -> ctypes.c_void_p:
    return _pointer(_native.ffi_types()["jaxbw_call_site"][part])


def _buffer(array: npt.NDArray[Any]) -> Buffer:
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    return Buffer(DTYPES[array.dtype], array.ndim, dims, array.ctypes.data)


def _attribute(name: str, value: str | int | float) -> Attribute:
    if isinstance(value, str):
        return Attribute(name.encode(), value.encode(), 0, 0, 0.0)
    if isinstance(value, float):
        return Attribute(name.encode(), None, 1, 0, value)
    return Attribute(name.encode(), None, 0, value, 0.0)


class Program:
    """A compiled program of one custom call, which it keeps a state for.

    Args:
      attributes: an integer is an int32 attribute, a float a float32 one.
      target: of the custom call. Only the matmul's has the stage "instantiate", and a state.

    Raises:
      FfiError: a handler returned an error; here, and in `run`.
    """

    def __init__(
        self, attributes: Mapping[str, str | int | float], target: str = "jaxbw_gemm_v10"
    ) -> None:
        self._attributes, self._target = dict(attributes), target
        self._state = ctypes.c_void_p()
        if "instantiate" in _native.ffi_targets()[target]:
            self.run("instantiate")

    def __del__(self) -> None:
        if self._state:
            _harness().harness_destroy_state(_type("type_info"), self._state)

    def run(
        self,
        stage: str,
        operands: Sequence[npt.NDArray[Any]] = (),
        results: Sequence[npt.NDArray[Any]] = (),
        *,
        device: int = 0,
        stream: int = 0,
    ) -> None:
        """Runs one stage of the handler."""
        listed = [_attribute(name, value) for name, value in self._attributes.items()]
        buffers = [*operands, *results]
        message = ctypes.create_string_buffer(4096)
        code = _harness().harness_call(
            _handler(stage, self._target),
            STAGES[stage],
            device,
            ctypes.c_void_p(stream),
            ctypes.byref(self._state),
            (Buffer * len(buffers))(*map(_buffer, buffers)),
            len(buffers),
            len(results),
            (Attribute * len(listed))(*listed),
            len(listed),
            message,
            ctypes.c_size_t(len(message)),
        )
        if code != 0:
            raise FfiError(code, message.value.decode())


def call(
    stage: str,
    attributes: Mapping[str, str | int | float],
    operands: Sequence[npt.NDArray[Any]] = (),
    results: Sequence[npt.NDArray[Any]] = (),
    *,
    device: int = 0,
    stream: int = 0,
) -> None:
    """Runs one stage of a new program."""
    program = Program(attributes)
    if stage != "instantiate":
        program.run(stage, operands, results, device=device, stream=stream)


def traits(stage: str, target: str = "jaxbw_gemm_v10") -> int:
    """What the handler declares of itself, XLA_FFI_Handler_TraitsBits."""
    return int(_harness().harness_traits(_handler(stage, target)))
