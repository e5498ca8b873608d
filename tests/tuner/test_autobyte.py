"""The controller, rule by rule."""

from __future__ import annotations

import math
from typing import Mapping, Sequence

import pytest
from msgspec.structs import replace

from ps.config import KIB, MIB, CommConfig
from tests.tuner.job import Believer, Host, Job, Seconds
from tuner.autobyte import AutoByteTuner
from tuner.predictor import BlendedPredictor, Prediction, RulePredictor
from tuner.situation import Situation
from tuner.space import UNSLICED

pytestmark = pytest.mark.timeout(20)

START = CommConfig()  # P = 512 KiB, C = 4 MiB
LARGER = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)
LARGEST = CommConfig(partition_bytes=2 * MIB, credit_bytes=16 * MIB)
SMALLER = CommConfig(partition_bytes=256 * KIB, credit_bytes=4 * MIB)
SMALLEST = CommConfig(partition_bytes=64 * KIB, credit_bytes=4 * MIB)


def steps(special: Mapping[CommConfig, float], other: float = 0.2, start: float = 0.1) -> Seconds:
    """Return a step time: ``start`` at the start, ``special`` for some, ``other`` for all others."""
    return lambda config: {START: start, **special}.get(replace(config, epoch=0), other)


def host(job: Seconds, believed: Seconds, spread: float = 0.01, noise: float = 0.0) -> tuple[Host, Believer]:
    predictor = Believer(believed, spread)
    return Host(AutoByteTuner(START, predictor), Job(job, noise), START), predictor


# ----------------------------------------------------------------------------------------------- switch


def test_nothing_is_proposed_before_a_step_has_ended() -> None:
    truth = steps({LARGER: 0.08})
    made, _ = host(truth, truth)
    made.job.stuck = True
    assert made.run(30) == []


def test_what_is_probably_faster_is_put_in_force_with_what_is_expected() -> None:
    truth = steps({LARGER: 0.08})
    made, _ = host(truth, truth)
    (first,) = made.run(3)
    assert first.proposal.config == LARGER
    assert first.proposal.predicted_speedup == pytest.approx(1.25)
    assert first.proposal.reason == "gain +22.3% ± 1.0% expected"


def test_the_first_steps_of_a_job_are_like_no_others() -> None:
    truth = steps({LARGER: 0.05})
    made, _ = host(truth, truth)
    assert [told.window for told in made.run(3)] == [3]


def test_a_gain_that_is_small_beside_its_own_spread_is_none() -> None:
    truth = steps({LARGER: 0.096})
    made, _ = host(truth, truth, spread=0.15)
    assert made.run(3) == []


def test_ties_go_to_the_larger_configuration() -> None:
    truth = steps({LARGER: 0.08, LARGEST: 0.0802})
    made, _ = host(truth, truth)
    made.run(3)
    assert made.config == LARGEST


def test_smaller_partitions_have_to_be_worth_the_danger() -> None:
    """A gain of 1.2 % is not worth twice as many messages, 3 % is."""
    for seconds, expected in ((0.988, START), (0.97, SMALLER)):
        truth = steps({SMALLER: seconds / 10})
        made, _ = host(truth, truth)
        made.run(4)
        assert made.config == expected


def test_no_slicing_at_all_is_a_candidate() -> None:
    truth = steps({UNSLICED: 0.08})
    made, _ = host(truth, truth)
    made.run(3)
    assert made.config == UNSLICED


# ----------------------------------------------------------------------------------------------- verify


def test_the_verdict_says_what_was_measured_and_predicted_and_teaches_the_predictor() -> None:
    made, predictor = host(steps({LARGER: 0.085}), steps({LARGER: 0.09}))
    switched, verified = made.run(10)[:2]
    assert verified.proposal.config == LARGER
    assert verified.proposal.reason == "verified: speedup 1.176 measured, 1.111 predicted"
    (sample,) = predictor.samples
    assert (sample.candidate, sample.situation.config) == (LARGER, START)
    assert sample.log_speedup == pytest.approx(math.log(0.1 / 0.085))


def test_a_loss_is_taken_back_and_not_tried_again() -> None:
    made, _ = host(steps({LARGER: 0.105}), steps({LARGER: 0.09}))
    told = made.run(60)
    assert [one.proposal.config for one in told] == [LARGER, START]
    assert told[1].proposal.reason == "taken back: speedup 0.952 measured, 1.111 predicted"


def test_an_obvious_loss_ends_after_one_round() -> None:
    made, _ = host(steps({LARGER: 0.3}), steps({LARGER: 0.09}))
    told = made.run(20)
    assert [one.window for one in told] == [3, 4]
    assert told[1].proposal.config == START


