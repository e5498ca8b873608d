"""The compiled simulator does what the pure one does, event by event; and what stands for several workers is close."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from ps.config import KIB, MIB, CommConfig
from tuner.compiled import simulate_compiled, simulate_many
from tuner.conditions import Conditions, Host
from tuner.profiles import ModelProfile, TensorProfile, load
from tuner.simulator import Simulated, simulate

pytestmark = pytest.mark.timeout(120)  # the first call compiles

GIGABIT = 125e6  # bytes per second


def figures(simulated: Simulated) -> list[float]:
    values = msgspec.structs.asdict(simulated)
    return [*values.pop("worker_step_seconds"), *values.values()]


def random_host(rng: np.random.Generator) -> Host:
    return Host(
        send_bytes_per_second=10 ** rng.uniform(7.5, 10),
        receive_bytes_per_second=10 ** rng.uniform(7.5, 10),
        overhead_seconds=10 ** rng.uniform(-6, -3.5),
        byte_seconds=10 ** rng.uniform(-11, -9),
        speed=rng.uniform(0.5, 1),
    )


def random_config(rng: np.random.Generator) -> CommConfig:
    return CommConfig(
        partition_bytes=int(2 ** rng.uniform(14, 22)),
        credit_bytes=int(2 ** rng.uniform(12, 36)),
        fusion_bytes=int(rng.choice([0, 64 * KIB, 300_000])),
    )


def random_model(rng: np.random.Generator) -> ModelProfile:
    tensors = (
        TensorProfile(f"t{at}", int(10 ** rng.uniform(0, 6.3)), 10 ** rng.uniform(-6, -2), 10 ** rng.uniform(-6, -2))
        for at in range(rng.integers(1, 12))
    )
    return ModelProfile("random", tuple(tensors))


@pytest.mark.parametrize("seed", range(24))
def test_equals_the_pure_simulator(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_workers, num_servers = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    conditions = Conditions(
        workers=tuple(random_host(rng) for _ in range(num_workers)),
        servers=tuple(random_host(rng) for _ in range(num_servers)),
        latency_seconds=10 ** rng.uniform(-5, -3),
        sum_bytes_per_second=10 ** rng.uniform(8.5, 10),
    )
    model = random_model(rng)
    config = random_config(rng) if seed % 2 else [random_config(rng) for _ in range(num_workers)]
    pure = simulate(model, conditions, config)
    assert figures(simulate_compiled(model, conditions, config)) == pytest.approx(figures(pure), rel=1e-9)
    assert simulate_many(model, conditions, [config]) == pytest.approx([pure.step_seconds], rel=1e-9)


def test_equals_the_pure_simulator_on_a_real_model() -> None:
    conditions = Conditions.uniform(2, 2, 10 * GIGABIT, 50e-6, 100e-6, byte_seconds=1e-10)
    model, config = load("resnet18_v1"), CommConfig()
    pure = simulate(model, conditions, config, steps=2)
    assert figures(simulate_compiled(model, conditions, config, steps=2)) == pytest.approx(figures(pure), rel=1e-9)


def test_thousands_of_messages_in_flight() -> None:
    """More than the pools have room for at first."""
    model = ModelProfile("one", (TensorProfile("t", 40 * MIB, 0.0, 0.0),))
    conditions = Conditions.uniform(1, 1, GIGABIT, 0.5)
    config = CommConfig(partition_bytes=4 * KIB, credit_bytes=1 << 36, fusion_bytes=0)
    simulated = simulate_compiled(model, conditions, config, steps=1)
    assert simulated.messages == 10240
    assert simulated.step_seconds == pytest.approx(1.0 + 40 * MIB * (1 + 64 / 4096) / GIGABIT, rel=0.01)


@pytest.mark.parametrize("name", ["resnet50_v1", "alexnet"])
@pytest.mark.parametrize("num_servers", [8, 32])
def test_a_worker_that_stands_for_several_comes_close_to_them(name: str, num_servers: int) -> None:
    """Closest with small messages: what stands for four sends four at a time."""
    conditions = Conditions.uniform(32, num_servers, 25 * GIGABIT, 50e-6, 30e-6)
    model, configs = load(name), [CommConfig(), CommConfig(partition_bytes=2 * MIB, credit_bytes=32 * MIB)]
    few = simulate_many(model, conditions, configs, steps=2, max_workers=8)
    assert few == pytest.approx(simulate_many(model, conditions, configs, steps=2, max_workers=32), rel=0.1)


def test_only_workers_that_are_alike_stand_for_each_other() -> None:
    """One of 20 is slow: it stays, though it is one in 20, and sets the time of all."""
    quick = Host(send_bytes_per_second=GIGABIT, receive_bytes_per_second=GIGABIT)
    slow = msgspec.structs.replace(quick, speed=0.25)
    model = ModelProfile("one", (TensorProfile("t", 4, 0.0, 0.010),))
    conditions = Conditions(workers=(quick,) * 13 + (slow,) + (quick,) * 6, servers=(quick,), latency_seconds=0.0)
    simulated = simulate_compiled(model, conditions, CommConfig())
    assert simulated.worker_step_seconds == pytest.approx((0.040,) * 20, rel=0.01)
    assert simulated.backward_seconds == pytest.approx((19 * 0.010 + 0.040) / 20)


def test_time_is_finite_for_every_model_and_size_of_cluster() -> None:
    for name, workers, servers in (
        ("vgg16", 1, 1),
        ("bert_base", 2, 4),
        ("densenet201", 64, 64),
        ("mobilenet0_25", 3, 1),
    ):
        conditions = Conditions.uniform(workers, servers, 10 * GIGABIT, 20e-6, 10e-6)
        seconds = simulate_many(load(name), conditions, [CommConfig()], steps=2)
        assert all(math.isfinite(each) and each > load(name).backward_seconds for each in seconds)
