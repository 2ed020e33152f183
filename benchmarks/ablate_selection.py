"""What the parts of the selection are worth: losses of choices by simpler prices, and by NVIDIA's.

    python benchmarks/ablate_selection.py calibration.jsonl --fresh judged.jsonl --out ablation.json

Every price rates the recorded configurations of a matmul, and loses by the time of what it rates
best over the least. It is asked alone, and corrected by trees that are grown for it: from seven
eighths of the recorded matmuls for the others, and from all of them for the fresh ones. `rule` is a
price of ten lines; `no price` leaves all to the trees; with --terms, `no X` is the model without
one of its terms (REMOVED).

NVIDIA's heuristic needs the package nvidia-matmul-heuristics (0.1.0.27 was used); without it it is
left out. The recorded configuration that is nearest to its first choice counts. It has seen no
time of our kernels. (Its choices for a B200 beside ours: b200_choices.py.)
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection.cost_model import Costs, evaluate
from jaxbw._src.selection.cost_model.grid import grid
from jaxbw._src.selection.machine import Machine, machines
from jaxbw._src.selection.tuned import MOST, REACH
from jaxbw._src.selection.tuned.features import FEATURES, features
from jaxbw._src.selection.tuned.trees import Forest
from measuring import measurements
from measuring.measurements import Floats, Group, Measurements, geometric_mean
from measuring.nvidia import Heuristic
from measuring.samples import FOLDS, Sample, grow

Price = Callable[[Machine, Measurements, Group], Costs]
Counted = tuple[Measurements, NDArray[np.bool_]]  # a matmul, and which configurations count

NEVER = 1e9  # a rate that bounds nothing
# What a machine is like where a term is removed.
REMOVED: Mapping[str, Mapping[str, float]] = {
    "contention": {"overlap_exponent": 40},
    "throttling": {"throttle_exponent": 0.0, "throttle_clock_ghz": 1.75},
    "L2": {"l2_bytes_per_ns": NEVER},
    "memory": {"dram_bytes_per_ns": NEVER, "dram_bytes_per_ns_sm": NEVER},
    "one SM's memory rate": {"dram_bytes_per_ns_sm": NEVER},
    "fill": {"ingest_bytes_per_cycle": NEVER, "narrow_row_cycles": 0},
    "empty rows": {"empty_row_slowdown": 1},
    "narrow rows": {"narrow_row_cycles": 0},
    "straddled lines": {"straddle_slowdown": 1},
    "memory latency": {"memory_latency_ns": 0},
    "latency": {"tma_latency_ns": 0, "tma_latency_cycles": 0, "wake_cycles": 0},
    "the accumulators' chain": {"mma_interval_cycles": 0},
    "shared memory's rate": {"smem_bytes_per_cycle": NEVER},
    "staging": {"stage_bytes_per_cycle": NEVER, "chunk_cycles": 0, "store_read_cycles": 0},
    "stores": {"store_bytes_per_cycle": NEVER, "store_visible_cycles": 0},
    "slow columns and rows": {"columns_slowdown": 1, "rows_slowdown": 1},
    "general epilogues": {"general_cycles": 0.0, "activation_cycles": 0.0},
    "a cluster's setup": {"setup_ns": 100},
    "sums in a cluster": {"cluster_sum_ns": 0, "cluster_sum_bytes_per_cycle": NEVER},
    "counting parts": {"split_ns": 0},
    "sums of parts": {"epilogue_bytes_per_cycle": NEVER},
    "reduction apart": {"reduce_ns": 0, "reduce_bytes_per_ns": NEVER},
}


# The constants of `rule`, in nanoseconds: the best of a coarse grid, on a quarter of the matmuls.
FIXED, WAVE, OUTPUT, SPLIT, SHARED_K = 2000.0, 1500.0, 0.06, 5000.0, 700.0


def rule(machine: Machine, _: Measurements, group: Group) -> Costs:
    """Ten lines: per wave the larger of MMA and loads, and its outputs; what a split costs."""
    work, table = group.work, group.table
    cut = grid(work, machine, table)
    row = table.k_spans * SPAN_BYTES  # bytes along K of a stage
    blocks = -(-work.k * work.itemsize // row)
    stages = cut.whole_waves * -(-blocks // table.cluster_k)
    stages = stages + cut.part_waves * -(-blocks // table.split_k)
    mma = cut.rows / 128 * table.block_n * machine.mma_cycles_per_column * row / 32
    loaded = (cut.rows / table.cluster_n + table.block_n / table.cluster_m) * row
    load = loaded * machine.sm_count / machine.l2_bytes_per_ns
    mma = mma / machine.max_clock_ghz
    main_loop = stages * np.maximum(mma, load)
    epilogue = cut.waves * (WAVE + cut.rows * table.block_n * OUTPUT)
    split = SPLIT * (table.split_k > 1) + SHARED_K * (table.cluster_k > 1)
    none = np.zeros(len(table))
    terms = {
        **{field.name: none for field in dataclasses.fields(Costs)},
        **{"tiles": cut.tiles, "items": cut.items, "resident": cut.resident, "waves": cut.waves},
        **{"mma": stages * mma, "fill": stages * load, "main_loop": main_loop},
        **{"epilogue": epilogue, "fixed": none + FIXED, "split": split},
        "efficiency": work.m * work.n / (cut.rows * table.block_n * cut.waves * machine.sm_count),
        "total": FIXED + main_loop + epilogue + split,
    }
    return Costs(**terms)


def model(machine: Machine, _: Measurements, group: Group) -> Costs:
    """Today's."""
    return evaluate(group.work, machine, group.table, group.rasterisation)


