"""A matmul's configurations, measured against each other: which, in which order, how often.

The best candidates by the model are measured, and the best of every kind (tile, cluster, parts,
rasterisation) that it does not rate hopeless, and of grouped matmuls, which have few, all; what
would be chosen and what comes out best once more, longer. Launches go in random order, round after
round, with pauses where they are long, so that the clock is that of short bursts. The results of
all configurations must agree.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from jaxbw._src.epilogue import IDENTITY
from jaxbw._src.lab.interleaving import interleaved
from jaxbw._src.lab.model.grouped import for_even_sizes
from jaxbw._src.lab.tuning import arrays
from jaxbw._src.lab.tuning.launching import Bench, Chosen, Launch, Matmul
from jaxbw._src.problem import itemsize
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import manifest, ragged
from jaxbw._src.selection.choice import Choice, Refusal
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.policy import Policy
from jaxbw._src.selection.search import Ranked
from jaxbw._src.selection.select import ranking, select
from jaxbw._src.selection.tuned import table_for

HOPELESS = 3.0  # times the best modelled time
REWALKED = 4  # configurations whose tiles are walked in other orders, too
BURST_US = 4000.0  # of launches, before a pause
AGREEMENT = 0.02  # of results in 16 bits whose sums have different orders

Key = TypeVar("Key")  # of what is measured: a configuration, or more


@dataclass(frozen=True)
class Measured:
    """A configuration, its median time over some rounds and its modelled one, in microseconds."""

    config: GemmConfig
    microseconds: float
    modelled: float


@dataclass(frozen=True)
class Effort:
    """How thoroughly a matmul is measured.

    Attributes:
      count: configurations.
      rounds: visits to each, at most.
      repeats: launches at each visit.
      finalists: how many of the fastest are measured again, for their final times.
      final_rounds: visits to each of those, at most.
      seconds: device time for either, beyond which there are fewer rounds, but no less than 2.
    """

    count: int = 200
    rounds: int = 2
    repeats: int = 3
    finalists: int = 16
    final_rounds: int = 8
    seconds: float = 0.4

    def visits(self, most: int, expected: Iterable[float]) -> int:
        """How often configurations of these expected times are visited: so often at most."""
        once = sum(expected) * (1 + self.repeats)
        return min(most, max(2, int(self.seconds * 1e6 / once)))


def measure(
    bench: Bench, problem: Matmul, device: Device, effort: Effort, seed: int = 0
) -> list[Measured]:
    """Measures a matmul in many configurations, the fastest first.

    Raises:
      RuntimeError: results differ.
    """
    firsts, modelled = candidates(problem, device, effort.count)
    compared = problem
    if arrays.adds_in_place(problem):  # what is added to is another thing at each launch
        compared = replace(problem, epilogue=IDENTITY)
    of_compared = {each: launch_of(bench, compared, device, each) for each in modelled}
    for config, deviation in off(bench, compared, of_compared).items():
        raise RuntimeError(f"{problem}: {config} is {deviation:.2g} off")
    launches = of_compared
    if compared is not problem:
        launches = {each: launch_of(bench, problem, device, each) for each in modelled}

    def timed(configs: Iterable[GemmConfig], most: int) -> dict[GemmConfig, float]:
        chosen = {config: launches[config] for config in configs}
        rounds = effort.visits(most, (modelled[config] for config in chosen))
        return rotated(bench, chosen, modelled, rounds, effort.repeats, seed)

    times = timed(launches, effort.rounds)
    best = sorted(times, key=times.__getitem__)[: effort.finalists]
    times |= timed(dict.fromkeys([*firsts, *best]), effort.final_rounds)
    return [
        Measured(config, times[config], modelled[config])
        for config in sorted(times, key=times.__getitem__)
    ]


def candidates(
    problem: Matmul, device: Device, count: int
) -> tuple[list[GemmConfig], dict[GemmConfig, float]]:
    """What would be chosen, and up to so many configurations with their modelled times."""
    kernels, family = manifest.kernels(), device.family or ""
    if isinstance(problem, RaggedProblem):
        rule = ragged.by_rule(problem, family, device.sm_count)
        times = {
            config: for_even_sizes(problem, config, device.machine).total_us
            for config in (rule, *ragged.candidates(problem, family, device.sm_count))
        }
        best = sorted(times, key=times.__getitem__)
        return [rule], {each: times[each] for each in dict.fromkeys([rule, *best][:count])}
    _, ranked = ranking(problem, device, family, kernels, tuned=None, kept=10**6)
    tuned = table_for(device.machine.name, itemsize(problem.lhs_dtype))
    firsts = ranking(problem, device, family, kernels, tuned=tuned)[1][:1] + ranked[:1]
    modelled = {each.config: each.cost.total for each in firsts}
    modelled |= {each.config: each.cost.total for each in chosen_few(ranked, count)}
    return [each.config for each in firsts], dict(list(modelled.items())[:count])


def launch_of(bench: Bench, problem: Matmul, device: Device, config: GemmConfig) -> Launch:
    """The call that launches a matmul in a configuration, which serves it."""
    choice = chosen(problem, device, config)
    assert not isinstance(choice, Refusal), choice
    return bench.launch(problem, choice)


def chosen(problem: Matmul, device: Device, config: GemmConfig | None = None) -> Chosen | Refusal:
    """The kernel that serves a matmul without a user's table, or why none does."""
    family = (device.family or "",)
    if isinstance(problem, RaggedProblem):
        return ragged.choose(problem, device, Policy(family, config))
    found = select(problem, device, family, config, manifest.kernels())
    return found if isinstance(found, Choice) else found[0]


