"""Measures the constants of a Hopper GPU that the model's machine tables need.

    python benchmarks/micro/run.py --out micro_h200.json

It compiles micro.cu for sm_90a with nvcc (or takes --cubin, made elsewhere by --compile), runs each
kernel on the first GPU, and writes one JSON file: medians, and what they were computed from. The
nvcc is that of the Python packages; JAXBW_SYSTEM_NVCC=1 takes the one on PATH. An H200's constants
are in results/2026-11-22_h200_micro.json.
"""

import argparse
import json
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "cuda" / "kernels")]

from micro.driver import Driver  # noqa: E402

FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Werror", "all-warnings")
BARRIER_SPACE = 1024  # kBarrierSpace of micro.cu
PARAMETER_LINES = 8  # kParameterLines
GROUP = 4  # wgmmas: kMmasPerSpan of the kernels
ROW = 128  # bytes
SMALL, LARGE = 8 << 20, 4 << 30  # arrays that L2 holds, and that it cannot
WHOLE = 200 << 10  # shared memory that two CTAs of an SM have not
FLUSH = 512 << 20  # zeroed at the array's end: L2 holds nothing of its beginning then
OUT_WORDS = 1 << 16
REPEATS = 5


def compile_kernels(nvcc: Path, target: Path) -> None:
    """Compiles micro.cu: a .cubin for sm_90a, or the .ptx for the emulator."""
    kind = ["-cubin", "-arch=sm_90a"] if target.suffix == ".cubin" else ["-ptx"]
    kind = kind if target.suffix == ".cubin" else [*kind, "-arch=compute_90a"]
    source = str(HERE / "micro.cu")
    command = [str(nvcc), *kind, *FLAGS, f"-I{ROOT / 'cuda'}", "-o", str(target), source]
    subprocess.run(command, check=True)


def arguments(
    tensor_map: bytes, out: int, loops: int, rows: int = 64, depth: int = 1, positions: int = 1
) -> bytes:
    """`Arguments` of micro.cu."""
    packed = struct.pack("<QIIII", out, loops, rows, depth, positions)
    return tensor_map + packed + bytes(-len(packed) % 64) + bytes(PARAMETER_LINES * 64)


