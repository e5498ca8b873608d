"""When the processes of a job are told to end, and what its exit code is. Pure: time is a parameter.

A job ends well when every worker has; the scheduler and the servers notice that and end by themselves. It fails when a
process fails; the others hear of it from the scheduler and end by themselves too, each with its own error. Either way
they have ``grace_seconds`` for it; none where a process ends with code 2, which says that it was called or set up
wrongly: then it never was part of the job, and the others would only wait for it. What is still there is terminated,
and killed after as many seconds again. What a process returns once it has been told to end says nothing about the job.
"""

from __future__ import annotations

import signal
from typing import Iterable, Optional

import msgspec

from ps.config import Role
from scheduler.launch.plan import Node

__all__ = ["Order", "Watch"]

#: What processes return that were called wrongly, or whose settings are wrong.
USAGE_CODE = 2


class Order(msgspec.Struct, frozen=True):
    """Send ``signal`` to every process that is left, and tell the user ``reason``."""

    signal: signal.Signals
    reason: str


class Watch:
    """The book that the launcher keeps of its processes."""

    def __init__(self, nodes: Iterable[Node], grace_seconds: float) -> None:
        self._alive = list(nodes)
        self._grace_seconds = grace_seconds
        self._worker_code: Optional[int] = None
        self._other_code: Optional[int] = None
        self._interrupt: Optional[signal.Signals] = None
        self._hurry: Optional[signal.Signals] = None  # asked for while the processes had been told to end
        self._next_signal = signal.SIGTERM
        self._due_at: Optional[float] = None

    @property
    def finished(self) -> bool:
        """Whether every process has ended."""
        return not self._alive

    @property
    def exit_code(self) -> int:
        """An interrupt's code, else the first failed worker's, else the first other failed process's, else 0."""
        if self._interrupt is not None:
            return 128 + self._interrupt
        return self._worker_code or self._other_code or 0

    def ended(self, node: Node, returncode: int, now: float) -> str:
        """Take note that ``node`` has ended (``returncode`` is negative for a signal); return what to tell the user."""
        self._alive.remove(node)
        if returncode and self._next_signal is signal.SIGTERM:
            return self._failed(node, returncode, now)
        if self._due_at is None and not self._workers_alive:
            self._due_at = now + self._grace_seconds
        return ""

    def interrupted(self, signum: signal.Signals, now: float) -> None:
        """The user wants the job to end; asking again kills it."""
        if not self.exit_code:
            self._interrupt = signum
        if self._next_signal is signal.SIGKILL:
            self._hurry = signum
        self._due_at = now

    def order(self, now: float) -> Optional[Order]:
        """Return the order that is due at ``now``, if any. Each is returned once."""
        if self._due_at is None or now < self._due_at or self.finished:
            return None
        order = Order(self._next_signal, self._reason())
        self._next_signal, self._due_at = signal.SIGKILL, now + self._grace_seconds
        return order

    def seconds_to_order(self, now: float) -> Optional[float]:
        """Return how long the launcher may sleep if nothing happens; None: for ever."""
        return None if self._due_at is None else max(0.0, self._due_at - now)

    @property
    def _workers_alive(self) -> bool:
        return any(node.role is Role.WORKER for node in self._alive)

    def _failed(self, node: Node, returncode: int, now: float) -> str:
        code = 128 - returncode if returncode < 0 else returncode
        if node.role is Role.WORKER:
            self._worker_code = self._worker_code or code
        else:
            self._other_code = self._other_code or code
        if returncode == USAGE_CODE:
            self._due_at = now
        elif self._due_at is None:
            self._due_at = now + self._grace_seconds
        how = f"was killed by {_name(-returncode)}" if returncode < 0 else f"failed with exit code {code}"
        return f"{node} {how}"

    def _reason(self) -> str:
        left = ", ".join(map(str, self._alive))
        if self._hurry is not None:
            return f"{self._hurry.name}: killing {left}"
        if self._next_signal is signal.SIGKILL:
            return f"killing {left}: still there {self._grace_seconds:g} s after being told to end"
        if self._interrupt is not None:
            return f"{self._interrupt.name}: ending the job"
        if self.exit_code:
            return f"ending {left}: the job has failed"
        if any(node.role is Role.SCHEDULER for node in self._alive):
            return (
                f"ending {left}: every worker ended well, but the scheduler still waits for workers; did the command"
                " end before it used the store (kvstore='dist_sync_autobyte' in MXNet, ps.Worker in NumPy)?"
            )
        return f"ending {left}: the job is over"


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"
