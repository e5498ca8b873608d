"""Acceptance: servers that update weights give, to the bit, those of one process fed with the sums of the gradients.

Where Trainer updates several keys at a time MXNet has other bits for LARS, whose momentum follows the learning rate,
and it lets LBSGD add up gradients that are overwritten meanwhile: servers are compared with an updater that is called
key by key.

20 steps of each optimizer with a change of learning rate and weight decay on the way, multipliers, partitions that cut
tensors at odd elements; on the servers and, with the same sums, on the workers.
"""

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import pytest

from ps.config import CommConfig
from tests.cluster.harness import Cluster
from tests.mxnet.cases import Cases, rank
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


BEGIN = """
import ps.mxnet
import mxnet as mx
from tests.mxnet.optimizing import Training

for case in {cases}:
    store = mx.kv.create("dist_sync_autobyte")
    training = Training(case, store, True)
    for step in range(10):
        training.step(step, [store.rank])
    if store.rank == 1:
        training.trainer.save_states("{directory}/" + case)
        training.save_weights("{directory}/" + case)
    mx.kv.create("dist_sync_autobyte").barrier()
"""

GO_ON = """
import ps.mxnet
import mxnet as mx
from tests.mxnet.optimizing import Training

for case in {cases}:
    store = mx.kv.create("dist_sync_autobyte")
    training = Training(case, store, True)
    training.load_weights("{directory}/" + case)
    training.trainer.load_states("{directory}/" + case)
    for step in range(10, 20):
        training.step(step, [store.rank])
    print(case, "True", training.digest())
other = mx.gluon.Parameter("p0", shape=(17, 60))
other.initialize()
trainer = mx.gluon.Trainer([other], "adam", {{}}, mx.kv.create("dist_sync_autobyte"), update_on_kvstore=True)
adam = "{directory}/{cases[0]}"
for trainer, wrong in (training.trainer, adam), (training.trainer, adam + ".weights.npz"), (trainer, adam):
    try:
        trainer.load_states(wrong)
    except Exception as error:
        print("#", error)
"""


cases = Cases()


@cases.case([["adam", True, True], ["half", True, True], ["lars", True, True], ["signum", True, True]])
def some_optimizers_have_the_weights_of_one_process():
    found = []
    for name in "adam", "half", "lars", "signum":
        stores = mx.kv.create("dist_sync_autobyte"), mx.kv.create("dist_sync_autobyte")
        before = stores[0].worker.config
        stores[0].worker.configure(CommConfig(partition_bytes=1021))
        servers, workers = (train(name, [rank()], store, on) for store, on in zip(stores, (True, False)))
        stores[0].worker.configure(before)
        found.append([name, servers == update(name), workers == train(name, [0, 1])])
    return found


@pytest.mark.timeout(130)
@pytest.mark.parametrize("name", cases.functions)
def test_case(results, name):
    assert results[__name__, name] == cases.expected[name]


@pytest.fixture(scope="module")
def alone():
    on_kvstore = {(case, "True"): update(case) for case in OPTIMIZERS}
    return {**on_kvstore, **{(case, "False"): train(case, [0, 1]) for case in OPTIMIZERS}}


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_two_workers_and_two_servers_have_the_weights_of_one_process(alone):
    with Cluster(workers=2, servers=2, env={"AUTOBYTE_PARTITION_BYTES": "1021", "OMP_NUM_THREADS": "1"}) as cluster:
        for worker in cluster.run(TOGETHER, timeout=140):
            found = [line.split() for line in worker.stdout.splitlines()]
            wrong = [(case, on_kvstore) for case, on_kvstore, digest in found if digest != alone[case, on_kvstore]]
            assert wrong == []
            assert len(found) == 2 * len(OPTIMIZERS)
        assert cluster.finish() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_states_are_restored_by_other_servers_and_the_run_goes_on_as_if_undisturbed(alone, tmp_path):
    cases = ["adam", "half", "nadam", "lars", "lbsgd", "schedule", "sgd"]
    names = {"cases": cases, "directory": tmp_path}
    with Cluster(workers=2, servers=3, env={"AUTOBYTE_PARTITION_BYTES": "1021"}) as cluster:
        cluster.run(BEGIN.format(**names), timeout=70)
        assert cluster.finish() == [0, 0, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir() if "." not in path.name) == sorted(cases)
    with Cluster(workers=2, servers=1) as cluster:
        for worker in cluster.run(GO_ON.format(**names), timeout=70):
            lines = worker.stdout.splitlines()
            found = [line.split() for line in lines if line.split()[0] in cases]
            assert [case for case, on_kvstore, digest in found if digest != alone[case, on_kvstore]] == []
            assert len(found) == len(cases)
            assert [line for line in lines if line[0] == "#"] == [
                f"# load_optimizer_states('{tmp_path}/adam'): it holds the states of 'adam', the store has 'sgd';"
                " nothing was changed",
                f"# '{tmp_path}/adam.weights.npz' is no file of AutoByte's optimizer states: \"There is no item named"
                " 'optimizer.json' in the archive\"",
                f"# load_optimizer_states('{tmp_path}/adam'): key 0 has shape (17, 59) and dtype float32 in it, but"
                " shape (17, 60) and dtype float32 here; nothing was changed",
            ]
        assert cluster.finish() == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_an_import_may_take_longer_than_the_deadline():
    source = """
import ps.mxnet
import mxnet as mx
store = mx.kv.create("dist_sync_autobyte")
store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
store.init("w", mx.nd.ones(1))
out = mx.nd.zeros(1)
store.pushpull("w", mx.nd.ones(1), out=out)
print(round(float(out.asscalar()), 6))
"""
    env = {"AUTOBYTE_OPTIMIZER_MODULES": "tests.mxnet.slow_import", "AUTOBYTE_DEADLINE_SECONDS": "4"}
    with Cluster(workers=1, servers=1, env=env) as cluster:
        assert [worker.stdout for worker in cluster.run(source, timeout=50)] == ["0.9\n"]
        assert cluster.finish() == [0, 0]
