"""A kernel's agents on one machine at one clock: what the replay runs, one CTA of it."""

from collections.abc import Iterator

from jaxbw._src.lab.model.costs import L2, MEMORY, PORT, SHARED, STORE, TENSOR, TMEM, Costs
from jaxbw._src.lab.model.replay import Action, Agent, Arrive, Drain, Settle, Start, Wait, Work
from jaxbw._src.lab.model.warpgroups import warpgroups
from jaxbw._src.selection.cost_model.epilogue import EPILOGUE_WARPS


def agents(costs: Costs) -> tuple[dict[str, Agent], dict[str, int]]:
    """The agents of one CTA, by name, and the arrivals of its barriers, for `replay.replay`."""
    if not costs.kernel.specialised:
        return {"all warps": _all_in_one(costs)}, {}
    if costs.kernel.warpgroups is not None:
        found, arrivals = warpgroups(costs)
        return {"load": _load(costs)} | found, arrivals
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


def _matmul(costs: Costs, item: int, block: int) -> Iterator[Action]:
    """The matmuls of one stage, and the commit behind them."""
    tiles = costs.kernel.mma_tiles
    if costs.stage_issue > 0:
        yield Work("issue", costs.stage_issue)
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
            yield from _matmul(costs, item, block)
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
        yield costs.store(item, columns, stores, part)
    if not kernel.own_epilogue or kernel.persistent is None:
        yield Settle(stores, 0)


def _all_in_one(costs: Costs) -> Agent:
    """Every warp does everything: the load of a later stage is issued behind a matmul."""
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
            yield from _matmul(costs, item, block)
            if block >= kernel.lag:
                yield Wait(("empty", first + block - kernel.lag), costs.wake)
                yield Work("synchronise", sync)
            if kernel.ahead and block + kernel.ahead < costs.blocks:
                yield _stage(costs, item, block + kernel.ahead)
        yield Wait(("empty", first + costs.blocks - 1), costs.wake)
        yield from _results(costs, item, item, "stores", 1.0)
        yield Arrive(("begin", item + 1), costs.handover)
