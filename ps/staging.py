"""Buffers that snapshots of pushed values live in until they are on the servers.

A fresh buffer costs a page fault for every 4 KiB, more than the copy into it; so buffers are used again. Taken on the
caller's thread, given back on the communication thread.
"""

from __future__ import annotations

import collections
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Staging"]


class Staging:
    """A pool of one-dimensional arrays, by dtype and size; ``empty(size, dtype)`` allocates them."""

    def __init__(self, empty: Callable[[int, np.dtype[Any]], NDArray[Any]]) -> None:
        self._empty = empty
        self._free: collections.defaultdict[tuple[np.dtype[Any], int], collections.deque[NDArray[Any]]]
        self._free = collections.defaultdict(collections.deque)

    def take(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of ``size`` elements with arbitrary content."""
        try:
            return self._free[dtype, size].pop()
        except IndexError:
            return self._empty(size, dtype)

    def give_back(self, array: NDArray[Any]) -> None:
        """Return an array that nobody uses any more."""
        self._free[array.dtype, array.size].append(array)
