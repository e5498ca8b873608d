"""Start, loss and end of real jobs: what DESIGN.md section 4 promises, seen from outside."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from ps.messages import PROTOCOL
from tests.cluster.harness import Cluster, Process

#: Joins the job and takes part in one sum and one barrier.
TAKE_PART = """
import numpy as np, ps
with ps.Worker() as worker:
    worker.init({"a": np.zeros(3, np.float32)})
    assert worker.push_pull("a", np.ones(3, np.float32)).wait()[0] == worker.num_workers
    worker.barrier("end")
"""

#: Sums again and again until something fails, and tells what and how long after the last sum.
SUM_UNTIL_IT_FAILS = """
import time, numpy as np, ps
worker = ps.Worker()
worker.init({"a": np.zeros(3, np.float32)})
try:
    while True:
        worker.push_pull("a", np.ones(3, np.float32)).wait()
        last = time.monotonic()
        print("summed", flush=True)
        time.sleep(0.05)
except ps.AutoByteError as error:
    print(f"{type(error).__name__} after {time.monotonic() - last:.1f} s: {error}", flush=True)
    worker.close()
"""


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def listening_hosts(process: Process) -> set[str]:
    found = psutil.net_connections("tcp")
    return {entry.laddr.ip for entry in found if entry.pid == process.pid and entry.status == psutil.CONN_LISTEN}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


# ----------------------------------------------------------------------------------------------- start-up


def test_a_job_runs_and_everything_ends_well_and_soon() -> None:
    with Cluster(workers=2, servers=2) as cluster:
        cluster.run(TAKE_PART)
        assert cluster.finish(timeout=5.0) == [0, 0, 0]


def test_localhost_is_an_address() -> None:
    with Cluster(env={"DMLC_PS_ROOT_URI": "localhost"}) as cluster:
        cluster.run(TAKE_PART)
        assert cluster.finish() == [0, 0]


@pytest.mark.slow
def test_the_scheduler_may_start_three_seconds_after_the_others() -> None:
    with Cluster(workers=1, start=False) as cluster:
        cluster.start_workers(TAKE_PART)
        cluster.start_server()
        time.sleep(3.0)
        cluster.start_scheduler()
        cluster.wait()
        assert cluster.finish() == [0, 0]


def test_ranks_follow_the_launchers_numbers() -> None:
    with Cluster(workers=2) as cluster:
        env = [{"DMLC_WORKER_ID": "1"}, {"DMLC_WORKER_ID": "0"}]
        workers = cluster.run("import ps\nwith ps.Worker() as worker:\n    print(worker.rank)", env=env)
        assert [worker.stdout for worker in workers] == ["1\n", "0\n"]
        assert cluster.finish() == [0, 0]


@pytest.mark.parametrize("variable", ["DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"])
def test_a_missing_variable_is_named_in_one_line(variable: str) -> None:
    with Cluster(env={variable: ""}, start=False) as cluster:
        for process in (cluster.start_scheduler(), cluster.start_server()):
            assert process.wait(10.0) == 2
            assert len(process.stderr.splitlines()) == 1
            assert f"{variable} is not set: expected" in process.stderr
        (worker,) = [cluster.start_worker("import ps; ps.Worker()")]
        assert worker.wait(10.0) == 1
        assert f"SettingsError: {variable} is not set: expected" in last_line(worker.stderr)


def test_a_contradiction_names_the_variable_and_both_values_on_both_sides() -> None:
    contradictions = {"DMLC_NUM_WORKER": ("2", "1"), "DMLC_NUM_SERVER": ("1", "3"), "AUTOBYTE_JOB": ("'new'", "'old'")}
    other_protocol = "import ps, ps.messages; ps.messages.PROTOCOL = 99; ps.Worker()"
    with Cluster(env={"AUTOBYTE_JOB": "new", "AUTOBYTE_START_SECONDS": "4"}) as cluster:
        assert cluster.scheduler is not None
        expected = {}
        for variable, (ours, theirs) in contradictions.items():
            worker = cluster.start_worker("import ps; ps.Worker()", env={variable: theirs.strip("'")})
            who = f"worker on {socket.gethostname()} (pid {worker.pid})"
            expected[worker] = f"{variable}: the scheduler has {ours}, {who} has {theirs}"
        worker = cluster.start_worker(other_protocol)
        expected[worker] = f"protocol version: the scheduler has {PROTOCOL}, worker on"
        for worker, text in expected.items():
            assert worker.wait(10.0) == 1
            assert "RegistrationRefused: refused by the scheduler at 127.0.0.1" in last_line(worker.stderr)
            assert text in last_line(worker.stderr)
        assert cluster.finish(timeout=10.0) == [1, 1]
        assert all(text in cluster.scheduler.stderr for text in expected.values())
        named = [text for text in expected.values() if text in last_line(cluster.scheduler.stderr)]
        assert len(named) == 1
        assert f"did not register; the last one refused: {named[0]}" in last_line(cluster.scheduler.stderr)


def test_a_job_that_does_not_start_says_who_is_missing() -> None:
    with Cluster(workers=2, servers=1, env={"AUTOBYTE_START_SECONDS": "2"}) as cluster:
        worker = cluster.start_worker("import ps; ps.Worker()", env={"AUTOBYTE_START_SECONDS": "9"})
        assert worker.wait(8.0) == 1
        expected = "not started within 2 s (AUTOBYTE_START_SECONDS): 1 of 2 workers (rank 1) did not register"
        assert expected in last_line(worker.stderr)
        assert cluster.finish() == [1, 1]
        for process in (cluster.scheduler, *cluster.servers):
            assert process is not None and expected in last_line(process.stderr)


def test_who_speaks_another_protocol_before_the_start_is_said_to_be_mxnets_own_store() -> None:
    with Cluster(env={"AUTOBYTE_START_SECONDS": "3"}) as cluster, zmq.Context() as context:
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"tcp://127.0.0.1:{cluster.port}")
        stranger.send_multipart([b"ps-lite", b"node"])
        stranger.send(b"again")
        expected = "is `import ps.mxnet` missing in the script, or the store's name misspelt?"
        assert cluster.scheduler is not None
        cluster.scheduler.wait_for("WARNING a process sends messages that are not AutoByte's, as MXNet's own store")
        stranger.close()
        assert cluster.finish(timeout=10.0) == [1, 1]
        assert cluster.scheduler.stderr.count(expected) == 2
        assert expected in last_line(cluster.scheduler.stderr)


def test_without_a_scheduler_a_worker_names_host_and_port() -> None:
    with Cluster(start=False, env={"AUTOBYTE_START_SECONDS": "1"}) as cluster:
        worker = cluster.start_worker("import ps; ps.Worker()")
        assert worker.wait(10.0) == 1
        assert f"DeadlineExceeded: no answer from the scheduler at 127.0.0.1:{cluster.port}" in last_line(worker.stderr)


def test_interface_lo_listens_on_loopback_only() -> None:
    with Cluster(workers=1, env={"DMLC_INTERFACE": "lo"}) as cluster:
        cluster.start_worker(
            """
            import os, ps, time
            with ps.Worker():
                print('up', flush=True)
                while not os.path.exists("seen"):
                    time.sleep(0.01)
            """
        )
        cluster.workers[0].wait_for("up")
        for process in (cluster.scheduler, *cluster.servers):
            assert process is not None and listening_hosts(process) == {"127.0.0.1"}
        assert listening_hosts(cluster.workers[0]) == set()
        (cluster.directory / "seen").touch()
        cluster.wait()
        assert cluster.finish() == [0, 0]


def test_an_unknown_interface_is_an_error_that_lists_the_interfaces() -> None:
    with Cluster(start=False, env={"DMLC_INTERFACE": "nosuch0"}) as cluster:
        for process in (cluster.start_scheduler(), cluster.start_server()):
            assert process.wait(10.0) == 2
            assert "DMLC_INTERFACE='nosuch0': no such interface" in process.stderr
            assert "lo (127.0.0.1)" in process.stderr
        worker = cluster.start_worker("import ps; ps.Worker()")
        assert worker.wait(10.0) == 1
        assert "SettingsError: DMLC_INTERFACE='nosuch0'" in last_line(worker.stderr)


def test_a_taken_port_is_named(taken_port: int) -> None:
    with Cluster(start=False, env={"DMLC_PS_ROOT_PORT": str(taken_port)}) as cluster:
        scheduler = cluster.start_scheduler()
        assert scheduler.wait(10.0) == 2
        assert f"DMLC_PS_ROOT_PORT={taken_port}: cannot listen on 127.0.0.1" in last_line(scheduler.stderr)


# --------------------------------------------------------------------------------------------- lost nodes


def test_a_killed_worker_is_a_loss_within_seconds() -> None:
    with Cluster(workers=2) as cluster:
        survivor, victim = cluster.start_workers(SUM_UNTIL_IT_FAILS)
        victim.wait_for("summed")
        victim.signal(signal.SIGKILL)
        assert survivor.wait(6.0) == 0
        assert "PeerLost after" in last_line(survivor.stdout)
        assert "worker 1 was lost: its connection to the scheduler broke" in last_line(survivor.stdout)
        assert cluster.finish() == [1, 1]
        assert cluster.scheduler is not None
        assert "autobyte-scheduler: the job failed: worker 1 on" in last_line(cluster.scheduler.stderr)


def test_a_killed_server_is_a_loss_within_seconds() -> None:
    with Cluster(workers=2) as cluster:
        workers = cluster.start_workers(SUM_UNTIL_IT_FAILS)
        for worker in workers:
            worker.wait_for("summed")
        cluster.servers[0].signal(signal.SIGKILL)
        for worker in workers:
            assert worker.wait(6.0) == 0
            assert "PeerLost after" in last_line(worker.stdout)
            assert "server 0 was lost" in last_line(worker.stdout)
        assert cluster.finish() == [1, -signal.SIGKILL]


def test_a_killed_scheduler_is_a_loss_within_seconds() -> None:
    with Cluster(workers=2) as cluster:
        workers = cluster.start_workers(SUM_UNTIL_IT_FAILS)
        for worker in workers:
            worker.wait_for("summed")
        assert cluster.scheduler is not None
        cluster.scheduler.signal(signal.SIGKILL)
        for worker in workers:
            assert worker.wait(8.0) == 0
            assert "scheduler was lost: the connection to 127.0.0.1" in last_line(worker.stdout)
        assert cluster.finish() == [-signal.SIGKILL, 1]


@pytest.mark.parametrize("name", ["scheduler", "server-0", pytest.param("worker-1", marks=pytest.mark.slow)])
def test_a_process_that_is_stopped_for_two_seconds_is_no_loss(name: str) -> None:
    source = """
        import time, numpy as np, ps
        with ps.Worker() as worker:
            worker.init({"a": np.zeros(3, np.float32)})
            until = time.monotonic() + 4.0
            rounds = 0
            while rounds < 40:
                assert worker.push_pull("a", np.ones(3, np.float32)).wait()[0] == 2
                print("summed", flush=True)
                time.sleep(0.01)
                rounds += 1
            worker.barrier("end")
    """
    with Cluster(workers=2) as cluster:
        cluster.start_workers(source)
        cluster.workers[0].wait_for("summed")
        (process,) = [process for process in cluster.processes if process.name == name]
        process.signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.signal(signal.SIGCONT)
        cluster.wait()
        assert cluster.finish() == [0, 0]


def test_a_process_that_is_silent_for_too_long_is_lost_and_told_so_when_it_comes_back() -> None:
    with Cluster(workers=2, env={"AUTOBYTE_SILENCE_SECONDS": "2"}) as cluster:
        survivor, sleeper = cluster.start_workers(SUM_UNTIL_IT_FAILS)
        sleeper.wait_for("summed")
        sleeper.signal(signal.SIGSTOP)
        assert survivor.wait(8.0) == 0
        assert "worker 1 was lost: silent for 2 s (AUTOBYTE_SILENCE_SECONDS)" in last_line(survivor.stdout)
        sleeper.signal(signal.SIGCONT)
        sleeper.wait(8.0)
        assert cluster.finish() == [1, 1]


def test_a_barrier_reached_by_one_rank_fails_at_the_deadline_and_names_the_other() -> None:
    source = """
        import time, ps
        with ps.Worker() as worker:
            if worker.rank == 0:
                try:
                    worker.barrier("end")
                except ps.DeadlineExceeded as error:
                    print(error)
            else:
                time.sleep(1.5)
    """
    with Cluster(workers=2, env={"AUTOBYTE_DEADLINE_SECONDS": "1"}) as cluster:
        first, _ = cluster.run(source)
        assert first.stdout == "barrier('end'): waiting for worker 1 to enter, not done after 1 s\n"
        assert cluster.finish() == [0, 0]


# ------------------------------------------------------------------------------------- garbage and strangers


def test_garbage_and_pickles_on_the_schedulers_socket_do_no_harm(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {marker}",)

    frames = [random.Random(number).randbytes(random.Random(-number).randint(0, 1024)) for number in range(100)]
    frames.append(pickle.dumps(Bomb()))
    with Cluster(workers=1) as cluster, zmq.Context() as context:
        assert cluster.scheduler is not None
        cluster.scheduler.wait_for("listening")
        address = f"tcp://127.0.0.1:{cluster.port}"
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 1000)
        stranger.connect(address)
        for frame in frames:
            stranger.send(frame)
            stranger.send_multipart([frame, frame])
        with socket.create_connection(("127.0.0.1", cluster.port)) as raw:
            raw.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        cluster.run(TAKE_PART)
        stranger.close()
        assert cluster.finish() == [0, 0]
        assert "dropped 202 malformed messages" in cluster.scheduler.stderr
    assert not marker.exists()


# --------------------------------------------------------------------------------------------- exit codes


def test_a_worker_that_ends_with_an_error_fails_the_job() -> None:
    source = """
        import ps
        with ps.Worker() as worker:
            raise ValueError("no data")
    """
    with Cluster(workers=1) as cluster:
        (worker,) = cluster.run(source, check=False)
        assert worker.returncode == 1
        assert cluster.finish() == [1, 1]
        assert cluster.scheduler is not None
        assert "worker 0 on" in last_line(cluster.scheduler.stderr)
        assert "ended with an error: worker 0: ValueError: no data" in last_line(cluster.scheduler.stderr)


def test_a_worker_that_ends_by_sys_exit_without_an_error_has_ended_well() -> None:
    with Cluster(workers=1) as cluster:
        cluster.run("import sys, ps\nwith ps.Worker():\n    sys.exit()")
        assert cluster.finish() == [0, 0]


def test_a_script_that_closes_nothing_ends_well_after_what_is_pending() -> None:
    source = """
        import numpy as np, ps
        worker = ps.Worker()
        worker.init({"a": np.zeros(1 << 20, np.float32)})
        for _ in range(8):
            worker.push_pull("a", np.ones(1 << 20, np.float32))
    """
    with Cluster() as cluster:
        cluster.run(source)
        assert cluster.finish() == [0, 0]


def test_a_script_that_closes_nothing_and_fails_is_named_with_its_error_at_once() -> None:
    source = """
        import numpy as np, ps
        worker = ps.Worker()
        worker.init({"a": np.zeros(3, np.float32)})
        if worker.rank == 1:
            raise RuntimeError("broken by hand")
        worker.push_pull("a", np.ones(3, np.float32)).wait()
    """
    with Cluster() as cluster:
        cluster.run(source, timeout=15.0, check=False)
        assert cluster.scheduler is not None
        assert cluster.finish() == [1, 1]
        assert "ended with an error: worker 1: RuntimeError: broken by hand" in last_line(cluster.scheduler.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_scheduler_ends_the_job(number: signal.Signals) -> None:
    with Cluster(workers=1) as cluster:
        cluster.start_workers(SUM_UNTIL_IT_FAILS)
        cluster.workers[0].wait_for("summed")
        assert cluster.scheduler is not None
        cluster.scheduler.signal(number)
        cluster.workers[0].wait(5.0)
        assert f"stopped by {number.name}" in last_line(cluster.workers[0].stdout)
        assert cluster.finish() == [1, 1]


@pytest.mark.parametrize("name", ["scheduler", "server-0"])
def test_a_signal_ends_a_process_that_waits_for_the_others(name: str) -> None:
    with Cluster(workers=1, env={"AUTOBYTE_START_SECONDS": "60"}) as cluster:
        assert cluster.scheduler is not None
        cluster.scheduler.wait_for("server 0 on")
        (process,) = [process for process in cluster.processes if process.name == name]
        process.signal(signal.SIGTERM)
        assert process.wait(3.0) == 1
        if name == "server-0":
            cluster.scheduler.signal(signal.SIGTERM)
        assert cluster.finish() == [1, 1]
