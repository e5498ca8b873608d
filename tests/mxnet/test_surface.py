"""What users of MXNet's stores do with keys, lists, several arrays, updaters and errors, between two real workers."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import pytest

from tests.mxnet.cases import Cases, rank

cases = Cases()
case = cases.case


def store(name="dist_sync_autobyte"):
    return mx.kv.create(name)


def ones(*shape, times=1, **options):
    return mx.nd.ones(shape or (2,), **options) * times


def pulled(kv, key):
    out = mx.nd.zeros((2,))
    kv.pull(key, out=out)
    return out.asnumpy().tolist()


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    return None


@case([[20, 20], [20, 20], [0, 0]])
def a_key_that_is_given_twice_has_the_arrays_of_both():
    kv, outs = store(), [ones(), ones()]
    kv.init(["a", "b"], [ones(times=0), ones(times=0)])
    kv.push(["a", "a"], [ones(times=4), ones(times=6)])
    kv.pull(["a", "a"], out=outs)
    return [*(out.asnumpy().tolist() for out in outs), pulled(kv, "b")]


@case("TensorError: init: a key is given twice in ['a', 'a']")
def a_key_is_initialised_once():
    error = error_of(lambda: store().init(["a", "a"], [ones(), ones()]))
    return f"{type(error).__name__}: {error}"


@case([[8, 8], [8, 8]])
def arrays_that_several_keys_share_are_read_before_they_are_written():
    kv, shared = store(), ones(times=4)
    kv.init([1, 2], [ones(), ones()])
    outs = [ones(), ones()]
    kv.pushpull([1, 2], [shared, shared], out=[[shared, outs[0]], [shared, outs[1]]])
    return [out.asnumpy().tolist() for out in outs]


@case([True, True, True, True])
def errors_are_those_that_users_of_mxnet_catch():
    kv = store()
    kv.init("a", ones())
    calls = [
        lambda: kv.pull("no such key", out=ones()),
        lambda: kv.push("a", ones(3)),
        lambda: kv.init("a", ones()),
        lambda: kv.row_sparse_pull("a", out=ones(), row_ids=mx.nd.array([0])),
    ]
    return [isinstance(error_of(call), mx.MXNetError) for call in calls]


@case([[3, 3], [6, 6], [30, 30]])
def an_updater_runs_on_every_worker():
    kv = store()
    kv.broadcast("a", ones(times=3), ones())

    def add(key, total, value):
        assert key == "a"
        value += total

    kv._set_updater(add)
    seen = [pulled(kv, "a")]
    kv.push("a", ones(times=rank() + 1))
    seen.append(pulled(kv, "a"))
    out = ones()
    kv.pushpull("a", [ones(times=4), ones(times=8)], out=out)
    return [*seen, out.asnumpy().tolist()]


@case([[0.8, 0.8], True])
def an_updater_may_be_an_optimizer():
    kv = store()
    kv.init(0, ones())
    kv.set_updater(mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)))
    kv.push(0, ones())
    value = [round(number, 6) for number in pulled(kv, 0)]
    return [value, 0 in kv._updater.states]


def add(key, total, value):
    value += total


@case([[0.8, 0.8], [2.8, 2.8], [4.8, 4.8], [4.6, 4.6]])
def an_updater_and_an_optimizer_may_replace_each_other():
    kv, seen = store(), []
    kv.init("a", ones())
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    kv.push("a", ones())
    seen.append(pulled(kv, "a"))
    kv.set_updater(add)
    for _ in range(2):
        kv.push("a", ones())
        seen.append(pulled(kv, "a"))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    kv.push("a", ones())
    seen.append(pulled(kv, "a"))
    return [[round(number, 6) for number in numbers] for numbers in seen]


@case([[5, 5], [4.8, 4.8], [3, 3], [2.8, 2.8]])
def an_optimizer_takes_over_the_values_of_keys_that_only_one_rank_has_looked_at():
    kv = store()
    kv.init(["a", "b"], [ones(times=3), ones(times=3)])
    kv.set_updater(add)
    kv.push("a", ones())
    seen = [pulled(kv, "a")] if rank() == 0 else [[5, 5]]
    before = pulled(kv, "b") if rank() == 1 else [3, 3]
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    for key in "ab":
        kv.push(key, ones())
        seen += [[round(number, 6) for number in pulled(kv, key)]]
    return [*seen[:2], before, seen[2]]


@case("NotImplementedError: set_updater: asynchronous workers get no common sums; use set_optimizer")
def an_asynchronous_store_takes_no_updater():
    error = error_of(lambda: store("dist_async_autobyte").set_updater(add))
    return f"{type(error).__name__}: {error}"


@case([[0.8, 0.8], [0.6, 0.6], [0.4, 0.4]])
def optimizers_of_other_classes_start_anew_even_the_first_again():
    kv, seen = store(), []
    kv.init("a", ones())
    sgd = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)
    for optimizer in sgd, mx.optimizer.NAG(learning_rate=0.1), sgd:
        kv.set_optimizer(optimizer)
        kv.push("a", ones())
        seen.append([round(number, 6) for number in pulled(kv, "a")])
    return seen


@case(by_rank=[[1, 2], [1, 2]])
def broadcasts_may_come_in_another_order_on_each_rank():
    kv = store()
    outs = {"a": ones(times=7), "b": ones(times=7)}
    for key in ("a", "b") if rank() == 0 else ("b", "a"):
        value = {"a": 1, "b": 2}[key] if rank() == 0 else 5
        kv.broadcast(key, ones(times=value), outs[key])
    return [outs[key].asnumpy().tolist()[0] for key in "ab"]


@case([True, True, True, [4, 4], [3, 3]])
def a_broadcast_that_the_ranks_disagree_about_fails_alone():
    kv = store()
    size = 2 if rank() == 0 else 3
    out, other = ones(size), ones()
    kv.broadcast("x", ones(size), out)
    kv.broadcast("y", ones(times=4), other)
    waited = error_of(out.asnumpy)
    called = error_of(lambda: kv.push("x", ones(size)))
    named = all(word in str(waited) and word in str(called) for word in ("x", "(2,)", "(3,)"))
    kv.init("x", ones(times=3))
    return [isinstance(waited, mx.MXNetError), isinstance(called, mx.MXNetError), named, other.asnumpy().tolist()] + [
        pulled(kv, "x")
    ]


@case(["push: priority must be an integer, not 1.5", "pull: priority must be an integer, not None", [2, 2]])
def a_priority_that_is_no_integer_is_refused_at_the_call():
    kv = store()
    kv.init("a", ones())
    errors = [
        error_of(lambda: kv.push("a", ones(), priority=1.5)),
        error_of(lambda: kv.pull("a", out=ones(), priority=None)),
    ]
    kv.push("a", ones(), priority=10**9)
    return [*map(str, errors), pulled(kv, "a")]


@case([2, 2])
def values_are_converted_to_the_dtype_of_the_output():
    kv, out = store(), ones(dtype="float16")
    kv.init("a", ones())
    kv.push("a", ones())
    kv.pull("a", out=out)
    return out.asnumpy().tolist()


@case(["dist_sync_autobyte", "dist_sync_autobyte", "dist_async_autobyte", True, 2])
def stores_say_what_they_are():
    stores = [store(name) for name in ("dist_sync_autobyte", "dist_autobyte", "dist_async_autobyte")]
    return [kv.type for kv in stores] + [stores[0].is_capable("optimizer"), stores[0].num_workers]


@case([True, True])
def mxnets_profiler_sees_the_updates_of_the_servers():
    kv = store()
    kv.init("a", ones(5))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    mx.profiler.set_config(filename="somewhere/servers.json", profile_all=True, profile_process="server")
    mx.profiler.set_state("run", profile_process="server")
    kv.barrier()
    kv.push("a", ones(5))
    kv.pull("a", out=ones(5))
    kv.barrier()
    mx.profiler.set_state("stop", profile_process="server")
    mx.profiler.dump(profile_process="server")
    kv.barrier()
    events = [json.loads(Path(f"rank{server}_servers.json").read_text())["traceEvents"] for server in (0, 1)]
    return [any("sgd_update" in event["name"] for event in events[0] + events[1]), Path("somewhere").exists() is False]


@case([[2, 2]] * 3)
def keys_are_served_whatever_they_are_called():
    kv, seen = store(), []
    for key in "", "ключ", -(2**40):
        kv.init(key, ones())
        kv.push(key, ones())
        seen.append(pulled(kv, key))
    return seen


@case([[[4, 6], [8, 10], [4, 5], [6, 7]], [[0, 0], [8, 10], [0, 0]]])
def slices_and_rows_of_arrays_are_values_and_outputs():
    kv, numbers, rows = store(), mx.nd.arange(8).reshape((4, 2)), mx.nd.zeros((3, 2))
    kv.init(["a", "b"], [mx.nd.zeros((2, 2)), ones()])
    kv.push("a", numbers[1:3])
    kv.pull("a", out=numbers[0:2])
    kv.push("b", numbers[1] / 2)
    kv.pull("b", out=rows[1])
    return [numbers.asnumpy().tolist(), rows.asnumpy().tolist()]


@case([[10, 10], [7, 7]])
def operations_that_the_engine_bundles_keep_their_order():
    kv, gradient, out = store(), ones(), ones()
    kv.init("a", ones())
    with mx.engine.bulk(30):
        gradient += 1
        kv.push("a", gradient)
        gradient += 5
        kv.pull("a", out=out)
        out += 1
        out *= 2
    return [out.asnumpy().tolist(), gradient.asnumpy().tolist()]


@case(True)
def threads_may_call_the_store_at_the_same_time():
    kv, sums = store(), {}
    kv.init(list(range(4)), [mx.nd.zeros(100)] * 4)

    def rounds(key):
        for number in range(10):
            out = mx.nd.zeros(100)
            kv.pushpull(key, mx.nd.ones(100) * (number + key), out=out)
            sums[key, number] = out.asnumpy()[0]

    threads = [threading.Thread(target=rounds, args=(key,)) for key in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums == {(key, number): 2 * (number + key) for key in range(4) for number in range(10)}


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_surface(results, name):
    assert results[__name__, name] == cases.expected[name]
