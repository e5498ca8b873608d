"""The store between two real workers: first values, snapshots, order, keys, disagreement, dtypes, sizes.

Each case is run by both ranks, all in one job; what a rank returns must equal what stands above the case.
"""

from __future__ import annotations

import functools

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
import pytest

from ps.errors import AutoByteError
from tests.mxnet.cases import Cases

cases = Cases()


@functools.cache
def shared():
    """Return the store of all cases."""
    return mx.kv.create("dist_sync_autobyte")


def case(expected=None, by_rank=None):
    """Give both ranks, or each of them, what it has to return, given a store."""

    def add(function):
        cases.case(expected, by_rank)(functools.wraps(function)(lambda: function(shared())))
        return function

    return add


def nd(*values, dtype="float32"):
    return mx.nd.array(values, dtype=dtype)


def pulled(store, key, like):
    out = mx.nd.zeros_like(like)
    store.pull(key, out=out)
    return out.asnumpy().tolist()


def raised(call):
    try:
        call()
    except (AutoByteError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@case(["[7.0, 7.0]"])
def first_values_are_those_of_rank_0(store):
    value = nd(7, 7) if store.rank == 0 else nd(-1, -1)
    keys = [f"first-{i}" for i in range(50)]
    store.init(keys, [value] * 50)
    return sorted({str(pulled(store, key, value)) for key in keys})


@case([2.0, 0.2])
def broadcast_comes_before_the_first_forward(store):
    net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.Constant(1 if store.rank == 0 else 5))
    ps.mxnet.broadcast_parameters(net.collect_params())
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_sync_autobyte", update_on_kvstore=False
    )
    with mx.autograd.record():
        y = net(nd([2]))
        loss = y * y / 2
    loss.backward()
    trainer.step(1)
    return [y.asscalar(), round(float(net.weight.data().asscalar()), 6)]


