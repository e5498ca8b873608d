"""What the meta-network sees of a situation and a candidate: numbers without a unit, nearly all of them logarithms.

A network that saw bytes and seconds would learn one cluster. Ratios carry over: a partition against what the wire moves
in the time of one message's overhead, a credit against what is under way in a round trip, a wait against the step that
it delays. Two jobs with equal ratios behave alike, whatever their size.

Columns come in groups, so that training can tell what each is worth:

========== =================================================================================================
flow       what a fluid (:mod:`tuner.pipeline`) expects of the candidate, by priority and first in, first out
sizes      the candidate's partition and credit against network, model and step
present    the same of the configuration in force, and how far the candidate is from it
model      tensors: how many, how large, what part is near the input
cluster    workers, servers, how unequal they are, computation against communication
counters   how the present configuration behaves: waits, stalls, use of the wire, step time against the fluid's
doubt      spreads of the estimates, and what is not known at all
========== =================================================================================================

What is unknown is replaced by a typical value, and a column of *doubt* says so.
"""

from __future__ import annotations

import functools
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from ps.placement import Placement
from tuner.pipeline import Flow, flow, pieces_of
from tuner.situation import Across, Situation

__all__ = ["GROUPS", "NAMES", "Features", "features", "known"]

Array = npt.NDArray[np.float64]
Column = Union[float, Array]

#: Logarithms beyond this are cut: a factor of about 20,000.
LARGEST = 10.0
#: The fluid's gain or loss beyond this is cut, in the network's input as in what its output is added to.
LARGEST_PRIOR = 3.0
#: Assumed where nothing else is known.
UNKNOWN_LATENCY_SECONDS = 250e-6
UNKNOWN_SUM_BYTES_PER_SECOND = 4e9
#: The forward pass computes for this part of the backward pass; what a worker reports of it has waits in it.
FORWARD_PART = 0.5
#: A message takes ``(wire ** p + overhead ** p) ** (1 / p)``, and a rate is limited by messages and by credit alike.
MESSAGE_POWER, RATE_POWER = 4.0, 4.0
#: A worker's link may be ahead by two partitions, or by this.
SKEW_BYTES = 1e6
#: So many tensors are assumed at most where sizes are not known.
MOST_ASSUMED = 100
#: Quantiles of the bytes over tensors sorted by size.
QUANTILES = (0.1, 0.5, 0.9)
#: Parts of the tensors in forward order, of which the part of the bytes is told.
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)


class Features(NamedTuple):
    """Of each candidate: its columns, and the fluid's log speedup over the configuration in force."""

    columns: npt.NDArray[np.float32]  #: shape ``(candidates, len(NAMES))``
    prior: npt.NDArray[np.float32]  #: shape ``(candidates,)``


class _Scales(NamedTuple):
    """What everything is measured against."""

    rate: float  # bytes of the model that a worker can move per second
    fan_in: float
    wire_seconds: float  # the model on the wire
    step_seconds: float
    forward_seconds: float  # computation
    backward_seconds: float
    latency: float
    overhead: float
    round_trip: float
    byte_seconds: float
    sum_seconds: float  # a server's, per byte
    model_bytes: float
    shards: _Shards
    sizes: Array  # of tensors, in forward order; all alike where unknown
    tensors: int


class _Shards(NamedTuple):
    """How the tensors lie on the servers: what is queued and cut are shards."""

    size_bytes: Array  # ascending, each size once
    number: Array  # of shards of each size
    part: Array  # of the model in shards of each size
    largest_bytes: float
    most_loaded: float  # part of the model on the server with the most


class _Configs(NamedTuple):
    """Partition, credit and fusion of configurations, no larger than what they can apply to, and how a step flows."""

    partition: Array
    credit: Array
    fusion: Array
    skew: Array  # bytes that a worker's link may be ahead of its slowest, which knows no shards
    whole: Array  # whether the largest shard is sent in one piece
    partitions: Array  # of a worker per step
    messages: Array  # the same where small ones are joined
    rate: Array  # bytes per second
    flow: Flow

    def take(self, rows: slice) -> _Configs:
        partition, credit, fusion, skew, whole, partitions, messages, rate = (array[rows] for array in self[:8])
        flow = Flow(*(array[rows] for array in self.flow))
        return _Configs(partition, credit, fusion, skew, whole, partitions, messages, rate, flow)


