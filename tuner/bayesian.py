"""A search before the work: Bayesian optimisation of (P, C) in the first steps of a job, then frozen.

This is what ByteScheduler does (SOSP 2019, section 5): a Gaussian process over (log P, log C) models the logarithm of
the step time, the next trial is the candidate with the largest expected improvement, and after a fixed number of
trials the best one is kept for the rest of the job. It adapts to nothing that changes later.

A trial lasts :data:`TRIAL_STEPS` steps (the steps around a switch are not reported by the workers) and counts with
their median. It is cut short when it is much slower than the best so far, or when no step ends at all; then it enters
the model as slow as it was seen. The search ends early where no candidate promises an improvement worth a trial.

Ties: of all trials within :data:`TIE` of the fastest, the one with the larger P, then the larger C is kept, because
too small is ruinous where conditions change and too large is mild.
"""

from __future__ import annotations

import math
import statistics
import warnings
from typing import NamedTuple, Optional, Sequence

import numpy as np

from ps.config import CommConfig
from ps.stats import Observation
from tuner.interface import Proposal, Tuner
from tuner.space import candidates, coordinates, size_key
from tuner.steps import StepMeter, StepTime

__all__ = ["BayesianTuner"]

#: Steps and windows per worker that a trial lasts.
TRIAL_STEPS = 10
TRIAL_WINDOWS = 2
#: A trial that is slower than the best by this factor after this many steps is cut short.
BAD_FACTOR = 1.5
BAD_STEPS = 2
#: A trial in which no step ends for this long, in seconds or in steps of the best, is cut short ...
SILENT_SECONDS = 10.0
SILENT_STEPS = 10
#: ... and counts as so many times slower than the best.
SILENT_FACTOR = 10.0
#: The model sees no trial as slower than so many times the fastest: it is to be exact where it is fast.
WORST_FACTOR = 3.0
#: No trial's median is believed to be more exact than this, relative to itself.
LEAST_NOISE = 0.01
#: Trials this much slower than the fastest, as a part of it, are as good.
TIE = 0.02
#: The search ends when no candidate is expected to gain more than this part of the step time.
LEAST_IMPROVEMENT = 0.003


class _Result(NamedTuple):
    config: CommConfig
    time: StepTime

    @property
    def seconds(self) -> float:
        return self.time.seconds


