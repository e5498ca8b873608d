"""The player of traces, the suite of traces, and the evaluation over it."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Optional, Sequence

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from ps.config import KIB, MIB, CommConfig, Role
from ps.stats import Observation
from tuner import thinking
from tuner.autobyte import AutoByteTuner
from tuner.command import tune
from tuner.conditions import Conditions
from tuner.evaluation import Case, evaluate
from tuner.interface import Proposal, Tuner
from tuner.profiles import ModelProfile, TensorProfile, load
from tuner.report import summary
from tuner.simulator import Simulated
from tuner.static import StaticTuner
from tuner.suite import SUITE, balanced, build
from tuner.thinking import Thinking
from tuner.trace import Phase, StepTimes, Trace, play
from tuner.twin import Twin

pytestmark = pytest.mark.timeout(60)

START = CommConfig()
FASTER = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)
PROFILE = ModelProfile("two", (TensorProfile("a", 8_000_000, 0.01, 0.02), TensorProfile("b", 4_000_000, 0.01, 0.02)))
FAST = Conditions.uniform(2, 1, 1.25e9, 50e-6, 100e-6)
SLOW = Conditions.uniform(2, 1, 0.3125e9, 50e-6, 400e-6)


class Table(StepTimes):
    """Step times by a formula instead of the simulator."""

    def __init__(self, seconds: Callable[[Conditions, CommConfig], float]) -> None:
        super().__init__(PROFILE)
        self.seconds = seconds

    def of(self, conditions: Conditions, config: CommConfig) -> Simulated:
        return Simulated(
            step_seconds=self.seconds(conditions, config),
            worker_step_seconds=(),
            first_tensor_seconds=0.01,
            forward_seconds=0.02,
            backward_seconds=0.04,
            queue_wait_seconds=0.005,
            credit_stall_seconds=0.0,
            ack_seconds=0.001,
            messages=24,
            partitions=24,
            thread_seconds=0.01,
            events=100,
        )


class Scripted(Tuner):
    """Proposes at given times, and remembers what it was shown."""

    def __init__(self, script: Optional[dict[float, CommConfig]] = None) -> None:
        self.script = script or {}
        self.shown: list[Sequence[Observation]] = []

    def observe(self, observations: Sequence[Observation]) -> None:
        self.shown.append(observations)

    def propose(self, now: float) -> Optional[Proposal]:
        config = self.script.get(now)
        return None if config is None else Proposal(config=config, reason="told to", predicted_speedup=2.0)


def trace(*phases: tuple[Conditions, int], noise: float = 0.0, spread: float = 0.0) -> Trace:
    made = tuple(Phase(conditions, steps) for conditions, steps in phases)
    return Trace(name="a trace", phases=made, step_noise=noise, estimate_spread=spread)


def halves(conditions: Conditions, config: CommConfig) -> float:
    """A step takes 1/8 s under the start's configuration and half of it under all others; twice as much where slow."""
    return (0.125 if config.partition_bytes == START.partition_bytes else 0.0625) * (1 if conditions == FAST else 2)


# --------------------------------------------------------------------------------------------- player


def test_every_step_takes_what_its_conditions_and_configuration_say() -> None:
    played = play(StaticTuner(), trace((FAST, 30), (SLOW, 20)), PROFILE, START, 1, Table(halves))
    assert played.step_seconds.tolist() == [0.125] * 30 + [0.25] * 20
    assert played.phases.tolist() == [0] * 30 + [1] * 20
    assert played.total_seconds == pytest.approx(8.75)
    assert (played.configs, played.decisions) == ((START,), ())


def test_a_proposal_is_in_force_a_moment_later_and_what_it_brought_is_measured() -> None:
    tuner = Scripted({5.0: FASTER})
    played = play(tuner, trace((FAST, 90)), PROFILE, START, 1, Table(halves))
    (decision,) = played.decisions
    assert (decision.seconds, decision.step, decision.epoch) == (5.0, 41, 1)
    assert decision.predicted_speedup == 2.0
    assert decision.measured_speedup == pytest.approx(2.0)
    assert played.epochs.tolist() == [0] * 41 + [1] * 49
    assert played.configs == (START, replace(FASTER, epoch=1))


def test_what_the_tuner_has_simulated_meanwhile_delays_what_it_proposes() -> None:
    class Slow(Thinking):
        def take(self) -> float:
            return 0.3

    tuner = Scripted({5.0: FASTER})
    played = play(tuner, trace((FAST, 90)), PROFILE, START, 1, Table(halves), thinking=Slow())
    assert played.decisions[0].step == 43


