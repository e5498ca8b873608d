"""What is believed of each candidate after some were measured: a predictor's word, corrected where it was wrong.

A Gaussian process over (log P, log C) whose prior mean is the predictor's log speedup and whose prior deviation is the
predictor's spread. What was measured replaces the prediction for that candidate, and corrects others as far as their
predictions err alike. Errors have two parts. One is alike for neighbours (:data:`LENGTH`). The other is in what a
message costs: downwards from the P in force it grows with every power of two, whatever C is. So a trial of a smaller P
that was worse than predicted speaks against all that are as small or smaller.

The search needs no training on the spot and no library: a predictor that is right is confirmed by its first trial, and
one that is wrong is corrected by every trial.
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.caution import powers_below
from tuner.predictor import Prediction
from tuner.space import coordinates

__all__ = ["Belief", "believe", "expected_gain"]

Array = npt.NDArray[np.float64]

#: Errors of predictions are alike over this distance in the unit square of the space (three powers of two).
LENGTH = 0.4
#: This part of an error's variance is in what a message costs.
MESSAGE_PART = 0.6


class Belief(NamedTuple):
    """Of each candidate: mean and deviation of the log speedup over the configuration in force."""

    mean: Array
    deviation: Array


def believe(
    candidates: Sequence[CommConfig],
    prediction: Prediction,
    measured: Mapping[CommConfig, tuple[float, float]],
    present: CommConfig,
) -> Belief:
    """Correct a prediction by measurements.

    Parameters
    ----------
    prediction
        Of each of ``candidates``.
    measured
        Log speedup over the configuration in force, and its noise, of those that were measured; others are ignored.
    present
        The configuration in force.
    """
    known = [index for index, candidate in enumerate(candidates) if candidate in measured]
    mean, spread = np.array(prediction.log_speedup), np.minimum(prediction.spread, 10.0)
    if not known:
        return Belief(mean, spread)
    covariance = spread[:, None] * spread[None, known] * _alike(candidates, present)[:, known]
    values, noises = np.array([measured[candidates[index]] for index in known]).T
    # A prediction without any spread (of the configuration in force) still needs a matrix that can be inverted.
    among = covariance[known] + np.diag(np.maximum(noises, 1e-3) ** 2)
    gain = np.linalg.solve(among, covariance.T).T
    deviation = np.sqrt(np.maximum(spread**2 - (gain * covariance).sum(axis=1), 0.0))
    return Belief(mean + gain @ (values - mean[known]), deviation)


def _alike(candidates: Sequence[CommConfig], present: CommConfig) -> Array:
    """Return the correlation of the errors of each two candidates."""
    points = np.array([coordinates(candidate) for candidate in candidates])
    squares = ((points[:, None, :] - points[None, :, :]) ** 2).sum(axis=2)
    near = np.exp(-squares / (2 * LENGTH**2))
    below = np.array([powers_below(candidate, present) for candidate in candidates])
    # Errors that add up from one power of two to the next: what is twice as far shares half of its variance.
    less, more = np.minimum.outer(below, below), np.maximum.outer(below, below)
    down = np.sqrt(less / np.maximum(more, 1e-9))
    above = below <= 0
    cost = np.where(np.logical_and.outer(above, above), near, down)
    alike: Array = (1 - MESSAGE_PART) * near + MESSAGE_PART * cost
    return alike


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