class BayesianTuner(Tuner):
    """Searches partition and credit in a bounded number of trials, then keeps the best.

    Parameters
    ----------
    config
        What the job starts with; it is the first trial.
    trials
        How many configurations are tried, the first included.
    seed
        Decides the fits of the model; the same seed and observations give the same proposals.

    Examples
    --------
    >>> from ps.config import CommConfig
    >>> BayesianTuner(CommConfig(), trials=12, seed=1).propose(now=0.0)  # the start configuration is being measured
    """

    def __init__(self, config: CommConfig, trials: int = 12, seed: int = 0) -> None:
        self._config = config
        self._trials = trials
        self._seed = seed
        self._results: list[_Result] = []
        self._meter = StepMeter()
        self._began = 0.0  # when the trial began; the first one has all the time that it needs
        self._frozen = False
        self._candidates = candidates(config)

    def observe(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            self._meter.add(observation)

    def propose(self, now: float) -> Optional[Proposal]:
        if self._frozen:
            return None
        ended = self._trial_ended(now)
        if ended is None:
            return None
        self._results.append(_Result(self._config, ended))
        return self._next(now)

    # ------------------------------------------------------------------------------------- one trial

    def _trial_ended(self, now: float) -> Optional[StepTime]:
        """Return the step time of the present trial once it is over."""
        whole = self._meter.time(TRIAL_STEPS, TRIAL_WINDOWS)
        if whole is not None or not self._results:
            return whole
        fastest = self._fastest().seconds
        early = self._meter.time(BAD_STEPS, 1)
        if early is not None and early.seconds > BAD_FACTOR * fastest:
            return early
        if not self._meter.steps and now - self._began > max(SILENT_SECONDS, SILENT_STEPS * fastest):
            return StepTime(SILENT_FACTOR * fastest, 0.0)
        return None

    def _fastest(self) -> _Result:
        return min(self._results, key=lambda result: result.seconds)

    # ------------------------------------------------------------------------------------- the search

    def _next(self, now: float) -> Optional[Proposal]:
        present = self._results[-1].seconds
        number = len(self._results) + 1
        if number > self._trials:
            return self._freeze(present, f"{self._trials} trials are done")
        untried = [config for config in self._candidates if all(config != result.config for result in self._results)]
        if number <= 3:
            # Three points span the model: the start, larger than the start, and no slicing at all.
            chosen = _nearest(self._config, 4, untried) if number == 2 else untried[-1]
            predicted = None
            why = "to span the model"
        else:
            chosen, improvement, predicted_seconds = self._most_promising(untried)
            if improvement < LEAST_IMPROVEMENT:
                return self._freeze(present, f"no trial promises more than {LEAST_IMPROVEMENT:.1%}")
            predicted = present / predicted_seconds
            why = f"expected improvement {improvement:.1%}"
        self._switch(chosen, now)
        reason = f"bayesian, trial {number} of {self._trials}: {why}"
        return Proposal(config=chosen, reason=reason, predicted_speedup=predicted)

    def _most_promising(self, untried: Sequence[CommConfig]) -> tuple[CommConfig, float, float]:
        """Return the candidate with the largest expected improvement, that improvement, and the expected seconds."""
        fastest = math.log(self._fastest().seconds)
        model = _Model(
            [coordinates(result.config) for result in self._results],
            [min(math.log(result.seconds), fastest + math.log(WORST_FACTOR)) for result in self._results],
            [max(result.time.noise, LEAST_NOISE) for result in self._results],
            self._seed,
        )
        found = [
            (_expected_improvement(fastest - mean, deviation), config, mean)
            for config, (mean, deviation) in zip(untried, model.predict([coordinates(config) for config in untried]))
        ]
        improvement, config, mean = max(found, key=lambda entry: (entry[0], size_key(entry[1])))
        return config, improvement, math.exp(mean)

    def _best(self) -> _Result:
        limit = (1 + TIE) * self._fastest().seconds
        return max((result for result in self._results if result.seconds <= limit), key=lambda r: size_key(r.config))

    def _freeze(self, present_seconds: float, why: str) -> Proposal:
        self._frozen = True
        best, start = self._best(), self._results[0]
        reason = (
            f"bayesian, frozen: {why}; "
            f"a step took {best.seconds * 1e3:.4g} ms in its trial, {start.seconds * 1e3:.4g} ms in the first"
        )
        return Proposal(config=best.config, reason=reason, predicted_speedup=present_seconds / best.seconds)

    def _switch(self, config: CommConfig, now: float) -> None:
        self._config = config
        self._meter = StepMeter()
        self._began = now


class _Model:
    """A Gaussian process over coordinates in the unit square, fitted to logarithms of step times."""

    def __init__(
        self, points: Sequence[tuple[float, float]], logs: Sequence[float], noises: Sequence[float], seed: int
    ) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor  # takes a second: only who searches pays it
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        self._mean = statistics.fmean(logs)
        self._scale = max(statistics.pstdev(logs), LEAST_NOISE)
        self._process = GaussianProcessRegressor(
            kernel=ConstantKernel(1.0, (0.1, 10.0)) * Matern([0.5, 0.5], (0.1, 5.0), nu=2.5),
            alpha=(np.asarray(noises) / self._scale) ** 2,
            n_restarts_optimizer=1,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length scale at its bound is fine: the surface is flat that way
            self._process.fit(points, [(value - self._mean) / self._scale for value in logs])

    def predict(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return mean and standard deviation of the logarithm at each of ``points``."""
        means, deviations = self._process.predict(points, return_std=True)
        return [(self._mean + self._scale * float(m), self._scale * float(d)) for m, d in zip(means, deviations)]


def _expected_improvement(gain: float, deviation: float) -> float:
    """Return the expectation of ``max(0, X)`` for X normal with mean ``gain`` and ``deviation``."""
    if deviation <= 0:
        return max(0.0, gain)
    z = gain / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return gain * (1 + math.erf(z / math.sqrt(2))) / 2 + deviation * density


def _nearest(config: CommConfig, factor: int, among: Sequence[CommConfig]) -> CommConfig:
    """Return which of ``among`` is nearest to ``config`` with both sizes multiplied by ``factor``."""
    wanted = (math.log2(config.partition_bytes * factor), math.log2(config.credit_bytes * factor))
    return min(
        among,
        key=lambda c: math.hypot(math.log2(c.partition_bytes) - wanted[0], math.log2(c.credit_bytes) - wanted[1]),
    )
