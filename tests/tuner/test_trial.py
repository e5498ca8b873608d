"""The verdict on a switch."""

from __future__ import annotations

import pytest

from ps.config import KIB, MIB, CommConfig
from tuner.situation import Situation
from tuner.steps import StepTime
from tuner.trial import Outcome, Trial, Verdict

pytestmark = pytest.mark.timeout(10)

BEFORE = CommConfig()
LARGER = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)
SMALLER = CommConfig(partition_bytes=256 * KIB, credit_bytes=4 * MIB)
SITUATION = Situation(config=BEFORE, num_workers=2, num_servers=1)


def trial(config: CommConfig = LARGER, noise: float = 0.005, predicted: float = 0.1) -> Trial:
    return Trial(BEFORE, config, StepTime(0.1, noise), SITUATION, predicted, 0.02, began=0.0)


def outcome(verdict: object) -> object:
    return verdict.outcome if isinstance(verdict, Verdict) else verdict


@pytest.mark.parametrize(
    ("seconds", "rounds", "steps", "expected"),
    [
        (0.130, 1, 5, Outcome.GO_BACK),  # an obvious loss needs no more
        (0.110, 1, 5, None),
        (0.110, 2, 3, None),  # too few steps
        (0.110, 2, 4, Outcome.GO_BACK),
        (0.090, 1, 50, None),
        (0.090, 2, 4, Outcome.KEEP),
        (0.101, 2, 20, None),  # neither
        (0.101, 6, 60, Outcome.KEEP),  # larger and no slower
    ],
)
def test_a_larger_configuration(seconds: float, rounds: int, steps: int, expected: object) -> None:
    assert outcome(trial().verdict(StepTime(seconds, 0.005), rounds, steps, now=5.0)) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.1004, Outcome.GO_BACK), (0.0995, Outcome.KEEP)])
def test_a_smaller_configuration_has_to_be_faster(seconds: float, expected: Outcome) -> None:
    assert outcome(trial(SMALLER).verdict(StepTime(seconds, 0.005), 6, 60, now=5.0)) == expected


def test_noise_is_waited_out() -> None:
    noisy = StepTime(0.105, 0.05)
    assert trial().verdict(noisy, 2, 20, now=5.0) is None
    assert outcome(trial().verdict(noisy, 6, 60, now=9.0)) == Outcome.KEEP


@pytest.mark.parametrize(("seconds", "expected"), [(0.097, Outcome.GO_BACK), (0.094, Outcome.KEEP)])
def test_against_doubtful_steps_half_of_the_gain_has_to_show(seconds: float, expected: Outcome) -> None:
    assert outcome(trial(noise=0.08).verdict(StepTime(seconds, 0.005), 2, 20, now=5.0)) == expected


def test_no_step_at_all_is_a_loss_after_ten_seconds_or_ten_steps() -> None:
    assert trial().verdict(None, 0, 0, now=10.0) is None
    silent = trial().verdict(None, 0, 0, now=10.5)
    assert silent == Verdict(Outcome.GO_BACK, "no step has ended for 10 s", None, 0.0)
    slow = trial()._replace(time=StepTime(3.0, 0.01))
    assert slow.verdict(None, 0, 0, now=29.0) is None


def test_the_text_is_for_the_reader_of_the_log() -> None:
    verdict = trial().verdict(StepTime(0.09, 0.005), 2, 20, now=5.0)
    assert verdict is not None
    assert verdict.text == "speedup 1.111 measured, 1.105 predicted"
