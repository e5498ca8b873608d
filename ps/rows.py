"""Rows of a tensor by their ids: what travels of a value of which few rows are touched.

A row of a tensor of shape ``(rows, ...)`` is everything behind its first index, ``width`` elements. Ids travel as
int64 together with their rows, as *records*: an id and its row, one behind the other in memory, so that any run of
records is one piece of bytes that is sent as it lies.

A push of rows says something about all others, too: that they are zero. So each piece of it covers a range of
elements, of which its records are the rows that are not zero; the pieces of a push are ascending and gapless and
cover the shard, like the partitions of a dense push. A push of no rows at all is one piece without records. This is
what lets the books (:mod:`ps.ledger`) count the progress of both kinds of pushes in the same way.

Invariants: what leaves this module is ascending by id, each id once; equal ids add up in the order in which they are
given; float16 is summed in float32 and rounded once. Everything here is pure.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from ps.errors import TensorError
from ps.messages import Shard, Tensor
from ps.operation import checked_array

__all__ = [
    "ID_BYTES",
    "Ids",
    "Piece",
    "RowsEncoder",
    "add_up",
    "join",
    "merge",
    "record_type",
    "records",
    "row_ids",
    "row_width",
    "rows_of",
    "split",
    "unpack",
]

#: Bytes of an id on the wire.
ID_BYTES = 8

Array = NDArray[Any]
Ids = NDArray[np.int64]


def row_width(shape: Sequence[int]) -> int:
    """Return the elements of a row of a tensor of ``shape``; 0 where it has no first index."""
    return math.prod(shape[1:]) if shape else 0


def row_ids(ids: Any, num_rows: int, what: str) -> Ids:
    """Return ``ids``, an array of any shape, as one-dimensional int64, in its order; ``what`` begins every error.

    Raises
    ------
    TensorError
        An id is not a row of the tensor, or may not be the one that was meant: floats hold whole numbers exactly only
        up to a bound (2**24 for float32), and what is at that bound may have been rounded to it.
    """
    array = checked_array(ids, what).reshape(-1)
    if array.dtype.kind == "f":
        bits = np.finfo(array.dtype).nmant + 1
        if array.size and not np.abs(array).max() < 2.0**bits:  # nan, too
            raise TensorError(
                f"{what}: row id {_worst(array)} is given as {array.dtype}, which is exact only below 2**{bits}"
                f" = {2**bits}; give row ids as int64"
            )
        broken = array[array != np.floor(array)]
        if broken.size:
            raise TensorError(f"{what}: {broken[0]} is not a row id; row ids are whole numbers")
    elif array.dtype.kind not in "iu" and array.size:
        raise TensorError(f"{what}: row ids of type {array.dtype}; give them as int64")
    outside = array[(array < 0) | (array >= num_rows)]
    if outside.size:
        raise TensorError(f"{what}: row id {int(outside[0])} is not one of the tensor's {num_rows} rows")
    return array.astype(np.int64)


def _worst(floats: Array) -> float:
    """Return the first of ``floats`` that is nan, else the largest in size."""
    return float(floats[np.argmax(np.abs(floats))])


def merge(ids: Ids, rows: Array) -> tuple[Ids, Array]:
    """Return rows ascending by id, those of equal ids added up. The result may be the arguments themselves.

    Parameters
    ----------
    ids
        Shape ``(n,)``, any order.
    rows
        Shape ``(n, width)``.

    Examples
    --------
    >>> merge(np.array([3, 1, 3]), np.array([[1.0], [2.0], [4.0]]))
    (array([1, 3]), array([[2.],
           [5.]]))
    """
    if (ids[1:] > ids[:-1]).all():
        return ids, rows
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    if first.size < ids.size:
        ids, rows = ids[first], np.add.reduceat(rows, first, axis=0, dtype=_sum_type(rows)).astype(rows.dtype)
    return ids, rows


def add_up(parts: Sequence[tuple[Ids, Array]]) -> tuple[Ids, Array]:
    """Return the sum by id of several lists of rows, added in their order.

    Parameters
    ----------
    parts
        At least one. Each with ascending ids, each id once, shape ``(n,)``, and rows of shape ``(n, width)`` and of
        one dtype.
    """
    if len(parts) == 1:
        return parts[0]
    ids = np.unique(np.concatenate([part[0] for part in parts]))
    _, first = parts[0]
    sums = np.empty((ids.size, first.shape[1]), _sum_type(first))
    seen = np.zeros(ids.size, bool)
    for part_ids, rows in parts:
        places = np.searchsorted(ids, part_ids)
        again = seen[places]
        sums[places[again]] += rows[again]
        sums[places[~again]] = rows[~again]
        seen[places] = True
    return ids, sums.astype(first.dtype, copy=False)


def _sum_type(rows: Array) -> np.dtype[Any]:
    return np.dtype(np.float32) if rows.dtype == np.float16 else rows.dtype


def record_type(dtype: np.dtype[Any], width: int) -> np.dtype[Any]:
    """Return the type of one record: ``id`` and ``row``, without gaps."""
    return np.dtype([("id", "<i8"), ("row", dtype, (width,))])


def records(ids: Ids, rows: Array) -> Array:
    """Return ids and rows, shapes ``(n,)`` and ``(n, width)``, as ``n`` records: a copy."""
    result = np.empty(ids.size, record_type(rows.dtype, rows.shape[1]))
    result["id"] = ids
    result["row"] = rows
    return result


def rows_of(tensor: Tensor, what: str) -> tuple[int, int]:
    """Return the number of rows of a tensor and their width.

    Raises
    ------
    TensorError
        A server has only a part of some row.
    """
    shape, width = tensor.spec.shape, row_width(tensor.spec.shape)
    if not shape or any(width and shard.stop % width for shard in tensor.shards):
        raise TensorError(
            f"{what}: the rows of a tensor of shape {shape} are themselves spread over servers;"
            " initialise the key as row_sparse"
        )
    return shape[0], width


class Piece(NamedTuple):
    """Elements ``start`` to ``stop`` of a push of rows.

    ``ids``, counted from the beginning of the tensor, and ``rows``, shape ``(ids.size, width)``, are those that are not
    zero, as they came.
    """

    start: int
    stop: int
    ids: Ids
    rows: Array


def unpack(payload: Any, dtype: np.dtype[Any], width: int, start: int, stop: int) -> Piece:
    """Return what came as the payload of a range; the rows are not a copy.

    Raises
    ------
    ValueError
        The payload is no list of records, or one of them is not within the range.
    """
    kind = record_type(dtype, width)
    if len(payload) % kind.itemsize:
        raise ValueError(f"{len(payload)} bytes are no list of records of {kind.itemsize} bytes")
    found = np.frombuffer(payload, kind) if len(payload) else np.empty(0, kind)
    ids = found["id"].copy()
    if ids.size and not (start <= int(ids.min()) * width and (int(ids.max()) + 1) * width <= stop):
        raise ValueError(f"rows {ids.min()} to {ids.max()} are not within elements {start} to {stop}")
    return Piece(start, stop, ids, found["row"])


def join(pieces: Sequence[Piece]) -> tuple[Ids, Array]:
    """Return the rows of all pieces, at least one, of a push, ascending by id, those of equal ids added up."""
    if len(pieces) == 1:
        return merge(pieces[0].ids, pieces[0].rows)
    return merge(np.concatenate([piece.ids for piece in pieces]), np.concatenate([piece.rows for piece in pieces]))


def split(ids: Ids, shards: Sequence[Shard], width: int) -> list[tuple[int, int]]:
    """Return, for each shard, which of the ascending ``ids`` lie in it: from the first index to behind the last.

    Raises
    ------
    ValueError
        A shard begins or ends within a row.

    Examples
    --------
    >>> split(np.array([0, 3, 4]), [Shard(0, 0, 20), Shard(1, 20, 100)], 5)
    [(0, 2), (2, 3)]
    """
    edges = [0, *(shard.stop for shard in shards)]
    if any(edge % width for edge in edges):
        raise ValueError(f"shards end at elements {edges[1:]}, not all between rows of {width} elements")
    places = np.searchsorted(ids, [edge // width for edge in edges])
    return [(int(first), int(last)) for first, last in zip(places, places[1:])]


class RowsEncoder:
    """Makes the payload of a push of rows to one shard: an :class:`ps.codecs.Encoder` whose memory is the records.

    Parameters
    ----------
    width
        Elements of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._ids: Ids = np.empty(0, np.int64)
        self._payload = memoryview(b"")
        self._record_bytes = 1
        self._next_bytes = 0

    def begin(self, version: int, gradient: Array) -> None:
        """Send from ``gradient``: :func:`records`, ascending by id."""
        self._ids = gradient["id"]
        self._payload = gradient.view(np.uint8).data
        self._record_bytes = gradient.itemsize

    def ranges(self, start: int, stop: int, partition_bytes: int) -> Iterator[tuple[int, int]]:
        """Cut a shard's elements so that each range has records of at most ``partition_bytes``, and at least one.

        Without any record there is one range of all elements.
        """
        most = max(1, partition_bytes // self._record_bytes)
        first, last = self._places(start, stop)
        while True:
            behind = min(first + most, last)
            end = stop if behind == last else (int(self._ids[behind - 1]) + 1) * self._width
            self._next_bytes = (behind - first) * self._record_bytes
            yield start, end - start
            if behind == last:
                return
            first, start = behind, end

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes the records of the range take that :meth:`ranges` yielded last."""
        return self._next_bytes

    def encode(self, start: int, count: int) -> memoryview:
        """Return the records of elements ``start`` to ``start + count``."""
        first, last = self._places(start, start + count)
        return self._payload[first * self._record_bytes : last * self._record_bytes]

    def _places(self, start: int, stop: int) -> tuple[int, int]:
        first, last = np.searchsorted(self._ids, (start // self._width, stop // self._width))
        return int(first), int(last)
