"""What to send next to a peer, and what is still un-acknowledged.

Invariants:

* **Priority.** A :class:`Link` sends the most urgent partition that is queued; ties go first in, first out. Fusion
  packs neighbours of that order into one message and never changes it.
* **Credit.** A message leaves only while the bytes in flight are below the credit, and a partition larger than
  the credit only when nothing is in flight. So there is never more in flight than the credit and one message, and the
  most urgent partition waits for about ``credit / bandwidth``, whatever the size of what is queued behind it. Payload
  that the peer reads in shared memory counts for a part of its bytes, since it takes a part of the time.
* **Delivery.** Messages are numbered from 1 and kept until acknowledged. After a broken connection the
  peer says which number it expects, and the rest goes again in order; the :class:`~ps.receiver.Receiver` takes only the
  number that it expects. Every partition arrives once, in order.

The queue holds transfers, not partitions: partitions are taken lazily from its head, so a tensor of gigabytes is one
entry. Partition, priority and credit are ByteScheduler's (SOSP 2019, section 3), priority by need in the
next forward pass also P3's and TicTac's (2019); go-back-N is the textbook's. Time is a parameter, in seconds.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Optional

from ps.config import MIB
from ps.messages import Place, Span
from ps.transfer import Message, Transfer

__all__ = ["Link", "MESSAGE_BYTES", "MAX_SPANS"]

#: What a message costs besides its payload, in bytes of credit: keeps a flood of empty messages bounded, too.
MESSAGE_BYTES = 64
#: Most spans that are packed into one message.
MAX_SPANS = 256
#: Partitions for a peer on this host are joined up to so many bytes, and half the credit: about a millisecond's worth.
NEAR_JOIN_BYTES = 2 * MIB


class Link:
    """The sending side towards one peer: queue, credit window, un-acknowledged messages.

    Attributes
    ----------
    peer
        Rank of the peer.
    credit_bytes, fusion_bytes
        As in :class:`ps.config.CommConfig`, this link's share; may be changed at any time.
    near
        Whether the peer is on this host. Then there is no wire that a long message would occupy, and the cost of a
        message is what counts: neighbouring partitions of a tensor go as one span.
    in_flight_bytes
        Sum of ``Message.charged_bytes`` over what is un-acknowledged.
    progress_bytes
        Bytes sent, on the scale of its :class:`LinkGroup`: what the skew is measured by.
    bytes_sent, messages_sent, spans_sent, partitions_sent, queue_wait_seconds, messages_resent,
    acknowledgements_refused
        Counters since the start. ``bytes_sent`` is payload; the wait is the sum over partitions.
    """

    __slots__ = (
        "peer",
        "credit_bytes",
        "fusion_bytes",
        "near",
        "in_flight_bytes",
        "progress_bytes",
        "bytes_sent",
        "messages_sent",
        "spans_sent",
        "partitions_sent",
        "queue_wait_seconds",
        "messages_resent",
        "acknowledgements_refused",
        "_queue",
        "_arrivals",
        "_in_flight",
        "_next_seq",
        "_asked_seq",
        "_left",
    )

    def __init__(self, peer: int, credit_bytes: int = 4 * MIB, fusion_bytes: int = 0) -> None:
        self.peer = peer
        self.credit_bytes = credit_bytes
        self.fusion_bytes = fusion_bytes
        self.near = False
        self.in_flight_bytes = 0
        self.progress_bytes = 0
        self.bytes_sent = 0
        self.messages_sent = 0
        self.spans_sent = 0
        self.partitions_sent = 0
        self.queue_wait_seconds = 0.0
        self.messages_resent = 0
        self.acknowledgements_refused = 0
        self._queue: list[tuple[int, int, Transfer]] = []  # heap of (-priority, arrival, transfer)
        self._arrivals = 0
        self._in_flight: deque[Message] = deque()
        self._next_seq = 1
        self._asked_seq = 0
        self._left = False  # whether the last message left others in the queue

    @property
    def queued(self) -> bool:
        """Whether there is work that has not left yet."""
        return bool(self._queue)

    @property
    def oldest_sent_at(self) -> Optional[float]:
        """When the first un-acknowledged message left, in seconds; None where nothing is in flight."""
        return self._in_flight[0].sent_at if self._in_flight else None

    @property
    def ready(self) -> bool:
        """Whether there is work and the credit for it."""
        if not self._queue:
            return False
        in_flight, credit = self.in_flight_bytes, self.credit_bytes
        return not in_flight or (in_flight < credit and self._queue[0][2].next_charge <= credit)

    def put(self, transfer: Transfer, now: float) -> None:
        """Queue a transfer. One without ranges is done already, and vanishes."""
        if transfer.advance():
            transfer.queued_at = now
            self._arrivals += 1
            heappush(self._queue, (-transfer.priority, self._arrivals, transfer))

    def pop(self, now: float) -> Optional[Message]:
        """Return the next message to send, or None where there is no work or no credit."""
        if not self.ready:
            return None
        queue = self._queue
        spans: list[Span] = []
        parts: list[memoryview] = []
        payload_bytes = charged_bytes = 0
        fusion_bytes = min(self.fusion_bytes, self.credit_bytes)
        max_spans = MAX_SPANS if fusion_bytes else 1
        while True:
            transfer = queue[0][2]
            join_bytes = min(NEAR_JOIN_BYTES, self.credit_bytes * transfer.bytes_per_credit // 2) if self.near else 0
            start, count, nbytes, partitions = transfer.take(join_bytes)
            place = transfer.place
            encoded_bytes = 0
            if transfer.encoder is not None:
                parts.append(transfer.encoder.encode(start - transfer.origin, count))
                encoded_bytes = parts[-1].nbytes
                payload_bytes += encoded_bytes
                charged_bytes += encoded_bytes
            elif transfer.payload is not None:
                offset = (start - transfer.origin) * transfer.itemsize
                if place is None:
                    parts.append(transfer.payload[offset : offset + nbytes])
                else:
                    place = Place(place.fd, place.inode, place.offset + offset)
                payload_bytes += nbytes
                charged_bytes += nbytes // transfer.bytes_per_credit
            spans.append(
                Span(
                    transfer.kind,
                    transfer.tensor_id,
                    transfer.version,
                    start,
                    count,
                    transfer.priority,
                    place,
                    encoded_bytes,
                    transfer.settings,
                )
            )
            transfer.settings = b""
            self.partitions_sent += partitions
            # a loop may queue after its turn's now
            self.queue_wait_seconds += partitions * max(0.0, now - transfer.queued_at)
            if transfer.next_range is None:
                heappop(queue)
                if not queue:
                    break
            if len(spans) >= max_spans:
                break
            next_charge = queue[0][2].next_charge
            if next_charge and charged_bytes + next_charge > fusion_bytes:
                break
        message = Message(
            self._next_seq, spans, parts, payload_bytes + MESSAGE_BYTES, charged_bytes + MESSAGE_BYTES, now
        )
        message.follows = self._left or bool(self._in_flight)
        self._left = bool(queue)
        self._next_seq += 1
        self._in_flight.append(message)
        self.in_flight_bytes += message.charged_bytes
        self.progress_bytes += message.nbytes
        self.bytes_sent += payload_bytes
        self.messages_sent += 1
        self.spans_sent += len(spans)
        return message

    def acknowledge(self, seq: int, now: float) -> list[Message]:
        """Take a cumulative acknowledgement; return the messages that it newly acknowledges, oldest first.

        A number that was never sent is counted in ``acknowledgements_refused`` and acknowledges nothing.
        """
        acknowledged: list[Message] = []
        if seq >= self._next_seq:
            self.acknowledgements_refused += 1
            return acknowledged
        in_flight = self._in_flight
        while in_flight and in_flight[0].seq <= seq:
            message = in_flight.popleft()
            self.in_flight_bytes -= message.charged_bytes
            acknowledged.append(message)
        return acknowledged

    def ask(self) -> None:
        """Note that the peer is asked what it expects; since messages keep their order, it knows all sent before."""
        self._asked_seq = self._next_seq

    def resume(self, expected: int, asks: bool, now: float) -> list[Message]:
        """The peer says that it expects number ``expected`` next: an answer, or with ``asks`` because it misses some.

        Returns
        -------
        list of Message
            All that is un-acknowledged, to be sent again at once and in this order. It is in flight already. Empty
            where all that was sent before the question has arrived: the rest is on its way.

        Raises
        ------
        ValueError
            The peer expects what was never sent, or what it has acknowledged: it is not the peer that we knew.
        """
        oldest = self._in_flight[0].seq if self._in_flight else self._next_seq
        if not oldest <= expected <= self._next_seq:
            raise ValueError(
                f"peer {self.peer} expects message {expected}: it has acknowledged all below {oldest}, "
                f"and {self._next_seq - 1} was the last one sent"
            )
        self.acknowledge(expected - 1, now)
        if not asks and expected >= self._asked_seq:
            return []
        self._asked_seq = 0
        for message in self._in_flight:
            message.sent_at = now
            message.alone = False  # an acknowledgement may yet be that of the first sending (Karn's rule)
        self.messages_resent += len(self._in_flight)
        return list(self._in_flight)
