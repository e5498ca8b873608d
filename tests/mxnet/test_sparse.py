"""Row-sparse arrays in the store and in Gluon, between two real workers and two servers."""

from __future__ import annotations

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
import pytest

from ps.errors import AutoByteError
from tests.mxnet.cases import Cases, rank

cases = Cases()
case = cases.case


def new_store():
    return mx.kv.create("dist_sync_autobyte")


def rsp(rows, shape=(4, 3), dtype="float32"):
    """A row-sparse array whose row ``id`` has the same number everywhere."""
    if not rows:
        return mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
    data = np.stack([np.full(shape[1:], number, dtype) for number in rows.values()])
    return mx.nd.sparse.row_sparse_array((data, np.array(list(rows), np.int64)), shape=shape, dtype=dtype)


def arange(shape=(4, 3), dtype="float32"):
    values = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    return mx.nd.sparse.row_sparse_array((values, np.arange(shape[0])), shape=shape, dtype=dtype)


def row_sparse_pull(store, key, ids, shape=(4, 3), dtype="float32"):
    """Return ids and rows of what a pull of ``ids`` writes."""
    out = rsp({0: 77, 2: 77}, shape, dtype)
    store.row_sparse_pull(key, out=out, row_ids=mx.nd.array(ids, dtype="int64"))
    return [out.indices.asnumpy().tolist(), out.data.asnumpy().tolist()]


def pull(store, key, shape=(4, 3)):
    out = mx.nd.full(shape, 77)
    store.pull(key, out=out)
    return out.asnumpy().tolist()


def rows(*numbers, width=3):
    return [[float(number)] * width for number in numbers]


