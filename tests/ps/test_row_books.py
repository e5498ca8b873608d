"""Pushes of rows to the books: summed by id when all have pushed, applied at once where there are no rounds."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ps.book import Book, Completion, LedgerError
from ps.ledger import Ledger, OrderedLedger
from ps.rows import Piece
from ps.tally import Tally
from tests.ps.descent import Descent

Array = NDArray[Any]

#: A shard of rows 2 to 5 of a tensor whose rows have 3 elements.
START, STOP, WIDTH = 6, 18, 3


def book_of(kind: type[Book] = Ledger, num_workers: int = 2, dtype: str = "float32", **options: Any) -> Book:
    """A book whose first value is 0, 1, ... 11."""
    book = kind("embedding", START, STOP, np.dtype(dtype), num_workers, **options)
    assert book.initialize(START, np.arange(STOP - START, dtype=dtype))
    return book


def piece(rows: dict[int, float], start: int = START, stop: int = STOP, dtype: str = "float32") -> Piece:
    """Elements ``start`` to ``stop`` of a push whose row ``id`` has the same number three times."""
    values = np.repeat(np.array(list(rows.values()), dtype), WIDTH).reshape(len(rows), WIDTH)
    return Piece(start, stop, np.array(list(rows), np.int64), values)


def first_column(book: Book) -> list[float]:
    values: list[float] = book.value.reshape(-1, WIDTH)[:, 0].tolist()
    return values


# -------------------------------------------------------------------------------------------- rounds


def test_a_round_is_the_sum_by_id_and_other_rows_become_zero() -> None:
    ledger = book_of()
    assert ledger.push_rows(1, 1, piece({2: 1, 4: 10}), 5.0) == ()
    assert first_column(ledger) == [0, 3, 6, 9] and ledger.opened_at == 5.0 and ledger.missing() == [0]
    assert ledger.push_rows(0, 1, piece({4: 20}), 6.0) == (Completion(START, STOP),)
    assert first_column(ledger) == [1, 0, 30, 0]
    assert ledger.version == 1 and ledger.opened_at is None


def test_the_next_round_replaces_it() -> None:
    ledger = book_of(num_workers=1)
    ledger.push_rows(0, 1, piece({2: 1, 3: 2}), 0.0)
    ledger.push_rows(0, 2, piece({3: 5}), 0.0)
    assert first_column(ledger) == [0, 5, 0, 0]
    ledger.push_rows(0, 3, piece({}), 0.0)
    assert first_column(ledger) == [0, 0, 0, 0]


def test_a_worker_without_rows_takes_part() -> None:
    ledger = book_of()
    ledger.push_rows(0, 1, piece({5: 1}), 0.0)
    assert ledger.missing() == [1] and ledger.needs(1)
    assert ledger.push_rows(1, 1, piece({}), 0.0) == (Completion(START, STOP),)
    assert first_column(ledger) == [0, 0, 0, 1]


def test_pieces_of_a_push_may_be_cut_anywhere_between_rows() -> None:
    ledger = book_of()
    assert ledger.push_rows(0, 1, piece({2: 1}, START, 12), 0.0) == ()
    assert ledger.watermark(0) == 12
    assert ledger.push_rows(1, 1, piece({2: 2, 5: 3}), 0.0) == ()
    assert ledger.push_rows(0, 1, piece({4: 4}, 12, STOP), 0.0) == (Completion(START, STOP),)
    assert first_column(ledger) == [3, 0, 4, 3]


def test_duplicate_and_unordered_ids_add_up() -> None:
    ledger = book_of(num_workers=1)
    ids = np.array([4, 2, 4], np.int64)
    ledger.push_rows(0, 1, Piece(START, STOP, ids, np.array([[1] * 3, [2] * 3, [4] * 3], np.float32)), 0.0)
    assert first_column(ledger) == [2, 0, 5, 0]


@pytest.mark.parametrize("kind", [Ledger, OrderedLedger])
def test_rows_are_added_in_the_order_of_the_ranks_whatever_the_order_of_arrival(kind: type[Book]) -> None:
    ledger = book_of(kind, num_workers=3)
    for worker, number in ((2, 1), (1, -1e8), (0, 1e8)):
        ledger.push_rows(worker, 1, piece({3: number}), 0.0)
    assert first_column(ledger)[1] == 1  # (1e8 - 1e8) + 1; in the order of arrival it is 0


def test_float16_is_summed_in_float32() -> None:
    ledger = book_of(num_workers=3, dtype="float16")
    for worker, number in ((1, 1), (0, 2048), (2, 1)):
        ledger.push_rows(worker, 1, piece({3: number}, dtype="float16"), 0.0)
    assert first_column(ledger) == [0, 2050, 0, 0]


def test_rows_and_all_elements_may_take_turns() -> None:
    ledger = book_of(num_workers=1)
    ledger.push_rows(0, 1, piece({2: 1}), 0.0)
    ledger.push(0, 2, START, np.full(12, 7, np.float32), 0.0)
    assert first_column(ledger) == [7, 7, 7, 7]
    ledger.push_rows(0, 3, piece({3: 2}), 0.0)
    assert first_column(ledger) == [0, 2, 0, 0]


def test_rows_and_all_elements_in_one_round_are_refused() -> None:
    ledger = book_of()
    ledger.push_rows(0, 1, piece({2: 1}), 0.0)
    with pytest.raises(LedgerError, match="'embedding', round 1: worker 1 pushed all elements, another worker rows"):
        ledger.push(1, 1, START, np.zeros(12, np.float32), 0.0)
    ledger = book_of()
    ledger.push(1, 1, START, np.zeros(3, np.float32), 0.0)
    with pytest.raises(LedgerError, match="worker 0 pushed rows, another worker all elements"):
        ledger.push_rows(0, 1, piece({2: 1}), 0.0)


@pytest.mark.parametrize("kind", [Ledger, Tally])
def test_a_piece_that_was_had_before_is_dropped_and_a_wrong_one_refused(kind: type[Book]) -> None:
    book = book_of(kind)
    book.push_rows(0, 1, piece({2: 1}, START, 12), 0.0)
    assert book.push_rows(0, 1, piece({2: 1}, START, 12), 0.0) == () and book.duplicates == 1
    with pytest.raises(LedgerError, match="expected the range from element 12 on"):
        book.push_rows(0, 1, piece({}, 15, STOP), 0.0)
    with pytest.raises(LedgerError, match="expected version 1"):
        book.push_rows(0, 2, piece({}), 0.0)
    with pytest.raises(LedgerError, match="elements within 6 to 18"):
        book.push_rows(0, 1, piece({}, 12, 21), 0.0)
    with pytest.raises(LedgerError, match="pushed elements 12 to 4611686018427387904 .* elements within 6 to 18"):
        book.push_rows(0, 1, piece({}, 12, 1 << 62), 0.0)
    with pytest.raises(LedgerError, match="a rank below 2"):
        book.push_rows(2, 1, piece({}), 0.0)


def test_what_is_no_number_is_counted_in_the_sum() -> None:
    ledger = book_of()
    ledger.push_rows(0, 1, piece({2: float("nan"), 3: float("inf")}), 0.0)
    ledger.push_rows(1, 1, piece({3: 1}), 0.0)
    assert ledger.nonfinite == 6


# ---------------------------------------------------------------------------------- updaters and changes


def test_an_updater_gets_the_rows_of_the_round_counted_from_the_shards_first() -> None:
    ledger = book_of()
    ledger.updater = Descent()
    ledger.push_rows(0, 1, piece({3: 1}), 0.0)
    ledger.push_rows(1, 1, piece({3: 1, 5: 5}), 0.0)
    assert first_column(ledger) == [0, 3 - 2, 6, 9 - 5]


class Decay:
    """An updater that changes every row."""

    def update_rows(self, version: int, ids: Array, gradient: Array, weight: Array) -> bool:
        weight *= 2
        return False


def changes(ledger: Book, version: int) -> Optional[list[int]]:
    rows = ledger.changes(version)
    return None if rows is None else rows.tolist()


def test_a_ledger_tells_which_rows_have_changed_since_a_version() -> None:
    ledger = book_of(num_workers=1)
    ledger.updater = Descent()
    for version, rows in enumerate([{2: 1.0}, {3: 1.0, 2: 1.0}, {}], start=1):
        ledger.push_rows(0, version, piece(rows), 0.0)
    assert [changes(ledger, version) for version in range(4)] == [[0, 1], [0, 1], [], []]
    assert changes(ledger, 4) is None and changes(ledger, -1) is None


def test_after_a_round_of_all_elements_or_of_an_updater_that_is_not_lazy_any_row_may_have_changed() -> None:
    ledger = book_of(num_workers=1)
    ledger.updater = Descent()
    ledger.push(0, 1, START, np.zeros(12, np.float32), 0.0)
    ledger.push_rows(0, 2, piece({2: 1}), 0.0)
    assert changes(ledger, 0) is None and changes(ledger, 1) == [0]
    ledger.updater = Decay()  # type: ignore[assignment]
    ledger.push_rows(0, 3, piece({2: 1}), 0.0)
    assert changes(ledger, 2) is None and changes(ledger, 3) == []


def test_without_an_updater_the_rows_of_the_round_before_change_too() -> None:
    ledger = book_of(num_workers=1)
    ledger.push_rows(0, 1, piece({2: 1}), 0.0)
    ledger.push_rows(0, 2, piece({4: 1}), 0.0)
    assert changes(ledger, 0) is None and changes(ledger, 1) == [0, 2]


def test_only_some_rounds_are_remembered() -> None:
    ledger = book_of(num_workers=1)
    ledger.updater = Descent()
    for version in range(1, 21):
        ledger.push_rows(0, version, piece({2: 1}), 0.0)
    assert changes(ledger, 3) is None and changes(ledger, 4) == [0]


# -------------------------------------------------------------------------------------------- at once


def test_an_asynchronous_push_counts_and_is_answered_when_it_is_complete() -> None:
    tally = book_of(Tally)
    assert tally.push_rows(1, 1, piece({2: 100}, START, 12), 0.0) == ()
    assert first_column(tally) == [0, 3, 6, 9]
    assert tally.push_rows(1, 1, piece({5: 1}, 12, STOP), 0.0) == (Completion(START, STOP, 1),)
    assert first_column(tally) == [100, 3, 6, 10]
    assert tally.push_rows(1, 2, piece({5: 1}), 0.0) == (Completion(START, STOP, 1),)
    assert tally.version == 2 and tally.changes(1) is None


def test_an_asynchronous_updater_gets_whole_pushes() -> None:
    tally = book_of(Tally)
    tally.updater = Descent()
    tally.push_rows(0, 1, piece({2: 1}, START, 12), 0.0)
    tally.push_rows(0, 1, piece({4: 1}, 12, STOP), 0.0)
    assert first_column(tally) == [-1, 3, 5, 9]


def test_staleness_bounds_pushes_of_rows_too() -> None:
    tally = book_of(Tally, staleness=0)
    assert tally.push_rows(0, 1, piece({2: 1}), 0.0) == []
    assert tally.push_rows(1, 1, piece({2: 1}), 0.0) == [Completion(START, STOP, 0), Completion(START, STOP, 1)]


def test_an_unfinished_push_of_a_worker_that_is_gone_does_not_count() -> None:
    tally = book_of(Tally)
    tally.push_rows(0, 1, piece({2: 1}, START, 12), 0.0)
    tally.worker_gone(0)
    assert first_column(tally) == [0, 3, 6, 9]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_pieces_in_any_order_give_the_dense_sum(data: st.DataObject) -> None:
    num_workers = data.draw(st.integers(1, 3))
    ledger = book_of(num_workers=num_workers, dtype="int64")
    queues, expected = [], np.zeros(4, np.int64)
    for _ in range(num_workers):
        rows = data.draw(st.dictionaries(st.integers(2, 5), st.integers(-9, 9)))
        for row, number in rows.items():
            expected[row - 2] += number
        edges = sorted({2, 6, *data.draw(st.lists(st.integers(2, 6), max_size=2))})
        queues.append(
            [
                piece({r: n for r, n in rows.items() if a <= r < b}, a * WIDTH, b * WIDTH, "int64")
                for a, b in zip(edges, edges[1:])
            ]
        )
    completions = []
    while any(queues):
        worker = data.draw(st.sampled_from([worker for worker, left in enumerate(queues) if left]))
        completions += ledger.push_rows(worker, 1, queues[worker].pop(0), 0.0)
    assert completions == [Completion(START, STOP)]
    assert first_column(ledger) == expected.tolist()
