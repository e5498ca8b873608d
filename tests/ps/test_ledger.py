"""The ledger: exact sums whatever the cuts and their interleaving, each range complete once, rounds never mixed."""

from __future__ import annotations

from itertools import permutations
from typing import Any, Type

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ps.book import Completion, LedgerError, count_nonfinite
from ps.ledger import Ledger, OrderedLedger
from ps.partition import cut_plan
from tests.ps.descent import Descent

Array = NDArray[Any]


def ledger_of(
    size: int, num_workers: int = 2, dtype: str = "float32", start: int = 0, kind: Type[Ledger] = Ledger
) -> Ledger:
    """A ledger whose first value is zero."""
    ledger = kind("fc1_weight", start, start + size, np.dtype(dtype), num_workers)
    assert ledger.initialize(start, np.zeros(size, dtype))
    return ledger


def done(start: int, stop: int) -> tuple[Completion, ...]:
    """What is returned when a range has become complete for all."""
    return (Completion(start, stop, None),)


def array(*values: float, dtype: str = "float32") -> Array:
    return np.array(values, dtype)


# ------------------------------------------------------------------------------------- the first value


def test_the_first_value_arrives_in_ranges() -> None:
    ledger = Ledger("fc1_weight", 10, 14, np.dtype("float32"), 2)
    assert not ledger.initialize(10, array(1, 2, 3))
    assert ledger.initialize(13, array(4))
    assert ledger.version == 0 and ledger.value.tolist() == [1, 2, 3, 4]
    assert ledger.view(11, 13).tolist() == [2, 3]


def test_a_second_first_value_is_refused_and_the_value_stays() -> None:
    ledger = ledger_of(2)
    with pytest.raises(LedgerError, match="'fc1_weight' has its first value already"):
        ledger.initialize(0, array(7, 7))
    assert ledger.value.tolist() == [0, 0]


def test_a_first_value_out_of_place_or_of_another_type_is_refused() -> None:
    ledger = Ledger("fc1_weight", 10, 14, np.dtype("float32"), 2)
    for start, values in [(11, array(1)), (10, array(1, 2, 3, 4, 5)), (10, array(1, dtype="float64"))]:
        with pytest.raises(LedgerError, match="expected elements from 10 up to 14, float32"):
            ledger.initialize(start, values)


def test_before_the_first_value_nothing_can_be_pushed_or_seen() -> None:
    ledger = Ledger("fc1_weight", 0, 2, np.dtype("float32"), 2)
    with pytest.raises(LedgerError, match="worker 1 .* expected no push before the first value"):
        ledger.push(1, 1, 0, array(1, 2), 0.0)
    with pytest.raises(LedgerError, match="not complete"):
        ledger.view(0, 2)


# ------------------------------------------------------------------------------------------- one round


def test_a_range_is_complete_when_all_workers_have_pushed_it_however_they_cut() -> None:
    ledger = ledger_of(6)
    assert not ledger.push(0, 1, 0, array(1, 2, 3, 4), 5.0)
    assert ledger.opened_at == 5.0
    assert ledger.push(1, 1, 0, array(10), 6.0) == done(0, 1)
    assert ledger.view(0, 1).tolist() == [11]
    assert ledger.push(1, 1, 1, array(20, 30, 40, 50, 60), 6.0) == done(1, 4)  # added below 4, copied above
    assert ledger.view(1, 4).tolist() == [22, 33, 44]
    assert ledger.push(0, 1, 4, array(5, 6), 7.0) == done(4, 6)
    assert (ledger.version, ledger.opened_at) == (1, None)
    assert ledger.view(4, 6).tolist() == [55, 66]
    assert ledger.value.tolist() == [11, 22, 33, 44, 55, 66]


def test_elements_are_counted_from_the_beginning_of_the_tensor() -> None:
    ledger = ledger_of(4, num_workers=1, start=1000)
    assert ledger.push(0, 1, 1000, array(1, 2), 0.0) == done(1000, 1002)
    assert ledger.push(0, 1, 1002, array(3, 4), 0.0) == done(1002, 1004)
    assert ledger.view(1001, 1003).tolist() == [2, 3]


def test_the_sum_of_a_round_does_not_contain_the_value_before() -> None:
    ledger = ledger_of(3)
    for version, scale in ((1, 1), (2, 2)):
        for worker in (0, 1):
            ledger.push(worker, version, 0, np.full(3, (worker + 1) * scale, np.float32), 0.0)
        assert ledger.value.tolist() == [3 * scale] * 3


