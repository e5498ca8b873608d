"""What the meta-network sees of a situation and a candidate: numbers without a unit, nearly all of them logarithms.

A network that saw bytes and seconds would learn one cluster. Ratios carry over: a partition against what the wire moves
in the time of one message's overhead, a credit against what is under way in a round trip, a wait against the step that
it delays. Two jobs with equal ratios behave alike, whatever their size.

Columns come in groups, so that training can tell what each is worth:

========== =================================================================================================
prior      what the closed form (:class:`~tuner.predictor.RulePredictor`) expects of the candidate
sizes      the candidate's partition and credit against network, model and step
present    the same of the configuration in force, and how far the candidate is from it
model      tensors: how many, how large, what part is near the input
cluster    workers, servers, how unequal they are, computation against communication
counters   how the present configuration behaves: waits, stalls, use of the wire, step time against the closed form
doubt      spreads of the estimates, and what is not known at all
========== =================================================================================================

What is unknown is replaced by a typical value, and a column of *doubt* says so.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.predictor import UNKNOWN_LATENCY_SECONDS, RulePredictor, step_seconds
from tuner.situation import Across, Situation

__all__ = ["GROUPS", "NAMES", "Features", "features", "known"]

Array = npt.NDArray[np.float64]
Column = Union[float, Array]

#: Logarithms beyond this are cut: a factor of about 20,000.
LARGEST = 10.0
#: A formula's gain or loss beyond this is cut, in the network's input as in what its output is added to.
LARGEST_PRIOR = 3.0
UNKNOWN_SUM_BYTES_PER_SECOND = 4e9
#: A worker's link may be ahead by two partitions, or by this.
SKEW_BYTES = 1e6
#: Quantiles of the bytes over tensors sorted by size.
QUANTILES = (0.1, 0.5, 0.9)
#: Parts of the tensors in forward order, of which the part of the bytes is told.
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)


class Features(NamedTuple):
    """Of each candidate: its columns, and the closed form's log speedup over the configuration in force."""

    columns: npt.NDArray[np.float32]  #: shape ``(candidates, len(NAMES))``
    prior: npt.NDArray[np.float32]  #: shape ``(candidates,)``


class _Scales(NamedTuple):
    """What everything is measured against."""

    rate: float  # bytes of the model that a worker can move per second
    fan_in: float
    wire_seconds: float  # the model on the wire
    step_seconds: float
    latency: float
    overhead: float
    round_trip: float
    server_overhead: float  # of the messages that a server has for each one of a worker
    model_bytes: float
    shard_bytes: float  # the largest thing that can be sent whole
    sizes: Array  # of tensors, in forward order; empty where unknown
    tensors: int


class _Sizes(NamedTuple):
    """Partition, credit and fusion of configurations, no larger than what they can apply to."""

    partition: Array
    credit: Array
    fusion: Array
    whole: Array  # whether the largest shard is sent in one piece


def known(situation: Situation) -> bool:
    """Return whether enough is known for features: model, bandwidth, overhead and step time."""
    return bool(
        situation.model_bytes
        and situation.step_seconds
        and situation.bandwidth_bytes_per_second is not None
        and situation.overhead_seconds is not None
    )


def features(situation: Situation, candidates: Sequence[CommConfig]) -> Features:
    """Return the columns of each of ``candidates``.

    Raises
    ------
    ValueError
        Too little is known of the situation, see :func:`known`.
    """
    if not known(situation):
        raise ValueError("features need model_bytes, step_seconds, bandwidth and overhead")
    prior = np.clip(RulePredictor().predict(situation, candidates).log_speedup, -LARGEST_PRIOR, LARGEST_PRIOR)
    scales = _scales(situation)
    here, there = _sizes([situation.config], scales), _sizes(candidates, scales)
    columns = np.empty((len(candidates), len(NAMES)), np.float32)
    number = 0
    for group in _GROUPS.values():
        for column in group(situation, scales, here, there, prior).values():
            columns[:, number] = column
            number += 1
    np.clip(columns, -LARGEST, LARGEST, out=columns)
    return Features(columns, prior.astype(np.float32))


def _scales(situation: Situation) -> _Scales:
    bandwidth, overhead, latency = _across(situation)
    workers = [rate for rate in situation.worker_bandwidths if rate is not None] or [bandwidth.least]
    servers = [rate for rate in situation.server_bandwidths if rate is not None] or [bandwidth.least]
    fan_in = situation.num_workers / situation.num_servers
    rate = min(min(workers), min(servers) / fan_in)
    sizes = np.array(situation.tensor_bytes, float)
    tensors = max(1, situation.tensors, len(sizes))
    model_bytes = float(situation.model_bytes)
    largest = sizes.max() if len(sizes) else min(model_bytes, max(0.15 * model_bytes, 3 * model_bytes / tensors))
    return _Scales(
        rate=rate,
        fan_in=fan_in,
        wire_seconds=model_bytes / rate,
        step_seconds=situation.step_seconds or math.inf,
        latency=latency,
        overhead=overhead.median,
        round_trip=2 * latency + 2.5 * overhead.median,
        server_overhead=max(1.0, fan_in) * overhead.median,
        model_bytes=model_bytes,
        shard_bytes=largest / situation.num_servers,
        sizes=sizes,
        tensors=tensors,
    )


