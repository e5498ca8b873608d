"""A trace, which is how conditions change while a job trains, and a player that shows a tuner nothing but it.

:func:`play` hosts a tuner as the scheduler does: once per window nodes report what they saw, the tuner is asked, and
what it proposes is in force :data:`SWITCH_SECONDS` later, from the next step on. When windows end, and which steps they
tell, is the nodes' own :class:`~ps.counters.Counters`; estimates have errors, and follow the truth as late as those of
real nodes do (:class:`_Estimates`). A step takes what the compiled simulator says of the phase's conditions and the
configuration in force, times a noise that has the seed.

Switching itself costs nothing, and a step belongs to one phase and one configuration.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ps.config import CommConfig, Role
from ps.counters import Counters
from ps.estimate import HostEstimate
from ps.stats import Observation
from ps.traffic import LOOK_SECONDS
from tuner.conditions import Conditions, Host
from tuner.interface import Tuner
from tuner.observed import EstimateErrors, observations_of
from tuner.profiles import ModelProfile
from tuner.simulator import Simulated
from tuner.thinking import Thinking

__all__ = ["Decision", "Phase", "Played", "StepTimes", "Trace", "play"]

#: Nodes report this often.
WINDOW_SECONDS = 1.0
#: From the report of a node to the moment from which the next pushes have what follows from it, without the simulations
#: of the tuner: on loopback, with both cores in use, 0.01 to 0.05 s (docs/estimates.md).
SWITCH_SECONDS = 0.05
#: Estimates of bandwidth follow a change within so many steps, or after this time and a step; those of latency within
#: as many steps.
FOLLOW_STEPS = 4
FOLLOW_SECONDS = 0.25
#: The overhead follows after so many looks at the CPU time, the one included that the change falls into.
FOLLOW_LOOKS = 4
#: Estimates that change by more than this (of the logarithm) are told at once.
TOLD_CHANGE = 0.1
#: So many steps before a switch and as many after it tell what it brought.
COMPARED_STEPS = 20


class Phase(msgspec.Struct, frozen=True):
    """Conditions, for so many steps or, where ``seconds`` are given, until those have passed and the step has ended."""

    conditions: Conditions
    steps: int
    seconds: Optional[float] = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """How conditions change. All phases have the same number of workers and servers.

    Attributes
    ----------
    step_noise
        Relative spread of single steps.
    estimate_spread
        Of the errors of latency and overhead estimates (standard deviation of the logarithm).
    """

    name: str
    phases: tuple[Phase, ...]
    step_noise: float = 0.01
    estimate_spread: float = 0.1

    def lasting(self, step_seconds: float, least_seconds: float) -> Trace:
        """Return the trace with so many more steps that the mean phase of such steps lasts as long as this at least."""
        factor = max(1.0, least_seconds / (step_seconds * self.steps / len(self.phases)))
        return replace(self, phases=tuple(replace(each, steps=round(each.steps * factor)) for each in self.phases))

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def timed(self, step_seconds: Sequence[float]) -> Trace:
        """Return the trace with phases that last as long as their steps do if each takes so many seconds."""
        phases = tuple(replace(phase, seconds=phase.steps * each) for phase, each in zip(self.phases, step_seconds))
        return replace(self, phases=phases)


class Decision(NamedTuple):
    """One proposal of a tuner, and what it brought; a configuration that was in force already has no new epoch."""

    step: int  #: the first one under it
    seconds: float  #: when it was made
    epoch: int
    config: CommConfig
    reason: str
    predicted_speedup: Optional[float]
    measured_speedup: Optional[float] = None  #: steps before over steps after, in the same phase


class Played(NamedTuple):
    """What a job went through."""

    step_seconds: npt.NDArray[np.float64]  #: of each step
    epochs: npt.NDArray[np.int64]  #: in force in each step
    phases: npt.NDArray[np.int64]  #: of each step
    configs: tuple[CommConfig, ...]  #: by epoch
    decisions: tuple[Decision, ...]

    @property
    def total_seconds(self) -> float:
        return float(self.step_seconds.sum())


class StepTimes:
    """What the compiled simulator says of a model, each pair of conditions and configuration simulated once."""

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self._known: dict[tuple[Conditions, CommConfig], Simulated] = {}

    def of(self, conditions: Conditions, config: CommConfig) -> Simulated:
        """Return what a step is like; the configuration's epoch does not matter."""
        from tuner.compiled import simulate_compiled  # the import of numba takes a second

        key = conditions, replace(config, epoch=0)
        if key not in self._known:
            self._known[key] = simulate_compiled(self.profile, conditions, key[1])
        return self._known[key]


