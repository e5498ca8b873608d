"""A trace, which is how conditions change while a job trains, and a player that shows a tuner nothing but it.

:func:`play` hosts a tuner as the scheduler does: once per window nodes report what they saw (estimates with errors and
behind the truth by :data:`LAG_SECONDS`), the tuner is asked, and what it proposes is in force :data:`SWITCH_SECONDS`
later, from the next step on. The steps around a switch are not reported, as in :mod:`ps.counters`. A step takes what
the compiled simulator says of the phase's conditions and the configuration in force, times a noise that has the seed.

Switching itself costs nothing, and a step belongs to one phase and one configuration.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple, Optional, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ps.config import CommConfig
from ps.counters import STEPS_LOST_BY_SWITCH
from tuner.conditions import Conditions, Host
from tuner.interface import Tuner
from tuner.profiles import ModelProfile
from tuner.simulator import Simulated
from tuner.situation import EstimateErrors, observations_of

__all__ = ["Decision", "Phase", "Played", "StepTimes", "Trace", "play"]

#: Nodes report this often.
WINDOW_SECONDS = 1.0
#: From a proposal to the moment from which nodes' next steps have it.
SWITCH_SECONDS = 0.3
#: Estimates approach a new truth with this time constant.
LAG_SECONDS = 1.0
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
) -> Played:
    """Let ``tuner`` live through a trace; the same arguments give the same result.

    Parameters
    ----------
    config
        What the job starts with.
    times
        Step times to share between tuners; None: simulated for this one.
    """
    return _Player(tuner, trace, config, seed, times or StepTimes(profile), window_seconds).play()


class _Player:
    """A job that is being played."""

    def __init__(
        self, tuner: Tuner, trace: Trace, config: CommConfig, seed: int, times: StepTimes, window_seconds: float
    ) -> None:
        self._tuner = tuner
        self._trace = trace
        self._times = times
        self._window_seconds = window_seconds
        # Of two generators, the steps have the same noise whatever the tuner does.
        self._steps_rng = np.random.default_rng([seed, 1])
        self._rng = np.random.default_rng([seed, 2])
        self._errors = EstimateErrors.draw(self._rng, trace.estimate_spread)
        self._believed = trace.phases[0].conditions
        self._config = replace(config, epoch=0)
        self._configs = [self._config]
        self._decided: Optional[tuple[float, CommConfig]] = None  # when it is in force, and what
        self._decisions: list[Decision] = []
        self._now = 0.0
        self._phase = 0
        self._steps: list[float] = []
        self._epochs: list[int] = []
        self._phases: list[int] = []
        self._to_drop = 0
        self._window_end = window_seconds
        self._window: list[float] = []

    def play(self) -> Played:
        for number, phase in enumerate(self._trace.phases):
            self._phase = number
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
            self._pass(self._now + seconds, phase.conditions, simulated)
            self._now += seconds
            self._count(seconds)
            done += 1

    def _switch(self, now: float) -> bool:
        """Before a step: put in force what was decided long enough ago; return whether there is something."""
        if self._decided is None or now < self._decided[0]:
            return False
        self._config, self._decided = self._decided[1], None
        self._to_drop = STEPS_LOST_BY_SWITCH
        self._window.clear()
        self._configs.append(self._config)
        self._decisions[-1] = self._decisions[-1]._replace(step=len(self._steps))
        return True

    def _count(self, seconds: float) -> None:
        if self._to_drop:
            self._to_drop -= 1
        else:
            self._window.append(seconds)

    def _pass(self, until: float, conditions: Conditions, simulated: Simulated) -> None:
        """Close the windows that end before ``until``, the end of the step in progress."""
        while self._window_end <= until:
            self._believed = _approach(self._believed, conditions, 1 - math.exp(-self._window_seconds / LAG_SECONDS))
            if self._decided is None:  # else the window is of no configuration
                self._report(simulated)
            self._window.clear()
            self._window_end += self._window_seconds

    def _report(self, simulated: Simulated) -> None:
        observations = observations_of(
            self._times.profile,
            self._believed,
            self._config,
            simulated,
            self._rng,
            self._errors,
            self._window_seconds,
            len(self._window),
            statistics.median(self._window) if self._window else None,
        )
        now = self._window_end
        self._tuner.observe(observations)
        proposal = self._tuner.propose(now)
        if proposal is None:
            return
        config = replace(proposal.config, epoch=self._config.epoch)
        if config != self._config:
            config = replace(config, epoch=self._config.epoch + 1)
            self._decided = now + SWITCH_SECONDS, config
        self._decisions.append(Decision(-1, now, config.epoch, config, proposal.reason, proposal.predicted_speedup))


def _approach(believed: Conditions, truth: Conditions, part: float) -> Conditions:
    """Return ``believed``, moved towards the truth by this part, on a logarithmic scale."""
    if believed == truth:
        return truth

    def between(old: float, new: float) -> float:
        if old <= 0 or new <= 0 or abs(math.log(new / old)) < 1e-3:
            return new
        return float(old * (new / old) ** part)

    def host(old: Host, new: Host) -> Host:
        return replace(
            new,
            send_bytes_per_second=between(old.send_bytes_per_second, new.send_bytes_per_second),
            overhead_seconds=between(old.overhead_seconds, new.overhead_seconds),
        )

    return replace(
        truth,
        workers=tuple(map(host, believed.workers, truth.workers)),
        servers=tuple(map(host, believed.servers, truth.servers)),
        latency_seconds=between(believed.latency_seconds, truth.latency_seconds),
    )


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
