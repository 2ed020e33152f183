"""GemmConfig: how a kernel is launched. Which configurations can be is asked of the planner."""

from dataclasses import dataclass, fields

# What a batch-invariant choice is made for, whatever m is: between decoding and prefilling.
CANONICAL_M = 1024
_MAY_BE_NONE = ("block_m", "block_n", "block_k", "stages", "accumulators", "scheduler")
_SCHEDULERS = ("clc", "static", "none", "dynamic")
_OF_ANY_TILE = ("scheduler", "batch_invariant")  # what may be given without a tile
# What is printed of a configuration only where it is not the default.
_RARE = (*("cluster_k", "pingpong", "split_tail", "accumulators", "scheduler", "batch_invariant"),)


@dataclass(frozen=True)
class GemmConfig:
    """A launch configuration of a kernel, to override the choice that jaxbw would make.

    `GemmConfig()` leaves everything to jaxbw; batch_invariant and scheduler may be given alone, and
    then hold for the matmuls of gradients, too. Else block_m and block_n are given, and None
    elsewhere means the default.

    Args:
      block_m, block_n: rows and columns of accumulators that one MMA group computes. sm90: block_m
        128 or 256, with pingpong 64 or 128; block_n 32, 64, 96, 128, 160, 192 or 256, with the
        larger block_m 32 or 128. Of 16 bits also 192x192 and 128x320, with pingpong
        192x96 and 128x160, for whole tiles (no part of K, no swap_ab), with bias and activation at
        most, and rows of the result of multiples of 16 bytes; and for few rows block_m 8, 16 or 32
        with block_n 32, 64 or 128, with alpha, bias, activation, gate and residual at most; of
        these, K is divided by cluster_k alone.
        sm100: block_m 64, 128 or 256 with cta_group 1, 128, 256 or 512 with cta_group 2; block_n
        16..256 in steps of 16 (64 rows of one CTA: of 8, from 8; 128 rows of a pair: of 32). The
        largest block_m is two MMA tiles that fill Tensor Memory.
      block_k: elements of the contraction per pipeline stage: 1 to 4 spans of 128 bytes; default
        one. sm90: one; two where a tile of few rows has up to 64 columns.
      cluster: CTAs (along M, along N) that share their loads by multicast, at most 16 in all on
        sm100, 8 on sm90.
      cluster_k: CTAs that compute parts along K of the same tile: they belong to one cluster, which
        has so many times cluster's CTAs, and add up what they have through distributed shared
        memory, in a fixed order. sm90: 1, 2, 4 or 8; a tile has up to 128x128 accumulators, then,
        and with pingpong one warpgroup multiplies. With split_k as well, K is cut into
        split_k * cluster_k parts. sm100: 1 to 16, with swap_ab, and without split_k.
      cta_group: CTAs that share one MMA tile: 1, or on sm100 also 2.
      pingpong: sm90: the two multiplying warpgroups take turns at tiles of block_m rows, so that
        one's epilogue runs beside the other's main loop; False: they share each tile.
      stages: depth of the shared-memory ring; default as many as fit.
      swizzle: rasterisation: cluster tiles in a band that is walked together, 1 to 16.
      raster: the dimension that is cut into bands, "m" or "n".
      split_k: parts along K that are computed apart and summed in a fixed order, 1 to 64, on sm100
        to 16.
      split_tail: split only the tiles of the last, incomplete wave; of a grouped contraction, those
        of a group that has more than half of the rows.
      swap_ab: compute the transposed matmul, for a small m. Not for gated matmuls.
      accumulators: accumulators in Tensor Memory, 1 or 2; default 2. sm90 has one, in registers.
      scheduler: "clc" (sm100's default), "static" (sm90's; a persistent grid of one wave), "none"
        (a cluster for each work item), or "dynamic": the one of these by which SMs get work as they
        come free, for matmuls beside which something else holds some ("none" on sm90, "clc" on
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

    @property
    def needing_a_tile(self) -> list[str]:
        """The names of what is given that makes no sense without a tile."""
        return [
            name
            for name, field in _FIELDS.items()
            if getattr(self, name) != field.default and name not in _OF_ANY_TILE
        ]

    @property
    def for_gradients(self) -> "GemmConfig | None":
        """What holds for the matmuls of a gradient, too, whose sizes are others."""
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
        return None if value in _SCHEDULERS else f"{', '.join(map(repr, _SCHEDULERS))} or None"
    return None if _is_integer(value) else "an integer"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


ANY = GemmConfig()  # leaves everything to jaxbw; it stands here since the above checks it
