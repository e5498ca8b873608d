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
        (0.1005, 2, 20, None),  # neither
        (0.1005, 8, 80, Outcome.KEEP),  # larger and no slower
        (0.1012, 8, 80, Outcome.GO_BACK),
    ],
)
def test_a_larger_configuration(seconds: float, rounds: int, steps: int, expected: object) -> None:
    assert outcome(trial().verdict(StepTime(seconds, 0.005), rounds, steps, now=5.0)) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.1004, Outcome.GO_BACK), (0.0995, Outcome.GO_BACK), (0.0985, Outcome.KEEP)]
)
def test_a_smaller_configuration_has_to_be_faster(seconds: float, expected: Outcome) -> None:
    assert outcome(trial(SMALLER).verdict(StepTime(seconds, 0.005), 8, 80, now=5.0)) == expected


def test_noise_is_waited_out() -> None:
    noisy = StepTime(0.1, 0.05)
    assert trial().verdict(noisy, 2, 20, now=5.0) is None
    assert outcome(trial().verdict(noisy, 8, 80, now=9.0)) == Outcome.KEEP
    assert outcome(trial().verdict(StepTime(0.102, 0.05), 8, 80, now=9.0)) == Outcome.GO_BACK


def test_a_smaller_configuration_is_not_kept_for_long_against_the_odds() -> None:
    noisy = StepTime(0.107, 0.05)
    assert trial().verdict(noisy, 2, 20, now=5.0) is None
    assert outcome(trial(SMALLER).verdict(noisy, 2, 20, now=5.0)) == Outcome.GO_BACK


def test_a_trial_is_given_up_where_even_a_long_one_could_not_tell() -> None:
    verdict = trial().verdict(StepTime(0.1, 0.05), 2, 20, now=5.0, scatter=0.15)
    assert verdict is not None and verdict.outcome is Outcome.GO_BACK
    assert verdict.text.endswith("and steps vary too much to tell")
    assert trial().verdict(StepTime(0.1, 0.05), 2, 20, now=5.0, scatter=0.05) is None


def test_going_back_to_the_start_needs_no_gain() -> None:
    back = Trial(LARGER, BEFORE, StepTime(0.1, 0.005), SITUATION, 0.0, 0.05, safe=True, began=0.0)
    assert outcome(back.verdict(StepTime(0.1002, 0.005), 8, 80, now=9.0)) == Outcome.KEEP
    assert outcome(back.verdict(StepTime(0.103, 0.005), 8, 80, now=9.0)) == Outcome.GO_BACK


def test_what_is_smaller_goes_back_as_soon_as_it_cannot_be_a_gain_any_more() -> None:
    exact = StepTime(0.1, 0.002)
    assert outcome(trial(SMALLER, noise=0.002).verdict(exact, 2, 20, now=5.0)) == Outcome.GO_BACK
    assert trial(SMALLER, noise=0.01).verdict(exact, 2, 20, now=5.0) is None


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
