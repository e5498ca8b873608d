"""Predictions refined by a simulation of the job: what the twin knows better, and what it is not asked."""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import KIB, MIB, CommConfig
from tuner.compiled import simulate_compiled
from tuner.conditions import Conditions, Host
from tuner.knowledge import Knowledge
from tuner.observed import situation_of
from tuner.predictor import Prediction, RulePredictor, Sample
from tuner.profiles import load
from tuner.refinement import OFF_PREDICTIONS, Refinement, simulated_seconds
from tuner.situation import HostView, Situation
from tuner.space import candidates
from tuner.steps import StepTime
from tuner.twin import Twin

pytestmark = pytest.mark.timeout(60)

START = CommConfig()
SPACE = candidates(START)
PROFILE = load("mobilenet1_0").scaled(0.3)
CONDITIONS = Conditions.uniform(3, 2, 1.25e8, 1e-4, 1e-4)


def unsure(situation: Situation, space: Sequence[CommConfig], gain: float = 0.0) -> Prediction:
    """Expect the same gain from everything else, and be not sure of it."""
    others = np.array([candidate != situation.config for candidate in space])
    return Prediction(gain * others, 0.3 * others)


def refined(situation: Situation, refinement: Optional[Refinement] = None) -> Prediction:
    return (refinement or Refinement()).refine(situation, SPACE, unsure(situation, SPACE))


