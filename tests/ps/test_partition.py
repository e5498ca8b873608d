"""Cutting: whole elements, ascending and gapless, lazily, whatever the sizes."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.partition import cut, cut_plan


def test_a_size_that_is_no_multiple_of_the_element_holds_whole_elements_only() -> None:
    ranges = list(cut(0, 10_000, 4, 4097))
    assert ranges[:2] == [(0, 1024), (1024, 1024)]
    assert ranges[-1] == (9216, 784)
    assert len(ranges) == 10


def test_a_partition_larger_than_the_tensor_is_the_whole_tensor() -> None:
    assert list(cut(5, 105, 8, 1 << 20)) == [(5, 100)]


def test_an_element_larger_than_the_partition_goes_alone() -> None:
    assert list(cut(0, 3, 8, 1)) == [(0, 1), (1, 1), (2, 1)]


def test_an_empty_range_has_no_partitions() -> None:
    assert list(cut(7, 7, 4, 512)) == []


def test_a_plan_of_unequal_sizes_repeats_its_last_one() -> None:
    assert list(cut_plan(100, 110, 4, [4, 8, 16])) == [(100, 1), (101, 2), (103, 4), (107, 3)]
    assert list(cut_plan(0, 3, 4, [4, 400, 8])) == [(0, 1), (1, 2)]


def test_a_tensor_of_twelve_gigabytes_is_cut_without_making_a_list() -> None:
    size = 3 * 2**30
    assert list(islice(cut(0, size, 4, 512 * 1024), 2)) == [(0, 131_072), (131_072, 131_072)]
    start, count = list(cut(0, size, 4, 2**30))[-1]
    assert (start * 4, (start + count) * 4) == (11_811_160_064, 12_884_901_888)


@pytest.mark.parametrize("partition_bytes", [0, -1, 0.5, float("nan"), True])
def test_a_size_that_is_no_number_of_bytes_is_refused_at_the_call(partition_bytes: int) -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        cut(0, 10, 4, partition_bytes)


def test_an_impossible_range_element_or_plan_is_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="elements 3 to 2"):
        cut(3, 2, 4, 512)
    with pytest.raises(ValueError, match="itemsize"):
        cut(0, 2, 0, 512)
    with pytest.raises(ValueError, match="at least one"):
        cut_plan(0, 2, 4, [])


@settings(deadline=None)
@given(
    start=st.integers(0, 1000),
    size=st.integers(0, 1000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    sizes_bytes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
)
def test_every_cut_covers_its_range_once_and_respects_its_bounds(
    start: int, size: int, itemsize: int, sizes_bytes: list[int]
) -> None:
    at = start
    for index, (first, count) in enumerate(cut_plan(start, start + size, itemsize, sizes_bytes)):
        bound_bytes = sizes_bytes[min(index, len(sizes_bytes) - 1)]
        assert first == at
        assert count == 1 or 1 < count <= bound_bytes // itemsize
        at += count
    assert at == start + size
