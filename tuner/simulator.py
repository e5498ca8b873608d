"""Training steps on a virtual clock: the project's own links and ledgers, without sockets, threads and memory.

What decides is not modelled but run: :mod:`ps.placement` places the tensors, :mod:`ps.partition` cuts them,
:class:`ps.link_group.LinkGroup` chooses what leaves (priority, credit, fusion, bounded skew) and
:class:`ps.ledger.Ledger` says what is complete. What is modelled is what they run on (:mod:`tuner.conditions`):

* **accelerator**: computation takes the profile's times. A gradient is pushed when it is ready, and the layer that
  needs a tensor in the next forward pass waits for its sum;
* **communication thread**: one message at a time, in and out by turns, each for its overhead and its bytes. A server's
  thread also sums. An acknowledgement costs nothing, but waits for the thread;
* **network card**: one message at a time in each direction, first come, first served, acknowledgements among them. A
  message arrives as fast as the slower of both cards lets it, after the latency. The switch holds what a card cannot
  take yet.

An answer leaves as soon as the last worker's range is summed. All workers begin together; from the second step on, a
step is what it is in the long run. ``docs/simulator.md`` says what is left out, and how well it fits.

:mod:`tuner.compiled` does the same a hundred times faster; this is what it is checked against.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from statistics import fmean, median
from typing import Any, Callable, Sequence, Union

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ps.config import CommConfig
from ps.ledger import Ledger
from ps.link import MESSAGE_BYTES
from ps.link_group import LinkGroup
from ps.messages import Shard, Span, SpanKind
from ps.partition import cut
from ps.receiver import Receiver
from ps.transfer import SPAN_COST, Message, Transfer
from tuner.conditions import Conditions, Host
from tuner.layout import ITEM_BYTES, Configs, node_configs, shards_of
from tuner.profiles import ModelProfile

__all__ = ["Simulated", "simulate"]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a simulated run; times are means over workers and over all steps but the first.

    Attributes
    ----------
    step_seconds
        From the end of one forward pass to the end of the next.
    worker_step_seconds
        The same of each worker.
    first_tensor_seconds
        From the gradient of the first tensor, which is the last one of the backward pass, to its sum.
    forward_seconds
        As a job reports it: from the arrival of the first tensor to the end of the pass, waits for others included.
    backward_seconds
        Computation alone.
    queue_wait_seconds
        Mean time of a worker's partition between entering the queue and leaving it; of all steps.
    credit_stall_seconds
        Time per step in which a worker had work queued and could send none of it; of all steps.
    ack_seconds
        Median round trip of the workers' messages (the last thousand or so of each) from send to acknowledgement.
    messages, partitions
        Sent per worker and step.
    thread_seconds
        Time per step that a worker's communication thread worked; of all steps.
    events
        Of the whole run.
    """

    step_seconds: float
    worker_step_seconds: tuple[float, ...]
    first_tensor_seconds: float
    forward_seconds: float
    backward_seconds: float
    queue_wait_seconds: float
    credit_stall_seconds: float
    ack_seconds: float
    messages: float
    partitions: float
    thread_seconds: float
    events: int


def simulate(profile: ModelProfile, conditions: Conditions, config: Configs, steps: int = 3) -> Simulated:
    """Return what ``steps`` training steps are like.

    Parameters
    ----------
    config
        Of all nodes; or one per worker, where the servers use the first; or one per worker and server, in this order.
    steps
        At least 1. The first one, which finds everything idle, counts only where it is the only one.

    Examples
    --------
    >>> from tuner.profiles import TensorProfile
    >>> model = ModelProfile("one", (TensorProfile("weight", 1_000_000, 0.001, 0.002),))
    >>> round(simulate(model, Conditions.uniform(1, 1, 125e6, 0.0), CommConfig()).step_seconds, 3)
    0.015
    """
    return _Cluster(profile, conditions, node_configs(config, conditions), steps).run()


#: What travels: a data message, or the number up to which an acknowledgement acknowledges.
_Item = Union[Message, int]


