"""When the launcher ends the processes of a job, and what it returns. Grace is 5 s throughout."""

from __future__ import annotations

import signal
from typing import Optional

import pytest

from ps.config import Role
from scheduler.launch.plan import Node
from scheduler.launch.watch import Watch


class Nodes:
    """One scheduler, one server, two workers, and the book that is kept of them."""

    def __init__(self) -> None:
        self.scheduler, self.server, self.worker0, self.worker1 = (
            Node(role=role, rank=rank, command=(), environment={})
            for role, rank in ((Role.SCHEDULER, 0), (Role.SERVER, 0), (Role.WORKER, 0), (Role.WORKER, 1))
        )
        self.watch = Watch([self.scheduler, self.server, self.worker0, self.worker1], grace_seconds=5.0)

    def signal(self, now: float) -> Optional[int]:
        order = self.watch.order(now)
        return order and order.signal

    def reason(self, now: float) -> str:
        order = self.watch.order(now)
        return order.reason if order else ""


@pytest.fixture
def job() -> Nodes:
    return Nodes()


def test_a_job_whose_workers_end_well_ends_by_itself(job: Nodes) -> None:
    assert job.watch.seconds_to_order(0.0) is None
    notes = [
        job.watch.ended(job.worker0, 0, 1.0),
        job.watch.ended(job.worker1, 0, 2.0),
        job.watch.ended(job.server, 0, 2.1),
        job.watch.ended(job.scheduler, 0, 2.2),
    ]
    assert notes == ["", "", "", ""]
    assert job.watch.finished
    assert job.signal(100.0) is None
    assert job.watch.exit_code == 0


def test_the_exit_code_is_that_of_the_first_worker_that_failed(job: Nodes) -> None:
    assert job.watch.ended(job.worker1, 3, 1.0) == "worker 1 failed with exit code 3"
    assert job.watch.ended(job.worker0, 4, 1.1) == "worker 0 failed with exit code 4"
    assert job.watch.exit_code == 3


def test_a_killed_worker_counts_as_128_and_the_signal(job: Nodes) -> None:
    assert job.watch.ended(job.worker1, -9, 1.0) == "worker 1 was killed by SIGKILL"
    assert job.watch.exit_code == 137


def test_after_a_failure_the_others_have_5_s_before_they_are_terminated_and_5_more_before_they_are_killed(
    job: Nodes,
) -> None:
    job.watch.ended(job.worker1, 3, 1.0)
    job.watch.ended(job.server, 1, 2.0)
    assert job.watch.seconds_to_order(2.0) == 4.0
    assert job.signal(5.9) is None
    assert job.reason(6.0) == "ending scheduler, worker 0: the job has failed"
    assert job.signal(10.9) is None
    assert job.reason(11.0) == "killing scheduler, worker 0: still there 5 s after being told to end"


def test_what_a_process_returns_after_it_was_told_to_end_does_not_count(job: Nodes) -> None:
    job.watch.ended(job.server, -11, 1.0)
    assert job.signal(6.0) == signal.SIGTERM
    assert job.watch.ended(job.worker0, -15, 6.1) == ""
    assert job.watch.exit_code == 139


def test_a_dead_server_ends_the_job_with_the_code_of_the_worker_that_failed_of_it(job: Nodes) -> None:
    assert job.watch.ended(job.server, -9, 1.0) == "server 0 was killed by SIGKILL"
    job.watch.ended(job.worker0, 1, 2.0)
    assert job.watch.exit_code == 1


def test_a_worker_is_to_blame_even_if_the_scheduler_ended_before_it(job: Nodes) -> None:
    job.watch.ended(job.scheduler, 1, 1.0)
    job.watch.ended(job.worker0, 42, 1.2)
    assert job.watch.exit_code == 42


def test_a_server_that_ends_well_before_the_workers_is_no_failure(job: Nodes) -> None:
    assert job.watch.ended(job.server, 0, 1.0) == ""
    assert job.watch.seconds_to_order(1.0) is None


def test_an_interrupt_terminates_at_once_and_a_second_one_kills(job: Nodes) -> None:
    job.watch.interrupted(signal.SIGINT, 1.0)
    assert job.signal(1.0) == signal.SIGTERM
    job.watch.interrupted(signal.SIGINT, 1.5)
    order = job.watch.order(1.5)
    assert order is not None
    assert order.signal == signal.SIGKILL
    assert order.reason == "SIGINT: killing scheduler, server 0, worker 0, worker 1"
    assert job.watch.exit_code == 130


def test_an_interrupt_after_a_failure_leaves_the_code_of_the_failure(job: Nodes) -> None:
    job.watch.ended(job.worker0, 3, 1.0)
    job.watch.interrupted(signal.SIGTERM, 2.0)
    assert job.signal(2.0) == signal.SIGTERM
    assert job.watch.exit_code == 3


def test_a_command_that_never_used_the_store_is_told_so(job: Nodes) -> None:
    job.watch.ended(job.worker0, 0, 1.0)
    job.watch.ended(job.worker1, 0, 1.0)
    assert job.reason(6.0) == (
        "ending scheduler, server 0: every worker ended well, but the scheduler still waits for workers; did the"
        " command end before it used the store (kvstore='dist_sync_autobyte' in MXNet, ps.Worker in NumPy)?"
    )
    job.watch.ended(job.server, -15, 6.1)
    job.watch.ended(job.scheduler, -15, 6.1)
    assert job.watch.exit_code == 0


def test_a_server_that_outlives_the_job_is_ended(job: Nodes) -> None:
    for node in (job.worker0, job.worker1, job.scheduler):
        job.watch.ended(node, 0, 1.0)
    assert job.reason(6.0) == "ending server 0: the job is over"