class Counting:
    """Simulates, and counts."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, twin: Twin, configs: Sequence[CommConfig], quick: bool) -> Sequence[float]:
        self.asked.append(len(configs))
        return simulated_seconds(twin, configs, quick)


def seen(conditions: Conditions = CONDITIONS, config: CommConfig = START, overhead_error: float = 1.0) -> Situation:
    """Return what nodes know, whose messages seem to cost ``overhead_error`` times what they do."""
    simulated = simulate_compiled(PROFILE, conditions, config)
    situation = situation_of(PROFILE, conditions, config, simulated, np.random.default_rng(1))
    assert situation.overhead_seconds is not None
    wrong = situation.overhead_seconds._replace(
        **{name: overhead_error * getattr(situation.overhead_seconds, name) for name in ("least", "median", "most")}
    )

    def misled(hosts: Sequence[object]) -> tuple[object, ...]:
        return tuple(replace(host, overhead_seconds=host.overhead_seconds * overhead_error) for host in hosts)  # type: ignore[attr-defined]

    return replace(
        situation, overhead_seconds=wrong, workers=misled(situation.workers), servers=misled(situation.servers)
    )


def seconds(
    configs: Sequence[CommConfig], conditions: Conditions = CONDITIONS
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([simulate_compiled(PROFILE, conditions, config).step_seconds for config in configs])


def regret(prediction: Prediction, conditions: Conditions = CONDITIONS) -> float:
    true = seconds(SPACE, conditions)
    return float(true[prediction.log_speedup.argmax()] / true.min() - 1)


def test_it_finds_what_is_fastest_where_the_inner_one_knows_nothing() -> None:
    prediction = refined(seen())
    assert regret(prediction) < 0.01
    assert prediction.log_speedup[SPACE.index(START)] == 0.0
    assert prediction.spread[SPACE.index(START)] == 0.0


def test_messages_that_are_dearer_than_stated_show_in_the_step_time() -> None:
    conditions = Conditions.uniform(3, 2, 1.25e9, 1e-4, 4e-4)
    stated = seen(conditions, overhead_error=0.4)
    assert stated.overhead_seconds is not None and stated.overhead_seconds.median == pytest.approx(1.6e-4)
    assert regret(refined(stated), conditions) < 0.02


def test_what_remains_unexplained_is_doubt() -> None:
    fitting, slower = seen(), replace(seen(), step_seconds=2.0)
    known = refined(fitting)
    doubted = refined(slower)
    index = SPACE.index(CommConfig(partition_bytes=256 * KIB, credit_bytes=4 * MIB))
    assert known.spread[index] < 0.05
    assert doubted.spread[index] > 0.1


def test_a_twin_serves_until_the_conditions_have_moved() -> None:
    simulate = Counting()
    refinement = Refinement(simulate)
    situation = seen()
    refined(situation, refinement)
    first = len(simulate.asked)
    refined(situation, refinement)
    assert len(simulate.asked) == first
    refined(seen(config=SPACE[20]), refinement)  # another configuration is in force: the job is the same
    assert sum(simulate.asked[first:]) <= 3  # with each of the twins
    refined(seen(Conditions.uniform(3, 2, 1.8e8, 1e-4, 1e-4)), refinement)
    assert sum(simulate.asked[first:]) > 10


def test_steps_that_the_twin_cannot_explain_make_a_new_one_after_a_while() -> None:
    simulate = Counting()
    refinement = Refinement(simulate)
    refined(seen(), refinement)
    before = len(simulate.asked)
    slower = replace(seen(), step_seconds=1.3 * (seen().step_seconds or 0))
    for _ in range(4):
        refined(slower, refinement)
        assert len(simulate.asked) == before
    refined(slower, refinement)
    assert len(simulate.asked) > before


def test_what_takes_too_long_to_simulate_is_left_to_the_inner_one_less_its_error() -> None:
    profile = load("vgg16").scaled(0.2)
    conditions = Conditions.uniform(8, 8, 1.25e9, 1e-4, 2e-5)
    simulated = simulate_compiled(profile, conditions, START, steps=2)
    situation = situation_of(profile, conditions, START, simulated, np.random.default_rng(1))
    small = CommConfig(partition_bytes=64 * KIB, credit_bytes=4 * MIB)
    space = [START, small, CommConfig(partition_bytes=MIB, credit_bytes=8 * MIB)]
    prediction = Refinement().refine(situation, space, unsure(situation, space, gain=0.5))
    assert prediction.spread[1] >= 0.3
    assert prediction.log_speedup[1] < 0.3
    assert prediction.spread[2] < 0.05


def test_a_job_that_tells_no_passes_has_twins_too() -> None:
    blind = replace(seen(), forward_seconds=None, backward_seconds=None, tensor_seconds=(), workers=(HostView(),) * 3)
    prediction = refined(blind)
    assert regret(prediction) < 0.03
    assert prediction.spread[prediction.log_speedup.argmax()] < 0.1


def test_steps_that_only_communicate_gain_by_large_credit_only_what_a_simulation_shows() -> None:
    idle = PROFILE.scaled(0.0)
    conditions = Conditions.uniform(2, 2, 1.25e8, 1e-4, 2e-4)
    simulated = simulate_compiled(idle, conditions, START)
    situation = situation_of(idle, conditions, START, simulated, np.random.default_rng(1))
    blind = replace(situation, forward_seconds=None, backward_seconds=None, tensor_seconds=())
    blind = replace(blind, step_seconds=1.07 * (blind.step_seconds or 0))
    optimistic = unsure(blind, SPACE, gain=0.12)._replace(spread=0.1 * np.ones(len(SPACE)))
    prediction = Refinement().refine(blind, SPACE, optimistic)
    true = np.array([simulate_compiled(idle, conditions, config).step_seconds for config in SPACE])
    gains = np.log(simulated.step_seconds / true)
    large = [number for number, config in enumerate(SPACE) if config.credit_bytes >= 32 * MIB]
    best = max(large, key=lambda number: prediction.log_speedup[number])
    assert prediction.log_speedup[best] < gains[best] + 0.02


def test_where_too_little_is_known_the_inner_one_answers() -> None:
    simulate = Counting()
    situation = replace(seen(), tensor_bytes=(), model_bytes=0)
    prediction = Refinement(simulate).refine(situation, SPACE, unsure(situation, SPACE, gain=0.1))
    assert prediction.log_speedup[0] == 0.1
    assert simulate.asked == []


def jumping(refinement: Refinement, number: int) -> None:
    refined(seen(Conditions.uniform(3, 2, (2.5e8, 1.25e8)[number % 2], 1e-4, 1e-4)), refinement)


def test_where_estimates_jump_all_the_time_twins_are_made_within_an_allowance() -> None:
    simulate = Counting()
    refinement = Refinement(simulate)
    made = []
    for number in range(140):
        before = sum(simulate.asked)
        jumping(refinement, number)
        if sum(simulate.asked) > before:
            made.append(number)
    assert made[:4] == [0, 1, 2, 3]
    assert len(made) == 4 + 140 // 32


def test_a_job_that_is_not_known_yet_uses_up_no_allowance() -> None:
    refinement = Refinement()
    unknown = replace(seen(), bandwidth_bytes_per_second=None)
    for _ in range(10):
        refined(unknown, refinement)
    assert refined(seen(), refinement).spread.max() < 0.1


def test_until_it_is_made_anew_a_twin_is_doubted_as_far_as_conditions_have_moved() -> None:
    def doubt(rate: float) -> float:
        refinement = Refinement()
        for number in range(4):
            jumping(refinement, number)
        prediction = refined(seen(Conditions.uniform(3, 2, rate, 1e-4, 1e-4)), refinement)
        return float(prediction.spread.max())

    assert 1.5 * doubt(1.25e8) < doubt(1.45e8) < doubt(1.6e8) < 0.29
    assert doubt(1e9) == pytest.approx(0.3)  # nobody asks it any more


def test_verdicts_and_what_an_earlier_run_has_learned_cost_no_simulation() -> None:
    simulate = Counting()
    knowledge = Knowledge(RulePredictor(), SPACE, Refinement(simulate))
    sample = Sample(seen(), SPACE[0], -0.2, 0.01)
    knowledge.learn(sample, predicted=0.1, spread=0.05)
    knowledge.restore([sample] * 3)
    assert simulate.asked == []
    assert knowledge.belief(seen(), StepTime(1.0, 0.01)).mean.shape == (len(SPACE),)
    assert simulate.asked != []


def test_twins_are_not_fitted_to_steps_of_before_a_change() -> None:
    """A straggler has recovered, which the estimates over all hosts do not show."""
    refinement = Refinement()
    slow = replace(seen(), step_seconds=1.5 * (seen().step_seconds or 0))
    refined(slow, refinement)
    other = seen(config=SPACE[20])
    for forgets in (False, True):
        if forgets:
            refinement.forget()
        for _ in range(OFF_PREDICTIONS):
            prediction = refined(other, refinement)
        doubt = prediction.spread[prediction.spread > 0].min()
        assert (doubt < 0.03) == forgets


def test_slow_hosts_are_in_the_twin() -> None:
    hosts = tuple(
        Host(send_bytes_per_second=rate, receive_bytes_per_second=rate, overhead_seconds=1e-4)
        for rate in (1.25e9, 1.25e9, 6e7)
    )
    conditions = Conditions(workers=hosts, servers=hosts[:2], latency_seconds=1e-4)
    assert regret(refined(seen(conditions)), conditions) < 0.005
