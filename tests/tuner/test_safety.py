"""The controller where predictions are wrong, steps scatter, or conditions change at the wrong moment."""

from __future__ import annotations

import random
from typing import Mapping, Optional

import pytest
from msgspec.structs import replace

from ps.config import KIB, MIB, CommConfig
from tests.tuner.job import Believer, Host, Job, Seconds
from tuner.autobyte import AutoByteTuner
from tuner.purse import FIRST_SECONDS, MAX_DEBT_SECONDS, Purse

pytestmark = pytest.mark.timeout(20)

START = CommConfig()  # P = 512 KiB, C = 4 MiB
SMALLER = CommConfig(partition_bytes=256 * KIB, credit_bytes=4 * MIB)
LARGER = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)


def steps(special: Mapping[CommConfig, float], other: float = 0.2, start: float = 0.1) -> Seconds:
    return lambda config: {START: start, **special}.get(replace(config, epoch=0), other)


def by_partition(per_power: float, start: float = 0.1) -> Seconds:
    """Return a step that takes so much less (a part) for each power of two by which P is smaller; no larger P helps."""

    def seconds(config: CommConfig) -> float:
        powers = 0
        while config.partition_bytes << (powers + 1) <= START.partition_bytes:
            powers += 1
        return start * (1 - per_power) ** powers

    return seconds


class DriftingJob(Job):
    """Others take the same processors for some windows at a time."""

    level = 1.0
    drift = 0.0

    def window(self, config: CommConfig) -> list:  # type: ignore[type-arg]
        draw = self._random
        if draw.random() < 0.2:
            self.level = 2.718 ** draw.gauss(0, self.drift)
        truth: Optional[Seconds] = self.seconds
        assert truth is not None
        self.seconds = lambda config: truth(config) * self.level
        try:
            return super().window(config)
        finally:
            self.seconds = truth


def host(job: Job, believed: Seconds, spread: float = 0.01) -> tuple[Host, Believer]:
    predictor = Believer(believed, spread)
    return Host(AutoByteTuner(START, predictor), job, START), predictor


# --------------------------------------------------------------------------------------------------- down


def test_where_a_large_gain_is_certain_it_goes_down_two_at_once_but_never_further_than_to_a_quarter() -> None:
    truth = by_partition(0.06)
    made, _ = host(Job(truth), truth)
    told = made.run(40)
    assert [one.proposal.config.partition_bytes // KIB for one in told[:2]] == [128, 128]
    assert min(config.partition_bytes for config in made.history) == 128 * KIB


def test_a_step_down_that_was_no_gain_ends_the_way_down() -> None:
    """The predictor promises 6 % for each power of two, of which there are none."""
    made, _ = host(Job(by_partition(0.0)), by_partition(0.06), spread=0.05)
    told = made.run(40)
    assert [one.proposal.config.partition_bytes // KIB for one in told[:2]] == [128, 512]
    assert all(config.partition_bytes >= START.partition_bytes for config in made.history[told[1].window :])


def test_a_smaller_p_that_failed_is_not_tried_again_with_another_credit() -> None:
    """Every small P is 20 % slower, and the predictor promises 12 % for it, whatever the credit."""
    made, _ = host(Job(by_partition(-0.2)), by_partition(0.12), spread=0.08)
    made.run(150)
    trials = [one for one in made.told if one.proposal.config.partition_bytes < START.partition_bytes]
    assert 1 <= len(trials) <= 3
    assert made.seconds_lost < 0.01 * 150


# ------------------------------------------------------------------------------------------------- changes


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_a_smaller_configuration_goes_back_without_a_verdict_when_the_network_changes(factor: float) -> None:
    made, predictor = host(Job(steps({SMALLER: 0.09})), steps({SMALLER: 0.09}))
    (switched,) = made.run(4)
    assert switched.proposal.config == SMALLER
    made.job.bandwidth *= factor
    made.job.seconds = steps({SMALLER: 0.09 / factor}, start=0.1 / factor)
    (told,) = made.run(1)
    assert told.proposal.config == START
    assert told.proposal.reason.endswith("the trial is void")
    made.run(1)
    assert made.config == START
    assert not predictor.samples


def test_steps_that_slow_down_in_a_trial_of_something_larger_do_not_lead_back_to_something_small() -> None:
    """It was on its way up from a small P when messages became dear: the start is safe, and what was before is not."""
    truth = steps({SMALLER: 0.09, LARGER: 0.08}, other=0.1)
    made, predictor = host(Job(truth), steps({SMALLER: 0.09}, other=0.1))
    made.run(6)
    assert made.config == SMALLER
    predictor.seconds = truth
    while made.config != LARGER:
        made.run(1)
    made.job.seconds = steps({SMALLER: 0.6, LARGER: 0.2}, start=0.25)
    (told,) = made.run(1)
    assert told.proposal.config == START


# --------------------------------------------------------------------------------------------------- noise


def test_where_steps_scatter_more_than_anything_promises_it_stays_quiet() -> None:
    job = DriftingJob(steps({}, other=0.12), noise=0.1, seed=3)
    job.drift = 0.15
    made, _ = host(job, steps({SMALLER: 0.093, LARGER: 0.094}, other=0.1), spread=0.04)
    made.run(200)
    assert len(made.told) <= 4
    assert made.config == START


def test_a_gain_that_is_larger_than_the_scatter_is_found() -> None:
    job = DriftingJob(steps({LARGER: 0.06}, other=0.1), noise=0.05, seed=4)
    job.drift = 0.05
    made, _ = host(job, steps({LARGER: 0.06}, other=0.1), spread=0.04)
    made.run(60)
    assert made.config == LARGER


def test_nothing_is_proposed_where_nothing_is_promised() -> None:
    job = DriftingJob(steps({}, other=0.1), noise=0.02, seed=5)
    made, _ = host(job, steps({}, other=0.1), spread=0.002)
    assert made.run(300) == []


@pytest.mark.parametrize("seed", range(3))
def test_all_trials_together_lose_a_small_part_of_the_time(seed: int) -> None:
    """The predictor promises gains of 3 to 20 % everywhere, drawn anew for every window; all else is 8 % slower."""
    draw = random.Random(seed)
    made, predictor = host(Job(steps({}, other=0.108), noise=0.01, seed=seed), steps({}))
    for _ in range(400):
        gains = draw.uniform(0.03, 0.2)
        predictor.seconds = lambda config, gains=gains: 0.1 if config == made.config else 0.1 * (1 - gains)  # type: ignore[misc]
        made.run(1)
    assert made.seconds_lost < FIRST_SECONDS + 0.02 * 400


def test_a_debt_ends_trials_until_it_is_paid_or_the_network_changes() -> None:
    purse = Purse()
    purse.fill(0.0)
    assert purse.open
    purse.pay(5.0)
    assert not purse.open
    purse.fill(300.0)
    assert not purse.open
    purse.fill(450.0)
    assert purse.open
    purse.pay(1000.0)
    assert purse.seconds == -MAX_DEBT_SECONDS
    purse.cancel()
    assert purse.open
    purse.pay(1000.0)
    purse.cancel()
    assert not purse.open
