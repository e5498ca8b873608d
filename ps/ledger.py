"""A server's book of one shard in synchronous sum mode: who has pushed how far, and the sum.

Ranges are summed, not partitions. The ranges of one worker arrive in ascending order, so its progress in a
round is one number, its *watermark*. An arriving range is added where it lies below the highest watermark, and copied
above it; what lies below the lowest watermark is complete and is never written again in this round. Hence
workers may cut the same tensor differently, even in the same round.

Invariants:

* each element of a round is reported complete exactly once, in ascending order, and then holds exactly the sum of what
  all workers pushed for it in that round;
* rounds never mix: a push must name the open round, ``version + 1``; one that names an earlier round, or a range
  below the watermark, was sent twice and is dropped.

Two buffers alternate, value and accumulator, so that answers are sent from them without a copy. Round ``v + 1``
accumulates in the value of round ``v - 1``: no answer from it can be outstanding, because every worker has
pushed to round ``v``, and a worker pushes to a key only when its previous operation on it has its answer.

float16 is summed in float32 and rounded once when a range completes; other types are summed as they are. A sum
out of range is inf (or wraps, for integers), as NumPy has it; whether NumPy warns of that is the caller's choice
(``np.errstate``), made once and not per push.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ledger", "LedgerError"]

Array = NDArray[Any]


class LedgerError(ValueError):
    """A push or a first value that does not fit the book. Nothing was changed."""


class Ledger:
    """The book of elements ``start`` to ``stop`` of tensor ``name``, pushed by ``num_workers`` workers.

    ``empty(size, dtype)`` allocates the two buffers that answers are sent from.

    Attributes
    ----------
    version
        Number of complete rounds; 0 is the first value.
    opened_at
        When the first push to the open round came, in seconds; None where no round is open.
    duplicates
        Ranges dropped because they had been received before.
    """

    __slots__ = (
        "name",
        "start",
        "stop",
        "dtype",
        "num_workers",
        "_empty",
        "version",
        "opened_at",
        "duplicates",
        "_value",
        "_result",
        "_sums",
        "_marks",
        "_filled",
        "_end",
    )

    def __init__(
        self,
        name: str,
        start: int,
        stop: int,
        dtype: np.dtype[Any],
        num_workers: int,
        empty: Callable[[int, np.dtype[Any]], Array] = np.empty,
    ) -> None:
        dtype = np.dtype(dtype)
        if not 0 <= start <= stop:
            raise LedgerError(f"{name!r}: a shard of elements {start} to {stop}; expected 0 <= start <= stop")
        if dtype.kind not in "fiu":
            raise LedgerError(f"{name!r}: cannot sum {dtype}; expected a type of floats or integers")
        if num_workers < 1:
            raise LedgerError(f"{name!r}: {num_workers} workers; expected at least 1")
        self.name = name
        self.start = start
        self.stop = stop
        self.dtype = dtype
        self.num_workers = num_workers
        self._empty = empty
        self.version = 0
        self.opened_at: Optional[float] = None
        self.duplicates = 0
        self._value: Array = np.empty(0, dtype)
        self._result: Optional[Array] = None  # of the open round, as it will be sent
        self._sums: Optional[Array] = None  # of the open round; the same array, except for float16
        # An empty shard has one element that takes no memory, so that its rounds need no rules of their own.
        self._end = max(stop, start + 1)
        self._filled = start
        self._marks = [start] * num_workers

    @property
    def initialized(self) -> bool:
        return self._filled == self._end

    @property
    def value(self) -> Array:
        """The last complete round, shape ``(stop - start,)``."""
        if not self.initialized:
            raise LedgerError(f"{self.name!r}: the first value is not complete yet")
        return self._value

    def initialize(self, start: int, values: Array) -> bool:
        """Take the next range of the first value; return True when it is complete.

        Raises
        ------
        LedgerError
            The value is complete already, or this is not its next range, or of another type.
        """
        end = start + (values.size or self._end - self.stop)
        if self.initialized:
            raise LedgerError(f"{self.name!r} has its first value already; a key is initialised once")
        if start != self._filled or end > self._end or values.dtype != self.dtype or values.ndim != 1:
            raise LedgerError(
                f"{self.name!r}: first value of elements {start} to {start + values.size}, {values.dtype}; "
                f"expected elements from {self._filled} up to {self.stop}, {self.dtype}"
            )
        if start == self.start:
            self._value = self._empty(self.stop - self.start, self.dtype)
        self._value[start - self.start : end - self.start] = values
        self._filled = end
        return self.initialized

    def push(self, worker: int, version: int, start: int, values: Array, now: float) -> Optional[tuple[int, int]]:
        """Sum a range of a worker's gradient.

        Parameters
        ----------
        worker
            Rank of the worker.
        version
            The round, counted from 1.
        start
            First element of the range, counted from the beginning of the tensor.
        values
            1-D, of the tensor's dtype; may be read-only. Not kept.
        now
            Seconds.

        Returns
        -------
        (start, stop) or None
            Elements that have become complete, or None. When the whole shard is complete the round closes.
            An empty shard answers ``(start, start)`` when all have pushed.

        Raises
        ------
        LedgerError
            Another version, type or range than what this worker may push next.
        """
        marks = self._marks
        end = start + (values.size or self._end - self.stop)
        if (
            version != self.version + 1
            or not 0 <= worker < self.num_workers
            or start != marks[worker]
            or end > self._end
            or values.dtype != self.dtype
            or values.ndim != 1
            or self._filled != self._end
        ):
            self._drop_duplicate(worker, version, start, values)
            return None
        if self.opened_at is None:
            self._open(now)
        lowest, highest = min(marks), max(marks)
        sums: Array = self._sums  # type: ignore[assignment]  # an open round has its accumulator
        base = self.start
        if start >= highest:
            sums[start - base : end - base] = values
        elif end <= highest:
            target = sums[start - base : end - base]
            np.add(target, values, out=target)
        else:
            target = sums[start - base : highest - base]
            np.add(target, values[: highest - start], out=target)
            sums[highest - base : end - base] = values[highest - start :]
        marks[worker] = end
        complete = min(marks)
        if complete == lowest:
            return None
        if self._result is not sums:
            self._result[lowest - base : complete - base] = sums[lowest - base : complete - base]  # type: ignore[index]
        if complete < self._end:
            return lowest, complete
        self._close()
        return lowest, self.stop

    def _open(self, now: float) -> None:
        self.opened_at = now
        if self._result is None:
            self._result = self._empty(self._value.size, self.dtype)
        if self.dtype != np.float16:
            self._sums = self._result
        elif self._sums is None:
            self._sums = np.empty(self._value.size, np.float32)

    def _close(self) -> None:
        self._value, self._result = self._result, self._value  # type: ignore[assignment]  # it was open
        self.version += 1
        self.opened_at = None
        self._marks = [self.start] * self.num_workers

    def _drop_duplicate(self, worker: int, version: int, start: int, values: Array) -> None:
        """Count a push that was had before; raise for any other that is not the next one of its worker."""
        stop = start + values.size
        expected = ""
        if not 0 <= worker < self.num_workers:
            expected = f"a rank below {self.num_workers}"
        elif not self.initialized:
            expected = "no push before the first value is complete"
        elif values.dtype != self.dtype or values.ndim != 1:
            expected = f"{self.dtype}, 1-D"
        elif version > self.version + 1:
            expected = f"version {self.version + 1}"
        elif not self.start <= start <= stop <= self.stop:
            expected = f"elements within {self.start} to {self.stop}"
        elif version == self.version + 1 and stop > self._marks[worker]:
            expected = f"the range from element {self._marks[worker]} on"
        if expected:
            raise LedgerError(
                f"{self.name!r}: worker {worker} pushed elements {start} to {stop} of version {version}, "
                f"{values.dtype}, {values.ndim}-D; expected {expected}"
            )
        self.duplicates += 1

    def watermark(self, worker: int) -> int:
        """Return up to which element ``worker`` has pushed in the open round."""
        return min(self._marks[worker], self.stop)

    def missing(self) -> list[int]:
        """Return the workers that the open round waits for: those behind the one that is farthest."""
        highest = max(self._marks)
        return [worker for worker, mark in enumerate(self._marks) if mark < highest]

    def view(self, start: int, stop: int) -> Array:
        """Return elements of the newest round in which they are complete, without a copy.

        The array stays as it is until all workers have pushed once more to this shard.

        Raises
        ------
        LedgerError
            Out of the shard, no first value yet, or elements of two rounds.
        """
        if not self.start <= start <= stop <= self.stop:
            raise LedgerError(
                f"{self.name!r}: asked for elements {start} to {stop}; expected a range of {self.start} to {self.stop}"
            )
        complete = min(self._marks)
        if start < complete < stop:
            raise LedgerError(
                f"{self.name!r}: elements {start} to {stop} are of two rounds: "
                f"round {self.version + 1} is complete up to {complete}"
            )
        if start < complete and self._result is not None:
            return self._result[start - self.start : stop - self.start]
        return self.value[start - self.start : stop - self.start]
