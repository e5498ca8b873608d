"""Hosting a tuner: whatever it does, the job has a valid configuration, and every decision is told."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import pytest
from msgspec.structs import force_setattr, replace

from ps.config import KIB, MIB, CommConfig, Role
from ps.stats import Estimate, LayerGroup, LinkEstimate, Observation
from scheduler.events import Decided, Event, Kept, Measured, Refused, Retired, Unconfirmed
from scheduler.tuning import Tuning
from tests.tuner.cluster import Cluster
from tuner.bayesian import BayesianTuner
from tuner.interface import Proposal, Tuner
from tuner.rule import Network, RuleTuner
from tuner.static import StaticTuner

pytestmark = pytest.mark.timeout(20)

START = CommConfig()
FASTER = CommConfig(partition_bytes=1 * MIB, credit_bytes=8 * MIB)


class Scripted(Tuner):
    """Proposes what it is told to, or raises it."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.seen: list[Observation] = []
        self.asked = 0

    def observe(self, observations: Sequence[Observation]) -> None:
        self.seen.extend(observations)

    def propose(self, now: float) -> Optional[Proposal]:
        self.asked += 1
        answer = self.script.pop(0) if self.script else None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, CommConfig):
            return Proposal(config=answer, reason="told to", predicted_speedup=1.5)
        return answer  # type: ignore[no-any-return]  # some of it is wrong on purpose


class Host:
    """A tuning with its events, for two workers and one server."""

    def __init__(self, tuner: Tuner) -> None:
        self.events: list[Event] = []
        self.tuning = Tuning(tuner, START, num_workers=2, num_servers=1, events=self.events.append)
        self.now = 100.0

    def step(self) -> Optional[CommConfig]:
        """Two seconds pass."""
        self.now += 2.0
        return self.tuning.step(self.now)

    def confirm(self) -> None:
        for role, rank in ((Role.WORKER, 0), (Role.WORKER, 1), (Role.SERVER, 0)):
            self.tuning.confirmed(role, rank, self.tuning.config.epoch)

    def train(self, step_seconds: float, windows: int, steps: int = 10) -> None:
        for _ in range(windows):
            self.now += 1.0
            for rank in (0, 1):
                self.tuning.observe(window(rank, self.tuning.config.epoch, step_seconds, steps=steps), self.now)

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def window(rank: int, epoch: int, step_seconds: Optional[float] = 0.1, **fields: Any) -> Observation:
    known = {"role": Role.WORKER, "num_workers": 2, "num_servers": 1, "window_seconds": 1.0, "steps": 10}
    return Observation(rank=rank, epoch=epoch, step_seconds=step_seconds, **{**known, **fields})


def forced(**fields: Any) -> CommConfig:
    """A configuration that its constructor would not have made."""
    config = CommConfig()
    for name, value in fields.items():
        force_setattr(config, name, value)
    return config


# ------------------------------------------------------------------------------------------ decisions


def test_a_proposal_is_broadcast_with_the_next_epoch_and_told_with_its_reason() -> None:
    host = Host(Scripted(FASTER))
    assert host.step() == replace(FASTER, epoch=1)
    assert host.tuning.config == replace(FASTER, epoch=1)
    assert host.events == [
        Decided(seconds=0.0, epoch=0, config=START, reason="what the job starts with"),
        Decided(seconds=0.0, epoch=1, config=replace(FASTER, epoch=1), reason="told to", predicted_speedup=1.5),
    ]


def test_epochs_count_up_whatever_the_tuner_says() -> None:
    host = Host(Scripted(replace(FASTER, epoch=77), replace(START, epoch=5)))
    assert [config.epoch for config in (host.step(), host.confirm(), host.step()) if config is not None] == [1, 2]


def test_the_present_configuration_proposed_again_is_no_switch() -> None:
    host = Host(Scripted(replace(START, epoch=9)))
    assert host.step() is None
    assert host.tuning.config.epoch == 0
    assert host.told(Kept) == [Kept(seconds=0.0, epoch=0, reason="told to")]


def test_the_speedup_is_told_when_enough_steps_have_ended() -> None:
    host = Host(Scripted(None, FASTER))
    host.step()
    host.train(step_seconds=0.3, windows=5)
    host.step()
    host.confirm()
    host.train(step_seconds=0.2, windows=1)
    host.step()
    assert host.told(Measured) == []
    host.train(step_seconds=0.2, windows=1)
    host.step()
    host.step()
    (measured,) = host.told(Measured)
    assert (measured.epoch, measured.speedup, measured.steps) == (1, pytest.approx(1.5), 20)
    assert (measured.step_seconds_before, measured.step_seconds) == (0.3, 0.2)


# --------------------------------------------------------------------------------- what a tuner may do