def nothing(machine: Machine, each: Measurements, group: Group) -> Costs:
    """No price: trees are alone with sizes and launches."""
    costs, none = rule(machine, each, group), np.zeros(len(group.table))
    terms: dict[str, Any] = dict.fromkeys(("mma", "fill", "epilogue", "fixed", "split"), none)
    return dataclasses.replace(costs, **terms, total=none + 1000.0)


def without(changes: Mapping[str, Any]) -> Price:
    """The model without a term."""
    return lambda machine, each, group: model(dataclasses.replace(machine, **changes), each, group)


@dataclasses.dataclass(frozen=True)
class Rated:
    """A recorded matmul, what a price says of its configurations, and which of them count."""

    measured: Measurements
    counts: NDArray[np.bool_]
    totals: Floats
    rows: Floats  # FEATURES
    is_priced: bool  # else all is correction

    @property
    def sample(self) -> Sample:
        """What trees are grown from, as `samples.sample` has it."""
        each, counts = self.measured, self.counts
        sizes = each.matmul.m, each.matmul.n, each.matmul.k
        return Sample.of(sizes, self.rows[counts], each.slower[counts], self.totals[counts])

    def lost(self, trees: Forest | None) -> float:
        """The time of what is rated best over the least, corrected as in `tuned.Table`."""
        totals = self.totals
        if trees is not None:
            most = MOST if self.is_priced else NEVER
            logarithms = np.clip(trees.total(self.rows), -math.log(most), math.log(most))
            near = (totals <= REACH * totals.min()) | (not self.is_priced)
            totals = totals * np.exp(np.where(near, logarithms, 0.0))
        counted = np.where(self.counts, totals, np.inf)
        # Recorded ones lie in the order of their times: of equals the slowest counts.
        return float(self.measured.slower[counted <= counted.min()].max())


def rate(machine: Machine, matmuls: Sequence[Counted], price: Price) -> list[Rated]:
    """All of them by one price."""
    found = []
    for each, counts in matmuls:
        totals = np.empty(len(each.measured))
        rows = np.empty((len(each.measured), len(FEATURES)))
        for group in each.groups:
            costs = price(machine, each, group)
            totals[group.rows] = costs.total
            rows[group.rows] = features(group.work, machine, group.table, costs)
        found.append(Rated(each, counts, totals, rows, price in PRICES.values()))
    return found


def grown(seen: Sequence[Rated]) -> Forest:
    """The trees of these."""
    return Forest.of(grow([each.sample for each in seen]), len(FEATURES))


def losses(
    machine: Machine, recorded: Sequence[Counted], fresh: Sequence[Counted], price: Price
) -> dict[str, Any]:
    """A row of the results: recorded ones left out in turn, and fresh ones."""
    old, new = (rate(machine, matmuls, price) for matmuls in (recorded, fresh))
    unseen = []
    for fold in range(FOLDS):
        trees = grown([each for i, each in enumerate(old) if i % FOLDS != fold])
        unseen += [each.lost(trees) for each in old[fold::FOLDS]]
    trees = grown(old)
    return {
        "recorded": summary([each.lost(None) for each in old]),
        "recorded, with trees": summary(unseen),
        "fresh": summary([each.lost(None) for each in new]),
        "fresh, with trees": summary([each.lost(trees) for each in new]),
    }


def summary(lost: Sequence[float]) -> dict[str, float]:
    """Of the losses of some matmuls."""
    return {
        "geometric_mean": round(geometric_mean(lost), 4),
        "most": round(max(lost), 3),
        "beyond_1.15": sum(each > 1.15 for each in lost),
    }


class Nvidia(Heuristic):
    """As a price."""

    def __call__(self, machine: Machine, each: Measurements, group: Group) -> Costs:
        """A price that is less the nearer a configuration is; of equals the rule decides."""
        costs, table, theirs = nothing(machine, each, group), group.table, self.first(each.matmul)
        sizes = [table.block_m // table.cta_group, table.block_n, table.cluster_m, table.cluster_n]
        if group.work.swapped:
            sizes = [sizes[1], sizes[0], sizes[3], sizes[2]]
        sizes.append(table.split_k * table.cluster_k)
        names = ("cta_tile_m", "cta_tile_n", "cluster_m", "cluster_n", "split_k")
        apart = sum(
            np.abs(np.log2(size / getattr(theirs, name)))
            for size, name in zip(sizes, names, strict=True)
        )
        ruled = rule(machine, each, group).total
        return dataclasses.replace(costs, total=1000.0 + apart + 1e-9 * ruled)


PRICES: dict[str, Price] = {"model": model, "rule": rule}
UNPRICED: dict[str, Price] = {"no price": nothing}


def main() -> None:
    """Prints a line for each price, writes the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path, nargs="+")
    parser.add_argument("--fresh", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--terms", action="store_true", help="the model without each of its terms")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    machine = machines()["H200"]
    recorded, fresh = (
        [
            (each, each.in_order(machine))
            for path in paths
            for each in measurements.read(path, machine)
        ]
        for paths in (arguments.results, arguments.fresh)
    )
    with contextlib.suppress(ImportError):
        for name, modeled in (("NVIDIA's", False), ("NVIDIA's, by its model", True)):
            UNPRICED[name] = Nvidia("H200_SXM", modeled=modeled)
    if arguments.terms:
        PRICES.update({f"no {name}": without(changes) for name, changes in REMOVED.items()})
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "matmuls": {"recorded": len(recorded), "fresh": len(fresh)},
        "losses": {},
    }
    for name, price in {**PRICES, **UNPRICED}.items():
        results["losses"][name] = losses(machine, recorded, fresh, price)
        means = (f"{key} {each['geometric_mean']}" for key, each in results["losses"][name].items())
        print(f"{name}: {', '.join(means)}", flush=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
