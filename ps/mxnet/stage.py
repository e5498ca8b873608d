"""Staging arrays: where a key's gradient waits for the wire, and its sum for MXNet.

The communication thread reads and writes memory by address, and MXNet's arrays do not keep theirs: after an inference
oneDNN holds a weight, and sometimes a gradient, in a layout of its own, and asking for its address from within the
engine deadlocks. So a gradient is copied, by the engine, into a stage that no operator ever uses, over memory of our
own, which servers on the same host can read. The copy is at the same time the snapshot that ``push`` promises: the
engine orders it before whatever writes the gradient next. It costs one pass over memory (13 to 17 GB/s) and a key keeps
its stage for good, so no step allocates.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
from mxnet.ndarray.ndarray import DLDataType
from numpy.typing import NDArray

__all__ = ["Stage"]

# MXNet's table of what its arrays can be over memory of others forgets one type (kDLInt, 8 bits, 1 lane).
DLDataType.TYPE_MAP.setdefault("int8", (0, 8, 1))


class Stage:
    """The staging array of one key.

    Parameters
    ----------
    shape
        Of the key.
    memory
        Where its elements are to be: one-dimensional, aligned to 64 bytes, and the stage's alone from now on.

    Attributes
    ----------
    array
        The stage as MXNet sees it; every operation on the key writes it, which puts them in program order.
    memory
        The same elements for the communication thread.
    """

    def __init__(self, shape: tuple[int, ...], memory: NDArray[Any]) -> None:
        self.memory = memory
        self.array = mx.nd.from_numpy(memory.reshape(shape))  # which makes this view of the memory read-only
        self._part = None

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
