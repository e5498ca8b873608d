"""The simplest updater, for tests of the books."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

__all__ = ["Descent"]

Array = NDArray[Any]


class Descent:
    """Gradient descent with rate 1, which notes what it is given; it can be told to fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []  #: version, start, stop
        self.fails = False

    def update(self, version: int, start: int, stop: int, gradient: Array, weight: Array) -> None:
        if self.fails:
            raise ZeroDivisionError("no step")
        self.calls.append((version, start, stop))
        weight -= gradient

    def update_rows(self, version: int, ids: Array, gradient: Array, weight: Array) -> None:
        weight[ids] -= gradient

    def settings(self, body: bytes) -> None:
        pass
