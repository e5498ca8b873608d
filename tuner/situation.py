"""What is known of a job now: observations of all nodes under one configuration, summarised for a predictor.

An :class:`~ps.stats.Observation` is one node's window. A :class:`Situation` is what a decision needs of many of them:
the model and the cluster as far as they are known, the time of a step and its parts, what the network is estimated to
be over all hosts, and how the present configuration behaves (waits, stalls, use of the wire). The same class describes
a running job, a simulated one and a row of a data set, so a predictor that was trained on simulations reads a real job.

What nobody has observed is None. Estimates on fewer than :data:`MIN_SAMPLES` windows or messages count as not observed.
"""

from __future__ import annotations

import statistics
from typing import Callable, Iterable, NamedTuple, Optional, Sequence

import msgspec

from ps.config import CommConfig, Role
from ps.stats import Estimate, LayerGroup, Observation

__all__ = ["Across", "HostView", "Situation", "rates_of"]

#: An estimate on fewer windows or messages is not used.
MIN_SAMPLES = 3


class Across(NamedTuple):
    """One quantity over all hosts that know it, and the typical relative spread of their estimates."""

    least: float
    median: float
    most: float
    spread: float = 0.0

    @classmethod
    def of(
        cls, estimates: Iterable[Optional[Estimate]], middle: Callable[[Sequence[float]], float] = statistics.median
    ) -> Optional[Across]:
        """Summarise what hosts have estimated; None where none knows."""
        known = [estimate for estimate in estimates if estimate is not None and estimate.samples >= MIN_SAMPLES]
        if not known:
            return None
        values = [estimate.value for estimate in known]
        spread = statistics.median(estimate.spread for estimate in known)
        return cls(min(values), middle(values), max(values), spread)


