"""What counts as a change, and how soon it is seen."""

from __future__ import annotations

import random

import pytest

from ps.config import CommConfig
from tuner.change import FIRST_ROUNDS, Cusum, Watch, felt
from tuner.situation import Across, Situation

pytestmark = pytest.mark.timeout(10)


def windows_until_alarm(signal: Cusum, ratio: float, noise: float = 0.0, most: int = 100) -> int:
    draw = random.Random(1)
    for _ in range(20):
        signal.add(draw.lognormvariate(0, noise))
    for window in range(1, most + 1):
        if signal.add(ratio * draw.lognormvariate(0, noise)) is not None:
            return window
    return most + 1


@pytest.mark.parametrize(("ratio", "windows"), [(2.0, 1), (0.5, 1), (1.1, 1), (1.05, 3), (0.95, 2), (1.015, 101)])
def test_a_large_change_is_seen_at_once_a_small_one_later_and_a_tiny_one_never(ratio: float, windows: int) -> None:
    assert windows_until_alarm(Cusum(tolerance=0.02, limit=0.06), ratio) == windows


def test_noise_widens_the_tolerance() -> None:
    assert windows_until_alarm(Cusum(0.02, 0.06), ratio=2.0, noise=0.05) <= 2
    draw = random.Random(2)
    signal = Cusum(0.02, 0.06)
    alarms = sum(signal.add(draw.lognormvariate(0, 0.05)) is not None for _ in range(500))
    assert alarms < 15


def test_an_alarm_tells_the_ratio_and_begins_anew() -> None:
    signal = Cusum(0.02, 0.06)
    for _ in range(5):
        signal.add(1.0)
    assert signal.add(3.0) == pytest.approx(3.0)
    assert [signal.add(3.0) for _ in range(10)] == [None] * 10
    assert signal.add(1.0) == pytest.approx(1 / 3)


def test_what_is_expected_is_the_baseline() -> None:
    signal = Cusum(0.02, 0.06)
    signal.restart(expected=0.1)
    assert signal.add(0.2) == pytest.approx(2.0)


def test_a_slow_ramp_is_seen_in_the_end() -> None:
    signal = Cusum(0.02, 0.06)
    assert any(signal.add(1.01**window) is not None for window in range(20))


def situation(step: float = 0.1, bandwidth: float = 1e9, latency: float = 5e-5, overhead: float = 1e-4) -> Situation:
    return Situation(
        config=CommConfig(),
        num_workers=2,
        num_servers=1,
        step_seconds=step,
        backward_seconds=0.05,
        bandwidth_bytes_per_second=Across(bandwidth, bandwidth, bandwidth, 0.01),
        latency_seconds=Across(latency, latency, latency, 0.1),
        overhead_seconds=Across(overhead, overhead, overhead, 0.05),
    )


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("a step", situation(step=0.15)),
        ("bandwidth", situation(bandwidth=5e8)),
        ("latency", situation(latency=2e-4)),
        ("overhead", situation(overhead=3e-4)),
    ],
)
def test_every_signal_is_watched_by_itself(name: str, changed: Situation) -> None:
    watch = Watch()
    for _ in range(5):
        assert watch.add(situation()) == {}
    assert list(watch.add(changed)) == [name]


def test_what_nobody_has_observed_is_no_change() -> None:
    watch = Watch()
    unknown = Situation(config=CommConfig(), num_workers=2, num_servers=1)
    assert [watch.add(each) for each in (unknown, situation(), unknown, situation())] == [{}] * 4


def test_a_switch_lets_only_the_step_time_begin_anew() -> None:
    watch = Watch()
    for _ in range(5):
        watch.add(situation())
    watch.switched(None)
    assert watch.add(situation(step=0.2)) == {}
    assert watch.add(situation(step=0.2, bandwidth=5e8)) == {"bandwidth": pytest.approx(0.5)}
    watch.switched(0.1)
    assert watch.add(situation(step=0.2, bandwidth=5e8)) == {"a step": pytest.approx(2.0)}


def test_the_first_rounds_of_a_job_are_compared_with_nothing() -> None:
    """Before much has come through, an estimate may be off by any factor."""
    watch = Watch()
    for _ in range(FIRST_ROUNDS):
        assert watch.add(situation(bandwidth=3e5, step=2.0)) == {}
    assert [watch.add(situation()) for _ in range(5)] == [{}] * 5
    assert list(watch.add(situation(bandwidth=5e8))) == ["bandwidth"]


def test_steps_that_are_known_to_scatter_have_to_differ_by_more() -> None:
    watch = Watch()
    for _ in range(5):
        watch.add(situation(), step_spread=0.15)
    assert watch.add(situation(step=0.13), step_spread=0.15) == {}
    assert list(watch.add(situation(step=0.3), step_spread=0.15)) == ["a step"]


def test_a_change_is_felt_as_far_as_steps_depend_on_it() -> None:
    """A credit of 4 MiB is on its way for 84 ms at 50 MB/s: a latency of 1 ms more is a fortieth of that."""
    situation = Situation(
        config=CommConfig(),
        num_workers=2,
        num_servers=2,
        step_seconds=0.4,
        backward_seconds=0.1,
        bandwidth_bytes_per_second=Across(5e7, 5e7, 5e7),
        latency_seconds=Across(2e-3, 2e-3, 2e-3),
    )
    assert felt("bandwidth", 2.0, situation) == pytest.approx(0.69, abs=0.01)
    assert felt("the backward pass", 0.5, situation) == pytest.approx(0.17, abs=0.01)
    assert felt("latency", 2.0, situation) == pytest.approx(2e-3 * 5e7 / 2**22)
    assert felt("overhead", 2.0, situation) == pytest.approx(0.69, abs=0.01)


def test_a_latency_that_no_step_feels_is_no_change() -> None:
    watch = Watch()
    for latency in (0.2e-3,) * 10 + (0.8e-3,) * 10:
        situation = Situation(
            config=CommConfig(),
            num_workers=2,
            num_servers=2,
            step_seconds=0.4,
            bandwidth_bytes_per_second=Across(5e7, 5e7, 5e7),
            latency_seconds=Across(latency, latency, latency),
        )
        assert watch.add(situation) == {}
