"""``broadcast_parameters``: everybody begins with one rank's values."""

import mxnet as mx
import numpy as np
import pytest

import ps.mxnet
from ps.errors import AutoByteError
from ps.mxnet import connection
from tests.mxnet.fake import FakeWorker, join


class TwoRanks(FakeWorker):
    """The other rank, number 1 - rank, broadcasts ``theirs`` for every parameter."""

    theirs = 5.0

    def combine(self, pushed):
        other = np.full_like(pushed, self.theirs if self.rank != self.root else -0.0)
        return pushed + other


@pytest.fixture
def ranks(worker):
    def choose(rank, root):
        other = TwoRanks(rank=rank)
        other.root = root
        connection._connection.disable("replaced")
        return join(other)

    return choose


def dense(value, **options):
    layer = mx.gluon.nn.Dense(1, in_units=2, use_bias=False, **options)
    layer.initialize(mx.init.Constant(value), ctx=[mx.cpu(0), mx.cpu(1)])
    return layer


@pytest.mark.parametrize(("rank", "root", "expected"), [(0, 0, 1), (1, 0, 5), (0, 1, 5), (1, 1, 1)])
def test_values_of_the_root_are_everywhere_in_place(ranks, rank, root, expected):
    ranks(rank, root)
    layer = dense(1)
    weights = layer.weight.list_data()
    ps.mxnet.broadcast_parameters(layer, root_rank=root)
    assert [weight.asnumpy().tolist() for weight in weights] == [[[expected] * 2]] * 2


def test_every_bit_of_the_root_arrives(ranks):
    ranks(0, 0)
    bits = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45], "float32")
    values = {"f": mx.nd.array(bits), "i": mx.nd.array([-1, 0, 2**31 - 1], dtype="int32")}
    ps.mxnet.broadcast_parameters(values)
    assert values["f"].asnumpy().tobytes() == bits.tobytes()
    assert values["i"].asnumpy().tolist() == [-1, 0, 2**31 - 1]


def test_it_may_be_called_again(ranks):
    worker = ranks(1, 0)
    layer = dense(1)
    ps.mxnet.broadcast_parameters(layer.collect_params())
    worker.theirs = 6.0
    ps.mxnet.broadcast_parameters(layer.collect_params())
    assert layer.weight.data(mx.cpu(0)).asnumpy().tolist() == [[6, 6]]
    assert len(worker.tensors) == 1


def test_weights_that_a_forward_pass_has_put_into_a_layout_of_its_own(ranks):
    ranks(1, 0)
    layer = mx.gluon.nn.Conv2D(64, kernel_size=3, in_channels=32)
    layer.initialize(mx.init.Constant(1))
    layer.hybridize()
    layer(mx.nd.ones((1, 32, 8, 8))).wait_to_read()
    ps.mxnet.broadcast_parameters(layer)
    assert set(layer.weight.data().asnumpy().ravel()) == {5}


def test_unknown_shape_is_an_error_that_says_what_to_do(worker):
    layer = mx.gluon.nn.Dense(1, prefix="late_")
    layer.initialize()
    with pytest.raises(
        AutoByteError, match=r"the shape of 'late_weight' is not known yet.*run one forward pass.*in_units"
    ):
        ps.mxnet.broadcast_parameters(layer.collect_params())


def test_parameter_without_values_is_an_error_that_says_what_to_do(worker):
    layer = mx.gluon.nn.Dense(1, in_units=1, prefix="raw_")
    with pytest.raises(AutoByteError, match=r"'raw_weight' is not initialised: call net.initialize\(\) first"):
        ps.mxnet.broadcast_parameters(layer.collect_params())


def test_root_that_does_not_exist(worker):
    with pytest.raises(ValueError, match="root_rank must be 0 to 1, not 2"):
        ps.mxnet.broadcast_parameters({}, root_rank=2)


def test_parameters_of_mxnets_numpy_interface(ranks):
    ranks(1, 0)
    with mx.util.np_shape(True), mx.util.np_array(True):
        layer = mx.gluon.nn.Dense(1, in_units=2)
        layer.initialize()
        ps.mxnet.broadcast_parameters(layer)
        assert layer.weight.data().asnumpy().tolist() == [[5, 5]]
