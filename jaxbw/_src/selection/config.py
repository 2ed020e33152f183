"""GemmConfig: how a kernel is launched, and the one statement of which configurations can be.

The runtime mirrors these rules (cuda/host/gemm_rules.cc) for what would be unsafe. Numbers of
shared memory come from there, `_native.max_stages` and `min_stages`, so they are stated once.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from jaxbw import _native
from jaxbw._native import Major
from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import MAX_SPANS, SPAN_BYTES

MAX_SWIZZLE = 16
# What a batch-invariant choice is made for, whatever m is: between decoding and prefilling.
CANONICAL_M = 1024
_SLICE_ROWS = 16  # of accumulators, that a warp of sm90 has together
_SWIZZLE_ROWS = 8  # rows that the 128-byte swizzle permutes together
_MAY_BE_NONE = ("block_m", "block_n", "block_k", "stages", "accumulators", "scheduler")
_SCHEDULERS = tuple(dict.fromkeys(itertools.chain(*(f.schedulers for f in FAMILIES.values()))))
_OF_ANY_TILE = ("scheduler", "batch_invariant")  # what may be given without a tile
# What is printed of a configuration only where it is not the default.
_RARE = (*("cluster_k", "pingpong", "split_tail", "accumulators", "scheduler", "batch_invariant"),)


@dataclass(frozen=True)
class GemmConfig:
    """A launch configuration of a kernel, to override the choice that jaxbw would make.

    `GemmConfig()` leaves everything to jaxbw; batch_invariant and scheduler may be given alone, and
    then hold for the products of gradients, too. Else block_m and block_n are given, and None
    elsewhere means the default.

    Args:
      block_m, block_n: rows and columns of accumulators that one MMA group computes. sm90: block_m
        128 or 256, with pingpong 64 or 128; block_n 32, 64, 96, 128, 160, 192 or 256,
        with the larger block_m 64, 96 or 128. sm100: block_m 64, 128 or
        256 with cta_group 1, 128, 256 or 512 with cta_group 2; block_n 16..256 in steps of 16 (64
        rows of one CTA: of 8, from 8; 128 rows of a pair: of 32). The largest block_m is two MMA
        tiles that fill Tensor Memory.
      block_k: elements of the contraction per pipeline stage: 1 to 4 spans of 128 bytes; default
        one. sm90: one.
      cluster: CTAs (along M, along N) that share their loads by multicast, at most 16 in all on
        sm100, 8 on sm90.
      cluster_k: CTAs that compute parts along K of the same tile, 1, 2, 4 or 8 on sm90: they belong
        to one cluster, which has so many times cluster's CTAs, and add up what they have through
        distributed shared memory, in a fixed order. A tile has up to 128x128 accumulators, then,
        and with pingpong one warpgroup multiplies. With split_k as well, K is cut into
        split_k * cluster_k parts.
      cta_group: CTAs that share one MMA tile: 1, or on sm100 also 2.
      pingpong: sm90: the two multiplying warpgroups take turns at tiles of block_m rows, so that
        one's epilogue runs beside the other's main loop; False: they share each tile.
      stages: depth of the shared-memory ring; default as many as fit.
      swizzle: rasterisation: cluster tiles in a band that is walked together, 1 to 16.
      raster: the dimension that is cut into bands, "m" or "n".
      split_k: parts along K that are computed apart and summed in a fixed order, 1 to 64, on sm100
        to 16.
      split_tail: split only the tiles of the last, incomplete wave.
      swap_ab: compute the transposed product, for a small m. Not for gated products.
      accumulators: accumulators in Tensor Memory, 1 or 2; default 2. sm90 has one, in registers.
      scheduler: "clc" (sm100's default), "static" (sm90's; a persistent grid of one wave), "none"
        (a cluster for each work item), or "dynamic": the one of these by which SMs get work as they
        come free, for products beside which something else holds some ("none" on sm90, "clc" on
        sm100).
      batch_invariant: a row of the result has the same bits whatever m and the batch are: no
        split, no swap, and a choice that does not depend on them.

    >>> GemmConfig(block_m=128, block_n=256, cluster=(2, 1)).stages is None
    True
    """

    block_m: int | None = None
    block_n: int | None = None
    block_k: int | None = None
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    cta_group: int = 1
    pingpong: bool = False
    stages: int | None = None
    swizzle: int = 1
    raster: str = "m"
    split_k: int = 1
    split_tail: bool = False
    swap_ab: bool = False
    accumulators: int | None = None
    scheduler: str | None = None
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in _MAY_BE_NONE:
                continue
            if (wanted := _type_fault(field.name, value)) is not None:
                raise TypeError(f"GemmConfig: {field.name} is {value!r}; it is {wanted}")

    @property
    def leaves_tile_open(self) -> bool:
        """Whether it leaves the tile to jaxbw."""
        return self.block_m is None and self.block_n is None

    def scheduler_on(self, family: str) -> str:
        """The scheduler of a launch."""
        if self.scheduler == "dynamic":
            return FAMILIES[family].dynamic
        return self.scheduler or FAMILIES[family].schedulers[0]

    @property
    def for_gradients(self) -> "GemmConfig | None":
        """What holds for the products of a gradient, too, whose sizes are others."""
        if self.leaves_tile_open:
            return self
        return GemmConfig(batch_invariant=True) if self.batch_invariant else None

    @property
    def is_for_every_m(self) -> bool:
        """Whether the launch is the same whatever m and the batch are, and needs no workspace."""
        return self.batch_invariant if self.leaves_tile_open else self.split_k == 1

    @property
    def tile(self) -> tuple[int, int]:
        """(block_m, block_n) of a configuration that has them."""
        assert self.block_m is not None
        assert self.block_n is not None
        return self.block_m, self.block_n

    @property
    def cta_rows(self) -> int:
        """Rows of A, and of accumulators, in one CTA."""
        return self.tile[0] // self.cta_group

    def k_spans(self, itemsize: int = 2) -> int:
        """Swizzle spans along K in a stage, for operands of so many bytes."""
        return 1 if self.block_k is None else self.block_k * itemsize // SPAN_BYTES

    @property
    def team_rows(self) -> int:
        """Rows of one multiplying warpgroup of sm90."""
        return self.tile[0] if self.pingpong else self.tile[0] // 2

    def tile_columns(self, gated: bool = False) -> int:
        """Columns of the result in a tile: of a gated product, half of the accumulators."""
        return self.tile[1] // 2 if gated else self.tile[1]

    def __str__(self) -> str:
        if self.leaves_tile_open:
            scheduler = f", scheduler {self.scheduler}" if self.scheduler is not None else ""
            return f"{'batch-invariant, ' * self.batch_invariant}chosen{scheduler}"
        block_k = "span" if self.block_k is None else self.block_k
        text = (
            f"block {self.block_m}x{self.block_n}x{block_k}, "
            f"cluster {self.cluster[0]}x{self.cluster[1]}, cta_group {self.cta_group}, "
            f"stages {'as fit' if self.stages is None else self.stages}, "
            f"swizzle {self.swizzle} along {self.raster}, split_k {self.split_k}, "
            f"swap_ab {self.swap_ab}"
        )
        return text + "".join(
            f", {name} {getattr(self, name)}"
            for name in _RARE
            if getattr(self, name) != _FIELDS[name].default
        )


_FIELDS = {field.name: field for field in fields(GemmConfig)}


def refusal(config: GemmConfig, family: str) -> str | None:
    """Why no kernel of a family can be launched so, whatever the problem; None where one can."""
    if config.leaves_tile_open:
        changed = [
            name
            for name, field in _FIELDS.items()
            if getattr(config, name) != field.default and name not in _OF_ANY_TILE
        ]
        if changed:
            return f"{', '.join(changed)} without a tile: give block_m and block_n"
        return next(_scheduler_faults(config, family), None)
    if config.block_m is None or config.block_n is None:
        missing = "block_m" if config.block_m is None else "block_n"
        return f"{missing} is None: give both of block_m and block_n, or neither"
    return next(FAMILIES[family].faults(config), None) or next(_common_faults(config, family), None)


def layout_refusal(
    config: GemmConfig,
    lhs_major: Major,
    rhs_major: Major,
    *,
    family: str,
    itemsize: int = 2,
    gated: bool = False,
    k: int | None = None,
) -> str | None:
    """Why a product cannot be computed in a configuration that `refusal` lets pass.

    Args:
      config: its tile is given.
      lhs_major, rhs_major: layouts of the operands, as the problem has them. (Those of 4 bytes are
        K-major by the time the kernel sees them: see `eligibility.effective_major`.)
      family: of the kernel.
      itemsize: bytes of an operand's element.
      gated: whether the product is gated.
      k: extent of the contraction, if it is known.
    """
    span = SPAN_BYTES // itemsize
    if config.block_k is not None and (
        config.block_k % span or not 1 <= config.block_k // span <= MAX_SPANS
    ):
        return (
            f"block_k is {config.block_k}; operands of {itemsize} bytes take multiples of {span} "
            f"up to {MAX_SPANS * span}, or None for {span}"
        )
    block_k = config.block_k or span
    if k is not None and config.split_k * config.cluster_k > (parts := -(-k // block_k)):
        splits = f"split_k is {config.split_k}"
        if config.cluster_k > 1:
            splits += f" and cluster_k {config.cluster_k}"
        return (
            f"{splits}; a contraction of {k} in stages of {block_k} has no more "
            f"than {parts} part{'s' if parts > 1 else ''}"
        )
    if itemsize > 2 and (reason := _stages_refusal(config, family, itemsize)) is not None:
        return reason
    if gated and (reason := _gated_refusal(config, family)) is not None:
        return reason
    majors = (rhs_major, lhs_major) if config.swap_ab else (lhs_major, rhs_major)
    (block_m, block_n), group = config.tile, config.cta_group
    cluster_m, cluster_n = config.cluster
    k_rows = config.k_spans(itemsize) * span
    # Of a gated product the two right operands are loaded apart: by a CTA both, by a pair one each.
    columns = block_n // 2 if gated else block_n // group
    step = FAMILIES[family].column_span // itemsize
    return _box_refusal(
        "rhs" if config.swap_ab else "lhs", majors[0], block_m // group, cluster_n, k_rows, step
    ) or _box_refusal(
        "lhs" if config.swap_ab else "rhs", majors[1], columns, cluster_m // group, k_rows, step
    )


def max_stages(config: GemmConfig, family: str, itemsize: int = 2) -> int:
    """The deepest ring of a configuration; 0 where not even one stage fits shared memory."""
    return _native.max_stages(family, *config.tile, config.cta_group, config.k_spans(itemsize))


def _type_fault(name: str, value: object) -> str | None:
    """What a field takes, where the value is something else."""
    default = _FIELDS[name].default
    if name == "cluster":
        pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_integer, value))
        return None if pair else "a pair of integers"
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "True or False"
    if name == "raster":
        return None if value in ("m", "n") else '"m" or "n"'
    if name == "scheduler":
        known = (*_SCHEDULERS, "dynamic")
        return None if value in known else f"{', '.join(map(repr, known))} or None"
    return None if _is_integer(value) else "an integer"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _common_faults(c: GemmConfig, family: str) -> Iterator[str]:
    cluster_m, cluster_n = c.cluster
    most = FAMILIES[family].max_cluster
    if cluster_m < 1 or cluster_n < 1 or cluster_m * cluster_n > most:
        yield f"cluster is {c.cluster}; on {family} it has 1 to {most} CTAs"
    elif cluster_m % c.cta_group:
        yield f"cluster {c.cluster}: its first number is not a multiple of cta_group {c.cta_group}"
    yield from _cluster_k_faults(c, family)
    if (reason := _stages_refusal(c, family, 2)) is not None:
        yield reason
    if not 1 <= c.swizzle <= MAX_SWIZZLE:
        yield f"swizzle is {c.swizzle}; it is 1 to {MAX_SWIZZLE}"
    if not 1 <= c.split_k <= (parts := FAMILIES[family].max_split):
        yield f"split_k is {c.split_k}; on {family} it is 1 to {parts}"
    if c.split_tail and c.split_k == 1:
        yield "split_tail is True and split_k 1: say into how many parts, 2 or more"
    yield from _scheduler_faults(c, family)
    if c.batch_invariant and c.split_tail:
        yield "split_tail and batch_invariant are True: which tiles are split would follow m"


def _scheduler_faults(c: GemmConfig, family: str) -> Iterator[str]:
    if c.scheduler_on(family) not in (known := FAMILIES[family].schedulers):
        listed = " or ".join(map(repr, (*known, "dynamic")))
        yield f"scheduler is {c.scheduler!r}; {family} takes {listed}"


def _cluster_k_faults(c: GemmConfig, family: str) -> Iterator[str]:
    if c.cluster_k not in (known := FAMILIES[family].cluster_k):
        listed = ", ".join(map(str, known))
        yield f"cluster_k is {c.cluster_k}; {family} takes {listed}"
    elif (ctas := math.prod(c.cluster) * c.cluster_k) > (most := FAMILIES[family].max_cluster):
        yield f"cluster {c.cluster} with cluster_k {c.cluster_k} has {ctas} CTAs; up to {most}"
    elif c.cluster_k > 1 and c.tile[0] % (c.cluster_k * _SLICE_ROWS):
        yield (
            f"cluster_k is {c.cluster_k}; the CTAs share whole slices of {_SLICE_ROWS} rows, and "
            f"block_m is {c.tile[0]}"
        )
    elif c.cluster_k > 1 and _native.min_stages(family, *c.tile, c.cluster_k) > max_stages(
        c, family
    ):
        block_m, block_n = c.tile
        yield (
            f"cluster_k is {c.cluster_k}; shared memory does not hold the sums of a "
            f"{block_m}x{block_n} tile twice: take a smaller tile"
        )


def _stages_refusal(c: GemmConfig, family: str, itemsize: int) -> str | None:
    spans = c.k_spans(itemsize)
    if not 1 <= spans <= MAX_SPANS:
        return None  # block_k is for operands of another size
    deepest = max_stages(c, family, itemsize)
    if not deepest:
        return f"block_k is {c.block_k}; one such stage does not fit shared memory: take a smaller"
    least = _native.min_stages(family, *c.tile, c.cluster_k)
    if c.stages is not None and not least <= c.stages <= deepest:
        return (
            f"stages is {c.stages}; this tile takes {least} to {deepest}, "
            f"or None for as many as fit"
        )
    return None


def _gated_refusal(c: GemmConfig, family: str) -> str | None:
    block_m, block_n = c.tile
    if c.swap_ab:
        return "swap_ab is True and the product is gated; that is not for gated products"
    if (block_m, c.cta_group) == (128, 2):
        return "a gated product in 128 rows of a pair; take block_m 256, or cta_group 1"
    if block_n % 32:
        return f"block_n is {block_n}; a gated product takes multiples of 32, half of it the gate"
    return FAMILIES[family].gated_fault(c)


def _box_refusal(
    operand: str, major: Major, extent: int, peers: int, k_rows: int, step: int
) -> str | None:
    """The CTAs that share an operand's tile load equal parts of it, in whole swizzle atoms."""
    if major == Major.MN and extent % step:
        return (
            f"{operand} is MN-major and a CTA's part of the tile is {extent} wide; it is loaded "
            f"in columns of {step}"
        )
    rows = extent if major == Major.K else k_rows
    if rows % (peers * _SWIZZLE_ROWS):
        return (
            f"{operand} is shared by {peers} CTAs, which cannot load equal parts of {rows} rows "
            f"in groups of {_SWIZZLE_ROWS}"
        )
    return None


ANY = GemmConfig()  # leaves everything to jaxbw; it stands here since the above check it
