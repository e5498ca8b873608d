"""Rows by id: checked, ordered, added up, split over shards and cut into pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.errors import TensorError
from ps.messages import Shard
from ps.rows import RowsEncoder, add_up, merge, record_type, records, row_ids, row_width, split


def ids_of(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def rows_of(*values: list[float], dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


# ------------------------------------------------------------------------------------------- row ids


def test_a_row_is_everything_behind_the_first_index() -> None:
    assert row_width((4, 3)) == 3
    assert row_width((4, 3, 5)) == 15
    assert row_width((7,)) == 1
    assert row_width((4, 0)) == 0
    assert row_width(()) == 0


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float16", "float32", "float64"])
def test_ids_of_any_type_and_shape_become_int64_in_their_order(dtype: str) -> None:
    ids = row_ids(np.array([[3, 1], [3, 0]], dtype), 4, "pull")
    assert ids.dtype == np.int64 and ids.tolist() == [3, 1, 3, 0]


def test_int64_ids_are_exact() -> None:
    assert row_ids(np.array([2**53 + 1]), 2**60, "pull").tolist() == [9_007_199_254_740_993]


@pytest.mark.parametrize(
    "dtype, bits, meant", [("float32", 24, 2**24 + 1), ("float16", 11, 2049), ("float64", 53, 2**53 + 1)]
)
def test_float_ids_that_may_have_been_rounded_are_refused(dtype: str, bits: int, meant: int) -> None:
    assert row_ids(np.array([2**bits - 1], dtype), 2**60, "pull").tolist() == [2**bits - 1]
    expected = rf"row_sparse_pull\('e'\): row id .* is given as {dtype}, which is exact only below 2\*\*{bits} = "
    with pytest.raises(TensorError, match=expected + r"\d+; give row ids as int64"):
        row_ids(np.array([0, meant], dtype), 2**60, "row_sparse_pull('e')")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_ids_that_are_not_numbers_are_refused(value: float) -> None:
    with pytest.raises(TensorError, match="row id -?(nan|inf) is given as float32"):
        row_ids(np.array([1, value], "float32"), 4, "pull")


def test_fractions_and_other_types_are_refused() -> None:
    with pytest.raises(TensorError, match="push: 1.5 is not a row id; row ids are whole numbers"):
        row_ids(np.array([1, 1.5]), 4, "push")
    with pytest.raises(TensorError, match="push: row ids of type bool; give them as int64"):
        row_ids(np.array([True]), 4, "push")


@pytest.mark.parametrize("wrong", [4, -1])
def test_an_id_out_of_range_is_named_with_the_number_of_rows(wrong: int) -> None:
    with pytest.raises(TensorError, match=rf"push_rows\('e'\): row id {wrong} is not one of the tensor's 4 rows"):
        row_ids([0, wrong], 4, "push_rows('e')")
    assert row_ids([], 0, "push").tolist() == []


# ---------------------------------------------------------------------------------------------- sums


def test_rows_are_ordered_and_equal_ids_added_up() -> None:
    ids, rows = merge(ids_of(3, 1, 3), rows_of([1, 2], [10, 20], [100, 200]))
    assert ids.tolist() == [1, 3] and rows.tolist() == [[10, 20], [101, 202]]


def test_rows_in_order_are_returned_as_they_are() -> None:
    ids, rows = ids_of(0, 2), rows_of([1], [2])
    assert merge(ids, rows)[1] is rows
    assert merge(ids_of(), rows_of().reshape(0, 3))[1].shape == (0, 3)


def test_float16_is_summed_in_float32() -> None:
    _, rows = merge(ids_of(5, 5, 5), rows_of([2048], [1], [1], dtype="float16"))
    assert rows.dtype == np.float16 and rows.tolist() == [[2050]]
    parts = [(ids_of(0), rows_of([value], dtype="float16")) for value in (2048, 1, 1)]
    assert add_up(parts)[1].tolist() == [[2050]] and add_up(parts)[1].dtype == np.float16


def test_lists_of_rows_are_added_by_id_in_their_order() -> None:
    parts = [
        (ids_of(0, 5), rows_of([1e8], [1])),
        (
            ids_of(
                5,
            ),
            rows_of([2]),
        ),
        (ids_of(0, 2), rows_of([-1e8], [7])),
    ]
    ids, rows = add_up([*parts, (ids_of(0), rows_of([1]))])
    assert ids.tolist() == [0, 2, 5] and rows.tolist() == [[1], [7], [3]]


def test_the_sum_of_one_list_changes_no_bit_and_rows_of_zeros_stay() -> None:
    ids, rows = add_up([(ids_of(1, 2), rows_of([-0.0], [0.0])), (ids_of(3), rows_of([-0.0]))])
    assert ids.tolist() == [1, 2, 3] and np.signbit(rows).tolist() == [[True], [False], [True]]


def test_no_rows_at_all_add_up_to_none() -> None:
    empty = (ids_of(), np.empty((0, 3), np.float32))
    ids, rows = add_up([empty, empty])
    assert ids.size == 0 and rows.shape == (0, 3)


def test_integers_are_summed_exactly() -> None:
    parts = [(ids_of(1), rows_of([2**53], dtype="int64")), (ids_of(1), rows_of([1], dtype="int64"))]
    assert add_up(parts)[1].tolist() == [[2**53 + 1]]


# ------------------------------------------------------------------------------ records, shards, pieces


def test_a_record_is_an_id_and_its_row_without_gaps() -> None:
    result = records(ids_of(2**40, 7), rows_of([1, 2, 3], [4, 5, 6], dtype="float16"))
    assert result.dtype == record_type(np.dtype("float16"), 3) and result.dtype.itemsize == 14
    assert result.tobytes()[:8] == (2**40).to_bytes(8, "little")
    again = np.frombuffer(result.tobytes()[14:], result.dtype)
    assert again["id"].tolist() == [7] and again["row"].tolist() == [[4, 5, 6]]


def test_each_shard_gets_the_rows_within_it() -> None:
    shards = [Shard(0, 0, 20), Shard(2, 20, 25), Shard(1, 25, 100)]
    assert split(ids_of(0, 3, 4, 4, 19), shards, 5) == [(0, 2), (2, 4), (4, 5)]
    assert split(ids_of(), shards, 5) == [(0, 0), (0, 0), (0, 0)]


def test_a_shard_that_ends_within_a_row_cannot_take_rows() -> None:
    with pytest.raises(ValueError, match=r"shards end at elements \[7, 20\], not all between rows of 5 elements"):
        split(ids_of(1), [Shard(0, 0, 7), Shard(1, 7, 20)], 5)


def pieces_of(
    ids: np.ndarray[Any, Any], start: int, stop: int, width: int, partition_bytes: int
) -> list[tuple[int, int, int, list[int]]]:
    """Return start, count, announced bytes and ids of each piece of a push of rows that are like their ids."""
    rows = np.repeat(ids, width).reshape(ids.size, width).astype("float32")
    encoder = RowsEncoder(width)
    encoder.begin(1, records(ids, rows))
    pieces = []
    for begin, count in encoder.ranges(start, stop, partition_bytes):
        announced = encoder.encoded_bytes(count)
        sent = np.frombuffer(encoder.encode(begin, count), record_type(rows.dtype, width))
        assert announced == sent.nbytes and (sent["id"] == sent["row"].T).all()
        pieces.append((begin, count, announced, sent["id"].tolist()))
    return pieces


def test_pieces_cover_the_shard_and_end_behind_their_last_row() -> None:
    pieces = pieces_of(ids_of(5, 11, 13, 14, 20), start=100, stop=200, width=10, partition_bytes=100)
    assert pieces == [(100, 40, 96, [11, 13]), (140, 60, 48, [14])]


def test_no_rows_are_one_piece_without_records() -> None:
    assert pieces_of(ids_of(), start=100, stop=200, width=10, partition_bytes=100) == [(100, 100, 0, [])]


def test_a_record_larger_than_a_partition_goes_alone() -> None:
    pieces = pieces_of(ids_of(0, 1), start=0, stop=20, width=10, partition_bytes=1)
    assert pieces == [(0, 10, 48, [0]), (10, 10, 48, [1])]


def test_joined_pieces_have_the_records_of_both() -> None:
    encoder = RowsEncoder(2)
    encoder.begin(1, records(ids_of(0, 3, 4), rows_of([0, 0], [3, 3], [4, 4])))
    assert list(encoder.ranges(0, 10, 16)) == [(0, 2), (2, 6), (8, 2)]
    assert np.frombuffer(encoder.encode(0, 8), record_type(np.dtype("f4"), 2))["id"].tolist() == [0, 3]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_splitting_and_cutting_lose_nothing_and_sums_equal_dense_ones(data: st.DataObject) -> None:
    num_rows, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    edges = sorted({0, num_rows, *data.draw(st.lists(st.integers(0, num_rows), max_size=3))})
    shards = [Shard(i, first * width, last * width) for i, (first, last) in enumerate(zip(edges, edges[1:]))]
    parts, dense = [], np.zeros((num_rows, width), np.int64)
    for _ in range(data.draw(st.integers(1, 3))):
        ids = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=30)), np.int64)
        rows = np.arange(ids.size * width).reshape(ids.size, width)
        np.add.at(dense, ids, rows)
        parts.append(merge(ids, rows))
    ids, rows = add_up(parts)
    assert (np.diff(ids) > 0).all()
    found = np.zeros_like(dense)
    encoder = RowsEncoder(width)
    encoder.begin(1, records(ids, rows))
    for shard, (first, last) in zip(shards, split(ids, shards, width)):
        at = shard.start
        for start, count in encoder.ranges(shard.start, shard.stop, 50):
            assert start == at
            at += count
            sent = np.frombuffer(encoder.encode(start, count), record_type(rows.dtype, width))
            assert ((sent["id"] * width >= start) & (sent["id"] * width < at)).all()
            found[sent["id"]] = sent["row"]
        assert at == shard.stop
        assert (found[ids[first:last]] == rows[first:last]).all()
    assert (found == dense).all()
