"""What each process of a job on one machine finds in its environment."""

from __future__ import annotations

import sys

from ps.config import Role
from scheduler.launch.plan import Job, Node, plan

JOB = Job(
    command=("python", "train.py", "--epochs", "3"),
    num_workers=2,
    num_servers=1,
    port=9091,
    name="launch-1",
    threads=4,
)


def nodes(job: Job = JOB, **inherited: str) -> dict[str, Node]:
    return {str(node): node for node in plan(job, inherited)}


def test_the_scheduler_comes_first_then_the_servers_then_the_workers() -> None:
    assert list(nodes()) == ["scheduler", "server 0", "worker 0", "worker 1"]
    assert [node.role for node in plan(JOB, {})] == [Role.SCHEDULER, Role.SERVER, Role.WORKER, Role.WORKER]


def test_workers_run_the_command_and_the_others_the_modules() -> None:
    assert nodes()["worker 1"].command == ("python", "train.py", "--epochs", "3")
    assert nodes()["server 0"].command == (sys.executable, "-m", "ps.server")
    assert nodes()["scheduler"].command == (sys.executable, "-m", "scheduler")


def test_a_worker_finds_its_place_in_the_job() -> None:
    assert nodes()["worker 1"].environment == {
        "DMLC_ROLE": "worker",
        "DMLC_WORKER_ID": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "AUTOBYTE_JOB": "launch-1",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_server_has_a_number_and_the_scheduler_none() -> None:
    numbers = ("DMLC_ROLE", "DMLC_WORKER_ID", "DMLC_SERVER_ID")
    server, scheduler = nodes()["server 0"].environment, nodes()["scheduler"].environment
    assert [server.get(name) for name in numbers] == ["server", None, "0"]
    assert [scheduler.get(name) for name in numbers] == ["scheduler", None, None]


def test_the_launchers_own_place_in_some_job_is_not_passed_on() -> None:
    found = nodes(DMLC_ROLE="worker", DMLC_WORKER_ID="7", DMLC_NUM_WORKER="9", PATH="/bin")
    assert "DMLC_WORKER_ID" not in found["server 0"].environment
    assert found["server 0"].environment["DMLC_NUM_WORKER"] == "2"
    assert found["server 0"].environment["PATH"] == "/bin"


def test_what_the_user_says_wins_over_the_environment_and_that_over_the_defaults() -> None:
    job = Job(
        command=("true",),
        num_workers=1,
        num_servers=1,
        port=1,
        name="launch-1",
        threads=4,
        variables={"AUTOBYTE_TUNER": "static"},
    )
    environment = nodes(job, AUTOBYTE_TUNER="bayesian", OMP_NUM_THREADS="8", AUTOBYTE_JOB="mine")[
        "worker 0"
    ].environment
    assert environment["AUTOBYTE_TUNER"] == "static"
    assert environment["OMP_NUM_THREADS"] == "8"
    assert environment["AUTOBYTE_JOB"] == "mine"
