"""What a large credit is believed to cost on a slow link, and where it costs nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ps.config import KIB, MIB, CommConfig
from tuner.predictor import Prediction
from tuner.queues import with_queues
from tuner.situation import Across, Situation

START = CommConfig()
LARGE = CommConfig(credit_bytes=64 * MIB)
SMALL = CommConfig(credit_bytes=512 * KIB)
SURE = Prediction(np.array([0.0, 0.1, 0.0]), np.array([0.0, 0.01, 0.0]))


def situation(
    bandwidth: float, config: CommConfig = START, model_bytes: int = 100 * MIB, use: float = 1.0
) -> Situation:
    across = Across(bandwidth, 2 * bandwidth, 2 * bandwidth, 0.0)
    return Situation(
        config=config,
        num_workers=2,
        num_servers=2,
        model_bytes=model_bytes,
        bandwidth_bytes_per_second=across,
        worker_use=use,
    )


def seen(where: Situation) -> Prediction:
    return with_queues(where, [START, LARGE, SMALL], SURE)


def test_credit_that_takes_long_to_leave_is_believed_to_lose() -> None:
    prediction = seen(situation(1.2e8))
    assert prediction.log_speedup[1] < 0.0
    assert prediction.spread[1] > 0.05
    assert prediction.log_speedup[0] == prediction.log_speedup[2] == 0.0
    assert prediction.spread[0] == prediction.spread[2] == 0.0


@pytest.mark.parametrize(
    "where",
    [
        situation(1.2e10),
        situation(1.2e8, model_bytes=8 * MIB),
        situation(1.2e8, LARGE),
        Situation(config=START, num_workers=2, num_servers=2, model_bytes=100 * MIB),
    ],
    ids=["a fast link", "a small model", "no more than now", "an unknown link"],
)
def test_it_is_free_elsewhere(where: Situation) -> None:
    prediction = seen(where)
    assert list(prediction.log_speedup) == list(SURE.log_speedup)
    assert list(prediction.spread) == list(SURE.spread)


def test_a_link_that_is_hardly_used_loses_little() -> None:
    assert 0.08 < seen(situation(1.2e8, use=0.1)).log_speedup[1] < 0.1
