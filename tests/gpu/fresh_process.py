"""What has to be tried in a process of its own: `python -m tests.gpu.fresh_process SCENARIO`.

First uses that race, kernels that cannot be loaded, and XLA under flags that it reads once. Each
scenario is a function, which raises where something is wrong. test_robustness.py runs them.
"""

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import jaxbw
from jaxbw import _native
from jaxbw._src.lab.bench.case import CONTRACTING
from jaxbw._src.lab.tuning.launching import Gpu
from jaxbw._src.problem import reduce_dot_general
from jaxbw._src.selection import devices, manifest
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.select import select

from ..emulator.gemm_cases import verify_results
from . import direct, fuzz_direct
from .direct import Case

THREADS, STREAMS = 8, 4
CALLS = 200  # of one compiled function
SHORT_LAUNCHES = 300_000  # some 6 seconds
Result = TypeVar("Result")
Values = npt.NDArray[np.float32]


def race_direct() -> None:
    """Every thread launches the same cases in the same order: each first use is everybody's."""
    numbers = [n for n in range(400) if fuzz_direct.draw(2, n).m * fuzz_direct.draw(2, n).n < 2**17]
    cases = [fuzz_direct.draw(2, number) for number in numbers[:96]]
    matmuls = [case.matmul() for case in cases]
    streams = _streams(STREAMS)

    def work(thread: int) -> list[direct.Results]:
        stream = streams[thread % STREAMS]
        return [
            direct.launch(case, matmul, repeats=3, stream=stream)
            for case, matmul in zip(cases, matmuls, strict=True)
        ]

    results = _together(work)
    for case, matmul, *of_threads in zip(cases, matmuls, *results, strict=True):
        verify_results(case, matmul, of_threads[0])
        for other in of_threads[1:]:
            for mine, theirs in zip(of_threads[0], other, strict=True):
                assert mine.tobytes() == theirs.tobytes(), f"{case}: threads differ"
    print(f"{len(cases)} cases, {len({case.kernel for case in cases})} instances")


def race_jax() -> None:
    """Threads compile and call the same functions and some of their own, all for the first time."""
    shared = [jax.jit(_chain), jax.jit(lambda x, w: jaxbw.matmul(x, w.T, implementation="sm90"))]

    def work(thread: int) -> None:
        own = jax.jit(lambda x, w: jaxbw.matmul(x, w, alpha=2.0, implementation="sm90"))
        random = np.random.default_rng(thread)
        for _ in range(25):
            x, w = (random.integers(-2, 3, (256, 256)).astype(np.float32) for _ in range(2))
            given = [jnp.asarray(each, jnp.bfloat16) for each in (x, w)]
            for function, wanted in (
                (shared[0], _chain_of_integers(x, w)),
                (shared[1], x @ w.T),
                (own, 2 * (x @ w)),
            ):
                got = np.asarray(function(*given), np.float32)
                np.testing.assert_array_equal(got, _bf16(wanted))

    _together(work)


