"""A server's shards: which worker waits for what, and what to answer.

Pure: spans go in, :class:`Answer` objects come out, time is a parameter. The sums are the ledger's
(:mod:`ps.ledger`); this class knows who asked in which way (push, pull or both), and whom to tell when a round
cannot end.

Invariant: a worker has at most one operation per tensor under way, so each shard has at most one open round, and a
range of it that is complete has been pushed, hence asked for, by every worker.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ps.config import CommConfig
from ps.errors import ErrorCode
from ps.ledger import Ledger, LedgerError
from ps.link import Transfer
from ps.messages import Place, Span, SpanKind, Tensor
from ps.partition import cut

__all__ = ["Answer", "ShardBook"]

Array = NDArray[Any]
Buffer = Union[memoryview, NDArray[np.uint8]]

#: After this long a line in the log says who is waited for.
SLOW_SECONDS = 10.0


class Answer:
    """Something for one worker: a result range, a notice that a range is complete, or an error."""

    __slots__ = ("rank", "kind", "tensor_id", "version", "priority", "start", "count", "values")

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
        if self.values is None or self.kind is SpanKind.ERROR:
            itemsize = 1
            ranges: Iterator[tuple[int, int]] = iter(((self.start, self.count),))
        else:
            itemsize = self.values.itemsize
            ranges = cut(self.start, stop, itemsize, config.partition_bytes)
        payload = None if self.values is None else self.values.view(np.uint8).data
        return Transfer(
            self.kind, self.tensor_id, self.version, self.priority, itemsize, self.start, payload, ranges, place
        )


class _Shard:
    """One shard: its ledger, and the last span by which each worker asked for something of the open round."""

    __slots__ = ("tensor", "ledger", "asked", "failed", "reported_slow")

    def __init__(self, tensor: Tensor, ledger: Ledger, num_workers: int) -> None:
        self.tensor = tensor
        self.ledger = ledger
        self.asked: list[Optional[Span]] = [None] * num_workers
        self.failed: Optional[tuple[ErrorCode, str]] = None
        self.reported_slow = False


class ShardBook:
    """All shards of the server with number ``server``; ``empty(size, dtype)`` allocates what it answers from."""

    def __init__(
        self,
        server: int,
        num_workers: int,
        deadline_seconds: float,
        empty: Callable[[int, np.dtype[Any]], Array] = np.empty,
    ) -> None:
        self._server = server
        self._num_workers = num_workers
        self._deadline_seconds = deadline_seconds
        self._empty = empty
        self._shards: dict[int, _Shard] = {}
        self._gone: dict[int, str] = {}

    def add(self, tensors: list[Tensor]) -> None:
        """Take note of tensors, some or all of which have a shard here."""
        for tensor in tensors:
            for shard in tensor.shards:
                if shard.server == self._server and tensor.id not in self._shards:
                    name, dtype = tensor.spec.name, np.dtype(tensor.spec.dtype)
                    ledger = Ledger(name, shard.start, shard.stop, dtype, self._num_workers, self._empty)
                    self._shards[tensor.id] = _Shard(tensor, ledger, self._num_workers)

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
        ledger = shard.ledger
        if span.kind is SpanKind.PULL:
            return [self._pulled(shard, rank, span)], offset
        if span.kind not in (SpanKind.PUSH, SpanKind.PUSH_PULL, SpanKind.INIT):
            raise LedgerError(f"worker {rank} sent {span.kind!r}, which only a server sends")
        itemsize = ledger.dtype.itemsize
        end = offset + span.count * itemsize
        if payload is None or span.count < 0 or end > payload.nbytes:
            raise LedgerError(
                f"{ledger.name!r}: worker {rank} announced {span.count} elements of {itemsize} bytes, more than it sent"
            )
        values = np.frombuffer(payload, ledger.dtype, span.count, offset)
        if span.kind is SpanKind.INIT:
            ledger.initialize(span.start, values)
            return [Answer.of(rank, SpanKind.DONE, span, span.start, span.count, None)], end
        if shard.failed is not None:
            return [Answer.failure(rank, span, *shard.failed)], end
        complete = ledger.push(rank, span.version, span.start, values, now)
        shard.asked[rank] = span
        if complete is not None:
            return self._completed(shard, *complete), end
        if self._gone:
            return self._fail_if_hopeless(shard), end
        return [], end

    def _pulled(self, shard: _Shard, rank: int, span: Span) -> Answer:
        values = shard.ledger.view(span.start, span.start + span.count)
        return Answer.of(rank, SpanKind.RESULT, span, span.start, span.count, values)

    def _completed(self, shard: _Shard, start: int, stop: int) -> list[Answer]:
        values = shard.ledger.view(start, stop)
        answers = []
        for rank, span in enumerate(shard.asked):
            assert span is not None
            if span.kind is SpanKind.PUSH_PULL:
                answers.append(Answer.of(rank, SpanKind.RESULT, span, start, stop - start, values))
            else:
                answers.append(Answer.of(rank, SpanKind.DONE, span, start, stop - start, None))
        if shard.ledger.opened_at is None:
            shard.asked = [None] * self._num_workers
            shard.reported_slow = False
        return answers

    # ----------------------------------------------------------------------- rounds that cannot end

    def worker_gone(self, rank: int, reason: str) -> list[Answer]:
        """Take note that no more pushes will come from ``rank``; fail the rounds that need one."""
        self._gone[rank] = reason
        return [answer for shard in self._shards.values() for answer in self._fail_if_hopeless(shard)]

    def _fail_if_hopeless(self, shard: _Shard) -> list[Answer]:
        ledger = shard.ledger
        if ledger.opened_at is None:
            return []
        needed = [rank for rank in self._gone if ledger.watermark(rank) < ledger.stop]
        if not needed:
            return []
        reasons = ", ".join(f"worker {rank} {self._gone[rank]}" for rank in needed)
        return self._fail(shard, ErrorCode.PEER_LOST, f"{ledger.name!r}, round {ledger.version + 1}: {reasons}")

    def _fail(self, shard: _Shard, code: ErrorCode, text: str) -> list[Answer]:
        shard.failed = (code, text)
        shard.ledger.opened_at = None
        asked, shard.asked = shard.asked, [None] * self._num_workers
        return [Answer.failure(rank, span, code, text) for rank, span in enumerate(asked) if span is not None]

    def slow_rounds(self, now: float) -> list[str]:
        """Return one line for each round that has become slow since the last call."""
        lines = []
        for shard in self._shards.values():
            ledger = shard.ledger
            if ledger.opened_at is not None and now - ledger.opened_at > SLOW_SECONDS and not shard.reported_slow:
                shard.reported_slow = True
                lines.append(f"{self._waiting(ledger)} after {now - ledger.opened_at:.0f} s")
        return lines

    def expired_rounds(self, now: float) -> list[Answer]:
        """Fail the rounds that are older than the deadline; return what to tell their workers."""
        answers = []
        for shard in self._shards.values():
            opened_at = shard.ledger.opened_at
            if opened_at is not None and now - opened_at > self._deadline_seconds:
                text = f"{self._waiting(shard.ledger)} at the deadline of {self._deadline_seconds:g} s"
                answers += self._fail(shard, ErrorCode.DEADLINE, text)
        return answers

    def _waiting(self, ledger: Ledger) -> str:
        missing = ", ".join(str(rank) for rank in ledger.missing())
        return f"{ledger.name!r}, round {ledger.version + 1}: server {self._server} waits for worker {missing}"