def test_a_simulation_takes_as_long_as_it_has_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "simulated_seconds", lambda twin, configs, quick: [0.1] * len(configs))
    made, twin = Thinking(), Twin(PROFILE, FAST)
    assert made.simulate(twin, [CommConfig(partition_bytes=4_000_000)] * 5, False) == [0.1] * 5
    assert made.take() == pytest.approx(5 * 3 * 2 * 3 * thinking.PARTITION_SECONDS)
    assert made.take() == 0.0


def test_windows_without_the_steps_around_a_switch_are_what_a_tuner_sees() -> None:
    tuner = Scripted({5.0: FASTER})
    play(tuner, trace((FAST, 90)), PROFILE, START, 1, Table(halves))
    seen = [(shown[-2].epoch, shown[-2].steps, shown[-2].step_seconds) for shown in tuner.shown]
    assert [one.role for one in tuner.shown[0]][-3:] == [Role.SERVER, Role.WORKER, Role.WORKER]
    assert seen[:8] == [(0, 3, 0.125)] * 8  # a job that begins is of interest
    assert seen[8:10] == [(0, 7, 0.125), (0, 8, 0.125)]  # the eighth ends with the window
    assert seen[10:18] == [(1, 3, 0.0625)] * 8
    assert seen[18:] == [(1, 15, 0.0625)]


def test_a_step_that_takes_many_windows_is_reported_as_none() -> None:
    tuner = Scripted()
    play(tuner, trace((FAST, 2)), PROFILE, START, 1, Table(lambda conditions, config: 2.5))
    assert [shown[-1].steps for shown in tuner.shown] == [0, 0, 1, 0, 0]


def test_steps_that_have_left_their_band_are_told_at_once_and_alone() -> None:
    def seconds(conditions: Conditions, config: CommConfig) -> float:
        return 0.125 if conditions == FAST else 0.1875

    tuner = Scripted()
    play(tuner, trace((FAST, 42), (SLOW, 30)), PROFILE, START, 1, Table(seconds))
    seen = [(shown[-1].steps, shown[-1].step_seconds) for shown in tuner.shown]
    assert seen[9:12] == [(8, 0.125), (2, 0.1875), (2, 0.1875)]  # the second as an estimate has followed


def test_estimates_follow_a_change_as_soon_as_enough_traffic_has_shown_it() -> None:
    tuner = Scripted()
    played = play(tuner, trace((FAST, 41), (SLOW, 30)), PROFILE, START, 1, Table(halves))
    changed_at = float(played.step_seconds[:41].sum())
    seen = [(shown[-1].overhead_seconds, shown[-1].bandwidth_bytes_per_second) for shown in tuner.shown]
    known = [(cost.value, rate.value) for cost, rate in seen if cost is not None and rate is not None]
    assert known[0] == pytest.approx((100e-6, 1.25e9))
    assert known[-1] == pytest.approx((400e-6, 0.3125e9))
    assert [one == pytest.approx(known[0]) or one == pytest.approx(known[-1]) for one in known].count(False) <= 2
    assert changed_at == pytest.approx(5.125)


def test_a_step_far_too_long_is_told_before_it_ends() -> None:
    def seconds(conditions: Conditions, config: CommConfig) -> float:
        return 0.125 if conditions == FAST else 0.9

    tuner = Scripted()
    play(tuner, trace((FAST, 45), (SLOW, 5)), PROFILE, START, 1, Table(seconds))
    overdue = [shown[-1].overdue_seconds for shown in tuner.shown if shown[-1].overdue_seconds]
    assert overdue == [pytest.approx(0.25)]


def test_the_same_seed_gives_the_same_steps_whatever_the_tuner_does() -> None:
    noisy = trace((FAST, 60), noise=0.05)
    one = play(StaticTuner(), noisy, PROFILE, START, 1, Table(halves)).step_seconds
    same = play(StaticTuner(), noisy, PROFILE, START, 1, Table(halves)).step_seconds
    other = play(StaticTuner(), noisy, PROFILE, START, 2, Table(halves)).step_seconds
    switched = play(Scripted({5.0: FASTER}), noisy, PROFILE, START, 1, Table(halves)).step_seconds
    assert one.tolist() == same.tolist() != other.tolist()
    assert np.all((switched == one) | (switched == one / 2))


