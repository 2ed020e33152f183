r"""The model of XLA's time, from measured times: jaxbw/_src/selection/xla.

    python benchmarks/model_xla.py xla.jsonl.xz --unseen more.jsonl.xz \
        --out jaxbw/_src/selection/xla/h200.npz

Reads what measure_xla.py wrote. Fits the formula's constants, of each machine that the files have
times of, then grows regression trees (LightGBM) for the logarithm of the time over the formula's.
The trees learn from all machines, as XLA picks much the same kernels on each; all else is of
--machine. Of its matmuls a part is left out in turn, and the errors of models that have not seen
them give the margins: the measured ratio of XLA's time to the kernel's is more than the modelled
ratio times its margin for 1 - CONFIDENCE of them, of each class of ROWS, and of those that are not
aligned. Then it says what selection would lose: on those, and on matmuls of --unseen, by which
nothing is fitted.

Of each matmul the kernel is modelled as selection does it now, and taken to need the time that was
measured. Matmuls of the benchmark's suite are left out of everything.
"""

from __future__ import annotations

import argparse
import datetime
import math
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from jaxbw._src.lab.bench.case import suite
from jaxbw._src.selection import manifest, xla
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.devices import TARGETS, Device
from jaxbw._src.selection.select import select
from jaxbw._src.selection.tuned.files import SIZES, to_bytes
from jaxbw._src.selection.xla import ADVANTAGE, XlaModel, XlaTime
from jaxbw._src.selection.xla.features import FEATURES, Rates, features, is_aligned, rough
from measuring import xla_times
from measuring.matmuls import Matmul
from measuring.measurements import Floats, geometric_mean
from measuring.samples import as_columns

CONFIDENCE = 0.6  # that XLA is quicker, before the advantage that is asked for
ROWS = (32, 128, 512, 2**31)  # the most of each class
FOLDS = 8  # of the check
FEWEST = 8  # matmuls of a kind, or of a layout, that is said to be known
STARTS = Rates(0, launch=2.5, reduce=2.0, flops=6.2e6, load=20, bytes=4.2e6)  # of the constants
TREES = 400
GROWTH: dict[str, Any] = {
    "objective": "fair",  # a few times are off by a factor of two, whatever the sizes say
    "fair_c": 0.1,
    "learning_rate": 0.05,
    "num_leaves": 31,
    "max_depth": 8,
    "min_data_in_leaf": 4,
    "lambda_l2": 1.0,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "seed": 1,
    "deterministic": True,
    "force_row_wise": True,  # or it measures which is quicker, and may differ
    "num_threads": 2,
    "verbose": -1,
}


@dataclass(frozen=True)
class Sample:
    """A matmul, its measured times, and what selection's model gives the kernel."""

    matmul: Matmul
    xla_us: float
    kernel_us: float
    modelled_us: float


Learnt = Mapping[Rates, Sequence[Sample]]  # by the formula's constants of their machine


def samples(paths: Sequence[pathlib.Path], device: Device) -> list[Sample]:
    """Those of some files, measured on such a device, that the model may be of; the benchmark's are
    not among them. Of a matmul that two files have, the later one counts."""
    rows = {
        matmul: row
        for path in paths
        for matmul, row in xla_times.read(path).items()
        if replace(device, name=row["device"]).machine == device.machine
    }
    of_benchmark, found = suite(), []
    for matmul, row in rows.items():
        if (matmul.m, matmul.n, matmul.k) in of_benchmark or "kernel" not in row["us"]:
            continue
        if xla.kind(matmul.problem) is None:
            continue
        choice = select(matmul.problem, device, (device.family or "",), None, manifest.kernels())
        assert isinstance(choice, Choice)
        assert choice.cost is not None
        times = {name: statistics.median(rounds) for name, rounds in row["us"].items()}
        found.append(Sample(matmul, times["xla"], times["kernel"], choice.cost.total))
    return found


