"""Bytes per second of busy time, and a memory that forgets what was before a change."""

from __future__ import annotations

import random

import pytest

from ps.meter import RateMeter, Recent
from ps.stats import Estimate

pytestmark = pytest.mark.timeout(10)


def test_bytes_over_busy_time_in_windows_of_50_ms() -> None:
    meter = RateMeter()
    for turn in range(29):  # 1 MB each 8 ms; the first arrival only starts the clock, the last window is open
        meter.add(1_000_000, 2, since=1.0, now=1.0 + 0.008 * turn)
    found = meter.estimate()
    assert found and found.value == pytest.approx(1.25e8)
    assert found.samples == 2
    assert meter.busy_seconds == pytest.approx(28 * 0.008)


def test_time_in_which_nothing_was_under_way_does_not_count() -> None:
    meter = RateMeter()
    now = 1.0
    for _ in range(20):
        now += 0.7
        meter.add(1_000_000, 4, since=now - 0.01, now=now)  # sent when the wire had been empty
        for _ in range(2):
            now += 0.01
            meter.add(1_000_000, 4, since=now - 0.02, now=now)
    found = meter.estimate()
    assert found and found.value == pytest.approx(1e8)
    assert meter.busy_seconds == pytest.approx(20 * 0.02)


def test_what_comes_first_says_nothing() -> None:
    """Peers that start let a wire wait that has work: 100 kB take 2 s. Rates begin with the traffic of the training."""
    meter = RateMeter()
    now = 1.0
    meter.add(10_000, 1, since=now, now=now)
    for _ in range(40):
        now += 0.2
        meter.add(10_000, 1, since=1.0, now=now)
        assert meter.estimate() is None
    for _ in range(200):
        now += 0.004
        meter.add(500_000, 1, since=1.0, now=now)
        found = meter.estimate()
        assert found is None or found.value == pytest.approx(1.25e8, rel=0.01)
    assert found is not None


def test_an_arrival_out_of_nowhere_does_not_split_what_was_under_way() -> None:
    """Link A carries a megabyte from 1.00 to 1.04; link B's first message comes in between and must not hide that."""
    meter = RateMeter()
    meter.add(0, 0, since=1.0, now=1.0)
    meter.add(1000, 1, since=1.02, now=1.02)  # B, nothing known about the time before
    assert meter.busy_seconds == 0.0
    meter.add(1_000_000, 1, since=1.0, now=1.04)  # A
    assert meter.busy_seconds == pytest.approx(0.04)


def test_an_arrival_after_an_idle_time_is_not_taken_for_busy_by_what_follows() -> None:
    meter = RateMeter()
    meter.add(0, 0, since=1.0, now=1.0)
    meter.add(1_000_000, 1, since=1.5, now=1.5)
    meter.add(1_000_000, 1, since=1.5, now=1.51)
    assert meter.busy_seconds == pytest.approx(0.01)


def test_a_wire_that_is_hardly_used_closes_a_window_per_burst() -> None:
    """A step needs the wire for 12 ms: each is a sample, so that three steps show a change."""
    meter = RateMeter()
    now = 1.0
    for step in range(6):
        bytes_per_second = 1e9 if step < 3 else 1e8
        began = now = now + 0.1
        meter.add(1000, 1, since=now, now=now)
        for _ in range(12):
            now += 0.001
            meter.add(int(bytes_per_second * 0.001), 1, since=began, now=now)
    meter.add(1000, 1, since=now + 0.1, now=now + 0.1)
    found = meter.estimate()
    assert found and found.value == pytest.approx(1e8)
    assert found.samples == 3


def test_small_messages_within_a_burst_do_not_make_windows_short() -> None:
    meter = RateMeter()
    # 120 ms are busy with large messages: two windows are closed, the first does not count, another one is open
    for turn in range(200):
        meter.add(100_000, 1, since=2.0002 + 0.001 * turn, now=2.001 + 0.001 * turn)
        meter.add(100, 1, since=2.001 + 0.001 * turn, now=2.0012 + 0.001 * turn)
    found = meter.estimate()
    assert found and found.samples == 1


def test_small_messages_tell_nothing_about_bandwidth() -> None:
    """Their time is that of round trips and processors; between large ones they do not count."""
    meter = RateMeter()
    for turn in range(1000):
        meter.add(100, 1, since=1.0, now=1.0 + 0.001 * turn)
    assert (meter.estimate(), meter.busy_seconds) == (None, 0.0)
    for turn in range(200):
        meter.add(100_000, 1, since=2.0002 + 0.001 * turn, now=2.001 + 0.001 * turn)
        meter.add(100, 1, since=2.001 + 0.001 * turn, now=2.0012 + 0.001 * turn)
    found = meter.estimate()
    assert found and found.value == pytest.approx(100_000 / 0.0008, rel=0.05)


def test_a_silence_of_seconds_is_no_busy_wire_whatever_a_message_says() -> None:
    meter = RateMeter()
    meter.add(1_000_000, 1, since=0.0, now=1.0)
    meter.add(1_000_000, 1, since=0.0, now=8.0)
    meter.add(1_000_000, 1, since=0.0, now=8.25)
    assert meter.busy_seconds == 0.25


def test_the_estimate_is_the_middle_of_the_last_nine() -> None:
    recent = Recent()
    assert recent.estimate() is None
    for value in (100.0, 104.0, 96.0, 100.0, 50.0, 101.0, 99.0, 100.0, 100.0, 102.0, 98.0):
        recent.add(value)
    found = recent.estimate()
    assert found and (found.value, found.samples) == (pytest.approx(100.0, rel=0.01), 9)


def test_a_single_sample_is_not_trusted_to_the_last_digit() -> None:
    recent = Recent()
    recent.add(5.0)
    assert recent.estimate() == Estimate(pytest.approx(5.0), pytest.approx(0.1), 1)  # type: ignore[arg-type]
    for _ in range(8):
        recent.add(5.0)
    assert recent.estimate() == Estimate(pytest.approx(5.0), pytest.approx(0.1 / 3), 9)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.8, 1.25, 2.0, 10.0])
def test_three_samples_beyond_the_others_are_a_change(factor: float) -> None:
    recent = Recent()
    for value in (98.0, 100.0, 102.0, 99.0, 101.0, 100.0):
        recent.add(value)
    recent.add(100.0 * factor)
    recent.add(100.0 * factor)
    before = recent.estimate()
    assert before and before.value == pytest.approx(100.0, rel=0.02)
    recent.add(100.0 * factor)
    after = recent.estimate()
    assert after and (after.value, after.samples) == (pytest.approx(100.0 * factor), 3)


def test_two_stalls_in_a_row_are_no_change() -> None:
    recent = Recent()
    for value in (100.0, 101.0, 99.0, 100.0, 60.0, 55.0, 100.0, 100.0):
        recent.add(value)
    found = recent.estimate()
    assert found and (found.value, found.samples) == (pytest.approx(100.0, rel=0.01), 8)


def test_noise_is_not_taken_for_changes() -> None:
    """With a spread of 30 % fewer than one of 100 samples make it believe that older ones no longer hold."""
    generator = random.Random(5)
    recent = Recent()
    drops, before = 0, 0
    for _ in range(2000):
        recent.add(generator.lognormvariate(0.0, 0.3))
        found = recent.estimate()
        assert found
        drops += found.samples < before
        before = found.samples
    assert drops < 20
