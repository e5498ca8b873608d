"""The twins of a job: how many there are, and what they agree on."""

from __future__ import annotations

import math
from typing import Mapping, Optional, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import KIB, CommConfig
from tuner.compiled import simulate_compiled
from tuner.conditions import Conditions
from tuner.observed import situation_of
from tuner.profiles import load
from tuner.refinement import simulated_seconds
from tuner.situation import Situation
from tuner.twins import Member, fit_twins

pytestmark = pytest.mark.timeout(60)

START = CommConfig()
SMALL = CommConfig(partition_bytes=64 * KIB)
PROFILE = load("mobilenet1_0").scaled(0.3)


def conditions_of(overhead_seconds: float = 1e-4, byte_seconds: float = 0.0, bandwidth: float = 6e8) -> Conditions:
    return Conditions.uniform(2, 2, bandwidth, 1e-4, overhead_seconds, byte_seconds)


def seen(conditions: Conditions, scale: float = 1.0) -> Situation:
    profile = PROFILE.scaled(scale)
    simulated = simulate_compiled(profile, conditions, START)
    return situation_of(profile, conditions, START, simulated, np.random.default_rng(1))


def blind(situation: Situation) -> Situation:
    return replace(situation, forward_seconds=None, backward_seconds=None, tensor_seconds=())


def fitted(
    situation: Situation, conditions: Conditions, configs: Sequence[CommConfig] = (START,), scale: float = 1.0
) -> list[Member]:
    """Return the twins after steps under ``configs`` were measured."""
    profile = PROFILE.scaled(scale)
    measured: Mapping[CommConfig, float] = {
        config: math.log(simulate_compiled(profile, conditions, config).step_seconds) for config in configs
    }
    return fit_twins(situation, measured, simulated_seconds)


def test_around_the_likeliest_cost_of_messages_are_a_dearer_and_a_cheaper_one() -> None:
    conditions = conditions_of()
    likeliest, *others = fitted(seen(conditions), conditions)
    factors = [member.guess.overhead_factor for member in others]
    assert likeliest.guess.overhead_factor == pytest.approx(1.0, abs=0.1)
    assert min(factors) < likeliest.guess.overhead_factor < max(factors)
    assert likeliest.weight + sum(member.weight for member in others) == pytest.approx(1.0)


@pytest.mark.parametrize("true", [0.0, 0.25e-9])
def test_the_step_time_speaks_for_the_cost_of_a_byte_that_no_node_tells(true: float) -> None:
    conditions = conditions_of(2e-5, true, 2.5e9)
    members = fitted(replace(seen(conditions, 0.02), byte_seconds=None), conditions, scale=0.02)
    mean = sum(member.weight * member.guess.byte_seconds * member.guess.overhead_factor for member in members)
    assert mean == pytest.approx(true, abs=0.06e-9)


def test_computation_that_no_pass_tells_of_fills_the_step() -> None:
    conditions = conditions_of()
    members = fitted(blind(seen(conditions, 5.0)), conditions, scale=5.0)
    assert {member.guess.before for member in members} == {False, True}
    assert members[0].misfit < 0.03
    overlapped = [m.guess for m in members if not m.guess.before and m.guess.computation_seconds > 0]
    assert len(overlapped) == 1
    computed = 5 * (PROFILE.forward_seconds + PROFILE.backward_seconds)
    assert overlapped[0].computation_seconds == pytest.approx(computed, rel=0.5)


def test_where_communication_explains_a_step_no_computation_is_guessed() -> None:
    conditions = conditions_of()
    members = fitted(blind(seen(conditions, 0.0)), conditions, scale=0.0)
    assert [member.guess.computation_seconds for member in members] == [0.0, 0.0, 0.0]


def test_two_configurations_tell_dear_messages_from_computation() -> None:
    conditions = conditions_of(3e-4)
    situation: Optional[Situation] = blind(seen(conditions, 0.0))
    assert situation is not None and situation.overhead_seconds is not None
    cheap = situation.overhead_seconds._replace(least=2.2e-4, median=2.2e-4, most=2.2e-4, spread=0.3)
    hosts = [
        tuple(replace(host, overhead_seconds=2.2e-4) for host in h) for h in (situation.workers, situation.servers)
    ]
    situation = replace(situation, overhead_seconds=cheap, workers=hosts[0], servers=hosts[1])
    members = fitted(situation, conditions, (START, SMALL), scale=0.0)
    assert members[0].guess.overhead_factor == pytest.approx(3e-4 / 2.2e-4, rel=0.1)
    assert members[0].guess.computation_seconds < 0.01


def test_without_a_network_there_is_no_twin() -> None:
    conditions = conditions_of()
    assert fitted(replace(seen(conditions), bandwidth_bytes_per_second=None), conditions) == []
