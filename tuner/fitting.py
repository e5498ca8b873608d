"""Fits the ensemble to what is asked of it: which candidate is the fastest here, and by how much.

A row of numbers per candidate goes in; the sum of a *prior* (a formula's logarithm of the step time) and the network's
output is to be the logarithm of the step time, up to a constant of its own for each scenario, since only differences
within a scenario are ever used. Two losses are added:

* the squared error of these differences, weighted towards the fast candidates: how many times slower a ruinous
  configuration is matters little;
* the *expected regret* of a choice that is made by chance among the candidates, the more often the faster they are
  believed to be. Its gradient is exact, and it is what the tuner is judged by.

Members of the ensemble see the scenarios with weights of their own (a bootstrap), from weights of their own.
Adam (Kingma and Ba, ICLR 2015) with decoupled weight decay and a cosine schedule; the same seed gives the same weights.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from tuner.network import Array, Ensemble

__all__ = ["Recipe", "Sample", "fit", "initial"]


class Sample(NamedTuple):
    """Scenarios of one present configuration each, with all of their candidates.

    Attributes
    ----------
    inputs
        Standardised features, shape ``(scenarios, candidates, features)``.
    prior
        A formula's log step seconds, up to a constant per scenario, shape ``(scenarios, candidates)``.
    log_seconds
        The true ones; not a number where a candidate was not simulated.
    """

    inputs: Array
    prior: Array
    log_seconds: Array

    def take(self, rows: npt.NDArray[np.int64]) -> Sample:
        return Sample(*(array[rows] for array in self))


class Recipe(NamedTuple):
    """How the ensemble is built and fitted."""

    members: int = 4
    widths: tuple[int, ...] = (96, 64, 48)
    epochs: int = 24
    batch: int = 48  #: scenarios
    rate: float = 2e-3
    decay: float = 1e-4
    near: float = 0.15  #: a candidate slower than the best by this logarithm counts e times less
    floor: float = 0.03  #: what the slowest still count
    temperature: float = 0.02  #: of the chance choice
    regret: float = 1.0  #: weight of the expected regret against the squared error
    limit: float = 1.0  #: larger errors, and larger regrets, count as this


def initial(inputs: int, recipe: Recipe, rng: np.random.Generator) -> Ensemble:
    """Return an ensemble of random weights whose last layer is near zero: it believes the prior."""
    sizes = (inputs, *recipe.widths, 1)
    weights = [
        rng.normal(0, np.sqrt(2 / fan_in), (recipe.members, fan_in, fan_out)).astype(np.float32)
        for fan_in, fan_out in zip(sizes, sizes[1:])
    ]
    weights[-1] *= np.float32(0.05)
    biases = [np.zeros((recipe.members, 1, size), np.float32) for size in recipe.widths]
    return Ensemble(tuple(weights), tuple(biases))


def fit(sample: Sample, recipe: Recipe, seed: int, progress: Optional[Callable[[int, float], None]] = None) -> Ensemble:
    """Return an ensemble fitted to ``sample``; ``progress`` is told epoch and mean loss after each epoch."""
    rng = np.random.default_rng(seed)
    scenarios, _, features = sample.inputs.shape
    ensemble = initial(features, recipe, rng)
    shares = rng.exponential(size=(recipe.members, scenarios)).astype(np.float32)
    targets = _Targets.of(sample, recipe)
    adam = _Adam([*ensemble.weights, *ensemble.biases], recipe.decay)
    batches = -(-scenarios // recipe.batch)
    for epoch in range(recipe.epochs):
        losses = 0.0
        for number, rows in enumerate(np.array_split(rng.permutation(scenarios), batches)):
            loss, gradients = _gradients(ensemble, sample.take(rows), targets.take(rows), shares[:, rows], recipe)
            done = (epoch + number / batches) / recipe.epochs
            adam.step(gradients, recipe.rate * (0.5 + 0.5 * np.cos(np.pi * done)) * min(1.0, done * 20 + 0.05))
            losses += loss / batches
        if progress is not None:
            progress(epoch, losses)
    return ensemble


class _Targets(NamedTuple):
    log_seconds: Array  #: 0 where unknown
    weights: Array  #: sum to 1 in each scenario, 0 where unknown
    regret: Array
    known: Array

    @classmethod
    def of(cls, sample: Sample, recipe: Recipe) -> _Targets:
        known = np.isfinite(sample.log_seconds)
        regret = sample.log_seconds - np.nanmin(sample.log_seconds, axis=1, keepdims=True)
        regret = np.where(known, regret, 0)
        weights = np.where(known, np.exp(-regret / recipe.near) + recipe.floor, 0)
        weights /= weights.sum(axis=1, keepdims=True)
        log_seconds = np.where(known, sample.log_seconds, 0)
        arrays = (log_seconds, weights, np.minimum(regret, recipe.limit), known)
        return cls(*(array.astype(np.float32) for array in arrays))

    def take(self, rows: npt.NDArray[np.int64]) -> _Targets:
        return _Targets(*(array[rows] for array in self))


def _gradients(
    ensemble: Ensemble, sample: Sample, targets: _Targets, shares: Array, recipe: Recipe
) -> tuple[float, list[Array]]:
    """Return the loss of a batch and its gradients: weights, then biases."""
    scenarios, candidates, features = sample.inputs.shape
    layers = [sample.inputs.reshape(-1, features)]
    for weight, bias in zip(ensemble.weights, ensemble.biases):
        layers.append(np.maximum(np.matmul(layers[-1], weight) + bias, 0))
    output = np.matmul(layers[-1], ensemble.weights[-1]).reshape(-1, scenarios, candidates)
    loss, slope = _loss(sample.prior + output, targets, recipe)
    weighted = shares[..., None] * slope / np.float32(scenarios)
    back = weighted.reshape(ensemble.members, -1, 1)
    by_weight: list[Array] = []
    by_bias: list[Array] = []
    for number in range(len(ensemble.weights) - 1, -1, -1):
        below = layers[number]
        by_weight.insert(0, np.matmul(np.swapaxes(below, -1, -2), back))
        if number < len(ensemble.biases):
            by_bias.insert(0, back.sum(axis=1, keepdims=True))
        if number:
            back = np.matmul(back, np.swapaxes(ensemble.weights[number], -1, -2)) * (below > 0)
    return loss, [*by_weight, *by_bias]


def _loss(predicted: Array, targets: _Targets, recipe: Recipe) -> tuple[float, Array]:
    """Return the mean loss, and its slope by ``predicted``, shape ``(members, scenarios, candidates)``."""
    error = predicted - targets.log_seconds
    error -= (targets.weights * error).sum(axis=-1, keepdims=True)
    cut = np.clip(error, -recipe.limit, recipe.limit)  # Huber's loss: quadratic, then linear
    squared = targets.weights * cut * (2 * error - cut)
    slope = 2 * targets.weights * cut
    slope -= targets.weights * slope.sum(axis=-1, keepdims=True)
    scores = np.where(targets.known > 0, -predicted / recipe.temperature, -np.inf)
    chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    expected = (chances * targets.regret).sum(axis=-1, keepdims=True)
    slope += recipe.regret * chances * (expected - targets.regret) / recipe.temperature
    loss = squared.sum(axis=-1).mean() + recipe.regret * expected.mean()
    return float(loss), slope.astype(np.float32)


class _Adam:
    """Changes arrays in place along their gradients."""

    def __init__(self, arrays: list[Array], decay: float) -> None:
        self._arrays = arrays
        self._decay = decay
        self._first = [np.zeros_like(array) for array in arrays]
        self._second = [np.zeros_like(array) for array in arrays]
        self._steps = 0

    def step(self, gradients: list[Array], rate: float) -> None:
        self._steps += 1
        first_share, second_share = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        for array, gradient, first, second in zip(self._arrays, gradients, self._first, self._second):
            first += np.float32(0.1) * (gradient - first)
            second += np.float32(0.001) * (gradient * gradient - second)
            scale = np.sqrt(second / np.float32(second_share)) + np.float32(1e-8)
            array -= np.float32(rate / first_share) * first / scale
            array -= np.float32(rate * self._decay) * array
