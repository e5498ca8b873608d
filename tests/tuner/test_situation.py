"""Observations of many nodes, summarised; rounds of them; and what simulated nodes report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps.config import CommConfig, Role
from ps.stats import Estimate, Observation
from tuner.conditions import Conditions
from tuner.observed import EstimateErrors, observations_of, situation_of
from tuner.profiles import ModelProfile, TensorProfile
from tuner.rounds import Rounds
from tuner.simulator import Simulated
from tuner.situation import Across, HostView, Situation

pytestmark = pytest.mark.timeout(10)

CONFIG = CommConfig()
PROFILE = ModelProfile("two", (TensorProfile("a", 8_000_000, 0.01, 0.02), TensorProfile("b", 4_000_000, 0.01, 0.02)))
CONDITIONS = Conditions.uniform(2, 1, 1.25e9, 50e-6, 100e-6)
SIMULATED = Simulated(
    step_seconds=0.1,
    worker_step_seconds=(0.1, 0.1),
    first_tensor_seconds=0.01,
    forward_seconds=0.03,
    backward_seconds=0.04,
    queue_wait_seconds=0.005,
    credit_stall_seconds=0.02,
    ack_seconds=0.001,
    messages=24,
    partitions=24,
    thread_seconds=0.01,
    events=100,
)


def seen(role: Role, rank: int, **fields: Any) -> Observation:
    known = {"epoch": 0, "window_seconds": 1.0, "num_workers": 2, "num_servers": 1}
    return Observation(role=role, rank=rank, **{**known, **fields})


def worker(rank: int, **fields: Any) -> Observation:
    return seen(Role.WORKER, rank, **{"steps": 10, "step_seconds": 0.1, **fields})


def server(**fields: Any) -> Observation:
    return seen(Role.SERVER, 0, **fields)


def summary(*observations: Observation) -> Situation:
    situation = Situation.from_observations(observations, CONFIG)
    assert situation is not None
    return situation


# -------------------------------------------------------------------------------------------- summary


def test_without_a_worker_there_is_no_situation() -> None:
    assert Situation.from_observations([], CONFIG) is None
    assert Situation.from_observations([server()], CONFIG) is None


def test_what_nobody_has_observed_is_none() -> None:
    assert summary(seen(Role.WORKER, 0)) == Situation(
        config=CONFIG,
        num_workers=2,
        num_servers=1,
        workers=(HostView(), HostView()),
        servers=(HostView(),),
    )


def test_step_times_are_medians_over_workers_and_windows() -> None:
    times = [worker(0, step_seconds=0.1), worker(1, step_seconds=0.12), worker(0, step_seconds=0.3)]
    assert summary(*times).step_seconds == 0.12


def test_of_each_node_the_last_estimate_counts() -> None:
    def estimated(rank: int, rate: float) -> Observation:
        return worker(rank, bandwidth_bytes_per_second=Estimate(rate, 0.02, 9))

    situation = summary(estimated(0, 9e9), estimated(0, 1e9), estimated(1, 3e9))
    assert [host.send_bytes_per_second for host in situation.workers] == [1e9, 3e9]
    assert situation.bandwidth_bytes_per_second == Across(1e9, 2e9, 3e9, 0.02)


def test_an_estimate_on_few_samples_is_not_used() -> None:
    situation = summary(worker(0, overhead_seconds=Estimate(1e-4, 0.1, 2)))
    assert situation.overhead_seconds is None


def test_latency_is_that_of_the_side_whose_acknowledgements_wait_less() -> None:
    """Those of a server come back behind the pushes of its workers."""

    def seconds(*milliseconds: float) -> list[Estimate]:
        return [Estimate(1e-3 * value, 0.1, 9) for value in milliseconds]

    near, far, queued = seconds(0.1, 0.3, 30)
    found = summary(worker(0, latency_seconds=near), worker(1, latency_seconds=far), server(latency_seconds=queued))
    assert found.latency_seconds == Across(1e-4, 1e-4, pytest.approx(3e-4), 0.1)
    found = summary(worker(0, latency_seconds=queued), server(latency_seconds=near))
    assert found.latency_seconds == Across(1e-4, 1e-4, 1e-4, 0.1)
    assert summary(worker(0), server(latency_seconds=near)).latency_seconds == Across(1e-4, 1e-4, 1e-4, 0.1)


def test_forward_is_the_part_of_backward_that_it_is_on_the_worker_that_waits_least() -> None:
    fast = worker(0, forward_seconds=0.1, backward_seconds=0.2)
    slow = worker(1, forward_seconds=0.9, backward_seconds=0.4)  # twice as slow, and its sums are late
    found = summary(fast, slow)
    assert found.backward_seconds == pytest.approx(0.3)
    assert found.forward_seconds == pytest.approx(0.15)
    assert [host.forward_seconds for host in found.workers] == [0.1, 0.2]


def test_servers_tell_how_fast_they_sum_and_the_slowest_counts() -> None:
    assert summary(worker(0), server(sum_bytes=4_000, sum_seconds=2.0)).sum_bytes_per_second == 2000
    assert summary(worker(0), server()).sum_bytes_per_second is None


def test_use_of_the_wire_and_stalls_are_parts_of_the_window() -> None:
    known = Estimate(1e9, 0.01, 9)
    situation = summary(
        worker(0, bytes_sent=250_000_000, bandwidth_bytes_per_second=known, credit_stall_seconds=0.3),
        worker(1, bytes_sent=500_000_000, bandwidth_bytes_per_second=known, credit_stall_seconds=0.3),
    )
    assert (situation.worker_use, situation.server_use, situation.credit_stall) == (0.5, None, 0.3)


# --------------------------------------------------------------------------------------------- rounds


def test_a_round_closes_when_all_nodes_have_reported() -> None:
    rounds = Rounds()
    assert rounds.add([worker(0), worker(1)]) == []
    (closed,) = rounds.add([server()])
    assert [one.role for one in closed.observations] == [Role.WORKER, Role.WORKER, Role.SERVER]
    assert (closed.step_seconds, closed.steps) == (0.1, 10)


def test_later_rounds_wait_for_workers_only_and_have_what_each_server_has_said_last() -> None:
    rounds = Rounds()
    (first,) = rounds.add([server(), worker(0), worker(1)])
    (second,) = rounds.add([worker(1), worker(0)])
    assert second.observations[2] is first.observations[2]
    assert rounds.add([server(), server()]) == []


def test_a_round_closes_when_a_node_reports_again() -> None:
    closed = Rounds().add([worker(0), worker(0), worker(0)])
    assert [len(one.observations) for one in closed] == [1, 1]


def test_an_open_round_is_forgotten_at_a_switch() -> None:
    rounds = Rounds()
    rounds.add([worker(0), worker(1)])
    rounds.clear()
    assert rounds.add([worker(0), worker(1)]) == []


# ------------------------------------------------------------------------------------- simulated nodes


def test_simulated_nodes_report_what_real_ones_would() -> None:
    observations = observations_of(PROFILE, CONDITIONS, CONFIG, SIMULATED, np.random.default_rng(0))
    assert [(one.role.value, one.rank) for one in observations] == [("worker", 0), ("worker", 1), ("server", 0)]
    first, _, last = observations
    assert (first.steps, first.step_seconds, first.model_bytes) == (10, 0.1, 12_000_000)
    assert first.tensor_bytes == (8_000_000, 4_000_000)
    assert first.bytes_sent == 120_000_000
    assert last.sum_bytes == 240_000_000
    assert first.overhead_seconds == Estimate(100e-6, 0.0, 9)


def test_a_window_in_which_no_step_ended_says_so() -> None:
    first = observations_of(PROFILE, CONDITIONS, CONFIG, SIMULATED, np.random.default_rng(0), steps=0)[0]
    assert (first.steps, first.step_seconds, first.forward_seconds) == (0, None, None)


def test_errors_are_shared_by_all_hosts_and_bandwidth_is_the_most_exact() -> None:
    rng = np.random.default_rng(0)
    draws = [EstimateErrors.draw(rng, 0.4) for _ in range(500)]
    assert np.std(np.log([draw.overhead for draw in draws])) == pytest.approx(0.4, rel=0.1)
    assert np.std(np.log([draw.bandwidth for draw in draws])) == pytest.approx(0.05, rel=0.1)
    doubled = EstimateErrors(overhead=2.0)
    situation = Situation.from_observations(
        observations_of(PROFILE, CONDITIONS, CONFIG, SIMULATED, rng, doubled), CONFIG
    )
    assert situation is not None
    assert situation.overhead_seconds == Across(200e-6, 200e-6, 200e-6, 0.0)


def test_the_situation_of_a_simulated_job_depends_on_the_seed_alone() -> None:
    one, same, other = (
        situation_of(PROFILE, CONDITIONS, CONFIG, SIMULATED, np.random.default_rng(seed), 0.3) for seed in (1, 1, 2)
    )
    assert one == same != other