@pytest.mark.parametrize(
    ("proposal", "reason"),
    [
        (forced(partition_bytes=float("nan")), "partition_bytes must be an integer from 1 to 1073741824, not nan"),
        (forced(credit_bytes=-1), "credit_bytes must be an integer from 1 to 68719476736, not -1"),
        (forced(credit_bytes=10**12), "credit_bytes must be an integer from 1 to 68719476736, not 1000000000000"),
        (forced(partition_bytes="1"), "partition_bytes must be an integer from 1 to 1073741824, not '1'"),
        ({"partition_bytes": 1}, "expected a Proposal with a CommConfig, not {'partition_bytes': 1}"),
        (3, "expected a Proposal with a CommConfig, not 3"),
        (ValueError("cannot fit"), "cannot fit"),
        (
            Proposal(config=FASTER, reason="", predicted_speedup=float("inf")),
            "predicted_speedup must be a finite number or None, not inf",
        ),
    ],
)
def test_a_bad_proposal_is_refused_and_told_and_nothing_changes(proposal: Any, reason: str) -> None:
    host = Host(Scripted(proposal, FASTER))
    assert host.step() is None
    assert host.tuning.config == START
    assert host.told(Refused) == [Refused(seconds=0.0, epoch=0, reason=reason)]
    assert host.step() == replace(FASTER, epoch=1)  # one bad proposal does not retire it


def test_a_tuner_that_raises_is_retired_and_the_last_configuration_stays() -> None:
    tuner = Scripted(FASTER, KeyError("x"), START)
    host = Host(tuner)
    host.step()
    host.confirm()
    assert [host.step() for _ in range(5)] == [None] * 5
    assert host.tuning.config == replace(FASTER, epoch=1)
    assert host.told(Retired) == [Retired(seconds=2.0, epoch=1, reason="KeyError: 'x'")]
    assert tuner.asked == 2


def test_a_tuner_that_proposes_nothing_but_nonsense_is_retired() -> None:
    tuner = Scripted(*[forced(credit_bytes=-1)] * 30)
    host = Host(tuner)
    assert [host.step() for _ in range(30)] == [None] * 30
    assert (len(host.told(Refused)), len(host.told(Retired)), tuner.asked) == (10, 1, 10)


def test_a_tuner_is_asked_twice_a_second_where_nodes_are_silent() -> None:
    tuner = Scripted()
    host = Host(tuner)
    for tenth in range(21):
        host.tuning.step(100.0 + 0.1 * tenth)
    assert tuner.asked == 5


def test_a_tuner_is_asked_as_soon_as_all_workers_have_reported() -> None:
    tuner = Scripted()
    host = Host(tuner)
    host.tuning.step(100.0)
    for turn, rank in enumerate((0, 0, 1, 1, 0)):
        host.tuning.observe(window(rank, epoch=0), 100.01 + 0.01 * turn)
        host.tuning.step(100.01 + 0.01 * turn)
    assert tuner.asked == 3
    assert [seen.rank for seen in tuner.seen] == [0, 0, 1, 1, 0]


def test_a_tuner_is_left_alone_for_a_moment_after_a_refusal() -> None:
    tuner = Scripted(forced(credit_bytes=-1))
    host = Host(tuner)
    for tenth in range(8):
        for rank in (0, 1):
            host.tuning.observe(window(rank, epoch=0), 100.0 + 0.1 * tenth)
        host.tuning.step(100.0 + 0.1 * tenth)
    assert tuner.asked == 4  # the fifth time is the first after half a second


# ---------------------------------------------------------------------------------------- observations


def test_a_tuner_sees_only_what_was_taken_under_the_configuration_in_force() -> None:
    tuner = Scripted(None, FASTER)
    host = Host(tuner)
    host.tuning.observe(window(0, epoch=0), 100.0)
    host.step()
    assert [seen.epoch for seen in tuner.seen] == [0]
    host.step()
    host.confirm()
    host.tuning.observe(window(0, epoch=0), host.now)  # late
    host.tuning.observe(window(1, epoch=1), host.now)
    host.tuning.observe(window(1, epoch=2), host.now)  # impossible
    host.step()
    assert [seen.epoch for seen in tuner.seen] == [0, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": 2},
        {"rank": -1},
        {"role": Role.SERVER, "rank": 1},
        {"role": Role.SCHEDULER},
        {"num_workers": 65536},
        {"step_seconds": float("nan")},
        {"step_seconds": -1.0},
        {"cpu_seconds": float("inf")},
        {"bandwidth_bytes_per_second": Estimate(0.0, 0.1, 5)},
        {"bandwidth_bytes_per_second": Estimate(float("nan"), 0.1, 5)},
        {"overhead_seconds": Estimate(1e-4, float("inf"), 5)},
        {"latency_seconds": Estimate(1e-4, 0.1, -5)},
        {"layers": (LayerGroup(1, 100, 10, 20), LayerGroup(1, 100, -10, 20))},
        {"layers": (LayerGroup(1, -100, 10, 20),)},
        {"links": (LinkEstimate(1),)},
        {"links": (LinkEstimate(-1),)},
        {"links": (LinkEstimate(0, None, Estimate(float("nan"), 0.1, 5)),)},
        {"links": (LinkEstimate(0, None, None, Estimate(-1.0, 0.1, 5)),)},
        {"role": Role.SERVER, "links": (LinkEstimate(2),)},
        {"tensor_bytes": (4096, -1)},
        {"layers": (LayerGroup(1, 4096, 10, 10), LayerGroup(1, 4096, 10, -10))},
    ],
)
def test_an_unsound_observation_is_dropped(fields: dict[str, Any]) -> None:
    tuner = Scripted()
    host = Host(tuner)
    host.tuning.observe(window(**{"rank": 0, "epoch": 0, **fields}), 100.0)
    host.step()
    assert (tuner.seen, host.tuning.dropped) == ([], 1)


