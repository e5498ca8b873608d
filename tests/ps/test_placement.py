"""Placement: gapless shards, balanced by bytes, the same in every process."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.config import KIB
from ps.messages import Shard
from ps.placement import Placement


def test_a_large_tensor_goes_to_all_servers_in_equal_parts() -> None:
    placement = Placement(2)
    assert placement.place(1_000_000, itemsize=4) == [Shard(0, 0, 500_000), Shard(1, 500_000, 1_000_000)]
    assert placement.load_bytes == (2_000_000, 2_000_000)


def test_a_large_tensor_is_split_in_proportion_to_the_weights() -> None:
    assert Placement(2, [3, 1]).place(1_000_000, itemsize=4) == [Shard(0, 0, 750_000), Shard(1, 750_000, 1_000_000)]


def test_shards_begin_at_cache_lines() -> None:
    assert Placement(3).place(100_000, itemsize=4) == [
        Shard(0, 0, 33_328),  # 33,333 would be in the middle of a line of 16 elements
        Shard(1, 33_328, 66_672),
        Shard(2, 66_672, 100_000),
    ]


def test_a_small_tensor_goes_to_the_server_with_the_least_load() -> None:
    placement = Placement(3)
    placed = [placement.place(size, itemsize=4) for size in (100, 10, 10, 50)]
    assert placed == [[Shard(0, 0, 100)], [Shard(1, 0, 10)], [Shard(2, 0, 10)], [Shard(1, 0, 50)]]


def test_a_small_tensor_goes_where_it_is_done_first() -> None:
    placement = Placement(2, [10, 1])
    assert [placement.place(100, itemsize=4)[0].server for _ in range(11)] == [0] * 9 + [0, 1]


def test_a_tensor_of_middle_size_goes_to_as_many_servers_as_get_a_worthwhile_shard() -> None:
    placement = Placement(4, min_shard_bytes=64 * KIB)
    placement.place(25, itemsize=4)
    assert placement.place(150 * KIB, itemsize=1) == [Shard(1, 0, 75 * KIB), Shard(2, 75 * KIB, 150 * KIB)]


def test_an_empty_tensor_has_one_empty_shard() -> None:
    placement = Placement(2)
    placement.place(1, itemsize=4)
    assert placement.place(0, itemsize=4) == [Shard(1, 0, 0)]
    assert placement.load_bytes == (4, 0)


def test_a_tensor_of_twelve_gigabytes_is_placed_without_allocating() -> None:
    placement = Placement(2)
    shards = placement.place(3 * 2**30, itemsize=4)
    assert [(shard.start * 4, shard.stop * 4) for shard in shards] == [
        (0, 6_442_450_944),
        (6_442_450_944, 12_884_901_888),
    ]


def test_two_thousand_tensors_of_one_element_are_spread_evenly() -> None:
    placement = Placement(4)
    for _ in range(2000):
        placement.place(1, itemsize=4)
    assert placement.load_bytes == (2000, 2000, 2000, 2000)


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_weights_that_are_not_one_positive_number_per_server_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="2 numbers above 0"):
        Placement(2, weights)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="num_servers"):
        Placement(0)
    with pytest.raises(ValueError, match="min_shard_bytes"):
        Placement(1, min_shard_bytes=0)
    with pytest.raises(ValueError, match="-1 elements"):
        Placement(1).place(-1, itemsize=4)


tensors = st.lists(st.tuples(st.integers(0, 300_000), st.sampled_from([1, 2, 4, 8, 3])), max_size=30)


@settings(deadline=None)
@given(tensors=tensors, weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=5))
def test_shards_are_gapless_and_no_server_has_two_of_a_tensor(
    tensors: list[tuple[int, int]], weights: list[float]
) -> None:
    placement, twin = Placement(len(weights), weights), Placement(len(weights), weights)
    for size, itemsize in tensors:
        shards = placement.place(size, itemsize)
        assert shards == twin.place(size, itemsize)
        assert [shard.start for shard in shards] == [0, *(shard.stop for shard in shards[:-1])]
        assert shards[-1].stop == size
        assert size == 0 or all(shard.start < shard.stop for shard in shards)
        assert len({shard.server for shard in shards}) == len(shards)
    assert sum(placement.load_bytes) == sum(size * itemsize for size, itemsize in tensors)


@settings(deadline=None)
@given(tensors=tensors, num_servers=st.integers(1, 6))
def test_servers_differ_by_less_than_one_small_tensor(tensors: list[tuple[int, int]], num_servers: int) -> None:
    placement = Placement(num_servers)
    for size, itemsize in tensors:
        placement.place(size, itemsize)
    largest_small_shard = 2 * 64 * KIB
    rounding = 128 * len(tensors)
    assert max(placement.load_bytes) - min(placement.load_bytes) <= largest_small_shard + rounding


def test_shards_begin_between_rows_where_asked_for() -> None:
    assert Placement(3).place(1200 * 1000, itemsize=4, unit_elements=1200) == [
        Shard(0, 0, 333 * 1200),
        Shard(1, 333 * 1200, 667 * 1200),
        Shard(2, 667 * 1200, 1_200_000),
    ]
    # 16 rows of 15 elements are a whole number of cache lines
    assert Placement(3).place(15 * 10_000, itemsize=4, unit_elements=15)[0].stop == 208 * 16 * 15


def test_fewer_rows_than_servers_go_to_as_many() -> None:
    assert Placement(3).place(2 * 100_000, itemsize=4, unit_elements=100_000) == [
        Shard(0, 0, 100_000),
        Shard(2, 100_000, 200_000),
    ]


def test_a_tensor_that_is_no_multiple_of_its_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot place 10 elements of 4 bytes in units of 3"):
        Placement(1).place(10, itemsize=4, unit_elements=3)
