"""Down in small steps, and not again where it has failed."""

from __future__ import annotations

import pytest

from ps.config import KIB, MIB, CommConfig
from tuner.caution import REFUSED_SECONDS, Refusals, is_smaller, within_reach
from tuner.space import UNSLICED

pytestmark = pytest.mark.timeout(10)


def config(partition_kib: int, credit_mib: int) -> CommConfig:
    return CommConfig(partition_bytes=partition_kib * KIB, credit_bytes=credit_mib * MIB)


START = config(512, 4)


@pytest.mark.parametrize(
    ("candidate", "within"),
    [
        (config(256, 4), True),
        (config(256, 2), True),
        (config(128, 4), False),
        (config(512, 1), False),
        (config(256, 64), False),  # what would be to blame?
        (config(8192, 64), True),
        (config(1024, 2), True),
        (UNSLICED, True),
    ],
)
def test_one_power_of_two_down_and_any_up(candidate: CommConfig, within: bool) -> None:
    assert within_reach(candidate, START, START) == within


def test_what_is_not_smaller_than_the_start_is_always_within_reach() -> None:
    assert within_reach(START, UNSLICED, START)
    assert within_reach(config(1024, 16), UNSLICED, START)


@pytest.mark.parametrize(
    ("candidate", "present", "certain", "within"),
    [
        (config(128, 4), START, False, False),
        (config(128, 4), START, True, True),
        (config(128, 1), START, True, True),
        (config(128, 8), START, True, False),  # P smaller, C larger
        (config(64, 4), START, True, False),
        (config(64, 4), config(128, 4), True, False),  # too far below the start
    ],
)
def test_two_powers_of_two_down_for_a_certain_gain_and_no_further_than_to_a_quarter_of_the_start(
    candidate: CommConfig, present: CommConfig, certain: bool, within: bool
) -> None:
    assert within_reach(candidate, present, START, certain) == within


def test_no_slicing_is_one_step_above_the_largest() -> None:
    assert within_reach(config(8192, 64), UNSLICED, UNSLICED)
    assert not within_reach(config(8192, 32), UNSLICED, UNSLICED)
    assert is_smaller(config(8192, 64), UNSLICED)


def test_a_smaller_p_that_failed_speaks_against_all_that_are_as_small() -> None:
    refusals = Refusals()
    refusals.refuse(config(256, 4), before=START)
    assert [refusals.allow(config(*size)) for size in ((256, 4), (256, 64), (64, 1), (512, 2))] == [False] * 3 + [True]


def test_a_smaller_c_that_failed_speaks_against_no_larger_c() -> None:
    refusals = Refusals()
    refusals.refuse(config(512, 2), before=START)
    assert [refusals.allow(config(*size)) for size in ((512, 2), (256, 1), (256, 4), (1024, 2))] == [
        False,
        False,
        True,
        True,
    ]


def test_each_refusal_in_a_row_lasts_twice_as_long_until_a_gain_or_a_change() -> None:
    refusals, lasted = Refusals(), []
    for _ in range(3):
        refusals.refuse(config(256, 4), before=START)
        rounds = 0
        while not refusals.allow(config(256, 4)):
            refusals.pass_time(1.0)
            rounds += 1
        lasted.append(rounds)
    assert lasted == [REFUSED_SECONDS, 2 * REFUSED_SECONDS, 4 * REFUSED_SECONDS]
    refusals.refuse(config(256, 4), before=START)
    refusals.forget()
    assert refusals.allow(config(256, 4))