def raised(call):
    try:
        call()
    except (AutoByteError, TypeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# ------------------------------------------------------------------------------------------- the store


@case([[1, 3], [[3, 4, 5], [9, 10, 11]]])
def ids_may_be_given_in_any_order_and_any_number_of_times():
    store = new_store()
    store.init("a", arange() if rank() == 0 else rsp({0: 5}))
    return row_sparse_pull(store, "a", [3, 1, 3])


@case([[0, 1, 2, 3], rows(0, 1, 7, 0)])
def a_push_is_summed_by_id_over_devices_and_workers_and_rows_of_zeros_are_pulled_too():
    store = new_store()
    store.init("a", arange())
    store.push("a", [rsp({2: 1, 1: 1}), rsp({2: 2})] if rank() == 0 else rsp({2: 4}))
    return row_sparse_pull(store, "a", [0, 1, 2, 3])


@case([[], [1], rows(2), rows(0, 2, 0, 0), rows(0, 0, 0, 0)])
def no_ids_give_no_rows_and_no_rows_take_part():
    store = new_store()
    store.init("a", arange())
    result = [row_sparse_pull(store, "a", [])[0]]
    store.push("a", rsp({1: 2} if rank() == 0 else {}))
    result += row_sparse_pull(store, "a", [1])
    result.append(pull(store, "a"))
    store.push("a", rsp({}))
    result.append(pull(store, "a"))
    return result


@case([[], [], [0, 3]])
def a_table_without_rows():
    with mx.util.np_shape(True):
        store, shape = new_store(), (0, 3)
        store.init("a", rsp({}, shape))
        out = rsp({}, shape)
        store.pushpull("a", rsp({}, shape), out=out)
        store.row_sparse_pull("a", out=out, row_ids=mx.nd.array([], dtype="int64"))
        ids = out.indices.asnumpy().tolist()
        store.pull("a", out=out, ignore_sparse=False)
        return [ids, out.indices.asnumpy().tolist(), list(out.shape)]


@case([[0, 1, 2, 3], rows(0, 6, 0, 0), rows(0, 0, 4, 0), rows(2, 2, 2, 2)])
def pushpull_brings_all_rows_of_the_sum_to_outputs_of_any_kind():
    store, out, gradient = new_store(), mx.nd.zeros((4, 3)), rsp({1: 3})
    store.init(["sparse", "dense"], [rsp({0: 9}), mx.nd.ones((4, 3))])
    store.pushpull("sparse", gradient)
    result = [gradient.indices.asnumpy().tolist(), gradient.data.asnumpy().tolist()]
    store.pushpull("dense", rsp({2: 2}), out=out)
    result.append(out.asnumpy().tolist())
    store.pushpull("sparse", mx.nd.ones((4, 3)), out=out)
    return [*result, out.asnumpy().tolist()]


@case([rows(2, 0), rows(2, 0), rows(0), rows(2)])
def several_outputs_with_the_same_ids_or_their_own():
    store = new_store()
    store.init("a", rsp({1: 2}))
    outs = [rsp({}), rsp({})]
    store.row_sparse_pull("a", out=outs, row_ids=mx.nd.array([3, 1]))
    result = [out.data.asnumpy().tolist() for out in outs]
    store.row_sparse_pull("a", out=outs, row_ids=[mx.nd.array([2]), mx.nd.array([1, 1])])
    return result + [out.data.asnumpy().tolist() for out in outs]


@case([[[1], rows(1)], [[2], rows(2)]])
def several_keys():
    store = new_store()
    store.init(["a", "b"], [rsp({1: 1}), rsp({2: 2})])
    outs = [rsp({}), rsp({})]
    store.row_sparse_pull(["a", "b"], out=outs, row_ids=[mx.nd.array([1]), mx.nd.array([2])])
    return [[out.indices.asnumpy().tolist(), out.data.asnumpy().tolist()] for out in outs]


@case(
    [
        "TensorError: row_sparse_pull('a'): row id 4 is not one of the tensor's 4 rows",
        "TensorError: row_sparse_pull('a'): row id 16777218.0 is given as float32, which is exact only below"
        " 2**24 = 16777216; give row ids as int64",
        "TensorError: row_sparse_pull('a'): an output is a row_sparse array, not default; use pull",
        "ValueError: row_sparse_pull('a'): 2 arrays of row ids for 1 outputs; give one for each",
        "TypeError: row_sparse_pull('a'): row_ids are an NDArray or a list of them, not NoneType",
        [[1], rows(1)],
    ]
)
def what_cannot_be_pulled_is_refused_and_the_store_stays_usable():
    store = new_store()
    store.init("a", rsp({1: 1}))
    ids, out = mx.nd.array([1]), rsp({})
    return [
        raised(lambda: store.row_sparse_pull("a", out=out, row_ids=mx.nd.array([4]))),
        raised(lambda: store.row_sparse_pull("a", out=out, row_ids=mx.nd.array([2**24 + 2]))),
        raised(lambda: store.row_sparse_pull("a", out=mx.nd.zeros((4, 3)), row_ids=ids)),
        raised(lambda: store.row_sparse_pull("a", out=out, row_ids=[ids, ids])),
        raised(lambda: store.row_sparse_pull("a", out=out)),
        row_sparse_pull(store, "a", [1]),
    ]


@case([[77], [0, 1, 2, 3], rows(0, 1, 0, 0)])
def pull_leaves_sparse_outputs_alone_unless_told_otherwise():
    store = new_store()
    store.init("a", rsp({1: 1}))
    out = rsp({2: 77})
    store.pull("a", out=out)
    result = [out.data.asnumpy()[:, 0].tolist()]
    store.pull("a", out=out, ignore_sparse=False)
    return [*result, out.indices.asnumpy().tolist(), out.data.asnumpy().tolist()]


@case([rows(2, 2), rows(0, 0, 4, 0), rows(2, 2, 2, 2)])
def a_dense_key_takes_row_sparse_pushes_and_a_sparse_key_dense_ones():
    store = new_store()
    store.init(["dense", "sparse"], [mx.nd.ones((4, 3)), rsp({})])
    store.push("dense", rsp({2: 2}))
    store.push("sparse", mx.nd.ones((4, 3)))
    return [row_sparse_pull(store, "sparse", [0, 3])[1], pull(store, "dense"), pull(store, "sparse")]


@case([True, rows(4, 4, 4, 4)])
def ranks_that_push_rows_and_all_elements_in_one_round_are_both_told_at_once():
    store = new_store()
    store.init(["a", "b"], [mx.nd.ones((4, 3)), mx.nd.ones((4, 3))])
    store.push("a", rsp({1: 1}) if rank() == 0 else mx.nd.ones((4, 3)))
    error = raised(lambda: pull(store, "a"))
    told = error.startswith("TensorError") and "worker" in error and "rows" in error and "all elements" in error
    store.push("b", mx.nd.ones((4, 3)) * 2)
    return [told or error, pull(store, "b")]


@case([[[1, 3], rows(2050, 2050)], [[1], rows("inf")], [[0], [[2**54 + 2] * 3]]])
def half_precision_and_whole_numbers():
    store = new_store()
    store.init(["half", "long"], [rsp({1: 1}, dtype="float16"), rsp({}, dtype="int64")])
    store.push("half", [rsp({3: 1, 1: 1}, dtype="float16")] * 2 + [rsp({1: 1023, 3: 1023}, dtype="float16")])
    result = [row_sparse_pull(store, "half", [1, 3], dtype="float16")]
    store.push("half", rsp({1: 40000}, dtype="float16"))
    result.append(row_sparse_pull(store, "half", [1], dtype="float16"))
    store.push("long", rsp({0: 2**53 + 1}, dtype="int64"))
    return [*result, row_sparse_pull(store, "long", [0], dtype="int64")]


@case([True] * 100)
def program_order_without_waiting():
    store = new_store()
    store.init("a", rsp({}, (500, 8)))
    outs = []
    for number in range(100):
        store.push("a", rsp({number: number, number + 1: 1}, (500, 8)))
        outs.append(rsp({}, (500, 8)))
        store.row_sparse_pull("a", out=outs[-1], row_ids=mx.nd.array([number + 1, number]))
    return [out.data.asnumpy()[:, 0].tolist() == [2 * n, 2] for n, out in enumerate(outs)]


@case([rows(1, 1), rows(2, 2)])
def a_push_is_a_snapshot():
    store = new_store()
    store.init("a", rsp({}))
    gradient = rsp({1: 0.5, 2: 0.5})
    store.push("a", gradient)
    rsp({1: 1, 2: 1}).copyto(gradient)
    first = row_sparse_pull(store, "a", [1, 2])[1]
    store.push("a", gradient)
    return [first, row_sparse_pull(store, "a", [1, 2])[1]]


@case([rows(1, 5, 5, 1), rows(1, 5, 13, 9)])
def rows_are_updated_on_the_servers():
    store = new_store()
    store.init("a", rsp({0: 1, 1: 1, 2: 1, 3: 1}))
    store.set_optimizer(mx.optimizer.create("test", rescale_grad=2))
    store.push("a", rsp({1: 1, 2: 1}))
    first = pull(store, "a")
    store.push("a", rsp({2: 4} if rank() == 0 else {3: 4}))
    return [first, pull(store, "a")]


@case([True, True, True])
def a_large_table_over_two_servers_moves_only_what_is_needed():
    store, shape = new_store(), (50_000, 32)
    store.init("table", rsp({7: 1}, shape))
    placed = len(store.worker.tensor(f"store{store._number}['table']").shards)
    mx.nd.waitall()
    store.barrier()
    before = store.worker.statistics()
    store.push("table", rsp({rank(): 1, 49_999: 2}, shape))
    result = row_sparse_pull(store, "table", [49_999, 0], shape)[1]
    store.barrier()
    after = store.worker.statistics()
    record = 8 + 4 * 32
    sent, received = 2 * record + 2 * 8, 2 * 4 * 32
    return [
        result == rows(1, 4, width=32) and placed == 2,
        after["bytes_sent"] - before["bytes_sent"] == sent,
        after["bytes_received"] - before["bytes_received"] == received,
    ]


# -------------------------------------------------------------------------------------------- Gluon

ROWS, WIDTH, STEPS = 600, 64, 6
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.01},
    "adagrad": {"learning_rate": 0.1},
    "ftrl": {"learning_rate": 0.1},
}


