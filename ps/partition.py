"""How a shard is cut into partitions: the ranges of elements that are queued, sent and summed.

Invariant: the ranges of one cut are ascending and gapless, hold whole elements, and cover the shard exactly
once. All but the last have the largest number of elements that fits the wanted size, and never less than one.

A cut is an iterator, so cutting a tensor of gigabytes costs nothing until its partitions are sent, and it is
made anew at every push: that is how a new partition size takes effect in the middle of a run, with no agreement
between workers (the server sums ranges, not partitions; see ``ps/ledger.py``). Equal sizes are ByteScheduler's
(SOSP 2019, section 3.2); a plan of unequal sizes is what US-Byte (TPDS 2023) computes from the times of the layers.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Iterable, Iterator, Sequence

__all__ = ["cut", "cut_plan"]


def cut(start: int, stop: int, itemsize: int, partition_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut elements ``start`` to ``stop`` into partitions of equal size.

    Parameters
    ----------
    start, stop
        Range of elements, ``stop`` exclusive. An empty range has no partitions.
    itemsize
        Bytes of one element, at least 1.
    partition_bytes
        Upper bound of a partition in bytes, at least 1; an element that is larger still goes, alone.

    Returns
    -------
    Iterator of (start, count), both in elements.

    Raises
    ------
    ValueError
        At the call, not at the first partition, when an argument is out of range.

    Examples
    --------
    >>> list(cut(0, 2500, 4, 4097))
    [(0, 1024), (1024, 1024), (2048, 452)]
    """
    if 0 < (stop - start) * itemsize <= partition_bytes and start >= 0:  # as most tensors of most models are
        return iter(((start, stop - start),))
    return cut_plan(start, stop, itemsize, (partition_bytes,))


def cut_plan(start: int, stop: int, itemsize: int, sizes_bytes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut like :func:`cut`, with one upper bound per partition; the last bound repeats.

    Examples
    --------
    >>> list(cut_plan(0, 10, 4, [4, 8, 16]))
    [(0, 1), (1, 2), (3, 4), (7, 3)]
    """
    if not 0 <= start <= stop:
        raise ValueError(f"cannot cut elements {start} to {stop}: expected 0 <= start <= stop")
    if itemsize < 1:
        raise ValueError(f"itemsize must be at least 1 byte, not {itemsize!r}")
    if not sizes_bytes:
        raise ValueError("a plan needs at least one partition size")
    for size_bytes in sizes_bytes:
        if type(size_bytes) is not int or size_bytes < 1:
            raise ValueError(f"a partition must have a whole number of bytes from 1, not {size_bytes!r}")
    counts = [max(1, size_bytes // itemsize) for size_bytes in sizes_bytes]
    return _ranges(start, stop, chain(counts, repeat(counts[-1])))


def _ranges(start: int, stop: int, counts: Iterable[int]) -> Iterator[tuple[int, int]]:
    for count in counts:
        if start >= stop:
            return
        yield start, min(count, stop - start)
        start += count
