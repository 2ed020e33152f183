"""The emulator's side of a calibration case."""

from typing import Any

import numpy as np

from jaxbw import emulator
from jaxbw._native import emulator as core

from .case import SWIZZLES, TYPES, Buffer, Bytes, Case, Map, MapFields

datapath: Any = core.datapath


def encode(fields: MapFields, address: int) -> bytes:
    """The 128 bytes of a tensor map.

    Raises:
      RuntimeError: cuTensorMapEncodeTiled would refuse.
    """
    types: dict[int, Any] = {int(v.value): v for v in datapath.TensorMapType}
    swizzles: dict[int, Any] = {int(v.value): v for v in datapath.Swizzle}
    encoded: bytes = datapath.TensorMapFields(
        types[TYPES[fields.type][0]],
        address,
        list(fields.extents),
        list(fields.strides),
        list(fields.box),
        element_strides=list(fields.steps),
        interleave=list(datapath.Interleave)[fields.interleave],
        swizzle=swizzles[SWIZZLES[fields.swizzle]],
        l2_promotion=list(datapath.L2Promotion)[fields.l2_promotion],
        fill=list(datapath.OobFill)[fields.fill],
    ).encode()
    return encoded


def run(
    module: emulator.Module, case: Case, **options: Any
) -> tuple[Bytes, list[emulator.Finding]]:
    """The bytes of the results, one after another, and what the checks found."""
    arrays: dict[int, Bytes] = {}
    for buffer in case.buffers:
        # TMA writes whole pieces of 16 bytes; cuMemAlloc gives no less than that.
        arrays[id(buffer)] = emulator.empty(-(-buffer.data.size // 16) * 16, np.uint8)
        arrays[id(buffer)][: buffer.data.size] = buffer.data
    arguments: list[Any] = []
    for argument in case.arguments:
        if isinstance(argument, Buffer):
            arguments.append(arrays[id(argument)])
        elif isinstance(argument, Map):
            array = arrays[id(argument.buffer)]
            encoded = encode(argument.fields, array.ctypes.data)
            arguments.append(emulator.TensorMap(encoded, array))
        else:
            arguments.append(argument)
    report = module.launch(
        case.entry,
        grid=case.grid,
        block=case.block,
        cluster=case.cluster,
        dynamic_smem=case.smem,
        args=arguments,
        sm_count=8,
        **options,
    )
    results = [arrays[id(b)][: b.data.size] for b in case.buffers if b.result]
    return np.concatenate(results), list(report.findings)