def batch(step, rank_, devices):
    return np.random.RandomState(97 * step + rank_).randint(0, ROWS, (devices, 5))


def summed(step, devices):
    """Return ids and rows of the sum of all gradients of a step: how often a row was looked up, times its number."""
    ids = np.concatenate([batch(step, other, devices).reshape(-1) for other in range(2)])
    present, counts = np.unique(ids, return_counts=True)
    return present, np.repeat(counts[:, None], WIDTH, 1).astype("float32") * (present[:, None] % 7).astype("float32")


def loss_of(looked_up, ids):
    return (looked_up * mx.nd.array(ids % 7, dtype="float32").expand_dims(1)).sum()


def alone(name, devices, stype, optimizer=None):
    """Return the weights of a single process's updater that is given the sums."""
    weight = mx.nd.ones((ROWS, WIDTH)).tostype(stype)
    optimizer = mx.optimizer.create(name, rescale_grad=1 / 4, **OPTIMIZERS[name])
    updater = mx.optimizer.get_updater(optimizer)
    for step in range(STEPS):
        if step == 3:
            optimizer.set_learning_rate(0.05)
        ids, gradient = summed(step, devices)
        updater(0, mx.nd.sparse.row_sparse_array((gradient, ids), shape=weight.shape), weight)
    return weight.asnumpy()


