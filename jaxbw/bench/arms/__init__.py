"""The arms: everyone who can compute a case. ARMS names them all; the rest stands in modules."""

from jaxbw.bench.arms.arm import Arm
from jaxbw.bench.arms.ours import Ours
from jaxbw.bench.arms.pallas import Pallas
from jaxbw.bench.arms.torch import Torch
from jaxbw.bench.arms.triton import Triton
from jaxbw.bench.arms.xla import TRITON_OFF, Xla

ARMS: tuple[Arm, ...] = (
    Ours("jaxbw"),
    Xla("xla"),
    Xla("xla-triton-off", TRITON_OFF),
    Torch("torch"),
    Pallas("pallas"),
    Triton("triton"),
)
