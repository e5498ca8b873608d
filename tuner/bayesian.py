"""A search before the work: Bayesian optimisation of (P, C) in the first steps of a job, then frozen.

This is what ByteScheduler does (SOSP 2019, section 5): a Gaussian process over (log P, log C) models the logarithm of
the step time, the next trial is the candidate with the largest expected improvement, and after a fixed number of
trials the best one is kept for the rest of the job (:mod:`tuner.oneshot`). The search ends early where no candidate
promises an improvement worth a trial.
"""

from __future__ import annotations

import math
import statistics
import warnings
from typing import Sequence, Union

import numpy as np

from ps.config import CommConfig
from tuner.belief import expected_gain
from tuner.oneshot import Choice, OneShotTuner, Result
from tuner.space import coordinates, size_key

__all__ = ["BayesianTuner"]

#: The model sees no trial as slower than so many times the fastest: it is to be exact where it is fast.
WORST_FACTOR = 3.0
#: No trial's median is believed to be more exact than this, relative to itself.
LEAST_NOISE = 0.01
#: The search ends when no candidate is expected to gain more than this part of the step time.
LEAST_IMPROVEMENT = 0.003


class BayesianTuner(OneShotTuner):
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
        super().__init__("bayesian", config, trials)
        self._seed = seed

    def choose(self, results: Sequence[Result], untried: Sequence[CommConfig]) -> Union[Choice, str]:
        # Three points span the model: the start, larger than the start, and no slicing at all.
        if len(results) == 1:
            return Choice(_nearest(results[0].config, 4, untried), "to span the model")
        if len(results) == 2:
            return Choice(untried[-1], "to span the model")
        improvement, choice = self._most_promising(results, untried)
        if improvement < LEAST_IMPROVEMENT:
            return f"no trial promises more than {LEAST_IMPROVEMENT:.1%}"
        return choice

    def _most_promising(self, results: Sequence[Result], untried: Sequence[CommConfig]) -> tuple[float, Choice]:
        """Return the largest expected improvement, and the trial that promises it."""
        fastest = math.log(min(result.seconds for result in results))
        model = _Model(
            [coordinates(result.config) for result in results],
            [min(math.log(result.seconds), fastest + math.log(WORST_FACTOR)) for result in results],
            [max(result.time.noise, LEAST_NOISE) for result in results],
            self._seed,
        )
        found = [
            (expected_gain(fastest - mean, deviation), config, mean)
            for config, (mean, deviation) in zip(untried, model.predict([coordinates(config) for config in untried]))
        ]
        improvement, config, mean = max(found, key=lambda entry: (entry[0], size_key(entry[1])))
        return improvement, Choice(config, f"expected improvement {improvement:.1%}", math.exp(mean))


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


def _nearest(config: CommConfig, factor: int, among: Sequence[CommConfig]) -> CommConfig:
    """Return which of ``among`` is nearest to ``config`` with both sizes multiplied by ``factor``."""
    wanted = (math.log2(config.partition_bytes * factor), math.log2(config.credit_bytes * factor))
    return min(
        among,
        key=lambda c: math.hypot(math.log2(c.partition_bytes) - wanted[0], math.log2(c.credit_bytes) - wanted[1]),
    )
