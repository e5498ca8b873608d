"""Times per layer from when gradients were ready and sums had arrived."""

from __future__ import annotations

import random
from typing import Optional, Sequence

import pytest

from ps.layers import STEPS, LayerTimes, Profile, StepTimes
from ps.stats import MAX_LAYERS, LayerGroup

pytestmark = pytest.mark.timeout(10)


def step(
    ready: Sequence[float],
    arrived: Sequence[float] = (),
    recorded: Optional[float] = None,
    sizes: Sequence[int] = (),
    priorities: Sequence[int] = (),
) -> StepTimes:
    """A step whose tensors are pushed in forward order, as Gluon's Trainer does."""
    return StepTimes(
        priorities=tuple(priorities or range(0, -len(ready), -1)),
        sizes_bytes=tuple(sizes or [1000] * len(ready)),
        ready_seconds=tuple(ready),
        arrived_seconds=tuple(arrived),
        recorded_seconds=recorded,
    )


def profile(*steps: StepTimes) -> Profile:
    times = LayerTimes()
    for each in steps:
        times.add(each)
    found = times.profile()
    assert found is not None
    return found


def test_nothing_is_claimed_before_the_first_step() -> None:
    assert LayerTimes().profile() is None


def test_backward_of_a_layer_is_the_time_since_the_gradient_before() -> None:
    """The last layer's gradient comes first: after 1 s; the next ones 2 and 4 s later."""
    found = profile(step(ready=[7.0, 3.0, 1.0], sizes=[10, 20, 30]))
    assert [group.backward_seconds for group in found.layers] == [4.0, 2.0, 1.0]
    assert [group.size_bytes for group in found.layers] == [10, 20, 30]
    assert found.backward_seconds == 7.0


def test_order_is_that_of_the_priorities_and_of_the_pushes_where_they_are_equal() -> None:
    found = profile(step(ready=[1.0, 3.0, 7.0], sizes=[30, 20, 10], priorities=[-2, -1, 0]))
    assert [(group.size_bytes, group.backward_seconds) for group in found.layers] == [(10, 4.0), (20, 2.0), (30, 1.0)]
    found = profile(step(ready=[7.0, 3.0, 1.0], sizes=[10, 20, 30], priorities=[5, 5, 5]))
    assert [(group.size_bytes, group.backward_seconds) for group in found.layers] == [(10, 4.0), (20, 2.0), (30, 1.0)]


def test_forward_is_bounded_by_the_first_sum_where_the_host_waits_for_nothing_else() -> None:
    """All sums were there 3 s before the end of the pass: it took 3 s, in the parts of backward."""
    found = profile(step(ready=[6.0, 4.0, 2.0], arrived=[3.0, 3.5, 4.0]))
    assert found.forward_seconds == pytest.approx(3.0)
    assert [group.forward_seconds for group in found.layers] == pytest.approx([1.0, 1.0, 1.0])


def test_forward_leaves_out_the_waiting_for_sums() -> None:
    """The first sum was there 9 s before the end, the second only 2 s before: two of three layers in 2 s."""
    found = profile(step(ready=[6.0, 4.0, 2.0], arrived=[9.0, 2.0, 2.0], recorded=20.0))
    assert found.forward_seconds == pytest.approx(3.0)


def test_forward_begins_with_record_where_the_host_is_late() -> None:
    assert profile(step(ready=[6.0, 4.0, 2.0], arrived=[9.0, 9.0, 9.0], recorded=2.5)).forward_seconds == 2.5
    assert profile(step(ready=[6.0, 4.0, 2.0], recorded=2.5)).forward_seconds == 2.5
    assert profile(step(ready=[6.0, 4.0, 2.0])).forward_seconds is None


def test_a_layer_near_the_end_says_too_little_to_count() -> None:
    """The last one is a tenth of the computation; its sum, late by chance, would make the pass ten times as short."""
    assert profile(step(ready=[10.0, 5.0, 1.0], arrived=[4.0, 4.0, 0.01])).forward_seconds == 4.0


