"""Import, fork and exit: nothing hangs, whatever is under way."""

import os
import subprocess
import sys

from tests.cluster.harness import ROOT, Cluster

#: A push-pull that is not answered before ``worker.release()``.
PENDING = """
import os, sys, threading
store = mx.kv.create('dist_sync_autobyte')
store.init('a', mx.nd.ones(2))
gradient = mx.nd.ones(2)
worker.close = lambda error='': print('left with', repr(error), flush=True)
worker.hold()
store.pushpull('a', gradient)
"""


def test_exit_waits_for_what_is_under_way_and_leaves_the_job(script):
    result = script(
        PENDING + "worker.close = lambda error='': print('left with', repr(error), gradient.asnumpy())\n"
        "threading.Timer(0.5, worker.release).start()"
    )
    assert result.stdout == "left with '' [2. 2.]\n", result.stderr
    assert result.returncode == 0


def test_exit_completes_what_never_ends(script):
    result = script("FakeWorker.deadline_seconds = 0.2\n" + PENDING)
    assert result.stdout == "left with 'worker 0 ended with operations under way'\n", result.stderr
    assert result.returncode == 0


def test_uncaught_exception_leaves_the_job_as_failed_and_soon(script):
    result = script("FakeWorker.deadline_seconds = 100\n" + PENDING + "1 / 0")
    assert result.stdout == "left with 'worker 0: ZeroDivisionError: division by zero'\n"
    assert result.returncode == 1


def test_real_job_ends_well_though_pushes_are_under_way_at_its_exit():
    source = """
import ps.mxnet
import mxnet as mx
store = mx.kv.create('dist_sync_autobyte')
gradients = [mx.nd.ones((1 << 20,)) for _ in range(8)]
store.init(list(range(8)), gradients)
store.pushpull(list(range(8)), gradients)
"""
    with Cluster(workers=2, servers=1) as cluster:
        cluster.run(source, timeout=30)
        assert cluster.finish() == [0, 0]


def test_fork_waits_for_what_is_under_way_and_the_child_is_no_worker(script):
    result = script(
        PENDING
        + """
threading.Timer(0.5, worker.release).start()
child = os.fork()
if child == 0:
    try:
        store.pushpull('a', gradient)
    except Exception as error:
        print(type(error).__name__, error, gradient.asnumpy().tolist(), flush=True)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
store.pushpull('a', gradient)
print(gradient.asnumpy().tolist())
"""
    )
    assert result.stdout == (
        "Closed a forked child is not a worker of the job: use the store in the parent process [2.0, 2.0]\n"
        "7\n[4.0, 4.0]\nleft with ''\n"
    ), result.stderr


def test_data_loader_workers_start_while_an_operation_is_pending_and_close_is_final(script):
    result = script(
        PENDING
        + """
threading.Timer(0.5, worker.release).start()
data = mx.gluon.data.ArrayDataset(mx.nd.arange(8))
for batch in mx.gluon.data.DataLoader(data, batch_size=4, num_workers=2):
    store.pushpull('a', gradient)
    print(batch.asnumpy().tolist())
worker.hold()
store.pushpull('a', gradient)
worker.release()
ps.mxnet.close()
print(gradient.asnumpy().tolist())
try:
    store.pushpull('a', gradient)
except Exception as error:
    print(type(error).__name__, error)
"""
    )
    assert result.stdout == (
        "[0.0, 1.0, 2.0, 3.0]\n[4.0, 5.0, 6.0, 7.0]\nleft with ''\n[16.0, 16.0]\nClosed this process has left the job\n"
    ), result.stderr


def test_import_is_refused_where_mxnet_would_never_return():
    result = subprocess.run(
        [sys.executable, "-c", "import ps.mxnet"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DMLC_ROLE": "server"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "ps.errors.SettingsError: DMLC_ROLE='server': ps.mxnet is for workers;"
        " start servers and the scheduler by autobyte-server and autobyte-scheduler"
    )


def test_missing_variable_is_named_by_the_first_store():
    result = subprocess.run(
        [sys.executable, "-c", "import ps.mxnet, mxnet as mx; mx.kv.create('dist_sync_autobyte')"],
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("DMLC_")}, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "SettingsError: DMLC_PS_ROOT_URI is not set" in result.stderr.splitlines()[-1]
