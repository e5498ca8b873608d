"""The asynchronous book: every push counts at once and by itself, and waits only where staleness is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ps.book import Completion, LedgerError
from ps.partition import cut_plan
from ps.tally import Tally
from tests.ps.descent import Descent

Array = NDArray[Any]


def tally_of(
    size: int, num_workers: int = 2, dtype: str = "float32", staleness: int = -1, whole: bool = False, start: int = 0
) -> Tally:
    """A tally whose first value is zero."""
    tally = Tally("fc1_weight", start, start + size, np.dtype(dtype), num_workers, whole, staleness=staleness)
    assert tally.initialize(start, np.zeros(size, dtype))
    return tally


def array(*values: float, dtype: str = "float32") -> Array:
    return np.array(values, dtype)


# --------------------------------------------------------------------------------------------- at once


def test_a_push_is_added_to_the_value_and_answered_to_its_worker_at_once() -> None:
    tally = tally_of(3, start=5)
    assert tally.push(1, 1, 5, array(1, 2), 0.0) == (Completion(5, 7, 1),)
    assert tally.view(5, 8).tolist() == [1, 2, 0]
    assert tally.push(0, 1, 5, array(10, 10, 10), 0.0) == (Completion(5, 8, 0),)
    assert tally.push(1, 1, 7, array(3), 0.0) == (Completion(7, 8, 1),)
    assert tally.value.tolist() == [11, 12, 13]
    assert tally.opened_at is None and tally.missing() == []


def test_each_worker_counts_its_own_versions() -> None:
    tally = tally_of(1)
    for version in (1, 2, 3):
        tally.push(0, version, 0, array(1), 0.0)
    tally.push(1, 1, 0, array(1), 0.0)
    assert tally.value.tolist() == [4]
    with pytest.raises(LedgerError, match="worker 1 pushed .* of version 3, .* expected version 2"):
        tally.push(1, 3, 0, array(1), 0.0)


def test_what_was_had_before_is_dropped() -> None:
    tally = tally_of(2)
    tally.push(0, 1, 0, array(1), 0.0)
    assert not tally.push(0, 1, 0, array(1), 0.0)
    tally.push(0, 1, 1, array(1), 0.0)
    assert not tally.push(0, 1, 0, array(1, 1), 0.0)
    assert tally.duplicates == 2 and tally.value.tolist() == [1, 1]


def test_an_empty_shard_answers() -> None:
    tally = tally_of(0, start=8)
    assert tally.push(1, 1, 8, array(), 0.0) == (Completion(8, 8, 1),)
    assert tally.push(1, 2, 8, array(), 0.0) == (Completion(8, 8, 1),)


def test_float16_is_accumulated_in_float32() -> None:
    tally = tally_of(1, dtype="float16")
    for version, value in enumerate((2048, 1, 1), 1):
        tally.push(0, version, 0, array(value, dtype="float16"), 0.0)
    assert tally.value.dtype == np.float16 and tally.value.tolist() == [2050]


def test_what_is_infinite_or_no_number_in_a_gradient_is_counted() -> None:
    tally = tally_of(2)
    tally.push(0, 1, 0, array(np.nan, 1), 0.0)
    tally.push(0, 2, 0, array(1, 1), 0.0)
    assert tally.nonfinite == 1


def test_an_updater_gets_each_range_with_the_number_of_its_push() -> None:
    tally = tally_of(4)
    updater = tally.updater = Descent()
    tally.push(0, 1, 0, array(1, 1), 0.0)
    tally.push(1, 1, 0, array(10, 10, 10, 10), 0.0)
    tally.push(0, 1, 2, array(1, 1), 0.0)
    assert tally.value.tolist() == [-11] * 4
    assert updater.calls == [(1, 0, 2), (2, 0, 4), (1, 2, 4)]


def test_a_whole_tensor_is_updated_push_by_push_in_one_piece() -> None:
    tally = tally_of(3, whole=True)
    updater = tally.updater = Descent()
    assert not tally.push(0, 1, 0, array(1, 2), 0.0)
    assert tally.push(1, 1, 0, array(10, 10, 10), 0.0) == (Completion(0, 3, 1),)
    assert tally.value.tolist() == [-10, -10, -10]
    assert tally.push(0, 1, 2, array(3), 0.0) == (Completion(0, 3, 0),)
    assert tally.value.tolist() == [-11, -12, -13]
    assert updater.calls == [(2, 0, 3), (1, 0, 3)]


# ------------------------------------------------------------------------------------ bounded staleness


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest() -> None:
    tally = tally_of(2, num_workers=3, staleness=1)
    tally.push(1, 1, 0, array(1, 1), 0.0)
    assert tally.push(0, 1, 0, array(1, 1), 1.0) == [Completion(0, 2, 0)]
    assert tally.push(0, 2, 0, array(1), 2.0) == []
    assert tally.push(0, 2, 1, array(1), 3.0) == []
    assert tally.value.tolist() == [3, 3], "it is applied at once all the same"
    assert tally.opened_at == 2.0 and tally.missing() == [2]
    assert str(tally) == "'fc1_weight', push 2 of worker 0 (staleness 1)"
    assert tally.push(2, 1, 0, array(1), 4.0) == [Completion(0, 1, 2)]
    assert tally.push(2, 1, 1, array(1), 4.0) == [Completion(0, 2, 0), Completion(1, 2, 2)]
    assert tally.opened_at is None


def test_staleness_0_answers_a_push_when_all_have_pushed_as_often() -> None:
    tally = tally_of(1, staleness=0)
    assert tally.push(0, 1, 0, array(1), 0.0) == []
    assert tally.push(1, 1, 0, array(1), 0.0) == [Completion(0, 1, 0), Completion(0, 1, 1)]


def test_nobody_waits_for_a_worker_that_is_gone() -> None:
    tally = tally_of(1, num_workers=3, staleness=0)
    tally.push(0, 1, 0, array(1), 0.0)
    tally.push(1, 1, 0, array(1), 0.0)
    assert not tally.needs(2)
    assert tally.worker_gone(2) == [Completion(0, 1, 0), Completion(0, 1, 1)]
    tally.push(1, 2, 0, array(1), 0.0)
    assert tally.worker_gone(1) == [], "its own push is nobody's concern any more"
    assert tally.opened_at is None
    assert tally.push(0, 2, 0, array(1), 0.0) == [Completion(0, 1, 0)]


def test_a_push_that_has_waited_too_long_is_given_up_and_the_others_go_on() -> None:
    tally = tally_of(1, num_workers=3, staleness=0)
    tally.push(0, 1, 0, array(1), 5.0)
    tally.push(1, 1, 0, array(1), 6.0)
    assert tally.give_up() == [0]
    assert tally.opened_at == 6.0
    assert tally.push(2, 1, 0, array(1), 7.0) == [Completion(0, 1, 1), Completion(0, 1, 2)]


# -------------------------------------------------------------------------------------------- property


@settings(deadline=None, max_examples=100)
@given(data=st.data(), size=st.integers(1, 20), num_workers=st.integers(1, 4), staleness=st.integers(-1, 2))
def test_each_range_counts_once_and_each_push_is_answered_when_none_is_too_far_behind(
    data: st.DataObject, size: int, num_workers: int, staleness: int
) -> None:
    tally = tally_of(size, num_workers, "int64", staleness)
    random = data.draw(st.randoms(use_true_random=False))
    total, pushes = np.zeros(size, "int64"), 4
    pushed, answered = [0] * num_workers, [0] * num_workers  # elements
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(num_workers)]
    while min(answered) < pushes * size:
        ready = [
            worker
            for worker in range(num_workers)
            if ranges[worker] or (answered[worker] == pushed[worker] < pushes * size)
        ]
        assert ready, "all wait for each other"
        worker = random.choice(ready)
        if not ranges[worker]:
            ranges[worker] = list(cut_plan(0, size, 1, [random.randint(1, size)]))
        first, count = ranges[worker].pop(0)
        values = np.full(count, random.randrange(100))
        total[first : first + count] += values
        version = pushed[worker] // size + 1
        pushed[worker] += count
        for start, stop, to in tally.push(worker, version, first, values, 0.0):
            assert to is not None and start == answered[to] % size < stop
            answered[to] += stop - start
        for other in range(num_workers):
            if staleness >= 0:
                slowest = min((pushed[w] // size for w in range(num_workers) if w != other), default=pushes)
                assert answered[other] <= min(pushed[other], (slowest + staleness) * size)
            else:
                assert answered[other] == pushed[other]
        assert tally.value.tolist() == total.tolist()
