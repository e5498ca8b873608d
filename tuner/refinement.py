"""What is predicted, refined by a simulation of this very job: the network's opinion, and that of the job's twin.

A network cannot know every shape of model and cluster; a simulation of the job's *twin* (:mod:`tuner.twin`) does. Both
opinions count as much as they are sure. What would take too long to simulate is left to the network, corrected by how
far it was off on average where both have spoken.

The twin is only as good as what it is made of, and the cost of a message is what nodes know worst: on a processor that
others use, too, a message takes longer than its thread computes. But a twin whose messages are too cheap takes less
time for a step than the job does. So one factor on that cost is fitted until the twin's steps last as long as those
that were measured, under every configuration that these conditions have seen; what remains is doubt.

A twin is kept until the conditions have moved away from it, or steps do not last as long as it says. Where that happens
all the time, as where estimates jump, twins are made ever more rarely, since each takes a second of a processor.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ps.config import MAX_CREDIT_BYTES, MAX_PARTITION_BYTES, CommConfig
from tuner.predictor import Prediction
from tuner.situation import Across, Situation
from tuner.twin import Twin, twin_of

__all__ = ["Refinement", "simulated_seconds"]

Array = npt.NDArray[np.float64]
#: Returns the step time of a twin under each configuration, in seconds.
Simulate = Callable[[Twin, Sequence[CommConfig]], Sequence[float]]

#: Workers that are simulated at most, of those that are alike, and steps.
SIMULATED_WORKERS = 8
SIMULATED_STEPS = 3
#: A configuration that makes more partitions of a step, of all simulated workers, takes too long to simulate.
MOST_PARTITIONS = 48_000
#: The factor on the cost of messages is searched in such steps of its logarithm, and within these bounds.
FACTOR_STEP = 0.15
LEAST_FACTOR, MOST_FACTOR = -1.0, 2.0
#: Spread of the factor's logarithm before anything is measured, at least.
FACTOR_SPREAD = 0.15
#: A step time of the twin that is as near as this fits.
FITS = 0.02
#: Configurations whose measured step times a twin is fitted to: the newest.
FITTED = 4
#: A twin is made anew when an estimate has moved by this logarithm, ...
MOVED, MOVED_COST = 0.1, 0.2
#: ... or where its steps are off by this, but not before so many predictions.
OFF, OFF_PREDICTIONS = 0.05, 5
#: Each twin that lasts for less than so many predictions, and twice the pause, doubles the pause before the next.
CALM_PREDICTIONS = 10
LONGEST_PAUSE = 64
#: The twin's own error: at least this, and this part of the gain.
LEAST_SPREAD, SPREAD_PART = 0.01, 0.1


def simulated_seconds(twin: Twin, configs: Sequence[CommConfig]) -> Sequence[float]:
    """Return the step time under each of ``configs``, by the compiled simulator."""
    from tuner.compiled import simulate_many  # the import of numba takes a second

    seconds = simulate_many(*twin, configs, SIMULATED_STEPS, SIMULATED_WORKERS)
    return [float(each) for each in seconds]


class _Fitted(NamedTuple):
    """A twin, and what is known of it."""

    twin: Twin
    log_factor: float  #: on the cost of messages
    misfit: float  #: how far its step times are from those that were measured, a logarithm
    estimates: Array  #: what it was made of, to see when that has moved
    shape: tuple[object, ...]
    log_seconds: dict[CommConfig, float]  #: of what has been simulated


class Refinement:
    """See the module.

    Parameters
    ----------
    simulate
        Returns step times.
    """

    def __init__(self, simulate: Simulate = simulated_seconds) -> None:
        self._simulate = simulate
        self._fitted: Optional[_Fitted] = None
        self._measured: dict[CommConfig, float] = {}  # logarithm of the step time, under these conditions
        self._predictions = 0  # since the twin was made
        self._pause = 1  # predictions before the next one may be made

    def refine(self, situation: Situation, candidates: Sequence[CommConfig], opinion: Prediction) -> Prediction:
        """Return what a predictor says of ``candidates`` together with what the twin says; alone without a twin."""
        fitted = self._twin(situation)
        if fitted is None:
            return opinion
        present = replace(situation.config, epoch=0)
        configs = [replace(candidate, epoch=0) for candidate in candidates]
        self._complete(fitted, [config for config in configs if _bearable(fitted.twin, config)])
        here = fitted.log_seconds[present]
        gains = np.array([here - fitted.log_seconds.get(config, math.nan) for config in configs])
        simulated = np.isfinite(gains)
        doubt = np.sqrt(LEAST_SPREAD**2 + (SPREAD_PART * gains) ** 2 + fitted.misfit**2)
        ours, theirs = 1 / doubt**2, 1 / np.maximum(opinion.spread, 1e-3) ** 2
        off = float(np.mean((opinion.log_speedup - gains)[simulated])) if simulated.any() else 0.0
        blended = (ours * gains + theirs * opinion.log_speedup) / (ours + theirs)
        spread = np.where(simulated, (ours + theirs) ** -0.5, np.hypot(opinion.spread, off))
        others = np.array([config != present for config in configs])
        return Prediction(others * np.where(simulated, blended, opinion.log_speedup - off), others * spread)

    def _twin(self, situation: Situation) -> Optional[_Fitted]:
        """Return the job's twin, made anew where it is out of date."""
        if situation.step_seconds is None or situation.step_seconds <= 0:
            return None
        present = replace(situation.config, epoch=0)
        estimates, shape = _estimates(situation), _shape(situation)
        fitted = self._fitted
        if fitted is None or fitted.shape != shape or _moved(fitted.estimates, estimates):
            fitted = None
            self._measured.clear()
        self._measured.pop(present, None)  # the newest come last
        self._measured[present] = math.log(situation.step_seconds)
        self._predictions += 1
        if fitted is not None:
            if not _bearable(fitted.twin, present):
                return None
            self._complete(fitted, [present])
            off = abs(fitted.log_seconds[present] - self._measured[present])
            if off <= max(OFF, fitted.misfit) or self._predictions < max(OFF_PREDICTIONS, self._pause):
                return fitted
        elif self._predictions < self._pause:
            return None
        calm = self._predictions >= CALM_PREDICTIONS + 2 * self._pause
        self._pause = 1 if calm else min(2 * self._pause, LONGEST_PAUSE)
        self._predictions = 0
        self._fitted = self._fit(situation, estimates, shape)
        return self._fitted

    def _complete(self, fitted: _Fitted, configs: Sequence[CommConfig]) -> None:
        """Simulate what has not been simulated yet; what makes no difference to the job is simulated once."""
        missing = [config for config in configs if config not in fitted.log_seconds]
        different = list(dict.fromkeys(_felt(fitted.twin, config) for config in missing))
        if missing:
            logs = dict(zip(different, np.log(self._simulate(fitted.twin, different))))
            fitted.log_seconds.update((config, float(logs[_felt(fitted.twin, config)])) for config in missing)

    def _fit(self, situation: Situation, estimates: Array, shape: tuple[object, ...]) -> Optional[_Fitted]:
        """Return the twin whose factor on the cost of messages agrees best with what was measured and stated."""
        plain = twin_of(situation)
        if plain is None or not _bearable(plain, situation.config):
            return None
        measured = {c: each for c, each in list(self._measured.items())[-FITTED:] if _bearable(plain, c)}
        stated = situation.overhead_seconds
        spread = max(FACTOR_SPREAD, stated.spread if stated is not None else 0.0)

        def attempt(log_factor: float) -> tuple[float, float, _Fitted]:
            """Return cost and mean error of a factor, and the twin that has it."""
            twin = twin_of(situation, math.exp(log_factor)) or plain
            logs = [math.log(each) for each in self._simulate(twin, list(measured))]
            errors = np.array(logs) - np.array(list(measured.values()))
            misfit = float(np.sqrt(np.mean(errors**2)))
            cost = (log_factor / spread) ** 2 + float((errors**2).sum()) / FITS**2
            fitted = _Fitted(twin, log_factor, misfit, estimates, shape, dict(zip(measured, logs)))
            return cost, float(errors.mean()), fitted

        cost, error, best = attempt(0.0)
        if best.misfit > FITS:
            step = FACTOR_STEP if error < 0 else -FACTOR_STEP  # steps are too short: messages are dearer
            log_factor = step
            while LEAST_FACTOR <= log_factor <= MOST_FACTOR:
                next_cost, _, attempted = attempt(log_factor)
                if next_cost >= cost:
                    break
                cost, best = next_cost, attempted
                log_factor += step
        return best


