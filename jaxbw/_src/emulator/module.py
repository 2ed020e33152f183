"""Modules of PTX, and how Python values become the parameters of a launch."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxbw._native import emulator as _core
from jaxbw._src.emulator.report import Report, make_report
from jaxbw._src.emulator.tensor_map import TensorMap

EmulatorError = _core.EmulatorError

Argument = np.ndarray[Any, Any] | TensorMap | bytes | int | float


def _extents(size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid, block or cluster has 1 to 3 extents, not {size!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _encode(argument: Argument, size: int, name: str) -> bytes:
    if isinstance(argument, np.ndarray):
        argument = argument.ctypes.data
    elif isinstance(argument, TensorMap):
        argument = argument.encoded
    if isinstance(argument, bytes):
        encoded = argument
    elif isinstance(argument, int | np.integer):
        encoded = (int(argument) % (1 << 8 * size)).to_bytes(size, "little")
    elif isinstance(argument, float | np.floating):
        encoded = struct.pack("<f" if size == 4 else "<d", argument)
    else:
        raise TypeError(f"parameter {name}: cannot pass a {type(argument).__name__}")
    if len(encoded) != size:
        raise ValueError(f"parameter {name} has {size} bytes, but {len(encoded)} were given")
    return encoded


class Module:
    """A module of PTX text.

    Args:
      ptx: the text, as nvcc or a compiler prints it.
      file: a name for it, which messages show.
    Raises:
      EmulatorError: the text cannot be parsed; the message has the line. What an entry's
        instructions mean is looked at when it is first launched.
    """

    def __init__(self, ptx: str, file: str = "kernel.ptx") -> None:
        self._module = _core.Module(ptx, file)

    def entries(self) -> list[str]:
        """Returns the names of the kernels."""
        return list(self._module.entries())

    def launch(
        self,
        entry: str,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        cluster: int | Sequence[int] = 1,
        dynamic_smem: int = 0,
        args: Sequence[Argument] = (),
        buffers: Iterable[np.ndarray[Any, Any]] = (),
        schedule: str = "eager",
        seed: int = 0,
        checks: str = "strict",
        sm_count: int = 4,
        step_limit: int = 1 << 36,
        trace: bool = False,
        sums: str = "float32",
    ) -> Report:
        """Runs a grid to its end.

        Args:
          entry: the kernel.
          grid, block, cluster: extents; `grid` in CTAs, as for a CUDA launch.
          dynamic_smem: bytes.
          args: one value for each parameter. An array passes its address, and may be read and
            written; a `TensorMap` passes its 128 bytes, and gives access to its array; `bytes` pass
            as they are.
          buffers: further arrays that the kernel may access, through addresses inside of `args`.
          schedule: "eager", "latest", "random", "hold" or "pct": the order of what hardware leaves
            open.
          seed: of the random schedules.
          checks: "strict" (the PTX specification), "hardware" (what real kernels rely on) or "off".
          sm_count: SMs of the emulated GPU. A CTA fills one.
          step_limit: warp instructions after which the launch is given up.
          trace: remember what happened when, for `Report.timeline`; about 200 bytes an event.
          sums: of wgmma and tcgen05.mma: "float32", term by term, fast; or "fused", as tensor cores
            add: the terms of one instruction, each truncated to 25 fraction bits of the largest
            (13 for fp8 on Hopper), at once (arXiv 2511.10909, 2512.07004).
        Raises:
          EmulatorError: the kernel did something from which there is no going on (an access out of
            bounds, a deadlock, an instruction used against its rules), or uses an instruction that
            is not known. One raised while the kernel ran has the report until then as `report`,
            findings included.
        """
        parameters = self._module.parameters(entry)
        if len(parameters) != len(args):
            raise ValueError(
                f"{entry} has {len(parameters)} parameters, but {len(args)} arguments were given"
            )
        size = max((offset + size for _, offset, size in parameters), default=0)
        block_of_parameters = bytearray(size)
        arrays = list(buffers)
        for (name, offset, size), argument in zip(parameters, args, strict=True):
            block_of_parameters[offset : offset + size] = _encode(argument, size, name)
            if isinstance(argument, np.ndarray):
                arrays.append(argument)
            elif isinstance(argument, TensorMap):
                arrays.append(argument.array)
        memory = []
        for array in arrays:
            if not array.flags.c_contiguous:
                raise ValueError("an array must be C-contiguous to be device memory")
            memory.append((array.ctypes.data, array.nbytes, array.flags.writeable))
        required = self._module.required_cluster(entry)
        core, error = self._module.launch(
            entry,
            _extents(grid),
            _extents(block),
            required if required[0] and cluster == 1 else _extents(cluster),
            dynamic_smem,
            bytes(block_of_parameters),
            memory,
            _core.Schedule.__members__[schedule],
            seed,
            _core.Checks.__members__[checks],
            sm_count,
            step_limit,
            trace,
            {"float32": False, "fused": True}[sums],
        )
        report = make_report(core)
        if error:
            failure = EmulatorError(error)
            failure.report = report
            raise failure
        return report
