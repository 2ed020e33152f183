"""The search: the candidates for a problem on a machine, ranked by their modelled time."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np

from jaxbw._src.selection import planner
from jaxbw._src.selection.candidates import Candidates, Integers, candidates
from jaxbw._src.selection.config import ANY, GemmConfig
from jaxbw._src.selection.cost_model import Costs, evaluate
from jaxbw._src.selection.cost_model.grid import Floats, Grid, grid, is_excluded
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.robust import MOST, Side, by_price, by_worst_case
from jaxbw._src.selection.tuned import Table
from jaxbw._src.selection.workload import Workload, canonical

KEPT = 12  # ranked candidates that a choice shows
_SMALL_M = 32  # below it, Modular's published kernels take swap-AB (structured_kernels/config.mojo)


@dataclass(frozen=True)
class Cost:
    """The modelled time of a matmul in microseconds, term by term; see `cost_model.Costs`.

    Attributes:
      waves: how often the matmul fills the device with work items.
      efficiency: the share of the SMs' time in all waves in which they have a tile.
      mma, loads: what the tensor cores and the loads would take alone.
      main_loop: what they take together, as they overlap.
      epilogue: what no main loop hides.
      fixed: launch, set-up, first loads.
      split: bringing the parts of split tiles together.
      repack: copying operands that TMA cannot address, splitting float32 ones in pieces.
      tuned: what measurements of such matmuls say that the model has too little (see `tuned`).
      total: main_loop, epilogue, fixed, split, repack and tuned.
    """

    waves: int
    efficiency: float
    mma: float
    loads: float
    main_loop: float
    epilogue: float
    fixed: float
    split: float
    repack: float
    tuned: float
    total: float

    def __str__(self) -> str:
        parts = [f"{self.total:.2f} us in {self.waves} wave{'s' if self.waves > 1 else ''}"]
        parts[0] += f", {100 * self.efficiency:.1f} % filled"
        parts += [
            f"{name.replace('_', ' ')} {value:.2f}"
            for name in ("main_loop", "epilogue", "fixed", "split", "repack", "tuned")
            if (value := getattr(self, name))
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class Ranked:
    """A configuration with every field filled in, and its cost.

    `wave` is how many of its clusters run at a time where the tail of such a wave is split, else 0.
    """

    config: GemmConfig
    cost: Cost
    wave: int


Instances = frozenset[str]  # names of gemm kernels


@lru_cache(maxsize=4096)
def search(
    family: str,
    machine: Machine,
    straight: tuple[Workload, Instances],
    swapped: tuple[Workload, Instances] | None,
    *,
    wanted: GemmConfig = ANY,
    tuned: Table | None = None,
    kept: int = KEPT,
) -> tuple[int, tuple[Ranked, ...]]:
    """How many candidates there are, and the best of them.

    Args:
      family: "sm90" or "sm100".
      machine: where the matmul runs.
      straight, swapped: the workload without and with swap-AB, and the kernels there are for it.
      wanted: of what kind they are: it has no tile. Where it is batch-invariant, the choice depends
        on neither m nor the batch, and there is no split and no swap.
      tuned: corrects the model.
      kept: how many at most.
    """
    sides: list[Side] = []
    uncertain = len(machine.corners) > 0 and kept <= MOST
    for given in (straight, swapped):
        if given is None:
            continue
        work = canonical(given[0]) if wanted.batch_invariant else given[0]
        table = available(family, work, given[1], whole=wanted.batch_invariant)
        if planner.scheduler_on(wanted.scheduler, family) == "none":
            table = _relaunched(table)
        cut = grid(work, machine, table)
        keep = ~is_excluded(work, machine, table, cut)
        if tuned is not None:
            keep &= tuned.knows(table)
        table, cut = table.take(keep), cut.take(keep)
        costs = _evaluate(work, machine, table, tuned, cut=cut, rough=uncertain)
        sides.append(Side(work, table, cut, costs, _handicap(work, machine, table)))
    ranked = by_worst_case(sides, machine) if uncertain else by_price(sides)
    best = [_ranked(family, *place, wanted) for place in islice(ranked, kept)]
    return sum(len(side.table) for side in sides), tuple(best)


def price(
    family: str,
    machine: Machine,
    work: Workload,
    config: GemmConfig,
    tuned: Table | None = None,
) -> Ranked:
    """A given configuration, its open fields filled in with their defaults.

    Args:
      family, machine: as in `search`.
      work: swapped where the configuration says so.
      config: valid, and with a tile.
      tuned: corrects the model.
    """
    table = Candidates.of([config], family, work.itemsize)
    raster = np.array([config.raster == "n"], np.int64), np.array([config.swizzle])
    costs = _evaluate(work, machine, table, tuned, raster)
    return _priced(planner.filled(config, family, work.native), costs, 0)


def _evaluate(
    work: Workload,
    machine: Machine,
    table: Candidates,
    tuned: Table | None,
    rasterisation: tuple[Integers, Integers] | None = None,
    cut: Grid | None = None,
    rough: bool = False,
) -> Costs:
    """The modelled costs, corrected."""
    costs = evaluate(work, machine, table, rasterisation, cut=cut, rough=rough)
    if tuned is None:
        return costs
    total = costs.total * tuned.factors(work, machine, table, costs, cut)
    return replace(costs, tuned=total - costs.total, total=total)


def available(family: str, work: Workload, instances: Instances, *, whole: bool) -> Candidates:
    """The candidates that installed kernels compute."""
    lhs, rhs = (work.b_major, work.a_major) if work.swapped else (work.a_major, work.b_major)
    return candidates(
        family,
        lhs,
        rhs,
        work.input,
        gated=work.gated,
        mx=work.mx,
        out_mx=work.out_mx,
        swap_ab=work.swapped,
        whole=whole,
        instances=instances,
    )


def _relaunched(table: Candidates) -> Candidates:
    """A cluster for each work item: there are no others for warpgroups to take turns at."""
    table = table.take(table.pingpong == 0)
    return replace(table, relaunched=np.ones(len(table), np.int64))


def _handicap(work: Workload, machine: Machine, table: Candidates) -> Floats:
    """What is split, or exchanged without need, wins by a margin."""
    m = work.n if work.swapped else work.m
    plain = (table.split_k * table.cluster_k == 1) & (work.swapped == (m < _SMALL_M))
    return np.where(plain, 1.0, 1.0 + machine.margin)


def _ranked(family: str, side: Side, row: int, wanted: GemmConfig) -> Ranked:
    work, table, cut, costs = side.work, side.table, side.cut, side.costs
    # A second accumulator is for the next item; without one its half of Tensor Memory stays free.
    several = costs.waves[row] > 1 or wanted.batch_invariant
    config = table.config(
        row,
        work.itemsize,
        swap_ab=work.swapped,
        raster="n" if costs.band_along_n[row] else "m",
        swizzle=int(costs.swizzle[row]),
        accumulators=int((cut.most_accumulators if several else cut.accumulators)[row]),
        scheduler=planner.scheduler_on(wanted.scheduler, family),
        batch_invariant=wanted.batch_invariant,
    )
    return _priced(config, costs, row)


def _priced(config: GemmConfig, costs: Costs, row: int) -> Ranked:
    wave = int(costs.resident[row]) if config.split_tail else 0
    return Ranked(config, cost_of(costs, row), wave)


def cost_of(costs: Costs, row: int) -> Cost:
    """One configuration's terms."""
    term = {name: value / 1000 for name, value in costs.row(row).items()}
    return Cost(
        waves=int(costs.waves[row]),
        efficiency=float(costs.efficiency[row]),
        loads=max(term[name] for name in ("fill", "latency", "l2", "dram")),
        **{
            name: term[name]
            for name in (
                "mma",
                "main_loop",
                "epilogue",
                "fixed",
                "split",
                "repack",
                "tuned",
                "total",
            )
        },
    )
