"""Device times of many launch configurations, to calibrate and to judge the selection by.

    python benchmarks/measure_configs.py --draw 60 --seed 1 --out calibration.jsonl
    python benchmarks/measure_configs.py --shapes 4096,4096,4096,nn --count 400 --out one.jsonl

For each product the best candidates by the model are measured, and the best of every kind (tile,
cluster, parts, rasterisation) that it does not rate hopeless; what would be chosen and what comes
out best once more, longer. Launches go in random order, round after round, with pauses where they
are long, so that the clock is that of short bursts. The results of all configurations must agree.
Each product is a line of JSON; those that --out has already are left out: a run can be resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import launching
import products
from products import Product

from jaxbw.selection import devices, manifest
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.devices import Device
from jaxbw.selection.search import Ranked
from jaxbw.selection.select import Choice, ranking, select
from jaxbw.selection.tuned import table_for

HOPELESS = 3.0  # times the best modelled time
REWALKED = 4  # configurations whose tiles are walked in other orders, too
BURST_US = 4000.0  # of launches, before a pause
AGREEMENT = 0.02  # of bfloat16 results whose sums have different orders


@dataclasses.dataclass(frozen=True)
class Measured:
    """A configuration, its median time over some rounds and its modelled one, in microseconds."""

    config: GemmConfig
    microseconds: float
    modelled: float

    def to_json(self) -> dict[str, Any]:
        """The configuration as what differs from the default."""
        defaults = GemmConfig()
        fields = {
            field.name: getattr(self.config, field.name)
            for field in dataclasses.fields(GemmConfig)
            if getattr(self.config, field.name) != getattr(defaults, field.name)
        }
        return {
            "config": fields,
            "us": round(self.microseconds, 3),
            "model": round(self.modelled, 3),
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Measured:
        """What `to_json` gave."""
        fields = dict(entry["config"])
        if "cluster" in fields:
            fields["cluster"] = tuple(fields["cluster"])
        return cls(GemmConfig(**fields), entry["us"], entry["model"])


def read(path: pathlib.Path) -> dict[Product, list[Measured]]:
    """The products of a results file with their configurations; a torn last line is left out."""
    found: dict[Product, list[Measured]] = {}
    for line in _whole_lines(path):
        row = json.loads(line)
        product = Product(row["m"], row["n"], row["k"], row["layout"], row["dtype"])
        found[product] = [Measured.from_json(entry) for entry in row["measured"]]
    return found


def _whole_lines(path: pathlib.Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def chosen_few(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """The best by the model, and among them the best of each kind: so many in all."""
    least = ranked[0].cost.total
    possible = [each for each in ranked if each.cost.total <= HOPELESS * least]
    kinds: dict[object, Ranked] = {}
    for each in possible:
        c = each.config
        kinds.setdefault((c.tile, c.swap_ab), each)
        kinds.setdefault(
            (c.cluster, getattr(c, "cluster_k", 1), c.split_k, c.split_tail, c.swap_ab), each
        )
    best = possible[: count // 2]
    others = [other for each in best[:REWALKED] for other in rewalked(each)]
    taken = {each.config: each for each in [*best, *kinds.values(), *others, *possible]}
    return list(taken.values())[:count]


def rewalked(ranked: Ranked) -> list[Ranked]:
    """The same tiles in another order; what the model says of it is of the one it likes."""
    orders = [(swizzle, raster) for swizzle in (1, 4, 16) for raster in ("m", "n")]
    return [
        dataclasses.replace(
            ranked, config=dataclasses.replace(ranked.config, swizzle=swizzle, raster=raster)
        )
        for swizzle, raster in orders
    ]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How thoroughly a product is measured.

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


def measure(
    bench: launching.Bench, product: Product, device: Device, effort: Effort, seed: int = 0
) -> list[Measured]:
    """Measures a product in many configurations, the fastest first.

    Raises:
      RuntimeError: results differ.
    """
    problem, kernels, family = product.problem, manifest.kernels(), device.family or ""
    _, ranked = ranking(problem, device, family, kernels, tuned=None, kept=10**6)
    tuned = table_for(device.machine.name)
    firsts = ranking(problem, device, family, kernels, tuned=tuned)[1][:1] + ranked[:1]
    launches: dict[GemmConfig, launching.Launch] = {}
    modelled = {each.config: each.cost.total for each in firsts}
    modelled |= {each.config: each.cost.total for each in chosen_few(ranked, effort.count)}
    for config in modelled:
        choice = select(problem, device, (family,), config, kernels)
        assert isinstance(choice, Choice), choice
        launches[config] = bench.launch(problem, choice)
    deviations = bench.deviations(problem, list(launches.values()))
    for config, deviation in zip(launches, deviations, strict=True):
        if not deviation < AGREEMENT:
            raise RuntimeError(f"{product}: {config} is {deviation:.2g} off")

    def timed(configs: Iterable[GemmConfig], most: int) -> dict[GemmConfig, float]:
        chosen = {config: launches[config] for config in configs}
        expected = [modelled[config] for config in chosen]
        once = sum(expected) * (1 + effort.repeats)
        rounds = min(most, max(2, int(effort.seconds * 1e6 / once)))
        return rotated(bench, chosen, modelled, rounds, effort.repeats, seed)

    times = timed(launches, effort.rounds)
    best = sorted(times, key=times.__getitem__)[: effort.finalists]
    times |= timed(dict.fromkeys([each.config for each in firsts] + best), effort.final_rounds)
    return [
        Measured(config, times[config], modelled[config])
        for config in sorted(times, key=times.__getitem__)
    ]


def rotated(
    bench: launching.Bench,
    launches: Mapping[GemmConfig, launching.Launch],
    modelled: Mapping[GemmConfig, float],
    rounds: int,
    repeats: int,
    seed: int,
) -> dict[GemmConfig, float]:
    """The median time of each configuration over rounds in random order."""
    source = random.Random(seed)
    order = [
        config for _ in range(rounds) for config in source.sample(list(launches), len(launches))
    ]
    bursts: list[list[GemmConfig]] = [[]]
    for config in order:
        if bursts[-1] and sum(modelled[each] for each in bursts[-1]) * repeats > BURST_US:
            bursts.append([])
        bursts[-1].append(config)
    found = bench.time([[launches[config] for config in burst] for burst in bursts], repeats)
    times: dict[GemmConfig, list[float]] = {config: [] for config in launches}
    for config, microseconds in zip(order, found, strict=True):
        times[config] += microseconds
    return {config: statistics.median(each) for config, each in times.items()}


def run(
    bench: launching.Bench,
    wanted: Iterable[Product],
    device: Device,
    effort: Effort,
    out: pathlib.Path,
    budget_s: float,
) -> Iterator[tuple[Product, list[Measured]]]:
    """Measures what the file does not have yet, until the time is over; appends as it goes."""
    start, done = time.monotonic(), read(out)
    out.write_text("".join(line + "\n" for line in _whole_lines(out)))
    for product in wanted:
        if product in done:
            continue
        if time.monotonic() - start > budget_s:
            print(f"{budget_s:.0f} s are over; run again to go on", flush=True)
            return
        measured = measure(bench, product, device, effort)
        row = {**dataclasses.asdict(product), "device": device.name}
        with out.open("a") as file:
            file.write(
                json.dumps({**row, "measured": [each.to_json() for each in measured]}) + "\n"
            )
        yield product, measured


def main() -> None:
    """Parses arguments, measures, prints a line for each product."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K,LAYOUT")
    parser.add_argument("--draw", type=int, default=0, help="how many random products")
    parser.add_argument("--seed", type=int, default=1, help="of the random products")
    parser.add_argument("--count", type=int, default=Effort.count, help="configurations of each")
    parser.add_argument("--budget", type=float, default=500, help="seconds, after which it stops")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    device = devices.running_device()
    if device is None or device.family is None:
        parser.error("there is no GPU that kernels run on")
    wanted = [products.parse(text) for text in arguments.shapes]
    wanted += products.draw(arguments.draw, arguments.seed)
    effort = Effort(count=arguments.count)
    bench = launching.Gpu()
    for product, measured in run(bench, wanted, device, effort, arguments.out, arguments.budget):
        fastest = measured[0]
        by_model = min(measured, key=lambda each: each.modelled)
        ratio = by_model.microseconds / fastest.microseconds
        print(
            f"{product!s:24} {fastest.microseconds:9.2f} us, the model's first {ratio:5.3f} of it; "
            f"{len(measured)}: {fastest.config}",
            flush=True,
        )


if __name__ == "__main__":
    main()
