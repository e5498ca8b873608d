"""The rule: where the formula points, and back where that does not pay."""

from __future__ import annotations

import msgspec
import pytest

from ps.config import KIB, MIB, CommConfig
from ps.stats import Estimate
from tests.tuner.cluster import Cluster, play, worker_window
from tuner.rule import Network, RuleTuner, partition_and_credit, saved_seconds

pytestmark = pytest.mark.timeout(20)

GIGABIT = 125e6  # bytes per second


def close(size_bytes: int, other_bytes: int, factor: float = 1.5) -> bool:
    return max(size_bytes, other_bytes) <= factor * min(size_bytes, other_bytes)


@pytest.mark.parametrize(
    ("gigabits", "latency_us", "overhead_us", "partition_bytes", "credit_bytes"),
    [
        (25, 100, 300, 1875000, 20937500),  # P = 2 o B; C = 8 P + 2 B (2 L + 2.5 o)
        (10, 50, 100, 250000, 2875000),
        (100, 20, 40, 1000000, 11500000),
        (10, 1000, 100, 250000, 7625000),
    ],
)
def test_formula(gigabits: int, latency_us: int, overhead_us: int, partition_bytes: int, credit_bytes: int) -> None:
    found = partition_and_credit(Network(gigabits * GIGABIT, latency_us * 1e-6, overhead_us * 1e-6))
    assert found == (pytest.approx(partition_bytes, abs=4 * KIB), pytest.approx(credit_bytes, abs=16 * KIB))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        # 2 o B is 2.5 kB: the least partition, and C = 8 P + ... for that
        (Network(GIGABIT, 100e-6, 10e-6), (64 * KIB, 576 * KIB)),
        # 200 Mbit/s: no more credit than the wire carries in 45 ms, but four partitions at least
        (Network(GIGABIT / 5, 20e-3, 300e-6), (64 * KIB, 1104 * KIB)),
        (Network(GIGABIT / 100, 5e-3, 300e-6), (64 * KIB, 256 * KIB)),
        # 100 Gbit/s with a slow processor: nothing above 8 MiB and 64 MiB
        (Network(100 * GIGABIT, 1e-3, 1e-3), (8 * MIB, 64 * MIB)),
    ],
)
def test_formula_stays_within_bounds(network: Network, expected: tuple[int, int]) -> None:
    assert partition_and_credit(network) == expected


@pytest.mark.parametrize("gigabits", [25, 40])
def test_goes_where_the_formula_points_when_that_is_larger(gigabits: int) -> None:
    network = Network(gigabits * GIGABIT, 100e-6, 300e-6)
    cluster = Cluster(network, model_bytes=400e6, compute_seconds=0.05)
    start = CommConfig()
    end = play(RuleTuner(start), cluster, start, windows=30)[-1]
    assert (end.partition_bytes, end.credit_bytes) == partition_and_credit(network)
    assert cluster.step_seconds(end) < 0.9 * cluster.step_seconds(start)


def test_goes_down_as_far_as_that_pays() -> None:
    """From 8 MiB and 64 MiB in quarters towards the formula's 152 KiB and 1 MiB."""
    network = Network(4 * GIGABIT, 50e-6, 150e-6)
    cluster = Cluster(network, compute_seconds=0.05)
    start = CommConfig(partition_bytes=8 * MIB, credit_bytes=64 * MIB)
    history = play(RuleTuner(start), cluster, start, windows=120)
    assert cluster.step_seconds(history[-1]) < 1.1 * cluster.best_seconds(start)
    for before, after in zip(history, history[1:]):
        assert after.partition_bytes >= before.partition_bytes // 4
        assert after.credit_bytes >= before.credit_bytes // 4


def test_the_credit_grows_although_a_smaller_partition_would_not_pay() -> None:
    """40 Gbit/s far away: 4 MiB of credit are a tenth of what is on the way; P would fall to 112 KiB for nothing."""
    network = Network(40 * GIGABIT, 600e-6, 11e-6)
    cluster = Cluster(network, model_bytes=400e6, compute_seconds=0.015)
    start = CommConfig()
    end = play(RuleTuner(start), cluster, start, windows=40)[-1]
    assert end.partition_bytes == start.partition_bytes
    assert end.credit_bytes == partition_and_credit(network)[1]
    assert cluster.step_seconds(end) < 0.8 * cluster.step_seconds(start)


