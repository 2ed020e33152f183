"""The emulator against Triton's GEMMs with scales of blocks: MXFP8, MXFP4, both, and NVFP4."""

import importlib
import re
from typing import Any

import numpy as np
import pytest

from jaxbw import emulator

from .launching import SCHEDULES, tensor_map

CASES = [
    ("MXFP8", "MXFP8", (128, 128, 128), "kind::mxf8f6f4"),
    ("MXFP8", "MXFP8_E5M2", (128, 256, 128), "kind::mxf8f6f4"),
    ("MXFP4", "MXFP4", (128, 128, 256), "kind::mxf4"),
    ("NVFP4", "NVFP4", (128, 256, 128), "kind::mxf4nvf4"),
    ("MXFP8", "MXFP4", (128, 128, 128), "kind::mxf8f6f4"),
    ("MXFP4", "MXFP8_E5M2", (128, 256, 128), "kind::mxf8f6f4"),
]


@pytest.mark.parametrize(("lhs", "rhs", "block", "kind"), CASES)
def test_triton(
    lhs: str,
    rhs: str,
    block: tuple[int, int, int],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("triton", reason="triton is missing: pip install 'jaxbw[independent]'")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    kernels: Any = importlib.import_module(".triton_block_scaled", __package__)
    m, n, k = 2 * block[0], block[1], 2 * block[2]
    forms = getattr(kernels, lhs), getattr(kernels, rhs)
    compiled = kernels.compiled(*forms, block, stages=2)
    ptx = compiled.asm["ptx"]
    assert kind in ptx
    assert "tcgen05.cp" in ptx
    left, a = kernels.operand(forms[0], m, k, 1)
    right, b = kernels.operand(forms[1], n, k, 2)
    result = emulator.empty((m, n), np.float32)
    arguments: list[Any] = []
    for array, meta in zip([*left, *right, result], compiled.metadata.tensordesc_meta, strict=True):
        swizzle = (0, 32, 64, 128)[meta["swizzle"]]
        strides = np.array(array.strides) // array.itemsize
        padded = meta["fp4_padded"]
        assert padded == (lhs != rhs and array.shape[-1] == k // 2)
        arguments += [tensor_map(array, meta["block_size"][::-1], swizzle, padded_fp4=padded)]
        arguments += [*array.shape, *strides.tolist()]
    module = emulator.Module(ptx)
    threads = re.search(r"\.reqntid (\d+)", ptx)
    assert threads
    for schedule, seed in SCHEDULES:
        result[...] = np.nan
        report = module.launch(
            module.entries()[0],
            grid=(2,),
            block=int(threads[1]),
            dynamic_smem=compiled.metadata.shared,
            args=[*arguments, 2, k, 0, 0],
            sm_count=2,
            schedule=schedule,
            seed=seed,
            checks="hardware",
        )
        assert report.findings == [], (schedule, seed)
        np.testing.assert_array_equal(result, a @ b.T)
