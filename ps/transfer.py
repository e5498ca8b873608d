"""What links carry: the transfers that are queued, and the messages that are on their way."""

from __future__ import annotations

from typing import Iterator, Optional, Union

from ps.codecs import Encoder
from ps.messages import Data, Place, Span, SpanKind, encode

__all__ = ["Transfer", "Message", "SPAN_COST"]

#: What each further span of a message costs its sender and its receiver of processor time, in messages of one span.
#: Measured with 400 tensors of 1 kB: 39 us for a message with one of them, 10 us for each in a message of 40.
SPAN_COST = 0.25

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
