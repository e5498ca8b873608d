"""The sending side of a node, and what is measured about it. Workers and servers share it.

A loop puts transfers in, takes messages out for its transport, and hands over the acknowledgements; the statistics
follow from these, so that no loop counts anything itself.
"""

from __future__ import annotations

import time
from typing import Any, Iterable, Optional

import msgspec

from ps.config import CommConfig, Role, Settings, server_config
from ps.counters import Counters
from ps.estimate import HostEstimator
from ps.link_group import LinkGroup
from ps.stats import Observation
from ps.transfer import SPAN_COST, Message, Transfer

__all__ = ["Traffic"]

#: The CPU time is looked at so often, and once a step while windows are short.
LOOK_SECONDS = 0.1
#: A step that is overdue waits for the network if so many messages come and go meanwhile.
OVERDUE_MESSAGES = 16


class Traffic:
    """Links, counters and the configuration that both go by.

    Parameters
    ----------
    settings
        Of this process.
    peers
        Ranks of the nodes that it sends to.
    bounded_skew
        Whether no link may run ahead of the slowest one that has work.
    """

    def __init__(self, settings: Settings, peers: Iterable[int], bounded_skew: bool, now: float) -> None:
        self._settings = settings
        self.config = settings.config
        self.counters = Counters(
            settings.role, -1, settings.num_workers, settings.num_servers, now, settings.window_seconds
        )
        self.messages_received = 0
        self.spans_received = 0
        self.bytes_received = 0
        self._links = LinkGroup(peers, bounded_skew)
        self._links.configure(self._own(self.config))
        self._estimator = HostEstimator(self._links.links)
        self._thread_seconds = time.thread_time()
        self._handled_messages = 0.0
        self._handled_bytes = 0
        self._changes = 0  # of estimates, as far as they were told
        self._looked_at, self._looked_at_step = now, 0  # when the CPU time was looked at
        self._overdue_since = -1, 0  # the step that is overdue, and the messages until then
        self._observed: Optional[Observation] = None

    def configure(self, config: CommConfig) -> None:
        """Use ``config`` for what is cut and sent from now on."""
        if config.epoch != self.config.epoch:
            self.counters.switched(config.epoch)
        self.config = config
        self._links.configure(self._own(config))

    def _own(self, config: CommConfig) -> CommConfig:
        """Return what this node makes of a configuration."""
        if self._settings.role is Role.SERVER:
            return server_config(config, self._settings.num_workers, self._settings.num_servers)
        return config

    def set_near(self, peer: int, near: bool) -> None:
        """Note whether ``peer`` is on this host."""
        self._links.links[peer].near = near

    def put(self, peer: int, transfer: Transfer, now: float) -> None:
        """Queue a transfer to ``peer``."""
        self._links.put(peer, transfer, now)

    def pop(self, now: float) -> Optional[tuple[int, Message]]:
        """Return the next message and the peer that it is for, or None where no work or no credit is left."""
        popped = self._links.pop(now)
        return None if popped is None else (popped[0].peer, popped[1])

    def acknowledged(self, peer: int, seq: int, now: float) -> None:
        """``peer`` has received everything up to message ``seq``."""
        messages = self._links.links[peer].acknowledge(seq, now)
        if messages:
            self._estimator.acknowledged(peer, messages, now)
            for message in messages:
                self.counters.acknowledged(now - message.sent_at)

    def received(self, peer: int, payload_bytes: int, spans: int, follows: bool, now: float) -> None:
        """A numbered message has arrived from ``peer``; ``follows`` is what it says of itself."""
        self.messages_received += 1
        self.spans_received += spans
        self.bytes_received += payload_bytes
        self._estimator.received(peer, payload_bytes, follows, now)

    def ask(self, peer: int) -> None:
        """Note that ``peer`` is asked what it expects."""
        self._links.links[peer].ask()

    def resume(self, peer: int, expected: int, asks: bool, now: float) -> list[Message]:
        """Return what has to be sent to ``peer`` again, in this order, since it expects message ``expected``.

        It has been asked, or it misses messages and ``asks`` for them.

        Raises
        ------
        ValueError
            It cannot be the peer that the link has sent to so far.
        """
        return self._links.links[peer].resume(expected, asks, now)

    def due(self, now: float) -> bool:
        """Return whether :meth:`report` has something to tell, or to look at, before its next turn."""
        if self._estimator.changes != self._changes:
            self._changes = self._estimator.changes
            self.counters.attention.changed()
        if now >= self.counters.overdue_at:
            self._wait_for_traffic(now)
        attention = self.counters.attention
        steps = self.counters.total_steps - self._looked_at_step
        look = now - self._looked_at >= LOOK_SECONDS or (attention.close and steps > 0)
        return look or attention.due(now)

    def _wait_for_traffic(self, now: float) -> None:
        """A step is overdue; only where messages keep coming and going it is the network that it waits for."""
        step, count = self.counters.total_steps, self._links.messages_sent + self.messages_received
        if self._overdue_since[0] != step:
            self._overdue_since = step, count
        elif count - self._overdue_since[1] >= OVERDUE_MESSAGES:
            self.counters.overdue(now)

    def report(self, now: float) -> Optional[Observation]:
        """Return what was seen in the window if it has ended, else None.

        To be called on the sending thread several times in a window, and when :meth:`due` says so: that is how often
        its CPU time is looked at.
        """
        self._looked_at, self._looked_at_step = now, self.counters.total_steps
        seconds = time.thread_time()
        messages = self._links.messages_sent + self.messages_received
        handled_messages = messages + SPAN_COST * (self._links.spans_sent + self.spans_received - messages)
        handled_bytes = self._links.bytes_sent + self.bytes_received
        self._estimator.thread_time(
            seconds - self._thread_seconds,
            handled_messages - self._handled_messages,
            handled_bytes - self._handled_bytes,
        )
        self._thread_seconds = seconds
        self._handled_messages, self._handled_bytes = handled_messages, handled_bytes
        if not self.counters.attention.due(now):
            return None
        self._observed = self.counters.observation(
            now, self._links, self._estimator.estimates(), self.bytes_received, seconds, time.process_time()
        )
        return self._observed

    def statistics(self) -> dict[str, Any]:
        """Return totals since the start, the configuration in use, and what was observed in the last window."""
        return {
            "bytes_sent": self._links.bytes_sent,
            "bytes_received": self.bytes_received,
            "messages_sent": self._links.messages_sent,
            "messages_resent": sum(link.messages_resent for link in self._links.links.values()),
            "partitions_sent": self._links.partitions_sent,
            "config": msgspec.structs.asdict(self.config),
            "observed": None if self._observed is None else msgspec.to_builtins(self._observed),
        }
