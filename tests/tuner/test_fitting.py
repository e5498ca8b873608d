"""The ensemble learns which candidate is the fastest; its gradients are what differences say."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.fitting import Recipe, Sample, _gradients, _loss, _Targets, fit, initial
from tuner.network import Ensemble

SMALL = Recipe(members=2, widths=(24, 16), epochs=40, batch=16, rate=5e-3)


def jobs(count: int, seed: int) -> Sample:
    """Jobs in which the best of nine candidates is at a place that the second column tells."""
    rng = np.random.default_rng(seed)
    best = rng.uniform(-1, 1, (count, 1))
    at = np.linspace(-1, 1, 9)[None, :].repeat(count, axis=0)
    inputs = np.stack([at, best.repeat(9, axis=1), rng.normal(size=at.shape)], axis=-1)
    constant = rng.normal(size=(count, 1))  # a job may be slow altogether
    log_seconds = constant + np.abs(at - best)
    return Sample(*(array.astype(np.float32) for array in (inputs, np.zeros_like(at), log_seconds)))


def regret(ensemble: Ensemble, sample: Sample) -> float:
    outputs = ensemble.outputs(ensemble.hidden(sample.inputs.reshape(-1, 3))).mean(axis=0).reshape(-1, 9)
    chosen = np.take_along_axis(sample.log_seconds, outputs.argmin(axis=1)[:, None], axis=1)[:, 0]
    return float((chosen - sample.log_seconds.min(axis=1)).mean())


def test_learns_to_choose() -> None:
    ensemble = fit(jobs(400, seed=1), SMALL, seed=0)
    assert regret(ensemble, jobs(100, seed=2)) < 0.03  # a choice by chance: 0.5


def test_same_seed_same_weights() -> None:
    one, other, third = (
        fit(jobs(30, seed=1), SMALL._replace(epochs=2), seed=seed).weights[0].tolist() for seed in (5, 5, 6)
    )
    assert one == other
    assert one != third


def test_unknown_step_times_are_ignored() -> None:
    sample = jobs(20, seed=1)
    sample.log_seconds[:, 3] = np.nan
    spoilt = Sample(sample.inputs.copy(), sample.prior, sample.log_seconds)
    spoilt.inputs[:, 3] = 100.0
    recipe = SMALL._replace(epochs=1)
    assert fit(sample, recipe, seed=0).weights[-1] == pytest.approx(fit(spoilt, recipe, seed=0).weights[-1])


def test_before_training_the_prior_is_believed() -> None:
    ensemble = initial(3, SMALL, np.random.default_rng(0))
    outputs = ensemble.outputs(ensemble.hidden(jobs(5, seed=1).inputs.reshape(-1, 3)))
    assert np.abs(outputs).max() < 0.3


@pytest.mark.parametrize("array", ["weights", "biases"])
def test_gradients_are_what_differences_say(array: str) -> None:
    sample = jobs(6, seed=3)
    recipe = SMALL._replace(members=1, widths=(5, 4), temperature=0.5)
    ensemble = initial(3, recipe, np.random.default_rng(1))
    ensemble = Ensemble(tuple(w.astype(float) for w in ensemble.weights), tuple(b + 0.1 for b in ensemble.biases))
    targets = _Targets.of(sample, recipe)
    shares = np.ones((1, 6), np.float32)

    def loss() -> float:
        outputs = ensemble.outputs(ensemble.hidden(sample.inputs.reshape(-1, 3))).reshape(1, 6, 9)
        return _loss(sample.prior + outputs, targets, recipe)[0]

    _, gradients = _gradients(ensemble, sample, targets, shares, recipe)
    found = gradients[0] if array == "weights" else gradients[len(ensemble.weights)]
    changed = getattr(ensemble, array)[0]
    for place in [(0, 0, 1), (0, 0, 3)]:
        kept, step = changed[place], 1e-4
        changed[place] = kept + step
        above = loss()
        changed[place] = kept - step
        below = loss()
        changed[place] = kept
        assert found[place] == pytest.approx((above - below) / (2 * step), rel=0.02, abs=1e-5)
