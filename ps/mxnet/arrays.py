"""What every tensor of every step needs of MXNet's arrays, at a fraction of the cost of their Python methods.

A ``copyto`` through MXNet's generic operator call, ``shape``, ``dtype`` and ``autograd.pause()`` take most of the time
of handing over a tensor. Worse than their own time: each of their foreign calls lets go of the interpreter's lock, and
the training thread, the engine's threads and the communication thread then pass it around for every tensor. So the same
functions of the library are called directly here, and :data:`library` keeps the lock.

That is safe, because none of them waits for anybody who might want the lock: the engine only queues what it gets, and
holds no mutex of its own while it calls Python. Only the naive engine runs operations inside the call, and waits for
their completion; there the lock is let go.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, NDArrayHandle, check_call, mx_int, mx_int64
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX, _int64_enabled

__all__ = ["copy", "function_type", "handles", "has", "has_shape", "library", "paused"]

_runs_inside_calls = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
#: MXNet's library, called without letting go of the interpreter's lock: only for what never waits.
library = ctypes.CDLL(_LIB._name) if _runs_inside_calls else ctypes.PyDLL(_LIB._name)
#: The type of a function of the library that is called in the same way.
function_type = ctypes.CFUNCTYPE if _runs_inside_calls else ctypes.PYFUNCTYPE

_get_shape = library.MXNDArrayGetShapeEx64 if _int64_enabled() else library.MXNDArrayGetShapeEx
_Extents = ctypes.POINTER(mx_int64 if _int64_enabled() else mx_int)
_OneHandle = NDArrayHandle * 1
_Types = ctypes.POINTER(ctypes.c_int)
_copy_operator = ctypes.c_void_p()
check_call(library.NNGetOpHandle(b"_copyto", ctypes.byref(_copy_operator)))
_ONE, _NONE, _NO_STRINGS = ctypes.c_int(1), ctypes.c_int(0), (ctypes.c_char_p * 0)()
_AS_IT_IS = contextlib.nullcontext()


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
        library.MXImperativeInvokeEx(
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
    check_call(library.MXNDArrayGetDType(array.handle, ctypes.byref(code)))
    return code.value == _DTYPE_NP_TO_MX[dtype.type] and has_shape(array, shape)


def has_shape(array: Any, shape: tuple[int, ...]) -> bool:
    """Return whether ``array`` is of this shape."""
    ndim, extents = mx_int(), _Extents()
    check_call(_get_shape(array.handle, ctypes.byref(ndim), ctypes.byref(extents)))
    return ndim.value == len(shape) and tuple(extents[: ndim.value]) == shape


def paused() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which no operation is recorded by autograd."""
    recording = ctypes.c_bool()
    check_call(library.MXAutogradIsRecording(ctypes.byref(recording)))
    return mx.autograd.pause() if recording.value else _AS_IT_IS
