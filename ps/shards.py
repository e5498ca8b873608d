"""A server's shards: which worker waits for what, and what to answer.

Pure: spans go in, :class:`Answer` objects come out, time is a parameter. What is complete is the books' to know
(:mod:`ps.book`); this class knows who asked in which way (push, pull or both), and whom to tell when a push cannot be
answered.

Invariant: a worker has at most one operation per tensor under way, so its last push is the one by which it asked for
whatever the book completes.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any, Iterable, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from ps.book import Book, Completion, Empty, LedgerError, MixedRound
from ps.codecs import Codec, CodecError
from ps.config import CommConfig
from ps.errors import ErrorCode
from ps.ledger import Ledger, OrderedLedger
from ps.messages import Mode, Place, Shard, Span, SpanKind, Tensor
from ps.partition import cut
from ps.rows import ID_BYTES, Piece, RowsEncoder, records, row_width, unpack
from ps.tally import Tally
from ps.transfer import Transfer
from ps.updater import MakeUpdater

__all__ = ["Answer", "ShardBook"]

Array = NDArray[Any]
Buffer = Union[memoryview, NDArray[np.uint8]]

log = logging.getLogger("autobyte.server")

#: After this long a line in the log says who is waited for.
SLOW_SECONDS = 10.0


class Answer:
    """Something for one worker: a result range, a notice that a range is complete, or an error."""

    __slots__ = ("rank", "kind", "tensor_id", "version", "priority", "start", "count", "values", "codec")

    def __init__(
        self,
        rank: int,
        kind: SpanKind,
        tensor_id: int,
        version: int,
        priority: int,
        start: int,
        count: int,
        values: Optional[Array],
    ) -> None:
        self.rank = rank
        self.kind = kind
        self.tensor_id = tensor_id
        self.version = version
        self.priority = priority
        self.start = start
        self.count = count
        self.values = values
        self.codec: Optional[Codec] = None  #: of the values on the wire

    @classmethod
    def of(cls, rank: int, kind: SpanKind, request: Span, start: int, count: int, values: Optional[Array]) -> Answer:
        """Return the answer to ``request``, a span that worker ``rank`` sent."""
        return cls(rank, kind, request.tensor_id, request.version, request.priority, start, count, values)

    @classmethod
    def failure(cls, rank: int, request: Span, code: ErrorCode, text: str) -> Answer:
        """Return the answer that fails the operation of ``request``."""
        payload = np.frombuffer(bytes([code]) + text.encode("utf-8", "replace"), np.uint8)
        return cls.of(rank, SpanKind.ERROR, request, 0, payload.size, payload)

    def transfer(self, config: CommConfig, place: Optional[Place]) -> Transfer:
        """Return this answer as work for a link, cut by ``config``; ``place`` is where its receiver can read it."""
        stop = self.start + self.count
        if self.kind is SpanKind.CHANGES and self.values is not None:
            rows = RowsEncoder(self.values["row"].shape[1])
            rows.begin(self.version, self.values)
            ranges = rows.ranges(self.start, stop, config.partition_bytes)
            return Transfer(self.kind, self.tensor_id, self.version, self.priority, 1, 0, None, ranges, encoder=rows)
        if self.values is None or self.kind is SpanKind.ERROR:
            itemsize = 1
            ranges = iter(((self.start, self.count),))
        else:
            itemsize = self.values.itemsize
            ranges = cut(self.start, stop, itemsize, config.partition_bytes)
        payload = encoder = None
        if self.codec is not None and self.values is not None:
            encoder = self.codec.encoder(self.count, self.values.dtype)
            encoder.begin(self.version, self.values)
            place = None
        elif self.values is not None:
            payload = self.values.view(np.uint8).data
        return Transfer(
            self.kind,
            self.tensor_id,
            self.version,
            self.priority,
            itemsize,
            self.start,
            payload,
            ranges,
            place,
            encoder,
        )


class _Shard:
    """One shard: its book, and the last span by which each worker pushed what is not answered."""

    __slots__ = ("tensor", "place", "book", "asked", "failed", "reported_slow", "reported_nonfinite")

    def __init__(self, tensor: Tensor, place: Shard, book: Book, num_workers: int) -> None:
        self.tensor = tensor
        self.place = place
        self.book = book
        self.asked: list[Optional[Span]] = [None] * num_workers
        self.failed: Optional[tuple[ErrorCode, str]] = None
        self.reported_slow = False
        self.reported_nonfinite = False


class ShardBook:
    """All shards of one server.

    Parameters
    ----------
    server
        Its number.
    empty
        ``empty(size, dtype)`` allocates what it answers from.
    staleness, deterministic
        As in :class:`~ps.config.Settings`.
    """

    def __init__(
        self,
        server: int,
        num_workers: int,
        deadline_seconds: float,
        empty: Empty = np.empty,
        staleness: int = -1,
        deterministic: bool = False,
    ) -> None:
        self._server = server
        self._num_workers = num_workers
        self._deadline_seconds = deadline_seconds
        self._empty = empty
        self._staleness = staleness
        self._deterministic = deterministic
        self._make_updater: Optional[MakeUpdater] = None
        self._shards: dict[int, _Shard] = {}
        self._gone: dict[int, str] = {}

    def add(self, tensors: Sequence[Tensor], first_values: Sequence[bytes] = ()) -> None:
        """Take note of tensors, some or all of which have a shard here, and of the first values that are there."""
        for tensor, first_value in zip(tensors, itertools.chain(first_values, itertools.repeat(b""))):
            for place in tensor.shards:
                if place.server == self._server and tensor.id not in self._shards:
                    book = self._new_book(tensor, place)
                    for rank in self._gone:
                        book.worker_gone(rank)
                    if self._make_updater is not None:
                        book.updater = self._make_updater(tensor, place)
                    if first_value and place.start < place.stop:
                        book.initialize(place.start, np.frombuffer(first_value, book.dtype)[place.start : place.stop])
                    self._shards[tensor.id] = _Shard(tensor, place, book, self._num_workers)

    def _new_book(self, tensor: Tensor, place: Shard) -> Book:
        spec = tensor.spec
        name, start, stop, dtype = spec.name, place.start, place.stop, np.dtype(spec.dtype)
        if spec.mode is Mode.ASYNC:
            return Tally(name, start, stop, dtype, self._num_workers, spec.whole, self._empty, self._staleness)
        kind = OrderedLedger if self._deterministic else Ledger
        return kind(name, start, stop, dtype, self._num_workers, spec.whole, self._empty)

    def set_updater(self, make: MakeUpdater) -> None:
        """Have the values of all shards, present and future, changed by the updaters that ``make`` returns.

        A synchronous shard uses its updater from its next round on. Where ``make`` raises, nothing has changed.
        """
        updaters = [make(shard.tensor, shard.place) for shard in self._shards.values()]
        self._make_updater = make
        for shard, updater in zip(self._shards.values(), updaters):
            shard.book.updater = updater

    def take(
        self, rank: int, span: Span, payload: Optional[Buffer], offset: int, now: float
    ) -> tuple[list[Answer], int]:
        """Take one span of a worker, its payload at byte ``offset``.

        Returns
        -------
        answers, offset
            What to answer, possibly to several workers, and the offset behind this span's payload.

        Raises
        ------
        LedgerError
            The span is not valid; nothing has changed.
        """
        shard = self._shards.get(span.tensor_id)
        if shard is None:
            raise LedgerError(f"server {self._server} has no tensor {span.tensor_id}, which worker {rank} asks for")
        book = shard.book
        if span.kind is SpanKind.PULL:
            return [self._pulled(shard, rank, span, span.start, span.start + span.count)], offset
        if span.kind is SpanKind.PULL_CHANGES:
            return [self._pulled_changes(shard, rank, span)], offset
        if span.kind in (SpanKind.RESULT, SpanKind.DONE, SpanKind.ERROR, SpanKind.CHANGES):
            raise LedgerError(f"worker {rank} sent {span.kind!r}, which only a server sends")
        end = offset + _payload_bytes(span, book.dtype.itemsize)
        if span.count < 0 or not offset <= end <= (0 if payload is None else payload.nbytes):
            raise LedgerError(
                f"{book.name!r}: worker {rank} announced {span.count} elements of {end - offset} bytes,"
                " more than it sent"
            )
        body = memoryview(b"") if payload is None else payload[offset:end]
        if span.kind is SpanKind.PULL_ROWS:
            return [self._pulled_rows(shard, rank, span, body)], end
        if span.kind is SpanKind.INIT:
            book.initialize(span.start, _values(shard.tensor, span, body))
            return [Answer.of(rank, SpanKind.DONE, span, span.start, span.count, None)], end
        if shard.failed is not None:
            return [Answer.failure(rank, span, *shard.failed)], end
        try:
            if span.settings and rank == 0 and book.updater is not None:
                book.updater.settings(span.settings)
            if span.kind is SpanKind.PUSH_ROWS:
                completions = book.push_rows(rank, span.version, _piece(shard, span, body), now)
            else:
                completions = book.push(rank, span.version, span.start, _values(shard.tensor, span, body), now)
        except MixedRound as error:
            shard.asked[rank] = span
            return self._fail(shard, book.give_up(), ErrorCode.TENSOR, str(error)), end
        except LedgerError:
            raise
        except Exception as error:  # the updater's
            log.exception("%s", book)
            shard.asked[rank] = span
            text = f"{book}: the update failed at server {self._server}: {error!r}"
            return self._fail(shard, range(self._num_workers), ErrorCode.INTERNAL, text), end
        shard.asked[rank] = span
        if completions:
            return self._answers(shard, completions), end
        if self._gone:
            return self._fail_if_hopeless(shard), end
        return [], end

    def _pulled(self, shard: _Shard, rank: int, span: Span, start: int, stop: int) -> Answer:
        return Answer.of(rank, SpanKind.RESULT, span, start, stop - start, shard.book.view(start, stop))

    def _pulled_changes(self, shard: _Shard, rank: int, span: Span) -> Answer:
        book, width = shard.book, row_width(shard.tensor.spec.shape)
        size = book.stop - book.start
        ids = book.changes(span.start) if _has_whole_rows(book, width) else None
        if ids is None or size < ids.size * (width + ID_BYTES / book.dtype.itemsize):
            return self._pulled(shard, rank, span, book.start, book.stop)
        rows = book.view(book.start, book.stop).reshape(-1, width)[ids]
        changed = records(ids + book.start // width, rows)
        return Answer.of(rank, SpanKind.CHANGES, span, book.start, size, changed)

    def _pulled_rows(self, shard: _Shard, rank: int, span: Span, ids: Buffer) -> Answer:
        book, width = shard.book, _row_width(shard)
        rows = book.view(book.start, book.stop).reshape(-1, width)
        own = np.frombuffer(ids, np.int64) - book.start // width
        if own.size and not 0 <= own.min() <= own.max() < len(rows):
            raise LedgerError(f"{book.name!r}: worker {rank} asked for rows that server {self._server} does not have")
        return Answer.of(rank, SpanKind.RESULT, span, span.start * width, own.size * width, rows[own].reshape(-1))

    def _answers(self, shard: _Shard, completions: Iterable[Completion]) -> list[Answer]:
        codec = shard.tensor.spec.codec
        answers = []
        for start, stop, worker in completions:
            values = shard.book.view(start, stop)
            for rank in range(self._num_workers) if worker is None else (worker,):
                span = shard.asked[rank]
                assert span is not None
                if span.kind is SpanKind.PUSH_PULL:
                    answer = Answer.of(rank, SpanKind.RESULT, span, start, stop - start, values)
                    if codec is not None and codec.encodes_answers:
                        answer.codec = codec
                    answers.append(answer)
                else:
                    answers.append(Answer.of(rank, SpanKind.DONE, span, start, stop - start, None))
            if worker is not None:
                shard.asked[worker] = None
            elif shard.book.opened_at is None:
                shard.asked = [None] * self._num_workers
        if shard.book.opened_at is None:
            shard.reported_slow = False
        return answers

    # ------------------------------------------------------------------ pushes that cannot be answered

    def worker_gone(self, rank: int, reason: str) -> list[Answer]:
        """Take note that no more pushes will come from ``rank``; fail those that need one, answer those that do not."""
        self._gone[rank] = reason
        answers = []
        for shard in self._shards.values():
            answers += self._answers(shard, shard.book.worker_gone(rank))
            answers += self._fail_if_hopeless(shard)
        return answers

    def _fail_if_hopeless(self, shard: _Shard) -> list[Answer]:
        reasons = [f"worker {rank} {reason}" for rank, reason in self._gone.items() if shard.book.needs(rank)]
        if not reasons:
            return []
        text = f"{shard.book}: {', '.join(reasons)}"
        return self._fail(shard, shard.book.give_up(), ErrorCode.PEER_LOST, text)

    def _fail(self, shard: _Shard, ranks: Iterable[int], code: ErrorCode, text: str) -> list[Answer]:
        """Fail the pushes of ``ranks``; those of all ranks for good."""
        asked = [(rank, shard.asked[rank]) for rank in ranks]
        for rank, _ in asked:
            shard.asked[rank] = None
        if len(asked) == self._num_workers:
            shard.failed = (code, text)
        return [Answer.failure(rank, span, code, text) for rank, span in asked if span is not None]

    def slow_pushes(self, now: float) -> list[str]:
        """Return one line for each shard in which a push has waited for long since the last call."""
        lines = []
        for shard in self._shards.values():
            opened_at = shard.book.opened_at
            if opened_at is not None and now - opened_at > SLOW_SECONDS and not shard.reported_slow:
                shard.reported_slow = True
                lines.append(f"{self._waiting(shard.book)} after {now - opened_at:.0f} s")
        return lines

    def expired_pushes(self, now: float) -> list[Answer]:
        """Fail the pushes that have waited until the deadline; return what to tell their workers."""
        answers = []
        for shard in self._shards.values():
            opened_at = shard.book.opened_at
            if opened_at is not None and now - opened_at > self._deadline_seconds:
                text = f"{self._waiting(shard.book)} at the deadline of {self._deadline_seconds:g} s"
                answers += self._fail(shard, shard.book.give_up(), ErrorCode.DEADLINE, text)
        return answers

    def _waiting(self, book: Book) -> str:
        missing = ", ".join(str(rank) for rank in book.missing())
        return f"{book}: server {self._server} waits for worker {missing}"

    # -------------------------------------------------------------------------- what is no number

    @property
    def nonfinite(self) -> int:
        """Elements of gradients or their sums, since the start, that were infinite or no number."""
        return sum(shard.book.nonfinite for shard in self._shards.values())

    def nonfinite_keys(self) -> list[str]:
        """Return one line, once, for each key that has had such an element."""
        lines = []
        for shard in self._shards.values():
            if shard.book.nonfinite and not shard.reported_nonfinite:
                shard.reported_nonfinite = True
                lines.append(f"{shard.book}: {shard.book.nonfinite} elements so far are infinite or no number")
        return lines


def _payload_bytes(span: Span, itemsize: int) -> int:
    if span.kind is SpanKind.PUSH_ROWS:
        return span.encoded_bytes
    if span.kind is SpanKind.PULL_ROWS:
        return span.count * ID_BYTES
    return span.encoded_bytes or span.count * itemsize


def _has_whole_rows(book: Book, width: int) -> bool:
    return width > 0 and book.start % width == 0 and book.stop % width == 0


def _row_width(shard: _Shard) -> int:
    """Return the width of a shard's rows, of which the server has no parts."""
    width = row_width(shard.tensor.spec.shape)
    if not _has_whole_rows(shard.book, width):
        raise LedgerError(f"{shard.book.name!r} has no rows, or they are spread over servers")
    return width


def _piece(shard: _Shard, span: Span, payload: Buffer) -> Piece:
    """Return the rows that the payload of ``span`` brings."""
    width = _row_width(shard)
    try:
        return unpack(payload, shard.book.dtype, width, span.start, span.start + span.count)
    except ValueError as error:
        raise LedgerError(f"{shard.book.name!r}: {error}") from None


def _values(tensor: Tensor, span: Span, payload: Buffer) -> Array:
    """Return the elements that the payload of ``span`` stands for."""
    dtype, codec = np.dtype(tensor.spec.dtype), tensor.spec.codec
    if not span.encoded_bytes:
        return np.frombuffer(payload, dtype, span.count)
    if codec is None:
        raise LedgerError(f"{tensor.spec.name!r} has no codec, and {span} is encoded")
    if span.count > tensor.shards[-1].stop:  # before memory is taken for them
        raise LedgerError(f"{tensor.spec.name!r} has {tensor.shards[-1].stop} elements, and {span} has more")
    try:
        return codec.decode(payload, span.count, dtype)
    except CodecError as error:
        raise LedgerError(f"{tensor.spec.name!r}: {error}") from None
