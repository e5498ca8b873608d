"""What all books of a server have in common: one shard, its value, and how far each worker has pushed.

A book is pure: ranges of elements go in, and what may be answered comes out as :class:`Completion`. Which book a shard
gets follows from its tensor (:func:`ps.shards.book_of`); they differ in when a push counts:

* :class:`ps.ledger.Ledger`: as part of a round, when all workers have pushed;
* :class:`ps.tally.Tally`: by itself, at once.

Without an updater a book keeps sums; with one (:mod:`ps.updater`) it keeps the value that the updater changes.

The ranges that a worker pushes arrive in ascending order, so its progress is one number, its *watermark*.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from ps.rows import Ids, Piece
from ps.updater import Updater

__all__ = ["Array", "Book", "Completion", "Empty", "LedgerError", "MixedRound", "count_nonfinite"]

Array = NDArray[Any]
Empty = Callable[[int, "np.dtype[Any]"], Array]

#: From here on BLAS might start threads for a product.
SMALL_ELEMENTS = 8192


class LedgerError(ValueError):
    """A push or a first value that does not fit the book. Nothing was changed."""


class MixedRound(LedgerError):
    """A worker pushed rows and another all elements in one round, which cannot become complete any more."""


class Completion(NamedTuple):
    """Elements ``start`` to ``stop`` can be answered: to ``worker``, or to all where that is None."""

    start: int
    stop: int
    worker: Optional[int] = None


class Book(abc.ABC):
    """The book of elements ``start`` to ``stop`` of tensor ``name``, pushed by ``num_workers`` workers.

    Parameters
    ----------
    whole
        An updater gets all elements in one piece.
    empty
        ``empty(size, dtype)`` allocates what answers are sent from.

    Attributes
    ----------
    version
        Number of complete rounds, or of pushes that have begun; 0 is the first value.
    opened_at
        When the first push came that still waits for other workers, in seconds; None where none does.
    updater
        May be set at any time; a ledger uses it from its next round on.
    duplicates
        Ranges dropped because they had been received before.
    nonfinite
        Elements of gradients (sums, where there are rounds) that were infinite or no number.
    """

    __slots__ = (
        "name",
        "start",
        "stop",
        "dtype",
        "num_workers",
        "whole",
        "version",
        "opened_at",
        "updater",
        "duplicates",
        "nonfinite",
        "_empty",
        "_value",
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
        whole: bool = False,
        empty: Empty = np.empty,
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
        self.whole = whole
        self.version = 0
        self.opened_at: Optional[float] = None
        self.updater: Optional[Updater] = None
        self.duplicates = 0
        self.nonfinite = 0
        self._empty = empty
        self._value: Array = np.empty(0, dtype)
        # An empty shard has one element that takes no memory, so that its pushes need no rules of their own.
        self._end = max(stop, start + 1)
        self._filled = start
        self._marks = [start] * num_workers

    # ------------------------------------------------------------------------------------- the value

    @property
    def initialized(self) -> bool:
        return self._filled == self._end

    @property
    def value(self) -> Array:
        """What is kept, shape ``(stop - start,)``: after whole rounds, where there are rounds."""
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

    @abc.abstractmethod
    def view(self, start: int, stop: int) -> Array:
        """Return elements of the newest value that they have, without a copy.

        Raises
        ------
        LedgerError
            Out of the shard, no first value yet, or elements of two rounds.
        """

    def _check_range(self, start: int, stop: int) -> None:
        if not self.start <= start <= stop <= self.stop:
            raise LedgerError(
                f"{self.name!r}: asked for elements {start} to {stop}; expected a range of {self.start} to {self.stop}"
            )

    # ------------------------------------------------------------------------------------- pushes

    @abc.abstractmethod
    def push(self, worker: int, version: int, start: int, values: Array, now: float) -> Sequence[Completion]:
        """Take a range of a worker's gradient.

        Parameters
        ----------
        worker
            Rank of the worker.
        version
            How often the worker has pushed to this tensor, this push included.
        start
            First element of the range, counted from the beginning of the tensor.
        values
            1-D, of the tensor's dtype; may be read-only. Not kept.
        now
            Seconds.

        Returns
        -------
        What can be answered now. Each element is answered once per push, in ascending ranges; an empty shard has the
        range ``(start, start)``.

        Raises
        ------
        LedgerError
            Another version, type or range than what this worker may push next.
        """

    def changes(self, version: int) -> Optional[Ids]:
        """Return the only rows that may have changed since ``version``; None where that may be any row.

        Ascending, counted from the shard's first row.
        """
        return None

    @abc.abstractmethod
    def push_rows(self, worker: int, version: int, piece: Piece, now: float) -> Sequence[Completion]:
        """Take a range of a worker's gradient of which only some rows are not zero; otherwise like :meth:`push`.

        Rows count when the worker's push is complete, so the whole shard is answered at once.
        """

    def _takes_rows(self, worker: int, version: int, piece: Piece) -> bool:
        """Return whether ``piece`` is the next one of its worker; False where it was had before."""
        if (
            0 <= worker < self.num_workers
            and version == self._next_version(worker)
            and piece.start == self._marks[worker]
            and piece.start < piece.stop <= self._end
            and self._filled == self._end
        ):
            return True
        self._drop_duplicate(worker, version, piece.start, max(piece.start, piece.stop), np.empty(0, self.dtype))
        return False

    def _rows_of_shard(self, ids: Ids, width: int) -> tuple[Ids, Array]:
        """Return ``ids`` counted from the first row of the shard, and the value by rows."""
        return ids - self.start // width, self._value.reshape(-1, width)

    def watermark(self, worker: int) -> int:
        """Return up to which element ``worker`` has pushed in the push under way."""
        return min(self._marks[worker], self.stop)

    @abc.abstractmethod
    def _next_version(self, worker: int) -> int:
        """Return the version of the push of ``worker`` that is under way or comes next."""

    def _drop_duplicate(self, worker: int, version: int, start: int, stop: int, values: Array) -> None:
        """Count a push that was had before; raise for any other that is not the next one of its worker."""
        expected = ""
        if not 0 <= worker < self.num_workers:
            expected = f"a rank below {self.num_workers}"
        elif not self.initialized:
            expected = "no push before the first value is complete"
        elif values.dtype != self.dtype or values.ndim != 1:
            expected = f"{self.dtype}, 1-D"
        elif version > self._next_version(worker):
            expected = f"version {self._next_version(worker)}"
        elif not self.start <= start <= stop <= self.stop:
            expected = f"elements within {self.start} to {self.stop}"
        elif version == self._next_version(worker) and stop > self._marks[worker]:
            expected = f"the range from element {self._marks[worker]} on"
        if expected:
            raise LedgerError(
                f"{self.name!r}: worker {worker} pushed elements {start} to {stop} of version {version}, "
                f"{values.dtype}, {values.ndim}-D; expected {expected}"
            )
        self.duplicates += 1

    # -------------------------------------------------------------------------- pushes that wait for others

    @abc.abstractmethod
    def missing(self) -> list[int]:
        """Return the workers that the oldest waiting push waits for."""

    @abc.abstractmethod
    def needs(self, worker: int) -> bool:
        """Return whether a push waits that can end only when ``worker`` pushes."""

    def worker_gone(self, worker: int) -> Sequence[Completion]:
        """Wait no more for ``worker``, where that is possible; return what can be answered now."""
        return ()

    @abc.abstractmethod
    def give_up(self) -> list[int]:
        """End the push that has waited for longest, and what would wait with it; return whose pushes that are."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Name the key and what is waiting, or comes next."""


def count_nonfinite(values: Array) -> int:
    """Return how many of ``values`` are infinite or no number.

    Almost always none is, and that has to be cheap: the sum of the numbers tells, in a third of the time of
    ``np.isfinite``. It may overflow though all are finite; then each is looked at. float16 has no fast arithmetic, but
    its bits, taken as integers, are largest for what is not finite.
    """
    if values.dtype.kind != "f" or not values.size:
        return 0
    if values.dtype.itemsize == 2:
        suspicious = bool(values.view(np.int16).max() >= 0x7C00 or values.view(np.uint16).max() >= 0xFC00)
    else:
        total = np.dot(values, values) if values.size < SMALL_ELEMENTS else np.einsum("i->", values)
        suspicious = not math.isfinite(total)
    return values.size - int(np.count_nonzero(np.isfinite(values))) if suspicious else 0
