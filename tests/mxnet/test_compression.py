"""``set_gradient_compression``: the numbers of MXNet's own store, to the bit, and what else a user meets."""

import contextlib
import io
import logging.handlers
import os
import queue
import subprocess
import sys

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import pytest
from sklearn.datasets import load_digits

from ps.network import free_port
from tests.cluster.harness import Cluster
from tests.mxnet.cases import Cases

#: Pushes and pulls four times and prints what comes, for any store: sums, then weights that the servers update.
ROUNDS = """
import mxnet as mx
import numpy as np
store = mx.kv.create(NAME)
store.set_gradient_compression({"type": "2bit", "threshold": 0.3})
generator = np.random.default_rng(7 + store.rank)
shapes = {"small": (37,), "big": (1201, 33)}
for key, shape in shapes.items():
    store.init(key, mx.nd.ones(shape))
    out = mx.nd.zeros(shape)
    store.pull(key, out=out)
    assert (out.asnumpy() == 1).all()
import hashlib
for updated in False, True:
    if updated:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01, rescale_grad=0.5))
    digest = hashlib.sha256()
    for step in range(4):
        for key, shape in shapes.items():
            gradients = [mx.nd.array(generator.normal(scale=0.2, size=shape)) for _ in range(2)]
            out = mx.nd.zeros(shape)
            store.push(key, gradients)
            store.pull(key, out=out)
            digest.update(out.asnumpy().tobytes())
            assert updated or set(np.unique(np.abs(out.asnumpy()))) <= {0, np.float32(0.3), np.float32(0.6)}
    print(digest.hexdigest())
"""
#: What it prints with MXNet 1.9.1 and ``dist_sync`` on two workers.
BITS = """\
13767cc9c83d431aa26fd7405fd8c74132135c6a7e4bc4b399887facdd0c1080
ff7e51851e735e1bf18d52b521fced6a724586f61341d1f76c4404875d0d0503
"""


def native(source: str, timeout: float = 60) -> list[str]:
    """Run ``source`` on two workers of MXNet's own servers; return what each printed."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DMLC_")},
        "OMP_NUM_THREADS": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
    }
    roles = ["scheduler", "server", "server", "worker", "worker"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", source if role == "worker" else "import mxnet"],
            env={**env, "DMLC_ROLE": role},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in roles
    ]
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes[3:]]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="MXNet imports only after ps.mxnet, which its servers have not")
@pytest.mark.timeout(150)
def test_the_bits_are_those_of_mxnets_own_store():
    assert native(ROUNDS.replace("NAME", "'dist_sync'"), timeout=120) == [BITS] * 2


#: Trains a parameter on two contexts, and in this process alone with what MXNet's 2bit lets through of all ranks.
TRAIN_WITH_2BIT = """
import ps.mxnet
import mxnet as mx
import numpy as np

SHAPE, STEPS, CONTEXTS, WORKERS, THRESHOLD = (123, 45), 6, [mx.cpu(0), mx.cpu(1)], 3, np.float32(0.3)
OPTIONS = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}


def gradient(rank, step, context):
    random = np.random.RandomState(100 * rank + 10 * step + context)
    return (random.randn(*SHAPE) * 0.3).astype("float32")


def alone():
    weight, residuals = mx.nd.ones(SHAPE), np.zeros((WORKERS, *SHAPE), "float32")
    optimizer = mx.optimizer.SGD(rescale_grad=0.5, **OPTIONS)
    updater = mx.optimizer.get_updater(optimizer)
    for step in range(STEPS):
        total = np.zeros(SHAPE, "float32")
        for rank, residual in enumerate(residuals):
            residual += gradient(rank, step, 0) + gradient(rank, step, 1)
            level = THRESHOLD * ((residual >= THRESHOLD).astype("float32") - (residual <= -THRESHOLD))
            residual -= level
            total += level
        updater(0, mx.nd.array(total), weight)
    return weight.asnumpy().tobytes()


def trained(update_on_kvstore):
    param = mx.gluon.Parameter("p", shape=SHAPE)
    param.initialize("ones", ctx=CONTEXTS)
    store = mx.kv.create("dist_sync_autobyte")
    trainer = mx.gluon.Trainer(
        [param], "sgd", OPTIONS, kvstore=store, update_on_kvstore=update_on_kvstore,
        compression_params={"type": "2bit", "threshold": 0.3},
    )
    for step in range(STEPS):
        for number, context in enumerate(CONTEXTS):
            with mx.autograd.record():
                loss = param.data(context) * mx.nd.array(gradient(store.rank, step, number), ctx=context)
            loss.backward()
        trainer.step(2)
    return [data.asnumpy().tobytes() for data in param.list_data()]


