"""What to send next, and what is still un-acknowledged: the sending and the receiving side of a peer.

Invariants:

* **Priority.** A :class:`Link` sends the most urgent partition that is queued; ties go first in, first out. Fusion
  packs neighbours of that order into one message and never changes it.
* **Credit.** A message leaves only while the bytes in flight are below the credit, and a partition larger than
  the credit only when nothing is in flight. So there is never more in flight than the credit and one message, and the
  most urgent partition waits for about ``credit / bandwidth``, whatever the size of what is queued behind it. Payload
  that the peer reads in shared memory counts for a part of its bytes, since it takes a part of the time.
* **Delivery.** Messages are numbered from 1 and kept until acknowledged. After a broken connection the
  peer says which number it expects, and the rest goes again in order; the :class:`Receiver` takes only the number
  that it expects. Every partition arrives once, in order.
* **Skew.** No link of a :class:`LinkGroup` runs ahead of the slowest one that has work by more than about two
  partitions or 1 MiB. Otherwise the links of two workers drift apart in opposite directions, and every
  server waits for its slow half (DESIGN.md, section 3.2: 4.9 s against 4.66 s on VGG-16).

The queue holds transfers, not partitions: partitions are taken lazily from its head, so a tensor of gigabytes is one
entry. Partition, priority and credit are ByteScheduler's (SOSP 2019, section 3), priority by need in the
next forward pass also P3's and TicTac's (2019); go-back-N is the textbook's. Time is a parameter, in seconds.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Iterable, Iterator, Optional, Union

from ps.codecs import Encoder
from ps.config import MIB, CommConfig
from ps.messages import Data, Place, Span, SpanKind, encode

__all__ = ["Transfer", "Message", "Link", "LinkGroup", "Receiver", "MESSAGE_BYTES", "MAX_SPANS"]

#: What a message costs besides its payload, in bytes of credit: keeps a flood of empty messages bounded, too.
MESSAGE_BYTES = 64
#: Most spans that are packed into one message.
MAX_SPANS = 256
#: Partitions for a peer on this host are joined up to so many bytes, and half the credit: about a millisecond's worth.
NEAR_JOIN_BYTES = 2 * MIB
#: So many bytes that the peer reads in shared memory count as one of credit and fusion: they take as long as one sent.
SHARED_BYTES_PER_CREDIT = 4


class Transfer:
    """The share of one operation that goes to one shard: ranges of elements and where their bytes are.

    Parameters
    ----------
    kind, tensor_id, version, priority
        As in :class:`ps.messages.Span`.
    itemsize
        Bytes of one element.
    origin
        The element at which ``payload`` begins.
    payload
        Bytes of the elements (a memoryview of format ``B``), or None for kinds without payload.
    ranges
        (start, count) in elements, ascending; consumed lazily. An ``ERROR`` has one range (0, payload bytes).
    place
        Where ``payload`` begins in shared memory, if the peer can read it there: then it is not sent.
    encoder
        What makes the payload, at the moment when a range leaves; ``payload`` is None then.
    settings
        As in :class:`ps.messages.Span`; the first range takes them along.
    """

    __slots__ = (
        "kind",
        "tensor_id",
        "version",
        "priority",
        "itemsize",
        "origin",
        "payload",
        "ranges",
        "place",
        "encoder",
        "settings",
        "bytes_per_credit",
        "queued_at",
        "next_range",
        "next_bytes",
    )

    def __init__(
        self,
        kind: SpanKind,
        tensor_id: int,
        version: int,
        priority: int,
        itemsize: int,
        origin: int,
        payload: Optional[memoryview],
        ranges: Iterator[tuple[int, int]],
        place: Optional[Place] = None,
        encoder: Optional[Encoder] = None,
        settings: bytes = b"",
    ) -> None:
        self.kind = kind
        self.tensor_id = tensor_id
        self.version = version
        self.priority = priority
        self.itemsize = itemsize
        self.origin = origin
        self.payload = payload
        self.ranges = ranges
        self.place = place
        self.encoder = encoder
        self.settings = settings
        self.bytes_per_credit = 1 if place is None else SHARED_BYTES_PER_CREDIT
        self.queued_at = 0.0
        self.next_range: Optional[tuple[int, int]] = None
        self.next_bytes = 0  #: payload bytes of the next partition

    @property
    def next_charge(self) -> int:
        """What the next partition takes of credit and fusion, in bytes."""
        return self.next_bytes // self.bytes_per_credit

    def advance(self) -> bool:
        """Go on to the next partition; False when there is none."""
        following = next(self.ranges, None)
        self.next_range = following
        if following is None:
            return False
        if self.encoder is not None:
            self.next_bytes = self.encoder.encoded_bytes(following[1])
        elif self.payload is not None:
            self.next_bytes = following[1] * self.itemsize
        return True

    def take(self, join_bytes: int) -> tuple[int, int, int, int]:
        """Return the next partition, joined with those after it while they are together not over ``join_bytes``.

        Returns
        -------
        start, count, nbytes, partitions
            Range of elements, its payload bytes, and how many partitions it is.
        """
        start, count = self.next_range  # type: ignore[misc]  # a queued transfer has a next range
        nbytes = self.next_bytes
        partitions = 1
        while self.advance() and 0 < nbytes + self.next_bytes <= join_bytes:
            count += self.next_range[1]  # type: ignore[index]
            nbytes += self.next_bytes
            partitions += 1
        return start, count, nbytes, partitions


class Message:
    """A numbered message on its way: kept, with the payload that it refers to, until it is acknowledged.

    Attributes
    ----------
    parts
        Payload of the spans that bring it along, in their order.
    nbytes
        Payload and ``MESSAGE_BYTES``.
    charged_bytes
        What it takes of the credit: less than ``nbytes`` where payload is in shared memory.
    alone
        Whether nothing else was in flight on this host when it left, so that its round trip tells the latency.
    follows
        Whether its link had work, queued or in flight, ever since the message before it, so that their arrivals tell
        the bandwidth.
    """

    __slots__ = ("seq", "spans", "parts", "nbytes", "charged_bytes", "sent_at", "alone", "follows", "_header")

    def __init__(
        self, seq: int, spans: list[Span], parts: list[memoryview], nbytes: int, charged_bytes: int, sent_at: float
    ) -> None:
        self.seq = seq
        self.spans = spans
        self.parts = parts
        self.nbytes = nbytes
        self.charged_bytes = charged_bytes
        self.sent_at = sent_at
        self.alone = False
        self.follows = False
        self._header: Optional[bytes] = None

    @property
    def header(self) -> bytes:
        """The header frame; encoded once, and kept for a resend."""
        if self._header is None:
            self._header = encode(Data(self.seq, self.spans, self.follows))
        return self._header

    @property
    def payload(self) -> Union[memoryview, bytes, None]:
        """The payload frame: copied only where it has several parts, None where it has none."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0]
        return b"".join(parts) if parts else None


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
    bytes_sent, messages_sent, partitions_sent, queue_wait_seconds, messages_resent, acknowledgements_refused
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
        self.skew_bytes = max(2 * config.partition_bytes, 2 * config.fusion_bytes, MIB)
        for link in self.links.values():
            link.credit_bytes = max(1, config.credit_bytes // len(self.links))
            link.fusion_bytes = config.fusion_bytes

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
    def partitions_sent(self) -> int:
        return sum(link.partitions_sent for link in self.links.values())

    @property
    def queue_wait_seconds(self) -> float:
        return sum(link.queue_wait_seconds for link in self.links.values())


class Receiver:
    """The receiving side of one peer: takes messages in their order and says what to acknowledge.

    Attributes
    ----------
    expected
        Number of the next message.
    duplicates, gaps
        Messages refused because they were had before, or because one before them is missing.
    gap_begins
        Whether the message just refused is the first after a missing one: time to ask for that.
    """

    __slots__ = ("expected", "duplicates", "gaps", "gap_begins", "_gap_at", "_pending")

    def __init__(self) -> None:
        self.expected = 1
        self.duplicates = 0
        self.gaps = 0
        self.gap_begins = False
        self._gap_at = 0
        self._pending = False

    def accept(self, seq: int) -> bool:
        """Return whether message ``seq`` is the expected one, and so is to be processed."""
        if seq == self.expected:
            self.expected = seq + 1
            self._pending = True
            return True
        if seq < self.expected:
            self.duplicates += 1
            self.gap_begins = False
            self._pending = True  # its acknowledgement was lost
        else:
            self.gaps += 1
            self.gap_begins = self._gap_at != self.expected
            self._gap_at = self.expected
        return False

    def acknowledge(self) -> Optional[int]:
        """Return the number up to which all has been received; None where nothing arrived since the last call."""
        if not self._pending:
            return None
        self._pending = False
        return self.expected - 1
