"""GemmConfig: how a kernel is launched, and the one statement of which configurations can be.

The runtime re-checks only what would be unsafe (cuda/host/gemm_rules.cc).
"""

from dataclasses import dataclass

from jaxbw import _native
from jaxbw._native import Major

MAX_CLUSTER = 8  # CTAs; the portable limit, which every GPU with clusters takes
_MIN_STAGES = 2  # a ring of one stage would let no load run ahead
_BLOCK_K = 64  # one 128-byte swizzle span of 16-bit elements
_SWIZZLE_ROWS = 8  # rows that the 128-byte swizzle permutes together


@dataclass(frozen=True)
class GemmConfig:
    """A launch configuration of a kernel, to override the choice that jaxbw would make.

    Args:
      block_m, block_n: rows and columns of the tile of the result that one MMA computes. On sm90
        (128, 64..256 in steps of 64); on sm100 (128 * cta_group, 32..256 in steps of 32).
      block_k: elements of the contraction per pipeline stage: 64.
      cluster: CTAs (along M, along N) that share their loads by multicast, at most 8 in all.
      cta_group: CTAs that share one MMA tile: 1, or on sm100 also 2.
      stages: depth of the shared-memory ring; None for as many as fit.
      swizzle: rasterisation: cluster tiles along M that are walked together.
      split_k, swap_ab: 1 and False, the only values so far.

    >>> GemmConfig(block_m=128, block_n=256, cluster=(2, 1)).stages is None
    True
    """

    block_m: int
    block_n: int
    block_k: int = _BLOCK_K
    cluster: tuple[int, int] = (1, 1)
    cta_group: int = 1
    stages: int | None = None
    swizzle: int = 1
    split_k: int = 1
    swap_ab: bool = False

    def __post_init__(self) -> None:
        numbers = (self.block_m, self.block_n, self.block_k, self.cta_group, self.swizzle)
        if not (
            all(isinstance(number, int) for number in numbers)
            and isinstance(self.cluster, tuple)
            and len(self.cluster) == 2
            and all(isinstance(number, int) for number in self.cluster)
            and isinstance(self.stages, int | None)
        ):
            raise TypeError(f"{self!r}: cluster is a pair of integers, everything else an integer")

    def __str__(self) -> str:
        return (
            f"block {self.block_m}x{self.block_n}x{self.block_k}, "
            f"cluster {self.cluster[0]}x{self.cluster[1]}, cta_group {self.cta_group}, "
            f"stages {'as fit' if self.stages is None else self.stages}, swizzle {self.swizzle}, "
            f"split_k {self.split_k}, swap_ab {self.swap_ab}"
        )


def refusal(config: GemmConfig, family: str) -> str | None:
    """Why no kernel of a family can be launched so, whatever the problem; None where one can."""
    return _tile_refusal(config, family) or _launch_refusal(config, family)


def layout_refusal(config: GemmConfig, lhs_major: Major, rhs_major: Major) -> str | None:
    """Why operands of these layouts cannot be loaded in a valid configuration's tiles."""
    cluster_m, cluster_n = config.cluster
    group = config.cta_group
    return _box_refusal("lhs", lhs_major, config.block_m // group, cluster_n) or _box_refusal(
        "rhs", rhs_major, config.block_n // group, cluster_m // group
    )


def _tile_refusal(c: GemmConfig, family: str) -> str | None:
    if c.block_k != _BLOCK_K:
        return f"block_k is {c.block_k}; kernels have {_BLOCK_K}"
    if c.split_k != 1 or c.swap_ab:
        return "split_k is 1 and swap_ab False, the only values so far"
    groups = (1, 2) if family == "sm100" else (1,)
    if c.cta_group not in groups:
        return f"cta_group is {c.cta_group}; {family} takes {' or '.join(map(str, groups))}"
    if c.block_m != 128 * c.cta_group:
        return f"block_m is {c.block_m}; cta_group {c.cta_group} computes {128 * c.cta_group} rows"
    step = 32 if family == "sm100" else 64
    if c.block_n % step or not step <= c.block_n <= 256:
        return f"block_n is {c.block_n}; {family} takes multiples of {step} up to 256"
    return None


def _launch_refusal(c: GemmConfig, family: str) -> str | None:
    cluster_m, cluster_n = c.cluster
    if cluster_m < 1 or cluster_n < 1 or cluster_m * cluster_n > MAX_CLUSTER:
        return f"cluster is {c.cluster}; it has 1 to {MAX_CLUSTER} CTAs"
    if cluster_m % c.cta_group:
        return f"cluster {c.cluster}: its first number is not a multiple of cta_group {c.cta_group}"
    if c.stages is not None:
        deepest = _native.max_stages(family, c.block_m, c.block_n, c.cta_group)
        if not _MIN_STAGES <= c.stages <= deepest:
            return f"stages is {c.stages}; this tile takes {_MIN_STAGES} to {deepest}"
    if c.swizzle < 1:
        return f"swizzle is {c.swizzle}; it is 1 or more"
    return None


def _box_refusal(operand: str, major: Major, extent: int, peers: int) -> str | None:
    """The CTAs that share an operand's tile load equal parts of it, in whole swizzle atoms."""
    if major == Major.MN and extent % _BLOCK_K:
        return (
            f"{operand} is MN-major and a CTA's part of the tile is {extent} wide; it is loaded "
            f"in columns of {_BLOCK_K}"
        )
    rows = extent if major == Major.K else _BLOCK_K
    if rows % (peers * _SWIZZLE_ROWS):
        return (
            f"{operand} is shared by {peers} CTAs, which cannot load equal parts of {rows} rows "
            f"in groups of {_SWIZZLE_ROWS}"
        )
    return None
