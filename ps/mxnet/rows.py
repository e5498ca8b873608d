"""MXNet's row-sparse arrays, and the memory that their rows lie in.

MXNet's own ways to make or read such an array copy everything twice and wait for its engine each time. Here only the
ids go through the engine; rows are written and read where they are.
"""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.sparse import RowSparseNDArray, _new_alloc_handle
from numpy.typing import NDArray

from ps.mxnet.memory import memory_of

__all__ = ["new_rows", "read_rows", "row_sparse"]

Array = NDArray[Any]
Ids = NDArray[np.int64]


def new_rows(ids: Ids, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, Array]:
    """Return an array that has the rows ``ids``, ascending, and their elements, one-dimensional, not set yet.

    Whoever has the elements keeps the array alive.
    """
    if not ids.size:
        return mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype), np.empty(0, dtype)
    handle = _new_alloc_handle("row_sparse", shape, mx.cpu(), False, dtype, ["int64"], [ids.shape])
    array = RowSparseNDArray(handle)
    indices = mx.nd.array(ids, dtype="int64")
    check_call(_LIB.MXNDArraySyncCopyFromNDArray(handle, indices.handle, ctypes.c_int(0)))
    return array, memory_of(array, ids.size * int(np.prod(shape[1:])))


def read_rows(array: Any) -> tuple[Ids, Array]:
    """Return ids and rows of an array that is ready and that nobody writes any more; the rows are not a copy."""
    ids: Ids = array.indices.asnumpy().astype(np.int64, copy=False)
    shape = (ids.size, *array.shape[1:])
    return ids, memory_of(array, int(np.prod(shape))).reshape(shape)


def row_sparse(ids: Ids, rows: Array, shape: tuple[int, ...]) -> Any:
    """Return an array of ``shape`` that has these rows, ascending by id, those of zeros too: a copy."""
    array, memory = new_rows(ids, shape, rows.dtype)
    memory.reshape(rows.shape)[:] = rows
    return array
