"""The book of a synchronous shard: rounds, in which every worker pushes once.

Ranges are summed, not partitions. An arriving range is added where it lies below the highest watermark, and copied
above it; what lies below the lowest watermark is complete and is never written again in this round. Hence
workers may cut the same tensor differently, even in the same round.

Invariants:

* each element of a round is reported complete exactly once, in ascending order, and then holds exactly the sum of what
  all workers pushed for it in that round, or the value that the updater made with that sum;
* rounds never mix: a push must name the open round, ``version + 1``; one that names an earlier round, or a range
  below the watermark, was sent twice and is dropped.

Two buffers, so that answers are sent without a copy. Without an updater value and accumulator alternate: round
``v + 1`` accumulates in the value of round ``v - 1``. With one, the value is changed in place, element by
element as the round completes. No answer from what is written can be outstanding, because every worker has
pushed these elements (of round ``v + 1``, or at least of round ``v``), and a worker pushes to a key only when its
previous operation on it has its answer.

A round may be one of rows (:mod:`ps.rows`): its pieces are kept until all have pushed, then added up in the order of
the ranks and written into the value, at no cost for the other rows. The ledger remembers which rows the last rounds
changed, so that a worker with an earlier value can fetch the difference.

float16 is summed in float32 and rounded once when a range completes; other types are summed as they are. A sum
out of range is inf (or wraps, for integers), as NumPy has it; whether NumPy warns of that is the caller's choice
(``np.errstate``), made once and not per push.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Optional, Sequence

import numpy as np

from ps.book import Array, Book, Completion, Empty, LedgerError, MixedRound, count_nonfinite
from ps.rows import Ids, Piece, add_up, join
from ps.updater import Updater

__all__ = ["Ledger", "OrderedLedger", "LedgerError"]

#: A worker that has a value of up to so many rounds ago may ask for what has changed since.
REMEMBERED_ROUNDS = 16


class Ledger(Book):
    """Rounds that are summed as pushes arrive; see the module and :class:`~ps.book.Book`."""

    __slots__ = ("_result", "_sums", "_complete", "_ready", "_updates", "_pieces", "_nonzero", "_changes")

    def __init__(
        self,
        name: str,
        start: int,
        stop: int,
        dtype: np.dtype[Any],
        num_workers: int,
        whole: bool = False,
        empty: Empty = np.empty,
    ) -> None:
        super().__init__(name, start, stop, dtype, num_workers, whole, empty)
        self._result: Optional[Array] = None  # of the open round, in the tensor's type
        self._sums: Optional[Array] = None  # of the open round; the same array, except for float16
        self._complete = start  # up to here the open round has its sum
        self._ready = start  # and up to here its answer
        self._updates: Optional[Updater] = None  # of the open round
        self._pieces: Optional[list[list[Piece]]] = None  # of the open round by rank, if it is one of rows
        self._nonzero: Optional[Ids] = None  # the only rows that the last round set; None: any may be set
        self._changes: deque[Ids] = deque(
            maxlen=REMEMBERED_ROUNDS
        )  # the only rows that each of the last rounds changed

    def __str__(self) -> str:
        return f"{self.name!r}, round {self.version + 1}"

    def push(self, worker: int, version: int, start: int, values: Array, now: float) -> Sequence[Completion]:
        end = start + (values.size or self._end - self.stop)
        if (
            version != self.version + 1
            or not 0 <= worker < self.num_workers
            or start != self._marks[worker]
            or end > self._end
            or values.dtype != self.dtype
            or values.ndim != 1
            or self._filled != self._end
        ):
            self._drop_duplicate(worker, version, start, start + values.size, values)
            return ()
        if self.opened_at is None:
            self._open(now)
        elif self._pieces is not None:
            raise self._mixed(worker, "all elements", "rows")
        complete = self._sum(worker, start, end, values)
        if complete == self._complete:
            return ()
        self._completed(self._complete, complete)
        first, self._complete = self._ready, complete
        if complete == self._end:
            self._close()
            return (Completion(first, self.stop),)
        if self.whole and self._updates is not None:
            return ()
        self._ready = complete
        return (Completion(first, complete),)

    def push_rows(self, worker: int, version: int, piece: Piece, now: float) -> Sequence[Completion]:
        """Keep the piece; the rows are added up in the order of the ranks, when all have pushed all of theirs."""
        if not self._takes_rows(worker, version, piece):
            return ()
        if self.opened_at is None:
            self.opened_at = now
            self._updates = self.updater
            self._pieces = [[] for _ in range(self.num_workers)]
        elif self._pieces is None:
            raise self._mixed(worker, "rows", "all elements")
        self._pieces[worker].append(piece)
        self._marks[worker] = piece.stop
        if min(self._marks) < self._end:
            return ()
        self._close_rows(*add_up([join(pieces) for pieces in self._pieces]))
        return (Completion(self.start, self.stop),)

    def _close_rows(self, ids: Ids, sums: Array) -> None:
        self.nonfinite += count_nonfinite(sums.reshape(-1))
        own, value = self._rows_of_shard(ids, sums.shape[1])
        changes: Optional[Ids] = None
        if self._updates is not None:
            if self._updates.update_rows(self.version + 1, own, sums, value):
                changes = own
        elif self._nonzero is None:
            value[:] = 0
            value[own] = sums
        else:
            changes = np.union1d(own, self._nonzero)
            value[changes] = 0
            value[own] = sums
        self._nonzero = own
        self._pieces = None
        self._next_round(changes)

    def changes(self, version: int) -> Optional[Ids]:
        rounds = self.version - version
        if not 0 <= rounds <= len(self._changes):
            return None
        newest = list(self._changes)[len(self._changes) - rounds :]
        changes: Ids = np.unique(np.concatenate([np.empty(0, np.int64), *newest]))
        return changes

    def _mixed(self, worker: int, this: str, other: str) -> MixedRound:
        return MixedRound(
            f"{self}: worker {worker} pushed {this}, another worker {other}; push values of the same storage type"
        )

    def _open(self, now: float) -> None:
        self.opened_at = now
        self._updates = self.updater
        if self._result is None:
            self._result = self._empty(self._value.size, self.dtype)
        if self.dtype != np.float16:
            self._sums = self._result
        elif self._sums is None:
            self._sums = np.empty(self._value.size, np.float32)

    def _sum(self, worker: int, start: int, end: int, values: Array) -> int:
        """Add the next range of a worker; return up to which element the sum is complete."""
        highest = max(self._marks)
        base = self.start
        sums: Array = self._sums  # type: ignore[assignment]  # an open round has its accumulator
        if start >= highest:
            sums[start - base : end - base] = values
        elif end <= highest:
            target = sums[start - base : end - base]
            np.add(target, values, out=target)
        else:
            target = sums[start - base : highest - base]
            np.add(target, values[: highest - start], out=target)
            sums[highest - base : end - base] = values[highest - start :]
        self._marks[worker] = end
        return min(self._marks)

    def _completed(self, start: int, end: int) -> None:
        """Round the sum of a range, look at it, and let the updater have it."""
        section = slice(start - self.start, end - self.start)
        gradient = self._result[section]  # type: ignore[index]  # a round is open
        if self._result is not self._sums:
            gradient[:] = self._sums[section]  # type: ignore[index]
        self.nonfinite += count_nonfinite(gradient)
        if self._updates is None:
            return
        if not self.whole:
            stop = min(end, self.stop)
            self._updates.update(self.version + 1, start, stop, gradient, self._value[section])
        elif end == self._end:
            self._updates.update(self.version + 1, self.start, self.stop, self._result, self._value)  # type: ignore[arg-type]

    def _close(self) -> None:
        if self._updates is None:
            self._value, self._result = self._result, self._value  # type: ignore[assignment]  # it was open
            self._nonzero = None
        self._next_round(None)

    def _next_round(self, changes: Optional[Ids]) -> None:
        if changes is None:
            self._changes.clear()
        else:
            self._changes.append(changes)
        self.version += 1
        self.opened_at = None
        self._complete = self._ready = self.start
        self._marks = [self.start] * self.num_workers

    def view(self, start: int, stop: int) -> Array:
        """Return elements of the newest round in which they are complete, without a copy.

        The array stays as it is until all workers have pushed these elements once more, or, without an updater, until
        one of them has begun another push after that.
        """
        self._check_range(start, stop)
        if start < self._ready < stop:
            raise LedgerError(
                f"{self.name!r}: elements {start} to {stop} are of two rounds: "
                f"round {self.version + 1} is complete up to {self._ready}"
            )
        if start < self._ready and self._updates is None and self._result is not None:
            return self._result[start - self.start : stop - self.start]
        return self.value[start - self.start : stop - self.start]

    def missing(self) -> list[int]:
        """Return the workers that the open round waits for: those behind the one that is farthest."""
        highest = max(self._marks)
        return [worker for worker, mark in enumerate(self._marks) if mark < highest]

    def needs(self, worker: int) -> bool:
        return self.opened_at is not None and self._marks[worker] < self._end

    def give_up(self) -> list[int]:
        """End the open round, for all workers; this book is of no more use."""
        self.opened_at = None
        return list(range(self.num_workers))

    def _next_version(self, worker: int) -> int:
        return self.version + 1


class OrderedLedger(Ledger):
    """Sums in the order of the ranks, ``(w0 + w1) + w2``, for equal bits whatever the order of arrival and the cuts.

    An element of rank r is added when rank r - 1 has been; what comes early is kept until then.
    """

    __slots__ = ("_summed", "_early")

    def __init__(
        self,
        name: str,
        start: int,
        stop: int,
        dtype: np.dtype[Any],
        num_workers: int,
        whole: bool = False,
        empty: Empty = np.empty,
    ) -> None:
        super().__init__(name, start, stop, dtype, num_workers, whole, empty)
        self._summed = [start] * num_workers  # up to which element each rank is part of the sum; descending
        self._early: list[list[tuple[int, int, Array]]] = [[] for _ in range(num_workers)]

    def _sum(self, worker: int, start: int, end: int, values: Array) -> int:
        self._marks[worker] = end
        turn = self._turn(worker)
        if start < turn:  # so nothing of this rank is waiting
            stop = min(end, turn)
            self._add(worker, start, stop, values[: stop - start])
            start, values = stop, values[stop - start :]
        if start < end:
            self._early[worker].append((start, end, values.copy()))
        for follower in range(worker + 1, self.num_workers):
            self._add_early(follower)
        return self._summed[-1]

    def _turn(self, worker: int) -> int:
        """Return up to which element it is the turn of ``worker``."""
        return self._summed[worker - 1] if worker else self._end

    def _add_early(self, worker: int) -> None:
        turn, early = self._turn(worker), self._early[worker]
        while early and early[0][0] < turn:
            start, end, values = early.pop(0)
            stop = min(end, turn)
            self._add(worker, start, stop, values[: stop - start])
            if stop < end:
                early.insert(0, (stop, end, values[stop - start :]))

    def _add(self, worker: int, start: int, stop: int, values: Array) -> None:
        target = self._sums[start - self.start : stop - self.start]  # type: ignore[index]  # a round is open
        if worker:
            np.add(target, values, out=target)
        else:
            target[:] = values
        self._summed[worker] = stop

    def _close(self) -> None:
        super()._close()
        self._summed = [self.start] * self.num_workers
