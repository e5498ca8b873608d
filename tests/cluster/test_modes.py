"""When a push counts: asynchronous keys, bounded staleness, sums in the order of ranks, and what is no number."""

from __future__ import annotations

import signal

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.test_values import run

#: Pushes and waits until the servers have the push, whether or not they answer it.
ARRIVE = """
import threading, time
def arrive(key, value):
    handle = worker.push(key, value)
    begun = threading.Event()
    worker._loop.post(begun.set)
    begun.wait()
    while any(link.queued or link.in_flight_bytes for link in worker._loop.traffic._links.links.values()):
        time.sleep(0.001)
    return handle
"""

# ------------------------------------------------------------------------------------------ asynchronous


def test_an_asynchronous_push_is_added_and_answered_without_the_other_worker() -> None:
    source = """
worker.init("a", np.full(300_000, 7, "float32"), mode="async")
if rank == 0:
    for step in 1, 2, 3:
        assert (worker.push_pull("a", np.ones(300_000, "float32")).wait() == 7 + step).all()
    worker.push("a", np.ones(300_000, "float32")).wait()
worker.barrier()
if rank == 1:
    assert (worker.pull("a").wait() == 11).all()
    worker.push("a", np.ones(300_000, "float32"))
    assert (worker.pull("a").wait() == 12).all()
worker.barrier()
assert (worker.pull("a").wait() == 12).all()
"""
    run(source, servers=2)


def test_keys_of_both_modes_live_in_one_job_and_the_ranks_have_to_agree() -> None:
    source = """
worker.init("s", np.zeros(2, "float32"))
worker.init("a", np.zeros(2, "float32"), mode="async")
assert worker.push_pull("s", np.ones(2, "float32")).wait().tolist() == [2, 2]
try:
    worker.init("x", np.zeros(2, "float32"), mode="sync" if rank == 0 else "async")
except ps.TensorError as error:
    text = "'x' differs between the ranks: (2,) float32 on worker 0, (2,) float32 async on worker 1"
    assert text in str(error), error
else:
    raise AssertionError("no error")
try:
    worker.init("y", np.zeros(2, "float32"), mode="asink")
except ps.SettingsError as error:
    assert "mode 'asink': expected 'sync' or 'async'" in str(error), error
else:
    raise AssertionError("no error")
worker.init("x", np.zeros(2, "float32"), mode="async")
"""
    run(source)


def test_the_others_go_on_asynchronously_when_a_worker_is_lost() -> None:
    source = """
import time, numpy as np, ps
worker = ps.Worker()
worker.init("s", np.zeros(2, "float32"))
worker.init("a", np.zeros(2, "float32"), mode="async")
print("ready", flush=True)
if worker.rank == 1:
    time.sleep(60)
try:
    worker.push_pull("s", np.ones(2, "float32")).wait()
except ps.PeerLost as error:
    assert "worker 1 was lost" in str(error), error
else:
    raise AssertionError("no error")
for step in 1, 2, 3:
    assert worker.push_pull("a", np.ones(2, "float32")).wait().tolist() == [step, step]
for lost in lambda: worker.push("s", np.ones(2, "float32")).wait(), worker.barrier:
    try:
        lost()
    except ps.PeerLost as error:
        assert "worker 1 was lost" in str(error), error
    else:
        raise AssertionError("no error")
assert worker.pull("a").wait().tolist() == [3, 3]
worker.close()
"""
    with Cluster(workers=2, servers=1, env={"AUTOBYTE_STALENESS": "0"}) as cluster:
        workers = cluster.start_workers(source)
        workers[1].wait_for("ready")
        workers[1].signal(signal.SIGKILL)
        assert workers[0].wait(20) == 0, cluster.output()
        assert cluster.finish() == [1, 1]


def test_a_lost_server_ends_asynchronous_operations_too() -> None:
    source = """
import time, numpy as np, ps
worker = ps.Worker()
worker.init("a", np.zeros(2, "float32"), mode="async")
print("ready", flush=True)
try:
    while True:
        worker.push_pull("a", np.ones(2, "float32")).wait()
except ps.PeerLost as error:
    assert "server 0 was lost" in str(error), error
"""
    with Cluster(workers=2, servers=1) as cluster:
        workers = cluster.start_workers(source)
        for worker in workers:
            worker.wait_for("ready")
        cluster.servers[0].signal(signal.SIGKILL)
        assert [worker.wait(20) for worker in workers] == [0, 0], cluster.output()


# ------------------------------------------------------------------------------------- bounded staleness


def test_no_worker_is_further_ahead_than_the_staleness_allows() -> None:
    source = (
        ARRIVE
        + """
one = np.ones(1000, "float32")
worker.init("a", np.zeros(1000, "float32"), mode="async")
if rank == 0:
    worker.push("a", one).wait()
    worker.push("a", one).wait()
    third = arrive("a", one)
    worker.barrier("third")
    assert (third.wait() is None)
else:
    assert worker.pull("a").wait()[0] in (0, 1, 2, 3)
    worker.barrier("third")
    assert (worker.pull("a").wait() == 3).all()  # applied, not answered
    time.sleep(0.3)
    assert (worker.push_pull("a", one).wait() == 4).all()
worker.barrier("end")
"""
    )
    run(source, servers=2, AUTOBYTE_STALENESS="2")


