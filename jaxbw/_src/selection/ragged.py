"""The choice of a kernel for a grouped matmul, by a short rule, or a user's table of measured ones.

Its sizes only the device knows. What there is to choose is the tile. Of every group a tile is
partly empty, by half of its rows on average, and multiplied nevertheless; a large tile loads less
for each multiplication. A row's result has the same bits whatever the tile and the other groups
are: all tiles sum along the contraction in one order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxbw._native import Major, Plan
from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import BF16, E4M3, E5M2, F16
from jaxbw._src.problem import DATA_TYPES, mx_of
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import manifest, planner
from jaxbw._src.selection.choice import Refusal
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device, for_family
from jaxbw._src.selection.implementations import EMULATED

if TYPE_CHECKING:
    from jaxbw._src.selection.policy import Policy
    from jaxbw._src.selection.tuned_matmuls import TunedMatmuls

_FLOAT8 = (E4M3, E5M2)
_DTYPES = (BF16, F16, *_FLOAT8)
_FAMILIES = ("sm90", "sm100")
# With half of these rows a tile takes 44 us on an H100, and to add up its parts some 12.
_SPLIT_ROWS = 8192
_MOST_PARTS = 4  # the warp that comes last adds them up
# Of each group a pair's tile wastes 64 rows more on average, for what the model of a B200 says is
# up to 3 % of the time.
_PAIR_ROWS = 2048
_PAIR_ROWS_OF_BLOCKS = 512  # in block-scaled formats, by the same model, see _of_blocks
_TILE_ROWS, _TILE_COLUMNS, _SWIZZLES = (64, 128, 256), range(32, 257, 32), (1, 2, 4, 8, 16)
_SWIZZLE = 16  # rows of tiles of a band, at most: by 8 columns they are a wave of 132 SMs


@dataclass(frozen=True)
class RaggedChoice:
    """What serves a grouped matmul, and why.

    Attributes:
      implementation: "sm90", "sm100", or their emulators'.
      kernel: its name.
      config: its launch configuration.
      reason: why this one.
      problem: the matmul, in words.
      device: the GPU that the choice is for, or that is emulated.
      wave: CTAs that it runs at a time; where `split_tail`, the tiles behind whole waves are split.
    """

    implementation: str
    kernel: str
    config: GemmConfig
    reason: str
    problem: str
    device: str
    wave: int

    def summary(self) -> str:
        """What serves the matmul, how and why, in a line."""
        how = f"{self.implementation} on {self.device}, {self.kernel}, {self.config}"
        return f"{self.problem}: {how}: {self.reason}"


def choose(problem: RaggedProblem, device: Device | None, policy: Policy) -> RaggedChoice | Refusal:
    """The kernel for a grouped matmul, or why there is none.

    Args:
      problem: of known sizes.
      device: the GPU it is for; None where there is none.
      policy: which implementations may serve it, in order; where it has none, the kernels.
    """
    refusal = Refusal("xla", "asked for")
    own = None if device is None else device.family
    for name in policy.implementation or (own or _FAMILIES[0],):
        if name == "xla":
            break
        family = EMULATED.get(name, name)
        on = for_family(device, family) if name in EMULATED else device
        if (reason := _refusal(problem, on, family)) is not None:
            refusal = Refusal(name, reason)
            continue
        assert on is not None
        config, why = policy.config, "the given configuration"
        if config is None or config.leaves_tile_open:
            config, why = _fastest(problem, family, on, policy.tuned)
        plan = _planned(problem, family, config, on.sm_count)
        if isinstance(plan, str):
            refusal = Refusal(name, plan)
            continue
        device_name = f"{on.name}, emulated on the CPU" if name in EMULATED else on.name
        return RaggedChoice(name, plan.kernel, config, why, str(problem), device_name, on.sm_count)
    return refusal


def plan_of(problem: RaggedProblem, choice: RaggedChoice) -> Plan:
    """What the launch that was chosen for a problem will do; the call has its attributes."""
    family = EMULATED.get(choice.implementation, choice.implementation)
    plan = planner.plan(problem, family, choice.config, choice.wave)
    assert isinstance(plan, Plan), str(plan)
    return plan


def _fastest(
    problem: RaggedProblem, family: str, device: Device, tuned: TunedMatmuls | None
) -> tuple[GemmConfig, str]:
    """What the user's table has, if that can be launched, else what the rule says; and why."""
    rule = by_rule(problem, family, device.sm_count)
    why = f"the tile for {problem.expected_rows} rows of a group"
    if tuned is None or (entry := tuned.find(problem, device)) is None:
        return rule, why
    if isinstance(fault := _planned(problem, family, entry.config, device.sm_count), str):
        return rule, f"{why}; not {entry.config} as {tuned.source} has it: {fault}"
    measured = f"tuned: the fastest of {entry.configurations} configurations, {entry.us:.2f} us"
    return entry.config, f"{measured}, by {tuned.source}"