def rates(known: Sequence[Sample], sm_count: int) -> Rates:
    """The constants by which the logarithms have the least mean error, where all is aligned."""
    aligned = [each for each in known if is_aligned(each.matmul.problem)]
    logarithms = np.log([each.xla_us for each in aligned])

    def error(changes: Floats) -> float:
        tried = _changed(sm_count, changes)
        base = np.log([rough(each.matmul.problem, tried).us for each in aligned])
        return float(np.abs(logarithms - base).mean())

    begin = np.zeros(len(STARTS) - 1)
    best = scipy.optimize.minimize(error, begin, method="Nelder-Mead", options={"maxfev": 120})
    return _changed(sm_count, best.x)


def _changed(sm_count: int, changes: Floats) -> Rates:
    values = np.array(STARTS[1:]) * np.exp(changes)
    return Rates(sm_count, *(float(f"{value:.4g}") for value in values))


def grow(known: Learnt) -> dict[str, NDArray[Any]]:
    """The trees that samples give, as they lie in the model's file."""
    each = [(sample, given) for given, some in known.items() for sample in some]
    rows = np.array([features(sample.matmul.problem, given) for sample, given in each])
    base = np.array([rough(sample.matmul.problem, given).us for sample, given in each])
    errors = np.log([sample.xla_us for sample, _ in each]) - np.log(base)
    grown = lightgbm.train(GROWTH, lightgbm.Dataset(rows, errors), TREES).dump_model()
    return as_columns([each["tree_structure"] for each in grown["tree_info"]])


def table(
    known: Sequence[Sample], given: Rates, made: Mapping[str, Any], others: Learnt
) -> dict[str, Any]:
    """The model of samples, as it lies in its file; its margins are none.

    `others`: of other machines, for the trees.
    """
    problems = [each.matmul.problem for each in known]
    kinds = [str(xla.kind(problem)) for problem in problems]
    layouts = [problem.layout for problem in problems]
    sizes = np.array([(p.m, p.n, p.k, p.m * p.n * p.k) for p in problems])
    return {
        "version": xla.VERSION,
        "made": dict(made),
        "sizes": {
            name: [int(of.min()), int(of.max())] for name, of in zip(SIZES, sizes.T, strict=True)
        },
        "layouts": sorted({each for each in layouts if layouts.count(each) >= FEWEST}),
        "kinds": sorted({each for each in kinds if kinds.count(each) >= FEWEST}),
        "rates": given._asdict(),
        "features": list(FEATURES),
        "margins": [[ROWS[-1], 1.0]],
        "unaligned": 1.0,
        "trees": grow({given: known, **others}),
    }


def out_of_fold(known: Sequence[Sample], given: Rates, others: Learnt) -> list[float]:
    """XLA's times by models that have not seen them."""
    found: dict[Matmul, float] = {}
    for fold in range(FOLDS):
        rest = [each for i, each in enumerate(known) if i % FOLDS != fold]
        model = XlaModel.of(table(rest, given, {}, others))
        found |= {each.matmul: model.time(each.matmul.problem).us for each in known[fold::FOLDS]}
    return [found[each.matmul] for each in known]


def margins(known: Sequence[Sample], expected: Sequence[float]) -> dict[str, Any]:
    """How far XLA's time over the kernel's may be more than the models say: "margins" by rows, and
    "unaligned"."""
    classes: dict[int, list[float]] = {rows: [] for rows in ROWS}
    unaligned: list[float] = []
    for each, us in zip(known, expected, strict=True):
        rows = next(rows for rows in ROWS if each.matmul.m <= rows)
        measured, modelled = each.xla_us / each.kernel_us, us / each.modelled_us
        aligned = is_aligned(each.matmul.problem)
        (classes[rows] if aligned else unaligned).append(measured / modelled)
    by_rows = [(rows, _margin(ratios)) for rows, ratios in classes.items()]
    return {"margins": by_rows, "unaligned": _margin(unaligned)}


