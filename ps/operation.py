"""One push, pull or push-pull of one tensor by one worker, and the handle that its caller waits on.

An :class:`Operation` is what a user's thread hands to the communication thread. It owns no memory: ``send`` and
``receive`` belong to the communication thread from ``submit`` until ``done`` is called, and may be the same array,
since an answer for a range implies that the server has that range already.
"""

from __future__ import annotations

import operator
import threading
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from ps.errors import AutoByteError, DeadlineExceeded, TensorError
from ps.messages import MAX_NAME_LENGTH, SpanKind, Tensor

__all__ = ["Operation", "Handle", "VERBS", "checked_array", "checked_name", "checked_priority"]

#: How an operation is called in messages to the user.
VERBS = {
    SpanKind.INIT: "init",
    SpanKind.PUSH_PULL: "push_pull",
    SpanKind.PUSH: "push",
    SpanKind.PULL: "pull",
    SpanKind.PUSH_ROWS: "push_rows",
    SpanKind.PULL_ROWS: "pull_rows",
    SpanKind.PULL_CHANGES: "pull",
}


def checked_name(name: object, what: str) -> str:
    """Return the name of a key or a barrier where it can travel; ``what`` is the call that it was given to.

    Raises
    ------
    TypeError
        It is no string. Numbers are not turned into strings: 3 and '3' would be the same key.
    TensorError
        It is too long, or no valid Unicode.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what}: a name must be a str, not {name!r}")
    if len(name) > MAX_NAME_LENGTH:
        raise TensorError(f"{what}: the name {name[:40]!r}... has {len(name)} characters, over {MAX_NAME_LENGTH}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise TensorError(f"{what}: the name {name[:80]!r} is no valid Unicode: {error.reason}") from None
    return name


def checked_array(value: Any, what: str) -> NDArray[Any]:
    """Return ``value`` as an array in this machine's byte order, in which everything travels.

    Raises
    ------
    TypeError
        It is a masked array: servers sum all elements, and some of these have no value.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{what}: a masked array has elements without a value; say what they count as: array.filled(0)")
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def checked_priority(priority: object, what: str) -> int:
    """Return ``priority`` as the integer that travels; ``what`` is the call that it was given to."""
    try:
        number = int(operator.index(priority))  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise TypeError(f"{what}: priority must be an integer, not {priority!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{what}: priority must fit into 64 bits, and {number} does not")
    return number


class Operation:
    """What is to be done with one tensor.

    Parameters
    ----------
    tensor
        As :meth:`ps.Worker.tensor` returns it.
    kind
        What workers send (:class:`ps.messages.SpanKind`), but for ``INIT``, which is the worker's own.
    send, receive
        One-dimensional C-contiguous arrays of the tensor's dtype and size; None where the kind needs none. Of rows:
        ``PUSH_ROWS`` sends records (:func:`ps.rows.records`) ascending by id, ``PULL_ROWS`` sends ascending int64 ids
        and receives the elements of these rows. ``PULL_CHANGES`` receives into the tensor's value of version ``known``.
    priority
        Larger is more urgent, as in MXNet. An integer of 64 bits: anything else is a TypeError or ValueError here.
    done
        Called once, on the communication thread, with None or the error. It must not block, nor raise: that would fail
        the job.
    known
        Of ``PULL_CHANGES``: the ``version`` of the operation that left what is in ``receive``.
    settings
        Of a push of worker 0: what the servers' optimizer takes note of first (:class:`ps.messages.Span`).
    """

    __slots__ = (
        "tensor",
        "kind",
        "send",
        "receive",
        "priority",
        "done",
        "settings",
        "known",
        "version",
        "remaining",
        "started_at",
    )

    def __init__(
        self,
        tensor: Tensor,
        kind: SpanKind,
        send: Optional[NDArray[Any]],
        receive: Optional[NDArray[Any]],
        priority: int,
        done: Callable[[Optional[AutoByteError]], None],
        settings: bytes = b"",
        known: int = 0,
    ) -> None:
        self.tensor = tensor
        self.kind = kind
        self.send = send
        self.receive = receive
        self.priority = checked_priority(priority, f"{VERBS[kind]}({tensor.spec.name!r})")
        self.done = done
        self.settings = settings
        self.known = known
        self.version = 0
        self.remaining = 0
        self.started_at = 0.0

    def __str__(self) -> str:
        call = f"{VERBS[self.kind]}({self.tensor.spec.name!r})"
        return f"{call}, round {self.version}" if self.version else call  # not begun, or before the first round


class Handle:
    """The pending result of an asynchronous call of :class:`ps.Worker`."""

    __slots__ = ("_pending", "_error", "_result", "_what", "_limit_seconds", "done")

    def __init__(self, what: str, limit_seconds: float, result: Optional[NDArray[Any]] = None) -> None:
        self.done = False  #: whether :meth:`wait` would return (or raise) at once
        self._pending = threading.Lock()  # held until the end; an Event costs ten times as much
        self._pending.acquire()
        self._error: Optional[AutoByteError] = None
        self._result = result
        self._what = what
        self._limit_seconds = limit_seconds

    def complete(self, error: Optional[AutoByteError]) -> None:
        """Called by the communication thread, once: the operation has ended."""
        self._error = error
        self.done = True
        self._pending.release()

    def wait(self, timeout_seconds: Optional[float] = None) -> Optional[NDArray[Any]]:
        """Wait for the end of the operation and return its result (None for a push).

        Raises
        ------
        AutoByteError
            The operation failed; the class tells why (:mod:`ps.errors`).
        DeadlineExceeded
            ``timeout_seconds`` (default: the job's deadline and a little more) passed. The operation goes on.
        """
        limit = self._limit_seconds if timeout_seconds is None else timeout_seconds
        if not self.done:
            if not self._pending.acquire(timeout=max(0.0, min(limit, threading.TIMEOUT_MAX))):
                raise DeadlineExceeded(f"{self._what}: not complete after {limit:g} s")
            self._pending.release()  # for others that wait
        if self._error is not None:
            raise self._error
        return self._result
