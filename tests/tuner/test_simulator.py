"""The simulator against closed forms: wire, latency, overhead, computation, sums, and what priority brings."""

from __future__ import annotations

import msgspec
import pytest

from ps.config import KIB, MIB, CommConfig, server_config
from ps.transfer import SPAN_COST
from tuner.conditions import Conditions, Host
from tuner.profiles import ModelProfile, TensorProfile
from tuner.simulator import Simulated, simulate

pytestmark = pytest.mark.timeout(60)

GIGABIT = 125e6  # bytes per second
FAST = 1e15  # a rate at which nothing takes time

UNSLICED = CommConfig(partition_bytes=1 << 30, credit_bytes=1 << 36, fusion_bytes=0)


def model(*sizes_bytes: int, forward_seconds: float = 0.0, backward_seconds: float = 0.0) -> ModelProfile:
    """Return a model whose tensors all take so long to compute."""
    tensors = (TensorProfile(f"t{at}", size, forward_seconds, backward_seconds) for at, size in enumerate(sizes_bytes))
    return ModelProfile("model", tuple(tensors))


def uniform(
    num_workers: int, num_servers: int, bandwidth: float = FAST, latency: float = 0.0, overhead: float = 0.0
) -> Conditions:
    return Conditions.uniform(num_workers, num_servers, bandwidth, latency, overhead, sum_bytes_per_second=FAST)


# --------------------------------------------------------------------------------------------- the wire


