"""The twin: the job as its nodes describe it, to be simulated under configurations that it has not tried.

A :class:`~tuner.situation.Situation` holds what a simulation needs: the tensors and their computation, each host's
rates and overheads. What no node knows is assumed to be as elsewhere. Hosts that are alike but for the errors of their
estimates are made equal, so that few of many workers need to be simulated (:mod:`tuner.compiled`).
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

__all__ = ["Twin", "twin_of"]

#: Values nearer to each other than this factor are the same: errors of estimates, not kinds of hosts.
RATE_GRAIN, OVERHEAD_GRAIN, SPEED_GRAIN = 1.15, 1.5, 1.1


class Twin(NamedTuple):
    """A job to simulate."""

    profile: ModelProfile
    conditions: Conditions


def twin_of(situation: Situation, overhead_factor: float = 1.0) -> Optional[Twin]:
    """Return the job that ``situation`` describes; None where it knows too little of the model or the network.

    ``overhead_factor`` multiplies what nodes say a message costs.
    """
    overhead, bandwidth = situation.overhead_seconds, situation.bandwidth_bytes_per_second
    if not sum(situation.tensor_bytes) or situation.backward_seconds is None or overhead is None or bandwidth is None:
        return None
    backward = situation.backward_seconds
    forward = FORWARD_PART * backward if situation.forward_seconds is None else situation.forward_seconds
    byte_seconds = 0.0 if situation.byte_seconds is None else situation.byte_seconds.median
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
                overhead_seconds=costs[rank] * overhead_factor,
                byte_seconds=byte_seconds * overhead_factor,
                speed=speeds[rank],
            )
            for rank in range(len(views))
        )

    forwards = _kinds([view.forward_seconds for view in situation.workers], forward or 1.0, SPEED_GRAIN)
    sums = _kinds([view.sum_bytes_per_second for view in situation.servers], sum_rate, RATE_GRAIN)
    latency = situation.latency_seconds
    conditions = Conditions(
        workers=hosts(situation.workers, [forward / own if forward > 0 else 1.0 for own in forwards]),
        servers=hosts(situation.servers, [own / sum_rate for own in sums]),
        latency_seconds=UNKNOWN_LATENCY_SECONDS if latency is None else latency.median,
        sum_bytes_per_second=sum_rate,
    )
    return Twin(_profile(situation, forward, backward), conditions)


def _profile(situation: Situation, forward: float, backward: float) -> ModelProfile:
    sizes, seconds = situation.tensor_bytes, situation.tensor_seconds
    if len(seconds) != len(sizes) or sum(seconds) <= 0:
        seconds = tuple(math.sqrt(size) for size in sizes)
    part = 1 / sum(seconds)
    tensors = tuple(
        TensorProfile(str(number), size, forward * own * part, backward * own * part)
        for number, (size, own) in enumerate(zip(sizes, seconds))
    )
    return ModelProfile("twin", tensors)


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
