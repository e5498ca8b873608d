"""What else could choose a configuration from the same features: the rivals that the meta-network is compared with.

Each is fitted to the same training examples, and gives a score per candidate of a test, of which the lowest is chosen.
They are here for training and its report; no job runs them. Beside them is what a job does run: the network and a twin.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Optional

import numpy as np
import numpy.typing as npt

from tuner.dataset import DataSet
from tuner.examples import Examples
from tuner.metanet import MetaNetwork
from tuner.predictor import BlendedPredictor, RulePredictor
from tuner.refinement import Refinement
from tuner.scenarios import PRESENTS

__all__ = ["beside_twin", "best_static", "boosted_trees", "gaussian_process"]

Scores = npt.NDArray[Any]

#: A Gaussian process takes memory and time by the square and the cube of its rows.
PROCESS_ROWS = 1500
PROCESS_SCORED = 512
#: Trees are fitted to this many rows at most.
TREE_ROWS = 300_000
TREES = 300
#: A candidate is never taken for slower than the best by more than this logarithm.
LIMIT = 0.7


def best_static(train: Examples) -> int:
    """Return the candidate with the least mean regret over all scenarios: the best that can be chosen knowing none."""
    slower = np.expm1(train.log_seconds - np.nanmin(train.log_seconds, axis=1, keepdims=True))
    return int(np.nanmean(slower, axis=0).argmin())


def beside_twin(
    network: MetaNetwork, data: DataSet, test: Examples, progress: Optional[Callable[[], None]] = None
) -> tuple[Scores, npt.NDArray[np.bool_]]:
    """Return what a job's predictor says with ``network`` in it, and which jobs have told all that it can use.

    ``test`` has all examples of each of its scenarios, one for each configuration in force.
    """
    scores = np.empty(test.log_seconds.shape)
    told = np.zeros(len(scores), bool)
    candidates = data.candidates()
    predictor = BlendedPredictor(network, RulePredictor())
    for row, index in enumerate(test.scenario):
        scenario = data.scenario(int(index))
        situation = data.situation(int(index), row % PRESENTS, scenario, scenario.profile)
        opinion = predictor.predict(situation, candidates)
        scores[row] = -Refinement().refine(situation, candidates, opinion).log_speedup
        told[row] = bool(situation.tensor_bytes and situation.tensor_seconds) and situation.backward_seconds is not None
        if progress is not None:
            progress()
    return scores, told


def _rows(train: Examples, count: int, seed: int) -> tuple[Scores, Scores]:
    """Return features and how much slower than the best (a logarithm) of random candidates."""
    slower = np.minimum(train.log_seconds - np.nanmin(train.log_seconds, axis=1, keepdims=True), LIMIT)
    example, candidate = np.nonzero(np.isfinite(slower))
    chosen = np.random.default_rng(seed).permutation(len(example))[:count]
    example, candidate = example[chosen], candidate[chosen]
    return train.columns[example, candidate], slower[example, candidate]


def gaussian_process(train: Examples, test: Examples, seed: int) -> Scores:
    """Return the mean of a Gaussian process on as many rows as it can take."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    columns, slower = _rows(train, PROCESS_ROWS, seed)
    mean, deviation = columns.mean(axis=0), np.maximum(columns.std(axis=0), 1e-3)
    kernel = ConstantKernel(0.1) * Matern(8.0, nu=2.5) + WhiteKernel(0.01)
    process = GaussianProcessRegressor(kernel=kernel, normalize_y=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length scale at its bound is fine
        process.fit((columns - mean) / deviation, slower)
    return _scored(test, lambda rows: process.predict((rows - mean) / deviation))


def boosted_trees(train: Examples, test: Examples, seed: int) -> Scores:
    """Return the prediction of gradient-boosted trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    columns, slower = _rows(train, TREE_ROWS, seed)
    trees = HistGradientBoostingRegressor(
        max_iter=TREES, learning_rate=0.1, max_leaf_nodes=63, l2_regularization=1.0, random_state=seed
    )
    trees.fit(columns, slower)
    return _scored(test, trees.predict)


def _scored(test: Examples, predict: Callable[[Scores], Scores]) -> Scores:
    scores = np.empty(test.log_seconds.shape)
    for first in range(0, len(scores), PROCESS_SCORED):
        block = test.columns[first : first + PROCESS_SCORED]
        scores[first : first + PROCESS_SCORED] = predict(block.reshape(-1, block.shape[-1])).reshape(block.shape[:2])
    return scores
