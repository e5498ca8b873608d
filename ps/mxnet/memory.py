"""Where the elements of MXNet's arrays lie: NumPy views of them, for the communication thread."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mxnet.base import _LIB, check_call
from numpy.typing import NDArray

__all__ = ["memory_of"]


def memory_of(array: Any, size: int) -> NDArray[Any]:
    """Return the ``size`` elements, one-dimensional, of an array that is ready. They live as long as the result.

    Of a row-sparse array these are the elements of the rows that it has. An array without elements has no memory.
    """
    dtype = np.dtype(array.dtype)
    if size == 0:
        return np.empty(0, dtype)
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    if not pointer.value:
        raise RuntimeError(f"MXNet gives no address of the {size} elements of an array of shape {array.shape}")
    buffer = (ctypes.c_char * (size * dtype.itemsize)).from_address(pointer.value)
    buffer.array = array  # type: ignore[attr-defined]
    return np.frombuffer(buffer, dtype)  # type: ignore[call-overload,no-any-return]
