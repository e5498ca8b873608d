"""Hosts whose wires are known exactly: several send to several, each message is acknowledged on arrival.

Every host has one wire to send and one to receive. A message occupies first the sender's, then, as its bytes come
through, the receiver's; its acknowledgement is too small to count. Links, credit and order are the project's own
(:mod:`ps.link`); every host estimates what it sends and what it receives.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Callable, Iterator

from ps.config import KIB, MIB, CommConfig
from ps.estimate import HostEstimate, HostEstimator
from ps.link_group import LinkGroup
from ps.messages import SpanKind
from ps.transfer import Message, Transfer

GIGABIT = 125e6  # bytes per second
CONFIG = CommConfig(fusion_bytes=0)
_PAYLOAD = memoryview(bytes(64 * MIB))


class Wire:
    """One direction of a host's wire."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.stalls: Callable[[], float] = lambda: 0.0  # seconds that others take before a message
        self._free = 0.0

    def carry(self, begins: float, ends: float, nbytes: int) -> tuple[float, float]:
        """Return from when to when the wire carries what comes to it from ``begins`` to ``ends``."""
        start = max(begins, self._free) + self.stalls()
        self._free = max(ends, start + nbytes / self.bandwidth)
        return start, self._free


class Sender:
    """A host that sends: its links, its wire, its estimates."""

    def __init__(self, receivers: int, bandwidth: float, config: CommConfig, bounded_skew: bool) -> None:
        self.wire = Wire(bandwidth)
        self.links = LinkGroup(range(receivers), bounded_skew)
        self.links.configure(config)
        self.estimator = HostEstimator(range(receivers))


class Receiver:
    """A host that receives."""

    def __init__(self, senders: int, bandwidth: float) -> None:
        self.wire = Wire(bandwidth)
        self.estimator = HostEstimator(range(senders))


class Wires:
    """See the module.

    Attributes
    ----------
    senders, receivers
        The hosts; their wires may be changed at any time.
    latency_seconds
        One way; may be changed, too.
    late
        Seconds that an acknowledgement is late, drawn for each.
    now
        The time.
    """

    def __init__(
        self,
        senders: int = 1,
        receivers: int = 2,
        bandwidth: float = GIGABIT,
        latency_seconds: float = 200e-6,
        config: CommConfig = CONFIG,
        bounded_skew: bool = True,
    ) -> None:
        self.config = config
        self.senders = [Sender(receivers, bandwidth, config, bounded_skew) for _ in range(senders)]
        self.receivers = [Receiver(senders, bandwidth) for _ in range(receivers)]
        self.latency_seconds = latency_seconds
        self.late: Callable[[], float] = lambda: 0.0
        self.now = 1.0
        self._numbers = itertools.count()
        self._acked_at: dict[tuple[int, int], float] = {}

    def send(self, nbytes: int) -> None:
        """Every sender sends so many bytes to every receiver; returns when all is acknowledged."""
        events: list[tuple[float, int, int, int, Message, bool]] = []
        for sender, receiver in itertools.product(range(len(self.senders)), range(len(self.receivers))):
            self.senders[sender].links.put(receiver, self._transfer(nbytes), self.now)
        while sum(self._pop(sender, events) for sender in range(len(self.senders))):
            pass  # a message of each in turn, as on wires that they share
        while events:
            self.now, _, sender, receiver, message, arrives = heapq.heappop(events)
            if arrives:
                self.receivers[receiver].estimator.received(sender, message.nbytes, message.follows, self.now)
                acked_at = self.now + self.latency_seconds + self.late()
                acked_at = max(acked_at, self._acked_at.get((sender, receiver), 0.0))  # in order
                self._acked_at[sender, receiver] = acked_at
                heapq.heappush(events, (acked_at, next(self._numbers), sender, receiver, message, False))
            else:
                host = self.senders[sender]
                host.estimator.acknowledged(receiver, host.links.links[receiver].acknowledge(message.seq, 0), self.now)
                while self._pop(sender, events):
                    pass

    def _pop(self, sender: int, events: list[tuple[float, int, int, int, Message, bool]]) -> bool:
        """Send a message, if there is one that may go."""
        host = self.senders[sender]
        popped = host.links.pop(self.now)
        if popped is None:
            return False
        link, message = popped
        start, end = host.wire.carry(self.now, self.now, message.nbytes)
        start, end = self.receivers[link.peer].wire.carry(start, end, message.nbytes)
        arrives_at = end + self.latency_seconds
        heapq.heappush(events, (arrives_at, next(self._numbers), sender, link.peer, message, True))
        return True

    def _transfer(self, nbytes: int) -> Transfer:
        size = self.config.partition_bytes
        ranges: Iterator[tuple[int, int]] = ((start, min(size, nbytes - start)) for start in range(0, nbytes, size))
        return Transfer(SpanKind.PUSH, 0, 1, 0, 1, 0, _PAYLOAD, ranges)

    def train(self, steps: int, step_bytes: int = 16 * MIB, compute_seconds: float = 0.05) -> None:
        """In every step send a small tensor through the empty wires, then, to all receivers together, the rest."""
        for _ in range(steps):
            self.send(4 * KIB)
            self.now += compute_seconds / 10
            self.send(step_bytes // len(self.receivers))
            self.now += compute_seconds

    def sent(self, sender: int = 0) -> HostEstimate:
        return self.senders[sender].estimator.estimates()

    def received(self, receiver: int = 0) -> HostEstimate:
        return self.receivers[receiver].estimator.estimates()
