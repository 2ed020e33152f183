"""What the micro-benchmarks need of the CUDA driver API, by ctypes: nothing is to be installed."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_ATTRIBUTES = {"sm_count": 16, "clock_khz": 13, "l2_bytes": 38, "memory_khz": 36}
_BFLOAT16, _SWIZZLE_128B, _L2_256B = 9, 3, 3  # of CUtensorMapDataType, ...Swizzle, ...L2promotion
_ALIGNMENT = 64  # of a tensor map
_MOST_SHARED = 227 << 10  # of a CTA, on Hopper
MAP_BYTES = 128


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class DriverError(RuntimeError):
    """A call of the driver failed."""


class Driver:
    """The first GPU, and a module of kernels on it."""

    def __init__(self, cubin: bytes, library: str = "libcuda.so.1") -> None:
        self._cuda = ctypes.CDLL(library)
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._device, self._module = device, module
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'?').decode()} ({status})")

    def environment(self) -> dict[str, Any]:
        """The GPU's name and numbers, and the driver's version."""
        name = ctypes.create_string_buffer(100)
        self._call("cuDeviceGetName", name, 100, self._device)
        found: dict[str, Any] = {"gpu": name.value.decode()}
        for key, number in _ATTRIBUTES.items():
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
            found[key] = value.value
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return {**found, "driver": version.value}

    def allocate(self, size: int) -> int:
        """Device memory, zeroed; it stays until the process ends."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        allocated: int = address.value
        self.clear(allocated, size)
        return allocated

    def clear(self, address: int, size: int) -> None:
        """Zeroes memory: more of it than L2 holds leaves nothing else there."""
        self._call("cuMemsetD8_v2", _u64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def read(self, address: int, count: int) -> npt.NDArray[np.uint64]:
        """So many 64-bit words, after all that was launched."""
        words = np.empty(count, np.uint64)
        size = ctypes.c_size_t(words.nbytes)
        self._call("cuMemcpyDtoH_v2", words.ctypes.data_as(ctypes.c_void_p), _u64(address), size)
        return words

    def tensor_map(self, address: int, rows: int, box_rows: int) -> bytes:
        """The map of an array [rows, 64] of 16 bits, by boxes of `box_rows` whole rows."""
        space = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
        start = -ctypes.addressof(space) % _ALIGNMENT
        result = ctypes.c_void_p(ctypes.addressof(space) + start)
        extents = (ctypes.c_uint64 * 3)(64, rows, 1)
        strides = (ctypes.c_uint64 * 2)(128, 128 * rows)
        box = (ctypes.c_uint32 * 3)(64, box_rows, 1)
        steps = (ctypes.c_uint32 * 3)(1, 1, 1)
        self._call(
            "cuTensorMapEncodeTiled",
            *(result, _BFLOAT16, 3, ctypes.c_void_p(address), extents, strides, box, steps),
            *(0, _SWIZZLE_128B, _L2_256B, 0),
        )
        return bytes(space.raw[start : start + MAP_BYTES])

    def launch(
        self, name: str, arguments: bytes, *, grid: int, block: int, cluster: int, shared: int
    ) -> None:
        """Launches a kernel on the null stream."""
        function = self._function(name)
        launch = _launch(grid, block, cluster, shared)
        # The argument holds a tensor map: the driver reads it from any address, in whole words.
        argument = ctypes.create_string_buffer(arguments, len(arguments))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        self._call("cuLaunchKernelEx", ctypes.byref(launch), function, pointers, None)

    def synchronise(self) -> None:
        """Waits for all that was launched."""
        self._call("cuCtxSynchronize")

    def time(self, launches: Sequence[tuple[Any, ...]]) -> float:
        """Milliseconds between events in front of and behind launches, (name, arguments, shape)."""
        events = [ctypes.c_void_p() for _ in range(2)]
        for event in events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", events[0], None)
        for name, arguments, shape in launches:
            self.launch(name, arguments, **shape)
        self._call("cuEventRecord", events[1], None)
        self._call("cuEventSynchronize", events[1])
        took = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(took), *events)
        milliseconds: float = took.value
        return milliseconds

    def active_clusters(self, name: str, *, block: int, cluster: int, shared: int) -> int:
        """Clusters of a kernel that run at a time."""
        count = ctypes.c_int()
        launch = _launch(cluster, block, cluster, shared)
        function = self._function(name)
        self._call(
            "cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(launch)
        )
        return count.value

    def _function(self, name: str) -> ctypes.c_void_p:
        """A kernel that may be launched so; found once, since a row of launches waits for it."""
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, _MOST_SHARED)
            self._call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
            self._functions[name] = function
        return self._functions[name]


def _launch(grid: int, block: int, cluster: int, shared: int) -> _Launch:
    attribute = _Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(cluster, 1, 1))
    return _Launch(
        (ctypes.c_uint * 3)(grid, 1, 1),
        (ctypes.c_uint * 3)(block, 1, 1),
        shared,
        None,
        ctypes.pointer(attribute),
        1,
    )


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)