def embedding(name, devices):
    """Train an Embedding with sparse gradients; return whether the weights have the bits of one process's."""
    contexts = [mx.cpu(device) for device in range(devices)]
    net = mx.gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=True)
    net.initialize(mx.init.One(), ctx=contexts)
    trainer = mx.gluon.Trainer(net.collect_params(), name, OPTIMIZERS[name], kvstore="dist_sync_autobyte")
    for step in range(STEPS):
        if step == 3:
            trainer.set_learning_rate(0.05)
        ids = batch(step, rank(), devices)
        with mx.autograd.record():
            losses = [loss_of(net(mx.nd.array(part, ctx=context)), part) for part, context in zip(ids, contexts)]
        mx.autograd.backward(losses)
        trainer.step(4)
    expected = alone(name, devices, "default").tobytes()
    return [copy.asnumpy().tobytes() == expected for copy in net.weight.list_data()]


def sparse_weight(name, devices):
    """Train a row-sparse weight; return whether all of its rows have the bits of one process's."""
    contexts = [mx.cpu(device) for device in range(devices)]
    params = mx.gluon.ParameterDict()
    weight = params.get("w", shape=(ROWS, WIDTH), stype="row_sparse", grad_stype="row_sparse", init="ones")
    params.initialize(ctx=contexts)
    trainer = mx.gluon.Trainer(params, name, OPTIMIZERS[name], kvstore="dist_sync_autobyte")
    for step in range(STEPS):
        if step == 3:
            trainer.set_learning_rate(0.05)
        ids = batch(step, rank(), devices)
        parts = [mx.nd.array(part, ctx=context) for part, context in zip(ids, contexts)]
        with mx.autograd.record():
            losses = []
            for part, own in zip(parts, ids):
                table = weight.row_sparse_data(part)
                looked_up = mx.nd.Embedding(part, table, input_dim=ROWS, output_dim=WIDTH, sparse_grad=True)
                losses.append(loss_of(looked_up, own))
        mx.autograd.backward(losses)
        trainer.step(4)
    rows_ = weight.row_sparse_data(mx.nd.arange(ROWS, dtype="int64"))
    return rows_.asnumpy().tobytes() == alone(name, devices, "row_sparse").tobytes()


for _name in OPTIMIZERS:
    for _devices in (1, 2):

        def _embedding(name=_name, devices=_devices):
            return embedding(name, devices)

        _embedding.__name__ = f"embedding_{_name}_{_devices}"
        case([True] * _devices)(_embedding)

        def _sparse_weight(name=_name, devices=_devices):
            return sparse_weight(name, devices)

        _sparse_weight.__name__ = f"sparse_weight_{_name}_{_devices}"
        case(True)(_sparse_weight)


