"""The next step's first layer begins while later layers are on the wire."""

import json
import threading
import time

import mxnet as mx
from mxnet.gluon import nn

from ps.mxnet import engine
from tests.cluster.harness import Cluster


def becomes_ready(array):
    """Wait for ``array`` with a limit, which MXNet itself has not."""
    ready = threading.Event()

    def start(completion):
        ready.set()
        completion()

    engine.push(start, const=[array])
    return ready.wait(5)


def test_first_layer_computes_while_the_others_wait_for_their_sums(worker):
    net = nn.Sequential()
    net.add(nn.Dense(8, in_units=4), nn.Dense(8, in_units=8), nn.Dense(8, in_units=8), nn.Dense(1, in_units=8))
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_autobyte", update_on_kvstore=False)
    first_outputs = []
    net[0].register_forward_hook(lambda block, inputs, output: first_outputs.append(output))

    def step():
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 4))).sum()
        loss.backward()
        trainer.step(1)
        return loss

    step().wait_to_read()
    mx.nd.waitall()
    worker.hold(lambda operation: operation.priority < -3)  # two layers: MXNet's SGD updates four tensors at once
    step()
    last = step()
    assert becomes_ready(first_outputs[2])
    give_up_at = time.monotonic() + 5
    while len(worker.held) < 4:
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    worker.release()
    last.wait_to_read()


OVERLAP = """
import json
import ps.mxnet
import mxnet as mx
from mxnet.gluon import nn
from ps.mxnet import engine

net = nn.Sequential()
net.add(nn.Dense(1024, in_units=16), *[nn.Dense(1024, in_units=1024) for _ in range(8)])
net.initialize()
ps.mxnet.broadcast_parameters(net)
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_autobyte", update_on_kvstore=False)
first_outputs = []
net[0].register_forward_hook(lambda block, inputs, output: first_outputs.append(output))
in_flight = []
for _ in range(4):
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 16))).sum()
    first_outputs[-1].wait_to_read()
    in_flight.append(len(engine._operations))
    loss.backward()
    trainer.step(1)
print(json.dumps(in_flight))
"""


def test_first_layer_overtakes_between_real_processes():
    env = {"AUTOBYTE_PARTITION_BYTES": "65536", "AUTOBYTE_CREDIT_BYTES": "131072"}
    with Cluster(workers=2, servers=1, env=env) as cluster:
        for worker in cluster.run(OVERLAP, timeout=50):
            in_flight = json.loads(worker.stdout)
            assert in_flight[0] == 0
            assert min(in_flight[1:]) >= 4, (
                in_flight
            )  # of 18 tensors, when the first layer of the next step had computed
