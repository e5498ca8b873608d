"""Messages that are dearer than their own thread can tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import KIB, MIB, CommConfig
from tuner.dearness import Dearness, dearer
from tuner.knowledge import Knowledge
from tuner.predictor import RulePredictor, Sample
from tuner.situation import Across, Situation
from tuner.space import candidates
from tuner.steps import StepTime

pytestmark = pytest.mark.timeout(10)

START = CommConfig()
SMALLER = CommConfig(partition_bytes=256 * KIB, credit_bytes=4 * MIB)
#: Nothing but communication, at 1 Gbit/s.
SITUATION = Situation(
    config=START,
    num_workers=2,
    num_servers=2,
    tensors=160,
    model_bytes=100_000_000,
    step_seconds=1.0,
    backward_seconds=0.05,
    bandwidth_bytes_per_second=Across(118e6, 118e6, 118e6, 0.02),
    latency_seconds=Across(2e-4, 2e-4, 2e-4, 0.1),
    overhead_seconds=Across(3e-4, 3e-4, 3e-4, 0.1),
)


def verdict(dear: float, noise: float = 0.01) -> Sample:
    """Return what a trial of smaller partitions brings where messages cost so many times what is estimated."""
    truth = RulePredictor().predict(dearer(SITUATION, dear), [SMALLER]).log_speedup[0]
    return Sample(SITUATION, SMALLER, float(truth), noise)


def test_nothing_is_dearer_than_estimated_before_a_trial_has_shown_it() -> None:
    dearness = Dearness()
    assert dearness.factor == 1.0
    assert dearness.apply(SITUATION) == SITUATION


def test_a_loss_of_smaller_partitions_makes_messages_dearer_and_a_gain_does_not() -> None:
    dearness = Dearness()
    dearness.learn(RulePredictor(), verdict(1.0))
    assert dearness.factor == 1.0
    for _ in range(4):
        dearness.learn(RulePredictor(), verdict(12.0))
    assert dearness.factor > 2.0


def test_noise_teaches_nothing() -> None:
    dearness = Dearness()
    for _ in range(4):
        dearness.learn(RulePredictor(), verdict(12.0, noise=1.0))
    assert dearness.factor < 1.5


def test_a_rejected_smaller_p_makes_all_that_are_as_small_doubtful() -> None:
    space = candidates(START)
    present = StepTime(1.0, 0.01)
    before = Knowledge(RulePredictor(), space).belief(SITUATION, present)
    taught = Knowledge(RulePredictor(), space)
    taught.keep(SMALLER, StepTime(1.2, 0.01))
    taught.learn(Sample(SITUATION, SMALLER, math.log(1 / 1.2), 0.02), predicted=0.05, spread=0.08)
    after = taught.belief(SITUATION, present)
    small = np.array([candidate.partition_bytes <= SMALLER.partition_bytes for candidate in space])
    assert (after.mean[small] < before.mean[small] - 0.03).all()


def test_what_nobody_knows_stays_unknown() -> None:
    unknown = replace(SITUATION, overhead_seconds=None)
    assert dearer(unknown, 3.0) == unknown