def test_medians_over_steps_ignore_a_step_that_was_disturbed() -> None:
    steady = step(ready=[0.007, 0.003, 0.001], arrived=[0.004, 0.004, 0.004])
    slow = step(ready=[0.7, 0.3, 0.001], arrived=[0.4, 0.4, 0.4])
    found = profile(steady, steady, slow, steady)
    assert [group.backward_microseconds for group in found.layers] == [4000, 2000, 1000]
    assert found.forward_seconds == 0.004


def test_a_worker_that_becomes_slower_is_seen_after_four_steps() -> None:
    fast = step(ready=[0.003, 0.002, 0.001], arrived=[0.003] * 3)
    slow = step(ready=[0.009, 0.006, 0.003], arrived=[0.009] * 3)
    found = profile(*[fast] * 7, *[slow] * 4)
    assert (found.forward_seconds, found.backward_seconds) == (0.009, 0.009)
    assert [group.backward_microseconds for group in found.layers] == [3000, 3000, 3000]


def test_another_model_replaces_the_one_before() -> None:
    found = profile(step(ready=[2.0, 1.0]), step(ready=[5.0, 4.0, 1.0]))
    assert [group.backward_seconds for group in found.layers] == [1.0, 3.0, 1.0]


def test_gradients_that_are_ready_at_once_give_the_time_to_one_of_them() -> None:
    found = profile(step(ready=[3.0, 3.0, 1.0]))
    assert sum(group.backward_seconds for group in found.layers[:2]) == 2.0
    assert profile(step(ready=[0.0, 0.0], arrived=[1.0, 1.0])).layers == (
        LayerGroup(1, 1000, 500_000, 0),
        LayerGroup(1, 1000, 500_000, 0),
    )


def test_a_deep_model_is_joined_to_64_groups_that_keep_totals_and_large_tensors_apart() -> None:
    generator = random.Random(2)
    count = 400
    sizes = [generator.choice([256, 4096, 100_000]) for _ in range(count)]
    sizes[200] = 100_000_000
    seconds = [generator.uniform(0.0001, 0.001) for _ in range(count)]
    ready = [sum(seconds[index:]) for index in range(count)]
    found = profile(step(ready=ready, sizes=sizes, arrived=[0.1] * count))
    assert len(found.layers) <= MAX_LAYERS
    assert sum(group.tensors for group in found.layers) == count
    assert sum(group.size_bytes for group in found.layers) == sum(sizes)
    assert sum(group.backward_seconds for group in found.layers) == pytest.approx(sum(seconds), abs=1e-4)
    assert sum(group.forward_seconds for group in found.layers) == pytest.approx(found.forward_seconds, abs=1e-4)
    large = [index for index, group in enumerate(found.layers) if group.size_bytes >= 100_000_000]
    assert len(large) == 1
    assert found.layers[large[0]].size_bytes < 102_000_000
    before = sum(group.tensors for group in found.layers[: large[0]])
    assert before <= 200 < before + found.layers[large[0]].tensors
    assert max(group.tensors for group in found.layers) < 20


def test_forward_stays_the_part_of_backward_that_it_was_where_all_sums_are_late() -> None:
    times = LayerTimes()
    for _ in range(STEPS):
        times.add(step(ready=[8.0, 4.0], arrived=[2.0, 1.0]))
    found = times.profile()
    assert found is not None and found.forward_seconds == 2.0
    for _ in range(STEPS):  # on a slow network forward seems to take long; and backward takes half as long again
        times.add(step(ready=[12.0, 6.0], arrived=[9.0, 8.0]))
    found = times.profile()
    assert found is not None and (found.forward_seconds, found.backward_seconds) == (3.0, 12.0)
    times.add(step(ready=[12.0, 6.0], arrived=[9.0, 8.0], sizes=[1, 2]))  # another model
    found = times.profile()
    assert found is not None and found.forward_seconds == 9.0
