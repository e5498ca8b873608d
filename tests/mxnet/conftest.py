"""Fixtures of the plugin's tests: a store whose worker is a fake, in this process or in one of its own."""

import contextlib
import os
import subprocess
import sys

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import pytest

from ps.mxnet import broadcast, connection, engine
from tests.cluster.harness import ROOT
from tests.mxnet import cases
from tests.mxnet.fake import FakeWorker, join

PRELUDE = """
import ps.mxnet
import mxnet as mx
from tests.mxnet.fake import FakeWorker, join
worker = join(FakeWorker())
"""


@pytest.fixture
def worker():
    """A job of two workers in which the other one pushes the same: sums are doubles."""
    worker = join(FakeWorker())
    yield worker
    worker.release()
    with contextlib.suppress(Exception):  # the test has looked at the errors that it provoked
        mx.nd.waitall()
    assert engine.drain(5), "operations were left in the engine"
    connection._connection.disable("the test has ended")
    connection._connection = None
    broadcast._declared.clear()


@pytest.fixture
def store(worker):
    return mx.kv.create("dist_sync_autobyte")


@pytest.fixture(scope="session")
def results(request):
    """What the cases of the collected modules have returned on the ranks, by module and name."""
    modules = {item.module.__name__: item.module for item in request.session.items}
    return cases.run(
        [name for name, module in modules.items() if isinstance(getattr(module, "cases", None), cases.Cases)]
    )


@pytest.fixture
def script():
    """Run Python source in a process of its own, with a fake worker as ``worker``; returns the completed process."""

    def run(source, timeout=40, **env):
        return subprocess.run(
            [sys.executable, "-c", PRELUDE + source],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
