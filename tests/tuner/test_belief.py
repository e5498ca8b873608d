"""A prediction, corrected by what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from ps.config import KIB, MIB, CommConfig
from tuner.belief import believe, expected_gain
from tuner.predictor import Prediction

pytestmark = pytest.mark.timeout(10)

A = CommConfig(partition_bytes=512 * KIB, credit_bytes=4 * MIB)
NEAR = CommConfig(partition_bytes=1 * MIB, credit_bytes=4 * MIB)
FAR = CommConfig(partition_bytes=64 * KIB, credit_bytes=64 * MIB)
CANDIDATES = [A, NEAR, FAR]


def predicted(*gains: float, spread: float = 0.1) -> Prediction:
    return Prediction(np.array(gains), np.full(len(gains), spread))


def test_without_measurements_the_prediction_is_believed() -> None:
    belief = believe(CANDIDATES, predicted(0.0, 0.1, 0.2), {}, A)
    assert belief.mean.tolist() == [0.0, 0.1, 0.2]
    assert belief.deviation.tolist() == [0.1, 0.1, 0.1]


def test_what_was_measured_exactly_replaces_the_prediction() -> None:
    belief = believe(CANDIDATES, predicted(0.0, 0.1, 0.2), {NEAR: (-0.3, 0.001)}, A)
    assert belief.mean[1] == pytest.approx(-0.3, abs=1e-3)
    assert belief.deviation[1] < 0.002


def test_neighbours_are_corrected_too_and_the_farther_the_less() -> None:
    belief = believe(CANDIDATES, predicted(0.0, 0.1, 0.1), {A: (0.2, 0.001)}, A)
    assert belief.mean[1] - 0.1 > 0.15 > 0.06 > belief.mean[2] - 0.1
    assert belief.deviation[1] < 0.05 < 0.08 < belief.deviation[2]


def test_a_doubtful_measurement_changes_little() -> None:
    belief = believe(CANDIDATES, predicted(0.0, 0.1, 0.2, spread=0.02), {NEAR: (-0.3, 0.5)}, A)
    assert belief.mean[1] == pytest.approx(0.1, abs=0.01)


def test_measurements_of_others_are_ignored() -> None:
    other = CommConfig(partition_bytes=77)
    assert believe(CANDIDATES, predicted(0.0, 0.1, 0.2), {other: (5.0, 0.1)}, A).mean.tolist() == [0.0, 0.1, 0.2]


def test_a_prediction_without_spread_stays() -> None:
    prediction = Prediction(np.array([0.0, 0.1, 0.2]), np.array([0.0, 0.1, 0.1]))
    assert believe(CANDIDATES, prediction, {A: (0.5, 0.1), NEAR: (0.0, 0.01)}, A).mean[0] == 0.0


@pytest.mark.parametrize(
    ("mean", "deviation", "gain"), [(0.1, 0.0, 0.1), (-0.1, 0.0, 0.0), (0.0, 1.0, 0.3989), (1.0, 0.1, 1.0)]
)
def test_the_expected_gain_counts_losses_as_nothing(mean: float, deviation: float, gain: float) -> None:
    assert expected_gain(mean, deviation) == pytest.approx(gain, abs=1e-4)


def test_a_loss_of_a_smaller_p_speaks_against_all_that_are_as_small_whatever_their_credit() -> None:
    tried = CommConfig(partition_bytes=256 * KIB, credit_bytes=4 * MIB)
    smaller = CommConfig(partition_bytes=128 * KIB, credit_bytes=64 * MIB)
    larger = CommConfig(partition_bytes=4 * MIB, credit_bytes=64 * MIB)
    candidates = [A, tried, smaller, larger]
    belief = believe(candidates, predicted(0.0, 0.1, 0.1, 0.1), {tried: (-0.2, 0.001)}, A)
    assert belief.mean[2] < -0.02
    assert belief.mean[3] > 0.05
