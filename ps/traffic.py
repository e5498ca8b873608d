"""The sending side of a node, and what is measured about it. Workers and servers share it.

A loop puts transfers in, takes messages out for its transport, and hands over the acknowledgements; the statistics
follow from these, so that no loop counts anything itself.
"""

from __future__ import annotations

import time
from typing import Any, Iterable, Optional

import msgspec

from ps.config import CommConfig, Settings
from ps.counters import Counters
from ps.link import LinkGroup, Message, Transfer
from ps.stats import Observation

__all__ = ["Traffic"]


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

    def __init__(self, settings: Settings, peers: Iterable[int], bounded_skew: bool) -> None:
        self.config = settings.config
        self.counters = Counters(settings.role, -1, settings.num_workers, settings.num_servers)
        self._links = LinkGroup(peers, bounded_skew)
        self._window_seconds = settings.window_seconds
        self._window_ends = 0.0
        self.configure(self.config)

    def configure(self, config: CommConfig) -> None:
        """Use ``config`` for what is cut and sent from now on."""
        self.config = config
        self._links.configure(config)

    def put(self, peer: int, transfer: Transfer, now: float) -> None:
        """Queue a transfer to ``peer``."""
        self._links.put(peer, transfer, now)

    def pop(self, now: float) -> Optional[tuple[int, Message]]:
        """Return the next message and the peer that it is for, or None where no work or no credit is left."""
        popped = self._links.pop(now)
        return None if popped is None else (popped[0].peer, popped[1])

    def acknowledged(self, peer: int, seq: int, now: float) -> None:
        """``peer`` has received everything up to message ``seq``."""
        for message in self._links.links[peer].acknowledge(seq, now):
            self.counters.acknowledged(message, now)

    def resume(self, peer: int, expected: int, now: float) -> list[Message]:
        """Return what has to be sent to ``peer`` again, in this order, since it expects message ``expected``.

        Raises
        ------
        ValueError
            It cannot be the peer that the link has sent to so far.
        """
        return self._links.links[peer].resume(expected, now)

    def silent_seconds(self, peer: int, now: float) -> float:
        """Return how long something sent to ``peer`` has been waiting for its acknowledgement."""
        oldest = self._links.links[peer].oldest_sent_at
        return 0.0 if oldest is None else now - oldest

    def report(self, now: float) -> Optional[Observation]:
        """Return what was seen in the window if it has ended, else None. To be called on the sending thread."""
        if now < self._window_ends:
            return None
        self._window_ends = now + self._window_seconds
        return self.counters.observation(now, self.config.epoch, self._links, time.thread_time(), time.process_time())

    def statistics(self) -> dict[str, Any]:
        """Return totals since the start, and the configuration in use."""
        return {
            "bytes_sent": self._links.bytes_sent,
            "bytes_received": self.counters.bytes_received,
            "messages_sent": self._links.messages_sent,
            "messages_resent": sum(link.messages_resent for link in self._links.links.values()),
            "partitions_sent": self._links.partitions_sent,
            "config": msgspec.structs.asdict(self.config),
        }
