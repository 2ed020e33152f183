"""A kernel's agents on one machine at one clock: what the replay runs.

All CTAs of a cluster, and all clusters of a wave, do the same at the same time; so one CTA is
replayed, with its share of what they all use: L2, memory. Of a pair it is the leader.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxbw.model.kernel import FULL_ROWS, MMA_BYTES, Kernel
from jaxbw.model.machine import Replayed
from jaxbw.model.memory import Traffic
from jaxbw.model.replay import Action, Agent, Arrive, Drain, Settle, Start, Wait, Work
from jaxbw.model.schedule import Schedule, Shape

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
EPILOGUE_WARPS = 4
_CHUNK_ROWS = 128  # of these together
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

    @cached_property
    def stage_mma(self) -> float:
        """Of the tensor cores, for one stage."""
        kernel, machine = self.kernel, self.machine
        rows = min(kernel.rows, FULL_ROWS)
        read = (rows + kernel.columns) * MMA_BYTES / machine["smem_bytes_per_cycle"]
        one = max(machine["mma_cycles_per_column"] * kernel.block_n, read)
        return self.cycles(kernel.mmas * one)

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
        missed = self.kernel.asked * self.traffic[wave].missed
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
    def chunks(self) -> list[int]:
        """Columns of each chunk of an MMA tile's epilogue."""
        kernel = self.kernel
        step = kernel.chunk or kernel.block_n
        return [min(step, kernel.block_n - at) for at in range(0, kernel.block_n, step)]

    def chunk_bytes(self, columns: int, size: int) -> float:
        """Of one chunk, with elements of so many bytes."""
        return min(self.kernel.rows, _CHUNK_ROWS) * columns * size

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

    def stored(self, wave: int, size: float) -> tuple[tuple[str, float], ...]:
        """What a store of so many bytes takes of what all SMs share."""
        return (
            (L2, self._share(wave, size, "l2_bytes_per_ns")),
            (MEMORY, self._share(wave, size, "dram_bytes_per_ns")),
        )


def agents(costs: Costs) -> tuple[dict[str, Agent], dict[str, int]]:
    """The agents of one CTA, by name, and the arrivals of its barriers, for `replay.replay`."""
    if not costs.kernel.specialised:
        return {"all warps": _all_in_one(costs)}, {}
    found = {"load": _load(costs), "multiply": _multiply(costs)}
    found |= {f"epilogue {warp}": _epilogue(costs, warp) for warp in range(EPILOGUE_WARPS)}
    return found, {"accumulator empty": EPILOGUE_WARPS, "begin": EPILOGUE_WARPS}


def _begin(costs: Costs, item: int) -> Iterator[Action]:
    """Waits until the CTA may begin a tile, where it is never at two."""
    kernel = costs.kernel
    if item == 0 or kernel.persistent is None:
        if item:
            yield Wait(("begin", item))
        yield Work("set-up", costs.setup)
    elif not kernel.own_epilogue:
        yield Wait(("begin", item))


def _stage(costs: Costs, item: int, block: int) -> Start:
    """The loads of one stage."""
    first = item == 0 and block == 0
    return Start(
        "load",
        costs.load_issue,
        ((PORT, costs.stage_port),),
        costs.load_latency(item) + (costs.first_load if first else 0.0),
        ((L2, costs.stage_l2(item)), (MEMORY, costs.stage_memory(item))),
        (("full", item * costs.blocks + block),),
    )


def _product(costs: Costs, item: int, block: int) -> Iterator[Action]:
    """The products of one stage, and the commit behind them."""
    tiles = costs.kernel.mma_tiles
    for tile in range(tiles):
        if block == 0:
            slot = item * tiles + tile - costs.kernel.slots
            yield Wait(("accumulator empty", slot), costs.wake)
        yield Start("MMA", costs.mma_issue / tiles, ((TENSOR, costs.stage_mma / tiles),), 0.0)
    done = costs.mma_latency + costs.remote
    yield Drain(TENSOR, done, (("empty", item * costs.blocks + block),))


