"""What features are made of: a situation's scales, and what configurations are on them.

Bytes and seconds meet here for the last time: how fast the model can move, how its tensors lie on the servers, how many
messages a configuration makes of them, and how a step flows (:mod:`tuner.pipeline`). :mod:`tuner.features` makes ratios
of it all.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Sequence, Union

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from ps.placement import Placement
from ps.transfer import SPAN_COST
from tuner.conditions import SUM_BYTES_PER_SECOND
from tuner.pipeline import Flow, flow, pieces_of
from tuner.rule import UNKNOWN_LATENCY_SECONDS
from tuner.situation import Across, Situation, rates_of

__all__ = ["Configs", "Scales", "Shards", "View", "known", "view_of"]

Array = npt.NDArray[np.float64]

#: The forward pass computes for this part of the backward pass; what a worker reports of it has waits in it.
FORWARD_PART = 0.5
#: A message takes ``(wire ** p + overhead ** p) ** (1 / p)``, and a rate is limited by messages and by credit alike.
MESSAGE_POWER, RATE_POWER = 4.0, 4.0
#: A worker's link may be ahead by two partitions, or by this.
SKEW_BYTES = 1e6
#: So many tensors are assumed at most where sizes are not known.
MOST_ASSUMED = 100


class Scales(NamedTuple):
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
    shards: Shards
    sizes: Array  # of tensors, in forward order; all alike where unknown
    tensors: int


class Shards(NamedTuple):
    """How the tensors lie on the servers: what is queued and cut are shards."""

    size_bytes: Array  # ascending, each size once
    number: Array  # of shards of each size
    part: Array  # of the model in shards of each size
    largest_bytes: float
    most_loaded: float  # part of the model on the server with the most


class Configs(NamedTuple):
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

    def take(self, rows: slice) -> Configs:
        partition, credit, fusion, skew, whole, partitions, messages, rate = (array[rows] for array in self[:8])
        flow = Flow(*(array[rows] for array in self.flow))
        return Configs(partition, credit, fusion, skew, whole, partitions, messages, rate, flow)


class View(NamedTuple):
    """All that columns are made of."""

    situation: Situation
    bandwidth: Across
    overhead: Across
    scales: Scales
    here: Configs  # what is in force, alone
    there: Configs  # the candidates


def known(situation: Situation) -> bool:
    """Return whether enough is known for features: model, bandwidth, overhead and step time."""
    return bool(
        situation.model_bytes
        and situation.step_seconds
        and situation.bandwidth_bytes_per_second is not None
        and situation.overhead_seconds is not None
    )


def view_of(situation: Situation, candidates: Sequence[CommConfig]) -> View:
    bandwidth, overhead = (situation.bandwidth_bytes_per_second, situation.overhead_seconds)
    if not known(situation) or bandwidth is None or overhead is None:
        raise ValueError("features need model_bytes, step_seconds, bandwidth and overhead")
    scales = _scales(situation, bandwidth, overhead)
    configs = _configs([situation.config, *candidates], scales, situation)
    return View(situation, bandwidth, overhead, scales, configs.take(slice(0, 1)), configs.take(slice(1, None)))


def _scales(situation: Situation, bandwidth: Across, overhead: Across) -> Scales:
    latency = UNKNOWN_LATENCY_SECONDS if situation.latency_seconds is None else situation.latency_seconds.median
    workers, servers = rates_of(situation, bandwidth)
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
    return Scales(
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
        sum_seconds=1 / (situation.sum_bytes_per_second or SUM_BYTES_PER_SECOND),
        model_bytes=model_bytes,
        shards=shards,
        sizes=np.array(tensor_bytes, float),
        tensors=tensors,
    )


@functools.lru_cache(maxsize=8)
def _shards(tensor_bytes: tuple[int, ...], num_servers: int) -> Shards:
    placement = Placement(num_servers)
    per_tensor = np.array([len(placement.place(max(1, size), 1)) for size in tensor_bytes], float)
    sizes, which = np.unique(np.maximum(1, np.array(tensor_bytes, float)) / per_tensor, return_inverse=True)
    number = np.bincount(which, per_tensor).astype(float)
    total_bytes = sum(placement.load_bytes)
    most_loaded = max(placement.load_bytes) / total_bytes
    return Shards(sizes, number, number * sizes / total_bytes, float(sizes[-1]), most_loaded)


def _configs(configs: Sequence[CommConfig], scales: Scales, situation: Situation) -> Configs:
    asked = np.array([(c.partition_bytes, c.credit_bytes, c.fused_bytes) for c in configs], float)
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
    overhead = scales.overhead * (1 + SPAN_COST * (partitions / messages - 1))
    there_and_back = 2 * (overhead + payload * scales.byte_seconds)
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
    return Configs(partition, credit, fusion, skew, whole, partitions, messages, rate, flows)


def _either(one: Array, other: Union[float, Array], power: float) -> Array:
    """Return the sum of both for ``power`` 1, the larger one for a large ``power``, and what lies between."""
    result: Array = (one**power + other**power) ** (1 / power)
    return result
