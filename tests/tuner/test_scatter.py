"""How far step times scatter by themselves."""

from __future__ import annotations

import random
import statistics

import pytest

from tuner.scatter import Scatter

pytestmark = pytest.mark.timeout(10)


def learned(noise: float, drift: float = 0.0, rounds: int = 200, every: int = 5) -> Scatter:
    """Return what was learned of rounds with noise, whose level is drawn anew every so many rounds."""
    draw, scatter, level = random.Random(1), Scatter(), 0.0
    for number in range(rounds):
        if number % every == 0:
            level = draw.gauss(0, drift)
        scatter.add(2.718281828 ** (level + draw.gauss(0, noise)))
    return scatter


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_the_noise_of_medians_is_that_of_medians(noise: float) -> None:
    draw = random.Random(2)
    true = statistics.pstdev(statistics.median(draw.gauss(0, noise) for _ in range(8)) for _ in range(1000))
    assert true * 0.7 < learned(noise).noise(8) < true * 1.6


def test_a_drift_is_not_averaged_out() -> None:
    assert learned(0.02).noise(100) < 0.01
    assert learned(0.02, drift=0.1).noise(100) > 0.04


def test_little_is_known_of_few_rounds_and_that_is_not_taken_for_quiet() -> None:
    scatter = Scatter()
    assert 0.001 < scatter.noise(4) < 0.02
    for seconds in (1.0, 1.3, 1.05):
        scatter.add(seconds)
    assert scatter.noise(8) > 0.08


def test_what_a_switch_changes_is_no_scatter() -> None:
    scatter = Scatter()
    for number in range(40):
        if number % 4 == 0:
            scatter.restart()
        scatter.add(1.0 + (number // 4) % 2)
    assert scatter.noise(8) < 0.01