def test_the_open_round_knows_whom_it_waits_for() -> None:
    ledger = ledger_of(4, num_workers=3)
    assert ledger.missing() == []
    ledger.push(2, 1, 0, array(1, 1), 0.0)
    ledger.push(0, 1, 0, array(1), 0.0)
    assert [ledger.watermark(worker) for worker in range(3)] == [1, 0, 2]
    assert ledger.missing() == [0, 1]


def test_while_a_round_is_open_the_last_value_stays_readable() -> None:
    ledger = ledger_of(4)
    ledger.push(0, 1, 0, array(1, 1, 1, 1), 0.0)
    assert ledger.view(0, 4).tolist() == [0, 0, 0, 0]
    ledger.push(1, 1, 0, array(1, 1), 0.0)
    assert ledger.view(0, 2).tolist() == [2, 2] and ledger.view(2, 4).tolist() == [0, 0]
    with pytest.raises(LedgerError, match="elements 1 to 3 are of two rounds"):
        ledger.view(1, 3)


def test_an_empty_shard_is_complete_when_all_have_pushed_nothing_to_it() -> None:
    ledger = ledger_of(0, start=8)
    for version in (1, 2):
        assert not ledger.push(1, version, 8, array(), 3.0)
        assert ledger.missing() == [0] and ledger.opened_at == 3.0
        assert ledger.push(0, version, 8, array(), 4.0) == done(8, 8)
        assert ledger.version == version
    assert ledger.view(8, 8).size == 0


def test_read_only_values_over_a_frame_are_summed() -> None:
    ledger = ledger_of(2)
    values = np.frombuffer(array(1, 2).tobytes(), np.float32)
    assert not values.flags.writeable
    ledger.push(0, 1, 0, values, 0.0)
    assert ledger.push(1, 1, 0, values, 0.0) == done(0, 2)
    assert ledger.value.tolist() == [2, 4]


def test_two_buffers_alternate_and_an_answer_stays_until_the_round_after_the_next() -> None:
    ledger = ledger_of(2, num_workers=1)
    ledger.push(0, 1, 0, array(1, 1), 0.0)
    answer = ledger.view(0, 2)
    ledger.push(0, 2, 0, array(2, 2), 0.0)
    assert answer.tolist() == [1, 1]
    ledger.push(0, 3, 0, array(3, 3), 0.0)
    assert np.shares_memory(answer, ledger.value)


# ------------------------------------------------------------------------------- duplicates and refusals


def test_what_was_had_before_is_dropped() -> None:
    ledger = ledger_of(4)
    ledger.push(0, 1, 0, array(1, 1), 0.0)
    assert not ledger.push(0, 1, 0, array(1, 1), 0.0)
    assert not ledger.push(0, 1, 1, array(1), 0.0)
    ledger.push(0, 1, 2, array(1, 1), 0.0)
    assert ledger.push(1, 1, 0, array(1, 1, 1, 1), 0.0) == done(0, 4)
    assert not ledger.push(1, 1, 0, array(1, 1, 1, 1), 0.0)  # its round is closed
    assert ledger.duplicates == 3
    assert ledger.value.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("worker", "version", "start", "values", "expected"),
    [
        (1, 1, 2, array(1), "the range from element 1 on"),  # a gap
        (1, 1, 0, array(1, 1), "the range from element 1 on"),  # half of it was had before
        (1, 2, 0, array(1), "version 1"),
        (1, 1, 1, array(1, 1, 1, 1), "elements within 0 to 4"),
        (1, 1, -1, array(1), "elements within 0 to 4"),
        (1, 1, 1, array(1, dtype="float16"), "float32, 1-D"),
        (1, 1, 1, array(1).reshape(1, 1), "float32, 1-D"),
        (2, 1, 0, array(1), "a rank below 2"),
        (-1, 1, 0, array(1), "a rank below 2"),
    ],
)
def test_a_push_that_does_not_fit_is_refused_and_changes_nothing(
    worker: int, version: int, start: int, values: Array, expected: str
) -> None:
    ledger = ledger_of(4)
    ledger.push(1, 1, 0, array(1), 0.0)
    with pytest.raises(LedgerError, match=f"'fc1_weight': worker {worker} pushed .* expected {expected}"):
        ledger.push(worker, version, start, values, 0.0)
    assert not ledger.push(1, 1, 1, array(1, 1, 1), 0.0)
    assert ledger.push(0, 1, 0, array(1, 1, 1, 1), 0.0) == done(0, 4)
    assert ledger.value.tolist() == [2, 2, 2, 2]


def test_a_type_that_cannot_be_summed_is_refused() -> None:
    with pytest.raises(LedgerError, match="cannot sum bool"):
        Ledger("mask", 0, 1, np.dtype("bool"), 1)


