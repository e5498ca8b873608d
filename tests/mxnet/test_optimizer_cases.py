"""The optimizer on the servers between two real workers: settings, refusals, files, classes of the user's own."""

from __future__ import annotations

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
import pytest

from ps.errors import AutoByteError
from tests.mxnet.cases import Cases

cases = Cases()
case = cases.case


def sgd(**options):
    return mx.optimizer.SGD(**{"learning_rate": 0.1, **options})


def pulled(store, key, shape=(1,)):
    out = mx.nd.zeros(shape)
    store.pull(key, out=out)
    return np.round(out.asnumpy().astype("float64"), 6).tolist()


def pushed(store, key, value=1.0, shape=(1,)):
    store.push(key, mx.nd.full(shape, value))
    return pulled(store, key, shape)


def raised(call):
    try:
        call()
    except AutoByteError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def new_store(optimizer=None, **keys):
    store = mx.kv.create("dist_sync_autobyte")
    if optimizer is not None:
        store.set_optimizer(optimizer)
    for key, value in keys.items():
        store.init(key, mx.nd.array(value))
    return store


@case([[0.8], [0.78]])
def a_learning_rate_counts_from_the_next_push():
    optimizer = sgd()
    store = new_store(optimizer, w=[1])
    first = pushed(store, "w")
    optimizer.set_learning_rate(0.01)
    return [first, pushed(store, "w")]


@case([[0.5, 0.5], [2.5, 2.5]])
def a_push_is_a_snapshot_and_a_pull_writes_only_its_output():
    store, gradient, out = new_store(sgd(), w=[1, 1]), mx.nd.full((2,), 2.5), mx.nd.zeros((2,))
    store.push("w", gradient)
    store.pull("w", out=out)
    return [out.asnumpy().tolist(), gradient.asnumpy().tolist()]


@case([[0.8], [0.42], [0.058]])
def a_change_of_the_learning_rate_keeps_momentum():
    optimizer = sgd(momentum=0.9)
    store = new_store(optimizer, w=[1])
    results = [pushed(store, "w"), pushed(store, "w")]
    optimizer.set_learning_rate(0.01)
    return [*results, pushed(store, "w")]


@case([[0.8], [0.42], [-0.122]])
def the_same_optimizer_again_keeps_momentum():
    store = new_store(sgd(momentum=0.9), w=[1])
    results = [pushed(store, "w"), pushed(store, "w")]
    store.set_optimizer(sgd(momentum=0.9))
    return [*results, pushed(store, "w")]


@case([[0.8], [0.78]])
def another_class_starts_anew():
    store = new_store(sgd(momentum=0.9), w=[1])
    results = [pushed(store, "w")]
    store.set_optimizer(mx.optimizer.NAG(learning_rate=0.01))
    return [*results, pushed(store, "w")]


@case([0.8])
def ranks_that_set_other_learning_rates_get_rank_0s():
    rank = int(mx.kv.create("dist_sync_autobyte").rank)
    return pushed(new_store(sgd(learning_rate=[0.1, 0.7][rank]), w=[1]), "w")


@case([[0.8], [0.7], [0.65]])
def a_schedule_is_followed_and_learning_rates_seen_on_every_rank():
    optimizer = mx.optimizer.SGD(learning_rate=0.1, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.1))
    store = new_store(optimizer, w=[1])
    results = [pushed(store, "w")]
    results.append(pushed(store, "w"))
    assert optimizer.learning_rate == 0.05, optimizer.learning_rate
    return [*results, pushed(store, "w")]


@case([[0.9], [0.8], [0.4]])
def rescale_grad_and_multipliers_reach_the_servers():
    optimizer = sgd(rescale_grad=0.5, param_idx2name={0: "w_weight"})
    store = mx.kv.create("dist_sync_autobyte")
    store.init("w", mx.nd.ones((1,)))
    store.set_optimizer(optimizer)
    results = [pushed(store, "w")]
    results.append(pushed(store, "w"))
    optimizer.rescale_grad = 1.0
    optimizer.set_lr_mult({"w": 2.0})
    return [*results, pushed(store, "w")]


