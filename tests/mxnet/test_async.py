"""``dist_async_autobyte`` in whole jobs: Gluon's Trainer converges, with and without a bound of the staleness."""

import pytest

from tests.cluster.harness import Cluster

TRAIN = """
import time
import ps.mxnet
import mxnet as mx, numpy as np
from mxnet import autograd, gluon

store = mx.kv.create("dist_async_autobyte")
mx.random.seed(store.rank)
truth = np.random.RandomState(99).randn(10).astype("float32")
random = np.random.RandomState(store.rank)
x = random.randn(256, 10).astype("float32")
y = (x @ truth).reshape(-1, 1)
net = gluon.nn.Dense(1, use_bias=False, in_units=10)
net.initialize(mx.init.Normal(1.0))
options = {"learning_rate": 0.05, "momentum": 0.5}
trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=store)
loss = gluon.loss.L2Loss()
for step in range(150):
    rows = random.randint(0, 256, 32)
    with autograd.record():
        error = loss(net(mx.nd.array(x[rows])), mx.nd.array(y[rows]))
    error.backward()
    trainer.step(32)
    if store.rank == 1:
        time.sleep(0.001)
mx.nd.waitall()
weight = net.weight.data().asnumpy().reshape(-1)
print(float(np.abs(weight - truth).max()))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("staleness", [pytest.param("", marks=pytest.mark.slow), "1"])
def test_gluon_converges_asynchronously(staleness):
    with Cluster(workers=2, servers=1, env={"AUTOBYTE_STALENESS": staleness}) as cluster:
        for worker in cluster.run(TRAIN, timeout=90):
            assert float(worker.stdout) < 1e-2
        assert cluster.finish() == [0, 0]
