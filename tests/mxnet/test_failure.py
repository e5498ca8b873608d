"""A lost peer ends a Gluon job with an error that names it, and with no process left."""

import re
import signal

from tests.cluster.harness import Cluster

TRAIN = """
import os, signal
import ps.mxnet
import mxnet as mx

net = mx.gluon.nn.Dense(100, in_units=100)
net.initialize()
ps.mxnet.broadcast_parameters(net)
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_autobyte", update_on_kvstore=False)
for step in range(100):
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 100))).sum()
    loss.backward()
    trainer.step(1)
    loss.wait_to_read()
    if step == 3 and trainer._kvstore.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_worker_is_named_to_the_other_which_ends_soon():
    with Cluster(workers=2, servers=1, env={"AUTOBYTE_DEADLINE_SECONDS": "5"}) as cluster:
        survivor, killed = cluster.run(TRAIN, timeout=30, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert survivor.returncode == 1
        last_line = survivor.stderr.strip().splitlines()[-1]
        assert re.fullmatch(r"ps.errors.PeerLost: .*store0\[[01]\].* worker 1 was lost: .*", last_line), survivor.stderr
        assert cluster.finish(timeout=10) == [1, 1]
