"""When a window ends."""

from __future__ import annotations

import random
from typing import Callable

import pytest

from ps.attention import ALLOWANCE, SHORT_STEPS, SHORT_WINDOWS, Attention

pytestmark = pytest.mark.timeout(10)


class Played:
    """A node whose steps last as told; ``windows`` are the seconds and the steps of those that have ended."""

    def __init__(self, step_seconds: Callable[[], float]) -> None:
        self.step_seconds = step_seconds
        self.attention = Attention(window_seconds=1.0, now=0.0)
        self.now = self.began = 0.0
        self.steps = 0
        self.told: list[int] = []
        self.windows: list[tuple[float, int]] = []

    def run(self, steps: int) -> list[tuple[float, int]]:
        """Let so many steps pass; return the windows that have ended in them."""
        before = len(self.windows)
        for _ in range(steps):
            seconds = self.step_seconds()
            self.now += seconds
            self.steps += 1
            self.told.append(self.attention.step(seconds))
            if self.attention.due(self.now):
                self.windows.append((round(self.now - self.began, 3), self.steps))
                self.attention.ended(self.now)
                self.began, self.steps = self.now, 0
        return self.windows[before:]


def quiet(step_seconds: float = 0.03) -> Played:
    """Return a node after its first windows."""
    played = Played(lambda: step_seconds)
    played.run(300)
    assert played.windows[-1][0] >= 1.0
    return played


def test_the_first_windows_are_short_and_those_of_a_quiet_job_are_not() -> None:
    windows = Played(lambda: 0.03).run(200)
    assert windows[:SHORT_WINDOWS] == [(0.09, SHORT_STEPS)] * SHORT_WINDOWS
    assert [seconds for seconds, _ in windows[SHORT_WINDOWS:]] == pytest.approx([1.02] * 5)


def test_windows_are_short_after_a_switch() -> None:
    played = quiet()
    played.attention.switched()
    played.steps = 0
    assert [steps for _, steps in played.run(30)] == [SHORT_STEPS] * SHORT_WINDOWS


def test_a_short_window_lasts_for_a_moment_whatever_a_step_takes() -> None:
    assert all(seconds >= 0.05 for seconds, _ in Played(lambda: 0.001).run(1000))


@pytest.mark.parametrize(("factor", "steps"), [(2.0, 2), (0.5, 2), (1.1, 3), (0.9, 3)])
def test_steps_that_leave_their_band_end_the_window_and_are_told_alone(factor: float, steps: int) -> None:
    played = quiet()
    played.step_seconds = lambda: 0.03 * factor
    played.run(steps)
    assert played.told[-steps:] == [0] * (steps - 1) + [steps]
    assert played.began == played.now
    assert played.run(2 * SHORT_STEPS)[-1][1] in (SHORT_STEPS, SHORT_STEPS + 1)


def test_a_step_that_stalls_alone_is_no_change() -> None:
    played = quiet()
    played.step_seconds = iter([0.3, *[0.03] * 20]).__next__
    played.run(20)
    assert not any(played.told)


def test_steps_that_scatter_have_a_wide_band() -> None:
    draw = random.Random(1)
    played = Played(lambda: 0.03 * draw.lognormvariate(0, 0.15))
    played.run(3000)
    assert sum(map(bool, played.told)) < 15
    assert len(played.windows) < 1.5 * played.now


def test_where_something_changes_all_the_time_windows_become_long_again() -> None:
    played = quiet()
    before, began = len(played.windows), played.now
    while played.now < began + 100:
        played.attention.changed()
        played.run(1)
    assert len(played.windows) - before < ALLOWANCE + 2.2 * 100


def test_without_steps_a_window_ends_when_an_estimate_has_jumped() -> None:
    attention = Attention(window_seconds=1.0, now=0.0)
    for now in range(1, 20):
        assert attention.due(float(now))
        attention.ended(float(now))
    assert not attention.due(19.5)
    attention.changed()
    assert attention.due(19.5)
    attention.ended(19.5)
    assert (attention.due(19.6), attention.due(19.71)) == (False, True)


def test_a_step_is_overdue_when_it_lasts_far_longer_than_those_before() -> None:
    assert Attention(1.0, 0.0).patience_seconds == float("inf")
    assert quiet().attention.patience_seconds == pytest.approx(0.06)
