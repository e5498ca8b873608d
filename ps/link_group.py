"""The links of one host, which share its credit and keep in step with each other.

Invariant: no link runs ahead of the slowest one that has work by more than about two partitions or 1 MiB. Otherwise the
links of two workers drift apart in opposite directions, and every server waits for its slow half (DESIGN.md, section
3.2: 4.9 s against 4.66 s on VGG-16).
"""

from __future__ import annotations

from typing import Iterable, Optional

from ps.config import MIB, CommConfig
from ps.link import Link
from ps.transfer import Message, Transfer

__all__ = ["LinkGroup"]


class LinkGroup:
    """The links of one host, which share its credit and keep in step with each other.

    Parameters
    ----------
    peers
        Ranks of the peers.
    bounded_skew
        Whether links wait for the slowest one that has work.

    Attributes
    ----------
    links
        By rank of the peer.
    skew_bytes
        How far a link may be ahead of the slowest one that has work (or by one message, where that is larger).
    credit_stall_seconds
        Time up to the last ``pop`` in which work was queued and nothing could be popped.
    bytes_sent, messages_sent, partitions_sent, queue_wait_seconds
        Sums of the counters of the links.
    """

    def __init__(self, peers: Iterable[int], bounded_skew: bool = True) -> None:
        self.links = {peer: Link(peer) for peer in peers}
        self.skew_bytes = 0
        self._bounded_skew = bounded_skew
        self.credit_stall_seconds = 0.0
        self._stalled_since: Optional[float] = None
        self.configure(CommConfig())

    def configure(self, config: CommConfig) -> None:
        """Use ``config`` from the next message on; every link gets an equal part of the credit."""
        self.skew_bytes = max(2 * config.partition_bytes, 2 * config.fused_bytes, MIB)
        for link in self.links.values():
            link.credit_bytes = max(1, config.credit_bytes // len(self.links))
            link.fusion_bytes = config.fused_bytes

    def put(self, peer: int, transfer: Transfer, now: float) -> None:
        """Queue a transfer to ``peer``."""
        link = self.links[peer]
        if not link._queue:
            # Skew counts from when both were busy: whoever joins starts level with the slowest.
            busy = [other.progress_bytes for other in self.links.values() if other._queue]
            if busy:
                link.progress_bytes = min(busy)
        link.put(transfer, now)

    def pop(self, now: float) -> Optional[tuple[Link, Message]]:
        """Return the next message and its link: of the links that have work and credit, the one that sent least."""
        slowest: Optional[Link] = None
        chosen: Optional[Link] = None
        alone = True
        for link in self.links.values():
            if link.in_flight_bytes:
                alone = False
            if link._queue:
                progress = link.progress_bytes
                if slowest is None or progress < slowest.progress_bytes:
                    slowest = link
                if (chosen is None or progress < chosen.progress_bytes) and link.ready:
                    chosen = link
        if self._stalled_since is not None:
            self.credit_stall_seconds += now - self._stalled_since
            self._stalled_since = None
        if slowest is None:
            return None
        message = chosen.pop(now) if chosen is not None and self._in_step(chosen, slowest) else None
        if chosen is None or message is None:
            self._stalled_since = now
            return None
        message.alone = alone
        return chosen, message

    def _in_step(self, link: Link, slowest: Link) -> bool:
        """Whether ``link`` would still keep step with the ``slowest`` one after one more message."""
        lead_bytes = link.progress_bytes - slowest.progress_bytes
        if not lead_bytes or not self._bounded_skew:
            return True
        return lead_bytes + max(link._queue[0][2].next_bytes, link.fusion_bytes) <= self.skew_bytes

    @property
    def queued(self) -> bool:
        """Whether any link has work that has not left yet."""
        return any(link._queue for link in self.links.values())

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self.links.values())

    @property
    def messages_sent(self) -> int:
        return sum(link.messages_sent for link in self.links.values())

    @property
    def spans_sent(self) -> int:
        return sum(link.spans_sent for link in self.links.values())

    @property
    def partitions_sent(self) -> int:
        return sum(link.partitions_sent for link in self.links.values())

    @property
    def queue_wait_seconds(self) -> float:
        return sum(link.queue_wait_seconds for link in self.links.values())