def _across(situation: Situation) -> tuple[Across, Across, float]:
    bandwidth, overhead = situation.bandwidth_bytes_per_second, situation.overhead_seconds
    assert bandwidth is not None and overhead is not None  # known(situation)
    latency = situation.latency_seconds
    return bandwidth, overhead, UNKNOWN_LATENCY_SECONDS if latency is None else latency.median


def _sizes(configs: Sequence[CommConfig], scales: _Scales) -> _Sizes:
    sizes = np.array([(c.partition_bytes, c.credit_bytes, c.fusion_bytes) for c in configs], float).reshape(-1, 3)
    partition = np.minimum(sizes[:, 0], scales.shard_bytes)
    credit = np.clip(sizes[:, 1], partition, max(scales.model_bytes, 1.0))
    fusion = np.clip(sizes[:, 2], 1.0, scales.model_bytes)
    return _Sizes(partition, credit, fusion, (sizes[:, 0] >= scales.shard_bytes).astype(float))


def _messages(scales: _Scales, sizes: _Sizes, num_servers: int) -> Array:
    """Return about how many messages a worker sends per step."""
    cut = scales.model_bytes / sizes.partition
    if not len(scales.sizes):
        return cut + scales.tensors / 2
    shards = scales.sizes[None, :] / num_servers
    small = np.minimum(1.0, np.maximum(shards, 1.0) / sizes.fusion[:, None])  # fused with others
    per_tensor = np.maximum(np.ceil(shards / sizes.partition[:, None]), 1.0) * np.maximum(small, 1 / scales.tensors)
    messages: Array = num_servers * per_tensor.sum(axis=1)
    return messages


# --------------------------------------------------------------------------------------------- columns


def _log(value: Union[float, Array]) -> Array:
    """Return the logarithm, of 1e-9 where it is less."""
    result: Array = np.log(np.maximum(value, 1e-9))
    return result


