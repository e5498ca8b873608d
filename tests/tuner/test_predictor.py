"""The closed form: where configurations are ruinous, and which way to go."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import KIB, MIB, CommConfig
from tuner.predictor import BlendedPredictor, Prediction, RulePredictor, Sample, step_seconds
from tuner.situation import Across, Situation
from tuner.space import candidates

pytestmark = pytest.mark.timeout(10)

START = CommConfig()
SPACE = candidates(START)


def same(value: float, spread: float = 0.0) -> Across:
    return Across(value, value, value, spread)


def situation(
    gigabits: float = 10.0, latency: float = 50e-6, overhead: float = 100e-6, step: float = 0.2, workers: int = 2
) -> Situation:
    return Situation(
        config=START,
        num_workers=workers,
        num_servers=2,
        tensors=100,
        model_bytes=100_000_000,
        step_seconds=step,
        bandwidth_bytes_per_second=same(gigabits * 125e6),
        latency_seconds=same(latency),
        overhead_seconds=same(overhead),
    )


def best(known: Situation) -> CommConfig:
    return SPACE[int(np.argmax(RulePredictor().predict(known, SPACE).log_speedup))]


def test_what_is_in_force_gains_nothing_and_that_is_certain() -> None:
    prediction = RulePredictor().predict(situation(), SPACE)
    present = SPACE.index(START)
    assert (prediction.log_speedup[present], prediction.spread[present]) == (0.0, 0.0)
    assert (np.delete(prediction.spread, present) >= 0.07).all()


def test_the_present_step_time_is_what_was_measured() -> None:
    for step in (0.15, 0.5, 2.0):
        assert step_seconds(situation(step=step), START) == pytest.approx(step, rel=1e-3)


def test_dear_messages_make_small_partitions_ruinous() -> None:
    tiny = CommConfig(partition_bytes=64 * KIB, credit_bytes=256 * KIB)
    gain = RulePredictor().predict(situation(overhead=300e-6), [tiny]).log_speedup[0]
    assert gain < -0.7


def test_dearer_messages_want_larger_partitions() -> None:
    sizes = [best(situation(25.0, overhead=overhead)).partition_bytes for overhead in (10e-6, 100e-6, 1e-3)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 1 * MIB < sizes[-1]


def test_a_longer_way_makes_a_small_credit_worse() -> None:
    small = CommConfig(partition_bytes=512 * KIB, credit_bytes=2 * MIB)
    near, far = (RulePredictor().predict(situation(latency=way), [small]).log_speedup[0] for way in (50e-6, 5e-3))
    assert far < near - 0.01


def test_doubtful_estimates_widen_the_spread() -> None:
    sure = RulePredictor().predict(situation(), SPACE).spread
    unsure = RulePredictor().predict(replace(situation(), overhead_seconds=same(100e-6, 2.0)), SPACE).spread
    assert (unsure >= sure).all() and unsure.max() > sure.min()


def test_waits_in_the_forward_pass_are_not_taken_for_computation() -> None:
    """A step of 1.1 s with 34 ms of backward pass is communication, although the forward pass is reported as 1 s."""
    known = replace(
        situation(2.5, overhead=2e-3, step=1.1), config=SPACE[0], forward_seconds=1.0, backward_seconds=0.034
    )
    larger = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)
    assert RulePredictor().predict(known, [larger]).log_speedup[0] > 0.5


@pytest.mark.parametrize("missing", ["bandwidth_bytes_per_second", "overhead_seconds", "model_bytes"])
def test_where_too_little_is_known_nothing_is_predicted(missing: str) -> None:
    unknown = replace(situation(), **{missing: 0 if missing == "model_bytes" else None})
    prediction = RulePredictor().predict(unknown, SPACE)
    assert np.isinf(prediction.spread).all() and not prediction.log_speedup.any()
    assert step_seconds(unknown, START) is None


def test_of_two_predictors_each_counts_as_much_as_it_is_sure() -> None:
    class Fixed:
        def __init__(self, gain: float, spread: float) -> None:
            self.said = Prediction(np.array([0.0, gain]), np.array([0.0, spread]))

        def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
            return self.said

        def fine_tune(self, samples: Sequence[Sample]) -> None:
            pass

    gains, spreads = BlendedPredictor(Fixed(0.3, 0.1), Fixed(0.0, 0.2)).predict(situation(), SPACE[:2])
    assert gains.tolist() == pytest.approx([0.0, 0.24])
    assert spreads.tolist() == pytest.approx([0.0, 0.0894], abs=1e-4)
    unknown = BlendedPredictor(Fixed(0.0, np.inf), Fixed(0.0, np.inf)).predict(situation(), SPACE[:2])
    assert np.isinf(unknown.spread[1])
