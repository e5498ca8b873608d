"""What would be gained by another configuration: the interface of predictors, and a closed form that needs no training.

A predictor says, for each candidate, the natural logarithm of the speedup over the configuration in force, and how
sure it is (a standard deviation of the same logarithm). It sees a :class:`~tuner.situation.Situation` and nothing else.

:class:`RulePredictor` knows a step as three things that overlap: computing, moving the model's bytes, and the wait of
the next step's first tensor. With B bytes per second and o seconds of overhead per message, and ``|a, b|p`` for
``(a**p + b**p) ** (1 / p)``, which is a sum for p = 1 and the larger of both for a large p::

    a message      t = |P / B, o|1.25
    rate           r = 1 / |t / P, (t / 2 + 2 L + 2.5 o) / C|1.5
    left over      X = max(M - r (backward), 0)           bytes not yet sent when the backward pass ends
    first tensor   w = 2 P / B + 2 L + 4 o
    a step           = backward + |w + forward, (1 + 0.6 P / (P + 1 MB)) X / r|8

The exponents and the last factor, which stands for workers that get in each other's way at the servers, are fitted to
simulated jobs. It errs by several per cent of a step, and says so; what it gets right is where configurations are
ruinous, and which way to go. What has been measured, the present step time, replaces what the form cannot know: the
computation is chosen so that the form gives just that for the configuration in force.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Protocol, Sequence

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.rule import UNKNOWN_LATENCY_SECONDS
from tuner.situation import Across, Situation, rates_of

__all__ = ["BlendedPredictor", "Prediction", "Predictor", "RulePredictor", "Sample", "step_seconds"]

Array = npt.NDArray[np.float64]

#: The forward pass is this part of the computation where workers cannot tell.
FORWARD_PART = 1 / 3
#: The forward pass computes for this part of the backward pass at most.
MOST_FORWARD = 0.6
#: The largest tensor is this part of a model whose tensors are not known.
LARGEST_PART = 0.2
MESSAGE_POWER, RATE_POWER, STEP_POWER = 1.25, 1.5, 8.0
CROWDING = 0.6
CROWDED_BYTES = 1e6
#: The closed form's own error in simulated jobs: this much, and this part of the log speedup that it predicts.
LEAST_SPREAD = 0.07
SPREAD_PART = 0.6
#: Part of the overhead's and the latency's uncertainty that reaches the step time.
FELT_SPREAD = 0.1


class Prediction(NamedTuple):
    """Of each candidate: the logarithm of its speedup over the configuration in force, and the spread of that."""

    log_speedup: Array
    spread: Array


class Sample(NamedTuple):
    """What a switch has brought: predicted in ``situation``, then measured (a logarithm) and how exactly."""

    situation: Situation
    candidate: CommConfig
    log_speedup: float
    noise: float


class Predictor(Protocol):
    """Predicts what candidates would bring."""

    def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
        """Return the gain of each of ``candidates`` over ``situation.config``, which itself has 0."""

    def fine_tune(self, samples: Sequence[Sample]) -> None:
        """Learn from what this job has measured: all samples that are still true, oldest first."""


class _Job(NamedTuple):
    """What the closed form needs to know of a job."""

    push_rate: float  # bytes of the model that the slowest wire moves per second
    latency: float
    overhead: float
    model_bytes: float
    largest_bytes: float
    tensors: int


class RulePredictor:
    """The closed form of the module; learns nothing."""

    def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
        count = len(candidates)
        job = _job(situation)
        if job is None:
            return Prediction(np.zeros(count), np.full(count, np.inf))
        forward, backward = _computation(situation, job)
        present = _seconds(job, situation.config, forward, backward)
        logs = np.array([math.log(present / _seconds(job, c, forward, backward)) for c in candidates])
        doubt = FELT_SPREAD * math.hypot(_spread(situation.overhead_seconds), _spread(situation.latency_seconds))
        spread = np.hypot(LEAST_SPREAD + SPREAD_PART * np.abs(logs), doubt)
        spread[[candidate == situation.config for candidate in candidates]] = 0.0
        return Prediction(logs, spread)

    def fine_tune(self, samples: Sequence[Sample]) -> None:
        pass


class BlendedPredictor:
    """Two predictors, of which each counts as much as it is sure.

    Parameters
    ----------
    one, other
        ``one`` says which configuration is in force: the one that it has no spread for.
    """

    def __init__(self, one: Predictor, other: Predictor) -> None:
        self._one = one
        self._other = other

    def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
        one, other = (each.predict(situation, candidates) for each in (self._one, self._other))
        weights = [1 / np.maximum(prediction.spread, 1e-3) ** 2 for prediction in (one, other)]
        total = weights[0] + weights[1]
        unknown = total <= 0  # neither knows anything
        total = np.where(unknown, 1.0, total)
        gains = (one.log_speedup * weights[0] + other.log_speedup * weights[1]) / total
        return Prediction(gains, np.where(unknown, np.inf, np.where(one.spread > 0, total**-0.5, 0.0)))

    def fine_tune(self, samples: Sequence[Sample]) -> None:
        self._one.fine_tune(samples)
        self._other.fine_tune(samples)


def step_seconds(situation: Situation, config: CommConfig) -> Optional[float]:
    """Return how long the closed form expects a step to take under ``config``; None while too little is known."""
    job = _job(situation)
    return None if job is None else _seconds(job, config, *_computation(situation, job))


def _job(situation: Situation) -> Optional[_Job]:
    bandwidth, latency, overhead = (
        situation.bandwidth_bytes_per_second,
        situation.latency_seconds,
        situation.overhead_seconds,
    )
    if bandwidth is None or overhead is None or not situation.model_bytes:
        return None
    # Every worker moves the model once, every server its share for all workers, in both directions.
    fan_in = situation.num_workers / situation.num_servers
    workers, servers = rates_of(situation, bandwidth)
    largest = max(situation.tensor_bytes, default=int(LARGEST_PART * situation.model_bytes))
    return _Job(
        push_rate=min(min(workers), min(servers) / fan_in),
        latency=UNKNOWN_LATENCY_SECONDS if latency is None else latency.median,
        overhead=overhead.most * max(1.0, fan_in),
        model_bytes=situation.model_bytes,
        largest_bytes=largest / situation.num_servers,
        tensors=max(1, situation.tensors),
    )


def _seconds(job: _Job, config: CommConfig, forward: float, backward: float) -> float:
    partition = min(config.partition_bytes, job.largest_bytes, job.model_bytes)
    credit = max(config.credit_bytes, partition)
    # Small tensors are messages of their own, unless fusion joins them.
    mean_bytes = max(job.model_bytes / job.tensors, min(config.fused_bytes, job.model_bytes))
    per_message = min(partition, mean_bytes * 4)
    overhead = job.overhead
    message = _either(per_message / job.push_rate, overhead, MESSAGE_POWER)
    round_trip = message / 2 + 2 * job.latency + 2.5 * overhead
    rate = 1 / _either(message / per_message, round_trip / credit, RATE_POWER)
    left = max(job.model_bytes - rate * backward, 0.0)
    first = 2 * partition / job.push_rate + 2 * job.latency + 4 * overhead
    crowded = 1 + CROWDING * partition / (partition + CROWDED_BYTES)
    return backward + _either(first + forward, crowded * left / rate, STEP_POWER)


def _either(one: float, other: float, power: float) -> float:
    """Return the sum of both for ``power`` 1, the larger one for a large ``power``, and what lies between."""
    return float((one**power + other**power) ** (1 / power))


def _computation(situation: Situation, job: _Job) -> tuple[float, float]:
    """Return forward and backward seconds with which the closed form gives the step time that was measured.

    The forward pass as workers see it includes its waits for sums: it is never more than a part of the backward pass.
    """
    measured = situation.step_seconds
    forward, backward = situation.forward_seconds, situation.backward_seconds
    most = math.inf if measured is None else measured
    forward_part = FORWARD_PART
    if backward is not None and backward > 0:
        computed = backward * MOST_FORWARD if forward is None else min(forward, backward * MOST_FORWARD)
        most, forward_part = min(most, computed + backward), computed / (computed + backward)
    if measured is None:
        total = most if math.isfinite(most) else 0.0
        return forward_part * total, (1 - forward_part) * total
    low, high = 0.0, most
    for _ in range(30):  # a step only grows with the computation
        middle = (low + high) / 2
        too_long = _seconds(job, situation.config, forward_part * middle, (1 - forward_part) * middle) > measured
        low, high = (low, middle) if too_long else (middle, high)
    return forward_part * high, (1 - forward_part) * high


def _spread(across: Optional[Across]) -> float:
    return 0.0 if across is None else across.spread
