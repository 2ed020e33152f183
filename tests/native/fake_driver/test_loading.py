"""Driver and kernels are opened once; when one cannot be opened, the message says why."""

import threading
from pathlib import Path

import pytest

from jaxbw import _native

from .conftest import FakeDriver
from .matmul import SM90, Matmul


def test_eight_threads_load_a_kernel_once(fake: FakeDriver) -> None:
    matmul = Matmul(136, 136, 72)
    start = threading.Barrier(8)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            start.wait()
            matmul.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert {call["version"] for call in fake.calls("cuGetProcAddress")} == {12000}
    assert len(fake.calls("cuInit")) == 1
    loaded = [call["path"].rsplit("/")[-1] for call in fake.calls("cuLibraryLoadFromFile")]
    assert loaded == [
        "jaxbw_sm90_bf16_nn_64x128.cubin",
        "jaxbw_sm90_repack_16bit.cubin",
        "jaxbw_sm90_reduce_f32.cubin",
    ]
    assert len(fake.calls("cuDevicePrimaryCtxRetain")) == 1
    assert len(fake.calls("cuOccupancyMaxActiveClusters")) == 1
    assert len(fake.calls("cuLaunchKernelEx")) == 8


def test_occupancy_is_asked_once_for_each_cluster_and_shared_memory(fake: FakeDriver) -> None:
    shallow = {"block_n": 192, "stages": 2}
    wide = shallow | {"cluster_m": 2}
    deepest = _native.max_stages("sm90", 128, 192, 1)
    for config in (shallow, wide, shallow | {"stages": deepest}, shallow, wide):
        Matmul(136, 192, 72, config=SM90 | config).check()
    names = [call["name"] for call in fake.calls("cuLibraryGetKernel")]
    assert names.count("jaxbw_sm90_bf16_nn_64x192") == 1
    asked = [(c["cluster"], c["shared_memory"]) for c in fake.calls("cuOccupancyMaxActiveClusters")]
    two, most = (
        _native.shared_memory_bytes("sm90", 128, 192, 1, stages) for stages in (2, deepest)
    )
    assert asked == [(1, two), (2, two), (1, most)]
    # Always to the limit: a later launch with fewer stages does not lower it for an earlier one.
    limits = {(call["attribute"], call["value"]) for call in fake.calls("cuKernelSetAttribute")}
    assert limits == {(8, 232448), (14, 1)}  # shared memory, clusters of more than 8


def test_a_failure_is_not_kept(fake: FakeDriver) -> None:
    matmul = Matmul(config=SM90 | {"block_n": 256})
    fake.fail("cuLibraryLoadFromFile", 2)
    with pytest.raises(
        _native.DriverError, match="cuLibraryLoadFromFile: CUDA_ERROR_OUT_OF_MEMORY"
    ):
        matmul.check()
    fake.recover()
    matmul.check()


@pytest.mark.parametrize(
    "call",
    ["cuLibraryLoadFromFile", "cuLibraryGetKernel", "cuKernelSetAttribute", "cuKernelGetFunction"],
)
def test_a_refused_cubin_names_the_driver_and_the_gpu_it_needs(fake: FakeDriver, call: str) -> None:
    fake.fail(call, 209)
    needed = r"compute capability 9\.0 \(H100.*supports CUDA 13\.0; this one supports CUDA 13\.0"
    with pytest.raises(
        _native.DriverError, match=f"{call}: CUDA_ERROR_NO_BINARY_FOR_GPU.*{needed}"
    ):
        Matmul(136, 136, 72, dtype="f16").check()


def test_a_missing_cubin_is_named(fake: FakeDriver) -> None:
    _native.set_kernel_directory("/nowhere")
    missing = r"/nowhere/jaxbw_sm90_bf16_tt_64x64\.cubin: .*CUDA_ERROR_FILE_NOT_FOUND"
    with pytest.raises(_native.DriverError, match=missing):
        Matmul(136, 136, 72, layout="tt", config=SM90 | {"block_n": 64}).check()


def test_kernels_come_from_the_directory_of_now(fake: FakeDriver, tmp_path: Path) -> None:
    """Builds are compared in one process: a kernel that was used before is not taken for another's.

    One that comes back is not loaded again.
    """
    matmul = Matmul(136, 136, 72, layout="nt", config=SM90 | {"block_n": 32})
    kernel = "jaxbw_sm90_bf16_nt_64x32.cubin"
    first, other = tmp_path / "kernels", tmp_path / "other"
    other.symlink_to(first)
    for directory in (first, other, first, other):
        _native.set_kernel_directory(str(directory))
        matmul.check()
    loaded = [call["path"] for call in fake.calls("cuLibraryLoadFromFile")]
    assert [path for path in loaded if path.endswith(kernel)] == [
        str(first / kernel),
        str(other / kernel),
    ]


def test_a_device_of_another_architecture_is_refused_before_loading(fake: FakeDriver) -> None:
    with pytest.raises(
        _native.DriverError, match=r"device 2 \(Fake A100\) has compute capability 8\.0"
    ):
        Matmul(136, 136, 72, layout="tn").launch(device=2)
    assert not fake.calls("cuLibraryLoadFromFile")


def test_devices(fake: FakeDriver) -> None:
    assert [(device.ordinal, device.name) for device in _native.devices()] == [
        (0, "Fake H200"),
        (1, "Fake B200"),
        (2, "Fake A100"),
    ]
    first = _native.devices()[0]
    assert first.compute_capability == (9, 0)
    assert first.sm_count == 132
    assert first.memory_bytes == 141 << 30
    assert first.l2_bytes == 50 << 20
    assert "Fake H200" in repr(first)
    assert _native.driver_version() == 13000
    assert _native.driver_problem() is None
