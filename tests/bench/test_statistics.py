"""Medians and intervals against what is known of the numbers they are made from."""

import math

import numpy as np
import pytest

from jaxbw._src.lab.bench import statistics


def times(seed: int, middle: float, rounds: int = 8, calls: int = 10) -> list[list[float]]:
    """Rounds with a luck of their own, 1 %, and calls with another."""
    rng = np.random.default_rng(seed)
    luck = 1 + 0.01 * rng.standard_normal((rounds, 1))
    found: list[list[float]] = (
        middle * luck * (1 + 0.01 * rng.standard_normal((rounds, calls)))
    ).tolist()
    return found


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 experiments with a true ratio of 1.1; a bootstrap of 8 rounds is a little narrow."""
    held = 0
    for seed in range(200):
        found = statistics.ratio(times(2 * seed, 110.0), times(2 * seed + 1, 100.0))
        held += found.low <= 1.1 <= found.high
    assert 170 <= held <= 198


def test_so_does_one_of_sessions_that_share_no_luck() -> None:
    """Drawn apart, and of different numbers of rounds; without a difference few seem to differ."""
    held = marked = 0
    for seed in range(100):
        other = times(2 * seed + 1, 100.0, rounds=10)
        found = statistics.ratio(times(2 * seed, 110.0), other, paired=False)
        held += found.low <= 1.1 <= found.high
        same = statistics.ratio(times(1000 + seed, 100.0), other, paired=False)
        marked += same.low > 1 or same.high < 1
    assert 85 <= held <= 99
    assert marked <= 15


def test_luck_that_is_not_shared_widens_the_interval() -> None:
    lucky = [[100.0 * luck] * 4 for luck in (1.0, 1.1, 1.2, 0.9, 1.3, 0.8)]
    found = statistics.ratio(lucky, lucky, paired=False)
    assert found.low < 0.95 < 1.05 < found.high


def test_rounds_are_drawn_in_pairs() -> None:
    """Luck that both arms share in a round says nothing about their ratio."""
    lucky = [[100.0 * luck] * 4 for luck in (1.0, 1.1, 1.2, 0.9, 1.3, 0.8)]
    twice = [[2 * us for us in calls] for calls in lucky]
    found = statistics.ratio(twice, lucky)
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_rounds_are_drawn_whole() -> None:
    """Many calls in few rounds are no better known than the rounds."""
    few = statistics.ratio(times(0, 1.0, calls=4), times(1, 1.0, calls=4))
    many = statistics.ratio(times(0, 1.0, calls=1000), times(1, 1.0, calls=1000))
    assert many.high - many.low > (few.high - few.low) / 3


def test_a_seed_decides_the_interval() -> None:
    arms = times(0, 1.0), times(1, 1.0)
    assert statistics.ratio(*arms) == statistics.ratio(*arms)
    assert statistics.ratio(*arms, seed=1) != statistics.ratio(*arms)


def test_a_geometric_mean_is_better_known_than_its_parts() -> None:
    pairs = [(times(2 * i, 110.0), times(2 * i + 1, 100.0)) for i in range(16)]
    found = statistics.geometric_mean(pairs)
    values = [statistics.ratio(*pair).value for pair in pairs]
    assert found.value == pytest.approx(math.prod(values) ** (1 / 16))
    one = statistics.ratio(*pairs[0])
    assert found.high - found.low < (one.high - one.low) / 2
    assert found.low < 1.1 < found.high


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="of nothing"):
        statistics.geometric_mean([])
    with pytest.raises(ValueError, match="2 rounds of one arm, 1 of the other"):
        statistics.ratio([[1.0], [1.0]], [[1.0]])


def test_spread() -> None:
    assert statistics.spread([[100.0] * 8, [90.0, 110.0]]) == pytest.approx(0.02)
