"""The order in which what is compared is timed: drawn anew in each round.

A fixed order biases big matmuls by up to 5 %.
"""

import random
from collections.abc import Iterable
from typing import TypeVar

Arm = TypeVar("Arm")


def interleaved(arms: Iterable[Arm], rounds: int, seed: int) -> list[Arm]:
    """All arms, in random order, round after round."""
    source, each = random.Random(seed), list(arms)
    return [arm for _ in range(rounds) for arm in source.sample(each, len(each))]