expected = alone()
for update_on_kvstore in False, True:
    print([data == expected for data in trained(update_on_kvstore)])
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_2bit_with_several_contexts_trains_with_mxnets_bits_wherever_the_update_is_and_in_the_order_of_the_ranks():
    env = {"AUTOBYTE_DETERMINISTIC": "1", "AUTOBYTE_PARTITION_BYTES": "4097", "AUTOBYTE_START_SECONDS": "60"}
    with Cluster(workers=3, servers=2, env=env) as cluster:
        for worker in cluster.run(TRAIN_WITH_2BIT, timeout=80):
            assert worker.stdout == "[True, True]\n[True, True]\n"
        assert cluster.finish() == [0, 0, 0]


cases = Cases()


@cases.case(BITS)
def the_bits_of_2bit():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(ROUNDS.replace("NAME", "'dist_sync_autobyte'"), {})
    return printed.getvalue()


@cases.case([True, True, True])
def gluon_trains_with_topk_and_sends_less():
    return trains_and_sends_less({"type": "topk", "ratio": 0.05}, bytes_per_value=0.4)


@cases.case([True, True, True])
def gluon_trains_with_2bit_and_sends_less():
    return trains_and_sends_less({"type": "2bit", "threshold": 0.5}, bytes_per_value=0.25)


def trains_and_sends_less(compression, bytes_per_value):
    """Return whether a classifier of digits becomes good, equals the other rank's, and sent as little as it should."""
    digits = load_digits()
    images, labels = mx.nd.array(digits.images[:1600].reshape(1600, 64) / 16), mx.nd.array(digits.target[:1600])
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, activation="relu", in_units=64), mx.gluon.nn.Dense(10, in_units=64))
    mx.random.seed(1)
    net.initialize(mx.init.Xavier())
    store = mx.kv.create("dist_sync_autobyte")
    options = {"kvstore": store, "update_on_kvstore": False, "compression_params": compression}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2}, **options)
    criterion, batch, epochs = mx.gluon.loss.SoftmaxCrossEntropyLoss(), 50, 12
    before = store.worker.statistics()["bytes_sent"]
    for _ in range(epochs):
        for start in range(0, 1600, 2 * batch):
            mine = slice(start + batch * store.rank, start + batch * (store.rank + 1))
            with mx.autograd.record():
                loss = criterion(net(images[mine]), labels[mine])
            loss.backward()
            trainer.step(2 * batch)
    accuracy = (net(images).argmax(axis=1) == labels).mean().asscalar()
    sent = store.worker.statistics()["bytes_sent"] - before
    weights = [parameter.data() for parameter in net.collect_params().values()]
    values = sum(weight.size for weight in weights)
    pushed = epochs * 16 * values * bytes_per_value
    first_values = 4 * values  # of worker 0, which sends them as they are
    other = mx.kv.create("dist_sync_autobyte")
    sums = [weight.copy() for weight in weights]
    other.broadcast(list(range(len(sums))), weights, out=[weight.copy() for weight in weights])
    other.pushpull(list(range(len(sums))), sums)
    alike = all((total == 2 * weight).asnumpy().all() for total, weight in zip(sums, weights))
    return [bool(accuracy > 0.93), alike, pushed <= sent <= 1.02 * pushed + first_values or [pushed, sent]]


@cases.case([True, True])
def ranks_with_other_thresholds_are_told_so():
    store = mx.kv.create("dist_sync_autobyte")
    store.set_gradient_compression({"type": "2bit", "threshold": [0.5, 0.25][store.rank]})
    try:
        store.init("a", mx.nd.zeros(3))
    except mx.base.MXNetError as error:
        return [
            f"{{'type': '2bit', 'threshold': {at}}} on worker {rank}" in str(error)
            for rank, at in ((0, 0.5), (1, 0.25))
        ]


@cases.case(
    [[6, 0, -6], [6, 0, -6], [1, 0, -1], "1 keys initialised before set_gradient_compression stay uncompressed"]
)
def integers_and_keys_from_before_the_call_stay_as_they_are():
    store, warnings = mx.kv.create("dist_sync_autobyte"), logging.handlers.QueueHandler(queue.Queue())
    store.init("before", mx.nd.zeros(3))
    logging.getLogger("autobyte.mxnet").addHandler(warnings)
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    logging.getLogger("autobyte.mxnet").removeHandler(warnings)
    store.init("integers", mx.nd.zeros(3, dtype="int32"))
    store.init("half", mx.nd.zeros(3, dtype="float16"))
    seen = []
    for key, dtype in ("before", "float32"), ("integers", "int32"), ("half", "float16"):
        value = mx.nd.array([3, 0, -3], dtype=dtype)
        store.pushpull(key, value)
        seen.append(value.asnumpy().tolist())
    return [*seen, warnings.queue.get_nowait().getMessage()]


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_case(results, name):
    assert results[__name__, name] == cases.expected[name]


@pytest.mark.parametrize("parameters", [{"type": "2bits"}, {"type": "2bit", "threshold": -1}, {"threshold": 0.5}, {}])
def test_parameters_that_mxnet_refuses_are_refused(store, parameters):
    with pytest.raises(mx.base.MXNetError, match="gradient compression"):
        store.set_gradient_compression(parameters)
