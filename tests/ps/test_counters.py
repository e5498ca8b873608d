"""From counters to observations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import pytest

from ps.config import Role
from ps.counters import Counters
from ps.estimate import HostEstimate
from ps.layers import StepTimes
from ps.stats import Estimate, LayerGroup, LinkEstimate, Observation

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


def observe(
    counters: Counters,
    now: float,
    totals: Optional[SimpleNamespace] = None,
    received: int = 0,
    thread: float = 0.0,
    cpu: float = 0.0,
    **estimates: Any,
) -> Observation:
    return counters.observation(now, totals or links(), HostEstimate(**estimates), received, thread, cpu)


def test_an_observation_says_who_when_and_under_which_epoch() -> None:
    counters = worker()
    counters.switched(epoch=4)
    seen = observe(counters, 12.5)
    assert (seen.role, seen.rank, seen.num_workers, seen.num_servers) == (Role.WORKER, 1, 2, 3)
    assert (seen.epoch, seen.window_seconds) == (4, 2.5)
    assert (seen.steps, seen.step_seconds, seen.queue_wait_seconds, seen.ack_seconds) == (0, None, None, None)


def test_steps_are_counted_and_their_median_reported() -> None:
    counters = worker()
    for now in (10.0, 10.1, 10.3, 10.4, 11.4):
        counters.step_began(now)
    seen = observe(counters, 12.0)
    assert seen.steps == 4
    assert seen.step_seconds == pytest.approx(0.15)


def test_a_step_over_the_edge_of_a_window_belongs_to_the_window_in_which_it_ends() -> None:
    counters = worker()
    counters.step_began(10.0)
    assert observe(counters, 11.0).steps == 0
    counters.step_began(13.0)
    seen = observe(counters, 14.0)
    assert (seen.steps, seen.step_seconds) == (1, 3.0)


def test_the_step_of_a_switch_and_the_next_are_of_no_epoch() -> None:
    counters = worker()
    for now in (10.0, 11.0, 12.0):
        counters.step_began(now)
    counters.switched(epoch=1)
    for now in (13.0, 18.0, 20.0):  # 12..13 saw the switch, 13..18 is the next, 18..20 counts
        counters.step_began(now)
    seen = observe(counters, 21.0)
    assert (seen.epoch, seen.steps, seen.step_seconds) == (1, 1, 2.0)


def test_model_is_what_steps_push_wherever_their_boundary_falls() -> None:
    counters = worker()
    seen = []
    for step, others in enumerate(((2, 1), (1, 2), (), (2, 1, 2))):  # tensor 2 is ready before the first key, or after
        counters.step_began(10.0 + step)
        counters.pushed(0, 400)
        for tensor in others:
            counters.pushed(tensor, 100 * tensor)
        seen.append(observe(counters, 10.5 + step))
    assert [(each.tensors, each.model_bytes) for each in seen] == [(0, 0), (3, 700), (3, 700), (3, 700)]


def test_what_is_not_pushed_any_more_is_no_part_of_the_model() -> None:
    counters = worker()
    for step in range(5):
        counters.step_began(10.0 + step)
        counters.pushed(0, 400)
        if step == 0:
            counters.pushed(1, 100)
    seen = observe(counters, 15.0)
    assert (seen.tensors, seen.model_bytes) == (1, 400)


def test_worker_0_tells_the_sizes_of_the_tensors_in_forward_order() -> None:
    sizes = []
    for rank in (0, 1):
        counters = worker()
        counters.rank = rank
        counters.step_began(10.0)
        for index in (2, 1, 0):  # as a backward pass yields gradients
            counters.pushed(index, 100 + index, priority=-index)
        counters.step_began(11.0)
        sizes.append(observe(counters, 11.5).tensor_bytes)
    assert sizes == [(100, 101, 102), ()]


def test_totals_of_links_and_process_become_what_happened_in_the_window() -> None:
    counters = worker()
    observe(counters, 11.0, links(1000, 10, 20, 5.0, 0.25), 500, 1.0, 2.0, send_busy_seconds=3.0)
    for seconds in (0.001, 0.002, 0.009):
        counters.acknowledged(seconds)
    busy = {"send_busy_seconds": 3.5, "receive_busy_seconds": 0.25}
    seen = observe(counters, 12.0, links(1600, 14, 30, 6.0, 0.75), 600, 1.125, 2.5, **busy)
    assert (seen.bytes_sent, seen.messages_sent, seen.partitions_sent) == (600, 4, 10)
    assert (seen.bytes_received, seen.ack_seconds) == (100, 0.002)
    assert (seen.queue_wait_seconds, seen.credit_stall_seconds) == (0.1, 0.5)
    assert (seen.send_busy_seconds, seen.receive_busy_seconds) == (0.5, 0.25)
    assert (seen.thread_seconds, seen.cpu_seconds) == (0.125, 0.5)


def test_a_server_reports_its_sums_per_window_and_malformed_frames_since_the_start() -> None:
    counters = Counters(Role.SERVER, rank=0, num_workers=2, num_servers=1, now=0.0)
    counters.summed(4096, 0.5)
    counters.summed(4096, 0.25)
    counters.malformed()
    seen = observe(counters, 1.0)
    assert (seen.sum_bytes, seen.sum_seconds, seen.malformed) == (8192, 0.75, 1)
    seen = observe(counters, 2.0)
    assert (seen.sum_bytes, seen.sum_seconds, seen.malformed) == (0, 0.0, 1)


def test_the_rate_of_summation_comes_from_messages_whose_bytes_take_the_time() -> None:
    """20 ms of summing make a sample; a small message costs as much as a large one and tells nothing."""
    counters = Counters(Role.SERVER, rank=0, num_workers=2, num_servers=1, now=0.0)
    for _ in range(60):
        counters.summed(1_000_000, 0.001)
        counters.summed(400, 0.001)
    rate = observe(counters, 1.0).sum_bytes_per_second
    assert rate and rate.value == pytest.approx(1e9)
    assert rate.samples in (2, 3)  # the last one may be open
    for _ in range(70):
        counters.summed(1_000_000, 0.004)
    rate = observe(counters, 2.0).sum_bytes_per_second
    assert rate and rate.value == pytest.approx(2.5e8)


def step(forward_seconds: float) -> StepTimes:
    return StepTimes(
        priorities=(0, -1),
        sizes_bytes=(400, 100),
        ready_seconds=(0.4, 0.1),
        recorded_seconds=forward_seconds,
    )


def test_training_times_are_reported_with_the_steps_and_the_model_stays_known() -> None:
    counters = worker()
    assert observe(counters, 10.5).layers == ()
    for forward_seconds in (0.1, 0.2, 0.3):
        counters.note_training(step(forward_seconds))
    seen = observe(counters, 11.0)
    assert (seen.forward_seconds, seen.backward_seconds) == (0.2, 0.4)
    assert seen.layers == (LayerGroup(1, 400, 150_000, 300_000), LayerGroup(1, 100, 50_000, 100_000))
    later = observe(counters, 12.0)
    assert (later.forward_seconds, later.backward_seconds, later.layers) == (None, None, seen.layers)


def test_estimates_are_passed_on() -> None:
    known = {
        "bandwidth_bytes_per_second": Estimate(125e6, 0.01, 5),
        "receive_bandwidth_bytes_per_second": Estimate(120e6, 0.02, 6),
        "byte_seconds": Estimate(1e-9, 0.1, 7),
        "links": (LinkEstimate(2, None, Estimate(110e6, 0.1, 9)),),
    }
    seen = observe(worker(), 11.0, **known)
    assert {name: getattr(seen, name) for name in known} == known
    assert seen.latency_seconds is None


def test_steps_that_have_left_their_band_are_told_without_those_before() -> None:
    counters = worker()
    now = 10.0
    for seconds in (*[0.1] * 8, 0.2, 0.2):
        counters.step_began(now)
        now += seconds
    counters.step_began(now)
    assert counters.attention.due(now)
    seen = observe(counters, now)
    assert (seen.steps, seen.step_seconds) == (2, pytest.approx(0.2))


def test_a_step_that_is_overdue_is_told_once() -> None:
    counters = worker()
    for number in range(9):
        counters.step_began(10.0 + 0.1 * number)
    assert counters.overdue_at == pytest.approx(11.0)
    counters.overdue(11.0)
    assert counters.attention.due(11.0)
    assert observe(counters, 11.0).overdue_seconds == pytest.approx(0.2)
    assert observe(counters, 11.1).overdue_seconds is None
    assert counters.overdue_at == float("inf")
