"""Staging arrays: where a key's gradient waits for the wire, and its sum for MXNet.

The communication thread reads and writes memory by address, and MXNet's arrays do not keep theirs: after an inference
oneDNN holds a weight, and sometimes a gradient, in a layout of its own, and asking for its address from within the
engine deadlocks. So a gradient is copied, by the engine, into a stage that no operator ever uses; its address is
taken once. The copy is at the same time the snapshot that ``push`` promises: the engine orders it before whatever
writes the gradient next. It costs one pass over memory (13 to 17 GB/s) and a key keeps its stage for good, so no step
allocates.
"""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from numpy.typing import NDArray

__all__ = ["Stage"]


class Stage:
    """The staging array of one key.

    Attributes
    ----------
    array
        The stage as MXNet sees it; every operation on the key writes it, which puts them in program order.
    memory
        The same elements, one-dimensional, for the communication thread. Keeps ``array`` alive.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.array = mx.nd.empty(shape, mx.cpu(), dtype)
        self._part = None
        self.array.wait_to_read()
        pointer = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(self.array.handle, ctypes.byref(pointer)))
        size = int(np.prod(shape))
        buffer = (ctypes.c_char * (size * dtype.itemsize)).from_address(pointer.value or 0)
        buffer.array = self.array  # type: ignore[attr-defined]
        self.memory: NDArray[Any] = np.frombuffer(buffer, dtype)  # type: ignore[call-overload]

    def fill(self, values: Sequence[Any]) -> None:
        """Have the engine copy the sum of ``values`` here, one array per device, added in this order."""
        first, *rest = (value.as_nd_ndarray() for value in values)
        first.copyto(self.array)
        for value in rest:
            if self._part is None:
                self._part = mx.nd.empty(self.array.shape, self.array.context, self.array.dtype)
            value.copyto(self._part)
            mx.nd.elemwise_add(self.array, self._part, out=self.array)

    def deliver(self, outputs: Sequence[Any]) -> None:
        """Have the engine copy what will be here then to each of ``outputs``."""
        for output in outputs:
            self.array.copyto(output.as_nd_ndarray())
