"""What must happen around fork and exit, since MXNet's engine would otherwise wait for ever.

* **Fork.** MXNet stops its engine before a fork and holds the interpreter meanwhile, so one pending operation of ours
  would never be completed. Therefore nothing of ours is pending when a fork begins. The child is not a worker: the
  sockets and the thread that owned them stayed with the parent, so it refuses every call and never touches them.
* **Exit.** The engine waits for every operation that has started. Registered after the import of mxnet, our hook runs
  before MXNet's own: it lets what is under way end, completes the rest with an error, and leaves the job. It also runs
  before the hook of ZeroMQ's garbage collector, after which nothing can be sent without a copy.
"""

from __future__ import annotations

import atexit
import os

import zmq.utils.garbage  # noqa: F401  (registers its exit hook: before ours, so that it runs after ours)

from ps.mxnet import connection

__all__ = ["install"]


def _before_fork() -> None:
    current = connection.current()
    if current is not None:
        current.drain()


def _in_child() -> None:
    current = connection.current()
    if current is not None:
        current.disable("a forked child is not a worker of the job: use the store in the parent process")


def install() -> None:
    """Register the hooks, once per process."""
    atexit.register(connection.close)
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