def test_a_timed_trace_lasts_as_long_whatever_a_step_takes() -> None:
    timed = trace((FAST, 30), (SLOW, 20)).timed([0.125, 0.25])
    started_with = play(StaticTuner(), timed, PROFILE, START, 1, Table(halves))
    twice_as_fast = play(StaticTuner(), timed, PROFILE, FASTER, 1, Table(halves))
    assert abs(len(started_with.step_seconds) - 50) <= 1  # the last step of a phase ends after it
    assert abs(len(twice_as_fast.step_seconds) - 100) <= 2


def test_phases_of_fast_steps_are_made_to_last() -> None:
    assert [phase.steps for phase in trace((FAST, 30), (SLOW, 10)).lasting(0.1, 20.0).phases] == [300, 100]
    assert [phase.steps for phase in trace((FAST, 30), (SLOW, 10)).lasting(2.0, 20.0).phases] == [30, 10]


def test_autobyte_follows_a_trace_of_the_real_simulator() -> None:
    conditions = Conditions.uniform(2, 2, 0.3125e9, 50e-6, 2e-3)
    model = balanced(load("mobilenet1_0"), conditions)
    times = StepTimes(model)
    tiny = CommConfig(partition_bytes=64 * KIB, credit_bytes=256 * KIB)
    played = play(AutoByteTuner(tiny), trace((conditions, 150), noise=0.01), model, tiny, 1, times)
    assert times.of(conditions, played.configs[-1]).step_seconds < 0.8 * times.of(conditions, tiny).step_seconds


# ---------------------------------------------------------------------------------------------- suite


@pytest.mark.parametrize("name", sorted(SUITE))
def test_a_trace_of_the_suite_depends_on_its_name_size_and_seed(name: str) -> None:
    made = build(name, 4, 2, seed=3)
    assert made == build(name, 4, 2, seed=3)
    assert made.name == name
    assert {(phase.conditions.num_workers, phase.conditions.num_servers) for phase in made.phases} == {(4, 2)}
    assert made.steps >= 400


def test_balanced_computation_takes_as_long_as_the_bytes_on_the_slowest_wire() -> None:
    made = balanced(load("resnet50_v1"), Conditions.uniform(4, 2, 1.25e9, 50e-6, 50e-6))
    assert made.forward_seconds + made.backward_seconds == pytest.approx(2 * made.model_bytes / 1.25e9)


# ----------------------------------------------------------------------------------------- evaluation


def test_a_case_compares_autobyte_with_all_that_it_has_to_beat() -> None:
    row = evaluate(Case("steady", "mobilenet0_25", 2, 1), AutoByteTuner).row
    assert (
        set(row.seconds)
        == set(row.steps)
        == {
            "autobyte",
            "rule",
            "bayesian kept",
            "hindsight static",
            "phase oracle",
            "default",
            "4 MB / 16 MB",
            "layer-wise FIFO",
        }
    )
    best = row.seconds["hindsight static"]
    assert best == row.seconds["phase oracle"] <= min(row.seconds["default"], row.seconds["bayesian kept"])
    assert row.gain("phase oracle") <= 0.001
    assert row.gain_in_time("default") == pytest.approx(row.gain("default"), abs=0.02)
    assert (len(row.excess), len(row.converge_steps), len(row.converge_windows)) == (1, 1, 1)
    assert row.worst_speed > 0.8
    assert summary([row])[0] == "cases: 1, 1 phases"


def test_the_command_plays_draws_and_does_not_play_again_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["evaluate", "--trace", "steady", "--model", "mobilenet0_25", "--size", "2x1", "--json", str(file)]
    first = CliRunner().invoke(tune, [*arguments, "--plots", str(tmp_path / "plots")])
    assert first.exit_code == 0, first.output
    assert "gain over the best static one in hindsight: median" in first.output
    assert (tmp_path / "plots" / "steady-mobilenet0_25-2x1-0.png").stat().st_size > 1000
    content = file.read_bytes()
    assert CliRunner().invoke(tune, arguments).exit_code == 0
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--size", "2"], "'2': expected workers x servers, such as 4x2"),
        (["--model", "resnet"], "there is no model 'resnet'; there are alexnet, bert_base,"),
        (["--trace", "storm"], "'storm' is not one of"),
    ],
)
def test_what_makes_no_sense_is_named(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(tune, ["evaluate", *arguments])
    assert result.exit_code == 2
    assert text in result.output


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"other": 1}\n')
    result = CliRunner().invoke(tune, ["evaluate", "--json", str(tmp_path / "rows.jsonl")])
    assert result.exit_code == 1
    assert "was not written by this command" in result.output