class _Node:
    """A communication thread and a network card: what workers and servers have in common."""

    def __init__(self, cluster: _Cluster, rank: int, host: Host, config: CommConfig, num_peers: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self.host = host
        self.config = config
        self.peers: Sequence[_Node] = ()
        self.links = LinkGroup(range(num_peers), bounded_skew=isinstance(self, _Worker))
        self.links.configure(config)
        self.sum_byte_seconds = 0.0
        self.thread_seconds = 0.0
        self.round_trips: deque[float] = deque(maxlen=1024)
        self._receivers = [Receiver() for _ in range(num_peers)]
        self._inbox: deque[tuple[int, _Item]] = deque()
        self._busy = False
        self._prefer_send = False
        self._send_free = self._receive_free = 0.0  # when the network card has done all before

    # --------------------------------------------------------------------------- the network card

    def _transmit(self, peer: int, item: _Item) -> None:
        cluster, target = self.cluster, self.peers[peer]
        latency_seconds = cluster.conditions.latency_seconds
        begins = max(self._send_free, cluster.now)
        self._send_free = begins + _size_bytes(item) * (1 / self.host.send_bytes_per_second)
        ends = self._send_free + latency_seconds
        cluster.schedule(begins + latency_seconds, lambda: target._arrive(self.rank, item, ends))

    def _arrive(self, peer: int, item: _Item, ends: float) -> None:
        begins = max(self._receive_free, self.cluster.now)
        self._receive_free = begins + _size_bytes(item) * (1 / self.host.receive_bytes_per_second)
        self.cluster.schedule(max(self._receive_free, ends), lambda: self._received(peer, item))

    def _received(self, peer: int, item: _Item) -> None:
        self._inbox.append((peer, item))
        self._go_on()

    # ------------------------------------------------------------------- the communication thread

    def _go_on(self) -> None:
        """Give the thread, if it is idle, its next message: acknowledgements at once, then in and out by turns."""
        if self._busy:
            return
        inbox, now = self._inbox, self.cluster.now
        while inbox and isinstance(inbox[0][1], int):
            peer, seq = inbox.popleft()
            acknowledged = self.links.links[peer].acknowledge(seq, now)  # type: ignore[arg-type]  # it is a number
            self.round_trips.extend(now - message.sent_at for message in acknowledged)
        if self._prefer_send or not inbox:
            popped = self.links.pop(now)
            if popped is not None:
                link, message = popped
                self._work(message, 0.0, lambda: self._sent(link.peer, message))
                return
        if inbox:
            peer, received = inbox.popleft()
            assert isinstance(received, Message)
            self._work(received, self.sum_byte_seconds, lambda: self._taken(peer, received))

    def _work(self, message: Message, sum_byte_seconds: float, then: Callable[[], None]) -> None:
        payload_bytes = message.nbytes - MESSAGE_BYTES
        seconds = self.host.overhead_seconds * (1 + SPAN_COST * (len(message.spans) - 1))
        seconds += payload_bytes * self.host.byte_seconds
        seconds += payload_bytes * sum_byte_seconds
        self._busy = True
        self.thread_seconds += seconds
        self.cluster.schedule(self.cluster.now + seconds, then)

    def _sent(self, peer: int, message: Message) -> None:
        self._transmit(peer, message)
        self._busy = self._prefer_send = False
        self._go_on()

    def _taken(self, peer: int, message: Message) -> None:
        receiver = self._receivers[peer]
        receiver.accept(message.seq)
        for span in message.spans:
            self._take(peer, span)
        seq = receiver.acknowledge()
        assert seq is not None
        self._transmit(peer, seq)
        self._busy, self._prefer_send = False, True
        self._go_on()

    def _take(self, peer: int, span: Span) -> None:
        raise NotImplementedError

    def _put(self, peer: int, kind: SpanKind, tensor: int, version: int, start: int, stop: int) -> None:
        ranges = cut(start, stop, ITEM_BYTES, self.config.partition_bytes)
        transfer = Transfer(kind, tensor, version, -tensor, ITEM_BYTES, start, self.cluster.payload, ranges)
        self.links.put(peer, transfer, self.cluster.now)


class _Server(_Node):
    def __init__(self, cluster: _Cluster, rank: int, host: Host, config: CommConfig) -> None:
        super().__init__(cluster, rank, host, config, cluster.conditions.num_workers)
        self.sum_byte_seconds = 1 / (cluster.conditions.sum_bytes_per_second * host.speed)
        self._books = {
            tensor: _new_book(tensor, shard, cluster.conditions.num_workers)
            for tensor, shards in enumerate(cluster.shards)
            for shard in shards
            if shard.server == rank
        }

    def _take(self, peer: int, span: Span) -> None:
        book = self._books[span.tensor_id]
        for start, stop, _ in book.push(peer, span.version, span.start, _nothing(span.count), self.cluster.now):
            for worker in range(book.num_workers):
                self._put(worker, SpanKind.RESULT, span.tensor_id, span.version, start, stop)


class _Worker(_Node):
    def __init__(self, cluster: _Cluster, rank: int, host: Host, config: CommConfig) -> None:
        super().__init__(cluster, rank, host, config, cluster.conditions.num_servers)
        self.step_ends: list[float] = []
        self.first_tensor_seconds: list[float] = []
        self.forward_seconds: list[float] = []
        self._slowness = 1 / host.speed
        self._remaining: list[int] = []  # elements that are not answered yet, by tensor; -1: not pushed yet
        self._forward = 0  # the tensor that the forward pass waits for ...
        self._forward_at = 0.0  # ... since then
        self._issued_at = self._first_at = 0.0
        self._begin(0.0)

    def _begin(self, at: float) -> None:
        """Begin a backward pass."""
        self._forward = 0
        self._remaining = [-1] * len(self.cluster.shards)
        self._compute_gradient(len(self._remaining) - 1, at)

    def _compute_gradient(self, tensor: int, at: float) -> None:
        seconds = self.cluster.profile.tensors[tensor].backward_seconds * self._slowness
        self.cluster.schedule(at + seconds, lambda: self._push(tensor))

    def _push(self, tensor: int) -> None:
        """A gradient is ready: queue it, and go on with the backward pass."""
        shards = self.cluster.shards[tensor]
        self._remaining[tensor] = shards[-1].stop
        for shard in shards:
            self._put(shard.server, SpanKind.PUSH_PULL, tensor, len(self.step_ends) + 1, shard.start, shard.stop)
        if tensor:
            self._compute_gradient(tensor - 1, self.cluster.now)
        else:
            self._issued_at = self.cluster.now
        self._go_on()

    def _take(self, peer: int, span: Span) -> None:
        """Elements of a sum are there: go on with the forward pass as far as it goes."""
        tensor, remaining, now = span.tensor_id, self._remaining, self.cluster.now
        remaining[tensor] -= span.count
        if remaining[tensor]:
            return
        if tensor == 0:
            self._first_at = now
            self.first_tensor_seconds.append(now - self._issued_at)
        if tensor != self._forward:
            return
        at = max(self._forward_at, now)
        while tensor < len(remaining) and remaining[tensor] == 0:
            at += self.cluster.profile.tensors[tensor].forward_seconds * self._slowness
            tensor += 1
        self._forward, self._forward_at = tensor, at
        if tensor == len(remaining):
            self.step_ends.append(at)
            self.forward_seconds.append(at - self._first_at)
            if len(self.step_ends) < self.cluster.num_steps:
                self._begin(at)

    @property
    def step_seconds(self) -> float:
        ends = self.step_ends
        return ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)


