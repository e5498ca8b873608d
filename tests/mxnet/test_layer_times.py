"""What a job of real processes reports of its layers, where every layer computes for a known time."""

from __future__ import annotations

import msgspec
import pytest

from ps.config import Role
from ps.stats import Observation
from tests.cluster.harness import Cluster

#: Layers in forward order; a forward pass takes half of it.
BACKWARD_SECONDS = [0.04, 0.12, 0.02, 0.06]
SIZES = [1000, 2000, 3000, 4000]

SCHEDULER = """
import msgspec
import tuner
from scheduler.process import main

class TestTuner(tuner.Tuner):
    def observe(self, observations):
        with open("observations.jsonl", "ab") as file:
            file.writelines(msgspec.json.encode(observation) + b"\\n" for observation in observations)

    def propose(self, now):
        return None

tuner.TUNERS["test"] = lambda settings: TestTuner()
main()
"""

#: Operations that take their time without a processor stand for the layers; the rest is what Gluon does.
TRAIN = f"""
import threading
import ps.mxnet
import mxnet as mx
from ps.mxnet import engine

store = mx.kv.create("dist_sync_autobyte")
weights = [mx.nd.zeros(size) for size in {SIZES}]
gradients = [mx.nd.ones(size) for size in {SIZES}]
activation = mx.nd.ones(1)
last = mx.nd.ones(1)
last.attach_grad()
store.init(list(range(4)), weights)

def compute(seconds, const, mutable):
    engine.push(lambda completion: threading.Timer(seconds, completion).start(), const=const, mutable=mutable)

for step in range(8):
    with mx.autograd.record():
        for weight, seconds in zip(weights, {BACKWARD_SECONDS}):
            compute(seconds / 2, [weight], [activation])
        loss = last * activation
    loss.backward()
    for gradient, seconds in list(zip(gradients, {BACKWARD_SECONDS}))[::-1]:
        compute(seconds, [], [activation, gradient])
    for key, (gradient, weight) in enumerate(zip(gradients, weights)):
        store.pushpull(key, gradient, out=weight, priority=-key)
    mx.nd.waitall()
assert len(store.worker.statistics()["observed"]["layers"]) == 4
"""


@pytest.mark.slow
@pytest.mark.timeout(40)
def test_a_jobs_observations_tell_what_its_layers_take() -> None:
    env = {"AUTOBYTE_TUNER": "test", "AUTOBYTE_WINDOW_SECONDS": "0.5"}
    with Cluster(workers=2, servers=1, env=env, scheduler=SCHEDULER) as cluster:
        cluster.run(TRAIN, timeout=30)
        assert cluster.finish() == [0, 0]
        lines = (cluster.directory / "observations.jsonl").read_bytes().splitlines()
    observations = [msgspec.json.decode(line, type=Observation) for line in lines]
    for rank in (0, 1):
        workers = [seen for seen in observations if (seen.role, seen.rank) == (Role.WORKER, rank)]
        seen = [worker for worker in workers if worker.steps and worker.layers][-1]
        assert [layer.size_bytes for layer in seen.layers] == [4 * size for size in SIZES]
        for layer, seconds in zip(seen.layers, BACKWARD_SECONDS):
            # A busy machine ends a timed operation late, never early.
            assert seconds - 0.01 < layer.backward_seconds < 1.25 * seconds + 0.03
            assert seconds / 2 - 0.02 < layer.forward_seconds < 0.625 * seconds + 0.03
        assert seen.step_seconds and seen.forward_seconds and seen.backward_seconds
        assert seen.forward_seconds + seen.backward_seconds < 1.2 * seen.step_seconds
        assert seen.thread_seconds > 0
