"""What jaxbw chooses on a B200 for the suite, beside NVIDIA's heuristic and published kernels.

    python benchmarks/b200_choices.py --out benchmarks/results/2026-11-25_b200_choices.json

All times are modeled, in microseconds, with normal data: no Blackwell GPU has run these kernels.
For each of the shapes of `python -m jaxbw bench`, in four layouts: what is chosen, with its
interval; and what was chosen before: the fastest by the point estimate, of tiles whose columns are
whole swizzle spans where B is MN-major. In NN, the layout of `x @ w`, also NVIDIA's first choice
for CUTLASS 3, alone and refined by its model of times, and what published kernels take: each priced
as the configuration of ours with that tile, cluster and number of parts. Where it is another than
ours: how far it is behind ours at the point, and at the corners of the machine
(selection/machines.toml) that are kindest and least kind to it, and which terms differ.

NVIDIA's heuristic is the package nvidia-matmul-heuristics; 0.1.0.27 was used.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from jaxbw._native import Plan
from jaxbw._src.lab.bench.case import suite
from jaxbw._src.lab.model.report import INTERVAL
from jaxbw._src.selection import devices, manifest, planner
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.search import Cost, Ranked, price
from jaxbw._src.selection.select import ranking
from jaxbw._src.selection.workload import workload
from measuring.matmuls import Matmul
from measuring.measurements import geometric_mean
from measuring.nvidia import Heuristic

FAMILY = "sm100"
LAYOUTS = ("nn", "nt", "tn", "tt")
TERMS = ("main_loop", "epilogue", "fixed", "split", "repack")
Shape = tuple[int, int, int]
TALL = ((512, 256), (2, 1))
# Tile and cluster of pairs, as code or article of a published kernel says for a shape.
PUBLISHED: dict[Shape, dict[str, tuple[tuple[int, int], tuple[int, int]]]] = {
    (1024, 1024, 1024): {"ThunderKittens": ((256, 64), (2, 1))},
    (2048, 2048, 2048): {"ThunderKittens": ((256, 256), (2, 1))},
    (4096, 4096, 4096): {"Modular, kernel 8": ((256, 128), (2, 1)), "ThunderKittens": TALL},
    (8192, 8192, 8192): {"Tilus V6": ((256, 256), (2, 1)), "ThunderKittens": TALL},
    (512, 8192, 5376): {"Modular, part 4": ((256, 224), (2, 1))},
}


def cases(machine: Machine) -> dict[str, Machine]:
    """The point, then each corner, by its constants."""
    found = {"point": machine}
    for corner in machine.corners:
        name = ", ".join(f"{key} {value:g}" for key, value in corner.items())
        found[name] = dataclasses.replace(machine, **corner)
    return found


def costs(machine: Machine, matmul: Matmul, config: GemmConfig) -> dict[str, Cost]:
    """Of a configuration, in each case."""
    work = workload(matmul.problem, FAMILY, swapped=config.swap_ab)
    return {name: price(FAMILY, at, work, config).cost for name, at in cases(machine).items()}


def chosen_before(device: Device, matmul: Matmul) -> Ranked:
    """The fastest by the point estimate that loads no more than it multiplies."""
    everything = 10**6
    _, ranked = ranking(
        matmul.problem, device, FAMILY, manifest.kernels(), tuned=None, kept=everything
    )
    for each in ranked:
        plan = planner.plan(matmul.problem, FAMILY, each.config, max(each.wave, 1))
        assert isinstance(plan, Plan)
        if plan.loaded_columns == each.config.tile[1] // each.config.cta_group:
            return each
    raise AssertionError(matmul)


def others(matmul: Matmul, nvidia: dict[str, Heuristic]) -> Iterator[tuple[str, str, GemmConfig]]:
    """Who takes another configuration, theirs in words, and ours that is like it."""
    for name, heuristic in nvidia.items():
        theirs = heuristic.first(matmul)
        tile, cluster = (
            (theirs.cta_tile_m, theirs.cta_tile_n),
            (theirs.cluster_m, theirs.cluster_n),
        )
        text = f"CTA tile {tile[0]}x{tile[1]}, cluster {cluster[0]}x{cluster[1]}"
        group = 2 if cluster[0] % 2 == 0 else 1  # two CTAs along M are a pair
        like = GemmConfig(tile[0] * group, tile[1], cta_group=group, cluster=cluster)
        yield (
            name,
            f"{text}, split_k {theirs.split_k}",
            dataclasses.replace(like, split_k=theirs.split_k),
        )
    for name, (tile, cluster) in PUBLISHED.get((matmul.m, matmul.n, matmul.k), {}).items():
        text = f"tile {tile[0]}x{tile[1]} of a pair"
        yield name, text, GemmConfig(*tile, cta_group=2, cluster=cluster)


def rastered(machine: Machine, matmul: Matmul, config: GemmConfig) -> GemmConfig:
    """In the order of tiles that takes the least time."""
    orders = [(raster, swizzle) for raster in "mn" for swizzle in (1, 2, 4, 8, 16)]
    options = [dataclasses.replace(config, raster=r, swizzle=s) for r, s in orders]
    work = workload(matmul.problem, FAMILY, swapped=config.swap_ab)
    return min(options, key=lambda each: price(FAMILY, machine, work, each).cost.total)


def same(ours: GemmConfig, theirs: GemmConfig) -> bool:
    """Whether tile, cluster and parts are."""
    kind = ("block_m", "block_n", "cta_group", "cluster", "split_k", "swap_ab")
    return all(getattr(ours, name) == getattr(theirs, name) for name in kind)


def compared(
    machine: Machine, matmul: Matmul, ours: GemmConfig, theirs: GemmConfig
) -> dict[str, Any]:
    """What another configuration takes beside ours, and why ours is another."""
    refused = planner.plan(matmul.problem, FAMILY, theirs)
    if not isinstance(refused, Plan):
        return {"like": str(theirs), "reason": f"not of ours: {refused}"}
    theirs = rastered(machine, matmul, theirs)
    mine, other = costs(machine, matmul, ours), costs(machine, matmul, theirs)
    behind = {name: other[name].total / mine[name].total - 1 for name in mine}
    at = {
        "kindest": min(behind, key=behind.__getitem__),
        "worst": max(behind, key=behind.__getitem__),
    }
    a, b = mine["point"], other["point"]
    terms = [
        f"{term.replace('_', ' ')} {getattr(b, term):.2f} for {getattr(a, term):.2f} us"
        for term in TERMS
        if abs(getattr(b, term) - getattr(a, term)) > 0.01 * a.total
    ]
    if abs(a.efficiency - b.efficiency) > 0.01:
        terms.append(
            f"{b.waves} waves filled to {b.efficiency:.1%} for {a.waves} to {a.efficiency:.1%}"
        )
    if behind["point"] < -0.002:
        worst = at["worst"]
        terms.append(f"ahead at the point, but {behind[worst]:.1%} behind at {worst}")
    return {
        "like": str(theirs),
        "us": round(b.total, 2),
        "behind": round(behind["point"], 4),
        **{f"behind_{name}": [round(behind[case], 4), case] for name, case in at.items()},
        "reason": "; ".join(terms) or "a tie",
    }


def row(device: Device, matmul: Matmul, nvidia: dict[str, Heuristic]) -> dict[str, Any]:
    """All that is told of a matmul."""
    machine = device.machine
    _, ranked = ranking(matmul.problem, device, FAMILY, manifest.kernels(), tuned=None)
    ours, earlier = ranked[0], chosen_before(device, matmul)
    us = ours.cost.total
    found: dict[str, Any] = {
        "matmul": str(matmul),
        "config": str(ours.config),
        "us": round(us, 2),
        "interval": [round(us * bound, 2) for bound in INTERVAL],
    }
    now, then = (costs(machine, matmul, each.config) for each in (ours, earlier))
    found["before"] = {
        "config": str(earlier.config),
        "us": round(earlier.cost.total, 2),
        "interval": [round(earlier.cost.total * bound, 2) for bound in INTERVAL],
        "ours_over_it": round(us / earlier.cost.total, 4),
        "ours_over_it_worst": round(max(now[c].total / then[c].total for c in now), 4),
        "it_over_ours_worst": round(max(then[c].total / now[c].total for c in now), 4),
    }
    if matmul.layout == "nn":
        found["others"] = {
            name: {"theirs": text}
            | (
                {"reason": "the same"}
                if same(ours.config, like)
                else compared(machine, matmul, ours.config, like)
            )
            for name, text, like in others(matmul, nvidia)
        }
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By layout, what changed: at the point, and where either is worst off."""
    found = {}
    for layout in LAYOUTS:
        of = [each["before"] for each in rows if each["matmul"].endswith(layout)]
        found[layout] = {
            name: {
                "geometric_mean": round(geometric_mean([each[name] for each in of]), 4),
                "most": max(each[name] for each in of),
            }
            for name in ("ours_over_it", "ours_over_it_worst", "it_over_ours_worst")
        }
    return found


def main() -> None:
    """Prints a line for each matmul in NN, writes the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    device = devices.resolve("B200")
    assert device is not None
    nvidia = {
        "NVIDIA's heuristic": Heuristic("B200", modeled=False),
        "NVIDIA's, refined by its model": Heuristic("B200", modeled=True),
    }
    rows = [
        row(device, Matmul(*shape, layout=layout), nvidia)
        for layout in LAYOUTS
        for shape in suite()
    ]
    for each in rows[: len(suite())]:
        print(f"{each['matmul']}: {each['us']} us, {each['config']}")
        for name, other in each["others"].items():
            print(f"  {name}: {other['theirs']}: {other.get('us', '')} {other['reason']}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    results = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "cases": list(cases(device.machine)),
        "summary": summary(rows),
        "rows": rows,
    }
    print(json.dumps(results["summary"], indent=1))
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