def off(bench: Bench, problem: Matmul, launches: Mapping[Key, Launch]) -> dict[Key, float]:
    """The launches whose results are not those of the first, and by how much."""
    deviations = bench.deviations(problem, list(launches.values()))
    return {
        key: deviation
        for key, deviation in zip(launches, deviations, strict=True)
        if not deviation < AGREEMENT
    }


def rotated(
    bench: Bench,
    launches: Mapping[Key, Launch],
    expected: Mapping[Key, float],
    rounds: int,
    repeats: int,
    seed: int,
) -> dict[Key, float]:
    """The median time of each launch over rounds in random order; all in microseconds."""
    order = interleaved(launches, rounds, seed)
    bursts: list[list[Key]] = [[]]
    for key in order:
        if bursts[-1] and sum(expected[each] for each in bursts[-1]) * repeats > BURST_US:
            bursts.append([])
        bursts[-1].append(key)
    found = bench.time([[launches[key] for key in burst] for burst in bursts], repeats)
    times: dict[Key, list[float]] = {key: [] for key in launches}
    for key, microseconds in zip(order, found, strict=True):
        times[key] += microseconds
    return {key: statistics.median(each) for key, each in times.items()}


def chosen_few(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """The best by the model, and among them the best of each kind: so many in all."""
    least = ranked[0].cost.total
    possible = [each for each in ranked if each.cost.total <= HOPELESS * least]
    kinds: dict[object, Ranked] = {}
    for each in possible:
        c = each.config
        kinds.setdefault((c.tile, c.swap_ab), each)
        kinds.setdefault((c.cluster, c.cluster_k, c.split_k, c.split_tail, c.swap_ab), each)
    best = possible[: count // 2]
    others = [other for each in best[:REWALKED] for other in rewalked(each)]
    taken = {each.config: each for each in [*best, *kinds.values(), *others, *possible]}
    return list(taken.values())[:count]


def rewalked(ranked: Ranked) -> list[Ranked]:
    """The same tiles in another order; what the model says of it is of the one it likes."""
    orders = [(swizzle, raster) for swizzle in (1, 4, 16) for raster in ("m", "n")]
    return [
        replace(ranked, config=replace(ranked.config, swizzle=swizzle, raster=raster))
        for swizzle, raster in orders
    ]