@pytest.mark.parametrize(
    ("num_workers", "num_servers", "seconds"),
    [
        (1, 1, 0.2),  # 25 MB at 125 MB/s; answers flow the other way at the same time
        (2, 2, 0.2),
        (2, 1, 0.4),  # the server receives 50 MB
        (1, 4, 0.2),
        (4, 2, 0.4),
    ],
)
def test_a_step_without_computation_takes_the_ideal_of_the_wire(
    num_workers: int, num_servers: int, seconds: float
) -> None:
    """A server that answers more workers than there are servers has as much more credit: see the next test."""
    worker = CommConfig(partition_bytes=128 * KIB, credit_bytes=MIB)
    server = CommConfig(partition_bytes=128 * KIB, credit_bytes=MIB * max(1, num_workers // num_servers))
    configs = [worker] * num_workers + [server] * num_servers
    simulated = simulate(model(*[2_500_000] * 10), uniform(num_workers, num_servers, GIGABIT, 50e-6), configs)
    assert seconds < simulated.step_seconds < 1.04 * seconds


def test_a_server_has_the_credit_to_answer_all_workers_while_they_push() -> None:
    """With that of one of two workers half of the answers would come after all pushes.

    Measured on real processes before servers had more: 16 tensors of 4 MB, 2 workers, 1 server, 400 Mbit/s, 1.49 times
    the ideal.
    """
    conditions = uniform(2, 1, 382.6e6 / 8, 50e-6)
    tensors = model(*[4_000_000] * 16)
    assert simulate(tensors, conditions, CommConfig()).step_seconds == pytest.approx(1.03 * 2.677, rel=0.02)
    of_one = simulate(tensors, conditions, [CommConfig()] * 3)
    assert of_one.step_seconds == pytest.approx(1.49 * 2.677, rel=0.02)


def test_one_whole_message_pays_both_ways_and_all_latencies() -> None:
    """Gradient 2 ms, 125 kB to the server and back 1 ms each, twice 10 ms of latency, forward 1 ms."""
    one = model(125_000, forward_seconds=0.001, backward_seconds=0.002)
    simulated = simulate(one, uniform(1, 1, GIGABIT, 0.010), UNSLICED)
    assert simulated.step_seconds == pytest.approx(0.025, rel=1e-3)
    assert simulated.first_tensor_seconds == pytest.approx(0.022, rel=1e-3)
    assert simulated.ack_seconds == pytest.approx(0.021, rel=1e-3)
    assert simulated.forward_seconds == pytest.approx(0.001)
    assert (simulated.backward_seconds, simulated.messages, simulated.partitions) == (0.002, 1.0, 1.0)


def test_the_slower_network_card_of_two_sets_the_rate() -> None:
    fast, slow = 10 * GIGABIT, GIGABIT
    worker = Host(send_bytes_per_second=fast, receive_bytes_per_second=fast)
    server = Host(send_bytes_per_second=fast, receive_bytes_per_second=slow)
    one_way = Conditions(workers=(worker,), servers=(server,), latency_seconds=0.0, sum_bytes_per_second=FAST)
    assert simulate(model(*[MIB] * 100), one_way, CommConfig()).step_seconds == pytest.approx(
        100 * MIB / slow, rel=0.02
    )


def test_a_slow_network_card_sets_the_time_of_the_step_and_holds_up_nobody_else() -> None:
    fast = Host(send_bytes_per_second=GIGABIT, receive_bytes_per_second=GIGABIT)
    slow = Host(send_bytes_per_second=GIGABIT / 10, receive_bytes_per_second=GIGABIT / 10)
    conditions = Conditions(workers=(fast, slow), servers=(fast, fast), latency_seconds=0.0, sum_bytes_per_second=FAST)
    simulated = simulate(model(*[MIB] * 20), conditions, CommConfig())
    assert simulated.step_seconds == pytest.approx(20 * MIB / (GIGABIT / 10), rel=0.06)


# -------------------------------------------------------------------------------- latency and overhead


def test_with_one_message_in_flight_every_partition_takes_a_round_trip() -> None:
    """16 partitions of 64 KiB: 0.5 ms on the wire, 2 ms for message and acknowledgement; the last answer ends it."""
    config = CommConfig(partition_bytes=64 * KIB, credit_bytes=1, fusion_bytes=0)
    simulated = simulate(model(MIB), uniform(1, 1, GIGABIT, 0.001), config)
    message = (64 * KIB + 64) / GIGABIT
    round_trip = message + 0.002 + 64 / GIGABIT
    assert simulated.step_seconds == pytest.approx(15 * round_trip + 2 * (message + 0.001), rel=0.01)
    assert simulated.credit_stall_seconds == pytest.approx(15 * round_trip, rel=0.01)
    assert simulated.queue_wait_seconds == pytest.approx(7.5 * round_trip, rel=0.01)


def test_where_messages_are_costly_the_communication_thread_is_busy_with_each_twice() -> None:
    """32 messages in, 32 out, 1 ms each, at both ends; the last one is taken by the server and comes back."""
    config = CommConfig(partition_bytes=32 * KIB, fusion_bytes=0)
    simulated = simulate(model(MIB), uniform(1, 1, overhead=0.001), config)
    assert simulated.step_seconds == pytest.approx(0.064, abs=0.0031)
    assert simulated.thread_seconds == pytest.approx(0.064, abs=0.0011)
    assert simulated.messages == 32


def test_bytes_cost_the_communication_thread_their_time() -> None:
    conditions = Conditions.uniform(1, 1, FAST, 0.0, byte_seconds=1e-8, sum_bytes_per_second=FAST)
    simulated = simulate(model(*[MIB] * 10), conditions, CommConfig(partition_bytes=64 * KIB))
    assert simulated.step_seconds == pytest.approx(2 * 10 * MIB * 1e-8, rel=0.05)


def test_small_tensors_are_packed_into_one_message() -> None:
    small = model(*[1000] * 60)
    unpacked = simulate(small, uniform(1, 1, overhead=0.001), CommConfig(fusion_bytes=0))
    packed = simulate(small, uniform(1, 1, overhead=0.001), CommConfig(fusion_bytes=64 * KIB))
    assert (unpacked.messages, unpacked.partitions) == (60, 60)
    assert (packed.messages, packed.partitions) == (2, 60)  # the first leaves alone, at once
    assert unpacked.thread_seconds == pytest.approx(0.120)
    assert packed.thread_seconds == pytest.approx(0.001 * 2 * (2 + 58 * SPAN_COST))
    assert packed.step_seconds < 0.6 * unpacked.step_seconds


# ----------------------------------------------------------------------------- computation and priority


def test_without_communication_a_step_is_its_computation() -> None:
    simulated = simulate(
        model(*[1000] * 20, forward_seconds=0.002, backward_seconds=0.003), uniform(2, 2), CommConfig()
    )
    assert simulated.step_seconds == pytest.approx(0.1, rel=1e-6)


def test_communication_hides_behind_computation() -> None:
    """50 ms of bytes behind 100 ms of computation: only what the last gradient has still to go is felt."""
    compute = model(*[MIB] * 6, forward_seconds=0.006, backward_seconds=0.0107)
    simulated = simulate(compute, uniform(2, 2, GIGABIT, 10e-6), CommConfig(partition_bytes=128 * KIB))
    assert 0.1 < simulated.step_seconds < 0.112


def test_a_slow_worker_sets_the_time_of_all() -> None:
    one = model(1000, forward_seconds=0.010, backward_seconds=0.020)
    quick = Host(send_bytes_per_second=FAST, receive_bytes_per_second=FAST)
    slow = msgspec.structs.replace(quick, speed=0.5)
    conditions = Conditions(workers=(quick, slow), servers=(quick,), latency_seconds=0.0)
    simulated = simulate(one, conditions, CommConfig())
    assert simulated.worker_step_seconds == pytest.approx((0.060, 0.060), rel=1e-3)
    assert simulated.backward_seconds == pytest.approx(0.030)  # the mean of 20 and 40 ms


def test_a_server_sums_what_all_workers_send() -> None:
    conditions = Conditions.uniform(4, 1, FAST, 0.0, sum_bytes_per_second=1e9)
    assert simulate(model(*[10**6] * 25), conditions, CommConfig()).step_seconds == pytest.approx(0.1, rel=0.02)


def test_priority_brings_the_first_tensor_early_and_credit_bounds_how_early() -> None:
    """All gradients at once: 80 MB take 0.64 s, and the first tensor waits for the credit in front of it only."""
    conditions, all_at_once = uniform(1, 1, GIGABIT, 50e-6), model(*[4 * MIB] * 20)
    little = simulate(all_at_once, conditions, CommConfig(partition_bytes=256 * KIB, credit_bytes=MIB))
    much = simulate(all_at_once, conditions, CommConfig(partition_bytes=256 * KIB, credit_bytes=16 * MIB))
    whole = simulate(all_at_once, conditions, UNSLICED)
    first_alone = 4 * MIB / GIGABIT
    assert first_alone < little.first_tensor_seconds < first_alone + 2 * MIB / GIGABIT
    assert 1.5 * little.first_tensor_seconds < much.first_tensor_seconds < 0.3
    assert whole.first_tensor_seconds > 0.6


# --------------------------------------------------------------------------------------- configurations


def test_workers_may_cut_differently() -> None:
    small, large = CommConfig(partition_bytes=64 * KIB), CommConfig(partition_bytes=MIB)
    conditions = uniform(2, 1, GIGABIT, 50e-6)
    mixed = simulate(model(*[MIB] * 4), conditions, [small, large])
    assert mixed.messages == (64 + 4) / 2
    assert simulate(model(*[MIB] * 4), conditions, [small, large, server_config(small, 2, 1)]) == mixed


def test_the_number_of_configurations_is_checked() -> None:
    with pytest.raises(ValueError, match=r"3 configurations: expected one, or 2 \(one per worker\), or 4"):
        simulate(model(MIB), uniform(2, 2), [CommConfig()] * 3)


def test_the_first_step_counts_only_alone() -> None:
    def run(steps: int) -> Simulated:
        return simulate(model(MIB, MIB), uniform(1, 1, GIGABIT), CommConfig(), steps)

    assert run(1).step_seconds == pytest.approx(
        run(4).step_seconds, rel=0.01
    )  # nothing is left over from the step before
    assert run(4) == run(4)


def test_conditions_are_checked() -> None:
    with pytest.raises(ValueError, match="send_bytes_per_second must be a finite number above 0, not 0"):
        Host(send_bytes_per_second=0, receive_bytes_per_second=1.0)
    with pytest.raises(ValueError, match="at least one worker"):
        Conditions.uniform(0, 1, GIGABIT, 0.0)
