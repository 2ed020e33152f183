"""The XLA custom call: what each stage asks of the driver, what it computes, how it fails."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxbw import _native

from . import xla
from .conftest import FakeDriver

BF16 = ml_dtypes.bfloat16
COMMAND_BUFFER_COMPATIBLE = 1

ATTRIBUTES: dict[str, str | int] = {
    "kernel": "jaxbw_sm90_bf16_nn_128x128x64",
    "lhs_major": _native.Major.K.value,
    "rhs_major": _native.Major.MN.value,
    "activation": _native.Activation.NONE.value,
    "block_m": 128,
    "block_n": 128,
    "cluster_m": 2,
    "cluster_n": 1,
    "cta_group": 1,
    "stages": 4,
    "swizzle": 1,
}


def random(shape: tuple[int, ...], dtype: Any = BF16) -> npt.NDArray[Any]:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def buffers() -> list[npt.NDArray[Any]]:
    """lhs, rhs and result of one product."""
    return [random((1, 136, 72)), random((1, 72, 264)), np.full((1, 136, 264), np.nan, np.float32)]


def product(lhs: npt.NDArray[Any], rhs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return lhs.astype(np.float32) @ rhs.astype(np.float32)


def test_the_stages_share_the_work(fake: FakeDriver) -> None:
    given = buffers()
    xla.call("instantiate", ATTRIBUTES)
    assert (
        not fake.log.exists()
    )  # compiling a program asks nothing of a driver that may not be there

    xla.call("initialize", ATTRIBUTES)
    assert len(fake.calls("cuLibraryLoadFromFile")) == 1
    assert len(fake.calls("cuKernelGetFunction")) == 1
    assert len(fake.calls("cuOccupancyMaxActiveClusters")) == 1
    xla.call("initialize", ATTRIBUTES)
    assert len(fake.calls("cuLibraryLoadFromFile")) == 1

    fake.log.unlink()
    xla.call("execute", ATTRIBUTES, given, stream=0x1230)
    asked = {line.split('"')[3] for line in fake.log.read_text().splitlines()}
    assert asked == {"cuTensorMapEncodeTiled", "cuLaunchKernelEx"}
    assert fake.calls("cuLaunchKernelEx")[0]["stream"] == 0x1230
    np.testing.assert_array_equal(given[2], product(given[0], given[1]))


def test_only_executing_is_captured_into_a_cuda_graph() -> None:
    assert xla.traits("execute") == COMMAND_BUFFER_COMPATIBLE
    assert xla.traits("initialize") == 0
    assert xla.traits("instantiate") == 0


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16], ids=lambda dtype: dtype.__name__)
def test_bias_is_an_optional_third_operand(fake: FakeDriver, dtype: Any) -> None:
    lhs, rhs, result = buffers()
    bias = random((264,), dtype)
    attributes = ATTRIBUTES | {"activation": _native.Activation.RELU.value}
    xla.call("execute", attributes, [lhs, rhs, bias, result])
    expected = np.maximum(product(lhs, rhs) + bias.astype(np.float32), 0)
    np.testing.assert_array_equal(result, expected)


def test_transposed_operands_and_batches(fake: FakeDriver) -> None:
    lhs, rhs = random((3, 72, 136)), random((1, 264, 72))
    result = np.full((3, 136, 264), np.nan, BF16)
    attributes = ATTRIBUTES | {
        "kernel": "jaxbw_sm90_bf16_tt_128x128x64",
        "lhs_major": _native.Major.MN.value,
        "rhs_major": _native.Major.K.value,
    }
    xla.call("execute", attributes, [lhs, rhs, result])
    expected = product(lhs.swapaxes(1, 2), rhs.swapaxes(1, 2)).astype(BF16)
    np.testing.assert_array_equal(result, expected)
    assert fake.calls("cuLaunchKernelEx")[0]["batched"] == [1, 0]


def test_another_device(fake: FakeDriver) -> None:
    given = buffers()
    attributes = ATTRIBUTES | {"kernel": "jaxbw_sm100_16bit_1cta"}
    xla.call("initialize", attributes, device=1)
    xla.call("execute", attributes, given, device=1)
    np.testing.assert_array_equal(given[2], product(given[0], given[1]))
    with pytest.raises(
        xla.FfiError, match=r"device 0 \(Fake H200\) has compute capability 9\.0"
    ) as info:
        xla.call("initialize", attributes, device=0)
    assert info.value.code == xla.INTERNAL


def test_a_failed_launch_names_shape_kernel_and_error(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 719)
    text = (
        "jaxbw: bf16[1,136,72] @ bf16[1,72,264] -> f32[1,136,264], "
        "kernel jaxbw_sm90_bf16_nn_128x128x64, block 128x128, cluster 2x1, cta_group 1, stages 4, "
        "swizzle 1, device 0: cuLaunchKernelEx: CUDA_ERROR_LAUNCH_FAILED (a fake error)"
    )
    with pytest.raises(xla.FfiError, match=re.escape(text)) as info:
        xla.call("execute", ATTRIBUTES, buffers())
    assert info.value.code == xla.INTERNAL


@pytest.mark.parametrize("stage", ["instantiate", "initialize"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 99}, "99 stages; a 128x128 tile takes 2 to 6"),
        ({"cluster_m": -1}, "a cluster of 4294967295x1 CTAs"),
        ({"kernel": "other"}, "no kernel family is known for kernel 'other'"),
    ],
)
def test_a_bad_configuration_is_refused_when_the_program_is_compiled(
    fake: FakeDriver, stage: str, changes: dict[str, str | int], message: str
) -> None:
    with pytest.raises(xla.FfiError, match=message) as info:
        xla.call(stage, ATTRIBUTES | changes)
    assert info.value.code == xla.INVALID_ARGUMENT
    assert not fake.log.exists()


def test_attributes_must_be_exactly_these(fake: FakeDriver) -> None:
    fewer = {name: value for name, value in ATTRIBUTES.items() if name != "stages"}
    for attributes in (fewer, ATTRIBUTES | {"split_k": 1}):
        with pytest.raises(xla.FfiError, match="Wrong number of attributes: expected 11"):
            xla.call("instantiate", attributes)


@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (0, random((136, 72)), "lhs, rhs and result have rank 3"),
        (0, random((1, 136, 80)), "the sizes do not belong to one product"),
        (0, random((2, 136, 72)), "the sizes do not belong to one product"),
        (0, random((1, 136, 72), np.float16), "lhs and rhs have one dtype"),
        (1, random((1, 72, 256)), "the sizes do not belong to one product"),
        (2, random((1, 136, 264), np.float64), "the result is f16, bf16 or f32"),
        (2, random((0, 136, 264), np.float32), "a dimension is 0"),
    ],
)
def test_operands_that_are_no_product_are_refused(
    fake: FakeDriver, index: int, replacement: npt.NDArray[Any], message: str
) -> None:
    given = buffers()
    given[index] = replacement
    with pytest.raises(xla.FfiError, match=message) as info:
        xla.call("execute", ATTRIBUTES, given)
    assert info.value.code == xla.INVALID_ARGUMENT
    assert not fake.calls("cuLaunchKernelEx")


def test_a_wrong_bias_is_refused(fake: FakeDriver) -> None:
    lhs, rhs, result = buffers()
    for bias in (random((256,)), random((1, 264)), random((264,), np.float64)):
        with pytest.raises(
            xla.FfiError, match="bias is a vector as long as the result's last dimension"
        ):
            xla.call("execute", ATTRIBUTES, [lhs, rhs, bias, result])
    with pytest.raises(xla.FfiError, match="more than three operands"):
        xla.call("execute", ATTRIBUTES, [lhs, rhs, random((264,)), random((264,)), result])


def test_a_misaligned_buffer_is_refused(fake: FakeDriver) -> None:
    given = buffers()
    given[1] = np.zeros(72 * 264 + 1, BF16)[1:].reshape(1, 72, 264)
    with pytest.raises(
        xla.FfiError, match=r"rhs is at address \d+; TMA needs a multiple of 16 bytes"
    ):
        xla.call("execute", ATTRIBUTES, given)


# No memory is touched: the shapes alone are large.
@pytest.mark.parametrize(
    ("m", "n", "k", "tiles"),
    [
        (2**17, 2**17, 64, [512, 1024]),  # m * n = 2^34
        (2**31 - 128, 8, 64, [8388608, 1]),
        (8, 2**31 - 128, 64, [1, 16777215]),
    ],
)
def test_sizes_beyond_32_bits(fake: FakeDriver, m: int, n: int, k: int, tiles: list[int]) -> None:
    fake.launch_only()
    xla.call("execute", ATTRIBUTES, large(m, n, k))
    launch = fake.calls("cuLaunchKernelEx")[0]
    assert launch["tiles"] == tiles
    assert launch["grid"] == [min(tiles[0] * tiles[1], 66) * 2, 1, 1]
    result = fake.calls("cuTensorMapEncodeTiled")[2]
    assert result["strides"] == [4 * n, 4 * n * m]


@pytest.mark.parametrize(
    ("m", "n", "k", "message"),
    [
        (2**31, 8, 64, "has a dimension of 2\\^31 or more"),
        (2**24, 2**24, 64, "has matrices of 2\\^40 bytes or more"),
    ],
)
def test_sizes_beyond_tma_are_refused(
    fake: FakeDriver, m: int, n: int, k: int, message: str
) -> None:
    fake.launch_only()
    with pytest.raises(xla.FfiError, match=message):
        xla.call("execute", ATTRIBUTES, large(m, n, k))


def test_more_work_than_a_grid_holds_is_refused(fake: FakeDriver) -> None:
    fake.launch_only()
    lhs, rhs, result = large(2**15, 2**15, 64, batch=2**16)
    with pytest.raises(xla.FfiError, match="128x256 cluster tiles for each of 65536 batch indices"):
        xla.call("execute", ATTRIBUTES, [lhs, rhs, result])


def large(m: int, n: int, k: int, batch: int = 1) -> list[npt.NDArray[Any]]:
    """Operands of a size that exists in no memory: one element, repeated."""
    cell = np.zeros(8, np.float32)

    def matrix(rows: int, columns: int, dtype: Any) -> npt.NDArray[Any]:
        return np.broadcast_to(cell.view(dtype)[0], (batch, rows, columns))

    return [matrix(m, k, BF16), matrix(k, n, BF16), matrix(m, n, np.float32)]
