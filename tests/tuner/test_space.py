"""The search space."""

from __future__ import annotations

import pytest

from ps.config import GIB, KIB, MIB, CommConfig
from tuner.space import UNSLICED, candidates, coordinates, describe, size_key

pytestmark = pytest.mark.timeout(10)


def test_whole_powers_of_two_with_at_least_four_partitions_of_credit_and_whole_tensors() -> None:
    found = [(config.partition_bytes, config.credit_bytes) for config in candidates(CommConfig())]
    assert found[0] == (64 * KIB, 256 * KIB)
    assert found[8] == (64 * KIB, 64 * MIB)
    assert found[-2] == (8 * MIB, 64 * MIB)
    assert found[-1] == (1 * GIB, 64 * GIB)
    assert len(found) == len(set(found)) == 45


def test_what_is_not_searched_stays() -> None:
    assert {config.fusion_bytes for config in candidates(CommConfig(fusion_bytes=0))} == {0}
    assert {config.epoch for config in candidates(CommConfig(epoch=5))} == {5}


def test_coordinates_are_logarithms_in_the_unit_square() -> None:
    assert coordinates(CommConfig(partition_bytes=64 * KIB, credit_bytes=256 * KIB)) == (0.0, 0.0)
    assert coordinates(CommConfig(partition_bytes=8 * MIB, credit_bytes=64 * MIB)) == (1.0, 1.0)
    assert coordinates(CommConfig(partition_bytes=128 * KIB, credit_bytes=4 * MIB)) == pytest.approx((1 / 7, 0.5))


def test_whole_tensors_lie_one_power_beyond() -> None:
    assert coordinates(UNSLICED) == pytest.approx((8 / 7, 9 / 8))


def test_the_larger_configuration_has_the_larger_key() -> None:
    small = CommConfig(partition_bytes=64 * KIB, credit_bytes=64 * MIB)
    large = CommConfig(partition_bytes=128 * KIB, credit_bytes=1 * MIB)
    larger = CommConfig(partition_bytes=128 * KIB, credit_bytes=2 * MIB)
    assert sorted([larger, small, large], key=size_key) == [small, large, larger]


def test_sizes_are_written_for_people() -> None:
    assert describe(CommConfig()) == "P = 512 KiB, C = 4 MiB"
    assert describe(CommConfig(partition_bytes=100, credit_bytes=1536 * KIB)) == "P = 100 B, C = 1.5 MiB"
