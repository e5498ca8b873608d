"""What a situation knows of the model: sizes and computation of all tensors, or of groups of them."""

from __future__ import annotations

from msgspec.structs import replace

from ps.config import CommConfig, Role
from ps.stats import Estimate, LayerGroup, Observation
from tuner.situation import Situation

WORKER = Observation(role=Role.WORKER, rank=0, epoch=0, window_seconds=1.0, num_workers=2, num_servers=1)
LAYERS = (LayerGroup(2, 300, 1_000_000, 4_000_000), LayerGroup(1, 700, 500_000, 1_000_000))


def of(*observations: Observation) -> Situation:
    situation = Situation.from_observations(observations, CommConfig())
    assert situation is not None
    return situation


def test_tensors_of_a_group_are_taken_to_be_alike() -> None:
    situation = of(replace(WORKER, layers=LAYERS))
    assert situation.tensor_bytes == (150, 150, 700)
    assert situation.tensor_seconds == (2.0, 2.0, 1.0)


def test_sizes_that_are_told_count_more_than_groups() -> None:
    situation = of(replace(WORKER, layers=LAYERS, tensor_bytes=(100, 200, 700)))
    assert situation.tensor_bytes == (100, 200, 700)


def test_one_worker_that_tells_is_enough() -> None:
    assert of(replace(WORKER, layers=LAYERS), replace(WORKER, rank=1)).tensor_bytes == (150, 150, 700)
    assert of(WORKER, replace(WORKER, rank=1)).tensor_bytes == ()


def test_the_cost_per_byte_is_summarised_over_all_hosts() -> None:
    situation = of(
        replace(WORKER, byte_seconds=Estimate(2e-10, 0.1, 9)),
        replace(WORKER, rank=1, byte_seconds=Estimate(4e-10, 0.1, 9)),
    )
    assert situation.byte_seconds is not None
    assert (situation.byte_seconds.least, situation.byte_seconds.most) == (2e-10, 4e-10)
