"""Staging: snapshots in, results out, at one address for good."""

import ctypes

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import _LIB

from ps.mxnet.stage import deliver
from ps.mxnet.stage import new_stage as stage_like


def new_stage(shape, dtype="float32"):
    return stage_like(mx.nd.empty(shape, dtype=dtype), np.empty)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "int8", "uint8"])
def test_values_of_several_devices_are_added_and_the_result_goes_to_each(dtype):
    stage = new_stage((2, 3), dtype)
    values = [
        mx.nd.array([[1, 2, 3], [4, 5, 6]], ctx=mx.cpu(0), dtype=dtype),
        mx.nd.ones((2, 3), ctx=mx.cpu(1), dtype=dtype),
        mx.nd.ones((2, 3), ctx=mx.cpu(2), dtype=dtype),
    ]
    stage.fill(values)
    stage.array.wait_to_read()
    assert stage.memory.tolist() == [3, 4, 5, 6, 7, 8]
    assert stage.memory.dtype.name == dtype
    stage.memory[:] = 9
    deliver(stage.array, values)
    assert [value.asnumpy().tolist() for value in values] == [[[9, 9, 9], [9, 9, 9]]] * 3
    assert [str(value.context) for value in values] == ["cpu(0)", "cpu(1)", "cpu(2)"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_cleared_stage_changes_no_sum(dtype):
    stage = new_stage((3,), dtype)
    stage.clear()
    stage.array.wait_to_read()
    assert stage.memory.tolist() == [0, 0, 0]
    assert np.signbit(stage.memory).all()


def test_fill_is_a_snapshot():
    value = mx.nd.ones((1000,))
    stage = new_stage((1000,))
    stage.fill([value])
    value[:] = 7
    stage.array.wait_to_read()
    assert set(stage.memory) == {1.0}


def test_transpose_and_slice():
    stage = new_stage((4, 3))
    stage.fill([mx.nd.arange(12).reshape((3, 4)).T])
    stage.array.wait_to_read()
    assert stage.memory.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    whole = mx.nd.zeros((6, 3))
    deliver(stage.array, [whole[1:5]])
    assert whole.asnumpy().tolist() == [[0] * 3, [0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11], [0] * 3]


def test_memory_stays_where_it_is_whatever_layout_onednn_gives_the_weight():
    convolution = mx.gluon.nn.Conv2D(16, 3, in_channels=8)
    convolution.initialize()
    weight = convolution.weight.data()
    stage = new_stage(weight.shape)
    address = stage.memory.ctypes.data
    for _ in range(3):
        convolution(mx.nd.ones((1, 8, 9, 9))).wait_to_read()  # an inference: the weight is laid out anew
        stage.fill([weight])
        stage.array.wait_to_read()
        assert np.array_equal(stage.memory.reshape(weight.shape), weight.asnumpy())
        deliver(stage.array, [weight])
    pointer = ctypes.c_void_p()
    _LIB.MXNDArrayGetData(stage.array.handle, ctypes.byref(pointer))
    assert pointer.value == address


def test_memory_outlives_the_stage():
    memory = new_stage((100_000,)).memory
    memory[:] = 3
    for _ in range(5):
        mx.nd.zeros((100_000,)).wait_to_read()
    assert set(memory) == {3.0}