def test_a_worker_that_waits_for_too_long_is_told_for_whom() -> None:
    source = """
import time, numpy as np, ps
with ps.Worker() as worker:
    worker.init("a", np.zeros(2, "float32"), mode="async")
    if worker.rank == 0:
        worker.push("a", np.ones(2, "float32")).wait()
        try:
            worker.push("a", np.ones(2, "float32")).wait()
        except ps.DeadlineExceeded as error:
            text = "'a', push 2 of worker 0 (staleness 1): server 0 waits for worker 1"
            assert text in str(error), error
        else:
            raise AssertionError("it was answered")
    else:
        time.sleep(3)
        assert worker.push_pull("a", np.ones(2, "float32")).wait().tolist() == [3, 3]
"""
    env = {"AUTOBYTE_STALENESS": "1", "AUTOBYTE_DEADLINE_SECONDS": "2"}
    with Cluster(workers=2, servers=1, env=env) as cluster:
        cluster.run(source, timeout=20)
        assert cluster.finish() == [0, 0]


# -------------------------------------------------------------------------------------------- convergence

#: Least squares on each rank's half of the data, by stochastic gradient descent; the minus of the step is pushed.
LEAST_SQUARES = """
import time
rng = np.random.default_rng(rank)
truth = np.random.default_rng(99).standard_normal(20)
x = rng.standard_normal((400, 20))
y = x @ truth
worker.init("w", np.zeros(20), mode="async")
w = worker.pull("w").wait()
for step in range(300):
    batch = rng.integers(0, 400, 20)
    gradient = x[batch].T @ (x[batch] @ w - y[batch]) / 20
    w = worker.push_pull("w", -0.05 * gradient).wait()
    if rank == 1:
        time.sleep(0.001)  # a slow worker
worker.barrier()
error = np.abs(worker.pull("w").wait() - truth).max()
assert error < 1e-3, error
print(step)
"""


@pytest.mark.parametrize("staleness", [pytest.param("", marks=pytest.mark.slow), "2"])
def test_stochastic_gradient_descent_converges(staleness: str) -> None:
    env = {"AUTOBYTE_STALENESS": staleness} if staleness else {}
    run(LEAST_SQUARES, workers=3, servers=2, **env)


# ------------------------------------------------------------------------------------------ deterministic


def test_deterministic_sums_are_the_same_bits_in_every_order_of_arrival_and_configuration() -> None:
    source = (
        "import hashlib, itertools\n"
        + ARRIVE
        + """
worker.init({"single": np.zeros(5000, "float32"), "half": np.zeros(5000, "float16")})
for round_, order in enumerate(itertools.permutations(range(3))):
    rng = np.random.default_rng(100 * round_ + rank)
    single = (rng.standard_normal(5000) * 10.0 ** rng.integers(-6, 6, 5000)).astype("float32")
    half = (rng.standard_normal(5000) * 10.0 ** rng.integers(-4, 3, 5000)).astype("float16")
    for turn in order if REVERSED else reversed(order):
        if turn == rank:
            handles = [arrive("single", single), arrive("half", half)]
        worker.barrier(f"{round_} {turn}")
    for handle in handles:
        handle.wait()
    for key in "single", "half":
        print(key, hashlib.sha256(worker.pull(key).wait().tobytes()).hexdigest())
"""
    )
    outputs = []
    for partition_bytes, reverse in (("500000", False), ("1000", True)):
        program = source.replace("REVERSED", str(reverse))
        env = {"AUTOBYTE_DETERMINISTIC": "1", "AUTOBYTE_PARTITION_BYTES": partition_bytes}
        outputs += run(program, workers=3, servers=2 if reverse else 1, **env)
    assert outputs[0].count("\n") == 12
    assert outputs == [outputs[0]] * 6


def test_float16_sums_of_any_order_of_arrival_are_rounded_once() -> None:
    source = (
        "import itertools\n"
        + ARRIVE
        + """
worker.init("h", np.zeros(1, "float16"))
for order in itertools.permutations(range(3)):
    for turn in order:
        if turn == rank:
            handle = arrive("h", np.array([2048 if rank == 0 else 1], "float16"))
        worker.barrier(f"{order} {turn}")
    handle.wait()
    assert worker.pull("h").wait().tolist() == [2050]
"""
    )
    run(source, workers=3)


# -------------------------------------------------------------------------------------- what is no number


def test_infinite_results_are_counted_and_logged_once_per_key() -> None:
    source = """
import time, numpy as np, ps
with ps.Worker() as worker:
    worker.init({"n": np.zeros(2, "float32"), "h": np.zeros(1, "float16")})
    value = np.array([np.nan if worker.rank == 0 else 1, 1], "float32")
    for _ in range(2):
        result = worker.push_pull("n", value).wait()
        assert np.isnan(result[0]) and result[1] == 2
    assert worker.push_pull("h", np.full(1, 40000, "float16")).wait().tolist() == [np.inf]
    time.sleep(0.6)
"""
    with Cluster(workers=2, servers=1) as cluster:
        cluster.run(source, timeout=20)
        assert cluster.finish() == [0, 0]
        lines = [line for line in cluster.servers[0].stderr.splitlines() if "infinite or no number" in line]
    assert len(lines) == 2 and "'n'" in lines[0] and "'h'" in lines[1]