def test_proposes_once_and_says_why() -> None:
    tuner = RuleTuner(CommConfig())
    cluster = Cluster(Network(25 * GIGABIT, 100e-6, 300e-6), compute_seconds=0.05)
    proposals = []
    for window in range(60):
        tuner.observe(cluster.window(CommConfig()))
        proposals.append(tuner.propose(window))
    made = [proposal for proposal in proposals if proposal is not None]
    assert len(made) == 1
    assert made[0].reason == "rule for B = 25 Gbit/s, L = 100 us, o = 300 us"


def test_waits_for_estimates_steps_and_windows() -> None:
    tuner = RuleTuner(CommConfig())
    network = {
        "bandwidth_bytes_per_second": Estimate(25 * GIGABIT, 0.0, 5),
        "overhead_seconds": Estimate(300e-6, 0.0, 2),  # too few
    }
    for window in range(10):
        tuner.observe([worker_window(rank, 0.1, 10, **network) for rank in (0, 1)])
        assert tuner.propose(window) is None
    network["overhead_seconds"] = Estimate(300e-6, 0.0, 3)
    waited = 0
    while tuner.propose(waited) is None:
        tuner.observe([worker_window(rank, 0.1, 10, **network) for rank in (0, 1)])
        waited += 1
    assert waited == 6  # one to see the target, five windows to measure the step


def test_an_unknown_latency_does_not_stop_it() -> None:
    tuner = RuleTuner(CommConfig())
    proposal = None
    for window in range(8):
        tuner.observe(
            [
                worker_window(
                    rank,
                    0.1,
                    10,
                    bandwidth_bytes_per_second=Estimate(25 * GIGABIT, 0.0, 5),
                    overhead_seconds=Estimate(300e-6, 0.0, 5),
                )
                for rank in (0, 1)
            ]
        )
        proposal = proposal or tuner.propose(window)
    assert proposal is not None and close(proposal.config.credit_bytes, 21 * MIB)


def test_small_differences_are_left_alone() -> None:
    """The target is 0.7 of the partition and 0.8 of the credit in force: within the hysteresis."""
    partition_bytes, credit_bytes = partition_and_credit(network := Network(10 * GIGABIT, 50e-6, 100e-6))
    start = CommConfig(partition_bytes=int(partition_bytes * 1.4), credit_bytes=int(credit_bytes * 1.25))
    assert set(play(RuleTuner(start), Cluster(network), start, windows=30)) == {start}


@pytest.mark.parametrize("seed", range(5))
def test_wrong_estimates_cannot_make_it_worse(seed: int) -> None:
    """The nodes believe in a thirtieth of the overhead: the formula points at a partition that is far too small."""
    truth = Network(25 * GIGABIT, 100e-6, 300e-6)
    start = CommConfig(partition_bytes=2 * MIB, credit_bytes=16 * MIB)
    cluster = Cluster(
        truth, compute_seconds=0.05, noise=0.02, seed=seed, estimates=truth._replace(overhead_seconds=10e-6)
    )
    history = play(RuleTuner(start), cluster, start, windows=300)
    assert history[-1] == start
    on_trial = [config for config in history if config != start]
    assert 1 <= len(on_trial) <= 6  # each was ended early


def test_what_smaller_can_save() -> None:
    """20 MB at 1 Gbit/s: 3 MiB less of credit and 2 * 384 KiB less of partitions, for 114 messages more of 50 us."""
    small = CommConfig(partition_bytes=128 * KIB, credit_bytes=1 * MIB)
    saved = saved_seconds(CommConfig(), small, Network(GIGABIT, 0.0, 100e-6), model_bytes=20_000_000)
    assert saved == pytest.approx((3.75 * MIB) / GIGABIT - 114.44 * 50e-6, rel=1e-3)


