"""Acceptance: two workers end with the weights, to the bit, of one process that adds the same two gradients.

20 steps of LeNet and of ResNet-18, momentum and weight decay, a validation pass after every step, other first values on
rank 1; under three configurations, the last of which changes in the middle of the run, at one worker only.
"""

import functools
import os
import subprocess
import sys

import pytest

from tests.cluster.harness import ROOT, Cluster

ALONE = """
from tests.mxnet.training import alone
print(alone({model!r}))
"""

TOGETHER = """
import ps.mxnet
import mxnet as mx
from ps.config import CommConfig
from tests.mxnet.training import together

store = mx.kv.create("dist_sync_autobyte")
change = {change} if store.rank == 1 else None
print(together({model!r}, store, change))
"""


CONFIGURATIONS = {
    "default": ({}, "None"),
    "small-credit": ({"AUTOBYTE_PARTITION_BYTES": "65536", "AUTOBYTE_CREDIT_BYTES": "262144"}, "None"),
    "changed-on-one-worker": (
        {"AUTOBYTE_PARTITION_BYTES": "40963", "AUTOBYTE_FUSION_BYTES": "0"},
        "lambda: store.worker.configure(CommConfig(partition_bytes=1 << 20, credit_bytes=3 << 20))",
    ),
}


@functools.cache
def alone(model):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ALONE.format(model=model)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("model", "configuration"),
    [
        ("lenet", "changed-on-one-worker"),
        ("lenet", "default"),
        pytest.param("lenet", "small-credit", marks=pytest.mark.slow),
        ("resnet18_v1", "default"),
        pytest.param("resnet18_v1", "small-credit", marks=pytest.mark.slow),
        ("resnet18_v1", "changed-on-one-worker"),
    ],
)
def test_two_workers_end_with_the_weights_of_one_process(model, configuration):
    env, change = CONFIGURATIONS[configuration]
    with Cluster(workers=2, servers=2, env=env) as cluster:
        workers = cluster.run(TOGETHER.format(model=model, change=change), timeout=140)
        assert [worker.stdout for worker in workers] == [alone(model)] * 2
        assert cluster.finish() == [0, 0, 0]