def short_clusters() -> None:
    """CTAs must not exit while what a peer tells them is under way: the launch would fail.

    Of few rows one warpgroup has nothing to store, so its last arrivals and the exit are close to
    each other. When that warpgroup was made to finish last, one launch of some 20,000 failed, on an
    H200.
    """
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((5, 15360), (15360, 2560)))
    problem = reduce_dot_general(x, w, (CONTRACTING["nn"], ((), ())), x.dtype).problem
    device = devices.running_device()
    assert device is not None
    bench = Gpu()
    launches = []
    for cluster in ((2, 1), (4, 1)):
        for split_k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
            config = jaxbw.GemmConfig(128, 32, swap_ab=True, cluster=cluster, split_k=split_k)
            choice = select(problem, device, ("sm90",), config, manifest.kernels())
            assert isinstance(choice, Choice), choice
            launches.append(bench.launch(problem, choice))
    for number in range(SHORT_LAUNCHES):
        launch = launches[number // 5 % len(launches)]
        launch(number, number, number % 300 == 299)
    print(f"{SHORT_LAUNCHES} launches")


def broken_kernel() -> None:
    """What the driver refuses is an error that says so, and the next launch is right."""
    case = Case(136, 136, 72)
    with tempfile.TemporaryDirectory() as name:
        for path in manifest.directory().iterdir():
            if path.name != f"{case.kernel}.cubin":
                (Path(name) / path.name).symlink_to(path)
        broken = Path(name) / f"{case.kernel}.cubin"
        _native.set_kernel_directory(name)
        for content in (None, b"", b"no cubin"):
            if content is not None:
                broken.write_bytes(content)
            message = _refused(_native.DriverError, lambda: direct.check(case))
            assert str(broken) in message, message
            assert ": CUDA_ERROR_" in message, message
            direct.check(Case(136, 136, 72, layout="nt"))
    _native.set_kernel_directory(str(manifest.directory()))
    direct.check(case)
    # 335 GiB: the result alone is more than any GPU has.
    large = Case(300_000, 300_000, 1, layout="tn")
    message = _refused(_native.DriverError, lambda: direct.launch(large, large.matmul()))
    assert "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY" in message, message
    direct.check(case)


def with_command_buffers() -> None:
    """One compiled function, replayed as a graph."""
    captured, _ = _call_on_changing_buffers()
    assert captured > 0, "XLA captured nothing"


def without_command_buffers() -> None:
    """One compiled function, launched each time."""
    captured, at_once = _call_on_changing_buffers()
    assert captured == 0
    assert at_once >= CALLS


def _call_on_changing_buffers() -> tuple[int, int]:
    """Calls a function on buffers that are now the same, now others, and compares its results.

    Returns how many launches were captured into a graph, and how many were run at once.
    """
    launches = ctypes.CDLL(os.environ["JAXBW_LIBCUDA"])
    compiled = jax.jit(_chain)
    random = np.random.default_rng(0)
    kept: list[Any] = []  # holding on to results moves the next ones
    addresses, replayed = set(), 0
    for call in range(CALLS):
        if call % 20 < 10 or not kept:  # then ten calls on the same operands
            x, w = (random.integers(-2, 3, (256, 256)).astype(np.float32) for _ in range(2))
            given = [jnp.asarray(each, jnp.bfloat16) for each in (x, w)]
        before = launches.captured_launches() + launches.immediate_launches()
        result = compiled(*given)
        got = np.asarray(result, np.float32)
        replayed += launches.captured_launches() + launches.immediate_launches() == before
        np.testing.assert_array_equal(got, _bf16(_chain_of_integers(x, w)))
        addresses.add(tuple(each.unsafe_buffer_pointer() for each in (*given, result)))
        kept.append((given, result))
        del kept[: random.integers(0, 3)]
    captured, at_once = launches.captured_launches(), launches.immediate_launches()
    print(
        f"{CALLS} calls, {len(addresses)} sets of addresses: {captured} launches captured, "
        f"{at_once} run at once, {replayed} calls without a new launch"
    )
    assert len(addresses) > CALLS // 4, "the buffers did not change"
    return captured, at_once


def _chain(x: Any, w: Any) -> Any:
    """Five matmuls: plain, split, exchanged, on repacked operands, and with an epilogue.

    Of small integers everything stays exact, in bfloat16 too: a matmul's rows are cut to -1..1.
    """

    def step(x: Any, w: Any, **options: Any) -> Any:
        return jaxbw.matmul(x, w, implementation="sm90", **options)

    y = jnp.sign(step(x, w))
    y = jnp.sign(step(y, w, config=jaxbw.GemmConfig(128, 128, split_k=2)))
    y = jnp.sign(step(y, w, config=jaxbw.GemmConfig(128, 64, swap_ab=True)))
    odd = jnp.sign(step(y[:251, :255], w[:255, :253]))
    y = y.at[:251, :253].set(odd)
    return step(y, w, residual=x, activation="relu")


def _chain_of_integers(x: Values, w: Values) -> Values:
    y = np.sign(x @ w)
    y = np.sign(y @ w)
    y = np.sign(y @ w)
    y[:251, :253] = np.sign(y[:251, :255] @ w[:255, :253])
    z: Values = y @ w
    return np.maximum(z, np.float32(0)) + x


def _bf16(values: Values) -> Values:
    return values.astype(jnp.bfloat16).astype(np.float32)


def _together(work: Callable[[int], Result]) -> list[Result]:
    """The results of all threads, which start at the same moment."""
    barrier = threading.Barrier(THREADS)

    def start(thread: int) -> Result:
        barrier.wait()
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def _streams(count: int) -> list[int]:
    """Streams of device 0 that do not wait for the null stream; they are never destroyed."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()

    def call(name: str, *arguments: Any) -> None:
        error = getattr(cuda, name)(*arguments)
        assert error == 0, f"{name}: CUDA error {error}"

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    streams = []
    for _ in range(count):
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        assert stream.value is not None
        streams.append(stream.value)
    call("cuCtxPopCurrent_v2", ctypes.byref(context))
    return streams


def _refused(error: type[Exception], attempt: Callable[[], Any]) -> str:
    """The message of an error that has to be raised."""
    try:
        attempt()
    except error as raised:
        return str(raised)
    raise AssertionError("nothing was refused")


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        *(race_direct, race_jax, short_clusters, broken_kernel),
        *(with_command_buffers, without_command_buffers),
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