@case([True, True])
def an_embedding_moves_only_rows_after_the_first_pull():
    net = mx.gluon.nn.Embedding(20_000, 64, sparse_grad=True)
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, kvstore="dist_sync_autobyte")
    trainer._init_kvstore()
    store = trainer._kvstore
    for _ in range(3):
        mx.nd.waitall()
        store.barrier()
        before = store.worker.statistics()
        with mx.autograd.record():
            loss = net(mx.nd.array([rank(), 19_999])).sum()
        loss.backward()
        trainer.step(1)
        mx.nd.waitall()
        store.barrier()
        after = store.worker.statistics()
    record = 8 + 64 * 4
    return [
        after["bytes_sent"] - before["bytes_sent"] == 2 * record,
        after["bytes_received"] - before["bytes_received"] == 3 * record,  # of both ranks
    ]


@case([[1, 1, 1], [0.5, 0.5, 0, 1], "row_sparse"])
def module_updates_a_sparse_weight():
    """One row of each rank's own, one of both; the gradient of a row is the row itself."""
    x, label = mx.sym.var("data", stype="csr"), mx.sym.var("label")
    weight = mx.sym.var("w", stype="row_sparse", shape=(50, 2), init=mx.init.One())
    net = mx.sym.LinearRegressionOutput(mx.sym.sparse.dot(x, weight), label)
    data = mx.nd.array(np.eye(50, dtype="float32")[[rank(), 49]]).tostype("csr")
    module = mx.mod.Module(net, label_names=["label"])
    module.bind([mx.io.DataDesc("data", (2, 50))], [mx.io.DataDesc("label", (2, 2))])
    module.init_params()
    store = new_store()
    options = {"learning_rate": 1, "rescale_grad": 1}
    module.init_optimizer(store, "sgd", options)
    batch_ = mx.io.DataBatch([data], [mx.nd.zeros((2, 2))])
    before = row_sparse_pull(store, "w", [0, 1, 49], (50, 2))[1]
    module.prepare(batch_, sparse_row_id_fn=lambda _: {"w": mx.nd.array([rank(), 49])})
    module.forward_backward(batch_)
    module.update()
    out = rsp({}, (50, 2))
    store.row_sparse_pull("w", out=out, row_ids=mx.nd.array([0, 1, 49, 25]))
    rows_ = out.asnumpy()
    module.prepare(batch_, sparse_row_id_fn=lambda _: {"w": mx.nd.arange(50)})
    stype = module._exec_group.param_arrays[0][0].stype
    return [[row[0] for row in before], [float(rows_[i][0]) for i in (0, 1, 49, 25)], stype]


@case([[5, 5, 5, 0], 4])
def a_row_sparse_parameter_is_broadcast_with_all_of_its_rows():
    params = mx.gluon.ParameterDict()
    weight = params.get("b", shape=(4, 2), stype="row_sparse", init="zeros")
    params.initialize()
    rsp({0: 5, 1: 5, 2: 5} if rank() == 0 else {3: 9}, (4, 2)).copyto(weight._data[0])
    ps.mxnet.broadcast_parameters(params)
    return [weight._data[0].asnumpy()[:, 0].tolist(), len(weight._data[0].indices)]


@case(
    [
        "ValueError: Cannot set update_on_kvstore=False when sparse weights are present.",
        "ValueError: Cannot set update_on_kvstore=False on dist kvstore when sparse gradients are present.",
    ]
)
def mxnet_wants_the_servers_to_update_what_is_sparse():
    params = mx.gluon.ParameterDict()
    params.get("w", shape=(4, 2), stype="row_sparse", init="ones")
    params.initialize()
    net = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    net.initialize()
    return [
        raised(mx.gluon.Trainer(of, "sgd", kvstore="dist_sync_autobyte", update_on_kvstore=False)._init_kvstore)
        for of in (params, net.collect_params())
    ]


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_case(results, name):
    assert results[__name__, name] == cases.expected[name]