def test_what_is_smaller_and_no_faster_is_taken_back() -> None:
    made, _ = host(steps({SMALLER: 0.1003}), steps({SMALLER: 0.09}))
    told = made.run(30)
    assert [one.proposal.config for one in told] == [SMALLER, START]
    assert told[1].proposal.reason.endswith("and smaller has to be faster")


def test_what_is_larger_and_no_slower_stays() -> None:
    made, _ = host(steps({LARGER: 0.1003}), steps({LARGER: 0.09}))
    made.run(30)
    assert made.config == LARGER


def test_a_trial_in_which_no_step_ends_is_taken_back() -> None:
    truth = steps({LARGER: 0.09})
    made, _ = host(truth, truth)
    made.run(3)
    made.job.stuck = True
    (told,) = made.run(15)
    assert told.proposal.config == START
    assert told.proposal.reason == "taken back: no step has ended for 10 s"


def test_a_predictor_that_always_lies_costs_little() -> None:
    """It promises 10 % from anywhere to any other configuration; everything but the start is 5 % slower."""
    made, predictor = host(steps({}, other=0.105), steps({}))
    predictor.seconds = lambda config: 0.1 if config == made.config else 0.09
    made.run(300)
    assert made.seconds_lost < 0.01 * 300
    assert made.job.seconds(made.config) == 0.1


def test_a_prediction_that_was_off_widens_what_is_believed_of_the_next() -> None:
    """After three switches that gained nothing of the 11 % predicted, the same promise moves nothing any more."""
    promised = [LARGER, LARGEST, UNSLICED]
    made, _ = host(steps({}, other=0.1), steps(dict.fromkeys(promised, 0.09)))
    made.run(200)
    trials = [told for told in made.told if told.proposal.reason.startswith("gain")]
    assert len(trials) <= 3


# ---------------------------------------------------------------------------------------------- explore


def test_what_may_be_better_is_explored_when_nothing_has_changed_for_a_while() -> None:
    made, _ = host(steps({LARGER: 0.095}, other=0.1), steps({LARGER: 0.099}, other=0.1), spread=0.03)
    made.run(100)
    assert made.told[0].proposal.reason.startswith("exploring; gain ")
    assert made.told[0].window >= 4
    assert made.job.seconds(made.config) == 0.095


def test_exploration_goes_down_one_power_of_two_at_most_and_never_where_much_can_be_lost() -> None:
    made, _ = host(steps({}, other=0.1), steps({}, other=0.1), spread=0.03)
    made.run(300)
    smallest = min(config.partition_bytes for config in made.history)
    assert smallest >= 256 * KIB
    risky, _ = host(steps({}, other=0.1), steps({}, other=0.1), spread=0.2)
    assert risky.run(300) == []


def test_trials_lose_about_a_hundredth_of_all_time_at_most() -> None:
    made, _ = host(steps({}, other=0.104), steps({}, other=0.1), spread=0.03, noise=0.01)
    made.run(300)
    assert made.seconds_lost < 0.02 * 300


# --------------------------------------------------------------------------------------------- re-open


def test_where_nothing_changes_a_search_comes_with_every_fourth_round_and_not_between_rounds() -> None:
    class Counting(Believer):
        asked = 0

        def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
            self.asked += 1
            return super().predict(situation, candidates)

    predictor = Counting(steps({}))
    made = Host(AutoByteTuner(START, predictor), Job(steps({})), START)
    made.run(20)
    before = predictor.asked
    made.run(40)
    assert predictor.asked - before == 10
    for _ in range(20):
        made.tuner.propose(60.5)
    assert predictor.asked - before == 10


def test_a_change_re_opens_the_search_and_is_named() -> None:
    truth = steps({})
    made, predictor = host(truth, truth)
    assert made.run(20) == []
    made.job.bandwidth /= 4
    made.job.seconds = predictor.seconds = steps({SMALLER: 0.15}, other=0.3, start=0.2)
    told = made.run(3)
    assert made.config == SMALLER
    assert told[0].window == 22  # down only when a second window has confirmed it
    assert told[0].proposal.reason == (
        "a step 200% of what it was, bandwidth 25% of what it was: gain +28.8% ± 1.0% expected"
    )


def test_what_lost_before_a_change_may_win_after_it() -> None:
    made, predictor = host(steps({LARGER: 0.105}), steps({LARGER: 0.09}))
    made.run(30)
    assert made.config == START
    made.job.overhead *= 3
    made.job.seconds = predictor.seconds = steps({LARGER: 0.12}, start=0.2)
    made.run(10)
    assert made.config == LARGER


def test_a_small_difference_is_no_change() -> None:
    truth = steps({})
    made, _ = host(truth, truth)
    made.run(10)
    made.job.seconds = steps({}, start=0.1015)
    assert made.run(50) == []


