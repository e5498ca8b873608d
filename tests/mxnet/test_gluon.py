"""Gluon's Trainer and Module on the store, with the traps that MXNet holds for whoever replaces one.

The other worker pushes the same, so a step must equal one of plain MXNet with the gradient doubled: to the bit, since
doubling is exact.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import ps.mxnet


def network(seed, ctx, hybridize=False):
    """A small network of convolutions, with a batch normalisation (parameters that are never pushed)."""
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(8, 3, padding=1, in_channels=3),
            nn.BatchNorm(in_channels=8),
            nn.Activation("relu"),
            nn.Conv2D(16, 3, in_channels=8),
            nn.GlobalAvgPool2D(),
            nn.Dense(4, in_units=16),
        )
    net.initialize(mx.init.Xavier(), ctx=ctx)
    if hybridize:
        net.hybridize(static_alloc=True)
    return net


def train(net, ctx, kvstore, scale, steps=4, momentum=0.9):
    """Train with a validation pass after every step; return all parameters."""
    options = {"learning_rate": 0.05, "momentum": momentum, "rescale_grad": scale}
    update_on_kvstore = None if kvstore is None else False
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", options, kvstore=kvstore, update_on_kvstore=update_on_kvstore
    )
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    random = np.random.RandomState(5)
    for _ in range(steps):
        data = mx.nd.array(random.rand(4 * len(ctx), 3, 8, 8))
        label = mx.nd.array(random.randint(0, 4, 4 * len(ctx)))
        with mx.autograd.record():
            losses = [
                loss(net(x), y)
                for x, y in zip(mx.gluon.utils.split_and_load(data, ctx), mx.gluon.utils.split_and_load(label, ctx))
            ]
        for one in losses:
            one.backward()
        trainer.step(4)
        net(data.as_in_context(ctx[0]))  # an inference: oneDNN lays out the weights anew
    return [param.data(ctx[0]).asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize("hybridize", [False, True])
def test_steps_equal_plain_mxnet(worker, hybridize):
    ctx = [mx.cpu()]
    plain = train(network(1, ctx, hybridize), ctx, None, 2.0)
    ours = train(network(1, ctx, hybridize), ctx, "dist_sync_autobyte", 1.0)
    assert all(np.array_equal(a, b) for a, b in zip(plain, ours))
    assert worker.noted


def test_several_devices(worker):
    ctx = [mx.cpu(0), mx.cpu(1)]
    plain = train(network(1, ctx), ctx, "local", 2.0)
    net = network(1, ctx)
    ours = train(net, ctx, "dist_autobyte", 1.0)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(plain, ours))
    assert all(
        np.array_equal(param.data(ctx[0]).asnumpy(), param.data(ctx[1]).asnumpy())
        for param in net.collect_params().values()
        if param.grad_req != "null"
    )


def test_trainer_updates_on_the_worker_where_the_environment_says_so(worker, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    net = network(1, [mx.cpu()])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_autobyte")
    trainer._init_kvstore()
    assert trainer._update_on_kvstore is False


def test_trainer_saves_and_loads_its_states(worker, tmp_path):
    net = network(1, [mx.cpu()])
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", kvstore="dist_sync_autobyte", update_on_kvstore=False)
    trainer.save_states(str(tmp_path / "states"))
    trainer.load_states(str(tmp_path / "states"))


def test_parameter_that_is_data_of_a_convolution(worker):
    """Its gradient comes in oneDNN's own layout."""

    class Learned(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="learned_")
            with self.name_scope():
                self.image = self.params.get("image", shape=(1, 8, 12, 12))
                self.convolution = nn.Conv2D(16, 3, in_channels=8)

        def hybrid_forward(self, F, x, image):  # noqa: N803
            return self.convolution(image) * x

    def run(kvstore, scale):
        mx.random.seed(3)
        net = Learned()
        net.initialize(mx.init.Normal(0.1))
        update_on_kvstore = None if kvstore is None else False
        trainer = mx.gluon.Trainer(
            net.collect_params(),
            "sgd",
            {"rescale_grad": scale},
            kvstore=kvstore,
            update_on_kvstore=update_on_kvstore,
        )
        for _ in range(3):
            with mx.autograd.record():
                loss = (net(mx.nd.ones(1)) ** 2).sum()
            loss.backward()
            trainer.step(1)
            net(mx.nd.ones(1))
        return [param.data().asnumpy() for param in net.collect_params().values()]

    assert all(np.array_equal(a, b) for a, b in zip(run(None, 2.0), run("dist_sync_autobyte", 1.0)))


def test_loss_of_the_next_step_raises_what_went_wrong_in_this_one(worker):
    from ps.errors import PeerLost

    net = network(1, [mx.cpu()])
    ps.mxnet.broadcast_parameters(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_autobyte", update_on_kvstore=False)
    data = mx.nd.ones((1, 3, 8, 8))

    def step():
        with mx.autograd.record():
            loss = net(data).sum()
        loss.backward()
        trainer.step(1)
        return loss

    step().wait_to_read()
    mx.nd.waitall()
    worker.fail(PeerLost("push_pull: worker 1 was lost"))
    step().wait_to_read()
    with pytest.raises(PeerLost, match="worker 1 was lost"):
        step().wait_to_read()


def test_module_that_updates_on_the_worker(worker, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    data = mx.sym.Variable("data")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2, name="fc"), name="softmax")
    batches = mx.io.NDArrayIter(np.eye(4, dtype="float32"), np.array([0, 1, 0, 1], "float32"), batch_size=4)
    module = mx.mod.Module(symbol)
    module.fit(
        batches, kvstore=mx.kv.create("dist_sync_autobyte"), num_epoch=20, optimizer_params={"learning_rate": 0.5}
    )
    assert module.score(batches, "acc")[0][1] == 1.0


def test_amp_skips_what_overflows_and_scales_the_rest_back(script):
    """MXNet's operators of half precision need a GPU; what AMP does to Trainer does not."""
    source = """
from mxnet.contrib import amp
amp.init()
for update_on_kvstore in None, False:
    param = mx.gluon.Parameter("p", shape=(2,))
    param.initialize("ones")
    options = {"kvstore": "dist_sync_autobyte", "update_on_kvstore": update_on_kvstore}
    trainer = mx.gluon.Trainer([param], "sgd", {"learning_rate": 0.1}, **options)
    amp.init_trainer(trainer)
    for factor in float("inf"), 2, 2:
        with mx.autograd.record():
            loss = param.data() * factor
            with amp.scale_loss(loss, trainer) as scaled:
                mx.autograd.backward(scaled)
        if factor == 2:
            amp.unscale(trainer)
            print(param.grad().asnumpy())
        trainer.step(1)
        print(param.data().asnumpy().round(6), trainer._amp_loss_scaler.loss_scale)
"""
    done = script(source)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()
        == [
            "[1. 1.] 65536.0",
            "[2. 2.]",
            "[0.6 0.6] 32768.0",
            "[2. 2.]",
            "[0.2 0.2] 32768.0",
        ]
        * 2
    )
