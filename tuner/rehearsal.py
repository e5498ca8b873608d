"""What learning in a job is worth: a job tries what the network says, learns from the outcome, and tries again.

Each held-out job starts with the default configuration. A trial is the untried candidate with the largest predicted
gain; its speedup is measured with noise, and the network is fine-tuned with all trials so far. The regret of the
fastest one so far says what the job would run on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.dataset import DataSet
from tuner.metanet import MetaNetwork
from tuner.predictor import Sample

__all__ = ["regret_by_trials"]

#: Relative error of a measured step time.
NOISE = 0.01


def regret_by_trials(
    network: MetaNetwork, data: DataSet, trials: int, seed: int, learn: bool = True
) -> npt.NDArray[np.float64]:
    """Return the regret after so many trials, 0 included, of each scenario: shape ``(scenarios, trials + 1)``.

    Without ``learn`` the network is not fine-tuned: the trials are what it says at first, best first.
    """
    rng = np.random.default_rng(seed)
    configs = data.candidates()
    result = np.empty((data.scenarios, trials + 1))
    for index in range(data.scenarios):
        scenario = data.scenario(index)
        situation = data.situation(index, 0, scenario, scenario.profile)
        log_seconds = np.log(data.step_seconds[index].astype(float))
        present = scenario.presents[0]
        known = np.isfinite(log_seconds)
        fastest, tried = present, [present]
        samples: list[Sample] = []
        network.fine_tune([])
        for trial in range(trials + 1):
            result[index, trial] = np.expm1(log_seconds[fastest] - np.nanmin(log_seconds))
            gains = np.where(known, network.predict(situation, configs).log_speedup, -np.inf)
            gains[tried] = -np.inf
            choice = int(gains.argmax())
            tried.append(choice)
            if log_seconds[choice] < log_seconds[fastest]:
                fastest = choice
            gain = log_seconds[present] - log_seconds[choice] + rng.normal() * NOISE
            samples.append(Sample(situation, configs[choice], float(gain), NOISE))
            if learn:
                network.fine_tune(samples)
    network.fine_tune([])
    return result