class Bench:
    """The kernels of micro.cu, and what is computed from what they write."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sms = driver.environment()["sm_count"]
        self._out = driver.allocate(8 * OUT_WORDS)
        self._array = driver.allocate(LARGE)

    def _arguments(self, loops: int, rows: int, depth: int, size: int) -> bytes:
        tensor_map = self._driver.tensor_map(self._array, size // ROW, rows)
        positions = size // (rows * ROW)
        return arguments(tensor_map, self._out, loops, rows, depth, positions)

    def _run(
        self,
        name: str,
        loops: int,
        *,
        rows: int = 64,
        depth: int = 1,
        size: int = SMALL,
        **shape: int,
    ) -> float:
        """Launches a kernel twice; milliseconds of the second.

        Between the two L2 is emptied where the kernel is to read memory.
        """
        boxes = depth * rows * ROW * shape.get("cluster", 1)
        shared = BARRIER_SPACE + max(boxes, (64 + 256) * ROW)  # or a wgmma's operands
        default = {"grid": 1, "block": 128, "cluster": 1, "shared": shared}
        launch = (name, self._arguments(loops, rows, depth, size), {**default, **shape})
        self._driver.time([launch])
        if size == LARGE:
            self._driver.clear(self._array + LARGE - FLUSH, FLUSH)
        return self._driver.time([launch])

    def _words(self, count: int) -> Any:
        return self._driver.read(self._out, count).astype(np.float64)

    def tma_latency(self) -> dict[str, Any]:
        """Median cycles of one load, by bytes of its box, from L2 and from memory."""
        found: dict[str, Any] = {}
        for where, size in (("l2", 1 << 20), ("memory", LARGE)):
            for rows in (8, 32, 64, 128, 256):
                loops = min(512, size // (rows * ROW))
                self._run("tma_latency", loops, rows=rows, size=size)
                found[f"{where}_{rows * ROW}"] = float(np.median(self._words(loops)))
        return found

    def tma_rate(self) -> dict[str, Any]:
        """Bytes per nanosecond of all SMs together, and of one alone, by its bytes in flight."""
        found: dict[str, Any] = {}
        for where, size in (("l2", SMALL), ("memory", LARGE)):
            for sms, name in ((self._sms, where), (1, f"{where}_one_sm")):
                for in_flight in (4096, 8192, 16384, 32768, 65536, 131072, 196608):
                    rows = min(128, in_flight // ROW)
                    depth = in_flight // (rows * ROW)
                    loops = (16 << 20) // (rows * ROW)
                    self._run(
                        "tma_rate", loops, rows=rows, depth=depth, size=size, grid=sms, shared=WHOLE
                    )
                    moved = loops * rows * ROW * sms
                    found[f"{name}_{in_flight}"] = moved / float(self._words(sms).max())
        return found

    def clusters(self) -> dict[str, int]:
        """How many clusters run at a time, one CTA to an SM, by their CTAs."""
        return {
            str(cluster): self._driver.active_clusters(
                "tma_multicast", block=128, cluster=cluster, shared=WHOLE
            )
            for cluster in (1, 2, 4, 8, 16)
        }

    def multicast(self) -> dict[str, Any]:
        """Bytes per nanosecond that reach shared memories, by clusters and where they are from."""
        found: dict[str, Any] = {}
        at_a_time = self.clusters()
        for where, size in (("l2", SMALL), ("memory", LARGE)):
            for cluster in (1, 2, 4, 8):
                rows, depth, loops = 128 // cluster, 8, 2000
                grid = at_a_time[str(cluster)] * cluster
                self._run(
                    "tma_multicast", loops, rows=rows, depth=depth, size=size,
                    grid=grid, cluster=cluster, shared=WHOLE,
                )  # fmt: skip
                moved = loops * rows * cluster * ROW * grid
                found[f"{where}_cluster_{cluster}"] = moved / float(self._words(grid).max())
        return found

    def mbarrier(self) -> dict[str, float]:
        """Cycles from an arrival to its waiter's next instruction: in a CTA, and between two."""
        loops = 1000
        self._run("mbarrier_latency", loops, grid=2, cluster=2)
        local, remote = self._words(2) / (2 * loops)
        return {"local": float(local), "remote": float(remote)}

    def cluster_barrier(self) -> dict[str, float]:
        """Cycles of a cluster barrier, by the cluster's CTAs."""
        loops, found = 1000, {}
        for cluster in (1, 2, 4, 8):
            self._run("cluster_barrier", loops, grid=cluster, cluster=cluster)
            found[str(cluster)] = float(self._words(1)[0]) / loops
        return found

    def tma_store(self) -> dict[str, Any]:
        """Median cycles until a store has read shared memory, and until it is complete."""
        found = {}
        for rows in (8, 32, 64, 128):
            loops = 256
            self._run("tma_store_latency", loops, rows=rows)
            read, complete = np.median(self._words(2 * loops).reshape(-1, 2), axis=0)
            found[str(rows * ROW)] = {"read": float(read), "complete": float(complete)}
        return found

    def wgmma(self) -> dict[str, Any]:
        """Cycles per instruction in groups, and what the first group takes beyond; by columns.

        Of one warpgroup, and of two, which share the SM's tensor cores.
        """
        found = {}
        for columns in (32, 64, 128, 256):
            for groups in (1, 2):
                times = {}
                for depth in (1, 8, 16):
                    self._run(f"wgmma_{columns}", 64, depth=depth, block=128 * groups)
                    times[depth] = float(self._words(1)[0])
                group = (times[16] - times[8]) / 8
                key = f"{columns}_warpgroups_{groups}"
                found[key] = {"cycles": group / GROUP, "latency": times[1] - group, "raw": times}
        return found

    def relaunch(self) -> dict[str, float]:
        """Nanoseconds between a CTA's end and the next one's begin, on the same SM."""
        found = {}
        for cluster in (1, 2):
            grid = 4 * self._sms // cluster * cluster
            self._run("relaunch", 5, grid=grid, cluster=cluster, shared=WHOLE)
            rows = self._words(3 * grid).reshape(-1, 3)
            gaps = []
            for sm in np.unique(rows[:, 0]):
                mine = rows[rows[:, 0] == sm]
                mine = mine[np.argsort(mine[:, 1])]
                gaps += list(mine[1:, 1] - mine[:-1, 2])
            found[f"cluster_{cluster}"] = float(np.median(gaps))
        return found

    def launch_parameters(self) -> dict[str, float]:
        """Cycles until eight lines of launch parameters are there: in turn, and all together."""
        found = {}
        for way in ("in_turn", "together"):
            self._run(f"parameters_{way}", 1, block=32)
            found[way] = float(self._words(1)[0])
        return found

    def launch(self) -> dict[str, float]:
        """Microseconds of a kernel that does nothing: between events, and each of a long row."""
        kernel = arguments(bytes(128), self._out, 0)
        shape = {"grid": self._sms, "block": 128, "cluster": 1, "shared": 0}
        one = [("nothing", kernel, shape)]
        self._driver.time(one)
        alone = float(np.median([self._driver.time(one) for _ in range(20)]))
        return {"alone": 1000 * alone, "in_a_row": self._driver.time(one * 1000)}


MEASUREMENTS = (
    *("clusters", "tma_latency", "tma_rate", "multicast", "mbarrier", "cluster_barrier"),
    *("tma_store", "wgmma", "relaunch", "launch_parameters", "launch"),
)


def main() -> None:
    """Compiles, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the JSON file")
    parser.add_argument("--cubin", type=Path, default=HERE / "micro.cubin", help="compiled before")
    parser.add_argument("--compile", action="store_true", help="only compile, to --cubin")
    args = parser.parse_args()
    if args.compile or not args.cubin.exists():
        import toolchain

        compile_kernels(toolchain.find().nvcc, args.cubin)
    if args.compile:
        return
    if args.out is None:
        parser.error("--out is missing: for example --out micro_h200.json")
    begin = time.monotonic()
    driver = Driver(args.cubin.read_bytes())
    bench = Bench(driver)
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": driver.environment(),
        "units": "cycles of an SM, but rate and multicast B/ns, relaunch ns, launch us",
    }
    for name in MEASUREMENTS:
        runs = [getattr(bench, name)() for _ in range(REPEATS)]
        record[name] = {"median": median(runs), "runs": runs}
        print(f"{name}: {json.dumps(record[name]['median'])}", flush=True)
    record["seconds"] = time.monotonic() - begin
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def median(runs: list[Any]) -> Any:
    """The medians of repeated measurements, leaf by leaf."""
    if isinstance(runs[0], dict):
        return {key: median([run[key] for run in runs]) for key in runs[0]}
    return float(np.median(runs))


if __name__ == "__main__":
    main()
