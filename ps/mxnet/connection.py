"""This process's one connection to the job, shared by all stores and by ``broadcast_parameters``.

A process is one worker with one rank, however many stores it creates; and leaving the job is final. So the connection
is opened by whoever needs it first and closed at the end of the process (:mod:`ps.mxnet.hooks`) or by :func:`close`,
never because a store was dropped.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from numpy.typing import NDArray

from ps.errors import AutoByteError, Closed
from ps.exit_hook import uncaught_error
from ps.messages import SpanKind, TensorSpec
from ps.mxnet import engine
from ps.mxnet.arrays import keep_lock
from ps.mxnet.entries import Entry
from ps.mxnet.errors import for_mxnet, raised_for_mxnet
from ps.mxnet.stage import Stage
from ps.mxnet.timing import Gradient, StepMarkers, StepTimer
from ps.operation import Operation
from ps.worker import Worker

__all__ = ["Connection", "connect", "close"]

log = logging.getLogger("autobyte.mxnet")

#: How long the exit of a process that failed waits for what is under way.
FAILED_EXIT_SECONDS = 2.0


class Connection:
    """A worker, the engine operations that it serves, and the reason why it is not usable any more.

    Attributes
    ----------
    worker
        The process's part in the job.
    failed
        Whether any operation has failed.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._timer = StepTimer(worker.note_training)
        self._markers = StepMarkers(self._timer)
        self._markers.install()
        self._errors_reach_waiters = engine.errors_reach_waiters()
        if engine.has_threads():
            keep_lock()
        self._unusable = ""
        self._error: Optional[AutoByteError] = None
        self.failed = False
        self._own: dict[int, Any] = {}

    def check(self) -> None:
        """Raise where the connection is closed, or where an earlier operation failed and the engine cannot tell."""
        if self._unusable:
            raise for_mxnet(Closed(self._unusable))
        error, self._error = self._error, None
        if error is not None:
            raise for_mxnet(error)

    def init(self, specs: Sequence[TensorSpec], values: Mapping[str, NDArray[Any]]) -> None:
        """Collective: give tensors their first values, rank 0's, and wait until all ranks may use them."""
        self.check()
        with raised_for_mxnet():
            self.worker.init_tensors(specs, values)

    def begin_init(self, entries: Sequence[Entry]) -> None:
        """Put an init with what is in their stages into the engine's order: what uses a stage later waits for it.

        Where it fails, the entries have the error.
        """
        self.check()

        def start(completion: engine.Completion) -> None:
            def done(error: Optional[AutoByteError]) -> None:
                if error is not None:
                    for entry in entries:
                        entry.error = error
                    self._note(error)
                completion(error)

            values = {entry.spec.name: entry.stage.memory.reshape(entry.spec.shape) for entry in entries}
            self.worker.begin_init([entry.spec for entry in entries], values, done)

        engine.push(start, mutable=[entry.stage.array for entry in entries])
        self.check()

    def barrier(self, name: str) -> None:
        """Wait for all workers."""
        self.check()
        with raised_for_mxnet():
            self.worker.barrier(name)

    def transfer(self, kind: SpanKind, name: str, stage: Stage, priority: int, settings: bytes = b"") -> None:
        """Put a push, pull or push-pull of ``stage`` into the engine's order; a push brings ``settings`` along.

        What was written to the stage before is sent; whoever reads it afterwards waits for the result, or for the
        error.
        """
        self.check()
        gradient = None if kind is SpanKind.PULL else self._timer.pushed(priority, stage.memory.nbytes)
        engine.push(_Transfer(self, kind, name, stage, priority, settings, gradient).start, mutable=[stage.array])
        self.check()  # the naive engine has ended the operation already

    def operate(
        self,
        begin: Callable[[Callable[[Optional[AutoByteError]], None]], None],
        pushed_bytes: Optional[int],
        priority: int,
        *,
        const: Sequence[Any] = (),
        mutable: Sequence[Any] = (),
    ) -> None:
        """Put an operation into the engine's order.

        Parameters
        ----------
        begin
            Called with ``done`` when the arrays are ready. It must not block; ``done`` ends the operation, from any
            thread, with None or the error.
        pushed_bytes
            Size of the gradient of the present step that it sends; None where it sends none.
        const, mutable
            The arrays that it reads and writes.
        """
        self.check()
        gradient = None if pushed_bytes is None else self._timer.pushed(priority, pushed_bytes)

        def start(completion: engine.Completion) -> None:
            self.began(gradient)
            begin(lambda error: self.ended(completion, error, gradient))

        engine.push(start, const=const, mutable=mutable)
        self.check()  # the naive engine has ended the operation already

    def began(self, gradient: Optional[Gradient]) -> None:
        """The engine has begun an operation; the gradient that it sends is ready."""
        if gradient is not None:
            self._timer.ready(gradient, time.monotonic())

    def ended(
        self, completion: engine.Completion, error: Optional[AutoByteError], gradient: Optional[Gradient]
    ) -> None:
        """End an operation with its result or its error."""
        if error is not None:
            self._note(error)
        elif gradient is not None:
            self._timer.answered(gradient, time.monotonic())
        completion(error)

    def _note(self, error: AutoByteError) -> None:
        if not self.failed:
            log.error("%s", error)  # a script may end without ever looking at what failed
        self.failed = True
        if not self._errors_reach_waiters:
            self._error = error

    def keep_own(self, arrays: Iterable[Any]) -> None:
        """Remember arrays that are each rank's own from now on: a store's broadcast does not overwrite them."""
        self._own.update((id(array), array) for array in arrays)

    def is_own(self, array: Any) -> bool:
        """Return whether :meth:`keep_own` was told of this very array."""
        return id(array) in self._own

    def drain(self) -> None:
        """Wait until nothing of ours is in the engine. Operations have deadlines, so this has one too."""
        if not self._unusable and not engine.drain(2 * self.worker.deadline_seconds):
            log.error("operations were still pending after %g s", 2 * self.worker.deadline_seconds)

    def close(self) -> None:
        """Finish what is under way, then leave the job. After an uncaught exception: leave at once, as failed."""
        if self._unusable:
            return
        reason = uncaught_error(self.worker.rank)
        if not engine.drain(FAILED_EXIT_SECONDS if reason else 2 * self.worker.deadline_seconds):
            reason = reason or f"worker {self.worker.rank} ended with operations under way"
        self.disable("this process has left the job")
        engine.abandon(self._unusable)
        self.worker.close(reason)

    def disable(self, reason: str) -> None:
        """Refuse everything from now on."""
        self._unusable = reason
        self._markers.remove()