# -------------------------------------------------------------------------------------------- numerics


@pytest.mark.parametrize("pushes", list(permutations([2048.0, 1.0, 1.0])))
def test_float16_is_summed_in_float32_and_rounded_once_in_any_order(pushes: tuple[float, ...]) -> None:
    ledger = ledger_of(1, num_workers=3, dtype="float16")
    for worker, value in enumerate(pushes):
        ledger.push(worker, 1, 0, array(value, dtype="float16"), 0.0)
    assert ledger.value.dtype == np.float16 and ledger.value.tolist() == [2050.0]


def test_a_float16_sum_out_of_range_is_infinite() -> None:
    ledger = ledger_of(1, dtype="float16")
    with np.errstate(over="ignore"):
        for worker in (0, 1):
            ledger.push(worker, 1, 0, array(40000, dtype="float16"), 0.0)
    assert ledger.value.tolist() == [float("inf")]


def test_not_a_number_stays_where_it_was_pushed() -> None:
    ledger = ledger_of(2)
    ledger.push(0, 1, 0, array(np.nan, 1), 0.0)
    ledger.push(1, 1, 0, array(1, 1), 0.0)
    assert np.isnan(ledger.value[0]) and ledger.value[1] == 2


@pytest.mark.parametrize(
    ("dtype", "value", "total"),
    [("uint8", 200, 144), ("int8", 100, -56), ("int32", 2**31 - 1, -2), ("int64", 2**53 + 1, 2**54 + 2)],
)
def test_integers_are_summed_in_their_own_type_and_wrap(dtype: str, value: int, total: int) -> None:
    ledger = ledger_of(1, dtype=dtype)
    for worker in (0, 1):
        ledger.push(worker, 1, 0, array(value, dtype=dtype), 0.0)
    assert ledger.value.tolist() == [total]


@pytest.mark.parametrize("first", [0, 1])
def test_the_sum_of_two_workers_is_the_same_bits_whoever_comes_first(first: int) -> None:
    gradients = [np.random.default_rng(worker).standard_normal(1000).astype(np.float32) for worker in (0, 1)]
    ledger = ledger_of(1000)
    for worker in (first, 1 - first):
        ledger.push(worker, 1, 0, gradients[worker], 0.0)
    assert ledger.value.tobytes() == (gradients[0] + gradients[1]).tobytes()


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ordered_sums_are_the_same_bits_in_every_order_of_arrival(order: tuple[int, ...], dtype: str) -> None:
    gradients = [array(*numbers, dtype=dtype) for numbers in ([1e4, 0.1, 7], [1e-3, 0.7, 7], [-1e4, 0.3, 7])]
    total = (gradients[0].astype(np.float32) + gradients[1]) + gradients[2]
    ledger = ledger_of(3, num_workers=3, dtype=dtype, kind=OrderedLedger)
    for worker in order:
        cut = worker + 1
        for start, stop in ((0, cut), (cut, 3)):
            if start < stop:
                ledger.push(worker, 1, start, gradients[worker][start:stop], 0.0)
    assert ledger.value.tobytes() == total.astype(dtype).tobytes()


def test_an_ordered_range_is_complete_when_the_last_rank_has_had_its_turn() -> None:
    ledger = ledger_of(4, num_workers=3, kind=OrderedLedger)
    assert not ledger.push(2, 1, 0, array(1, 1, 1, 1), 0.0)
    assert not ledger.push(1, 1, 0, array(10, 10), 0.0)
    assert ledger.push(0, 1, 0, array(100, 100, 100), 0.0) == done(0, 2)
    assert ledger.view(0, 2).tolist() == [111, 111]
    assert not ledger.push(0, 1, 3, array(100), 0.0)
    assert ledger.missing() == [1]
    assert ledger.push(1, 1, 2, array(10, 10), 0.0) == done(2, 4)
    assert ledger.value.tolist() == [111] * 4


def test_what_is_infinite_or_no_number_in_a_sum_is_counted() -> None:
    ledger = ledger_of(3)
    with np.errstate(invalid="ignore"):
        for worker, values in enumerate((array(np.nan, np.inf, 1), array(1, -np.inf, 1))):
            ledger.push(worker, 1, 0, values, 0.0)
    assert ledger.nonfinite == 2
    half = ledger_of(2, dtype="float16")
    with np.errstate(over="ignore"):
        for worker in (0, 1):
            half.push(worker, 1, 0, array(40000, -40000, dtype="float16"), 0.0)
    assert half.nonfinite == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("size", [2, 20000])