@case(by_rank=(0.4, 0.8))
def running_means_stay_each_ranks_own(store):
    net = mx.gluon.nn.BatchNorm(in_channels=1)
    net.initialize()
    ps.mxnet.broadcast_parameters(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_autobyte", update_on_kvstore=False)
    with mx.autograd.record():
        loss = net(nd([4.0 * (store.rank + 1)])).sum()
    loss.backward()
    trainer.step(1)
    return round(float(net.running_mean.data().asscalar()), 6)


@case([[3, 3, 3], [6, 6, 6]])
def value_of_a_key_is_the_last_rounds_sum(store):
    value = nd(1, 1, 1) * (store.rank + 1)
    store.init("rounds", mx.nd.zeros((3,)))
    seen = []
    for factor in (1, 2):
        store.push("rounds", value * factor)
        seen.append(pulled(store, "rounds", value))
    return seen


@case([[5, 5], [2.5, 2.5]])
def push_is_a_snapshot_and_pull_writes_only_its_output(store):
    g, a = nd(2.5, 2.5), nd(1, 1)
    store.init("snapshot", a)
    store.push("snapshot", g)
    store.pull("snapshot", out=a)
    return [a.asnumpy().tolist(), g.asnumpy().tolist()]


@case([[7, 7], [10, 10]])
def a_broadcast_is_not_overtaken_by_the_next_push(store):
    first, summed, value = nd(0, 0), nd(0, 0), nd(7, 7) if store.rank == 0 else nd(-1, -1)
    store.broadcast("broadcast", value, out=first, priority=-9)
    store.push("broadcast", nd(5, 5), priority=9)
    store.pull("broadcast", out=summed)
    return [first.asnumpy().tolist(), summed.asnumpy().tolist()]


@case([True, True, [1, 1], [2, 2]])
def a_call_with_one_wrong_array_changes_no_key(store):
    store.init(["right", "wrong"], [nd(1, 1), nd(1, 1)])
    errors = [
        raised(lambda: store.push(["right", "wrong"], [nd(5, 5), nd(5, 5, 5)])),
        raised(lambda: store.pushpull(["right", "wrong"], [nd(5, 5), nd(5, 5)], out=[nd(0, 0), nd(0)])),
    ]
    before = pulled(store, "right", nd(0, 0))
    store.push("right", nd(1, 1))
    named = ["'wrong'" in error and shape in error for error, shape in zip(errors, ("(3,)", "(1,)"))]
    return [*named, before, pulled(store, "right", nd(0, 0))]


@case([2])
def pushed_value_may_change_at_once(store):
    value = mx.nd.ones((1 << 20,))
    store.init("changed", value)
    out = mx.nd.zeros((1 << 20,))
    store.pushpull("changed", value, out=out)
    value[:] = 99
    return sorted(set(out.asnumpy().tolist()))


@case([[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]])
def transpose_is_pushed_as_what_it_shows(store):
    value = mx.nd.arange(12).reshape((3, 4)).T
    store.init("transpose", value)
    store.push("transpose", value / 2)
    return pulled(store, "transpose", value)


@case([3, 6])
def input_and_output_may_be_the_same(store):
    value = nd(1, 2) * (store.rank + 1)
    store.init("same", value)
    store.pushpull("same", value, out=value)
    return value.asnumpy().tolist()


@case([-1, True])
def rounds_never_mix(store):
    store.init("order", nd(-1))
    before, outs = mx.nd.zeros((1,)), [mx.nd.zeros((1,)) for _ in range(100)]
    store.pull("order", out=before)
    for i, out in enumerate(outs):
        store.push("order", nd(i * (store.rank + 1)), priority=i)
        store.pull("order", out=out, priority=-i)
    return [before.asscalar(), [out.asscalar() for out in outs] == [3 * i for i in range(100)]]


@case([[[1], [100]], [[2], [200]]])
def keys_are_told_apart_by_their_names_in_one_call(store):
    values = {"list-a": nd(1), "list-b": nd(100)}
    keys = sorted(values, reverse=store.rank == 1)
    store.init(keys, [values[key] for key in keys])
    first = [pulled(store, key, nd(0)) for key in sorted(values)]
    for key in keys:
        store.push(key, values[key])
    return [first, [pulled(store, key, nd(0)) for key in sorted(values)]]


@case(True)
def keys_in_another_order_are_an_error_on_both_ranks(store):
    keys = ["order-a", "order-b"] if store.rank == 0 else ["order-b", "order-a"]
    error = raised(lambda: [store.init(key, nd(1)) for key in keys])
    return "order-a" in error and "order-b" in error or error


@case([[1], [2]])
def int_and_str_are_two_keys(store):
    store.init(3, nd(1))
    store.init("3", nd(2))
    return [pulled(store, 3, nd(0)), pulled(store, "3", nd(0))]


@case(
    by_rank=(
        ["TensorError: init('second'): worker 0 has initialised this key before; its value is unchanged", [1]],
        ["TensorError: init('second'): worker 1 has initialised this key before; its value is unchanged", [1]],
    )
)
def second_init_changes_nothing(store):
    store.init("second", nd(1))
    error = raised(lambda: store.init("second", nd(5)))
    return [error, pulled(store, "second", nd(0))]


@case([True, [4]])
def unknown_key_harms_nobody(store):
    error = raised(lambda: store.pull("unknown", out=nd(0)))
    store.init("known", nd(4))
    return ["'unknown'" in error, pulled(store, "known", nd(0))]


@case(True)
def key_that_one_rank_lacks_is_an_error_on_both(store):
    error = raised(lambda: store.init("lacking", nd(1)) if store.rank == 0 else store.barrier())
    return "lacking" in error or error


@case([True, [1]])
def disagreement_about_a_shape_is_an_error_on_both_and_the_next_key_works(store):
    error = raised(lambda: store.init("shapes", mx.nd.zeros((4,) if store.rank == 0 else (2,))))
    store.init("agreed", nd(1))
    return ["shapes" in error and "(4,)" in error and "(2,)" in error or error, pulled(store, "agreed", nd(0))]


@case(True)
def disagreement_about_a_dtype_is_an_error_on_both(store):
    dtype = "float32" if store.rank == 0 else "float16"
    error = raised(lambda: store.init("dtypes", nd(1, dtype=dtype)))
    return "dtypes" in error and "float16" in error and "float32" in error or error


@case("[nan, 2.0]")
def not_a_number_stays_where_it_is(store):
    value = nd(np.nan if store.rank == 0 else 1, 1)
    store.init("nan", value)
    store.pushpull("nan", value)
    return str(value.asnumpy().tolist())


@case("[inf, 2.0]")
def half_precision_overflows_to_infinity(store):
    value = nd(40000, 1, dtype="float16")
    store.init("half", value)
    store.pushpull("half", value)
    return str(value.asnumpy().tolist())


@case([[0.2], [2**31 - 2], [2**41 + 2]])
def dtypes_are_summed_exactly(store):
    seen = []
    for dtype, number in (("float64", 0.1), ("int32", 2**30 - 1), ("int64", 2**40 + 1)):
        value = nd(number, dtype=dtype)
        store.init(dtype, value)
        store.pushpull(dtype, value)
        seen.append(value.asnumpy().tolist())
    return seen


@case([[33, 33], [33, 33]])
def devices_of_all_ranks_are_one_sum(store):
    values = [mx.nd.ones((2,), ctx=mx.cpu(i)) * 10**i * (store.rank + 1) for i in (0, 1)]
    store.broadcast("devices", mx.nd.zeros((2,)), [value.copy() for value in values])
    store.pushpull("devices", values)
    return [value.asnumpy().tolist() for value in values]


@case([0, 3])
def array_without_elements(store):
    with mx.util.np_shape(True):
        value = mx.nd.zeros((0, 3))
        store.broadcast("empty", value, value)
        store.push("empty", value)
        store.pull("empty", out=value)
        store.pushpull("empty", value)
        return list(value.asnumpy().shape)


@case(True)
def two_thousand_keys(store):
    keys = list(range(2000))
    values = [nd(i * (store.rank + 1)) for i in keys]
    other = mx.kv.create("dist_autobyte")
    other.init(keys, values)
    other.pushpull(keys, values)
    return [value.asscalar() for value in values] == [3 * i for i in keys]


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_case(results, name):
    assert results[__name__, name] == cases.expected[name]
