"""Hopper's warpgroups: two teams that multiply into their registers, and finish what they multiply.

Cooperative teams have half of the rows of every tile each. Of a tile that is only cast they store
as many boxes as they have staging buffers, and the others beside the next tile's products. In
pingpong they take turns at whole tiles: the epilogue of one runs beside the products of the other.
"""

from collections.abc import Iterator

from jaxbw._src.lab.model.costs import SHARED, TENSOR, Costs
from jaxbw._src.lab.model.replay import Action, Agent, Arrive, Settle, Start, Wait, Work
from jaxbw._src.selection.cost_model import STAGING_BUFFERS, TEAMS

_CAST = 2  # bytes of what is rounded, and kept
_OF_A_BOX = 3  # actions of `_stored`
_IN_FLIGHT = 1  # stages whose products may go on while the next one is awaited


def teams(costs: Costs) -> tuple[dict[str, Agent], dict[str, int]]:
    """The agents of both teams, by name, and the arrivals of their barriers."""
    pingpong = costs.kernel.teams == "pingpong"
    found: dict[str, Agent] = {f"team {team}": _team(costs, team) for team in range(TEAMS)}
    return found, {"empty": 1 if pingpong else TEAMS}


def _team(costs: Costs, team: int) -> Agent:
    pingpong = costs.kernel.teams == "pingpong"
    products, stores = f"products of team {team}", f"stores of team {team}"
    sync = costs.cycles(costs.machine["sync_cycles"])
    part = 1.0 if pingpong else 1 / TEAMS  # of a CTA's rows
    boxes = costs.chunks * round(costs.kernel.mma_tiles * part)
    delays = not pingpong and costs.kernel.output_size == _CAST
    kept: list[Action] = []  # of the tile before
    for item in range(costs.plan.waves):
        if pingpong and item % TEAMS != team:
            continue
        if pingpong and item > 0:
            yield Wait(("turn", item), sync)
        yield from _multiply(costs, item, products, part, kept)
        if pingpong and item + 1 < costs.plan.waves:
            yield Arrive(("turn", item + 1))
        yield Settle(products, 0)
        yield Arrive(("empty", (item + 1) * costs.blocks - 1), costs.remote)
        yield from kept
        now = STAGING_BUFFERS if delays else len(boxes)
        yield from _stored(costs, item, stores, boxes[:now])
        kept = list(_stored(costs, item, stores, boxes[now:]))
    yield from kept
    yield Settle(stores, 0)


def _multiply(
    costs: Costs, item: int, products: str, part: float, kept: list[Action]
) -> Iterator[Action]:
    """A tile's products; a stage is given back once those of the next one have been issued.

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
            group=products,
            read=costs.mma_latency,
        )
        if stage > first:
            yield Settle(products, _IN_FLIGHT)
            yield Arrive(("empty", stage - 1), costs.remote)
        yield from kept[:_OF_A_BOX]
        del kept[:_OF_A_BOX]


def _stored(costs: Costs, item: int, stores: str, boxes: list[int]) -> Iterator[Action]:
    """Boxes of a team's results to staging buffers, and from there to global memory."""
    for columns in boxes:
        yield Settle(stores, costs.kernel.buffers - 1)
        yield Work("stage", costs.staging(columns), SHARED, costs.staging_latency)
        yield costs.store(item, columns, stores, 1.0)
