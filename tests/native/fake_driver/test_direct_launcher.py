"""The direct launcher finds what a kernel does wrong, names failed driver calls, and cleans up."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxbw import _native

from .conftest import FakeDriver
from .matmul import DTYPES, PAIR, SM90, SM100, Matmul

MATMUL = Matmul(bias="f32")

# In the order of a first launch: until the last one failed, nothing that comes after it is cached.
DRIVER_CALLS = [
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuMemAlloc",
    "cuMemsetD8",
    "cuMemcpyHtoD",
    "cuDeviceGetName",
    "cuDeviceTotalMem",
    "cuDeviceGetAttribute",
    "cuLibraryLoadFromFile",
    "cuLibraryGetKernel",
    "cuKernelSetAttribute",
    "cuKernelGetFunction",
    "cuOccupancyMaxActiveClusters",
    "cuTensorMapEncodeTiled",
    "cuLaunchKernelEx",
    "cuCtxSynchronize",
    "cuMemcpyDtoH",
]


@pytest.mark.parametrize("call", DRIVER_CALLS)
def test_a_failed_driver_call_is_named(fake: FakeDriver, call: str) -> None:
    matmul = replace(MATMUL, config=SM90 | {"split_k": 2})
    fake.fail(call, 719)
    with pytest.raises(
        _native.DriverError, match=rf"{call}: CUDA_ERROR_LAUNCH_FAILED \(a fake error\)"
    ):
        matmul.launch()
    allocated = len(fake.calls("cuMemAlloc")) - (call == "cuMemAlloc")
    assert len(fake.calls("cuMemFree")) == allocated
    entered = len(fake.calls("cuCtxPushCurrent")) - (call == "cuCtxPushCurrent")
    assert len(fake.calls("cuCtxPopCurrent")) == entered


def test_a_failed_launch_says_what_was_launched(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 700)
    text = (
        "jaxbw: bf16[1,136,72] @ bf16[1,72,264] + bias -> f32[1,136,264], "
        "kernel jaxbw_sm90_bf16_nn_64x128, block_m 128, block_n 128, cluster_n 2, stages 4, "
        "device 0: cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS (a fake error)"
    )
    with pytest.raises(_native.DriverError, match=re.escape(text)):
        replace(MATMUL, config=SM90 | {"cluster_n": 2}).launch()


def test_a_description_has_all_terms(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 700)
    text = (
        "bf16[2,72,136]^T @ bf16[2,264,72]^T (gate and up) + bias + residual -> bf16[2,136,264], "
        "saved, kernel jaxbw_sm90_bf16_tt_64x128"
    )
    matmul = Matmul(layout="tt", batch=2, gated=True, bias="f32", residual="f32", save=True)
    with pytest.raises(_native.DriverError, match=re.escape(text)):
        replace(matmul, output="bf16").launch()


def test_an_unknown_error_has_its_number(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 12345)
    with pytest.raises(_native.DriverError, match="cuLaunchKernelEx: CUDA error 12345"):
        MATMUL.launch()


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("output", ["bf16", "f32"])
def test_a_write_outside_the_result_is_found(fake: FakeDriver, side: str, output: str) -> None:
    fake.misbehave(side)
    with pytest.raises(RuntimeError, match=f"the guard {side} the result buffer was overwritten"):
        replace(MATMUL, output=output).launch()


def test_an_unwritten_element_is_found(fake: FakeDriver) -> None:
    fake.misbehave("unwritten")
    (result,) = MATMUL.launch()
    assert np.isnan(result).sum() == 1


def test_an_unwritten_element_differs_between_launches(fake: FakeDriver) -> None:
    """NaN alone did not tell it from results in e4m3 that may be NaN: the error allowed is wide."""
    fake.misbehave("unwritten")
    with pytest.raises(RuntimeError, match="launch 2 of 2 differs from the first at element"):
        MATMUL.launch(repeats=2)


def test_a_result_that_changes_is_found(fake: FakeDriver) -> None:
    fake.misbehave("unstable")
    MATMUL.launch()
    text = "launch 2 of 3 differs from the first at element 0 of the result"
    with pytest.raises(RuntimeError, match=text):
        MATMUL.launch(repeats=3)


@pytest.mark.parametrize("guard_bytes", [0, 16, 4096])
def test_buffers_lie_between_guards(fake: FakeDriver, guard_bytes: int) -> None:
    MATMUL.check(guard_bytes=guard_bytes, repeats=2)
    payloads = [136 * 72 * 2, 72 * 264 * 2, 264 * 4, 136 * 264 * 4]
    sizes = [call["bytes"] for call in fake.calls("cuMemAlloc")]
    assert sizes == [payload + 2 * guard_bytes for payload in payloads]
    poisoned = [call for call in fake.calls("cuMemsetD8") if call["bytes"] == payloads[-1]]
    assert [call["value"] for call in poisoned][-2:] == [0xFF, 0xFE]  # before each launch


def test_results_are_poisoned_and_the_workspace_holds_garbage(fake: FakeDriver) -> None:
    matmul = replace(MATMUL, k=70, save=True)
    matmul.check(repeats=2, guard_bytes=0)
    workspace = fake.calls("cuMemAlloc")[-1]["bytes"]
    filled = [(call["bytes"], call["value"]) for call in fake.calls("cuMemsetD8")]
    result = 136 * 264 * 4
    poisoned = [[(result, value)] * 2 + [(workspace, 0x5A)] for value in (0xFF, 0xFE)]
    assert filled[-6:] == poisoned[0] + poisoned[1]


def test_nothing_is_written_for_initcheck(fake: FakeDriver) -> None:
    """What it is to find is memory that only the kernel, or nobody, has written."""
    replace(MATMUL, k=70, save=True).check(guard_bytes=0, poison=False)
    assert fake.calls("cuMemsetD8") == []
    uploads = [call["bytes"] for call in fake.calls("cuMemcpyHtoD")]
    assert uploads == [136 * 70 * 2, 70 * 264 * 2, 264 * 4]


def test_a_launch_may_have_a_stream(fake: FakeDriver) -> None:
    matmul = replace(MATMUL, k=70, config=SM90 | {"split_k": 2})
    matmul.check(stream=0x5678)
    calls = fake.calls("cuLaunchKernelEx")
    assert [call["stream"] for call in calls] == [0x5678] * 2
    matmul.check()
    assert fake.launches()[-1]["stream"] == 0


@pytest.mark.parametrize("output", ["bf16", "f32"])
def test_c_may_lie_in_the_result(fake: FakeDriver, output: str) -> None:
    matmul = replace(MATMUL, c=output, beta=1.0, output=output)
    matmul.check(alias_c=True, repeats=2, guard_bytes=0)
    assert len(fake.calls("cuMemAlloc")) == 4  # lhs, rhs, bias, result
    with pytest.raises(ValueError, match="c has not the dtype of the result"):
        replace(matmul, c="f16").launch(alias_c=True)


# A matmul of 128 x 128 x 64 on each kernel, right but for changes of matmul or attributes.
HOPPER = Matmul(128, 128, 64, layout="nt")
BLACKWELL = replace(HOPPER, family="sm100", config=SM100)
BLACKWELL_PAIR = replace(HOPPER, family="sm100", config=PAIR)
F32_MATMUL = replace(HOPPER, dtype="f32")


@pytest.mark.parametrize(
    ("matmul", "changes", "message"),
    [
        (HOPPER, {"stages": 0}, "0 stages; a 128x128 tile with k_spans 1 takes 2 to 6"),
        (HOPPER, {"stages": 7}, "7 stages"),
        (HOPPER, {"swizzle": 0}, "swizzle is 0; it is 1 to"),
        (HOPPER, {"cluster_m": 0}, "a cluster of 0x1 CTAs"),
        (HOPPER, {"cluster_m": 16}, "a cluster of 16x1 CTAs; it has 1 to 8"),
        (HOPPER, {"cluster_m": 4, "cluster_n": 4}, "a cluster of 4x4 CTAs"),
        (HOPPER, {"cluster_m": 2**16, "cluster_n": 2**16}, "a cluster of 65536x65536 CTAs"),
        (HOPPER, {"cluster_k": 3}, "cluster_k is 3; it is 1, 2, 4 or 8"),
        (HOPPER, {"cluster_k": 0}, "cluster_k is 0; it is 1, 2, 4 or 8"),
        (HOPPER, {"cluster_k": 8, "cluster_m": 2}, "2x1 CTAs, 8 parts of K each; it has 1 to 8"),
        (HOPPER, {"cluster_k": 2}, "split_k is 1 and cluster_k 2; K has 1 blocks"),
        (BLACKWELL, {"cluster_k": 2}, "cluster_k is 2; on sm_100 it goes with swap_ab"),
        (HOPPER, {"cluster_m": 3}, "rhs is shared by 3 CTAs, which cannot load equal parts of 128"),
        (
            HOPPER,
            {"block_m": 64},
            "block_m is 64; with pingpong 0 it is 8, 16, 32, 128, 192 or 256",
        ),
        (HOPPER, {"block_n": 192}, "needs kernel jaxbw_sm90_plain_bf16_nt_64x192"),
        (HOPPER, {"block_n": -1}, "block_n is 4294967295"),
        (HOPPER, {"cta_group": 2, "cluster_m": 2}, "sm_90 has no CTA pairs"),
        (HOPPER, {"k_spans": 2}, "k_spans is 2; the sm_90 kernels take 1"),
        (HOPPER, {"scheduler": 1}, "cluster launch control, which sm_90 does not have"),
        (HOPPER, {"kernel": "gemm"}, "no kernel family is known for kernel 'gemm'"),
        (
            HOPPER,
            {"kernel": "jaxbw_sm90_f16_any_64x128"},
            "needs kernel jaxbw_sm90_plain_bf16_nt_64x128",
        ),
        (F32_MATMUL, {"block_m": 256}, "no kernel takes such operands"),
        (HOPPER, {"raster": 2}, "raster is 2; it is 0 to 1"),
        (HOPPER, {"split_k": 0}, "split_k is 0; it is 1 to 64"),
        (HOPPER, {"split_k": 65}, "split_k is 65"),
        (HOPPER, {"split_k": 2}, "split_k is 2; K has 1 blocks of 64 elements"),
        (HOPPER, {"split_tail": 1}, "wave is 0; it is 1 to"),
        (HOPPER, {"wave": 1}, "wave is 1; it is 0 to 0"),
        (HOPPER, {"accumulators": 3}, "accumulators is 3"),
        (HOPPER, {"scheduler": 3}, "scheduler is 3; it is 0 to 2"),
        (HOPPER, {"gated": 2}, "attribute gated is 2; it is 0 or 1"),
        (HOPPER, {"activation": 5}, "unknown activation 5"),
        (HOPPER, {"lhs_major": 2}, "attribute lhs_major is 2; it is 0 or 1"),
        (HOPPER, {"has_c": 1}, "2 operands; the attributes say that there are 3"),
        (replace(HOPPER, m=0), {}, "a dimension is 0"),
        (replace(HOPPER, gated=True, c="f32"), {}, "a gated matmul has no c"),
        (
            replace(HOPPER, gated=True, output="bf16", config=SM90 | {"block_n": 32}),
            {},
            "block_n is 32; of a gated matmul it is 128 or 256",
        ),
        (BLACKWELL, {"cluster_m": 32}, "a cluster of 32x1 CTAs; it has 1 to 16"),
        (BLACKWELL, {"block_m": 96}, "block_m is 96; with cta_group 1 it is 64, 128 or 256"),
        (
            BLACKWELL,
            {"block_n": 40},
            "block_n is 40; 128 rows with cta_group 1 take a multiple of 16 up to 256",
        ),
        (BLACKWELL, {"block_m": 64, "block_n": 12}, "take a multiple of 8 up to 256"),
        (BLACKWELL, {"block_n": 272}, "block_n is 272"),
        (BLACKWELL, {"block_n": 24, "block_m": 64, "cluster_m": 2}, "rhs is shared by 2 CTAs"),
        (BLACKWELL, {"k_spans": 5}, "k_spans is 5"),
        (BLACKWELL, {"k_spans": 4, "stages": 2}, "2 stages; a 128x128 tile with k_spans 4 takes"),
        (
            replace(BLACKWELL, gated=True),
            {"block_n": 144},
            "block_n is 144; of a gated matmul it is a multiple of 32",
        ),
        (replace(BLACKWELL, gated=True), {"swap_ab": 1}, "swap_ab does not go with a gated"),
        (
            replace(BLACKWELL, gated=True, layout="nn"),
            {"block_n": 64},
            "rhs is MN-major and its tile is 32 wide; it is loaded in columns of 64",
        ),
        (
            BLACKWELL,
            {"swap_ab": 1, "block_n": 96, "cluster_m": 8},
            "lhs is shared by 8 CTAs, which cannot load equal parts of 96 rows in groups of 8",
        ),
        (BLACKWELL_PAIR, {"cluster_m": 1}, "cluster_m 1 is not a multiple of cta_group 2"),
        (BLACKWELL_PAIR, {"block_m": 64}, "block_m is 64; with cta_group 2 it is 128"),
        (BLACKWELL_PAIR, {"block_m": 128, "block_n": 48}, "take a multiple of 32 up to 256"),
        (BLACKWELL_PAIR, {"cta_group": 3}, "cta_group is 3; it is 1 or 2"),
        (BLACKWELL_PAIR, {"cta_group": 0}, "cta_group is 0; it is 1 or 2"),
        (
            replace(BLACKWELL_PAIR, layout="nn"),
            {"block_n": 160, "stages": 7},
            "7 stages; a 256x160 tile with k_spans 1 takes 1 to 6",
        ),
        (
            replace(BLACKWELL_PAIR, gated=True),
            {"block_m": 128},
            "half of the columns in each half of its lanes: not for a gated matmul",
        ),
        (BLACKWELL_PAIR, {"kernel": "jaxbw_sm100_16bit_1cta"}, "needs kernel jaxbw_sm100_16bit_2"),
        (BLACKWELL, {"kernel": "jaxbw_sm100_tf32_1cta"}, "needs kernel jaxbw_sm100_16bit_1cta"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    fake: FakeDriver, matmul: Matmul, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        launch(matmul, **changes)
    assert not fake.calls("cuLaunchKernelEx")
    assert not fake.calls("cuMemcpyHtoD")


def launch(matmul: Matmul, options: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Launches a matmul with changed attributes."""
    given = [np.ascontiguousarray(v).view(f"u{v.itemsize}") for v in matmul.operands()]
    dtypes = {"bf16": _native.DataType.BF16, "f32": _native.DataType.F32}
    return _native.launch_gemm(
        given,
        [dtypes[name] for name in matmul.dtypes],
        dtypes[matmul.output],
        matmul.attributes | changes,
        **{"device": matmul.device} | (options or {}),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guard_bytes": 8}, "guard_bytes is 8; it is a multiple of 16"),
        ({"repeats": 0}, "repeats is 0"),
        ({"poison": False, "guard_bytes": 16}, "without poison there are no guards"),
    ],
)
def test_wrong_options_are_refused(fake: FakeDriver, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launch(HOPPER, options)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 128, 65), (1, 128, 64)), "do not belong to one matmul"),
        (((2, 128, 64), (3, 128, 64)), "do not belong to one matmul"),
        (((128, 64), (1, 128, 64)), "they have rank 3"),
        (((1, 128, 64), (1, 128, 64), (1, 127, 128)), r"c is \[1,127,128\]; here it is"),
        (((1, 128, 64), (1, 128, 64), (1, 128, 128), (127,)), r"bias is \[127\]; here it is \[128"),
        (((1, 128, 64),), "1 operands; the attributes say that there are 2"),
    ],
)
def test_operands_that_are_no_matmul_are_refused(
    fake: FakeDriver, shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    attributes = HOPPER.attributes | {
        "has_c": int(len(shapes) > 2),
        "has_bias": int(len(shapes) > 3),
    }
    operands = [np.zeros(shape, np.uint16) for shape in shapes]
    dtypes = [_native.DataType.BF16] * len(shapes)
    with pytest.raises(ValueError, match=message):
        _native.launch_gemm(operands, dtypes, _native.DataType.F32, attributes)


def test_a_wrong_dtype_is_refused_before_the_array_is_read(fake: FakeDriver) -> None:
    # Four bytes an element were once copied from arrays that have two.
    operands = [np.zeros((1, 128, 64), np.uint16)] * 2
    with pytest.raises(ValueError, match="operand 0 has elements of 2 bytes"):
        _native.launch_gemm(
            operands, [_native.DataType.F32] * 2, _native.DataType.F32, HOPPER.attributes
        )
    with pytest.raises(ValueError, match="every operand has one of dtypes"):
        _native.launch_gemm(
            operands, [_native.DataType.BF16], _native.DataType.F32, HOPPER.attributes
        )
    assert not fake.calls("cuMemcpyHtoD")


def test_attributes_must_be_exactly_these(fake: FakeDriver) -> None:
    for attributes, message in (
        ({k: v for k, v in HOPPER.attributes.items() if k != "wave"}, "attribute wave is missing"),
        (HOPPER.attributes | {"split": 1}, "39 attributes; there are 38"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.scratch((1, 8, 64), (1, 8, 64), _native.DataType.BF16, attributes)


def test_a_workspace_is_refused_for_what_cannot_be_launched(fake: FakeDriver) -> None:
    shapes = (1, 128, 64), (1, 128, 64)
    with pytest.raises(ValueError, match=r"bf16.*block_m 128.*split_k 2: split_k is 2; K has 1"):
        _native.scratch(*shapes, _native.DataType.BF16, HOPPER.attributes | {"split_k": 2})


def test_the_unchanged_matmuls_are_launched(fake: FakeDriver) -> None:
    for matmul in (HOPPER, BLACKWELL, BLACKWELL_PAIR):
        matmul.check()


def test_arrays_in_device_memory_are_used_where_they_are(fake: FakeDriver) -> None:
    """The fake driver's device memory is the host's."""
    matmul = replace(MATMUL, config=SM90 | {"split_k": 2})
    given = matmul.operands()
    size, count = _native.scratch(
        given[0].shape, given[1].shape, _native.DataType.BF16, matmul.attributes
    )
    counters = np.zeros(count, np.uint32)
    result = np.zeros((1, matmul.m, matmul.n), np.float32)
    workspace = np.zeros(size + 16, np.uint8)  # the launcher wants multiples of 16
    operands = [
        (x.ctypes.data, x.shape, DTYPES[name][1])
        for x, name in zip(given, matmul.dtypes, strict=True)
    ]
    results: list[Any] = [
        (result.ctypes.data, result.shape, _native.DataType.F32),
        (workspace.ctypes.data + -workspace.ctypes.data % 16, (size,), _native.Untyped.BYTES),
    ]
    enqueue = partial(_native.enqueue_gemm, counters=counters.ctypes.data)
    enqueue(operands, results, matmul.attributes)
    assert not fake.calls("cuCtxSynchronize")
    np.testing.assert_array_equal(result, matmul.expected(given)[0])
    assert not fake.calls("cuMemAlloc")
    enqueue(operands, results, matmul.attributes, wait=True)
    assert len(fake.calls("cuCtxSynchronize")) == 1
    with pytest.raises(ValueError, match="1 results; this call has 2: result, workspace"):
        enqueue(operands, results[:1], matmul.attributes)
    with pytest.raises(ValueError, match="there are no counters of split tiles"):
        _native.enqueue_gemm(operands, results, matmul.attributes)
    wrong = matmul.attributes | {"counters": 1}
    with pytest.raises(ValueError, match=f"attribute counters is 1; this call has {count}"):
        enqueue(operands, results, wrong)


def test_a_profiling_build_is_loaded_beside_the_kernel(fake: FakeDriver, tmp_path: Path) -> None:
    matmul = replace(MATMUL, config=SM90)
    given = matmul.operands()
    result = np.zeros((1, matmul.m, matmul.n), np.float32)
    operands = [
        (x.ctypes.data, x.shape, DTYPES[name][1])
        for x, name in zip(given, matmul.dtypes, strict=True)
    ]
    results = [(result.ctypes.data, result.shape, _native.DataType.F32)]
    directory = tmp_path / "profiled"
    directory.mkdir()
    (directory / f"{matmul.attributes['kernel']}.cubin").touch()

    def enqueue(words: int) -> list[str]:
        """The cubins that are loaded for it."""
        known = len(fake.calls("cuLibraryLoadFromFile"))
        profiling = (str(directory), 4096, words, 16)
        _native.enqueue_gemm(operands, results, matmul.attributes, profiling=profiling)
        return [call["path"] for call in fake.calls("cuLibraryLoadFromFile")[known:]]

    _native.enqueue_gemm(operands, results, matmul.attributes)
    [launch] = fake.launches()
    needed = launch["grid"][0] * (_native.PROFILE_HEAD_WORDS + 12 * 16)
    assert enqueue(needed)[0] == str(next(directory.iterdir()))
    assert enqueue(needed) == []
    assert len(fake.launches()) == 3
    with pytest.raises(ValueError, match=f"takes {needed} words; there are {needed - 1}"):
        enqueue(needed - 1)
    assert len(fake.launches()) == 3
