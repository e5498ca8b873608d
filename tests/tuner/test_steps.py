"""Step times, and which differences are more than noise."""

from __future__ import annotations

import random

import pytest

from ps.config import Role
from ps.stats import Observation
from tests.tuner.cluster import worker_window
from tuner.steps import StepMeter, StepTime

pytestmark = pytest.mark.timeout(10)


def meter(*windows: float, steps: int = 5) -> StepMeter:
    made = StepMeter()
    for seconds in windows:
        for rank in (0, 1):
            made.add(worker_window(rank, seconds, steps))
    return made


def test_the_median_of_all_windows_of_all_workers() -> None:
    time = meter(0.1, 0.3, 0.2, 0.2).time(1, 1)
    assert time is not None and time.seconds == pytest.approx(0.2)
    assert time.noise == pytest.approx(1.2533 * 1.4826 * 0.05 / 0.2 / 2)  # median absolute deviation 0.05, four windows


def test_steps_and_windows_are_counted_per_worker() -> None:
    made = meter(0.1, 0.1, steps=5)
    assert (made.steps, made.windows) == (10, 2)
    assert made.time(min_steps=10, min_windows=2) is not None
    assert made.time(min_steps=11, min_windows=2) is None
    assert made.time(min_steps=10, min_windows=3) is None


def test_servers_and_windows_without_a_step_say_nothing() -> None:
    made = StepMeter()
    made.add(worker_window(0, None, 0))
    made.add(Observation(role=Role.SERVER, rank=0, epoch=0, window_seconds=1.0, num_workers=2, num_servers=1))
    assert (made.steps, made.windows, made.time(0, 0)) == (0, 0, None)


def test_a_step_with_a_validation_pass_does_not_matter() -> None:
    time = meter(0.1, 0.1, 5.0, 0.1, 0.1).time(1, 1)
    assert time is not None and time.seconds == pytest.approx(0.1)


def test_old_windows_are_forgotten() -> None:
    time = meter(*[0.1] * 100, *[0.2] * 30).time(1, 1)
    assert time == StepTime(0.2, 0.0)


def test_less_than_three_per_cent_is_never_a_difference() -> None:
    assert not StepTime(0.098, 0.0).faster_than(StepTime(0.1, 0.0))
    assert StepTime(0.096, 0.0).faster_than(StepTime(0.1, 0.0))


def test_a_difference_within_the_noise_is_none() -> None:
    assert not StepTime(0.09, 0.05).faster_than(StepTime(0.1, 0.05))
    assert StepTime(0.08, 0.05).faster_than(StepTime(0.1, 0.05))
    assert StepTime(0.08, 0.05).speedup_over(StepTime(0.1, 0.05)) == pytest.approx(1.25)


def test_equal_configurations_are_rarely_told_apart() -> None:
    generator = random.Random(4)
    wrong = 0
    for _ in range(200):
        one, other = (meter(*[0.1 * generator.lognormvariate(0, 0.1) for _ in range(5)]).time(1, 1) for _ in range(2))
        assert one is not None and other is not None
        wrong += one.faster_than(other)
    assert wrong < 20
