"""Staging arrays: where a key's gradient waits for the wire, and its sum for MXNet.

The communication thread reads and writes memory by address, and MXNet's arrays do not keep theirs: after an inference
oneDNN holds a weight, and sometimes a gradient, in a layout of its own, and asking for its address from within the
engine deadlocks. So a gradient is copied, by the engine, into a stage that no operator ever uses, over memory of our
own, which servers on the same host can read. The copy is at the same time the snapshot that ``push`` promises: the
engine orders it before whatever writes the gradient next. It costs one pass over memory (13 to 17 GB/s) and a key keeps
its stage for good, so no step allocates.

Of GPUs the first one sums, so that one copy goes down and one up, over the page-locked memory that makes them
asynchronous; no other process reads that memory. (Written after MXNet's sources and never run: the tests have no GPU.)
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray.ndarray import DLDataType
from numpy.typing import NDArray

from ps.mxnet.arrays import copy
from ps.mxnet.memory import memory_of

__all__ = ["Stage", "deliver", "new_stage"]

# MXNet's table of what its arrays can be over memory of others forgets one type (kDLInt, 8 bits, 1 lane).
DLDataType.TYPE_MAP.setdefault("int8", (0, 8, 1))


class Stage:
    """The staging array of one key.

    Parameters
    ----------
    array
        An array that nobody else uses.
    memory
        The memory that it lies in, one-dimensional.

    Attributes
    ----------
    array
        The stage as MXNet sees it; every operation on the key writes it, which puts them in program order.
    memory
        The same elements for the communication thread.
    pulled
        The version of the key's value that ``memory`` holds, where the last operation was a pull; else None.
    """

    def __init__(self, array: Any, memory: NDArray[Any]) -> None:
        self.array = array
        self.memory = memory
        self.pulled: Optional[int] = None
        self._total: Any = None
        self._part: Any = None

    def fill(self, values: Sequence[Any]) -> None:
        """Have the engine copy the sum of ``values`` here, one array per device, added in this order."""
        first, *rest = (value.as_nd_ndarray() for value in values)
        if not rest:
            copy(first, self.array)
            return
        if self._part is None:
            on_gpu = first.context.device_type == "gpu"
            self._part = mx.nd.empty(first.shape, first.context, first.dtype)
            self._total = mx.nd.empty(first.shape, first.context, first.dtype) if on_gpu else self.array
        copy(first, self._total)
        for value in rest:
            copy(value, self._part)
            mx.nd.elemwise_add(self._total, self._part, out=self._total)
        if self._total is not self.array:
            copy(self._total, self.array)

    def clear(self) -> None:
        """Have the engine write -0.0 everywhere: what changes no bit of a sum that it is added to."""
        self.array[:] = 0
        mx.nd.negative(self.array, out=self.array)  # as a constant, MXNet takes it for 0.0


def deliver(source: Any, outputs: Sequence[Any]) -> None:
    """Have the engine copy ``source`` to each of ``outputs``, of which there is one; by way of it if it is a GPU's."""
    first, *others = (output.as_nd_ndarray() for output in outputs)
    copy(source, first)
    if others and first.context.device_type == "gpu" and first.dtype == source.dtype:
        source = first
    for output in others:
        copy(source, output)


def new_stage(like: Any, allocate: Callable[[int, np.dtype[Any]], NDArray[Any]]) -> Stage:
    """Return a stage for arrays such as ``like``, in memory from ``allocate(size, dtype)``, aligned to 64 bytes."""
    if like.context.device_type == "gpu":
        array = mx.nd.empty(like.shape, mx.Context("cpu_pinned", 0), like.dtype)
        array.wait_to_read()
        return Stage(array, memory_of(array, array.size))
    memory = allocate(like.size, np.dtype(like.dtype))
    return Stage(mx.nd.from_numpy(memory.reshape(like.shape)), memory)  # which makes this view of it read-only
