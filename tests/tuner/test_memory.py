"""What was measured is remembered for when its conditions come back."""

from __future__ import annotations

import pytest

from ps.config import MIB, CommConfig
from tuner.memory import MAX_CONDITIONS, Memory
from tuner.purse import Purse
from tuner.situation import Across, Situation
from tuner.steps import StepTime

pytestmark = pytest.mark.timeout(10)

START = CommConfig()
LARGER = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)


def situation(config: CommConfig = START, bandwidth: float = 1e9, backward: float = 0.05) -> Situation:
    return Situation(
        config=config,
        num_workers=2,
        num_servers=1,
        backward_seconds=backward,
        bandwidth_bytes_per_second=Across(bandwidth, bandwidth, bandwidth),
    )


def taught(start_seconds: float = 0.1) -> Memory:
    memory = Memory()
    memory.note(situation(START), StepTime(start_seconds, 0.0))
    memory.note(situation(LARGER), StepTime(0.08, 0.0))
    return memory


def test_other_configurations_are_recalled_relative_to_the_present_step_time() -> None:
    recalled = taught().recall(situation(), StepTime(0.102, 0.01))
    assert list(recalled) == [LARGER]
    assert recalled[LARGER].seconds == pytest.approx(0.08 * 1.02)
    assert recalled[LARGER].noise == pytest.approx(0.02)


def test_under_other_conditions_nothing_is_recalled() -> None:
    assert taught().recall(situation(bandwidth=5e8), StepTime(0.1, 0.01)) == {}
    assert taught().recall(situation(backward=0.1), StepTime(0.1, 0.01)) == {}


def test_where_a_step_takes_another_time_conditions_are_others_whatever_the_estimates_say() -> None:
    assert taught().recall(situation(), StepTime(0.12, 0.01)) == {}


def test_without_the_present_configuration_to_compare_with_there_is_more_doubt() -> None:
    other = CommConfig(partition_bytes=2 * MIB, credit_bytes=8 * MIB)
    recalled = taught().recall(situation(other), StepTime(0.5, 0.01))
    assert recalled == {START: StepTime(0.1, 0.06), LARGER: StepTime(0.08, 0.06)}


def test_conditions_that_no_estimate_tells_apart_are_told_by_the_step_time() -> None:
    """A worker that computes more slowly than the others for a while."""
    memory = taught()
    memory.note(situation(START), StepTime(0.2, 0.0))
    memory.note(situation(LARGER), StepTime(0.3, 0.0))
    assert memory.recall(situation(), StepTime(0.1, 0.0))[LARGER].seconds == pytest.approx(0.08)
    assert memory.recall(situation(), StepTime(0.2, 0.0))[LARGER].seconds == pytest.approx(0.3)
    assert memory.recall(situation(), StepTime(0.15, 0.0)) == {}
    assert LARGER in memory.recall(situation(), StepTime(0.115, 0.1))  # as far as its noise tells


def test_the_conditions_not_met_for_longest_are_forgotten() -> None:
    memory = taught()
    for number in range(MAX_CONDITIONS):
        memory.note(situation(bandwidth=1e10 * 2**number), StepTime(0.1, 0.0))
    assert memory.recall(situation(), StepTime(0.1, 0.0)) == {}


def test_the_purse_is_filled_by_time_and_gains_and_emptied_by_losses() -> None:
    purse = Purse()
    assert purse.seconds == 0.3
    purse.fill(100.0)
    purse.fill(110.0)
    assert purse.seconds == pytest.approx(0.4)
    purse.earn(0.1)
    assert purse.seconds == pytest.approx(0.7)
    purse.pay(5.0)
    assert purse.seconds == pytest.approx(-4.3)
    purse.fill(1e9)
    assert purse.seconds == 30.0