def play(
    tuner: Tuner,
    trace: Trace,
    profile: ModelProfile,
    config: CommConfig,
    seed: int,
    times: Optional[StepTimes] = None,
    window_seconds: float = WINDOW_SECONDS,
    thinking: Optional[Thinking] = None,
) -> Played:
    """Let ``tuner`` live through a trace; the same arguments give the same result.

    Parameters
    ----------
    config
        What the job starts with.
    times
        Step times to share between tuners; None: simulated for this one.
    thinking
        What the tuner simulates with; None: it does not.
    """
    return _Player(tuner, trace, config, seed, times or StepTimes(profile), window_seconds, thinking).play()


class _Estimates:
    """What nodes believe of the conditions, which follows when enough traffic has shown them."""

    def __init__(self, conditions: Conditions) -> None:
        self.believed = conditions
        self._truth = conditions
        self._follow(0.0)

    def _follow(self, now: float) -> None:
        self._changed_at = self._looked_at = now
        self._steps = self._looks = 0

    def change(self, truth: Conditions, now: float) -> None:
        """Conditions change."""
        self._truth = truth
        self._follow(now)

    def step(self, now: float, close: bool) -> bool:
        """A step has ended, while windows were short (``close``) or not; return whether an estimate has jumped."""
        if self.believed == self._truth:
            return False
        self._steps += 1
        if close:
            self._looks, self._looked_at = self._looks + 1, now
        else:
            looks = int((now - self._looked_at) / LOOK_SECONDS)
            self._looks, self._looked_at = self._looks + looks, self._looked_at + looks * LOOK_SECONDS
        before, truth = self.believed, self._truth
        latency = truth.latency_seconds if self._steps >= FOLLOW_STEPS else before.latency_seconds
        wires = self._steps >= FOLLOW_STEPS or now - self._changed_at >= FOLLOW_SECONDS
        costs = self._looks >= FOLLOW_LOOKS

        def host(old: Host, new: Host) -> Host:
            return replace(
                new,
                send_bytes_per_second=(new if wires else old).send_bytes_per_second,
                receive_bytes_per_second=(new if wires else old).receive_bytes_per_second,
                overhead_seconds=(new if costs else old).overhead_seconds,
            )

        self.believed = replace(
            truth,
            workers=tuple(map(host, before.workers, truth.workers)),
            servers=tuple(map(host, before.servers, truth.servers)),
            latency_seconds=latency,
        )
        return _distance(before, self.believed) > TOLD_CHANGE


def _distance(one: Conditions, other: Conditions) -> float:
    """Return by how much (of the logarithm) two estimates differ at most."""

    def values(conditions: Conditions) -> list[float]:
        hosts = (*conditions.workers, *conditions.servers)
        rates = [rate for host in hosts for rate in (host.send_bytes_per_second, host.receive_bytes_per_second)]
        return [*rates, *(host.overhead_seconds for host in hosts), conditions.latency_seconds]

    pairs = [(a, b) for a, b in zip(values(one), values(other)) if a != b]
    return max((abs(math.log(a / b)) if a > 0 and b > 0 else math.inf for a, b in pairs), default=0.0)


class _Unloaded(NamedTuple):
    """Links on which nothing is sent: a played job needs of the counters only the steps."""

    bytes_sent: int = 0
    messages_sent: int = 0
    partitions_sent: int = 0
    queue_wait_seconds: float = 0.0
    credit_stall_seconds: float = 0.0