def _margin(ratios: Sequence[float]) -> float:
    """Infinite where there are none: nothing is given to XLA then.

    Less than one where kernels were measured slower than they are modelled: records may be old.
    """
    return round(float(np.quantile(ratios, CONFIDENCE)), 4) if ratios else math.inf


def judged(known: Sequence[Sample], times: Sequence[XlaTime]) -> dict[str, Any]:
    """What choices by these times give up, and gain.

    A kernel is given up wrongly where it was measured quicker than XLA by 1 % or more.
    """
    taken = [t.is_quicker_than(each.modelled_us) for each, t in zip(known, times, strict=True)]
    served = [s.xla_us if xla else s.kernel_us for s, xla in zip(known, taken, strict=True)]
    pairs = list(zip(known, taken, served, strict=True))
    wrongly = [
        s.xla_us / s.kernel_us for s, xla, _ in pairs if xla and s.xla_us > 1.01 * s.kernel_us
    ]
    errors = [math.log(s.xla_us / t.us) for s, t in zip(known, times, strict=True)]
    return {
        "matmuls": len(known),
        "jnp over kernels": round(geometric_mean([s.xla_us / s.kernel_us for s in known]), 4),
        "jnp over choice": round(geometric_mean([s.xla_us / us for s, _, us in pairs]), 4),
        "jnp over better": round(
            geometric_mean([s.xla_us / min(s.xla_us, s.kernel_us) for s in known]), 4
        ),
        "least, kernels": round(min(s.xla_us / s.kernel_us for s in known), 3),
        "least, choice": round(min(s.xla_us / us for s, _, us in pairs), 3),
        "XLA is quicker by 3 %": sum(ADVANTAGE * s.xla_us <= s.kernel_us for s in known),
        "of these taken": sum(ADVANTAGE * s.xla_us <= s.kernel_us for s, xla, _ in pairs if xla),
        "taken": sum(taken),
        "wrongly": len(wrongly),
        "most lost by it": round(max(wrongly, default=1.0), 3),
        "median error": round(statistics.median(map(abs, errors)), 4),
    }


def main() -> None:
    """Prints what choices lose, and writes the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path, nargs="+")
    parser.add_argument("--unseen", type=pathlib.Path, nargs="*", default=[], help="to judge only")
    parser.add_argument("--machine", choices=TARGETS, default="H200")
    parser.add_argument("--out", type=pathlib.Path, help="the model; without it only the check")
    arguments = parser.parse_args()
    device = TARGETS[arguments.machine]
    learnt = {
        each: samples(arguments.results, each)
        for each in TARGETS.values()
        if each.family == device.family
    }
    known = learnt.pop(device)
    given = rates(known, device.sm_count)
    others = {rates(some, each.sm_count): some for each, some in learnt.items() if some}
    expected = out_of_fold(known, given, others)
    found = margins(known, expected)
    print(f"the formula: {given._asdict()}\n{found}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    made = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "matmuls": len(known),
        "of other machines": sum(map(len, others.values())),
    }
    entry = table(known, given, made, others) | found
    model = XlaModel.of(entry)
    for aligned in (True, False):
        asked = [
            (s, XlaTime(us, us * model.margin(s.matmul.problem)))
            for s, us in zip(known, expected, strict=True)
            if model.covers(s.matmul.problem) and is_aligned(s.matmul.problem) is aligned
        ]
        if asked:
            of = "aligned" if aligned else "unaligned"
            print(f"left out in turn, {of}: {judged(*zip(*asked, strict=True))}", flush=True)
    if arguments.unseen:
        unseen = [s for s in samples(arguments.unseen, device) if model.covers(s.matmul.problem)]
        print(f"unseen: {judged(unseen, [model.time(s.matmul.problem) for s in unseen])}")
    if arguments.out is not None:
        arguments.out.write_bytes(to_bytes(entry))
        print(f"{arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
