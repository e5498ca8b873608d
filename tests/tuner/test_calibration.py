"""The simulator, fitted to measurements: parameters that are known come back, and new configurations are predicted."""

from __future__ import annotations

from typing import Iterator

import numpy as np
import pytest

from ps.config import KIB, MIB, CommConfig, Role
from ps.stats import Observation
from tuner.calibration import Calibration, Measurement, Parameters, calibrate
from tuner.compiled import simulate_compiled
from tuner.conditions import SUM_BYTES_PER_SECOND
from tuner.profiles import ModelProfile, TensorProfile

pytestmark = pytest.mark.timeout(120)

MODEL = ModelProfile(
    "twelve layers",
    tuple(TensorProfile(f"t{at}", 4 * (1000 + 60_000 * at), 0.0005, 0.001) for at in range(12)),
)
CONFIGS = [
    CommConfig(partition_bytes=partition * KIB, credit_bytes=credit * KIB, epoch=epoch)
    for epoch, (partition, credit) in enumerate(
        [(32, 64), (64, 256), (64, 4096), (256, 1024), (512, 4096), (4096, 65536)]
    )
]
TRUTH = Parameters(
    compute_factor=1.7,
    bandwidth_bytes_per_second=400e6,
    latency_seconds=150e-6,
    overhead_seconds=120e-6,
    byte_seconds=3e-10,
)
#: Wrong by a factor of 1.5 to 3.
START = Parameters(1.0, 600e6, 60e-6, 50e-6, 1e-10)
LOOSE = Parameters(2.0, 2.0, 2.0, 2.0, 2.0)


def measured(configs: list[CommConfig], noise: float = 0.0) -> Iterator[Measurement]:
    """Yield what a job under :data:`TRUTH` would report."""
    rng = np.random.default_rng(5)
    conditions = TRUTH.conditions(2, 2, SUM_BYTES_PER_SECOND)
    for config in configs:
        simulated = simulate_compiled(MODEL.scaled(TRUTH.compute_factor), conditions, config)
        factor = np.exp(rng.normal(0, noise, 4))
        yield Measurement(
            config=config,
            step_seconds=simulated.step_seconds * factor[0],
            backward_seconds=simulated.backward_seconds * factor[3],
            ack_seconds=simulated.ack_seconds * factor[1],
            queue_wait_seconds=simulated.queue_wait_seconds * factor[2],
        )


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibrate(MODEL, 2, 2, list(measured(CONFIGS, noise=0.005)), START, LOOSE)


def test_known_parameters_come_back(found: Calibration) -> None:
    assert max(map(abs, found.step_errors)) < 0.02
    assert found.parameters.compute_factor == pytest.approx(TRUTH.compute_factor, rel=0.04)
    assert found.parameters.bandwidth_bytes_per_second == pytest.approx(TRUTH.bandwidth_bytes_per_second, rel=0.03)
    assert found.parameters.overhead_seconds == pytest.approx(TRUTH.overhead_seconds, rel=0.15)
    assert found.parameters.latency_seconds == pytest.approx(TRUTH.latency_seconds, rel=0.3)
    assert found.conditions == found.parameters.conditions(2, 2, SUM_BYTES_PER_SECOND)


def test_what_was_not_measured_is_predicted(found: Calibration) -> None:
    for truth in measured([CommConfig(partition_bytes=128 * KIB, credit_bytes=MIB), CommConfig(partition_bytes=MIB)]):
        simulated = simulate_compiled(found.profile, found.conditions, truth.config)
        assert simulated.step_seconds == pytest.approx(truth.step_seconds, rel=0.08)


def test_what_is_certain_stays() -> None:
    certain = Parameters(1.0, 1e-4, 1e-4, 1e-4, 1e-4)
    found = calibrate(MODEL, 2, 2, list(measured(CONFIGS[4:])), TRUTH._replace(compute_factor=1.0), certain)
    assert found.parameters[1:] == pytest.approx(TRUTH[1:], rel=1e-3)
    assert found.parameters.compute_factor == pytest.approx(TRUTH.compute_factor, rel=0.02)


def test_nothing_to_fit_to() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        calibrate(MODEL, 2, 2, [], START)


def test_a_measurement_is_the_median_of_what_workers_observed_under_its_configuration() -> None:
    def observation(rank: int, epoch: int, step_seconds: float, role: Role = Role.WORKER) -> Observation:
        return Observation(
            role=role, rank=rank, epoch=epoch, window_seconds=1.0, num_workers=2, num_servers=1,
            step_seconds=step_seconds, ack_seconds=0.001 * (rank + 1),
        )  # fmt: skip

    observations = [
        observation(0, 3, 0.10),
        observation(1, 3, 0.12),
        observation(0, 3, 0.11),
        observation(1, 2, 9.0),
        observation(0, 3, 9.0, Role.SERVER),
    ]
    config = CommConfig(epoch=3)
    assert Measurement.from_observations(config, observations) == Measurement(
        config=config, step_seconds=0.11, ack_seconds=0.001
    )
    assert Measurement.from_observations(CommConfig(epoch=4), observations) is None
