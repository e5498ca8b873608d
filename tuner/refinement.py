"""What is predicted, refined by a simulation of this very job: the network's opinion, and that of the job's twins.

A network cannot know every shape of model and cluster; a simulation of the job's *twin* (:mod:`tuner.twin`) does. What
estimates and measured step times leave open is open in several twins (:mod:`tuner.twins`): the gain of a candidate is
the mean over them, and where they disagree there is doubt. Opinion and twins count as much as they are sure.

All candidates are simulated in little time with the likeliest twin, the best of them in more with all twins. Small
partitions take longest, so they are simulated only while smaller ones seem to be better. What would take too long is
left to the network, corrected by how far it was off on average where both have spoken. What no simulation shows of a
large credit is added at the end (:mod:`tuner.queues`).

Twins are made anew when the conditions have moved away from them, or steps do not last as long as they say. That takes
a second of a processor, so where it happens all the time, as where estimates jump, an allowance is used up. Then the
old ones answer, and are doubted the more the further the conditions have moved.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ps.config import KIB, MAX_CREDIT_BYTES, MAX_PARTITION_BYTES, CommConfig
from tuner.predictor import Prediction
from tuner.queues import with_queues
from tuner.situation import Across, Situation
from tuner.twin import Twin, twin_of
from tuner.twins import Member, Simulate, fit_twins

__all__ = ["Refinement", "simulated_seconds"]

Array = npt.NDArray[np.float64]

#: Workers that are simulated at most, of those that are alike, and steps; the same of a quick simulation.
SIMULATED_WORKERS, SIMULATED_STEPS = 8, 3
QUICK_WORKERS, QUICK_STEPS = 4, 2
#: A configuration that makes more partitions of a step, of all simulated workers, takes too long to simulate.
MOST_PARTITIONS = 48_000
#: Partitions of this size and smaller ones take long to simulate.
DEAR_BYTES = 256 * KIB
#: Smaller partitions are simulated while the best of the last size is worse than the best of all by no more than this.
MOST_BEHIND = 0.02
#: So many of the best candidates of the quick simulation are simulated with all twins, and what is best at the end.
BEST = 12
#: Configurations whose measured step times twins are fitted to: the newest.
FITTED = 4
#: Twins are made anew when an estimate has moved by this logarithm, ...
MOVED, MOVED_COST = 0.1, 0.2
#: ... after which each such step of it adds this to their error, and nobody asks them after so many.
STALE_DOUBT, MOST_STALE = 0.02, 4.0
#: ... or where their steps are off by this, but not before so many predictions; what never fitted is tried again, too,
#: when nothing else has used the allowance.
OFF, OFF_PREDICTIONS = 0.05, 5
#: Twins are made so many times in a row at most, and then once in so many predictions.
ALLOWANCE = 4.0
ALLOWED_EACH = 32
#: The twins' own error: at least this, and this part of the gain.
LEAST_SPREAD, SPREAD_PART = 0.01, 0.1
#: The least where the computation of each layer is guessed, or even the tensors' sizes.
GUESSED_LAYERS, GUESSED_SIZES = 0.03, 0.16
#: Beside the twin of a job that has told all, the predictor is off by this many times what it says.
OPINION_DOUBT = 2.0
#: A quick simulation's error beside a longer one.
QUICK_SPREAD = 0.015


def simulated_seconds(twin: Twin, configs: Sequence[CommConfig], quick: bool) -> Sequence[float]:
    """Return the step time under each of ``configs``, by the compiled simulator; ``quick``: in a third of the time."""
    from tuner.compiled import simulate_many  # the import of numba takes a second

    steps, workers = (QUICK_STEPS, QUICK_WORKERS) if quick else (SIMULATED_STEPS, SIMULATED_WORKERS)
    seconds = simulate_many(*twin, configs, steps, workers)
    return [float(each) for each in seconds]


class _Fitted(NamedTuple):
    """Twins, and what is known of them."""

    members: list[Member]  #: the likeliest first
    quick: dict[CommConfig, float]  #: of the likeliest, by quick simulations: logarithms of the step times
    misfit: float  #: how far step times are from those that were measured, a logarithm
    estimates: Array  #: what they were made of, to see when that has moved
    shape: tuple[object, ...]


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
        self._predictions = 0  # since the twins were made
        self._allowance = ALLOWANCE  # to make others

    def forget(self) -> None:
        """Conditions have changed: what was measured before says nothing of the next twins."""
        self._measured.clear()
        if self._fitted is not None and self._fitted.misfit > OFF:
            self._fitted = None

    def refine(self, situation: Situation, candidates: Sequence[CommConfig], opinion: Prediction) -> Prediction:
        """Return what a predictor says of ``candidates`` together with what twins say; alone without a twin."""
        return with_queues(situation, candidates, self._refine(situation, candidates, opinion))

    def _refine(self, situation: Situation, candidates: Sequence[CommConfig], opinion: Prediction) -> Prediction:
        fitted = self._twins(situation)
        if fitted is None:
            return opinion
        present = replace(situation.config, epoch=0)
        configs = [replace(candidate, epoch=0) for candidate in candidates]
        self._search(fitted, present, configs)
        roughly = _gains_of(fitted.quick, present, configs)
        order = np.argsort(-roughly)  # NaN comes last
        best = [int(index) for index in order[:BEST] if np.isfinite(roughly[index])]
        while True:
            gains, between = self._gains(fitted, present, configs, roughly, best)
            prediction = _blended(situation, present, configs, fitted, opinion, gains, between)
            choice = int(prediction.log_speedup.argmax())
            if choice in best or not np.isfinite(roughly[choice]):
                return prediction
            best.append(choice)  # what is chosen is not chosen by a quick simulation

    def _gains(
        self, fitted: _Fitted, present: CommConfig, configs: Sequence[CommConfig], roughly: Array, best: Sequence[int]
    ) -> tuple[Array, Array]:
        """Return the gain of each candidate over all twins and how much they disagree; NaN where not simulated."""
        chosen = [configs[index] for index in best]
        for member in fitted.members:
            self._complete(member.twin, member.log_seconds, [present, *chosen])
        weights = np.array([member.weight for member in fitted.members])
        each = np.array([_gains_of(member.log_seconds, present, chosen) for member in fitted.members])
        mean = weights @ each
        spread = np.sqrt(weights @ (each - mean) ** 2)
        # What is best in one quick simulation is so by chance, too: all others would not have been any better.
        gains = roughly - float((roughly[best] - mean).mean())
        between = np.full(len(configs), math.hypot(float(spread.mean()), QUICK_SPREAD))
        gains[best], between[best] = mean, spread
        return gains, between

    def _search(self, fitted: _Fitted, present: CommConfig, configs: Sequence[CommConfig]) -> None:
        """Simulate candidates quickly, smaller partitions only while they seem to be better."""
        twin = fitted.members[0].twin
        self._complete(twin, fitted.quick, [present], quick=True)
        bearable = [config for config in configs if _bearable(twin, config)]
        best = math.inf
        for partition_bytes in sorted({config.partition_bytes for config in bearable}, reverse=True):
            alike = [config for config in bearable if config.partition_bytes == partition_bytes]
            self._complete(twin, fitted.quick, alike, quick=True)
            fastest = min(fitted.quick[config] for config in alike)
            if fastest > best + MOST_BEHIND and partition_bytes <= DEAR_BYTES:
                break
            best = min(best, fastest)

    def _twins(self, situation: Situation) -> Optional[_Fitted]:
        """Return the job's twins, made anew where they are out of date."""
        if situation.step_seconds is None or situation.step_seconds <= 0:
            return None
        present = replace(situation.config, epoch=0)
        estimates, shape = _estimates(situation), _shape(situation)
        fitted, moved = self._fitted, math.inf
        if fitted is not None and fitted.shape == shape:
            moved = _distance(fitted.estimates, estimates)
        if moved > 1:
            self._measured.clear()
        self._measured.pop(present, None)  # the newest come last
        self._measured[present] = math.log(situation.step_seconds)
        self._predictions += 1
        self._allowance = min(ALLOWANCE, self._allowance + 1 / ALLOWED_EACH)
        allowed = self._allowance >= (1 if moved > MOST_STALE else 2)  # the last ones are for true changes
        if fitted is None or moved > MOST_STALE:
            if not allowed:
                return None
        else:
            first = fitted.members[0]
            if not _bearable(first.twin, present):
                return None
            self._complete(first.twin, first.log_seconds, [present])
            off = abs(first.log_seconds[present] - self._measured[present])
            if moved <= 1:
                fits = off <= max(OFF, fitted.misfit) and (fitted.misfit <= OFF or self._allowance < ALLOWANCE)
                if fits or self._predictions < OFF_PREDICTIONS or not allowed:
                    return fitted
            elif not allowed:
                return fitted._replace(misfit=math.hypot(fitted.misfit, off, STALE_DOUBT * moved))
        self._fitted = self._fit(situation, estimates, shape)
        if self._fitted is not None:  # it costs nothing to find that too little is known
            self._allowance -= 1
            self._predictions = 0
        return self._fitted

    def _complete(
        self, twin: Twin, logs: dict[CommConfig, float], configs: Sequence[CommConfig], quick: bool = False
    ) -> None:
        """Add what has not been simulated yet to ``logs``; what makes no difference to the job is simulated once."""
        missing = [config for config in configs if config not in logs]
        different = list(dict.fromkeys(_felt(twin, config) for config in missing))
        if missing:
            found = dict(zip(different, np.log(self._simulate(twin, different, quick))))
            logs.update((config, float(found[_felt(twin, config)])) for config in missing)

    def _fit(self, situation: Situation, estimates: Array, shape: tuple[object, ...]) -> Optional[_Fitted]:
        """Return the twins that agree best with what was measured and stated."""
        plain = twin_of(situation)
        if plain is None or not _bearable(plain, situation.config):
            return None
        measured = {c: each for c, each in list(self._measured.items())[-FITTED:] if _bearable(plain, c)}
        members = fit_twins(situation, measured, self._simulate)
        return _Fitted(members, {}, members[0].misfit, estimates, shape)