class _Transfer:
    """A push, pull or push-pull of a stage: one object, not many closures, since each step has one for each tensor."""

    __slots__ = ("connection", "kind", "name", "stage", "priority", "settings", "gradient", "completion", "operation")

    def __init__(
        self,
        connection: Connection,
        kind: SpanKind,
        name: str,
        stage: Stage,
        priority: int,
        settings: bytes,
        gradient: Optional[Gradient],
    ) -> None:
        self.connection = connection
        self.kind = kind
        self.name = name
        self.stage = stage
        self.priority = priority
        self.settings = settings
        self.gradient = gradient

    def start(self, completion: engine.Completion) -> None:
        """What was written to the stage before is there: send it."""
        kind, stage = self.kind, self.stage
        self.completion = completion
        self.connection.began(self.gradient)
        send = None if kind is SpanKind.PULL else stage.memory
        receive = None if kind is SpanKind.PUSH else stage.memory
        known, stage.pulled = stage.pulled, None
        if kind is SpanKind.PULL and known is not None:
            kind = SpanKind.PULL_CHANGES
        worker = self.connection.worker
        self.operation = Operation(
            worker.tensor(self.name), kind, send, receive, self.priority, self.done, self.settings, known or 0
        )
        worker.submit(self.operation)

    def done(self, error: Optional[AutoByteError]) -> None:
        """It has ended."""
        if error is None and self.kind is SpanKind.PULL:
            self.stage.pulled = self.operation.version
        self.connection.ended(self.completion, error, self.gradient)


_connection: Optional[Connection] = None


def connect() -> Connection:
    """Return this process's connection; the first call joins the job.

    Raises
    ------
    SettingsError, RegistrationRefused, DeadlineExceeded
        The job could not be joined; the text tells why.
    """
    global _connection
    if _connection is None:
        _connection = Connection(Worker())
    return _connection


def current() -> Optional[Connection]:
    """Return the connection where there is one."""
    return _connection


def close() -> None:
    """Finish what is under way and leave the job: for scripts that go on without it. Otherwise the exit does it."""
    if _connection is not None:
        _connection.close()