class _Cluster:
    """All nodes, the clock, and what happens when."""

    def __init__(
        self, profile: ModelProfile, conditions: Conditions, configs: Sequence[CommConfig], num_steps: int
    ) -> None:
        self.profile = profile
        self.conditions = conditions
        self.num_steps = num_steps
        self.now = 0.0
        self.shards = shards_of(profile, conditions.num_servers)
        largest_bytes = max(shards[-1].stop for shards in self.shards) * ITEM_BYTES
        self.payload = np.zeros(largest_bytes, np.uint8).data  # never touched, so it takes no memory
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_scheduled = 0
        self._workers = [
            _Worker(self, rank, host, config) for rank, (host, config) in enumerate(zip(conditions.workers, configs))
        ]
        servers = [
            _Server(self, rank, host, config)
            for rank, (host, config) in enumerate(zip(conditions.servers, configs[len(self._workers) :]))
        ]
        for worker in self._workers:
            worker.peers = servers
        for server in servers:
            server.peers = self._workers

    def schedule(self, at: float, action: Callable[[], None]) -> None:
        heappush(self._events, (at, self._num_scheduled, action))
        self._num_scheduled += 1

    def run(self) -> Simulated:
        num_events = 0
        while any(len(worker.step_ends) < self.num_steps for worker in self._workers):
            self.now, _, action = heappop(self._events)
            action()
            num_events += 1
        return self._summary(num_events)

    def _summary(self, num_events: int) -> Simulated:
        workers, num_steps = self._workers, self.num_steps
        round_trips = [seconds for worker in workers for seconds in worker.round_trips]
        return Simulated(
            step_seconds=fmean(worker.step_seconds for worker in workers),
            worker_step_seconds=tuple(worker.step_seconds for worker in workers),
            first_tensor_seconds=fmean(_steady(worker.first_tensor_seconds) for worker in workers),
            forward_seconds=fmean(_steady(worker.forward_seconds) for worker in workers),
            backward_seconds=fmean(self.profile.backward_seconds / worker.host.speed for worker in workers),
            queue_wait_seconds=fmean(
                worker.links.queue_wait_seconds / worker.links.partitions_sent for worker in workers
            ),
            credit_stall_seconds=fmean(worker.links.credit_stall_seconds for worker in workers) / num_steps,
            ack_seconds=median(round_trips) if round_trips else 0.0,
            messages=fmean(worker.links.messages_sent for worker in workers) / num_steps,
            partitions=fmean(worker.links.partitions_sent for worker in workers) / num_steps,
            thread_seconds=fmean(worker.thread_seconds for worker in workers) / num_steps,
            events=num_events,
        )


def _steady(values: Sequence[float]) -> float:
    """Return the mean over all steps but the first."""
    return fmean(values[1:] or values)


def _size_bytes(item: _Item) -> int:
    return MESSAGE_BYTES if isinstance(item, int) else item.nbytes


def _new_book(tensor: int, shard: Shard, num_workers: int) -> Ledger:
    """Return the ledger of a shard, whose elements all lie in one byte: what they are does not matter here."""

    def empty(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return as_strided(np.zeros(1, dtype), (size,), (0,))

    book = Ledger(str(tensor), shard.start, shard.stop, np.dtype(np.int8), num_workers, empty=empty)
    book.initialize(shard.start, _nothing(shard.stop - shard.start))
    return book


def _nothing(size: int) -> NDArray[np.int8]:
    return np.broadcast_to(np.zeros(1, np.int8), (size,))