def _blended(
    situation: Situation,
    present: CommConfig,
    configs: Sequence[CommConfig],
    fitted: _Fitted,
    opinion: Prediction,
    gains: Array,
    between: Array,
) -> Prediction:
    """Return what twins and the predictor say together, each as far as it is sure."""
    simulated = np.isfinite(gains)
    guessed = GUESSED_LAYERS if situation.tensor_bytes else GUESSED_SIZES
    least = LEAST_SPREAD if situation.tensor_seconds else guessed
    all_told = bool(situation.tensor_bytes and situation.tensor_seconds) and situation.backward_seconds is not None
    doubt = np.sqrt(least**2 + (SPREAD_PART * gains) ** 2 + fitted.misfit**2 + between**2)
    ours = 1 / doubt**2
    theirs = 1 / np.maximum(opinion.spread * (OPINION_DOUBT if all_told else 1.0), 1e-3) ** 2
    off = float(np.mean((opinion.log_speedup - gains)[simulated])) if simulated.any() else 0.0
    blended = (ours * gains + theirs * opinion.log_speedup) / (ours + theirs)
    spread = np.where(simulated, (ours + theirs) ** -0.5, np.hypot(opinion.spread, off))
    # What is smaller than all that was simulated is not believed to be better than the smallest of that.
    sizes = np.array([config.partition_bytes for config in configs])
    smallest = sizes == sizes[simulated].min(initial=MAX_PARTITION_BYTES)
    left = np.minimum(opinion.log_speedup - off, gains[simulated & smallest].max(initial=-np.inf))
    others = np.array([config != present for config in configs])
    return Prediction(np.where(others, np.where(simulated, blended, left), 0.0), others * spread)


def _gains_of(logs: dict[CommConfig, float], present: CommConfig, configs: Sequence[CommConfig]) -> Array:
    return np.array([logs[present] - logs.get(config, math.nan) for config in configs])


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
    passes = situation.backward_seconds is not None
    return situation.num_workers, situation.num_servers, situation.tensor_bytes, bool(situation.tensor_seconds), passes


def _estimates(situation: Situation) -> Array:
    """Return the logarithms of what a twin is made of, in units of how far each may move."""

    def logs(across: Optional[Across], limit: float) -> list[float]:
        return [0.0] * 3 if across is None else [math.log(max(each, 1e-12)) / limit for each in across[:3]]

    passes = [host.forward_seconds for host in situation.workers if host.forward_seconds]
    seconds = (situation.forward_seconds, situation.backward_seconds, max(passes, default=None))
    return np.array(
        [
            *logs(situation.bandwidth_bytes_per_second, MOVED),
            *logs(situation.latency_seconds, MOVED_COST)[1:2],
            *logs(situation.overhead_seconds, MOVED_COST)[1:2],
            *(math.log(max(each or 0.0, 1e-6)) / MOVED for each in seconds),
        ]
    )


def _distance(before: Array, now: Array) -> float:
    return float(np.abs(now - before).max())
