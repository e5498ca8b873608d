"""What is believed of each candidate after some were measured: a predictor's word, corrected where it was wrong.

A Gaussian process over (log P, log C) whose prior mean is the predictor's log speedup and whose prior deviation is the
predictor's spread. What was measured replaces the prediction for that candidate, and corrects the neighbours as far as
predictions for neighbours err alike (:data:`LENGTH`). So the search needs no training on the spot and no library: a
predictor that is right is confirmed by its first trial, and one that is wrong is corrected by every trial.
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.predictor import Prediction
from tuner.space import coordinates

__all__ = ["Belief", "believe", "expected_gain"]

Array = npt.NDArray[np.float64]

#: Errors of predictions are alike over this distance in the unit square of the space (three powers of two).
LENGTH = 0.4
#: A step of the search in fusion is as far as this.
FUSION_LENGTH = 0.1


class Belief(NamedTuple):
    """Of each candidate: mean and deviation of the log speedup over the configuration in force."""

    mean: Array
    deviation: Array


def believe(
    candidates: Sequence[CommConfig], prediction: Prediction, measured: Mapping[CommConfig, tuple[float, float]]
) -> Belief:
    """Correct a prediction by measurements.

    Parameters
    ----------
    prediction
        Of each of ``candidates``.
    measured
        Log speedup over the configuration in force, and its noise, of those that were measured; others are ignored.
    """
    known = [index for index, candidate in enumerate(candidates) if candidate in measured]
    mean, spread = np.array(prediction.log_speedup), np.minimum(prediction.spread, 10.0)
    if not known:
        return Belief(mean, spread)
    points = np.array([_point(candidate) for candidate in candidates])
    squares = ((points[:, None, :] - points[None, known, :]) ** 2).sum(axis=2)
    covariance = spread[:, None] * spread[None, known] * np.exp(-squares / (2 * LENGTH**2))
    values, noises = np.array([measured[candidates[index]] for index in known]).T
    # A prediction without any spread (of the configuration in force) still needs a matrix that can be inverted.
    among = covariance[known] + np.diag(np.maximum(noises, 1e-3) ** 2)
    gain = np.linalg.solve(among, covariance.T).T
    deviation = np.sqrt(np.maximum(spread**2 - (gain * covariance).sum(axis=1), 0.0))
    return Belief(mean + gain @ (values - mean[known]), deviation)


def expected_gain(mean: float, deviation: float) -> float:
    """Return the expectation of ``max(0, X)`` for X normal with ``mean`` and ``deviation``.

    Examples
    --------
    >>> expected_gain(0.1, 0.0)
    0.1
    """
    if deviation <= 0:
        return max(0.0, mean)
    z = mean / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return mean * (1 + math.erf(z / math.sqrt(2))) / 2 + deviation * density


def _point(config: CommConfig) -> tuple[float, float, float]:
    return (*coordinates(config), FUSION_LENGTH * math.log2(1 + config.fusion_bytes / 1024) / 4)
