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

from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.situation import Across, Situation, rates_of
from tuner.view import Scales, View, known, view_of

__all__ = ["GROUPS", "NAMES", "Features", "features", "known"]

Array = npt.NDArray[np.float64]
Column = Union[float, Array]

#: Logarithms beyond this are cut: a factor of about 20,000.
LARGEST = 10.0
#: The fluid's gain or loss beyond this is cut, in the network's input as in what its output is added to.
LARGEST_PRIOR = 3.0
#: Quantiles of the bytes over tensors sorted by size.
QUANTILES = (0.1, 0.5, 0.9)
#: Parts of the tensors in forward order, of which the part of the bytes is told.
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)


class Features(NamedTuple):
    """Of each candidate: its columns, and the fluid's log speedup over the configuration in force."""

    columns: npt.NDArray[np.float32]  #: shape ``(candidates, len(NAMES))``
    prior: npt.NDArray[np.float32]  #: shape ``(candidates,)``


def features(situation: Situation, candidates: Sequence[CommConfig]) -> Features:
    """Return the columns of each of ``candidates``.

    Raises
    ------
    ValueError
        Too little is known of the situation, see :func:`known`.
    """
    view = view_of(situation, candidates)
    columns = np.empty((len(candidates), len(NAMES)), np.float32)
    number = 0
    for group in _GROUPS.values():
        for column in group(view).values():
            columns[:, number] = column
            number += 1
    np.clip(columns, -LARGEST, LARGEST, out=columns)
    return Features(columns, _gain(view).astype(np.float32))


# --------------------------------------------------------------------------------------------- columns


def _log(value: Union[float, Array]) -> Array:
    """Return the logarithm, of 1e-9 where it is less."""
    result: Array = np.log(np.maximum(value, 1e-9))
    return result


def _gain(view: View) -> Array:
    """Return the fluid's log speedup of each candidate."""
    gain: Array = np.log(view.here.flow.by_priority / view.there.flow.by_priority)
    return np.clip(gain, -LARGEST_PRIOR, LARGEST_PRIOR)


def _flow(view: View) -> dict[str, Column]:
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


def _sizes(view: View) -> dict[str, Column]:
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


def _present(view: View) -> dict[str, Column]:
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


def _model(view: View) -> dict[str, Column]:
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


def _cluster(view: View) -> dict[str, Column]:
    s, scales = view.situation, view.scales
    workers, servers = rates_of(s, view.bandwidth)
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


def _counters(view: View) -> dict[str, Column]:
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


def _doubt(view: View) -> dict[str, Column]:
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


def _compute(scales: Scales) -> float:
    return max(scales.forward_seconds + scales.backward_seconds, 1e-9)


def _or(value: Optional[float], typical: float) -> float:
    return typical if value is None else value


_GROUPS: Mapping[str, Callable[[View], dict[str, Column]]] = {
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
    view = view_of(situation, [situation.config])
    return {name: tuple(group(view)) for name, group in _GROUPS.items()}


#: The columns by group, in their order.
GROUPS: Mapping[str, tuple[str, ...]] = _layout()
NAMES: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)
