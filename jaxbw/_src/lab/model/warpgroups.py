"""Hopper's two consumer warpgroups, which multiply into their registers and finish what they have.

Cooperative warpgroups have half of the rows of every tile each. Of a tile that is only cast they
store as many boxes as they have staging buffers, and the others beside the next tile's MMAs. In
pingpong they take turns at whole tiles: the epilogue of one runs beside the MMAs of the other.
"""

from collections.abc import Iterator

from jaxbw._src.lab.model.costs import SHARED, TENSOR, Costs
from jaxbw._src.lab.model.replay import Action, Agent, Arrive, Settle, Start, Wait, Work
from jaxbw._src.selection.cost_model.epilogue import STAGING_BUFFERS, WARPGROUPS

_CAST = 2  # bytes of what is rounded, and kept
_OF_A_BOX = 3  # actions of `_stored`
_IN_FLIGHT = 1  # stages whose matmuls may go on while the next one is awaited


def warpgroups(costs: Costs) -> tuple[dict[str, Agent], dict[str, int]]:
    """The agents of both warpgroups, by name, and the arrivals of their barriers."""
    pingpong = costs.kernel.warpgroups == "pingpong"
    found: dict[str, Agent] = {
        f"warpgroup {warpgroup}": _warpgroup(costs, warpgroup) for warpgroup in range(WARPGROUPS)
    }
    return found, {"empty": 1 if pingpong else WARPGROUPS}


def _warpgroup(costs: Costs, warpgroup: int) -> Agent:
    pingpong = costs.kernel.warpgroups == "pingpong"
    matmuls, stores = f"matmuls of warpgroup {warpgroup}", f"stores of warpgroup {warpgroup}"
    sync = costs.cycles(costs.machine["sync_cycles"])
    part = 1.0 if pingpong else 1 / WARPGROUPS  # of a CTA's rows
    boxes = costs.chunks * round(costs.kernel.mma_tiles * part)
    delays = not pingpong and costs.kernel.output_size == _CAST
    kept: list[Action] = []  # of the tile before
    for item in range(costs.plan.waves):
        if pingpong and item % WARPGROUPS != warpgroup:
            continue
        if pingpong and item > 0:
            yield Wait(("turn", item), sync)
        yield from _multiply(costs, item, matmuls, part, kept)
        if pingpong and item + 1 < costs.plan.waves:
            yield Arrive(("turn", item + 1))
        yield Settle(matmuls, 0)
        yield Arrive(("empty", (item + 1) * costs.blocks - 1), costs.remote)
        yield from kept
        now = STAGING_BUFFERS if delays else len(boxes)
        yield from _stored(costs, item, stores, boxes[:now])
        kept = list(_stored(costs, item, stores, boxes[now:]))
    yield from kept
    yield Settle(stores, 0)


def _multiply(
    costs: Costs, item: int, matmuls: str, part: float, kept: list[Action]
) -> Iterator[Action]:
    """A tile's matmuls; a stage is given back once those of the next one have been issued.

    Behind each of them one of the boxes that were kept is stored.
    """
    first = item * costs.blocks
    for stage in range(first, first + costs.blocks):
        yield Wait(("full", stage), costs.wake)
        yield Start(
            "MMA",
            costs.mma_issue * part,
            ((TENSOR, costs.stage_mma * part),),
            0.0,
            group=matmuls,
            read=costs.mma_latency,
        )
        if stage > first:
            yield Settle(matmuls, _IN_FLIGHT)
            yield Arrive(("empty", stage - 1), costs.remote)
        yield from kept[:_OF_A_BOX]
        del kept[:_OF_A_BOX]


def _stored(costs: Costs, item: int, stores: str, boxes: list[int]) -> Iterator[Action]:
    """Boxes of a warpgroup's results to staging buffers, and from there to global memory."""
    for columns in boxes:
        yield Settle(stores, costs.kernel.buffers - 1)
        yield Work("stage", costs.staging(columns), SHARED, costs.staging_latency)
        yield costs.store(item, columns, stores, 1.0)
