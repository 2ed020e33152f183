"""The direct launcher finds what a kernel does wrong, names failed driver calls, and cleans up."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxbw import _native

from ...gpu import direct
from ...gpu.direct import Case
from .conftest import FakeDriver

CASE = Case(136, 264, 72, bias="f32")

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
    given = direct.operands(CASE)
    fake.fail(call, 719)
    with pytest.raises(
        _native.DriverError, match=rf"{call}: CUDA_ERROR_LAUNCH_FAILED \(a fake error\)"
    ):
        direct.launch(CASE, given, device=0)
    allocated = len(fake.calls("cuMemAlloc")) - (call == "cuMemAlloc")
    assert len(fake.calls("cuMemFree")) == allocated
    entered = len(fake.calls("cuCtxPushCurrent")) - (call == "cuCtxPushCurrent")
    assert len(fake.calls("cuCtxPopCurrent")) == entered


def test_a_failed_launch_says_what_was_launched(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 700)
    text = (
        "jaxbw: bf16[1,136,72] @ bf16[1,72,264] + bias -> f32[1,136,264], "
        "kernel jaxbw_sm90_bf16_nn_128x128x64, block 128x128, cluster 1x1, cta_group 1, stages 6, "
        "swizzle 1, device 0: cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS (a fake error)"
    )
    with pytest.raises(_native.DriverError, match=re.escape(text)):
        direct.check(CASE)


def test_an_unknown_error_has_its_number(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 12345)
    with pytest.raises(_native.DriverError, match="cuLaunchKernelEx: CUDA error 12345"):
        direct.check(CASE)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("output", ["bf16", "f32"])
def test_a_write_outside_the_result_is_found(fake: FakeDriver, side: str, output: str) -> None:
    fake.misbehave(side)
    with pytest.raises(RuntimeError, match=f"the guard {side} the result buffer was overwritten"):
        direct.check(replace(CASE, output=output))


def test_an_unwritten_element_is_found(fake: FakeDriver) -> None:
    fake.misbehave("unwritten")
    with pytest.raises(AssertionError, match=r"1 of 35904 elements are wrong, 1 are NaN"):
        direct.check(CASE)


def test_a_result_that_changes_is_found(fake: FakeDriver) -> None:
    fake.misbehave("unstable")
    given = direct.operands(CASE)
    direct.launch(CASE, given)
    with pytest.raises(RuntimeError, match="launch 2 of 3 differs from the first at element 0"):
        direct.launch(CASE, given, repeats=3)


@pytest.mark.parametrize("guard_bytes", [0, 16, 4096])
def test_buffers_lie_between_guards(fake: FakeDriver, guard_bytes: int) -> None:
    direct.check(CASE, guard_bytes=guard_bytes, repeats=2)
    payloads = [136 * 72 * 2, 72 * 264 * 2, 264 * 4, 136 * 264 * 4]
    sizes = [call["bytes"] for call in fake.calls("cuMemAlloc")]
    assert sizes == [payload + 2 * guard_bytes for payload in payloads]
    poisoned = [call for call in fake.calls("cuMemsetD8") if call["bytes"] == payloads[-1]]
    assert [call["value"] for call in poisoned][-2:] == [0xFF, 0xFF]  # before each launch


def arguments(**changes: Any) -> dict[str, Any]:
    """A launch of 128 x 128 x 64 that is right but for the changes."""
    matrix = np.zeros((1, 128, 64), np.uint16)
    settings = {
        "lhs": matrix,
        "rhs": matrix,
        "kernel": "jaxbw_sm90_bf16_nt_128x128x64",
        "lhs_dtype": _native.DataType.BF16,
        "output": _native.DataType.F32,
        "lhs_major": _native.Major.K,
        "rhs_major": _native.Major.K,
        "block_m": 128,
        "block_n": 128,
        "stages": 4,
    }
    return settings | changes


SM100 = {
    "kernel": "jaxbw_sm100_16bit_2cta",
    "cta_group": 2,
    "block_m": 256,
    "cluster_m": 2,
    "device": 1,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 1}, "1 stages; a 128x128 tile takes 2 to 6"),
        ({"stages": 7}, "7 stages"),
        ({"swizzle": 0}, "swizzle is 0"),
        ({"cluster_m": 0}, "a cluster of 0x1 CTAs"),
        ({"cluster_m": 16}, "a cluster of 16x1 CTAs; it has 1 to 8"),
        ({"cluster_m": 4, "cluster_n": 4}, "a cluster of 4x4 CTAs"),
        ({"cluster_m": 3}, "rhs is shared by 3 CTAs, which cannot load equal parts of 128 rows"),
        ({"block_m": 64}, "block_m is 64; the sm_90 kernels compute 128 rows"),
        ({"block_n": 192}, "needs kernel jaxbw_sm90_bf16_nt_128x192x64"),
        ({"block_n": 2**31}, "block_n is 2147483648"),
        ({"cta_group": 2, "cluster_m": 2}, "sm_90 has no CTA pairs"),
        ({"kernel": "gemm"}, "no kernel family is known for kernel 'gemm'"),
        ({"kernel": "jaxbw_sm90_f16_nt_128x128x64"}, "needs kernel jaxbw_sm90_bf16_nt_128x128x64"),
        ({"lhs_dtype": _native.DataType.F32}, "the operands are not f16 or bf16"),
        ({"guard_bytes": 8}, "guard_bytes is 8; it is a multiple of 16"),
        ({"repeats": 0}, "repeats is 0"),
        ({"lhs": np.zeros((1, 0, 64), np.uint16)}, "a dimension is 0"),
        ({"lhs": np.zeros((1, 128, 65), np.uint16)}, "do not belong to one product"),
        (
            {"lhs": np.zeros((2, 128, 64), np.uint16), "rhs": np.zeros((3, 128, 64), np.uint16)},
            "one product",
        ),
        ({"lhs": np.zeros((128, 64), np.uint16)}, "lhs has rank 3"),
        ({"rhs": np.zeros((1, 128, 64), np.uint8)}, "rhs has rank 3 and elements of 2 bytes"),
        (
            {"rhs": np.zeros((1, 127, 64), np.uint16)},
            r"result f32\[1,128,127\] has rows of 508 bytes; TMA",
        ),
        (
            {"lhs": np.zeros((1, 128, 60), np.uint16), "rhs": np.zeros((1, 128, 60), np.uint16)},
            r"lhs bf16\[1,128,60\] has rows of 120 bytes; TMA needs a multiple of 16",
        ),
        ({"bias": np.zeros(128, np.float32)}, "bias and bias_dtype go together"),
        (
            {"bias": np.zeros(64, np.uint16), "bias_dtype": _native.DataType.BF16},
            "bias is a vector of n",
        ),
        (SM100 | {"cluster_m": 1}, "cluster_m 1 is not a multiple of cta_group 2"),
        (SM100 | {"block_m": 128}, "block_m is 128; cta_group 2 computes 256 rows"),
        (
            SM100 | {"block_n": 48},
            "block_n is 48; the sm_100 kernels take multiples of 32 up to 256",
        ),
        (SM100 | {"cta_group": 3}, "cta_group is 3; it is 1 or 2"),
        (
            SM100
            | {
                "block_n": 96,
                "rhs": np.zeros((1, 64, 96), np.uint16),
                "rhs_major": _native.Major.MN,
            },
            "rhs is MN-major and its tile is 48 wide; it is loaded in columns of 64",
        ),
        (SM100 | {"kernel": "jaxbw_sm100_16bit_1cta"}, "needs kernel jaxbw_sm100_16bit_2cta"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    fake: FakeDriver, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _native.launch_gemm(**arguments(**changes))
    assert not fake.calls("cuLaunchKernelEx")


def test_a_wrong_dtype_is_refused_before_the_array_is_read(fake: FakeDriver) -> None:
    # Four bytes an element were once copied from arrays that have two.
    with pytest.raises(ValueError, match="the operands are not f16 or bf16"):
        _native.launch_gemm(**arguments(lhs_dtype=_native.DataType.F32))
    assert not fake.calls("cuMemcpyHtoD")


def test_the_unchanged_arguments_are_launched(fake: FakeDriver) -> None:
    assert not _native.launch_gemm(**arguments()).any()
    assert not _native.launch_gemm(**arguments(**SM100)).any()
