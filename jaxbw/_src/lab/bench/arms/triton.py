"""A kernel in Triton that loads and stores by TMA, at the best of some tiles."""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from typing import Any, ClassVar

from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.arms.torch import no_epilogue, only_16bit, torch_matmul
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The kernel's constants: `halves` stores a tile in two, which takes less shared memory."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    halves: bool


TABLE = (
    Tiles(128, 256, 64, 3, 8, True),
    Tiles(128, 256, 64, 4, 8, True),
    Tiles(128, 128, 64, 4, 4, True),
    Tiles(128, 64, 64, 6, 4, False),
    Tiles(64, 128, 128, 4, 4, False),
    Tiles(64, 64, 128, 6, 4, False),
)


class Triton(Arm):
    """triton_kernel.matmul."""

    package: ClassVar[str] = "triton"

    def refusal(self, case: Case) -> str | None:
        """It works on torch's tensors."""
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        return super().refusal(case) or no_epilogue(case) or only_16bit(case)

    def candidates(self, case: Case) -> Sequence[Config]:
        """The whole table: it is small."""
        return [dataclasses.asdict(each) for each in TABLE]

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Triton compiles at the first call."""
        from jaxbw._src.lab.bench.arms import triton_kernel

        run: Any = functools.partial(
            triton_kernel.matmul, layout=case.plain.layout, tiles=Tiles(**config)
        )
        return torch_matmul(run, config=config)