def _prior(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    return {"gain": prior, "against_best": prior - prior.max(), "is_best": (prior >= prior.max()).astype(float)}


def _candidate(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    messages = _messages(scales, there, s.num_servers)
    mean_shard = scales.model_bytes / scales.tensors
    return {
        "overhead_in_partitions": _log(scales.overhead * scales.rate / there.partition),
        "server_overhead_in_partitions": _log(scales.server_overhead * scales.rate / there.partition),
        "round_trip_in_partitions": _log(scales.round_trip * scales.rate / there.partition),
        "round_trips_in_credit": _log(there.credit / (scales.rate * scales.round_trip)),
        "partitions_in_credit": _log(there.credit / there.partition),
        "partitions_in_link_credit": _log(there.credit / s.num_servers / there.partition),
        "partitions_in_server_link_credit": _log(there.credit / s.num_workers / there.partition),
        "partition_in_model": _log(there.partition / scales.model_bytes),
        "credit_in_model": _log(there.credit / scales.model_bytes),
        "partition_wait_in_step": _log(there.partition / scales.rate / scales.step_seconds),
        "credit_wait_in_step": _log(there.credit / scales.rate / scales.step_seconds),
        "overhead_in_step": _log(messages * scales.overhead / scales.step_seconds),
        "server_overhead_in_wire": _log(messages * scales.server_overhead / scales.wire_seconds),
        "whole": there.whole,
        # A link fuses no more than its credit, and runs ahead of the slowest by no more than its skew.
        "worker_fusion_in_tensors": _log(np.minimum(there.fusion, there.credit / s.num_servers) / mean_shard),
        "server_fusion_in_tensors": _log(np.minimum(there.fusion, there.credit / s.num_workers) / mean_shard),
        "skew_in_credit": _log(np.maximum(2 * there.partition, SKEW_BYTES) / there.credit),
        "skew_wait_in_step": _log(np.maximum(2 * there.partition, SKEW_BYTES) / scales.rate / scales.step_seconds),
    }


def _present(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    return {
        "partition_change": _log(there.partition / here.partition),
        "credit_change": _log(there.credit / here.credit),
        "present_overhead_in_partitions": _log(scales.overhead * scales.rate / here.partition[0]),
        "present_round_trips_in_credit": _log(here.credit[0] / (scales.rate * scales.round_trip)),
        "present_partition_wait_in_step": _log(here.partition[0] / scales.rate / scales.step_seconds),
        "present_credit_wait_in_step": _log(here.credit[0] / scales.rate / scales.step_seconds),
        "present_whole": float(here.whole[0]),
    }


def _model(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    columns: dict[str, Column] = {"tensors": _log(scales.tensors)}
    sizes = scales.sizes
    if not len(sizes):
        sizes = np.full(min(scales.tensors, 1000), scales.model_bytes / scales.tensors)
    ordered = np.sort(sizes)
    shares = np.cumsum(ordered) / ordered.sum()
    for quantile in QUANTILES:
        size = ordered[np.searchsorted(shares, quantile)] / s.num_servers
        columns[f"shard_{quantile:.0%}_in_partitions"] = _log(size / there.partition)
    columns["largest_in_model"] = _log(scales.shard_bytes * s.num_servers / scales.model_bytes)
    sums = np.cumsum(sizes) / sizes.sum()
    for part in PARTS:
        columns[f"bytes_in_first_{part:.0%}"] = float(sums[int(part * (len(sizes) - 1))])
    return columns


def _cluster(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    bandwidth, overhead, _ = _across(s)
    workers = [rate for rate in s.worker_bandwidths if rate is not None] or [bandwidth.median]
    servers = [rate for rate in s.server_bandwidths if rate is not None] or [bandwidth.median]
    compute = _compute_seconds(s)
    summing = scales.model_bytes * scales.fan_in / (s.sum_bytes_per_second or UNKNOWN_SUM_BYTES_PER_SECOND)
    return {
        "workers": _log(s.num_workers),
        "servers": _log(s.num_servers),
        "fan_in": _log(scales.fan_in),
        "slowest_worker": _log(min(workers) / float(np.median(workers))),
        "slowest_server": _log(min(servers) / float(np.median(servers))),
        "server_bound": _log(min(servers) / scales.fan_in / min(workers)),
        "dearest_messages": _log(overhead.most / overhead.median),
        "wire_in_step": _log(scales.wire_seconds / scales.step_seconds),
        "latency_in_step": _log(scales.latency / scales.step_seconds),
        "latency_in_overheads": _log(scales.latency / scales.overhead),
        "overhead_of_step": _log(scales.overhead / scales.step_seconds),
        "compute_in_step": _log(compute / scales.step_seconds),
        "compute_against_wire": _log(compute / scales.wire_seconds),
        "forward_part": (s.forward_seconds or compute / 3) / compute,
        "summing_in_step": _log(summing / scales.step_seconds),
        "summing_against_wire": _log(summing / scales.wire_seconds),
    }


def _counters(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    expected = step_seconds(s, s.config) or scales.step_seconds
    floor = max(scales.wire_seconds, _compute_seconds(s))
    return {
        "step_against_form": _log(scales.step_seconds / expected),
        "step_against_floor": _log(scales.step_seconds / floor),
        "queue_wait_in_step": _log(_or(s.queue_wait_seconds, 0.1 * scales.step_seconds) / scales.step_seconds),
        "credit_stall": _or(s.credit_stall, 0.3),
        "ack_in_round_trips": _log(_or(s.ack_seconds, 2 * scales.round_trip) / scales.round_trip),
        "ack_in_credits": _log(_or(s.ack_seconds, 2 * scales.round_trip) * scales.rate / here.credit[0]),
        "worker_use": _log(_or(s.worker_use, 0.5)),
        "server_use": _log(_or(s.server_use, 0.5)),
    }


def _doubt(s: Situation, scales: _Scales, here: _Sizes, there: _Sizes, prior: Array) -> dict[str, Column]:
    bandwidth, overhead, _ = _across(s)
    return {
        "bandwidth_spread": bandwidth.spread,
        "overhead_spread": overhead.spread,
        "latency_spread": 0.5 if s.latency_seconds is None else s.latency_seconds.spread,
        "no_latency": float(s.latency_seconds is None),
        "no_compute": float(s.forward_seconds is None or s.backward_seconds is None),
        "no_tensors": float(not s.tensor_bytes),
        "no_counters": float(s.ack_seconds is None),
    }


def _compute_seconds(s: Situation) -> float:
    """Return the time of both passes; half of the step where workers cannot tell."""
    if s.forward_seconds is None or s.backward_seconds is None:
        return 0.5 * (s.step_seconds or 1.0)
    return max(s.forward_seconds + s.backward_seconds, 1e-9)


def _or(value: Optional[float], typical: float) -> float:
    return typical if value is None else value


_Group = Callable[[Situation, _Scales, _Sizes, _Sizes, Array], "dict[str, Column]"]
_GROUPS: Mapping[str, _Group] = {
    "prior": _prior,
    "sizes": _candidate,
    "present": _present,
    "model": _model,
    "cluster": _cluster,
    "counters": _counters,
    "doubt": _doubt,
}


def _layout() -> dict[str, tuple[str, ...]]:
    """Return the names of the columns of each group, which any situation tells."""
    bandwidth, overhead = Across(1e9, 1e9, 1e9), Across(1e-4, 1e-4, 1e-4)
    situation = Situation(
        config=CommConfig(),
        num_workers=1,
        num_servers=1,
        model_bytes=1 << 20,
        step_seconds=1.0,
        bandwidth_bytes_per_second=bandwidth,
        overhead_seconds=overhead,
    )
    scales = _scales(situation)
    sizes = _sizes([situation.config], scales)
    return {name: tuple(group(situation, scales, sizes, sizes, np.zeros(1))) for name, group in _GROUPS.items()}


#: The columns by group, in their order.
GROUPS: Mapping[str, tuple[str, ...]] = _layout()
NAMES: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)
