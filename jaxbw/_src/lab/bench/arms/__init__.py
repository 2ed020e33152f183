"""The arms: everyone who can compute a case. ARMS names them all; the rest stands in modules."""

from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.arms.ours import Ours
from jaxbw._src.lab.bench.arms.pallas import Pallas
from jaxbw._src.lab.bench.arms.torch import Torch
from jaxbw._src.lab.bench.arms.triton import Triton
from jaxbw._src.lab.bench.arms.xla import TRITON_OFF, Xla

ARMS: tuple[Arm, ...] = (
    Ours("jaxbw"),
    Xla("xla"),
    Xla("xla-triton-off", TRITON_OFF),
    Torch("torch"),
    Pallas("pallas"),
    Triton("triton"),
)
