"""Arrays at addresses that a test chooses."""

from typing import Any

import numpy as np
import numpy.typing as npt


def aligned(shape: tuple[int, ...], dtype: Any, past: int = 0) -> npt.NDArray[Any]:
    """Zeros so many bytes past a multiple of 16, as all of XLA's arrays are at one."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 16 + past, np.uint8)
    start = -memory.ctypes.data % 16 + past
    placed: npt.NDArray[Any] = memory[start : start + size].view(dtype).reshape(shape)
    return placed
