"""The thread that tunes, and that the scheduler's loop does not wait for it."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Optional

import numpy as np
import pytest
import threadpoolctl

from ps.config import CommConfig, Role
from ps.stats import Observation
from scheduler import background
from scheduler.background import TuningThread

DECIDED = CommConfig(partition_bytes=7, epoch=1)


class FakeTuning:
    """Decides once; with ``hold``, only after it is let go."""

    def __init__(self, hold: bool = False) -> None:
        self.seen: list[object] = []
        self.let_go = threading.Event()
        self.entered = threading.Event()
        if not hold:
            self.let_go.set()

    def observe(self, observation: Observation, now: float) -> None:
        self.seen.append(("observe", observation.rank, now))

    def confirmed(self, role: Role, rank: int, epoch: int) -> None:
        self.seen.append(("confirmed", role, rank, epoch))

    def gone(self, role: Role, rank: int) -> None:
        self.seen.append(("gone", role, rank))

    def step(self, now: float) -> Optional[CommConfig]:
        if self.entered.is_set():
            return None
        if sys.platform == "linux":
            self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.pools = {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
        self.entered.set()
        self.let_go.wait(10.0)
        return DECIDED


def observation(rank: int) -> Observation:
    return Observation(role=Role.WORKER, rank=rank, epoch=0, window_seconds=1.0, num_workers=2, num_servers=1)


def take_within(thread: TuningThread, seconds: float) -> Optional[CommConfig]:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        config = thread.take()
        if config is not None:
            return config
        time.sleep(0.01)
    return None


def test_what_is_posted_arrives_in_order_and_a_decision_comes_back_once() -> None:
    tuning = FakeTuning()
    thread = TuningThread(tuning)  # type: ignore[arg-type]
    thread.observe(observation(1), 5.0)
    thread.confirmed(Role.SERVER, 0, 3)
    thread.gone(Role.WORKER, 1)
    thread.start()
    assert take_within(thread, 5.0) == DECIDED
    assert thread.take() is None
    assert tuning.seen == [
        ("observe", 1, 5.0),
        ("confirmed", Role.SERVER, 0, 3),
        ("gone", Role.WORKER, 1),
    ]
    thread.stop(5.0)


def test_a_tuner_that_hangs_holds_nobody_up_and_is_told_once() -> None:
    tuning = FakeTuning(hold=True)
    thread = TuningThread(tuning)  # type: ignore[arg-type]
    thread.start()
    assert tuning.entered.wait(5.0)
    began = time.monotonic()
    for _ in range(background.MAX_POSTED + 5):
        thread.observe(observation(0), 1.0)
    assert thread.take() is None
    assert not thread.slow(began + 29.0)
    assert thread.slow(began + 31.0)
    assert not thread.slow(began + 32.0)
    thread.stop(0.01)
    assert time.monotonic() - began < 2.0
    tuning.let_go.set()


def test_a_thread_that_was_not_started_can_be_stopped() -> None:
    TuningThread(FakeTuning()).stop(1.0)  # type: ignore[arg-type]


def test_what_is_posted_is_taken_at_once_and_the_loop_is_told_that_a_decision_may_come() -> None:
    tuning = FakeTuning(hold=True)
    thread = TuningThread(tuning)  # type: ignore[arg-type]
    assert not thread.busy
    thread.start()
    thread.observe(observation(0), 1.0)
    assert tuning.entered.wait(5.0)
    assert thread.busy
    tuning.let_go.set()
    assert take_within(thread, 5.0) == DECIDED
    thread.stop(5.0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_whoever_trains_has_the_processor_first() -> None:
    tuning = FakeTuning()
    thread = TuningThread(tuning)
    thread.start()
    assert take_within(thread, 5.0) == DECIDED
    thread.stop(5.0)
    assert tuning.niceness == max(background.NICENESS, os.getpriority(os.PRIO_PROCESS, 0))


def test_mathematics_takes_one_processor_while_it_tunes() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))  # with a library that is loaded
    tuning = FakeTuning()
    thread = TuningThread(tuning)  # type: ignore[arg-type]
    thread.start()
    assert take_within(thread, 5.0) == DECIDED
    thread.stop(5.0)
    assert tuning.pools == {1}
