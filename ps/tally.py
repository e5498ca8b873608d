"""The book of an asynchronous shard: each push counts at once and by itself.

A range is added to the value, or given to the updater, when it arrives, and can be answered with the value as it is
then: with at least this push in it, and with whatever the others have pushed so far. Workers never wait for each
other, with one exception:

*Bounded staleness* (Ho et al., 2013, "More effective distributed machine learning via a stale synchronous parallel
parameter server"). With ``staleness`` s, push number v of a worker is applied at once as well, but answered only when
every other worker that is still there has pushed v - s times: no worker is more than s pushes ahead of the slowest.
What is waiting is applied, so nobody can wait for somebody who waits for him.

Invariants: each worker counts its own versions; every range is applied exactly once; each element of a push is answered
once, in ascending ranges.

Answers are sent without a copy from the value that later pushes change. So what a worker reads of one element is
a value that this element had between the push and the arrival of the answer, and different elements may be of different
times, as those of different shards are anyway. float16 without an updater is accumulated in float32, or small pushes
would be lost beside a large value.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from ps.book import Array, Book, Completion, Empty, count_nonfinite
from ps.rows import Ids, Piece, join

__all__ = ["Tally"]


class _Waiting(NamedTuple):
    """A push of which elements from ``start`` on are not answered."""

    version: int
    start: int
    since: float


class Tally(Book):
    """See the module and :class:`~ps.book.Book`; ``staleness`` is -1 where it is not bounded."""

    __slots__ = ("_staleness", "_pushed", "_numbers", "_gone", "_waiting", "_sums", "_pieces", "_rows")

    def __init__(
        self,
        name: str,
        start: int,
        stop: int,
        dtype: np.dtype[Any],
        num_workers: int,
        whole: bool = False,
        empty: Empty = np.empty,
        staleness: int = -1,
    ) -> None:
        super().__init__(name, start, stop, dtype, num_workers, whole, empty)
        self._staleness = staleness
        self._pushed = [0] * num_workers  # complete pushes of each worker
        self._numbers = [0] * num_workers  # of the push under way, among those of all workers
        self._gone: set[int] = set()
        self._waiting: dict[int, _Waiting] = {}  # by worker; the one that has waited for longest first
        self._sums: Optional[Array] = None  # the value with more digits, for float16 without an updater
        self._pieces: dict[int, Array] = {}  # pushes that the updater will get in one piece, by worker
        self._rows: dict[int, list[Piece]] = {}  # pushes of rows under way, by worker

    def __str__(self) -> str:
        for worker, waiting in self._waiting.items():
            return f"{self.name!r}, push {waiting.version} of worker {worker} (staleness {self._staleness})"
        return f"{self.name!r} after {self.version} pushes"

    def push(self, worker: int, version: int, start: int, values: Array, now: float) -> Sequence[Completion]:
        end = start + (values.size or self._end - self.stop)
        if (
            not 0 <= worker < self.num_workers
            or version != self._pushed[worker] + 1
            or start != self._marks[worker]
            or end > self._end
            or values.dtype != self.dtype
            or values.ndim != 1
            or self._filled != self._end
        ):
            self._drop_duplicate(worker, version, start, start + values.size, values)
            return ()
        if start == self.start:
            self.version += 1
            self._numbers[worker] = self.version
        self._marks[worker] = end
        if self.whole and self.updater is not None:
            values = self._pieced(worker, start, end, values)
            if end < self._end:
                return ()
            start = self.start
        self._apply(worker, start, values)
        return self._applied(worker, version, start, end, now)

    def push_rows(self, worker: int, version: int, piece: Piece, now: float) -> Sequence[Completion]:
        if not self._takes_rows(worker, version, piece):
            return ()
        if piece.start == self.start:
            self.version += 1
            self._numbers[worker] = self.version
        pieces = self._rows.setdefault(worker, [])
        pieces.append(piece)
        self._marks[worker] = piece.stop
        if self._marks[worker] < self._end:
            return ()
        self._apply_rows(worker, *join(self._rows.pop(worker)))
        return self._applied(worker, version, self.start, self._end, now)

    def _applied(self, worker: int, version: int, start: int, end: int, now: float) -> Sequence[Completion]:
        """Take note that a range is in the value; return what can be answered now."""
        if end == self._end:
            self._marks[worker] = self.start
            self._pushed[worker] += 1
        if self._staleness < 0:
            return (Completion(start, min(end, self.stop), worker),)
        if worker not in self._waiting:
            self._waiting[worker] = _Waiting(version, start, now)
        return self._answerable()

    def _pieced(self, worker: int, start: int, end: int, values: Array) -> Array:
        """Return the push of ``worker`` so far, with ``values`` at its end."""
        if start == self.start:
            if end == self._end:
                return values
            self._pieces[worker] = np.empty(self._value.size, self.dtype)
        self._pieces[worker][start - self.start : end - self.start] = values
        return self._pieces[worker] if end < self._end else self._pieces.pop(worker)

    def _apply(self, worker: int, start: int, gradient: Array) -> None:
        self.nonfinite += count_nonfinite(gradient)
        section = slice(start - self.start, start - self.start + gradient.size)
        value = self._value[section]
        if self.updater is not None:
            self._sums = None
            self.updater.update(self._numbers[worker], start, start + gradient.size, gradient, value)
        elif self.dtype != np.float16:
            np.add(value, gradient, out=value)
        else:
            if self._sums is None:
                self._sums = self._value.astype(np.float32)
            sums = self._sums[section]
            np.add(sums, gradient, out=sums)
            value[:] = sums

    def _apply_rows(self, worker: int, ids: Ids, rows: Array) -> None:
        self.nonfinite += count_nonfinite(rows.reshape(-1))
        own, value = self._rows_of_shard(ids, rows.shape[1])
        if self.updater is not None:
            self._sums = None
            self.updater.update_rows(self._numbers[worker], own, rows, value)
        elif self.dtype != np.float16:
            value[own] += rows
        else:
            if self._sums is None:
                self._sums = self._value.astype(np.float32)
            sums = self._sums.reshape(value.shape)
            sums[own] += rows
            value[own] = sums[own]

    def view(self, start: int, stop: int) -> Array:
        """Return elements of the present value, without a copy: they change with every push."""
        self._check_range(start, stop)
        return self.value[start - self.start : stop - self.start]

    # ----------------------------------------------------------------------------------- staleness

    def _answerable(self) -> list[Completion]:
        """Stop waiting where no other worker is too far behind; return what that answers."""
        completions = []
        for worker, waiting in list(self._waiting.items()):
            if not self._behind(worker, waiting.version):
                del self._waiting[worker]
                reached = self._marks[worker] if self._pushed[worker] < waiting.version else self._end
                completions.append(Completion(waiting.start, min(reached, self.stop), worker))
        self._note_oldest()
        return completions

    def _behind(self, worker: int, version: int) -> list[int]:
        """Return the workers for which push ``version`` of ``worker`` waits."""
        return [
            other
            for other, pushed in enumerate(self._pushed)
            if pushed < version - self._staleness and other != worker and other not in self._gone
        ]

    def _note_oldest(self) -> None:
        self.opened_at = next(iter(self._waiting.values())).since if self._waiting else None

    def missing(self) -> list[int]:
        for worker, waiting in self._waiting.items():
            return self._behind(worker, waiting.version)
        return []

    def needs(self, worker: int) -> bool:
        return False

    def worker_gone(self, worker: int) -> Sequence[Completion]:
        self._gone.add(worker)
        self._waiting.pop(worker, None)
        self._pieces.pop(worker, None)
        self._rows.pop(worker, None)
        return self._answerable()

    def give_up(self) -> list[int]:
        """End the push that has waited for longest. It is applied; the book goes on."""
        worker = next(iter(self._waiting))
        del self._waiting[worker]
        self._note_oldest()
        return [worker]

    def _next_version(self, worker: int) -> int:
        return self._pushed[worker] + 1
