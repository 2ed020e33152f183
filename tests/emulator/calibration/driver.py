"""The CUDA driver through ctypes: just what running a calibration case takes."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np

from .case import SWIZZLES, TYPES, Buffer, Bytes, Case, Map, MapFields

SUCCESS = 0
_DYNAMIC_SMEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class DriverError(RuntimeError):
    """A call that failed; the context may be lost."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("pad", c_uint), ("value", c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("smem", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", c_uint),
    )


def _three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


class Device:
    """The first GPU, with a context of its own.

    Raises:
      DriverError: any call of the driver failed; the message names it.
    """

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        self.name = name.value.decode()
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.driver_version = version.value
        self._modules: dict[bytes, c_void_p] = {}

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != SUCCESS:
            text = c_char_p()
            self._driver.cuGetErrorName(status, byref(text))
            raise DriverError(f"{name}: {(text.value or b'').decode()} ({status})")

    def load(self, cubin: bytes) -> c_void_p:
        if cubin not in self._modules:
            module = c_void_p()
            self.call("cuModuleLoadData", byref(module), c_char_p(cubin))
            self._modules[cubin] = module
        return self._modules[cubin]

    def encode(self, fields: MapFields, address: int) -> tuple[int, bytes]:
        """The status of cuTensorMapEncodeTiled and its 128 bytes."""
        rank = len(fields.extents)
        storage = (ctypes.c_uint8 * (128 + 64))()
        start = -ctypes.addressof(storage) % 64
        status = self._driver.cuTensorMapEncodeTiled(
            c_void_p(ctypes.addressof(storage) + start),
            c_int(TYPES[fields.type][0]),
            c_uint(rank),
            c_void_p(address),
            (c_uint64 * 5)(*fields.extents),
            (c_uint64 * 5)(*fields.strides),
            (c_uint * 5)(*fields.box),
            (c_uint * 5)(*fields.steps),
            c_int(fields.interleave),
            c_int(SWIZZLES[fields.swizzle]),
            c_int(fields.l2_promotion),
            c_int(fields.fill),
        )
        return status, bytes(storage[start : start + 128])

    def run(self, cubin: bytes, case: Case) -> Bytes:
        """The bytes of the results, one after another."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), self.load(cubin), case.entry.encode())
        self.call("cuFuncSetAttribute", function, _DYNAMIC_SMEM, max(case.smem, 1))
        self.call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
        memory: dict[int, int] = {}
        try:
            for buffer in case.buffers:
                pointer = c_uint64()
                self.call("cuMemAlloc_v2", byref(pointer), c_size_t(buffer.data.size))
                memory[id(buffer)] = pointer.value
                source = np.ascontiguousarray(buffer.data)
                self.call(
                    "cuMemcpyHtoD_v2", pointer, c_void_p(source.ctypes.data), c_size_t(source.size)
                )
            self._launch(function, case, memory)
            results = []
            for buffer in case.buffers:
                if buffer.result:
                    result = np.empty(buffer.data.size, np.uint8)
                    self.call(
                        "cuMemcpyDtoH_v2",
                        c_void_p(result.ctypes.data),
                        c_uint64(memory[id(buffer)]),
                        c_size_t(result.size),
                    )
                    results.append(result)
            return np.concatenate(results)
        finally:
            for address in memory.values():
                self._driver.cuMemFree_v2(c_uint64(address))

    def _launch(self, function: c_void_p, case: Case, memory: dict[int, int]) -> None:
        values: list[ctypes.Array[ctypes.c_uint8]] = []
        for argument in case.arguments:
            if isinstance(argument, Buffer):
                raw = memory[id(argument)].to_bytes(8, "little")
            elif isinstance(argument, Map):
                status, raw = self.encode(argument.fields, memory[id(argument.buffer)])
                if status != SUCCESS:
                    raise DriverError(f"cuTensorMapEncodeTiled refuses: status {status}")
            elif isinstance(argument, int):
                raw = argument.to_bytes(4, "little")
            else:
                raw = argument
            values.append((ctypes.c_uint8 * len(raw)).from_buffer_copy(raw))
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _Attribute(id=_CLUSTER_DIMENSION)
        attribute.value[:3] = _three(case.cluster)
        config = _Config(
            grid=_three(case.grid),
            block=_three((case.block,)),
            smem=case.smem,
            attributes=ctypes.pointer(attribute),
            attribute_count=1,
        )
        self.call("cuLaunchKernelEx", byref(config), function, pointers, None)
        self.call("cuCtxSynchronize")
