"""What the data set says to a learner: features, the closed form's opinion, and the truth; and how choices are judged.

An *example* is one scenario with one configuration in force, seen through estimates that are wrong by as much as the
scenario says: one row of features per candidate, and the logarithm of the step time of each.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ps.config import CommConfig
from tuner.dataset import DataSet
from tuner.features import NAMES, features
from tuner.rule import UNKNOWN_LATENCY_SECONDS, Network, partition_and_credit
from tuner.scenarios import PRESENTS, Scenario, model_is_held_out, nearest, size_is_held_out
from tuner.situation import Situation

__all__ = ["Examples", "examples_of", "rank_correlation", "regret", "rule_choice_of"]

Array = npt.NDArray[np.float32]
Choices = npt.NDArray[np.int64]


class Examples(NamedTuple):
    """Arrays with one entry per example; what follows it are candidates, then features."""

    columns: Array
    prior: Array  #: the closed form's log speedup over the configuration in force
    log_seconds: Array  #: not a number where not simulated
    scenario: Choices  #: its index in the data set
    present: Choices  #: the candidate in force
    rule: Choices  #: the candidate nearest to what the rule makes of the estimates

    def take(self, rows: npt.NDArray[np.generic]) -> Examples:
        return Examples(*(array[rows] for array in self))


def examples_of(data: DataSet, progress: Optional[Callable[[int], None]] = None) -> Examples:
    """Return all examples of ``data``; ``progress`` is told the number of each finished scenario."""
    configs = data.candidates()
    count = data.scenarios * PRESENTS
    columns = np.empty((count, len(configs), len(NAMES)), np.float32)
    prior = np.empty((count, len(configs)), np.float32)
    rule = np.empty(count, np.int64)
    for index in range(data.scenarios):
        scenario = data.scenario(index)
        profile = scenario.profile
        for present in range(PRESENTS):
            situation = data.situation(index, present, scenario, profile)
            row = index * PRESENTS + present
            columns[row], prior[row] = features(situation, configs)
            rule[row] = rule_choice_of(situation, configs)
        if progress is not None:
            progress(index)
    return Examples(
        columns,
        prior,
        np.repeat(np.log(data.step_seconds), PRESENTS, axis=0),
        np.repeat(np.arange(data.scenarios), PRESENTS),
        data.presents.reshape(-1).astype(np.int64),
        rule,
    )


def rule_choice_of(situation: Situation, configs: Sequence[CommConfig]) -> int:
    """Return the candidate that is nearest to what the rule's formula makes of the estimates of a situation."""
    bandwidth, overhead = situation.bandwidth_bytes_per_second, situation.overhead_seconds
    assert bandwidth is not None and overhead is not None
    latency = situation.latency_seconds.median if situation.latency_seconds is not None else UNKNOWN_LATENCY_SECONDS
    partition_bytes, credit_bytes = partition_and_credit(Network(bandwidth.least, latency, overhead.most))
    return nearest(replace(configs[0], partition_bytes=partition_bytes, credit_bytes=credit_bytes), configs)


def regret(log_seconds: Array, choices: Choices) -> npt.NDArray[np.float64]:
    """Return by how much of the fastest step time the chosen candidates are slower; NaN where that is not known."""
    chosen = np.take_along_axis(log_seconds, choices[:, None], axis=1)[:, 0].astype(float)
    result: npt.NDArray[np.float64] = np.expm1(chosen - np.nanmin(log_seconds, axis=1))
    return result


def rank_correlation(log_seconds: Array, predicted: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return Spearman's correlation of true and predicted step times for each example (no ties in the prediction)."""
    correlations = np.empty(len(log_seconds))
    for row, (true, guess) in enumerate(zip(log_seconds, predicted)):
        known = np.isfinite(true)
        ranks = [np.argsort(np.argsort(values[known], kind="stable")) for values in (np.round(true, 4), guess)]
        deviation = [rank - rank.mean() for rank in ranks]
        scale = np.sqrt((deviation[0] ** 2).sum() * (deviation[1] ** 2).sum())
        correlations[row] = (deviation[0] * deviation[1]).sum() / scale
    return correlations


def groups_of(scenario: Scenario) -> dict[str, str]:
    """Return in which group a scenario is, for each way to group them."""
    conditions = scenario.conditions
    hosts = (*conditions.workers, *conditions.servers)
    gigabits = min(host.send_bytes_per_second for host in hosts) * 8e-9
    micros = max(host.overhead_seconds for host in hosts) * 1e6

    def span(value: float, edges: Sequence[float], unit: str) -> str:
        for edge in edges:
            if value < edge:
                return f"below {edge:g} {unit}"
        return f"{edges[-1]:g} {unit} and more"

    def unequal(values: list[float]) -> bool:
        return max(values) > 1.05 * min(values)

    return {
        "bandwidth": span(gigabits, (1, 10, 25), "Gbit/s"),
        "overhead": span(micros, (30, 100), "us"),
        "latency": span(conditions.latency_seconds * 1e6, (60, 300), "us"),
        "workers": span(conditions.num_workers, (5, 17), "workers"),
        "workers per server": span(conditions.num_workers / conditions.num_servers, (1.5, 3), "per server"),
        "links": "unequal" if unequal([host.send_bytes_per_second for host in hosts]) else "equal",
        "hosts": "stragglers" if unequal([host.speed for host in hosts]) else "equally fast",
        "estimates": span(scenario.estimate_spread, (0.03, 0.15), "spread"),
        "model": "zoo" if not scenario.model.startswith("synthetic") else "synthetic",
        "held out": " and ".join(
            name
            for name, held in (
                ("model", model_is_held_out(scenario.model)),
                ("cluster", size_is_held_out(conditions.num_workers)),
            )
            if held
        )
        or "nothing",
    }
