"""From counters to observations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps.config import Role
from ps.counters import Counters
from ps.estimate import HostEstimate
from ps.stats import Estimate

pytestmark = pytest.mark.timeout(10)


def links(
    bytes_sent: int = 0, messages: int = 0, partitions: int = 0, wait: float = 0.0, stall: float = 0.0
) -> SimpleNamespace:
    return SimpleNamespace(
        bytes_sent=bytes_sent,
        messages_sent=messages,
        partitions_sent=partitions,
        queue_wait_seconds=wait,
        credit_stall_seconds=stall,
    )


def worker() -> Counters:
    return Counters(Role.WORKER, rank=1, num_workers=2, num_servers=3, now=10.0)


def test_an_observation_says_who_when_and_under_which_epoch() -> None:
    counters = worker()
    counters.switched(epoch=4)
    seen = counters.observation(12.5, links(), HostEstimate(), cpu_seconds=0.0)
    assert (seen.role, seen.rank, seen.num_workers, seen.num_servers) == (Role.WORKER, 1, 2, 3)
    assert (seen.epoch, seen.window_seconds) == (4, 2.5)
    assert (seen.steps, seen.step_seconds, seen.queue_wait_seconds, seen.ack_seconds) == (0, None, None, None)


def test_steps_are_counted_and_their_median_reported() -> None:
    counters = worker()
    for now in (10.0, 10.1, 10.3, 10.4, 11.4):
        counters.step_began(now)
    seen = counters.observation(12.0, links(), HostEstimate(), 0.0)
    assert seen.steps == 4
    assert seen.step_seconds == pytest.approx(0.15)


def test_a_step_over_the_edge_of_a_window_belongs_to_the_window_in_which_it_ends() -> None:
    counters = worker()
    counters.step_began(10.0)
    assert counters.observation(11.0, links(), HostEstimate(), 0.0).steps == 0
    counters.step_began(13.0)
    seen = counters.observation(14.0, links(), HostEstimate(), 0.0)
    assert (seen.steps, seen.step_seconds) == (1, 3.0)


def test_the_step_of_a_switch_and_the_next_are_of_no_epoch() -> None:
    counters = worker()
    for now in (10.0, 11.0, 12.0):
        counters.step_began(now)
    counters.switched(epoch=1)
    for now in (13.0, 18.0, 20.0):  # 12..13 saw the switch, 13..18 is the next, 18..20 counts
        counters.step_began(now)
    seen = counters.observation(21.0, links(), HostEstimate(), 0.0)
    assert (seen.epoch, seen.steps, seen.step_seconds) == (1, 1, 2.0)


def test_model_is_what_the_last_whole_step_pushed() -> None:
    counters = worker()
    for now in (10.0, 11.0):
        counters.step_began(now)
        counters.pushed(400)
        counters.pushed(100)
    counters.step_began(12.0)
    counters.pushed(400)
    seen = counters.observation(12.5, links(), HostEstimate(), 0.0)
    assert (seen.tensors, seen.model_bytes) == (2, 500)


def test_totals_of_links_and_process_become_what_happened_in_the_window() -> None:
    counters = worker()
    counters.observation(11.0, links(1000, 10, 20, 5.0, 0.25), HostEstimate(), cpu_seconds=2.0)
    counters.received(70)
    counters.received(30)
    for seconds in (0.001, 0.002, 0.009):
        counters.acknowledged(seconds)
    seen = counters.observation(12.0, links(1600, 14, 30, 6.0, 0.75), HostEstimate(), cpu_seconds=2.5)
    assert (seen.bytes_sent, seen.messages_sent, seen.partitions_sent) == (600, 4, 10)
    assert (seen.bytes_received, seen.ack_seconds) == (100, 0.002)
    assert (seen.queue_wait_seconds, seen.credit_stall_seconds, seen.cpu_seconds) == (0.1, 0.5, 0.5)


def test_a_server_reports_its_sums_per_window_and_malformed_frames_since_the_start() -> None:
    counters = Counters(Role.SERVER, rank=0, num_workers=2, num_servers=1, now=0.0)
    counters.summed(4096, 0.5)
    counters.summed(4096, 0.25)
    counters.malformed()
    seen = counters.observation(1.0, links(), HostEstimate(), 0.0)
    assert (seen.sum_bytes, seen.sum_seconds, seen.malformed) == (8192, 0.75, 1)
    seen = counters.observation(2.0, links(), HostEstimate(), 0.0)
    assert (seen.sum_bytes, seen.sum_seconds, seen.malformed) == (0, 0.0, 1)


def test_training_times_and_estimates_are_passed_on() -> None:
    counters = worker()
    counters.note_training(0.1, 0.2)
    counters.note_training(0.3, 0.6)
    bandwidth = Estimate(125e6, 0.01, 5)
    seen = counters.observation(11.0, links(), HostEstimate(bandwidth_bytes_per_second=bandwidth), 0.0)
    assert (seen.forward_seconds, seen.backward_seconds) == (0.2, 0.4)
    assert seen.bandwidth_bytes_per_second == bandwidth
    assert seen.latency_seconds is None
