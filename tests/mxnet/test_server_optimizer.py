"""Acceptance: servers that update weights give, to the bit, those of one process fed with the sums of the gradients.

Where Trainer updates several keys at a time MXNet has other bits for LARS, whose momentum follows the learning rate,
and it lets LBSGD add up gradients that are overwritten meanwhile: servers are compared with an updater that is called
key by key.

20 steps of each optimizer with a change of learning rate and weight decay on the way, multipliers, partitions that cut
tensors at odd elements; on the servers and, with the same sums, on the workers.
"""

import pytest

from tests.cluster.harness import Cluster
from tests.mxnet.optimizing import OPTIMIZERS, train, update

TOGETHER = """
import ps.mxnet
import mxnet as mx
from tests.mxnet.optimizing import OPTIMIZERS, train

for case in OPTIMIZERS:
    for on_kvstore in True, False:
        store = mx.kv.create("dist_sync_autobyte")
        print(case, on_kvstore, train(case, [store.rank], store, on_kvstore))
"""


@pytest.fixture(scope="module")
def alone():
    on_kvstore = {(case, "True"): update(case) for case in OPTIMIZERS}
    return {**on_kvstore, **{(case, "False"): train(case, [0, 1]) for case in OPTIMIZERS}}


@pytest.mark.timeout(150)
def test_two_workers_and_two_servers_have_the_weights_of_one_process(alone):
    with Cluster(workers=2, servers=2, env={"AUTOBYTE_PARTITION_BYTES": "1021", "OMP_NUM_THREADS": "1"}) as cluster:
        for worker in cluster.run(TOGETHER, timeout=140):
            found = [line.split() for line in worker.stdout.splitlines()]
            wrong = [(case, on_kvstore) for case, on_kvstore, digest in found if digest != alone[case, on_kvstore]]
            assert wrong == []
            assert len(found) == 2 * len(OPTIMIZERS)
        assert cluster.finish() == [0, 0, 0]