def candidates(problem: RaggedProblem, family: str, sm_count: int) -> Iterator[GemmConfig]:
    """All launches that tuning compares: each tile, rows of tiles that are walked together, parts.

    They are what the planner accepts, and this installation has kernels for.
    """
    parts = range(1, 1 + (_MOST_PARTS if problem.ragged_contraction else 1))
    fields = (_TILE_ROWS, _TILE_COLUMNS, (False, True), (1, 2), _SWIZZLES, parts)
    for block_m, block_n, pingpong, cta_group, swizzle, split in itertools.product(*fields):
        config = GemmConfig(
            block_m,
            block_n,
            cluster=(cta_group, 1),
            cta_group=cta_group,
            pingpong=pingpong,
            swizzle=swizzle,
            split_k=split,
            split_tail=split > 1,
        )
        if isinstance(_planned(problem, family, config, sm_count), Plan):
            yield config


def by_rule(problem: RaggedProblem, family: str, sm_count: int) -> GemmConfig:
    """The launch for a problem on a family's device of so many SMs.

    Rows of a tile are 128, or 64 where that is what a group has. Columns are 256, or 128 where
    there are no more, or there would be fewer tiles than SMs, or sums are promoted. On an H100,
    with 8 to 512 rows of a group, these were within 4 % of the fastest that was tried
    (benchmarks/NOTEBOOK.md). Of float8, of which no other tile was tried, and of sm100, which no
    one has measured, it is the same rule; but of a gate and up in float8 along n, a span of each, a
    tile has 256.

    On sm100 pairs of CTAs have tiles of 256x256 of 16 bits, where groups are so large that what
    they waste is less than what they save, or of a contraction, where they waste nothing.

    Promoted sums, which are Hopper's, have 192 columns where these load less, and the warpgroups
    share tiles, as one adds beside the MMAs of the other.

    Of a contraction on Hopper, the tiles behind whole waves are to be split if a group has most of
    the rows and their parts fit one wave.
    """
    if family == "sm100" and mx_of(problem.epilogue):
        return _of_blocks(problem, sm_count)
    if family == "sm100" and _suits_pairs(problem, sm_count):
        return GemmConfig(256, 256, cluster=(2, 1), cta_group=2, swizzle=_SWIZZLE // 2)
    rows, columns = problem.expected_rows, problem.n * (1 + problem.epilogue.gated)
    few = rows <= 64 and not problem.ragged_contraction
    promoted = problem.promoted and family == "sm90"
    block_m = 64 if few else 128
    down = problem.k if problem.ragged_contraction else rows
    tiles = problem.batch * problem.groups * -(-down // block_m) * -(-columns // 256)
    along_n = problem.rhs_major == Major.MN and problem.rhs_dtype in _FLOAT8
    narrow = columns <= 128 or tiles < sm_count or promoted
    block_n = 256 if along_n and problem.epilogue.gated else 128 if narrow else 256
    if promoted and not (few or problem.epilogue.gated) and tiles >= sm_count:
        block_n = min(128, 192, key=lambda width: -(-columns // width) * (block_m + width))
    parts = 1
    if family == "sm90" and problem.ragged_contraction and problem.m >= _SPLIT_ROWS:
        behind = -(-down // block_m) * -(-columns // block_n) % sm_count
        parts = min(sm_count // behind, _MOST_PARTS) if behind else 1
    return GemmConfig(
        block_m,
        block_n,
        pingpong=few and family == "sm90",
        swizzle=_SWIZZLE,
        split_k=parts,
        split_tail=parts > 1,
    )


def _of_blocks(problem: RaggedProblem, sm_count: int) -> GemmConfig:
    """The launch in a block-scaled format, by the model of a B200, of 4096x14336x4096.

    Pairs take 164 us of MXFP8 where one CTA takes 192, 87 for 109 of MXFP4, and 95 for 114 of
    NVFP4, and waste 64 rows of a group more on average. Columns are what the model finds fastest:
    few enough for two accumulators, unless NVFP4's scales or a pair's gate and up leave but one.
    """
    gated, is_nvfp4 = problem.epilogue.gated, mx_of(problem.epilogue) == 16
    rows, columns = problem.expected_rows, problem.n * (1 + gated)

    def tiles(height: int, width: int) -> int:
        return problem.groups * -(-rows // height) * -(-columns // width)

    block_n = 256 if gated or is_nvfp4 else 128
    if rows >= _PAIR_ROWS_OF_BLOCKS and columns > 128 and 2 * tiles(256, block_n) >= sm_count:
        return GemmConfig(256, block_n, cluster=(2, 1), cta_group=2, swizzle=_SWIZZLE // 2)
    is_mxfp4 = problem.lhs_dtype not in _FLOAT8 and not is_nvfp4
    if gated:
        block_n = 256 if is_nvfp4 and columns > 128 else 128
    elif is_mxfp4 or tiles(128, 192) < sm_count:
        block_n = 128
    else:
        block_n = min(128, 192, key=lambda width: -(-columns // width) * (128 + width))
    return GemmConfig(128, block_n, swizzle=_SWIZZLE)


def _suits_pairs(problem: RaggedProblem, sm_count: int) -> bool:
    """Whether tiles of 256x256 by pairs are expected to be the faster ones, see `by_rule`."""
    if problem.lhs_dtype not in (BF16, F16) or problem.source_rows is not None:
        return False  # there is no such kernel
    rows, columns = problem.expected_rows, problem.n * (1 + problem.epilogue.gated)
    down = problem.k if problem.ragged_contraction else rows
    large = -(-down // 128) % 2 == 0 if problem.ragged_contraction else rows >= _PAIR_ROWS
    tiles = problem.batch * problem.groups * -(-down // 256) * -(-columns // 256)
    return large and columns > 128 and 2 * tiles >= sm_count


def _planned(problem: RaggedProblem, family: str, config: GemmConfig, wave: int) -> Plan | str:
    """The plan of a launch, or why there is none."""
    if (fault := planner.config_refusal(config, family)) is not None:
        return fault
    plan = planner.plan(problem, family, config, wave)
    if not isinstance(plan, Plan):
        return planner.message(plan, family, config)
    if plan.kernel not in {kernel.name for kernel in manifest.kernels()}:
        return "this installation has no kernel for this tile, dtype and layout"
    return plan


def _refusal(problem: RaggedProblem, device: Device | None, family: str) -> str | None:
    """Why no kernel takes a problem on a device, whatever the configuration; None where one may."""
    p = problem
    if family not in _FAMILIES:
        return f"grouped matmuls have kernels of {' and '.join(_FAMILIES)}, not of {family}"
    if not mx_of(p.epilogue) and not {p.lhs_dtype, p.rhs_dtype} <= {*_DTYPES}:
        *some, last = (dtype.name for dtype in _DTYPES)
        found = " and ".join(dict.fromkeys((p.lhs_dtype.name, p.rhs_dtype.name)))
        taken = f"{', '.join(some)} and {last}"
        return f"the operands are {found}; grouped matmuls have {family} kernels for {taken}"
    if p.ragged_contraction and p.lhs_dtype in FAMILIES[family].k_major_only:
        return (
            f"the operands are {p.lhs_dtype}, and tensor cores take 8 bits along the contraction, "
            "where these lie along k and n: cast both to bfloat16"
        )
    if p.output.name not in DATA_TYPES or p.output.itemsize == 1:
        return f"the result is {p.output}; grouped matmuls have bfloat16, float16 and float32"
    if not p.is_sized:
        return "a dimension is symbolic; a kernel is chosen for known sizes"
    if device is None:
        return "there is no CUDA GPU, and no target is named"
    if device.family != family:
        return f"this is {device}; the kernels need compute capability {FAMILIES[family].gpus}"
    return f"{device.name}: {device.problem}" if device.problem is not None else None