def test_smaller_is_not_tried_where_it_cannot_pay() -> None:
    """As on loopback with two cores: messages are dear, and the credit is hardly in the way of a step."""
    network = Network(4 * GIGABIT, 50e-6, 60e-6)
    cluster = Cluster(network, model_bytes=100e6, compute_seconds=0.3)
    assert partition_and_credit(network)[0] == 64 * KIB
    assert set(play(RuleTuner(CommConfig()), cluster, CommConfig(), windows=60)) == {CommConfig()}


def test_smaller_for_no_gain_is_taken_back() -> None:
    """The formula expects 20 ms of 100, but a step takes what it took: the larger comes back, and stays."""
    tuner = RuleTuner(CommConfig())
    network = {
        "bandwidth_bytes_per_second": Estimate(GIGABIT, 0.0, 5),
        "overhead_seconds": Estimate(20e-6, 0.0, 5),
        "model_bytes": 100_000_000,
    }
    proposals = []
    for now in range(60):
        tuner.observe([worker_window(rank, 0.1, 10, **network) for rank in (0, 1)])
        proposals.append(tuner.propose(now))
    down, back = [proposal for proposal in proposals if proposal is not None]
    assert down.config == CommConfig(partition_bytes=128 * KIB, credit_bytes=1 * MIB)
    assert back.config == CommConfig()
    assert back.reason == "taken back: a step takes 100% of what it took, and smaller has to be faster"


def test_the_step_time_never_stays_above_the_start_while_overhead_estimates_jump() -> None:
    """On loopback the estimates wander by factors. The mean step over the whole run stays near the default's."""
    start = CommConfig()
    truth = Network(16 * GIGABIT, 30e-6, 100e-6)
    cluster = Cluster(truth, model_bytes=50e6, compute_seconds=0.02, noise=0.03, seed=1)
    tuner = RuleTuner(start)
    config = start
    total = 0.0
    for window in range(600):
        factor = (0.3, 1.0, 4.0)[window // 40 % 3]
        cluster.estimates = truth._replace(overhead_seconds=factor * truth.overhead_seconds)
        total += cluster.step_seconds(config)
        tuner.observe(cluster.window(config))
        proposal = tuner.propose(window)
        config = proposal.config if proposal else config
    assert total / 600 < 1.03 * cluster.step_seconds(start)


def test_a_trial_in_which_nothing_ends_is_given_up() -> None:
    cluster = Cluster(Network(25 * GIGABIT, 100e-6, 300e-6), compute_seconds=0.05)
    tuner = RuleTuner(CommConfig())
    for _ in range(6):
        tuner.observe(cluster.window(CommConfig()))
        proposal = tuner.propose(now=0.0)
    assert proposal is not None
    assert tuner.propose(now=9.0) is None
    back = tuner.propose(now=11.0)
    assert back is not None and back.config == CommConfig()
    assert back.reason == "taken back: no step has ended for 10 s"


def test_follows_a_change_of_the_network() -> None:
    """Overhead rises tenfold in the middle of a run: partition and credit follow."""
    start = CommConfig()
    cluster = Cluster(Network(25 * GIGABIT, 50e-6, 80e-6), model_bytes=400e6, compute_seconds=0.05)
    tuner = RuleTuner(start)
    first = play(tuner, cluster, start, windows=60)[-1]
    cluster.network = Network(25 * GIGABIT, 50e-6, 400e-6)
    second = play(tuner, cluster, first, windows=60, start=60.0)[-1]
    assert close(second.partition_bytes, 5 * first.partition_bytes)
    assert cluster.step_seconds(second) < 0.8 * cluster.step_seconds(first)


def test_only_partition_and_credit_are_touched() -> None:
    start = CommConfig(fusion_bytes=12345, epoch=7)
    cluster = Cluster(Network(25 * GIGABIT, 100e-6, 300e-6), compute_seconds=0.05)
    end = play(RuleTuner(start), cluster, start, windows=30)[-1]
    assert end == msgspec.structs.replace(start, partition_bytes=end.partition_bytes, credit_bytes=end.credit_bytes)
