"""The micro-benchmarks compile without a warning, and do in the emulator what they are to time.

Their times are for a GPU: these tests look at what they wait for, load and write.
"""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import toolchain
from micro import run

from jaxbw import emulator

LOOPS = 3


@pytest.fixture(scope="module")
def module(tmp_path_factory: Any) -> emulator.Module:
    ptx = tmp_path_factory.mktemp("micro") / "micro.ptx"
    run.compile_kernels(toolchain.find().nvcc, ptx)
    return emulator.Module(ptx.read_text(), "micro.ptx")


def test_it_compiles_for_the_gpu(tmp_path: Path) -> None:
    cubin = tmp_path / "micro.cubin"
    run.compile_kernels(toolchain.find().nvcc, cubin)
    assert cubin.read_bytes()[:4] == b"\x7fELF"


def launch(
    module: emulator.Module,
    name: str,
    *,
    rows: int = 8,
    depth: int = 1,
    positions: int = 4,
    grid: int = 1,
    block: int = 128,
    cluster: int = 1,
) -> tuple[Any, emulator.Report]:
    array = emulator.empty((1, positions * rows, 64), ml_dtypes.bfloat16)
    array[...] = 0
    out = emulator.empty(64, np.uint64)
    out[...] = 0
    box = emulator.TensorMap.encode(array, box=(64, rows, 1), swizzle=128)
    argument = run.arguments(box.encoded, out.ctypes.data, LOOPS, rows, depth, positions)
    report = module.launch(
        name,
        grid=grid,
        block=block,
        cluster=cluster,
        dynamic_smem=run.BARRIER_SPACE + max(depth * cluster * rows, 64 + 256) * run.ROW,
        args=[argument],
        buffers=[array, out],
        sm_count=16,
        schedule="random",
        seed=1,
    )
    assert report.findings == []
    return out, report


def test_a_load_at_a_time(module: emulator.Module) -> None:
    out, report = launch(module, "tma_latency")
    assert (out[:LOOPS] > 0).all()
    assert report.bytes["tma load"] == (LOOPS + 1) * 8 * run.ROW


def test_loads_in_flight(module: emulator.Module) -> None:
    out, report = launch(module, "tma_rate", depth=2, grid=3)
    assert (out[:3] > 0).all()
    assert report.bytes["tma load"] == 3 * LOOPS * 8 * run.ROW


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_multicast_reads_once_and_fills_all(module: emulator.Module, cluster: int) -> None:
    _, report = launch(module, "tma_multicast", depth=2, grid=2 * cluster, cluster=cluster)
    read = 2 * cluster * LOOPS * 8 * run.ROW
    assert report.bytes["global load"] == read
    assert report.bytes["tma load"] == cluster * read


def test_barriers(module: emulator.Module) -> None:
    out, _ = launch(module, "mbarrier_latency", grid=2, cluster=2)
    assert (out[:2] > 0).all()
    out, _ = launch(module, "cluster_barrier", grid=4, cluster=4)
    assert out[0] > 0


def test_a_store_at_a_time(module: emulator.Module) -> None:
    out, report = launch(module, "tma_store_latency")
    read, complete = out[: 2 * LOOPS].reshape(-1, 2).T
    assert (read > 0).all()
    assert (complete >= read).all()
    assert report.bytes["tma store"] == (LOOPS + 1) * 8 * run.ROW


@pytest.mark.parametrize("columns", [32, 64, 128, 256])
def test_matmuls(module: emulator.Module, columns: int) -> None:
    out, report = launch(module, f"wgmma_{columns}", depth=2, block=256)
    assert out[0] > 0
    (role,) = (role for role in report.roles if "multiply" in role.name)
    issued = sum(n for name, n in role.operations.items() if "mma_async" in name)
    assert issued == (LOOPS + 1) * 2 * run.GROUP * 2  # by each of two warpgroups


def test_ctas_one_after_the_other(module: emulator.Module) -> None:
    out, _ = launch(module, "relaunch", grid=4)
    _, begin, end = out[:12].reshape(4, 3).T
    assert (end > begin).all()
    launch(module, "nothing", grid=2)


class MadeUpDriver:
    """Takes the launches of a Hopper GPU; every word that is read is 1000."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, dict[str, int]]] = []
        self.cleared = 0

    def environment(self) -> dict[str, int]:
        return {"sm_count": 132}

    def allocate(self, size: int) -> int:
        return size

    def clear(self, address: int, size: int) -> None:
        assert run.LARGE <= address <= address + size <= 2 * run.LARGE
        self.cleared += 1

    def tensor_map(self, address: int, rows: int, box_rows: int) -> bytes:
        assert address == run.LARGE
        assert box_rows <= 256
        assert rows % box_rows == 0
        return bytes(128)

    def active_clusters(self, name: str, *, block: int, cluster: int, shared: int) -> int:
        return {1: 132, 2: 66, 4: 30, 8: 14, 16: 6}[cluster]

    def time(self, launches: Any) -> float:
        for name, _, shape in launches:
            self.launches.append((name, shape))
            assert shape["shared"] <= 227 << 10
            assert shape["grid"] % shape["cluster"] == 0
        return 1.0

    def read(self, address: int, count: int) -> Any:
        assert count <= run.OUT_WORDS
        return np.full(count, 1000, np.uint64)


def test_every_measurement_is_computed() -> None:
    driver: Any = MadeUpDriver()
    bench = run.Bench(driver)
    found = {name: getattr(bench, name)() for name in run.MEASUREMENTS}
    assert run.median([found, found]) == found
    assert found["tma_rate"]["l2_one_sm_196608"] == pytest.approx((16 << 20) / 1000, rel=0.01)
    # Clusters that wait for others to end would be counted, but not be timed, with them.
    multicasts = {s["cluster"]: s["grid"] for name, s in driver.launches if name == "tma_multicast"}
    assert multicasts == {1: 132, 2: 132, 4: 120, 8: 112}
    # What is to come from memory is not what a launch before it has read: between the two of each
    # launch something else passes through L2.
    assert driver.cleared == 5 + 2 * 7 + 4


def test_medians() -> None:
    runs = [{"a": 1.0, "b": {"c": 5.0}}, {"a": 3.0, "b": {"c": 1.0}}, {"a": 2.0, "b": {"c": 9.0}}]
    assert run.median(runs) == {"a": 2.0, "b": {"c": 5.0}}
    assert set(run.MEASUREMENTS) <= set(dir(run.Bench))


@pytest.mark.parametrize("way", ["in_turn", "together"])
def test_launch_parameters_are_read(module: emulator.Module, way: str) -> None:
    out, _ = launch(module, f"parameters_{way}", block=32)
    assert out[0] > 0