def _load(costs: Costs) -> Agent:
    for item in range(costs.plan.waves):
        yield from _begin(costs, item)
        for block in range(costs.blocks):
            yield Wait(("empty", item * costs.blocks + block - costs.kernel.stages), costs.wake)
            yield _stage(costs, item, block)


def _multiply(costs: Costs) -> Agent:
    tiles = costs.kernel.mma_tiles
    for item in range(costs.plan.waves):
        yield from _begin(costs, item)
        for block in range(costs.blocks):
            yield Wait(("full", item * costs.blocks + block), costs.wake)
            yield from _product(costs, item, block)
        for slot in range(item * tiles, item * tiles + tiles):
            yield Drain(TENSOR, costs.mma_latency, (("accumulator full", slot),))


def _epilogue(costs: Costs, warp: int) -> Agent:
    """One warp's quarter of the rows."""
    tiles = costs.kernel.mma_tiles
    for item in range(costs.plan.waves):
        for slot in range(item * tiles, item * tiles + tiles):
            yield Wait(("accumulator full", slot), costs.wake)
            yield from _results(costs, item, slot, f"stores of warp {warp}", 1 / EPILOGUE_WARPS)
        yield Arrive(("begin", item + 1), costs.handover)


def _results(costs: Costs, item: int, slot: int, stores: str, part: float) -> Iterator[Action]:
    """One MMA tile's way from Tensor Memory to global memory, or so much of it."""
    kernel = costs.kernel
    released = Arrive(("accumulator empty", slot), costs.remote)
    last = len(costs.chunks) - 1

    def drain(number: int) -> Iterator[Action]:
        columns = costs.chunks[number]
        yield Work("TMEM load", costs.drain(columns) * part, TMEM, costs.drain_latency)
        if number == last:
            yield released

    if kernel.chunk is None:
        for number in range(last + 1):
            yield from drain(number)
        yield Work("store", costs.direct() * part, STORE)
        return
    # Where Tensor Memory is full, only what the staging buffers hold is stored before all is read.
    early = kernel.buffers if kernel.mma_tiles > 1 else last + 1
    for number, columns in enumerate(costs.chunks):
        if number < early:
            yield from drain(number)
        elif number == early:
            for rest in range(number, last + 1):
                yield from drain(rest)
        yield Settle(stores, kernel.buffers - 1)
        yield Work("stage", costs.staging(columns) * part, SHARED, costs.staging_latency)
        yield _store(costs, item, columns, stores, part)
    if not kernel.own_epilogue or kernel.persistent is None:
        yield Settle(stores, 0)


def _store(costs: Costs, item: int, columns: int, group: str, part: float) -> Start:
    """The TMA store of one chunk."""
    machine = costs.machine
    size = costs.chunk_bytes(columns, costs.kernel.output_size) * part
    return Start(
        "store",
        costs.cycles(machine["tma_issue_cycles"]),
        ((STORE, costs.cycles(size / machine["smem_bytes_per_cycle"])),),
        costs.cycles(machine["store_visible_cycles"]),
        costs.stored(item, size),
        (),
        group,
        costs.cycles(machine["store_read_cycles"]),
    )


def _all_in_one(costs: Costs) -> Agent:
    """Every warp does everything: the load of a later stage is issued behind a product."""
    kernel = costs.kernel
    sync = costs.cycles(costs.machine["sync_cycles"])
    for item in range(costs.plan.waves):
        yield from _begin(costs, item)
        first = item * costs.blocks
        for block in range(min(kernel.ahead, costs.blocks)):
            yield _stage(costs, item, block)
        for block in range(costs.blocks):
            if kernel.ahead == 0:
                yield _stage(costs, item, block)
            yield Wait(("full", first + block), costs.wake)
            yield Work("synchronise", sync)
            yield from _product(costs, item, block)
            if block >= kernel.lag:
                yield Wait(("empty", first + block - kernel.lag), costs.wake)
                yield Work("synchronise", sync)
            if kernel.ahead and block + kernel.ahead < costs.blocks:
                yield _stage(costs, item, block + kernel.ahead)
        yield Wait(("empty", first + costs.blocks - 1), costs.wake)
        yield from _results(costs, item, item, "stores", 1.0)
        yield Arrive(("begin", item + 1), costs.handover)