class HostView(msgspec.Struct, frozen=True, array_like=True):
    """What one node knows of its own host; None where it does not."""

    send_bytes_per_second: Optional[float] = None
    receive_bytes_per_second: Optional[float] = None
    overhead_seconds: Optional[float] = None
    byte_seconds: Optional[float] = None
    forward_seconds: Optional[float] = None  #: a worker's, computation alone
    sum_bytes_per_second: Optional[float] = None  #: a server's


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known now. Seconds and bytes are per step where nothing else is said.

    Attributes
    ----------
    config
        In force while all of this was seen.
    tensors, model_bytes
        Pushed per step by a worker; 0 while unknown.
    tensor_bytes
        Size of each tensor in forward order; empty while unknown.
    tensor_seconds
        Computation that ends with the gradient of each of these; empty while unknown.
    step_seconds
        Median over workers and windows; ``forward_seconds`` and ``backward_seconds`` likewise, where a worker can tell.
    workers, servers
        Each host by rank.
    bandwidth_bytes_per_second, overhead_seconds
        Over all hosts; the overhead is per message. ``byte_seconds`` is what the communication thread takes per byte on
        top of it.
    latency_seconds
        One way. Workers and servers are the two ends of the same links, and queues only ever add to what either sees:
        the side whose median is less is right, and of two nodes in its middle the lower.
    sum_bytes_per_second
        Of the slowest server.
    queue_wait_seconds
        Median over workers of the mean wait of a partition.
    credit_stall
        Part of the time in which a worker had work queued and no credit, median over workers.
    ack_seconds
        Median round trip of workers' messages.
    worker_use, server_use
        Part of the bandwidth that was used, on the busiest worker and the busiest server; None without bandwidth.
    """

    config: CommConfig
    num_workers: int
    num_servers: int
    tensors: int = 0
    model_bytes: int = 0
    tensor_bytes: tuple[int, ...] = ()
    tensor_seconds: tuple[float, ...] = ()
    step_seconds: Optional[float] = None
    forward_seconds: Optional[float] = None
    backward_seconds: Optional[float] = None
    workers: tuple[HostView, ...] = ()
    servers: tuple[HostView, ...] = ()
    bandwidth_bytes_per_second: Optional[Across] = None
    latency_seconds: Optional[Across] = None
    overhead_seconds: Optional[Across] = None
    byte_seconds: Optional[Across] = None
    sum_bytes_per_second: Optional[float] = None
    queue_wait_seconds: Optional[float] = None
    credit_stall: Optional[float] = None
    ack_seconds: Optional[float] = None
    worker_use: Optional[float] = None
    server_use: Optional[float] = None

    @classmethod
    def from_observations(cls, observations: Sequence[Observation], config: CommConfig) -> Optional[Situation]:
        """Summarise windows that nodes have seen under ``config``, any number per node, oldest first.

        Estimates carry their own past, so each node's last one counts. None where no worker is among the nodes.
        """
        last = {(observation.role, observation.rank): observation for observation in observations}
        workers = [last[key] for key in sorted(last) if key[0] is Role.WORKER]
        servers = [last[key] for key in sorted(last) if key[0] is Role.SERVER]
        if not workers:
            return None
        nodes = [*workers, *servers]
        seen = [observation for observation in observations if observation.role is Role.WORKER]
        passes = _passes(seen)
        return cls(
            config=config,
            num_workers=workers[0].num_workers,
            num_servers=workers[0].num_servers,
            tensors=max(worker.tensors for worker in workers),
            model_bytes=max(worker.model_bytes for worker in workers),
            tensor_bytes=max((_tensor_bytes(worker) for worker in workers), key=len),
            tensor_seconds=max((_tensor_seconds(worker.layers) for worker in workers), key=len),
            step_seconds=_median(seen, lambda worker: worker.step_seconds),
            forward_seconds=passes.forward_seconds,
            backward_seconds=passes.backward_seconds,
            workers=_hosts(workers, workers[0].num_workers, passes.forward_part),
            servers=_hosts(servers, workers[0].num_servers),
            bandwidth_bytes_per_second=Across.of(node.bandwidth_bytes_per_second for node in nodes),
            latency_seconds=_latency(workers, servers),
            overhead_seconds=Across.of(node.overhead_seconds for node in nodes),
            byte_seconds=Across.of(node.byte_seconds for node in nodes),
            sum_bytes_per_second=min(filter(None, map(_sum_rate, servers)), default=None),
            queue_wait_seconds=_median(seen, lambda worker: worker.queue_wait_seconds),
            credit_stall=_median(
                seen, lambda worker: worker.credit_stall_seconds / worker.window_seconds if worker.steps else None
            ),
            ack_seconds=_median(seen, lambda worker: worker.ack_seconds),
            worker_use=_most_used(workers),
            server_use=_most_used(servers),
        )


def rates_of(situation: Situation, bandwidth: Across) -> tuple[list[float], list[float]]:
    """Return the bandwidths of workers' and of servers' sending sides that are known; the least where none is."""

    def rates(hosts: Iterable[HostView]) -> list[float]:
        known = [host.send_bytes_per_second for host in hosts if host.send_bytes_per_second is not None]
        return known or [bandwidth.least]

    return rates(situation.workers), rates(situation.servers)


def _latency(*sides: Sequence[Observation]) -> Optional[Across]:
    known = (Across.of((node.latency_seconds for node in side), statistics.median_low) for side in sides)
    return min(filter(None, known), key=lambda across: across.median, default=None)


class _Passes(NamedTuple):
    """Computation of a step, and how long forward is beside backward."""

    forward_seconds: Optional[float]
    backward_seconds: Optional[float]
    forward_part: Optional[float]


def _passes(workers: Sequence[Observation]) -> _Passes:
    """Return the passes of the worker in the middle.

    All compute the same model, so forward is the same part of backward everywhere. Backward waits for nothing, but a
    worker whose sums are late sees no more of its own forward pass than a bound: the least part is right.
    """
    backward = _median(workers, lambda worker: worker.backward_seconds)
    parts = [
        worker.forward_seconds / worker.backward_seconds
        for worker in workers
        if worker.forward_seconds is not None and worker.backward_seconds
    ]
    if not parts or backward is None:
        return _Passes(_median(workers, lambda worker: worker.forward_seconds), backward, None)
    return _Passes(min(parts) * backward, backward, min(parts))


def _median(observations: Iterable[Observation], value: Callable[[Observation], Optional[float]]) -> Optional[float]:
    known = [number for number in map(value, observations) if number is not None]
    return statistics.median(known) if known else None


def _tensor_bytes(worker: Observation) -> tuple[int, ...]:
    """Return the size of each tensor; where only groups of them are known, those of a group are taken to be alike."""
    grouped = (layer.size_bytes // layer.tensors for layer in worker.layers for _ in range(layer.tensors))
    return worker.tensor_bytes or tuple(grouped)


def _tensor_seconds(layers: Sequence[LayerGroup]) -> tuple[float, ...]:
    """Return the backward computation of each tensor; those of a group are taken to be alike."""
    return tuple(layer.backward_seconds / layer.tensors for layer in layers for _ in range(layer.tensors))


def _known(estimate: Optional[Estimate]) -> Optional[float]:
    return estimate.value if estimate is not None and estimate.samples >= MIN_SAMPLES else None


def _sum_rate(server: Observation) -> Optional[float]:
    known = _known(server.sum_bytes_per_second)
    if known is None and server.sum_seconds > 0:
        return server.sum_bytes / server.sum_seconds
    return known


def _hosts(nodes: Iterable[Observation], count: int, forward_part: Optional[float] = None) -> tuple[HostView, ...]:
    hosts = [HostView()] * count
    for node in nodes:
        forward_seconds = node.forward_seconds
        if forward_part is not None and node.backward_seconds:
            forward_seconds = forward_part * node.backward_seconds
        hosts[node.rank] = HostView(
            _known(node.bandwidth_bytes_per_second),
            _known(node.receive_bandwidth_bytes_per_second),
            _known(node.overhead_seconds),
            _known(node.byte_seconds),
            forward_seconds,
            _sum_rate(node),
        )
    return tuple(hosts)


def _most_used(nodes: Iterable[Observation]) -> Optional[float]:
    uses = []
    for node in nodes:
        bandwidth = _known(node.bandwidth_bytes_per_second)
        if bandwidth is not None and node.window_seconds > 0:
            uses.append(node.bytes_sent / (node.window_seconds * bandwidth))
    return max(uses, default=None)
