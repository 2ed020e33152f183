"""A program that runs its custom call again: what is worked out once, and what must not be."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ...alignment import aligned
from . import xla
from .conftest import FakeDriver
from .matmul import SM90, Matmul, Values

MATMULS = {
    "plain": Matmul(config=SM90 | {"cluster_m": 2}),
    "repacked and split": Matmul(37, 21, 75, config=SM90 | {"split_k": 2}),
    "epilogue": Matmul(c="bf16", beta=0.5, bias="f16", residual="f32", alpha=2.0, save=True),
    "gated": Matmul(gated=True, save=True, output="bf16"),
    "factors": Matmul(in_memory=True, alpha=2.0, beta=0.5, c="f32"),
}
PLAIN = MATMULS["plain"]


def operands_of(matmul: Matmul, factor: int) -> list[Values]:
    """Operands of their own for each factor, each time elsewhere in memory."""
    given = matmul.operands()
    return [np.asarray(factor * values.astype(np.float32), values.dtype) for values in given]


def moved(values: Values, past: int) -> Values:
    """A copy so many bytes past a multiple of 16."""
    copy = aligned(values.shape, values.dtype, past)
    copy[...] = values
    return copy


def execute(
    program: xla.Program,
    matmul: Matmul,
    factor: int = 1,
    *,
    device: int = 0,
    stream: int = 0,
    past: int = 0,
) -> None:
    """Runs the program on new buffers, and compares the results.

    The first result lies `past` bytes behind a multiple of 16.
    """
    operands, results = operands_of(matmul, factor), matmul.results()
    results[0] = moved(results[0], past)
    program.run("initialize", device=device, stream=stream)
    program.run("execute", operands, results, device=device, stream=stream)
    for result, expected in zip(results, matmul.expected(operands), strict=False):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", MATMULS)
def test_a_program_follows_its_buffers(fake: FakeDriver, name: str) -> None:
    matmul = MATMULS[name]
    program = xla.Program(matmul.attributes)
    for factor in (1, 2, -1):
        execute(program, matmul, factor)


@pytest.mark.parametrize("name", MATMULS)
def test_a_second_execution_asks_for_nothing_but_its_launch(fake: FakeDriver, name: str) -> None:
    matmul = MATMULS[name]
    program = xla.Program(matmul.attributes)
    program.run("initialize")
    execute(program, matmul)
    fake.log.unlink()
    fake.fail("cuLibraryLoadFromFile", 500)
    program.run("initialize")
    assert not fake.log.exists()
    execute(program, matmul)
    asked = {line.split('"')[3] for line in fake.log.read_text().splitlines()}
    assert asked == {"cuTensorMapEncodeTiled", "cuLaunchKernelEx"}


def test_a_program_has_counters_of_its_own(fake: FakeDriver) -> None:
    """Launches of two programs may overlap, and each leaves its counters zero."""
    matmul = MATMULS["repacked and split"]
    programs = [xla.Program(matmul.attributes) for _ in range(2)]
    for program in programs * 2:
        execute(program, matmul, stream=0x20)
    asked = [call["bytes"] for call in fake.calls("cuMemAlloc")]
    assert asked == [4 * matmul.counters] * 2
    cleared = [(call["count"], call["stream"]) for call in fake.calls("cuMemsetD32Async")]
    assert cleared == [(matmul.counters, 0x20)] * 2  # before all launches, on their stream
    first, second, *again = [launch["counters"] for launch in fake.launches()]
    assert first != second
    assert again == [first, second]
    del program, programs
    assert len(fake.calls("cuMemFree")) == 2


@pytest.mark.parametrize("failing", ["cuMemAlloc", "cuMemsetD32Async"])
def test_without_counters_a_program_does_not_run(fake: FakeDriver, failing: str) -> None:
    matmul = MATMULS["repacked and split"]
    program = xla.Program(matmul.attributes)
    fake.fail(failing, 2)
    message = f"{matmul.counters} counters on device 0: {failing}: CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(xla.FfiError, match=message):
        program.run("initialize")
    with pytest.raises(xla.FfiError, match="there are no counters of split tiles"):
        program.run("execute", matmul.operands(), matmul.results())
    fake.recover()
    execute(program, matmul)


def test_other_streams_are_launched_on(fake: FakeDriver) -> None:
    program = xla.Program(PLAIN.attributes)
    for stream in (0x10, 0x20, 0x10):
        execute(program, PLAIN, stream=stream)
    assert [call["stream"] for call in fake.launches()] == [0x10, 0x20, 0x10]


def test_a_misaligned_result_is_stored_without_tma_that_once(fake: FakeDriver) -> None:
    program = xla.Program(PLAIN.attributes)
    for past in (0, 4, 0):
        execute(program, PLAIN, past=past)
    assert [call["store_path"] for call in fake.launches()] == [0, 1, 0]


@pytest.mark.parametrize(
    ("role", "block_n", "other"),
    [
        ("plain", 128, "jaxbw_sm90_cast_bf16_nn_64x128"),
        ("plain", 192, "jaxbw_sm90_bf16_nn_64x192"),
        ("elementwise", 128, "jaxbw_sm90_bf16_nn_64x128"),
        ("fused", 128, "jaxbw_sm90_bf16_nn_64x128"),
    ],
)
def test_a_misaligned_result_takes_a_kernel_that_stores_without_tma(
    fake: FakeDriver, role: str, block_n: int, other: str
) -> None:
    """The launch asked for another kernel, and the one that was prepared for the plan was launched:

    without a tensor map, as it stores by TMA alone. The other one is loaded before, too, since an
    execution may be captured.
    """
    kernel = f"jaxbw_sm90_{role}_bf16_nn_64x{block_n}"
    matmul = Matmul(
        activation="relu" if role == "elementwise" else "none",
        residual="bf16" if role == "fused" else None,
        config=SM90 | {"block_n": block_n, "kernel": kernel},
    )
    program = xla.Program(matmul.attributes)
    program.run("initialize")
    fake.fail("cuLibraryLoadFromFile", 500)
    for past in (0, 4, 0):
        execute(program, matmul, past=past)
    launched = [(call["kernel"], call["store_path"]) for call in fake.launches()]
    assert launched == [(kernel, 0), (other, 1), (kernel, 0)]


def test_a_tile_without_a_kernel_for_all_launches_refuses_a_misaligned_result(
    fake: FakeDriver,
) -> None:
    kernel = "jaxbw_sm90_plain_bf16_nn_192x96"
    matmul = Matmul(config=SM90 | {"block_m": 192, "block_n": 192, "kernel": kernel})
    program = xla.Program(matmul.attributes)
    with pytest.raises(xla.FfiError, match=rf"{kernel} needs a multiple of 16 bytes"):
        execute(program, matmul, past=4)
    execute(program, matmul)
    assert [call["kernel"] for call in fake.launches()] == [kernel]


def test_a_misaligned_residual_takes_the_kernel_for_all_launches(fake: FakeDriver) -> None:
    """TMA cannot bring it, and the kernel of the plan has no other way to read it."""
    kernel = "jaxbw_sm90_fused_bf16_nn_64x128"
    matmul = Matmul(residual="bf16", config=SM90 | {"block_n": 128, "kernel": kernel})
    program = xla.Program(matmul.attributes)
    operands = matmul.operands()
    (expected,) = matmul.expected(operands)
    for past in (0, 2, 0):
        result = np.full_like(expected, np.nan)
        program.run("execute", [*operands[:-1], moved(operands[-1], past)], [result])
        np.testing.assert_array_equal(result, expected)
    other = "jaxbw_sm90_bf16_nn_64x128"
    assert [call["kernel"] for call in fake.launches()] == [kernel, other, kernel]


def test_a_plan_is_for_its_shapes(fake: FakeDriver) -> None:
    # XLA gives a call its shapes for good; a plan that served others would read past them.
    small = Matmul(40, 264, 72, config=PLAIN.config)
    assert small.attributes == PLAIN.attributes
    program = xla.Program(PLAIN.attributes)
    for matmul in (PLAIN, small, PLAIN):
        execute(program, matmul)
    with pytest.raises(xla.FfiError, match=r"result is \[1,136,264\]; here it is \[1,40,264\]"):
        program.run("execute", small.operands(), PLAIN.results())
    execute(program, small)


def test_a_plan_is_for_its_device(fake: FakeDriver) -> None:
    program = xla.Program(PLAIN.attributes)
    execute(program, PLAIN)
    for stage in ("initialize", "execute"):
        with pytest.raises(xla.FfiError, match=r"device 1 .* has compute capability 10\.0"):
            program.run(stage, PLAIN.operands(), PLAIN.results(), device=1)
    execute(program, PLAIN)


def test_a_failure_is_not_kept(fake: FakeDriver) -> None:
    matmul = Matmul(48, 264, 72, layout="tt")  # whose kernel no other test loads
    program = xla.Program(matmul.attributes)
    fake.fail("cuLibraryLoadFromFile", 500)
    for stage in ("initialize", "execute"):
        with pytest.raises(xla.FfiError, match="cuLibraryLoadFromFile: CUDA_ERROR_NOT_FOUND"):
            program.run(stage, matmul.operands(), matmul.results())
    fake.recover()
    execute(program, matmul)
    fake.fail("cuLaunchKernelEx", 719)
    with pytest.raises(xla.FfiError, match="CUDA_ERROR_LAUNCH_FAILED"):
        program.run("execute", matmul.operands(), matmul.results())
    fake.recover()
    execute(program, matmul)


@pytest.mark.parametrize("name", MATMULS)
def test_eight_threads_use_a_program_first(fake: FakeDriver, name: str) -> None:
    matmul = MATMULS[name]
    program = xla.Program(matmul.attributes)
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for _ in range(3):
            program.run("initialize")
            execute(program, matmul, number + 1, stream=0x10 * (number % 4))

    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(work, range(8)))) == 8
