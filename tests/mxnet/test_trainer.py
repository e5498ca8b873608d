"""Gluon's Trainer and Estimator between two real workers, updating on the workers and on the servers."""

from __future__ import annotations

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from tests.mxnet.cases import Cases, rank

cases = Cases()
case = cases.case


class Pair:
    """Two parameters whose gradients are what ``step`` is told: None is a stale one."""

    def __init__(self, kvstore, update_on_kvstore, optimizer="sgd", ctx=None, **options):
        self.ctx = ctx or [mx.cpu()]
        self.params = [gluon.Parameter(name, shape=(2,)) for name in "ab"]
        for param in self.params:
            param.initialize("ones", ctx=self.ctx)
        options = {"learning_rate": 0.1, **options}
        self.trainer = gluon.Trainer(
            self.params, optimizer, options, kvstore=kvstore, update_on_kvstore=update_on_kvstore
        )

    def backward(self, *gradients):
        for ctx in self.ctx:
            with mx.autograd.record():
                losses = [p.data(ctx) * g for p, g in zip(self.params, gradients) if g is not None]
            if losses:
                mx.autograd.backward(losses)

    def step(self, *gradients, batch_size=1, **options):
        self.backward(*gradients)
        self.trainer.step(batch_size, **options)

    def values(self):
        return [param.data(self.ctx[0]).asnumpy().astype(float).round(6).tolist() for param in self.params]


def like_plain(update_on_kvstore, optimizer, steps, **options):
    """Do the same steps with the store, and with the gradients of both ranks added in plain MXNet."""
    pair = Pair("dist_sync_autobyte", update_on_kvstore, optimizer, **options)
    plain = Pair(None, None, optimizer, **options)
    for gradients in steps:
        mine = gradients[rank()]
        pair.step(*mine, ignore_stale_grad=True)
        sums = [None if a is None and b is None else (a or 0) + (b or 0) for a, b in zip(*gradients)]
        plain.step(*sums, ignore_stale_grad=True)
    return pair.values() == plain.values() or [pair.values(), plain.values()]


STALE_EVERYWHERE = [[(1, 2), (3, 1)], [(1, None), (1, None)], [(2, 1), (1, 1)], [(None, None), (None, None)]]
STALE_ON_RANK_0 = [[(1, 2), (3, 1)], [(1, None), (1, 5)], [(2, 1), (1, 1)], [(1, None), (1, 0.5)]]

for where, steps in (("everywhere", STALE_EVERYWHERE), ("on_rank_0", STALE_ON_RANK_0)):
    for update_on_kvstore in (False, True):
        for optimizer, options in (("sgd", {"momentum": 0.9, "wd": 0.01}), ("adam", {})):

            def stale(update_on_kvstore=update_on_kvstore, optimizer=optimizer, steps=steps, options=options):
                return like_plain(update_on_kvstore, optimizer, steps, **options)

            side = "servers" if update_on_kvstore else "workers"
            stale.__name__ = f"stale_{where}_{optimizer}_on_{side}"
            case(True)(stale)


@case([[[0.8, 0.8], [0.8, 0.8]], "UserWarning", [[0.6, 0.6], [0.8, 0.8]]])
def stale_gradient_is_told_and_not_applied_by_the_servers():
    pair = Pair("dist_sync_autobyte", True)
    pair.step(1, 1)
    first = pair.values()
    try:
        pair.step(1, None)
        told = "nothing"
    except UserWarning:
        told = "UserWarning"
    return [first, told, pair.values()]


@case([[[0.8, 0.8], [0.8, 0.8]], "UserWarning", [[0.8, 0.8], [0.8, 0.8]], [[0.6, 0.6], [0.6, 0.6]]])
def stale_gradient_is_told_and_not_applied_by_the_workers():
    pair = Pair("dist_sync_autobyte", False)
    pair.step(1, 1)
    seen = [pair.values()]
    try:
        pair.step(1, None)
    except UserWarning:
        seen.append("UserWarning")
    seen.append(pair.values())
    pair.step(1, 1)
    return [*seen, pair.values()]


@case([[0.8, 0.8], [0.7, 0.7], [0.65, 0.65]])
def batch_size_may_change_while_the_servers_update():
    pair = Pair("dist_sync_autobyte", True)
    seen = []
    for batch_size in (1, 2, 4):
        pair.step(1, 1, batch_size=batch_size)
        seen.append(pair.values()[0])
    return seen


@case([[0.4, 0.4], [0.4, 0.4]])
def devices_of_all_ranks_are_one_gradient():
    pair = Pair("dist_sync_autobyte", True, ctx=[mx.cpu(0), mx.cpu(1)])
    pair.step(rank() + 1, 1)
    return [data.asnumpy().astype(float).round(6).tolist() for data in pair.params[0].list_data()]


@case([[0.5, 0.5], [0.5, 0.5]])
def gradients_may_be_clipped_between_allreduce_and_update():
    pair = Pair("dist_sync_autobyte", False)
    pair.backward(3, 4)
    pair.trainer.allreduce_grads()
    grads = [param.grad() for param in pair.params]
    assert [grad.asnumpy().tolist() for grad in grads] == [[6, 6], [8, 8]]
    for grad in grads:
        grad[:] = 5
    pair.trainer.update(1)
    return pair.values()