class _Player:
    """A job that is being played."""

    def __init__(
        self,
        tuner: Tuner,
        trace: Trace,
        config: CommConfig,
        seed: int,
        times: StepTimes,
        window_seconds: float,
        thinking: Optional[Thinking],
    ) -> None:
        self._tuner = tuner
        self._trace = trace
        self._times = times
        self._thinking = thinking
        # Of two generators, the steps have the same noise whatever the tuner does.
        self._steps_rng = np.random.default_rng([seed, 1])
        self._rng = np.random.default_rng([seed, 2])
        self._errors = EstimateErrors.draw(self._rng, trace.estimate_spread)
        self._estimates = _Estimates(trace.phases[0].conditions)
        self._config = replace(config, epoch=0)
        self._configs = [self._config]
        self._decided: Optional[tuple[float, CommConfig]] = None  # when it is in force, and what
        self._decisions: list[Decision] = []
        self._now = 0.0
        self._phase = 0
        self._steps: list[float] = []
        self._epochs: list[int] = []
        self._phases: list[int] = []
        # Workers step together, so one counts for all; likewise servers.
        self._worker, self._server = (
            Counters(role, 0, 1, 1, 0.0, window_seconds) for role in (Role.WORKER, Role.SERVER)
        )
        self._worker.step_began(0.0)
        self._waiting: list[Observation] = []  # of servers, until workers report

    def play(self) -> Played:
        for number, phase in enumerate(self._trace.phases):
            self._phase = number
            self._estimates.change(phase.conditions, self._now)
            self._play_phase(phase)
        played = Played(
            np.array(self._steps),
            np.array(self._epochs),
            np.array(self._phases),
            tuple(self._configs),
            tuple(self._decisions),
        )
        return played._replace(decisions=tuple(_measured(played, decision) for decision in played.decisions))

    def _play_phase(self, phase: Phase) -> None:
        end = math.inf if phase.seconds is None else self._now + phase.seconds
        steps = phase.steps if phase.seconds is None else math.inf
        done = 0
        simulated = self._times.of(phase.conditions, self._config)
        while done < steps and self._now < end:
            if self._switch(self._now):
                simulated = self._times.of(phase.conditions, self._config)
            noise = math.exp(self._steps_rng.normal() * self._trace.step_noise)
            seconds = simulated.step_seconds * noise
            self._steps.append(seconds)
            self._epochs.append(self._config.epoch)
            self._phases.append(self._phase)
            self._pass(self._now + seconds, simulated)
            done += 1

    def _switch(self, now: float) -> bool:
        """Before a step: put in force what was decided long enough ago; return whether there is something."""
        if self._decided is None or now < self._decided[0]:
            return False
        self._config, self._decided = self._decided[1], None
        for counters in (self._worker, self._server):
            counters.switched(self._config.epoch)
        self._configs.append(self._config)
        self._decisions[-1] = self._decisions[-1]._replace(step=len(self._steps))
        return True

    def _pass(self, until: float, simulated: Simulated) -> None:
        """Let the step in progress last until then; close the windows that end meanwhile."""
        windows = self._server.attention, self._worker.attention  # in this order where both end together
        while (now := min(self._worker.overdue_at, *(window.ends for window in windows))) <= until:
            if now >= self._worker.overdue_at:
                self._worker.overdue(now)
            self._close(now, simulated)
        self._now = until
        self._worker.step_began(until)
        if self._estimates.step(until, self._worker.attention.close):
            for window in windows:
                window.changed()
        self._close(until, simulated)

    def _close(self, now: float, simulated: Simulated) -> None:
        """Report the windows that end now; what is reported under a decision on its way is of no configuration."""
        if self._server.attention.due(now):
            self._waiting = [seen for seen in self._observe(self._server, now, simulated) if seen.role is Role.SERVER]
        if self._worker.attention.due(now):
            seen = [seen for seen in self._observe(self._worker, now, simulated) if seen.role is Role.WORKER]
            servers, self._waiting = self._waiting, []
            if self._decided is None:
                self._report([*servers, *seen], now)

    def _observe(self, counters: Counters, now: float, simulated: Simulated) -> list[Observation]:
        window = counters.observation(now, _Unloaded(), HostEstimate(), 0, 0.0, 0.0)
        return observations_of(
            self._times.profile,
            self._estimates.believed,
            self._config,
            simulated,
            self._rng,
            self._errors,
            window.window_seconds,
            window.steps,
            window.step_seconds,
            window.overdue_seconds,
        )

    def _report(self, observations: Sequence[Observation], now: float) -> None:
        self._tuner.observe(observations)
        proposal = self._tuner.propose(now)
        thought_seconds = 0.0 if self._thinking is None else self._thinking.take()
        if proposal is None:
            return
        config = replace(proposal.config, epoch=self._config.epoch)
        if config != self._config:
            config = replace(config, epoch=self._config.epoch + 1)
            self._decided = now + SWITCH_SECONDS + thought_seconds, config
        self._decisions.append(Decision(-1, now, config.epoch, config, proposal.reason, proposal.predicted_speedup))


def _measured(played: Played, decision: Decision) -> Decision:
    """Return the decision with the speedup that its steps show, where it lasted and its phase did not change."""
    first = decision.step
    if first < 0:
        return decision
    phase = played.phases[first]
    before = _steps(played, phase, decision.epoch - 1)
    after = _steps(played, phase, decision.epoch)
    if not before.size or not after.size:
        return decision
    return decision._replace(
        measured_speedup=float(np.median(before[-COMPARED_STEPS:]) / np.median(after[:COMPARED_STEPS]))
    )


def _steps(played: Played, phase: int, epoch: int) -> npt.NDArray[np.float64]:
    chosen = (played.phases == phase) & (played.epochs == epoch)
    seconds: npt.NDArray[np.float64] = played.step_seconds[chosen]
    return seconds
