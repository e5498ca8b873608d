"""The bridge to MXNet's engine: operations that a Python thread completes.

MXNet runs everything asynchronously: an *engine* keeps, per array, the order of its readers and writers, and starts
an operation when those before it have ended. ``MXEnginePushAsyncND`` puts an operation of ours into that order. When
its arrays are ready the engine calls :func:`_start` on a thread of its own; the operation ends when whoever has its
:class:`Completion` calls it, on any thread and at any time later. Meanwhile the engine goes on with everything that
does not need these arrays: this is how communication overlaps computation.

Three things keep this safe:

* The engine gets numbers, never pointers to Python objects. An operation stays in :data:`_operations` until the
  engine has destroyed it, which it tells through the deleter: so :func:`drain` knows of operations that wait, that
  run, and that the engine skipped since an array before them was in error.
* The engine's ``CallbackOnComplete`` lives on the stack of its caller; it is copied in the callback.
* An operation can end with an error, a C++ ``std::runtime_error``, which MXNet raises to whoever waits for its
  arrays. Not every engine passes it on (the naive one does not, nor do builds with another C++ library):
  :func:`errors_reach_waiters` tries.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
from typing import Any, Callable, Optional, Sequence

import mxnet as mx
from mxnet.base import _LIB, NDArrayHandle, check_call

from ps.errors import AutoByteError, Closed
from ps.mxnet.errors import for_mxnet

__all__ = ["Completion", "push", "drain", "abandon", "errors_reach_waiters"]


class _OnComplete(ctypes.Structure):
    """``mxnet::engine::CallbackOnComplete``: a function and its first two arguments; the third is the error."""

    _fields_ = (("function", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("param", ctypes.c_void_p))


class _Context(ctypes.Structure):
    """``mxnet::Context``."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_StartFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_DeleterFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CompleteFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_CPU = _Context(1, 0)
#: FnProperty::kCPUPrioritized: threads of their own, so that a callback does not queue behind the backward pass.
_PRIORITIZED = ctypes.c_int(3)


def _register(error: type[AutoByteError]) -> None:
    """Have MXNet raise ``error("text")`` where a C++ error says ``"<its name>: text"``."""
    mx.error.register(error.__name__, lambda message: for_mxnet(error(message.split(": ", 1)[-1])))


_register(AutoByteError)
for _subclass in AutoByteError.__subclasses__():
    _register(_subclass)


class Completion:
    """Ends one started operation: call it once, with None or the error. Later calls do nothing."""

    __slots__ = ("_once",)

    def __init__(self, on_complete: _OnComplete) -> None:
        self._once = [on_complete]

    def __call__(self, error: Optional[BaseException] = None) -> None:
        try:
            on_complete = self._once.pop()
        except IndexError:
            return
        complete = _CompleteFunction(on_complete.function)
        cpp = _runtime_error()
        if error is None or cpp is None:
            complete(on_complete.engine, on_complete.param, None)
            return
        construct, destroy = cpp
        exception = ctypes.create_string_buffer(64)  # it needs two pointers
        construct(exception, f"{type(error).__name__}: {error}".encode())
        complete(on_complete.engine, on_complete.param, ctypes.addressof(exception))
        destroy(exception)


class _Operation:
    """One operation that the engine has not destroyed yet."""

    __slots__ = ("start", "completion")

    def __init__(self, start: Callable[[Completion], None]) -> None:
        self.start = start
        self.completion: Optional[Completion] = None


_numbers = itertools.count(1)
_operations: dict[int, _Operation] = {}
_changed = threading.Condition()


@_StartFunction  # type: ignore[untyped-decorator]
def _start(_: int, on_complete: ctypes._Pointer[_OnComplete], number: int) -> None:
    operation = _operations[number]
    completion = operation.completion = Completion(_OnComplete.from_buffer_copy(on_complete.contents))
    try:
        operation.start(completion)
    except BaseException as error:
        completion(error)


@_DeleterFunction  # type: ignore[untyped-decorator]
def _delete(number: int) -> None:
    with _changed:
        operation = _operations.pop(number)
        _changed.notify_all()
    del operation  # what it held dies outside the lock


def push(start: Callable[[Completion], None], *, const: Sequence[Any] = (), mutable: Sequence[Any] = ()) -> None:
    """Put an operation into the engine's order.

    Parameters
    ----------
    start
        Called with a :class:`Completion` on a thread of the engine when the arrays are ready. It must not block, nor
        wait for any array. What it raises completes the operation with that error.
    const, mutable
        The arrays that it reads and writes; none may be in both.
    """
    number = next(_numbers)
    _operations[number] = _Operation(start)
    check_call(
        _LIB.MXEnginePushAsyncND(
            _start,
            ctypes.c_void_p(number),
            _delete,
            ctypes.byref(_CPU),
            (NDArrayHandle * len(const))(*(array.handle for array in const)),
            ctypes.c_int(len(const)),
            (NDArrayHandle * len(mutable))(*(array.handle for array in mutable)),
            ctypes.c_int(len(mutable)),
            ctypes.byref(_PRIORITIZED),
            ctypes.c_int(0),
            b"autobyte",
            ctypes.c_bool(False),
        )
    )


def drain(limit_seconds: float) -> bool:
    """Wait until the engine has none of our operations; False where some were left after ``limit_seconds``."""
    end = time.monotonic() + limit_seconds
    with _changed:
        while _operations:
            if not _changed.wait(max(0.0, end - time.monotonic())):
                return False
    return True


def abandon(reason: str) -> None:
    """Complete every operation with :class:`ps.errors.Closed`: what has started now, the others when they start."""
    error = Closed(reason)
    for operation in list(_operations.values()):
        operation.start = lambda completion: completion(error)
        if operation.completion is not None:
            operation.completion(error)


@functools.cache
def _runtime_error() -> Optional[tuple[Any, Any]]:
    """Return constructor and destructor of ``std::runtime_error``, or None where MXNet uses another C++ library."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        construct, destroy = library._ZNSt13runtime_errorC1EPKc, library._ZNSt13runtime_errorD1Ev
    except (OSError, AttributeError):
        return None
    construct.argtypes, construct.restype = [ctypes.c_void_p, ctypes.c_char_p], None
    destroy.argtypes, destroy.restype = [ctypes.c_void_p], None
    return construct, destroy


@functools.cache
def errors_reach_waiters() -> bool:
    """Return whether an error that an operation ends with is raised to whoever waits for its arrays."""
    array = mx.nd.zeros(1)
    push(lambda completion: completion(AutoByteError("self-test")), mutable=[array])
    try:
        array.wait_to_read()
    except AutoByteError as error:
        return "self-test" in str(error)
    return False
