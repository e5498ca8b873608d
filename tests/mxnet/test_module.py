"""Module between two real workers: fit, checkpoints with the optimizer's states, another optimizer, buckets."""

from __future__ import annotations

import contextlib
import os
import tempfile

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
import pytest

from tests.mxnet.cases import Cases, rank

cases = Cases()
case = cases.case

MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}


@contextlib.contextmanager
def updating(on_kvstore):
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = str(int(on_kvstore))
    try:
        yield
    finally:
        del os.environ["MXNET_UPDATE_ON_KVSTORE"]


def linear(contexts=1):
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc"), mx.sym.var("label"), name="out"
    )
    context = [mx.cpu(i) for i in range(contexts)]
    return mx.mod.Module(symbol, data_names=["data"], label_names=["label"], context=context)


def fit(model, kvstore, epochs, **options):
    """Fit to 8 rows in batches of 4; with a store, to this rank's half of each."""
    data = np.arange(16, dtype="float32").reshape(8, 2) / 16
    label = data.sum(axis=1)
    if kvstore:
        data, label = data[rank() :: 2], label[rank() :: 2]
    batches = mx.io.NDArrayIter(data, label.reshape(-1, 1), 2 if kvstore else 4, label_name="label")
    options = {"optimizer": "sgd", "optimizer_params": MOMENTUM, **options}
    model.fit(
        batches, eval_metric="mse", kvstore=kvstore or "local", initializer=mx.init.One(), num_epoch=epochs, **options
    )
    return model


def parameters(model):
    return [value.asnumpy() for _, value in sorted(model.get_params()[0].items())]


def alike(some, others):
    pairs = list(zip(parameters(some), parameters(others)))
    return all(np.allclose(a, b, atol=1e-4) for a, b in pairs) or str(pairs)


@case([True, True])
def fit_equals_one_process_with_the_whole_batch():
    plain = fit(linear(), None, 3)
    return [alike(fit(linear(contexts), "dist_sync_autobyte", 3), plain) for contexts in (1, 2)]


@case(True)
def a_module_goes_on_with_the_states_that_it_saved():
    store = mx.kv.create("dist_sync_autobyte")
    model = fit(linear(), store, 3)
    with tempfile.TemporaryDirectory() as directory:
        model.save_optimizer_states(f"{directory}/states")
        model.load_optimizer_states(f"{directory}/states")
    return alike(fit(model, store, 3), fit(linear(), None, 6))


def continued(on_kvstore):
    """Fit, save a checkpoint, and go on from it with another Module and store."""
    with updating(on_kvstore), tempfile.TemporaryDirectory() as directory:
        fit(linear(), "dist_sync_autobyte", 3).save_checkpoint(f"{directory}/model", 3, save_optimizer_states=True)
        model = mx.mod.Module.load(f"{directory}/model", 3, True, data_names=["data"], label_names=["label"])
        fit(model, "dist_sync_autobyte", 6, begin_epoch=3)
    return alike(model, fit(linear(), None, 6))


@case(True)
def a_checkpoint_is_gone_on_with_where_the_servers_update():
    return continued(True)


@case(True)
def a_checkpoint_is_gone_on_with_where_the_workers_update():
    return continued(False)


def restarted(optimizer, options):
    """Fit, set an optimizer anew, and fit again: with the store, and without any."""
    models = []
    for kvstore in ("dist_sync_autobyte", None):
        model = fit(linear(), kvstore, 2)
        model.init_optimizer(kvstore or "local", optimizer, {**options, "rescale_grad": 0.25}, force_init=True)
        models.append(fit(model, kvstore, 2))
    return alike(*models)


@case([True, True])
def an_optimizer_that_is_set_anew_by_force_starts_anew():
    """As in one process: Module makes a new store for it."""
    return [restarted("sgd", MOMENTUM), restarted("adam", {"learning_rate": 0.1})]


@case(True)
def buckets_share_a_store():
    def symbol(length):
        data = mx.sym.sum(mx.sym.var("data"), axis=1, keepdims=True)
        out = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1, name="fc"), mx.sym.var("label"))
        return out, ["data"], ["label"]

    models = []
    for kvstore in ("dist_sync_autobyte", None):
        model = mx.mod.BucketingModule(symbol, default_bucket_key=4)
        rows = 1 if kvstore else 2
        shapes = {n: ([mx.io.DataDesc("data", (rows, n))], [mx.io.DataDesc("label", (rows, 1))]) for n in (2, 4)}
        model.bind(*shapes[4])
        model.init_params(mx.init.One())
        model.init_optimizer(kvstore or "local", "sgd", {**MOMENTUM, "rescale_grad": 0.5})
        for step in range(6):
            n = [4, 2][step % 2]
            data = np.arange(2 * n, dtype="float32").reshape(2, n) / 10
            mine = data[rank() : rank() + 1] if kvstore else data
            batch = mx.io.DataBatch([mx.nd.array(mine)], [mx.nd.ones((rows, 1))], bucket_key=n)
            batch.provide_data, batch.provide_label = shapes[n]
            model.forward_backward(batch)
            model.update()
        models.append(model)
    return alike(*models)


@case([True, True])
def a_feed_forward_model_takes_a_store_by_name_or_object():
    x = np.random.RandomState(0).rand(40, 2).astype("float32")
    y = (x[:, 0] > x[:, 1]).astype("float32")
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    weights = []
    for kvstore in "dist_sync_autobyte", mx.kv.create("dist_sync_autobyte"):
        mx.random.seed(1)
        np.random.seed(1)  # it shuffles
        model = mx.model.FeedForward.create(
            mx.sym.SoftmaxOutput(layer, name="softmax"), X=x[rank() :: 2], y=y[rank() :: 2], num_epoch=30,
            numpy_batch_size=20, learning_rate=0.5, momentum=0.9, kvstore=kvstore,
        )  # fmt: skip
        weights.append(model.arg_params["fc_weight"].asnumpy())
        good = (model.predict(x).argmax(axis=1) == y).mean() > 0.9
    return [bool(good), np.allclose(*weights, atol=1e-4)]


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_module(results, name):
    assert results[__name__, name] == cases.expected[name]