def test_large_finite_numbers_are_not_counted(dtype: str, size: int) -> None:
    extremes = np.iinfo if dtype == "int32" else np.finfo
    values = np.full(size, extremes(dtype).max, dtype)
    with np.errstate(over="ignore"):
        assert count_nonfinite(values) == 0
        assert count_nonfinite(-values) == 0
        if dtype != "int32":
            values[-1] = np.nan
            assert count_nonfinite(values) == 1
            values[0] = -np.inf
            assert count_nonfinite(values) == 2


# --------------------------------------------------------------------------------------------- updaters


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_updater_changes_the_value_range_by_range_as_the_sum_completes(dtype: str) -> None:
    ledger = ledger_of(4, dtype=dtype)
    updater = ledger.updater = Descent()
    for version in (1, 2):
        ledger.push(0, version, 0, array(1, 2, 3, 4, dtype=dtype), 0.0)
        assert ledger.push(1, version, 0, array(1, dtype=dtype), 0.0) == done(0, 1)
        assert ledger.view(0, 1).tolist() == [-2 * version]
        assert ledger.push(1, version, 1, array(1, 1, 1, dtype=dtype), 0.0) == done(1, 4)
    assert ledger.value.tolist() == [-4, -6, -8, -10]
    assert updater.calls == [(1, 0, 1), (1, 1, 4), (2, 0, 1), (2, 1, 4)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_whole_tensor_is_updated_and_answered_in_one_piece(dtype: str) -> None:
    ledger = Ledger("fc1_weight", 0, 4, np.dtype(dtype), 2, whole=True)
    ledger.initialize(0, array(0, 0, 0, 0, dtype=dtype))
    updater = ledger.updater = Descent()
    ledger.push(0, 1, 0, array(1, 2, 3, 4, dtype=dtype), 0.0)
    assert not ledger.push(1, 1, 0, array(1, dtype=dtype), 0.0)
    assert ledger.push(1, 1, 1, array(1, 1, 1, dtype=dtype), 0.0) == done(0, 4)
    assert ledger.value.tolist() == [-2, -3, -4, -5]
    assert updater.calls == [(1, 0, 4)]


def test_an_updater_counts_from_the_next_round_on() -> None:
    ledger = ledger_of(1)
    ledger.push(0, 1, 0, array(1), 0.0)
    updater = ledger.updater = Descent()
    ledger.push(1, 1, 0, array(1), 0.0)
    assert ledger.value.tolist() == [2] and updater.calls == []
    for worker in (0, 1):
        ledger.push(worker, 2, 0, array(1), 0.0)
    assert ledger.value.tolist() == [0] and updater.calls == [(2, 0, 1)]


# -------------------------------------------------------------------------------------------- property

cuts = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(
    data=st.data(),
    size=st.integers(0, 60),
    start=st.integers(0, 100),
    num_workers=st.integers(1, 4),
    rounds=st.integers(1, 3),
    dtype=st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint8"]),
    kind=st.sampled_from([Ledger, OrderedLedger]),
)
def test_any_cuts_in_any_order_give_the_exact_sum_and_complete_each_element_once(
    data: st.DataObject, size: int, start: int, num_workers: int, rounds: int, dtype: str, kind: Type[Ledger]
) -> None:
    ledger = ledger_of(size, num_workers, dtype, start, kind)
    random = data.draw(st.randoms(use_true_random=False))
    for version in range(1, rounds + 1):
        before, value_before = ledger.value, ledger.value.tolist()
        gradients = [np.array([random.randrange(100) for _ in range(size)], dtype) for _ in range(num_workers)]
        total = np.sum(gradients, axis=0, dtype=dtype)
        waiting = []
        for worker in range(num_workers):
            ranges = list(cut_plan(start, start + size, 1, data.draw(cuts))) or [(start, 0)]
            waiting.append((worker, ranges))
        complete = start
        answered = False
        while waiting:
            worker, ranges = random.choice(waiting)
            first, count = ranges.pop(0)
            if not ranges:
                waiting.remove((worker, ranges))
            values = gradients[worker][first - start : first - start + count]
            for low, high, to in ledger.push(worker, version, first, values, 0.0):
                assert low == complete and (high > complete or size == 0) and to is None
                complete = high
                answered = True
                assert ledger.view(low, high).tolist() == total[low - start : high - start].tolist()
            if random.random() < 0.3:
                assert not ledger.push(worker, version, first, values, 0.0)  # sent again
        assert answered and complete == start + size
        assert ledger.version == version and ledger.opened_at is None
        assert ledger.value.tolist() == total.tolist()
        assert before.tolist() == value_before, "answers of the round before may still be on their way"
