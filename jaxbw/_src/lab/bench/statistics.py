"""Medians, and what is known of their ratios: pure functions of the times.

The calls of a round share its clock and its luck, so the bootstrap draws whole rounds, and the same
rounds for both arms of a ratio that were measured side by side: they are paired. What was measured
in different sessions is not, and its rounds are drawn apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
LEVEL = 95.0  # percent of the resamples that an interval holds

Rounds = Sequence[Sequence[float]]
_Draws = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number and its bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def median(rounds: Rounds) -> float:
    """The median over all calls.

    >>> median([[1.0, 2.0], [4.0]])
    2.0
    """
    return float(np.median(np.concatenate([np.asarray(calls) for calls in rounds])))


def spread(rounds: Rounds) -> float:
    """The distance of the 10th from the 90th percentile of all calls, over the median."""
    calls = np.concatenate([np.asarray(calls) for calls in rounds])
    low, middle, high = np.percentile(calls, [10, 50, 90])
    return float((high - low) / middle)


def ratio(
    numerator: Rounds, denominator: Rounds, seed: int = 0, *, paired: bool = True
) -> Estimate:
    """The ratio of two arms' medians: of a peer's over ours, it is our speed-up.

    >>> ratio([[2.0, 2.0]] * 6, [[1.0, 1.0]] * 6)
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    return _estimate(
        median(numerator) / median(denominator), _log_ratios(numerator, denominator, seed, paired)
    )


def geometric_mean(
    pairs: Sequence[tuple[Rounds, Rounds]], seed: int = 0, *, paired: bool = True
) -> Estimate:
    """The geometric mean of the ratios of many matmuls, and its interval.

    The interval says how well these matmuls' ratios are known, not how others' may differ.

    Raises:
      ValueError: there are none.
    """
    if not pairs:
        raise ValueError("a geometric mean of nothing")
    values = [np.log(median(above) / median(below)) for above, below in pairs]
    draws = [_log_ratios(above, below, seed + i, paired) for i, (above, below) in enumerate(pairs)]
    return _estimate(float(np.exp(np.mean(values))), np.mean(draws, axis=0))


def _log_ratios(numerator: Rounds, denominator: Rounds, seed: int, paired: bool) -> _Draws:
    """Of each resample, the logarithm of the ratio."""
    counts, source = (len(numerator), len(denominator)), np.random.default_rng(seed)
    if paired and counts[0] != counts[1]:
        raise ValueError(f"{counts[0]} rounds of one arm, {counts[1]} of the other")
    above = below = source.integers(0, counts[0], (RESAMPLES, counts[0]))
    if not paired:
        below = source.integers(0, counts[1], (RESAMPLES, counts[1]))
    return np.log(_medians(numerator, above) / _medians(denominator, below))


def _medians(rounds: Rounds, drawn: npt.NDArray[np.int64]) -> _Draws:
    calls = np.asarray(rounds, np.float64)  # every round of an arm has as many calls
    return np.asarray(np.median(calls[drawn], axis=(1, 2)))


def _estimate(value: float, log_draws: _Draws) -> Estimate:
    edges = (50 - LEVEL / 2, 50 + LEVEL / 2)
    low, high = (float(np.exp(edge)) for edge in np.percentile(log_draws, edges))
    return Estimate(value, low, high)