def test_steps_that_suddenly_take_much_longer_lead_back_to_the_start_before_estimates_follow() -> None:
    """The predictor knows nothing of it yet: it still believes in smaller partitions."""
    truth = steps({SMALLER: 0.08})
    made, _ = host(truth, truth)
    made.run(10)
    assert made.config == SMALLER
    made.job.seconds = steps({SMALLER: 0.4}, start=0.15)
    (told,) = made.run(1)
    assert told.proposal.config == START
    assert told.proposal.reason == "a step 500% of what it was: back to the start's before more is known"


@pytest.mark.parametrize("after, returns", [(0.13, True), (0.3, False)])
def test_what_was_in_force_before_a_retreat_comes_back_if_it_is_still_believed_to_be_better(
    after: float, returns: bool
) -> None:
    """Steps scatter so much that the same gain would not do for something that was never verified."""
    made, predictor = host(steps({SMALLER: 0.05}), steps({SMALLER: 0.05}), noise=0.08)
    made.run(16)
    assert made.config == SMALLER
    made.job.seconds = predictor.seconds = steps({SMALLER: after}, start=0.15)
    told = made.run(4)
    assert made.config == (SMALLER if returns else START)
    assert told[0].proposal.reason.endswith("back to the start's before more is known")
    assert any(each.proposal.reason.startswith("what was in force before; ") for each in told) == returns


def test_a_decision_that_takes_long_is_no_silence_of_its_trial() -> None:
    truth = steps({LARGER: 0.08})
    made, _ = host(truth, truth)
    made.run(3)
    assert made.config == LARGER
    made.windows += 60  # seconds later
    assert [each.proposal.reason for each in made.run(4)] == ["verified: speedup 1.250 measured, 1.250 predicted"]


def test_steps_that_take_longer_on_a_slower_link_are_no_reason_for_a_retreat() -> None:
    made, predictor = host(steps({SMALLER: 0.08}), steps({SMALLER: 0.08}))
    made.run(10)
    assert made.config == SMALLER
    made.job.bandwidth /= 2
    made.job.seconds = predictor.seconds = steps({SMALLER: 0.16}, start=0.2)
    made.run(10)
    assert set(made.history[-10:]) == {SMALLER}


def test_nothing_is_tried_on_the_word_of_a_round_that_may_be_partly_of_before_a_change() -> None:
    made, predictor = host(steps({}), steps({}))
    made.run(10)
    made.job.overhead *= 2
    made.job.seconds = predictor.seconds = steps({LARGER: 0.15}, start=0.2)
    assert made.run(1) == []
    told = made.run(3)
    assert (told[0].window, told[0].proposal.config) == (12, LARGER)
    assert told[1].proposal.reason == "verified: speedup 1.333 measured, 1.333 predicted"


def test_a_step_that_does_not_end_under_something_small_is_fled_from_at_once() -> None:
    made, predictor = host(steps({SMALLER: 0.08}), steps({SMALLER: 0.08}))
    made.run(15)
    assert made.config == SMALLER
    seen = [replace(each, steps=0, step_seconds=None, overdue_seconds=0.2) for each in made.job.window(SMALLER)]
    made.tuner.observe(seen)
    proposal = made.tuner.propose(15.1)
    assert proposal is not None and proposal.config == START
    made.config = START
    made.job.seconds = predictor.seconds = steps({SMALLER: 0.3}, start=0.15)
    made.run(10)
    assert made.config == START


def test_a_step_that_does_not_end_under_the_start_is_waited_for() -> None:
    made, _ = host(steps({}), steps({}))
    made.run(10)
    seen = [replace(each, steps=0, step_seconds=None, overdue_seconds=0.2) for each in made.job.window(START)]
    made.tuner.observe(seen)
    assert made.tuner.propose(10.1) is None


def test_a_trial_during_which_conditions_change_is_no_trial() -> None:
    """Steps take longer after the switch, but because the network has become slower: nothing is taken back."""
    made, predictor = host(steps({LARGER: 0.09}), steps({LARGER: 0.09}))
    made.run(4)
    assert made.config == LARGER
    made.job.bandwidth /= 3
    made.job.seconds = steps({LARGER: 0.3}, start=0.33)
    made.run(20)
    assert made.config == LARGER
    assert not predictor.samples


