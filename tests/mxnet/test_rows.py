"""The memory of MXNet's row-sparse arrays."""

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
import pytest

from ps.mxnet.rows import new_rows, read_rows, row_sparse


def test_rows_are_written_and_read_where_they_are():
    array, memory = new_rows(np.array([1, 3]), (4, 2), np.dtype("float32"))
    memory[:] = [5, 6, 7, 8]
    assert array.asnumpy().tolist() == [[0, 0], [5, 6], [0, 0], [7, 8]]
    ids, rows = read_rows(array)
    assert ids.tolist() == [1, 3]
    assert np.shares_memory(rows, memory)


@pytest.mark.parametrize("shape", [(0, 3), (4, 3), (4, 0), (0, 0)])
def test_no_rows_and_no_elements_have_no_memory(shape):
    ids = np.arange(4 if shape == (4, 0) else 0)
    with mx.util.np_shape(True):
        array, memory = new_rows(ids, shape, np.dtype("float16"))
        found, rows = read_rows(array)
        copy = row_sparse(ids, np.empty((ids.size, shape[1]), "float16"), shape)
    assert (memory.size, memory.dtype) == (0, np.float16)
    assert found.tolist() == ids.tolist()
    assert (rows.shape, rows.dtype) == ((ids.size, shape[1]), np.float16)
    assert (copy.shape, copy.stype) == (shape, "row_sparse")
