"""Leaving the job at the end of a process whose script has not closed its worker.

A script that ends lets what is pending end and leaves well. One that ends by an uncaught exception leaves at once and
tells the job so: the others would otherwise wait for it until it counts as lost. The hook runs before that of ZeroMQ's
garbage collector, after which nothing can be sent without a copy. With MXNet, :mod:`ps.mxnet.hooks` has been here
before and has left nothing to do.
"""

from __future__ import annotations

import atexit
import sys
from typing import Protocol

import zmq.utils.garbage  # noqa: F401  (registers its exit hook: before ours, so that it runs after ours)

__all__ = ["forget", "remember", "uncaught_error"]


class _Leaver(Protocol):
    @property
    def rank(self) -> int: ...

    def close(self, error: str = "") -> None: ...


_open: list[_Leaver] = []


def remember(worker: _Leaver) -> None:
    """Close ``worker`` at the end of the process, unless it is closed by then."""
    _open.append(worker)


def forget(worker: _Leaver) -> None:
    """Note that ``worker`` is closed."""
    _open.remove(worker)


def uncaught_error(rank: int) -> str:
    """Return the exception that ends the process of worker ``rank``, as :meth:`ps.Worker.close` takes it, or ''."""
    error = getattr(sys, "last_value", None)
    return "" if error is None else f"worker {rank}: {type(error).__name__}: {error}"


@atexit.register
def _leave() -> None:
    for worker in list(_open):
        worker.close(uncaught_error(worker.rank))