def test_after_a_change_what_is_in_force_is_checked_against_the_start() -> None:
    """The predictor believes that nothing has changed between the two; the start would take 25 % less."""
    made, predictor = host(steps({LARGER: 0.08}), steps({LARGER: 0.08}))
    made.run(10)
    assert made.config == LARGER
    made.job.overhead *= 1.6
    made.job.seconds = steps({LARGER: 0.2}, start=0.15, other=0.3)
    predictor.seconds = steps({LARGER: 0.1}, other=0.2)
    predictor.spread = 0.06
    told = made.run(10)
    assert told[0].proposal.config == START
    assert "against the start's; gain +0.0% ± " in told[0].proposal.reason
    assert made.config == START


def test_conditions_that_come_back_find_what_was_measured_under_them() -> None:
    """The predictor knows nothing; what was found in the first phase is put in force soon in the third."""
    quiet, busy = steps({LARGER: 0.08}, start=0.1), steps({LARGER: 0.3}, start=0.2, other=0.3)
    made, predictor = host(quiet, quiet)
    made.run(15)
    assert made.config == LARGER
    predictor.seconds, predictor.spread = steps({}, other=0.1), 0.03
    made.job.bandwidth, made.job.seconds = 0.3e9, busy
    made.run(15)
    assert made.config != LARGER
    made.job.bandwidth, made.job.seconds = 1.25e9, quiet
    made.run(6)
    assert made.config == LARGER


# ------------------------------------------------------------------------------------------------ unsure


def test_where_the_predictor_is_unsure_the_rule_decides() -> None:
    """Messages cost 2 ms: the closed form knows that small partitions are ruinous, whatever the predictor believes."""
    truth: Seconds = lambda config: 0.1 + 2e-3 * 100e6 / min(config.partition_bytes, 10 * MIB)  # noqa: E731
    predictor = BlendedPredictor(Believer(lambda config: 0.1, spread=1.0), RulePredictor())
    made = Host(AutoByteTuner(START, predictor), Job(truth), START)
    made.job.overhead = 2e-3
    made.run(20)
    assert made.config.partition_bytes >= 4 * MIB


def test_without_a_predictor_the_rule_predicts() -> None:
    tuner = AutoByteTuner(START)
    truth: Seconds = lambda config: 0.1 + 2e-3 * 100e6 / min(config.partition_bytes, 10 * MIB)  # noqa: E731
    made = Host(tuner, Job(truth), START)
    made.job.overhead = 2e-3
    made.run(20)
    assert made.config.partition_bytes >= 4 * MIB


def test_the_same_observations_make_the_same_decisions() -> None:
    def decisions() -> list[CommConfig]:
        truth = steps({LARGER: 0.095, LARGEST: 0.09}, other=0.1)
        made, _ = host(truth, steps({}, other=0.1), spread=0.03, noise=0.02)
        made.run(200)
        return made.history

    assert decisions() == decisions()


# --------------------------------------------------------------------------------------------- restart


def restarted(state: bytes, job: Seconds, believed: Seconds, spread: float = 0.01) -> tuple[Host, Believer]:
    made, predictor = host(job, believed, spread)
    made.tuner.restore(state)
    return made, predictor


def test_a_restarted_tuner_has_learned_and_tries_first_where_the_last_run_ended() -> None:
    truth = steps({LARGER: 0.08})
    before, taught = host(truth, truth)
    before.run(10)
    state = before.tuner.state()
    assert state is not None
    after, predictor = restarted(state, truth, steps({}, other=0.1), spread=0.02)
    assert predictor.samples == taught.samples
    assert after.run(3)[0].proposal.config == LARGER
    assert after.told[0].proposal.reason.startswith("where the last run of the job ended; gain ")


def test_where_the_last_run_ended_is_not_tried_against_better_knowledge() -> None:
    truth = steps({LARGER: 0.08})
    before, _ = host(truth, truth)
    before.run(10)
    state = before.tuner.state()
    assert state is not None
    slower = steps({LARGER: 0.15})
    after, _ = restarted(state, slower, slower)
    assert after.run(10) == []


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{}",
        b"nonsense",
        b'{"tuner":"rule","config":{},"samples":[]}',
        b'{"tuner":"autobyte","config":{"partition_bytes":-1},"samples":[]}',
        b'{"tuner":"autobyte","config":{},"samples":[],"more":1}',
        b'{"tuner":"autobyte","config":{},"samples":[[{"config":{},"num_workers":0,"num_servers":0,"model_bytes":5,'
        b'"overhead_seconds":[1,1,1,1],"bandwidth_bytes_per_second":[1,1,1,1]},{},0.1,0.1]]}',
    ],
)
def test_a_state_that_is_none_is_refused_and_nothing_is_taken_from_it(state: bytes) -> None:
    tuner = AutoByteTuner(START, RulePredictor())
    empty = tuner.state()
    with pytest.raises(ValueError, match="^no state of this tuner: "):
        tuner.restore(state)
    assert tuner.state() == empty