@case(["AssertionError", "AssertionError"])
def allreduce_and_update_are_refused_while_the_servers_update():
    pair = Pair("dist_sync_autobyte", True)
    pair.step(1, 1)
    seen = []
    for call in (pair.trainer.allreduce_grads, lambda: pair.trainer.update(1)):
        try:
            call()
        except AssertionError as error:
            seen.append(type(error).__name__)
    return seen


@case([[0.8, 0.8], [4.8, 4.8]])
def set_data_takes_effect_where_the_workers_update():
    pair = Pair("dist_sync_autobyte", False)
    pair.step(1, 1)
    seen = [pair.values()[0]]
    pair.params[0].set_data(mx.nd.ones((2,)) * 5)
    pair.step(1, 1)
    return [*seen, pair.values()[0]]


@case("RuntimeError: Cannot reset distributed KVStore.")
def set_data_is_refused_while_the_servers_update():
    pair = Pair("dist_sync_autobyte", True)
    pair.step(1, 1)
    try:
        pair.params[0].set_data(mx.nd.ones((2,)))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


@case([[0.4, 0.4], [1.0, 1.0]])
def gradients_may_add_up_and_parameters_may_have_none():
    pair = Pair("dist_sync_autobyte", True)
    pair.params[0].grad_req = "add"
    pair.params[1].grad_req = "null"
    pair.backward(1, None)
    pair.backward(2, None)
    pair.trainer.step(1)
    return pair.values()


@case([[[0.8, 0.8], [0.8, 0.8]], [[0.6, 0.6], [0.6, 0.6]]])
def two_trainers_update_their_own_keys():
    generator, discriminator = (Pair("dist_sync_autobyte", True) for _ in range(2))
    discriminator.step(1, 1)
    generator.step(1, 1)
    discriminator.step(1, 1)
    return [generator.values(), discriminator.values()]


@case(True)
def shapes_may_become_known_in_the_first_forward():
    net = gluon.nn.Dense(3)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_sync_autobyte")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 2)))
    loss.backward()
    trainer.step(1)
    return bool(np.allclose(net.weight.data().asnumpy(), 0.8))


@case([2.0**16, "skipped", 2.0**15, [0.8, 0.8]])
def an_overflow_on_one_rank_is_skipped_by_all():
    from mxnet.contrib import amp
    from mxnet.contrib.amp.loss_scaler import LossScaler

    pair = Pair("dist_sync_autobyte", None)
    pair.trainer._amp_loss_scaler, pair.trainer._amp_original_scale = LossScaler(), pair.trainer._scale
    seen = []
    for factor in (float("inf") if rank() == 1 else 1.0, 1.0, 1.0):
        with mx.autograd.record():
            loss = pair.params[0].data() * factor + pair.params[1].data()
            with amp.scale_loss(loss, pair.trainer) as scaled:
                seen.append(pair.trainer._amp_loss_scaler.loss_scale)
                mx.autograd.backward(scaled)
        pair.trainer.step(1)
        if not seen[1:]:
            seen.append("skipped" if pair.values()[0] == [1, 1] else pair.values())
    return [seen[0], seen[1], seen[3], [round(value + 0.2, 6) for value in pair.values()[0]]]


@case([[0.7, 0.7], [0.7, 0.7]])
def arrays_of_the_numpy_interface():
    with mx.util.np_shape(True), mx.util.np_array(True):
        param = gluon.Parameter("p", shape=(2,))
        param.initialize("ones", ctx=[mx.cpu(0), mx.cpu(1)])
        trainer = gluon.Trainer([param], "sgd", {"learning_rate": 0.05}, kvstore="dist_sync_autobyte")
        for data in param.list_data():
            with mx.autograd.record():
                loss = (data * (rank() + 1)).sum()
            loss.backward()
        trainer.step(1)
        return [data.asnumpy().astype(float).round(6).tolist() for data in param.list_data()]


@case([True, True])
def estimator_fit():
    from mxnet.gluon.contrib.estimator import Estimator

    mx.random.seed(rank())
    net = gluon.nn.Dense(2, in_units=4)
    net.initialize(mx.init.Xavier())
    ps.mxnet.broadcast_parameters(net)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05}, kvstore="dist_sync_autobyte")
    random = np.random.RandomState(rank())
    data = random.rand(32, 4).astype("float32")
    label = (data.sum(axis=1) > 2).astype("float32")
    batches = gluon.data.DataLoader(gluon.data.ArrayDataset(data, label), 8)
    estimator = Estimator(
        net, gluon.loss.SoftmaxCrossEntropyLoss(), train_metrics=mx.metric.Accuracy(), trainer=trainer, context=mx.cpu()
    )
    before = net.weight.data().asnumpy()
    estimator.fit(batches, epochs=2)
    after = net.weight.data().asnumpy()
    store = mx.kv.create("dist_sync_autobyte")
    total = mx.nd.array(after)
    store.broadcast(0, total, total)
    return [bool((after != before).any()), bool((total.asnumpy() == after).all())]


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_trainer(results, name):
    assert results[__name__, name] == cases.expected[name]
