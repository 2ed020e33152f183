"""The model of grouped matmuls beside what `ragged.py` has recorded.

    python benchmarks/ragged_model.py benchmarks/results/2026-11-27_h100_ragged_drhs.json ...

A line for each case: the configuration that served it, or that was named, its time, what the model
has, and their ratio; then the geometric mean of the ratios, that of their distances from 1, and the
extremes. Of several records of a case the last one counts. The model, lab/model/grouped.py, is told
the sizes of groups that the record was made with. Arms that it does not model (clusters, a CTA for
each tile) are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from jaxbw._native import Major
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.lab.model.grouped import GroupedTime, modelled
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.ragged import by_rule
from measuring.ragged_cases import FORMS, Case, problem_of, sizes_of

H100 = TARGETS["H100"]
_TILE = re.compile(r"block (\d+)x(\d+)x\w+, cluster 1x1, cta_group 1, stages as fit, swizzle (\d+)")


@dataclass(frozen=True)
class Compared:
    """A launch that was measured, and what the model has of it."""

    case: Case
    arm: str
    config: GemmConfig
    promoted: bool
    us: float
    time: GroupedTime

    @property
    def ratio(self) -> float:
        """Of the modelled time to the measured one."""
        return self.time.total_us / self.us

    @property
    def group(self) -> str:
        """What is told of together."""
        form = f"{self.case.form}{', sums promoted' * self.promoted}"
        return f"{form}, {'another tile' if 'block' in self.arm else self.case.kind}"


def compared(paths: Sequence[pathlib.Path]) -> list[Compared]:
    """All that is modelled of records."""
    found: dict[tuple[Case, str, GemmConfig], Compared] = {}
    for row in (row for path in paths for row in json.loads(path.read_text())["rows"]):
        case = Case(**row["case"])
        for arm, measured in row["arms"].items():
            problem = problem_in(case, arm)
            config = None if problem is None else config_in(problem, arm, measured["kernels"])
            if problem is None or config is None:
                continue
            time = modelled(problem, config, H100.machine, sizes_of(case)[None])
            found[case, arm, config] = Compared(
                case, arm, config, problem.promoted, measured["us"], time
            )
    return [*found.values()]


def problem_in(case: Case, arm: str) -> RaggedProblem | None:
    """The grouped matmul of an arm; None where it is none, or several."""
    if case.form in FORMS and (arm == "kernel" or arm.startswith("block")):
        return problem_of(case)
    forward = problem_of(replace(case, form="forward"))
    if case.form == "gated" and arm == "fused":
        return replace(forward, epilogue=Epilogue(activation="silu", gated=True))
    if case.form == "float8" and arm.startswith(("float8", "highest")):
        e4m3 = np.dtype(jnp.float8_e4m3fn)
        return replace(
            forward,
            lhs_dtype=e4m3,
            rhs_dtype=e4m3,
            rhs_major=Major.K,
            promoted=arm.startswith("highest"),
            epilogue=Epilogue(lhs_scale=True, rhs_scale=True),
        )
    if case.form == "float8" and arm == "bfloat16":
        return replace(forward, rhs_major=Major.K)
    return None


def config_in(problem: RaggedProblem, arm: str, kernels: list[str]) -> GemmConfig | None:
    """The launch of an arm: as it is named, or by the rule, if that still takes this kernel."""
    if "block" in arm:
        if (found := _TILE.search(arm)) is None or "scheduler" in arm:
            return None
        block_m, block_n, swizzle = map(int, found.groups())
        return GemmConfig(block_m, block_n, pingpong="pingpong" in arm, swizzle=swizzle)
    rule = by_rule(problem, "sm90", H100.sm_count)
    rows = 64 if rule.pingpong or rule.block_m == 128 else 128
    return rule if any(each.endswith(f"_{rows}x{rule.block_n}") for each in kernels) else None


def main() -> None:
    """Parse arguments, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="+", type=pathlib.Path)
    groups: dict[str, list[float]] = {}
    for each in compared(parser.parse_args().records):
        config, time = each.config, each.time
        for name in (each.group, "a tile of the rule" * ("block" not in each.arm), "all"):
            groups.setdefault(name, []).append(each.ratio)
        tile = f"{config.block_m}x{config.block_n}{'p' * config.pingpong}"
        print(
            f"{each.case!s:58} {each.arm[:8]:8} {tile:8} {each.us:9.1f} {time.total_us:9.1f} "
            f"{each.ratio:6.3f}  {time.waves:7.2f} waves, {100 * time.wasted:4.1f} % empty"
        )
    for name in sorted(groups.keys() - {""}):
        ratios = groups[name]
        mean, off = error(ratios)
        print(
            f"{name:44} {len(ratios):4}  geometric mean {mean:.3f}, off by {off:.3f}, "
            f"{min(ratios):.3f} to {max(ratios):.3f}"
        )


def error(ratios: Sequence[float]) -> tuple[float, float]:
    """The geometric means of ratios, and of how far they are from 1."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)), math.exp(statistics.fmean(map(abs, logs)))


if __name__ == "__main__":
    main()