class _View(NamedTuple):
    """All that columns are made of."""

    situation: Situation
    bandwidth: Across
    overhead: Across
    scales: _Scales
    here: _Configs  # what is in force, alone
    there: _Configs  # the candidates


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
    view = _view(situation, candidates)
    columns = np.empty((len(candidates), len(NAMES)), np.float32)
    number = 0
    for group in _GROUPS.values():
        for column in group(view).values():
            columns[:, number] = column
            number += 1
    np.clip(columns, -LARGEST, LARGEST, out=columns)
    return Features(columns, _gain(view).astype(np.float32))


def _view(situation: Situation, candidates: Sequence[CommConfig]) -> _View:
    bandwidth, overhead = (situation.bandwidth_bytes_per_second, situation.overhead_seconds)
    if not known(situation) or bandwidth is None or overhead is None:
        raise ValueError("features need model_bytes, step_seconds, bandwidth and overhead")
    scales = _scales(situation, bandwidth, overhead)
    configs = _configs([situation.config, *candidates], scales, situation)
    return _View(situation, bandwidth, overhead, scales, configs.take(slice(0, 1)), configs.take(slice(1, None)))


def _scales(situation: Situation, bandwidth: Across, overhead: Across) -> _Scales:
    latency = UNKNOWN_LATENCY_SECONDS if situation.latency_seconds is None else situation.latency_seconds.median
    workers, servers = _rates(situation, bandwidth)
    fan_in = situation.num_workers / situation.num_servers
    step_seconds = situation.step_seconds or 1.0
    backward = 0.5 * step_seconds if situation.backward_seconds is None else situation.backward_seconds
    model_bytes = float(situation.model_bytes)
    tensors = max(1, situation.tensors, len(situation.tensor_bytes))
    tensor_bytes = situation.tensor_bytes
    if not tensor_bytes:
        count = min(tensors, MOST_ASSUMED)
        tensor_bytes = (max(1, situation.model_bytes // count),) * count
    shards = _shards(tensor_bytes, situation.num_servers)
    rate = min(min(workers), min(servers) / (shards.most_loaded * situation.num_workers))
    return _Scales(
        rate=rate,
        fan_in=fan_in,
        wire_seconds=model_bytes / rate,
        step_seconds=step_seconds,
        forward_seconds=FORWARD_PART * backward,
        backward_seconds=backward,
        latency=latency,
        overhead=overhead.median,
        round_trip=2 * latency + 2.5 * overhead.median,
        byte_seconds=0.0 if situation.byte_seconds is None else situation.byte_seconds.median,
        sum_seconds=1 / (situation.sum_bytes_per_second or UNKNOWN_SUM_BYTES_PER_SECOND),
        model_bytes=model_bytes,
        shards=shards,
        sizes=np.array(tensor_bytes, float),
        tensors=tensors,
    )


@functools.lru_cache(maxsize=8)
def _shards(tensor_bytes: tuple[int, ...], num_servers: int) -> _Shards:
    placement = Placement(num_servers)
    per_tensor = np.array([len(placement.place(max(1, size), 1)) for size in tensor_bytes], float)
    sizes, which = np.unique(np.maximum(1, np.array(tensor_bytes, float)) / per_tensor, return_inverse=True)
    number = np.bincount(which, per_tensor).astype(float)
    total_bytes = sum(placement.load_bytes)
    most_loaded = max(placement.load_bytes) / total_bytes
    return _Shards(sizes, number, number * sizes / total_bytes, float(sizes[-1]), most_loaded)


def _rates(situation: Situation, bandwidth: Across) -> tuple[list[float], list[float]]:
    """Return the bandwidths of workers and of servers that are known; what is typical where none is."""
    workers = [rate for rate in situation.worker_bandwidths if rate is not None] or [bandwidth.least]
    servers = [rate for rate in situation.server_bandwidths if rate is not None] or [bandwidth.least]
    return workers, servers


def _configs(configs: Sequence[CommConfig], scales: _Scales, situation: Situation) -> _Configs:
    asked = np.array([(c.partition_bytes, c.credit_bytes, c.fusion_bytes) for c in configs], float)
    shards = scales.shards
    partition = np.minimum(asked[:, 0], shards.largest_bytes)
    credit = np.clip(asked[:, 1], partition, scales.model_bytes)
    fusion = np.clip(asked[:, 2], 1.0, scales.model_bytes)
    skew = np.minimum(np.maximum(2 * asked[:, 0], SKEW_BYTES), 2 * scales.model_bytes)
    # A shard is cut into so many partitions, or shares a message with others that are as small.
    cut = np.ceil(shards.size_bytes / partition[:, None])
    shared = np.clip(shards.size_bytes / fusion[:, None], 1 / scales.tensors, 1.0)
    partitions = cut @ shards.number
    messages = (cut * shared) @ shards.number
    payload = np.minimum(scales.model_bytes / messages, partition)
    # Each partition goes out and comes back; a server has those of several workers, and their sums.
    there_and_back = 2 * (scales.overhead + payload * scales.byte_seconds)
    thread = np.maximum(there_and_back, scales.fan_in * (there_and_back + payload * scales.sum_seconds))
    message = _either(payload / scales.rate, thread, MESSAGE_POWER)
    round_trip = message / 2 + scales.round_trip
    # Credit is split over links, which may always have one partition under way; servers have a link for each worker.
    links = np.maximum(asked[:, 1] / max(situation.num_servers, situation.num_workers), partition)
    in_flight = np.minimum(situation.num_servers * links, scales.model_bytes)
    rate = 1 / _either(message / payload, round_trip / in_flight, RATE_POWER)
    delay = 2 * partition / scales.rate + 2 * scales.latency + 4 * max(1.0, scales.fan_in) * scales.overhead
    same = len(situation.tensor_seconds) == len(scales.sizes)
    work = np.array(situation.tensor_seconds if same else ())
    pieces = pieces_of(scales.sizes, scales.forward_seconds, scales.backward_seconds, work)
    whole = (asked[:, 0] >= shards.largest_bytes).astype(float)
    flows = flow(pieces, rate, delay)
    return _Configs(partition, credit, fusion, skew, whole, partitions, messages, rate, flows)


def _either(one: Array, other: Union[float, Array], power: float) -> Array:
    """Return the sum of both for ``power`` 1, the larger one for a large ``power``, and what lies between."""
    result: Array = (one**power + other**power) ** (1 / power)
    return result


# --------------------------------------------------------------------------------------------- columns


def _log(value: Union[float, Array]) -> Array:
    """Return the logarithm, of 1e-9 where it is less."""
    result: Array = np.log(np.maximum(value, 1e-9))
    return result


def _gain(view: _View) -> Array:
    """Return the fluid's log speedup of each candidate."""
    gain: Array = np.log(view.here.flow.by_priority / view.there.flow.by_priority)
    return np.clip(gain, -LARGEST_PRIOR, LARGEST_PRIOR)


def _flow(view: _View) -> dict[str, Column]:
    there, here, scales = view.there, view.here, view.scales
    gain = _gain(view)
    return {
        "gain": gain,
        "gain_against_best": gain - gain.max(),
        "gain_in_order": np.clip(np.log(here.flow.in_order / there.flow.in_order), -LARGEST_PRIOR, LARGEST_PRIOR),
        "order_against_priority": np.log(there.flow.in_order / there.flow.by_priority),
        "flow_in_step": np.log(there.flow.by_priority / scales.step_seconds),
        "flow_against_floor": np.log(there.flow.by_priority / max(scales.wire_seconds, _compute(scales))),
        "left": there.flow.left,
        "left_in_step": _log(there.flow.left * scales.model_bytes / there.rate / scales.step_seconds),
        "rate_of_wire": np.log(there.rate / scales.rate),
    }


def _sizes(view: _View) -> dict[str, Column]:
    s, scales, there = view.situation, view.scales, view.there
    mean_shard = scales.model_bytes / scales.shards.number.sum()
    return {
        "overhead_in_partitions": _log(scales.overhead * scales.rate / there.partition),
        "server_overhead_in_partitions": _log(scales.fan_in * scales.overhead * scales.rate / there.partition),
        "round_trip_in_partitions": _log(scales.round_trip * scales.rate / there.partition),
        "round_trips_in_credit": _log(there.credit / (scales.rate * scales.round_trip)),
        "partitions_in_credit": _log(there.credit / there.partition),
        "partitions_in_link_credit": _log(there.credit / s.num_servers / there.partition),
        "partitions_in_server_link_credit": _log(there.credit / s.num_workers / there.partition),
        "partition_in_model": _log(there.partition / scales.model_bytes),
        "credit_in_model": _log(there.credit / scales.model_bytes),
        "partition_wait_in_step": _log(there.partition / scales.rate / scales.step_seconds),
        "credit_wait_in_step": _log(there.credit / scales.rate / scales.step_seconds),
        "overhead_in_step": _log(there.messages * scales.overhead / scales.step_seconds),
        "server_overhead_in_wire": _log(there.messages * scales.fan_in * scales.overhead / scales.wire_seconds),
        "payload_in_partitions": _log(scales.model_bytes / there.messages / there.partition),
        "shards_in_partitions": _log(there.partitions / scales.shards.number.sum()),
        "bytes_whole": (scales.shards.size_bytes <= there.partition[:, None]) @ scales.shards.part,
        "whole": there.whole,
        # A link fuses no more than its credit, and runs ahead of the slowest by no more than its skew.
        "worker_fusion_in_tensors": _log(np.minimum(there.fusion, there.credit / s.num_servers) / mean_shard),
        "server_fusion_in_tensors": _log(np.minimum(there.fusion, there.credit / s.num_workers) / mean_shard),
        "skew_in_credit": _log(there.skew / there.credit),
        "skew_in_model": _log(there.skew / scales.model_bytes),
        "skew_wait_in_step": _log(there.skew / scales.rate / scales.step_seconds),
    }


def _present(view: _View) -> dict[str, Column]:
    scales, here, there = view.scales, view.here, view.there
    return {
        "partition_change": _log(there.partition / here.partition),
        "credit_change": _log(there.credit / here.credit),
        "present_overhead_in_partitions": _log(scales.overhead * scales.rate / here.partition[0]),
        "present_round_trips_in_credit": _log(here.credit[0] / (scales.rate * scales.round_trip)),
        "present_partition_wait_in_step": _log(here.partition[0] / scales.rate / scales.step_seconds),
        "present_credit_wait_in_step": _log(here.credit[0] / scales.rate / scales.step_seconds),
        "skew_change": _log(there.skew / here.skew),
        "present_whole": float(here.whole[0]),
    }


def _model(view: _View) -> dict[str, Column]:
    scales, there = view.scales, view.there
    columns: dict[str, Column] = {"tensors": _log(scales.tensors)}
    shards = scales.shards
    shares = np.cumsum(shards.part)
    for quantile in QUANTILES:
        size = shards.size_bytes[min(int(np.searchsorted(shares, quantile)), len(shares) - 1)]
        columns[f"shard_{quantile:.0%}_in_partitions"] = _log(size / there.partition)
    columns["shards"] = _log(shards.number.sum())
    columns["largest_in_model"] = _log(scales.sizes.max() / scales.model_bytes)
    columns["largest_at"] = float(scales.sizes.argmax() / len(scales.sizes))
    columns["most_loaded"] = _log(shards.most_loaded * view.situation.num_servers)
    sums = np.cumsum(scales.sizes) / scales.model_bytes
    for part in PARTS:
        columns[f"bytes_in_first_{part:.0%}"] = float(sums[int(part * (len(scales.sizes) - 1))])
    return columns


def _cluster(view: _View) -> dict[str, Column]:
    s, scales = view.situation, view.scales
    workers, servers = _rates(s, view.bandwidth)
    compute = _compute(scales)
    summing = scales.model_bytes * scales.fan_in * scales.sum_seconds
    return {
        "workers": _log(s.num_workers),
        "servers": _log(s.num_servers),
        "fan_in": _log(scales.fan_in),
        "slowest_worker": _log(min(workers) / float(np.median(workers))),
        "slowest_server": _log(min(servers) / float(np.median(servers))),
        "server_bound": _log(min(servers) / scales.fan_in / min(workers)),
        "dearest_messages": _log(view.overhead.most / view.overhead.median),
        "wire_in_step": _log(scales.wire_seconds / scales.step_seconds),
        "latency_in_step": _log(scales.latency / scales.step_seconds),
        "latency_in_overheads": _log(scales.latency / scales.overhead),
        "overhead_of_step": _log(scales.overhead / scales.step_seconds),
        "compute_in_step": _log(compute / scales.step_seconds),
        "compute_against_wire": _log(compute / scales.wire_seconds),
        "bytes_on_thread_in_step": _log(2 * scales.model_bytes * scales.byte_seconds / scales.step_seconds),
        "bytes_on_thread_in_wire": _log(2 * scales.model_bytes * scales.byte_seconds / scales.wire_seconds),
        "summing_in_step": _log(summing / scales.step_seconds),
        "summing_against_wire": _log(summing / scales.wire_seconds),
    }


def _counters(view: _View) -> dict[str, Column]:
    s, scales, here = view.situation, view.scales, view.here
    ack = _or(s.ack_seconds, 2 * scales.round_trip)
    return {
        "step_against_flow": _log(scales.step_seconds / here.flow.by_priority[0]),
        "step_against_flow_in_order": _log(scales.step_seconds / here.flow.in_order[0]),
        "step_against_floor": _log(scales.step_seconds / max(scales.wire_seconds, _compute(scales))),
        "forward_in_step": _or(s.forward_seconds, 0.5 * scales.step_seconds) / scales.step_seconds,
        "queue_wait_in_step": _log(_or(s.queue_wait_seconds, 0.1 * scales.step_seconds) / scales.step_seconds),
        "credit_stall": _or(s.credit_stall, 0.3),
        "ack_in_round_trips": _log(ack / scales.round_trip),
        "ack_in_credits": _log(ack * scales.rate / here.credit[0]),
        "worker_use": _log(_or(s.worker_use, 0.5)),
        "server_use": _log(_or(s.server_use, 0.5)),
    }


def _doubt(view: _View) -> dict[str, Column]:
    s = view.situation
    return {
        "bandwidth_spread": view.bandwidth.spread,
        "overhead_spread": view.overhead.spread,
        "latency_spread": 0.5 if s.latency_seconds is None else s.latency_seconds.spread,
        "no_latency": float(s.latency_seconds is None),
        "no_compute": float(s.forward_seconds is None or s.backward_seconds is None),
        "no_tensors": float(not s.tensor_bytes),
        "no_layers": float(len(s.tensor_seconds) != len(view.scales.sizes)),
        "no_byte_seconds": float(s.byte_seconds is None),
        "no_counters": float(s.ack_seconds is None),
    }


def _compute(scales: _Scales) -> float:
    return max(scales.forward_seconds + scales.backward_seconds, 1e-9)


def _or(value: Optional[float], typical: float) -> float:
    return typical if value is None else value


_GROUPS: Mapping[str, Callable[[_View], dict[str, Column]]] = {
    "flow": _flow,
    "sizes": _sizes,
    "present": _present,
    "model": _model,
    "cluster": _cluster,
    "counters": _counters,
    "doubt": _doubt,
}


def _layout() -> dict[str, tuple[str, ...]]:
    """Return the names of the columns of each group, which any situation tells."""
    situation = Situation(
        config=CommConfig(),
        num_workers=1,
        num_servers=1,
        model_bytes=1 << 20,
        step_seconds=1.0,
        bandwidth_bytes_per_second=Across(1e9, 1e9, 1e9),
        overhead_seconds=Across(1e-4, 1e-4, 1e-4),
    )
    view = _view(situation, [situation.config])
    return {name: tuple(group(view)) for name, group in _GROUPS.items()}


#: The columns by group, in their order.
GROUPS: Mapping[str, tuple[str, ...]] = _layout()
NAMES: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)