@case([[[0.8], [0.9]], [[3.0]]])
def stores_have_optimizers_of_their_own():
    first, second, third = new_store(sgd(), w=[1]), new_store(sgd(learning_rate=0.05), w=[1]), new_store(w=[1])
    return [[pushed(first, "w"), pushed(second, "w")], [pushed(third, "w", 1.5)]]


@case(["SettingsError", "command('optimizer/set')", "server 0", "optimizer 'unknowntoservers' is not registered here",
       [2.0]])  # fmt: skip
def a_class_that_the_servers_do_not_know_is_refused_by_name_and_the_store_goes_on():
    @mx.optimizer.register
    class UnknownToServers(mx.optimizer.SGD):
        elementwise = True

    store = new_store(w=[1])
    error = raised(lambda: store.set_optimizer(UnknownToServers()))
    return [*error.split(";")[0].split(": "), pushed(store, "w")]


@case(["SettingsError: command('optimizer/set'): the ranks differ: 'sgd' on worker 0, 'adam' on worker 1; give all "
       "ranks the same"])  # fmt: skip
def ranks_that_set_other_classes_get_an_error():
    store = new_store(w=[1])
    return [raised(lambda: store.set_optimizer(sgd() if store.rank == 0 else mx.optimizer.Adam()))]


@case(["SettingsError: set_optimizer: 'lamb' looks at whole tensors, but key 'w' was initialised before and is spread "
       "over the servers; set the optimizer first, then initialise the keys"])  # fmt: skip
def an_optimizer_of_norms_is_refused_after_keys_were_spread():
    return [raised(lambda: new_store(w=[1]).set_optimizer(mx.optimizer.LAMB()))]


@case([[1.0, 1.0, 3.0]])
def a_class_of_the_users_own_runs_on_servers_that_import_its_module():
    from tests.mxnet import own_optimizer

    return [pushed(new_store(own_optimizer.Own(factor=0.5), w=[0, 0, 2]), "w", shape=(3,))]


@case([[2.0], [2.0]])
def a_half_is_updated_in_full_precision():
    store = mx.kv.create("dist_sync_autobyte")
    store.set_optimizer(sgd(learning_rate=1.0, multi_precision=True))
    store.init("w", mx.nd.full((1,), 2048, dtype="float16"))
    results = []
    for _ in range(2):  # 0.25 is lost in a half of 2048, but two of it, and two of that, are not
        store.push("w", mx.nd.full((1,), -0.25, dtype="float16"))
        out = mx.nd.zeros((1,), dtype="float16")
        store.pull("w", out=out)
        results.append((out.asnumpy() - 2046).tolist())
    return results


def trainer(store=None):
    param = mx.gluon.Parameter("p", shape=(1,))
    param.initialize(mx.init.One())
    return param, mx.gluon.Trainer([param], "sgd", {"learning_rate": 0.1}, store or "dist_sync_autobyte")


@case([True, [0.8], [0.7]])
def trainer_updates_on_the_servers_by_default_and_may_change_the_batch_size():
    param, optimizing = trainer()
    results = []
    for batch_size in 1, 2:
        param.grad()[:] = 1
        param.data()._fresh_grad = True
        optimizing.step(batch_size)
        results.append(np.round(param.data().asnumpy().astype("float64"), 6).tolist())
    return [optimizing._update_on_kvstore, *results]


@case([[0.8], [0.78]])
def asynchronous_keys_are_updated_by_each_push_and_take_rank_0s_settings():
    store = mx.kv.create("dist_async_autobyte")
    optimizer = sgd()
    store.set_optimizer(optimizer)
    store.init("w", mx.nd.ones((1,)))
    results = []
    for rate in 0.1, 0.01:
        optimizer.set_learning_rate(rate)
        for rank in range(2):
            if store.rank == rank:
                pushed(store, "w")
            store.barrier()
        results.append(pulled(store, "w"))
        store.barrier()
    return results


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_case(results, name):
    assert results[__name__, name] == cases.expected[name]
