"""JAX's own Hopper kernel: Pallas Mosaic GPU's matmul, at the best of some tiles.

It takes multiples of its tiles only, so others are padded and cut within the call.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxbw._src.lab.bench.arms.arm import Arm, specs
from jaxbw._src.lab.bench.arms.torch import no_epilogue, only_16bit
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul


@dataclasses.dataclass(frozen=True)
class Tiles:
    """What decides of Pallas's speed; its TuningConfig, for results files.

    Two warpgroups share a CTA's tile, which is twice as large in dimension `warpgroups`; and two
    CTAs a cluster's, likewise, unless `cluster` is "".
    """

    m: int
    n: int
    stages: int
    warpgroups: str
    cluster: str = ""
    k: int = 64
    minor: str = "n"
    width: int = 8

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """Rows and columns that a cluster computes at a time."""
        doubled = (self.warpgroups, self.cluster)
        return self.m << doubled.count("m"), self.n << doubled.count("n")


LARGE = (
    *(Tiles(128, 128, 4, *dims) for dims in (("m",), ("n",), ("m", "n"), ("n", "m"), ("m", "m"))),
    Tiles(64, 256, 4, "m", "m"),
)
# Where the columns are a multiple of 192: these waste less of the last wave.
WIDTH_192 = (
    *(Tiles(64, 192, 4, "m", cluster) for cluster in ("", "m")),
    *(Tiles(128, 192, 3, "m", cluster) for cluster in ("", "m")),
)
MEDIUM = (
    *(Tiles(64, 128, 6, "m", cluster) for cluster in ("", "n")),
    *(Tiles(64, 64, 8, dim) for dim in "mn"),
    Tiles(64, 128, 4, "n"),
)
FLAT = (
    *(Tiles(64, 64, 8, "n", cluster) for cluster in ("", "n")),
    Tiles(64, 64, 4, "n", k=128),
    Tiles(64, 128, 4, "n"),
)
LOW = (
    *(Tiles(64, 64, 8, *dims) for dims in (("n",), ("m",), ("m", "n"))),
    Tiles(64, 128, 4, "n"),
    Tiles(64, 128, 6, "m"),
)


class Pallas(Arm):
    """`jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu.matmul`."""

    def refusal(self, case: Case) -> str | None:
        """It has one layout."""
        if case.plain.layout != "nn":
            return "Pallas's Hopper kernel takes layout nn only"
        return super().refusal(case) or no_epilogue(case) or only_16bit(case)

    def candidates(self, case: Case) -> Sequence[Config]:
        """Tiles that may suit the shape."""
        m, n, _, _ = case.plain
        if m <= 64:
            tiles = FLAT
        elif m <= 256:
            tiles = LOW
        else:
            small = m <= 512 or m * n <= 2048 * 2048
            tiles = (LARGE[:3] + MEDIUM if small else LARGE) + WIDTH_192 * (n % 192 == 0)
        return [dataclasses.asdict(each) for each in tiles]

    def variations(self, case: Case, best: Config) -> Sequence[Config]:
        """Other orders of the tiles."""
        m, n, _, _ = case.plain
        if m <= 64 or m * n <= 512 * 512:
            return []
        orders = [(minor, width) for minor in "mn" for width in (1, 8, 16)]
        varied = [best | {"minor": minor, "width": width} for minor, width in orders]
        return [config for config in varied if config != best]

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Compiles one of the configurations."""
        compiled = jax.jit(matmul(case, Tiles(**config))).lower(*specs(case)).compile()
        return Matmul(compiled, details={"config": config})


def matmul(case: Case, tiles: Tiles) -> Callable[..., Any]:
    """The matmul, padded to the tiles and cut again where that is needed."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper

    dimension = {"m": hopper.MatmulDimension.M, "n": hopper.MatmulDimension.N}
    config = hopper.TuningConfig(
        tile_m=tiles.m,
        tile_n=tiles.n,
        tile_k=tiles.k,
        max_concurrent_steps=tiles.stages,
        grid_minor_dim=dimension[tiles.minor],
        grid_tile_width=tiles.width,
        wg_dimension=dimension[tiles.warpgroups],
        cluster_dimension=dimension.get(tiles.cluster),
    )
    m, n, k, _ = case.plain
    step_m, step_n = tiles.cluster_tile
    pad_m, pad_n, pad_k = -m % step_m, -n % step_n, -k % tiles.k

    def padded(lhs: Any, rhs: Any) -> Any:
        if pad_m or pad_k:
            lhs = jnp.pad(lhs, ((0, pad_m), (0, pad_k)))
        if pad_k or pad_n:
            rhs = jnp.pad(rhs, ((0, pad_k), (0, pad_n)))
        result = hopper.matmul(lhs, rhs, None, config)
        return result[:m, :n] if pad_m or pad_n else result

    return padded
