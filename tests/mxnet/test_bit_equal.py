"""Acceptance: two workers end with the weights, to the bit, of one process that adds the same two gradients.

20 steps of LeNet and of ResNet-18, momentum and weight decay, a validation pass after every step, other first values on
rank 1; under three configurations, the last of which changes in the middle of the run, at one worker only.
"""

import os
import subprocess
import sys

import pytest

from tests.cluster.harness import ROOT, Cluster

ALONE = """
from tests.mxnet.training import MODELS, alone
for model in MODELS:
    print(model, alone(model))
"""

TOGETHER = """
import ps.mxnet
import mxnet as mx
from ps.config import CommConfig
from tests.mxnet.training import MODELS, together

store = mx.kv.create("dist_sync_autobyte")
change = {change} if store.rank == 1 else None
for model in MODELS:
    print(model, together(model, store, change))
"""


@pytest.fixture(scope="module")
def alone():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", ALONE], env=env, capture_output=True, text=True, timeout=100, check=True
    )
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["lenet", "resnet18_v1"]
    return result.stdout


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("env", "change"),
    [
        pytest.param({}, "None", id="default"),
        pytest.param(
            {"AUTOBYTE_PARTITION_BYTES": "65536", "AUTOBYTE_CREDIT_BYTES": "262144"},
            "None",
            id="small-credit",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"AUTOBYTE_PARTITION_BYTES": "40963", "AUTOBYTE_FUSION_BYTES": "0"},
            "lambda: store.worker.configure(CommConfig(partition_bytes=1 << 20, credit_bytes=3 << 20))",
            id="changed-on-one-worker",
        ),
    ],
)
def test_two_workers_end_with_the_weights_of_one_process(alone, env, change):
    with Cluster(workers=2, servers=2, env=env) as cluster:
        first, second = cluster.run(TOGETHER.format(change=change), timeout=140)
        assert first.stdout == alone
        assert second.stdout == alone
        assert cluster.finish() == [0, 0, 0]
