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
* The engine's ``CallbackOnComplete`` lives on the stack of its caller; what is in it is copied in the callback.
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
from mxnet.base import check_call

from ps.errors import AutoByteError, Closed
from ps.mxnet.arrays import handles, library
from ps.mxnet.errors import for_mxnet

__all__ = ["Completion", "push", "drain", "abandon", "errors_reach_waiters", "has_threads"]


class _OnComplete(ctypes.Structure):
    """``mxnet::engine::CallbackOnComplete``: a function and its first two arguments; the third is the error."""

    _fields_ = (("function", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("param", ctypes.c_void_p))


class _Context(ctypes.Structure):
    """``mxnet::Context``."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_StartFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_DeleterFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CompleteFunction = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_complete_function = functools.cache(_CompleteFunction)

_CPU = ctypes.byref(_Context(1, 0))
#: FnProperty::kCPUPrioritized: threads of their own, so that a callback does not queue behind the backward pass.
_PRIORITIZED = ctypes.byref(ctypes.c_int(3))


def _register(error: type[AutoByteError]) -> None:
    """Have MXNet raise ``error("text")`` where a C++ error says ``"<its name>: text"``."""
    mx.error.register(error.__name__, lambda message: for_mxnet(error(message.split(": ", 1)[-1])))


_register(AutoByteError)
for _subclass in AutoByteError.__subclasses__():
    _register(_subclass)


class Completion:
    """Ends one started operation: call it once, with None or the error. Later calls do nothing."""

    __slots__ = ("_number", "start")

    def __init__(self, number: int, start: Callable[[Completion], None]) -> None:
        self._number = number
        self.start = start

    def __call__(self, error: Optional[BaseException] = None) -> None:
        started = _started.pop(self._number, None)
        if started is None:
            return
        function, engine, param = started
        complete = _complete_function(function)
        cpp = None if error is None else _runtime_error()
        if cpp is None:
            complete(engine, param, None)
            return
        construct, destroy = cpp
        exception = ctypes.create_string_buffer(64)  # it needs two pointers
        construct(exception, f"{type(error).__name__}: {error}".encode())
        complete(engine, param, ctypes.addressof(exception))
        destroy(exception)


_numbers = itertools.count(1)
#: By number: what the engine has not destroyed yet, and the callbacks of what has started and not ended.
_operations: dict[int, Completion] = {}
_started: dict[int, tuple[int, int, int]] = {}
_changed = threading.Condition()
_drains: list[float] = []  # until when each of the drains under way waits
_threads = threading.local()


def _keep_thread_state() -> None:
    """Let the interpreter keep what it needs for this thread of the engine, which calls again and again.

    Otherwise it makes and destroys that for every call, which takes longer than what the call does.
    """
    if not hasattr(_threads, "kept"):
        _threads.kept = ctypes.pythonapi.PyGILState_Ensure()


@_StartFunction  # type: ignore[untyped-decorator]
def _start(_: int, on_complete: ctypes._Pointer[_OnComplete], number: int) -> None:
    _keep_thread_state()
    completion = _operations[number]
    callback = on_complete.contents
    _started[number] = callback.function, callback.engine, callback.param
    try:
        completion.start(completion)
    except BaseException as error:
        completion(error)


@_DeleterFunction  # type: ignore[untyped-decorator]
def _delete(number: int) -> None:
    del _operations[number]
    if _drains:  # which are noted before they look at what is left
        with _changed:
            _changed.notify_all()


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
    _operations[number] = Completion(number, start)
    check_call(
        library().MXEnginePushAsyncND(
            _start,
            ctypes.c_void_p(number),
            _delete,
            _CPU,
            handles(*const),
            len(const),
            handles(*mutable),
            len(mutable),
            _PRIORITIZED,
            0,
            b"autobyte",
            False,
        )
    )


@functools.cache
def has_threads() -> bool:
    """Return whether the engine runs operations on threads of its own, and not inside :func:`push`."""
    ran_on = []

    def start(completion: Completion) -> None:
        ran_on.append(threading.get_ident())
        completion()

    array = mx.nd.zeros(1)
    push(start, mutable=[array])
    array.wait_to_read()
    return ran_on != [threading.get_ident()]


def drain(limit_seconds: float) -> bool:
    """Wait until the engine has none of our operations; False where some were left after ``limit_seconds``."""
    end = time.monotonic() + limit_seconds
    with _changed:
        _drains.append(end)
        try:
            while _operations:
                if not _changed.wait(max(0.0, end - time.monotonic())):
                    return False
        finally:
            _drains.remove(end)
    return True


def abandon(reason: str) -> None:
    """Complete every operation with :class:`ps.errors.Closed`: what has started now, the others when they start."""
    error = Closed(reason)
    for completion in list(_operations.values()):
        completion.start = lambda started: started(error)
        completion(error)  # nothing happens where it has not started


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