def test_an_observation_with_all_that_can_be_known_is_sound() -> None:
    host = Host(Scripted())
    some = Estimate(1e8, 0.1, 5)
    layers = (LayerGroup(3, 100, 10, 20), LayerGroup(1, 100, 0, 0))
    host.tuning.observe(window(1, epoch=0, layers=layers, links=(LinkEstimate(0, some, None, some),)), 100.0)
    host.tuning.observe(
        window(0, epoch=0, role=Role.SERVER, links=(LinkEstimate(1, some),), sum_bytes_per_second=some), 100.0
    )
    assert host.tuning.dropped == 0


def test_the_first_dropped_observation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(Scripted())
    for _ in range(3):
        host.tuning.observe(window(1, epoch=0, cpu_seconds=-0.5), 100.0)
    assert caplog.messages == [
        "dropped an observation, and will drop others silently: cpu_seconds of worker 1 cannot be -0.5"
    ]


def test_observations_do_not_pile_up_while_the_tuner_is_not_asked() -> None:
    tuner = Scripted(FASTER)
    host = Host(tuner)
    host.step()  # nobody confirms
    host.train(step_seconds=0.1, windows=1000)
    host.step()
    host.step()
    assert len(tuner.seen) == 48


# --------------------------------------------------------------------------------------- confirmations


def test_the_next_proposal_waits_for_all_confirmations() -> None:
    tuner = Scripted(FASTER, START)
    host = Host(tuner)
    host.step()
    host.tuning.confirmed(Role.WORKER, 0, epoch=1)
    host.tuning.confirmed(Role.WORKER, 1, epoch=0)  # an old one
    host.tuning.confirmed(Role.SERVER, 0, epoch=1)
    assert host.step() is None
    assert tuner.asked == 1
    host.tuning.confirmed(Role.WORKER, 1, epoch=1)
    assert host.step() == replace(START, epoch=2)


def test_who_has_not_confirmed_is_told_once_and_not_waited_for() -> None:
    tuner = Scripted(FASTER, None, None, START)
    host = Host(tuner)
    host.step()
    host.tuning.confirmed(Role.WORKER, 0, epoch=1)
    made = [host.step() for _ in range(6)]
    assert host.told(Unconfirmed) == [
        Unconfirmed(seconds=6.0, epoch=1, nodes=["server 0", "worker 1"], waited_seconds=6.0)
    ]
    assert made == [None, None, None, None, replace(START, epoch=2), None]


def test_a_node_that_is_gone_is_not_waited_for() -> None:
    host = Host(Scripted(FASTER, START))
    host.tuning.gone(Role.WORKER, 1)
    host.step()
    host.tuning.confirmed(Role.WORKER, 0, epoch=1)
    host.tuning.gone(Role.SERVER, 0)
    assert host.step() == replace(START, epoch=2)
    assert host.told(Unconfirmed) == []


# --------------------------------------------------------------------------------------- real tuners


def play(tuner: Tuner, cluster: Cluster, windows: int) -> Host:
    host = Host(tuner)
    for _ in range(windows):
        for seen in cluster.window(host.tuning.config):
            host.tuning.observe(replace(seen, epoch=host.tuning.config.epoch), host.now)
        host.step()
        host.confirm()
    return host


def test_static_is_told_once() -> None:
    host = play(StaticTuner(), Cluster(Network(125e6, 1e-4, 1e-4)), windows=20)
    assert [type(event) for event in host.events] == [Decided]


def test_rule_goes_up_and_tells_what_it_brought() -> None:
    cluster = Cluster(Network(25 * 125e6, 100e-6, 300e-6), compute_seconds=0.05)
    host = play(RuleTuner(START), cluster, windows=40)
    assert [type(event) for event in host.events] == [Decided, Decided, Measured]
    assert host.events[-1].speedup > 1.1  # type: ignore[union-attr]
    assert 1 * MIB < host.tuning.config.partition_bytes < 4 * MIB


def test_bayesian_tells_every_trial_and_where_it_was_frozen() -> None:
    cluster = Cluster(Network(25 * 125e6, 100e-6, 300e-6), compute_seconds=0.05)
    host = play(BayesianTuner(START, trials=5), cluster, windows=80)
    decided = [event for event in host.events if isinstance(event, (Decided, Kept))]
    assert [event.reason.split(":")[0] for event in decided[1:4]] == [f"bayesian, trial {n} of 5" for n in (2, 3, 4)]
    assert decided[-1].reason.startswith("bayesian, frozen: ")
    assert cluster.step_seconds(host.tuning.config) < cluster.step_seconds(START)
    assert host.tuning.config.partition_bytes >= 64 * KIB
