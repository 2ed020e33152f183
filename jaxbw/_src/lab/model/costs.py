"""What a kernel's operations take on a machine at a clock.

All CTAs of a cluster, and all clusters of a wave, do the same at the same time; so the costs are
those of one CTA, with its share of what they all use: L2, memory. Of a pair it is the leader.
"""

from dataclasses import dataclass
from functools import cached_property

from jaxbw._src.lab.model.kernel import Kernel
from jaxbw._src.lab.model.machine import Replayed
from jaxbw._src.lab.model.memory import Traffic
from jaxbw._src.lab.model.replay import Start
from jaxbw._src.lab.model.schedule import Schedule, Shape
from jaxbw._src.selection.cost_model.stage import FULL_ROWS, MMA_BYTES

PORT, L2, MEMORY, TENSOR, TMEM, SHARED, STORE = (
    "SM port",
    "L2",
    "memory",
    "tensor cores",
    "tensor memory",
    "shared memory",
    "store path",
)
ENGINES = (TENSOR, PORT, L2, MEMORY, TMEM, SHARED, STORE)
_LOADS_OF_A_STAGE = 2  # TMA instructions, at least


@dataclass(frozen=True)
class Costs:
    """What a kernel's operations take on a machine at a clock, in nanoseconds."""

    machine: Replayed
    kernel: Kernel
    shape: Shape
    plan: Schedule
    traffic: tuple[Traffic, ...]
    ghz: float

    def cycles(self, count: float) -> float:
        """So many cycles of an SM."""
        return count / self.ghz

    @cached_property
    def blocks(self) -> int:
        """Stages of a tile."""
        return self.kernel.blocks(self.shape.k)

    def mma(self, rows: int, columns: int, n: int) -> float:
        """Of the tensor cores, for one instruction; rows and columns are what its CTA has of it."""
        kernel, machine = self.kernel, self.machine
        reading = (rows + columns) * MMA_BYTES / machine["smem_bytes_per_cycle"]
        time = max(self.useful_mma(n), self.cycles(reading))
        if kernel.warpgroups is None:
            return time
        # Of 32 bytes of K; selection/machines.toml says what the interval stands for.
        at_a_time = kernel.mmas * MMA_BYTES // kernel.k_bytes
        return max(time, self.cycles(machine["mma_interval_cycles"] / at_a_time))

    def useful_mma(self, n: int) -> float:
        """The same, where nothing holds it up."""
        column = self.machine["mma_cycles_per_column"] * self.kernel.mma_rows / FULL_ROWS
        return self.cycles(column * n)

    @cached_property
    def stage_mma(self) -> float:
        """Of the tensor cores, for one stage."""
        kernel = self.kernel
        rows = min(kernel.rows, kernel.mma_rows)
        return kernel.mmas * self.mma(rows, kernel.columns, kernel.block_n)

    @cached_property
    def mma_latency(self) -> float:
        """Of a commit, behind the last instruction's N/2 cycles."""
        pair = self.kernel.group == 2
        return self.cycles(
            self.machine["mma_pair_latency_cycles" if pair else "mma_latency_cycles"]
        )

    @cached_property
    def stage_port(self) -> float:
        """Of an SM's port into shared memory, for one stage."""
        kernel = self.kernel
        if kernel.narrow:
            boxes = kernel.k_bytes // 16
            rows = (kernel.rows + kernel.columns) * boxes
            return self.cycles(rows * self.machine["narrow_row_cycles"])
        return self.cycles(sum(kernel.loaded) / self.machine["ingest_bytes_per_cycle"])

    def _share(self, wave: int, bytes_of_cta: float, rate: str) -> float:
        ctas = self.plan.active(wave) * self.kernel.ctas
        return bytes_of_cta * ctas / self.machine[rate]

    def stage_l2(self, wave: int) -> float:
        """Of a CTA's share of L2, for one stage."""
        return self._share(wave, self.kernel.asked, "l2_bytes_per_ns")

    def stage_memory(self, wave: int) -> float:
        """Of a CTA's share of memory, for one stage."""
        missed = self.kernel.multiplied * self.traffic[wave].missed
        return self._share(wave, missed, "dram_bytes_per_ns")

    def load_latency(self, wave: int) -> float:
        """From the issue of a load to its last byte, on idle engines."""
        late = self.traffic[wave].late * self.machine["memory_latency_ns"]
        if self.kernel.loads == "copy":
            return self.machine["copy_latency_ns"] - self.machine["memory_latency_ns"] + late
        fixed = self.cycles(self.machine["tma_latency_cycles"])
        return self.machine["tma_latency_ns"] + fixed + late

    @cached_property
    def first_load(self) -> float:
        """What the first load of a kernel takes longer."""
        return max(0.0, self.machine["first_load_ns"] - self.load_latency(0))

    @cached_property
    def wake(self) -> float:
        """From a barrier's last arrival to its waiter's next instruction."""
        return self.cycles(self.machine["wake_cycles"])

    @cached_property
    def remote(self) -> float:
        """An arrival in another CTA; 0 where a cluster is one CTA."""
        return self.cycles(self.machine["remote_cycles"]) if self.kernel.ctas > 1 else 0.0

    @cached_property
    def setup(self) -> float:
        """From a CTA's start to its first load."""
        return self.machine["setup_ns" if self.kernel.ctas > 1 else "single_setup_ns"]

    @cached_property
    def handover(self) -> float:
        """From the end of a tile to the start of the next, where no CTA is at two at a time."""
        if self.kernel.persistent is not None:
            return self.cycles(self.machine["sync_cycles"])
        return 0.0 if self.kernel.hidden_relaunch else self.machine["relaunch_ns"]

    @cached_property
    def load_issue(self) -> float:
        """Of the thread that loads, for one stage. Copies go as fast as the port takes them."""
        if self.kernel.loads == "copy":
            return 0.0
        boxes = self.kernel.k_bytes // 16 if self.kernel.narrow else 1
        return self.cycles(_LOADS_OF_A_STAGE * boxes * self.machine["tma_issue_cycles"])

    @cached_property
    def mma_issue(self) -> float:
        """Of the thread that multiplies, for one stage."""
        return self.cycles(self.kernel.mmas * self.machine["mma_issue_cycles"])

    @cached_property
    def stage_issue(self) -> float:
        """Of the same thread, beside the MMAs of a stage; of kernels in which it is counted."""
        return self.cycles(self.kernel.counted * self.machine.shared.stage_issue_cycles)

    @cached_property
    def chunks(self) -> list[int]:
        """Columns of each chunk of an MMA tile's epilogue."""
        kernel = self.kernel
        step = kernel.chunk or kernel.block_n
        return [min(step, kernel.block_n - at) for at in range(0, kernel.block_n, step)]

    def chunk_bytes(self, columns: int, size: int) -> float:
        """Of one chunk, with elements of so many bytes."""
        return min(self.kernel.rows, self.kernel.mma_rows) * columns * size

    def drain(self, columns: int) -> float:
        """Tensor Memory to registers, without its latency."""
        bytes_read = self.chunk_bytes(columns, 4)
        return self.cycles(bytes_read / self.machine["tmem_bytes_per_cycle"])

    @cached_property
    def drain_latency(self) -> float:
        """Of a load from Tensor Memory."""
        return self.cycles(self.machine["tmem_latency_cycles"])

    def staging(self, columns: int) -> float:
        """Registers to shared memory."""
        size = self.chunk_bytes(columns, self.kernel.output_size)
        return self.cycles(size / self.machine["stage_bytes_per_cycle"])

    @cached_property
    def staging_latency(self) -> float:
        """What staging a chunk takes beside its bytes."""
        return self.cycles(self.machine["chunk_cycles"])

    def direct(self) -> float:
        """Registers to global memory, a CTA's whole tile."""
        elements = self.kernel.rows * self.kernel.block_n
        return self.cycles(elements / self.machine["direct_elements_per_cycle"])

    def leaving(self, size: float) -> float:
        """Of the way from staging buffers to L2, for so many bytes."""
        rate = "smem" if self.kernel.warpgroups is None else "store"
        return self.cycles(size / self.machine[f"{rate}_bytes_per_cycle"])

    def stored(self, wave: int, size: float) -> tuple[tuple[str, float], ...]:
        """What a store of so many bytes takes of what all SMs share."""
        return (
            (L2, self._share(wave, size, "l2_bytes_per_ns")),
            (MEMORY, self._share(wave, size, "dram_bytes_per_ns")),
        )

    def store(self, item: int, columns: int, group: str, part: float) -> Start:
        """The TMA store of a part of one chunk."""
        machine = self.machine
        size = self.chunk_bytes(columns, self.kernel.output_size) * part
        return Start(
            "store",
            self.cycles(machine["tma_issue_cycles"]),
            ((STORE, self.leaving(size)),),
            self.cycles(machine["store_visible_cycles"]),
            self.stored(item, size),
            (),
            group,
            self.cycles(machine["store_read_cycles"]),
        )
