"""The twin: the job as its nodes describe it, to be simulated under configurations that it has not tried.

A :class:`~tuner.situation.Situation` holds what a simulation needs: the tensors and their computation, each host's
rates and overheads. What no node knows is assumed to be as elsewhere, or is a :class:`Guess`, of which a job may have
several (:mod:`tuner.twins`). Hosts that are alike but for the errors of their estimates are made equal, so that few of
many workers need to be simulated (:mod:`tuner.compiled`).
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple, Optional, Sequence

from tuner.conditions import SUM_BYTES_PER_SECOND, Conditions, Host
from tuner.profiles import ModelProfile, TensorProfile
from tuner.rule import UNKNOWN_LATENCY_SECONDS
from tuner.situation import HostView, Situation
from tuner.view import FORWARD_PART

__all__ = ["TOLD", "Guess", "Twin", "twin_of"]

#: Values nearer to each other than this factor are the same: errors of estimates, not kinds of hosts.
RATE_GRAIN, OVERHEAD_GRAIN, SPEED_GRAIN = 1.15, 1.5, 1.1


class Guess(NamedTuple):
    """What nodes do not know exactly, or not at all.

    Attributes
    ----------
    overhead_factor, latency_factor
        On what nodes say a message costs, and on how long they say one is on its way.
    byte_seconds
        What the communication thread takes per byte, before the factor; where no node tells.
    growth
        Logarithm of how many times larger the last tensor is than the first; where no node tells sizes.
    layer_power
        Computation of a tensor grows with this power of its size; where no node tells it.
    computation_seconds
        Of a step; where no pass is told.
    before
        Whether all of the computation comes before the first gradient, as where a program computes, then pushes and
        pulls everything; else it is spread over the layers. Where no pass is told.
    """

    overhead_factor: float = 1.0
    latency_factor: float = 1.0
    byte_seconds: float = 0.0
    growth: float = 4.0
    layer_power: float = 0.5
    computation_seconds: float = 0.0
    before: bool = False


#: All is as nodes say.
TOLD = Guess()


class Twin(NamedTuple):
    """A job to simulate."""

    profile: ModelProfile
    conditions: Conditions


def twin_of(situation: Situation, guess: Guess = TOLD) -> Optional[Twin]:
    """Return the job that ``situation`` describes; None where it knows too little of the model or the network."""
    overhead, bandwidth = situation.overhead_seconds, situation.bandwidth_bytes_per_second
    sizes = situation.tensor_bytes or _grown(situation.model_bytes, situation.tensors, guess.growth)
    if not sum(sizes) or overhead is None or bandwidth is None:
        return None
    backward = situation.backward_seconds
    if backward is None:
        backward = guess.computation_seconds / (1 + FORWARD_PART)
    forward = FORWARD_PART * backward if situation.forward_seconds is None else situation.forward_seconds
    byte_seconds = guess.byte_seconds if situation.byte_seconds is None else situation.byte_seconds.median
    sum_rate = situation.sum_bytes_per_second or SUM_BYTES_PER_SECOND

    def hosts(views: Sequence[HostView], speeds: Sequence[float]) -> tuple[Host, ...]:
        send = _kinds([view.send_bytes_per_second for view in views], bandwidth.median, RATE_GRAIN)
        receive = _kinds(
            [v.receive_bytes_per_second or v.send_bytes_per_second for v in views], bandwidth.median, RATE_GRAIN
        )
        costs = _kinds([view.overhead_seconds for view in views], overhead.median, OVERHEAD_GRAIN)
        return tuple(
            Host(
                send_bytes_per_second=send[rank],
                receive_bytes_per_second=receive[rank],
                overhead_seconds=costs[rank] * guess.overhead_factor,
                byte_seconds=byte_seconds * guess.overhead_factor,
                speed=speeds[rank],
            )
            for rank in range(len(views))
        )

    passes = [view.forward_seconds for view in situation.workers]
    usual = statistics.median([seconds for seconds in passes if seconds] or [1.0])
    forwards = _kinds(passes, usual, SPEED_GRAIN)
    sums = _kinds([view.sum_bytes_per_second for view in situation.servers], sum_rate, RATE_GRAIN)
    latency = UNKNOWN_LATENCY_SECONDS if situation.latency_seconds is None else situation.latency_seconds.median
    conditions = Conditions(
        workers=hosts(situation.workers, [usual / own for own in forwards]),
        servers=hosts(situation.servers, [own / sum_rate for own in sums]),
        latency_seconds=latency * guess.latency_factor,
        sum_bytes_per_second=sum_rate,
    )
    seconds = situation.tensor_seconds
    if len(seconds) != len(sizes) or sum(seconds) <= 0:
        seconds = tuple(float(size) ** guess.layer_power for size in sizes)
    if situation.backward_seconds is None and guess.before:
        return Twin(_computed_before(sizes, forward + backward), conditions)
    return Twin(_profile(sizes, seconds, forward, backward), conditions)


def _grown(model_bytes: int, tensors: int, growth: float) -> tuple[int, ...]:
    """Return sizes that grow from the first tensor to the last."""
    parts = [math.exp(growth * number / tensors) for number in range(tensors)]
    return tuple(max(4, int(model_bytes * part / sum(parts))) for part in parts) if model_bytes else ()


def _profile(sizes: Sequence[int], seconds: Sequence[float], forward: float, backward: float) -> ModelProfile:
    part = 1 / sum(seconds)
    tensors = tuple(
        TensorProfile(str(number), size, forward * own * part, backward * own * part)
        for number, (size, own) in enumerate(zip(sizes, seconds))
    )
    return ModelProfile("twin", tensors)


def _computed_before(sizes: Sequence[int], seconds: float) -> ModelProfile:
    """Return a model whose last gradient, which is the first to be pushed, takes all of the computation."""
    last = len(sizes) - 1
    tensors = (
        TensorProfile(str(number), size, 0.0, seconds if number == last else 0.0) for number, size in enumerate(sizes)
    )
    return ModelProfile("twin", tuple(tensors))


def _kinds(values: Sequence[Optional[float]], otherwise: float, grain: float) -> list[float]:
    """Return the values, those that are near to each other made equal: to the median of each run of the sorted ones."""
    known = [otherwise if value is None or value <= 0 else value for value in values]
    order = sorted(range(len(known)), key=known.__getitem__)
    result = list(known)
    first = 0
    for position in range(1, len(order) + 1):
        if position == len(order) or known[order[position]] > grain * known[order[first]]:
            kind = statistics.median(known[rank] for rank in order[first:position])
            for rank in order[first:position]:
                result[rank] = kind
            first = position
    return result
