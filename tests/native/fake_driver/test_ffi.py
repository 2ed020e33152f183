"""The XLA custom call: what each stage asks of the driver, what it computes, how it fails."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxbw._native import limits

from . import xla
from .conftest import FakeDriver
from .matmul import PAIR, SM90, SM100, Matmul

BF16 = ml_dtypes.bfloat16
COMMAND_BUFFER_COMPATIBLE = 1
MATMUL = Matmul(config=SM90 | {"cluster_m": 2})
ATTRIBUTES = MATMUL.attributes
_HALVES = Matmul(config=SM90 | {"cluster_m": 2, "split_k": 2})
SPLIT = {"split_k": 2, "counters": _HALVES.counters}


def random(shape: tuple[int, ...], dtype: Any = BF16) -> npt.NDArray[Any]:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def buffers() -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]:
    """Operands and result of one matmul."""
    return MATMUL.operands(), [np.full((1, 136, 264), np.nan, np.float32)]


def execute(matmul: Matmul, *, device: int = 0, stream: int = 0) -> None:
    """Calls the handler, with the workspace that it wants, and compares the results."""
    operands, results = matmul.operands(), matmul.results()
    program = xla.Program(matmul.attributes)
    program.run("initialize", device=device, stream=stream)
    program.run("execute", operands, results, device=device, stream=stream)
    for result, right in zip(results, matmul.expected(operands), strict=False):
        np.testing.assert_array_equal(result, right)


def test_the_stages_share_the_work(fake: FakeDriver) -> None:
    operands, results = buffers()
    xla.call("instantiate", ATTRIBUTES)
    assert (
        not fake.log.exists()
    )  # compiling a program asks nothing of a driver that may not be there

    xla.call("initialize", ATTRIBUTES)
    assert (
        len(fake.calls("cuLibraryLoadFromFile")) == 3
    )  # the gemm kernel, the one that repacks, and the one that adds up
    assert len(fake.calls("cuKernelGetFunction")) == 3
    assert len(fake.calls("cuOccupancyMaxActiveClusters")) == 1
    xla.call("initialize", ATTRIBUTES)
    assert len(fake.calls("cuLibraryLoadFromFile")) == 3

    fake.log.unlink()
    xla.call("execute", ATTRIBUTES, operands, results, stream=0x1230)
    asked = {line.split('"')[3] for line in fake.log.read_text().splitlines()}
    assert asked == {"cuTensorMapEncodeTiled", "cuLaunchKernelEx"}
    assert fake.calls("cuLaunchKernelEx")[0]["stream"] == 0x1230
    np.testing.assert_array_equal(results[0], MATMUL.expected(operands)[0])


def test_a_whole_chain_is_enqueued_on_the_stream(fake: FakeDriver) -> None:
    matmul = Matmul(37, 21, 75, config=SM90 | {"split_k": 2})
    execute(matmul, stream=0x1230)
    launches = fake.calls("cuLaunchKernelEx")
    # The counters are cleared in the device's context, whatever is current, once.
    assert [call["stream"] for call in fake.calls("cuMemsetD32Async")] == [0x1230]
    names = [line.split('"')[3] for line in fake.log.read_text().splitlines()]
    cleared = names.index("cuMemsetD32Async")
    assert names[cleared - 2 : cleared + 2] == [
        "cuCtxPushCurrent",
        "cuMemAlloc",
        "cuMemsetD32Async",
        "cuCtxPopCurrent",
    ]
    assert cleared < names.index("cuLaunchKernelEx")
    assert [call["kernel"] for call in launches] == [
        "jaxbw_sm90_repack_16bit",
        "jaxbw_sm90_bf16_nn_64x128",
    ]
    assert {call["stream"] for call in launches} == {0x1230}


def test_what_adds_up_many_parts_is_enqueued_behind_the_matmul(fake: FakeDriver) -> None:
    parts = limits("sm90")["min_reduced_parts"]
    matmul = Matmul(37, 21, 64 * parts - 5, config=SM90 | {"split_k": parts})
    execute(matmul, stream=0x1230)
    launches = fake.calls("cuLaunchKernelEx")
    assert [(call["kernel"], call["overlaps"]) for call in launches] == [
        ("jaxbw_sm90_repack_16bit", 0),
        ("jaxbw_sm90_bf16_nn_64x128", 1),
        ("jaxbw_sm90_reduce_f32", 1),
    ]
    assert {call["stream"] for call in launches} == {0x1230}
    assert not fake.calls("cuMemsetD32Async")


def test_only_executing_is_captured_into_a_cuda_graph() -> None:
    assert xla.traits("execute") == COMMAND_BUFFER_COMPATIBLE
    assert xla.traits("initialize") == 0
    assert xla.traits("instantiate") == 0


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_bias_is_an_operand(fake: FakeDriver, dtype: str) -> None:
    execute(Matmul(bias=dtype, activation="relu"))


@pytest.mark.parametrize(
    "matmul",
    [
        Matmul(layout="tt", batch=3, shared=("rhs",), output="bf16"),
        Matmul(c="bf16", beta=0.5, bias="f16", residual="f32", alpha=2.0, save=True),
        Matmul(gated=True, save=True, bias="f32", residual="bf16", output="bf16"),
        Matmul(30, 42, 71, layout="tn", dtype="f32", family="sm100", config=SM100),
        Matmul(30, 42, 200, gated=True, family="sm100", config=PAIR | {"split_k": 2}),
        Matmul(24, 264, 72, bias="f32", family="sm100", config=SM100 | {"swap_ab": 1}),
        Matmul(
            in_memory=True, alpha=2.0, beta=-0.5, c="f32", bias="f16", residual="f32", save=True
        ),
        Matmul(in_memory=True, alpha=0.0, gated=True, family="sm100", config=PAIR),
    ],
    ids=["batch", "terms", "gated", "tf32", "split", "swapped", "factors", "a factor"],
)
def test_everything_that_a_call_can_be(fake: FakeDriver, matmul: Matmul) -> None:
    execute(matmul, device=matmul.device)


def test_c_may_be_the_result(fake: FakeDriver) -> None:
    matmul = Matmul(c="f32", beta=1.0)
    operands = matmul.operands()
    (expected,) = matmul.expected(operands)
    xla.call("execute", matmul.attributes, operands, [operands[2]])
    np.testing.assert_array_equal(operands[2], expected)


def test_another_device(fake: FakeDriver) -> None:
    matmul = Matmul(family="sm100", config=SM100)
    xla.call("initialize", matmul.attributes, device=1)
    execute(matmul, device=1)
    with pytest.raises(
        xla.FfiError, match=r"device 0 \(Fake H200\) has compute capability 9\.0"
    ) as info:
        xla.call("initialize", matmul.attributes, device=0)
    assert info.value.code == xla.INTERNAL


def test_a_failed_launch_names_shape_kernel_and_error(fake: FakeDriver) -> None:
    fake.fail("cuLaunchKernelEx", 719)
    text = (
        "jaxbw: bf16[1,136,72] @ bf16[1,72,264] -> f32[1,136,264], "
        "kernel jaxbw_sm90_bf16_nn_64x128, block_m 128, block_n 128, cluster_m 2, stages 4, "
        "device 0: cuLaunchKernelEx: CUDA_ERROR_LAUNCH_FAILED (a fake error)"
    )
    with pytest.raises(xla.FfiError, match=re.escape(text)) as info:
        xla.call("execute", ATTRIBUTES, *buffers())
    assert info.value.code == xla.INTERNAL


@pytest.mark.parametrize("stage", ["instantiate", "initialize"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 99}, "99 stages; a 128x128 tile with k_spans 1 takes 2 to 6"),
        ({"cluster_m": -1}, "a cluster of 4294967295x1 CTAs"),
        ({"split_k": 99}, "split_k is 99; it is 1 to 64"),
        ({"kernel": "other"}, "no kernel family is known for kernel 'other'"),
    ],
)
def test_a_bad_configuration_is_refused_when_the_program_is_compiled(
    fake: FakeDriver, stage: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(xla.FfiError, match=message) as info:
        xla.call(stage, ATTRIBUTES | changes)
    assert info.value.code == xla.INVALID_ARGUMENT
    assert not fake.log.exists()


def test_attributes_must_be_exactly_these(fake: FakeDriver) -> None:
    fewer = {name: value for name, value in ATTRIBUTES.items() if name != "stages"}
    for attributes in (fewer, ATTRIBUTES | {"split": 1}):
        with pytest.raises(xla.FfiError, match="Wrong number of attributes: expected 38"):
            xla.call("instantiate", attributes)


@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (0, random((136, 72)), "they have rank 3"),
        (0, random((1, 136, 80)), "the sizes do not belong to one matmul"),
        (0, random((2, 136, 72)), r"result is \[1,136,264\]; here it is \[2,136,264\]"),
        (0, random((1, 136, 72), np.float16), "they have one dtype"),
        (1, random((1, 72, 256)), r"result is \[1,136,264\]; here it is \[1,136,256\]"),
        (2, random((1, 136, 264), np.float64), "the result is f16, bf16, f32, e4m3 or e5m2"),
        (2, random((0, 136, 264), np.float32), r"result is \[0,136,264\]; here"),
    ],
)
def test_operands_that_are_no_matmul_are_refused(
    fake: FakeDriver, index: int, replacement: npt.NDArray[Any], message: str
) -> None:
    operands, results = buffers()
    given = [*operands, *results]
    given[index] = replacement
    with pytest.raises(xla.FfiError, match=message) as info:
        xla.call("execute", ATTRIBUTES, given[:2], given[2:])
    assert info.value.code == xla.INVALID_ARGUMENT
    assert not fake.calls("cuLaunchKernelEx")


def test_a_dimension_of_zero_is_refused(fake: FakeDriver) -> None:
    matmul = Matmul(m=0)
    with pytest.raises(xla.FfiError, match="a dimension is 0"):
        xla.call(
            "execute", matmul.attributes, matmul.operands(), [np.zeros((1, 0, 264), np.float32)]
        )


# What is called beside operands and result of one matmul: attributes, operands, results.
WRONG_CALLS: list[tuple[dict[str, int], list[Any], list[Any], str]] = [
    ({}, [random((264,))], [], r"alpha is \[264\]; here it is \[\]"),
    (
        {},
        [random(())] * 2,
        [],
        "4 operands; the attributes say that there are 2, or with factors 3",
    ),
    ({"has_c": 1}, [random((1, 136, 264)), random(())], [], "4 operands; .* 3, or with factors 5"),
    ({"has_bias": 1}, [], [], "2 operands; the attributes say that there are 3"),
    ({"has_bias": 1}, [random((256,))], [], r"bias is \[256\]; here it is \[264\]"),
    ({"has_bias": 1}, [random((264,), np.float64)], [], "bias is not f16, bf16 or f32"),
    ({"has_rhs_scale": 1}, [random((1, 136))], [], r"rhs_scale is \[1,136\]; here it is \[1,264\]"),
    ({"has_lhs_scale": 1}, [random((1, 136), np.float16)], [], "lhs_scale has another dtype"),
    ({"has_lhs_scale": 2}, [random((1, 136))], [], "attribute has_lhs_scale is 2; it is 0 or 1"),
    ({}, [], [random((1, 136, 264))], "2 results; this call has 1: result"),
    ({"save": 1}, [], [], "1 results; this call has 2: result, saved"),
    ({"save": 1}, [], [random((1, 136, 264))], "saved has another dtype"),
    (SPLIT, [], [], "1 results; this call has 2: result, workspace"),
    (SPLIT, [], [np.zeros(256, np.uint8)], r"workspace is \[256\]; here it is \[\d+\]"),
    ({"split_k": 2}, [], [], r"attribute counters is 0; this call has \d+"),
    ({"counters": 3}, [], [], "attribute counters is 3; this call has 0"),
]


@pytest.mark.parametrize(("attributes", "operands", "results", "message"), WRONG_CALLS)
def test_the_attributes_say_which_arrays_there_are(
    fake: FakeDriver,
    attributes: dict[str, int],
    operands: list[Any],
    results: list[Any],
    message: str,
) -> None:
    given, written = buffers()
    with pytest.raises(xla.FfiError, match=message) as info:
        xla.call("execute", ATTRIBUTES | attributes, given + operands, written + results)
    assert info.value.code == xla.INVALID_ARGUMENT
    assert not fake.calls("cuLaunchKernelEx")


def test_a_misaligned_buffer_is_refused(fake: FakeDriver) -> None:
    operands, results = buffers()
    operands[1] = np.zeros(72 * 264 + 1, BF16)[1:].reshape(1, 72, 264)
    with pytest.raises(
        xla.FfiError, match=r"rhs is at address \d+; it needs a multiple of 16 bytes"
    ):
        xla.call("execute", ATTRIBUTES, operands, results)


def test_a_misaligned_result_is_stored_without_tma(fake: FakeDriver) -> None:
    operands, _ = buffers()
    result = np.zeros(136 * 264 + 1, np.float32)[1:].reshape(1, 136, 264)
    xla.call("execute", ATTRIBUTES, operands, [result])
    np.testing.assert_array_equal(result, MATMUL.expected(operands)[0])
    assert fake.launches()[0]["store_path"] == 1


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
    xla.call("execute", ATTRIBUTES, *large(m, n, k))
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
        xla.call("execute", ATTRIBUTES, *large(m, n, k))


def test_more_work_than_a_grid_holds_is_refused(fake: FakeDriver) -> None:
    fake.launch_only()
    given = large(2**15, 2**15, 64, batch=2**16)
    with pytest.raises(xla.FfiError, match="128x256 cluster tiles for each of 65536 batch indices"):
        xla.call("execute", ATTRIBUTES, *given)


def large(
    m: int, n: int, k: int, batch: int = 1
) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]:
    """Operands and result of a size that exists in no memory: one element, repeated."""
    cell = np.zeros(8, np.float32)

    def matrix(rows: int, columns: int, dtype: Any) -> npt.NDArray[Any]:
        return np.broadcast_to(cell.view(dtype)[0], (batch, rows, columns))

    return [matrix(m, k, BF16), matrix(k, n, BF16)], [matrix(m, n, np.float32)]
