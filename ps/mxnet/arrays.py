"""What every tensor of every step needs of MXNet's arrays, at a fraction of the cost of their Python methods.

A ``copyto`` through MXNet's generic operator call, ``shape``, ``dtype`` and ``autograd.pause()`` take most of the time
of handing over a tensor. Worse than their own time: each of their foreign calls lets go of the interpreter's lock, and
the training thread, the engine's threads and the communication thread then pass it around for every tensor. So the same
functions of the library are called directly here, and without letting go of the lock.

That is safe, because none of them waits for anybody who might want the lock: the engine only queues what it gets, and
holds no mutex of its own while it calls Python. Only the naive engine runs operations inside the call, and waits for
their completion; so the lock is let go until :func:`keep_lock` is told that the engine has threads.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, NDArrayHandle, check_call, mx_int, mx_int64
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX, _int64_enabled

__all__ = ["copy", "handles", "has", "has_shape", "keep_lock", "library", "paused"]

_letting_go = ctypes.CDLL(_LIB._name)
#: Without letting go of the interpreter's lock: for what reads a field, and for what only queues.
_keeping = ctypes.PyDLL(_LIB._name)
_queueing: ctypes.CDLL = _letting_go

_get_shape = _keeping.MXNDArrayGetShapeEx64 if _int64_enabled() else _keeping.MXNDArrayGetShapeEx
_Extents = ctypes.POINTER(mx_int64 if _int64_enabled() else mx_int)
_OneHandle = NDArrayHandle * 1
_Types = ctypes.POINTER(ctypes.c_int)
_copy_operator = ctypes.c_void_p()
check_call(_keeping.NNGetOpHandle(b"_copyto", ctypes.byref(_copy_operator)))
_ONE, _NONE, _NO_STRINGS = ctypes.c_int(1), ctypes.c_int(0), (ctypes.c_char_p * 0)()
_AS_IT_IS = contextlib.nullcontext()


def keep_lock() -> None:
    """Keep the interpreter's lock from now on while the engine is given something: it has threads of its own."""
    global _queueing
    _queueing = _keeping


def library() -> ctypes.CDLL:
    """Return the library for functions that give the engine something."""
    return _queueing


def handles(*arrays: Any) -> ctypes.Array[Any]:
    """Return the arrays as the library takes them."""
    found: ctypes.Array[Any] = (NDArrayHandle * len(arrays))(*[array.handle for array in arrays])
    return found


def copy(source: Any, destination: Any) -> None:
    """Have the engine copy ``source`` to ``destination``, of any device and dtype. Not to be recorded by autograd."""
    if source.handle is destination.handle:
        return
    outputs = _OneHandle(destination.handle)
    check_call(
        _queueing.MXImperativeInvokeEx(
            _copy_operator,
            _ONE,
            _OneHandle(source.handle),
            ctypes.byref(ctypes.c_int(1)),
            ctypes.byref(ctypes.c_void_p(ctypes.addressof(outputs))),
            _NONE,
            _NO_STRINGS,
            _NO_STRINGS,
            ctypes.byref(_Types()),
        )
    )


def has(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether ``array`` is of this shape and dtype."""
    code = ctypes.c_int()
    check_call(_keeping.MXNDArrayGetDType(array.handle, ctypes.byref(code)))
    return code.value == _DTYPE_NP_TO_MX[dtype.type] and has_shape(array, shape)


def has_shape(array: Any, shape: tuple[int, ...]) -> bool:
    """Return whether ``array`` is of this shape."""
    ndim, extents = mx_int(), _Extents()
    check_call(_get_shape(array.handle, ctypes.byref(ndim), ctypes.byref(extents)))
    return ndim.value == len(shape) and tuple(extents[: ndim.value]) == shape


def paused() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which no operation is recorded by autograd."""
    recording = ctypes.c_bool()
    check_call(_keeping.MXAutogradIsRecording(ctypes.byref(recording)))
    return mx.autograd.pause() if recording.value else _AS_IT_IS