def _bearable(twin: Twin, config: CommConfig) -> bool:
    """Return whether the configuration can be simulated in a short time."""
    workers = min(twin.conditions.num_workers, SIMULATED_WORKERS)
    return twin.profile.model_bytes / config.partition_bytes * workers <= MOST_PARTITIONS


def _felt(twin: Twin, config: CommConfig) -> CommConfig:
    """Return the configuration with what is larger than anything it could apply to made as large as possible."""
    largest_bytes = max(tensor.size_bytes for tensor in twin.profile.tensors)
    whole = config.partition_bytes >= largest_bytes
    unlimited = config.credit_bytes >= twin.conditions.num_servers * twin.profile.model_bytes
    return replace(
        config,
        partition_bytes=MAX_PARTITION_BYTES if whole else config.partition_bytes,
        credit_bytes=MAX_CREDIT_BYTES if unlimited else config.credit_bytes,
    )


def _shape(situation: Situation) -> tuple[object, ...]:
    """Return what makes another job of it."""
    return situation.num_workers, situation.num_servers, situation.tensor_bytes, bool(situation.tensor_seconds)


def _estimates(situation: Situation) -> Array:
    """Return the logarithms of what a twin is made of, in units of how far each may move."""

    def logs(across: Optional[Across], limit: float) -> list[float]:
        return [0.0] * 3 if across is None else [math.log(max(each, 1e-12)) / limit for each in across[:3]]

    seconds = (situation.forward_seconds, situation.backward_seconds)
    return np.array(
        [
            *logs(situation.bandwidth_bytes_per_second, MOVED),
            *logs(situation.latency_seconds, MOVED_COST)[1:2],
            *logs(situation.overhead_seconds, MOVED_COST)[1:2],
            *(math.log(max(each or 0.0, 1e-6)) / MOVED for each in seconds),
        ]
    )


def _moved(before: Array, now: Array) -> bool:
    return bool(np.abs(now - before).max() > 1)
