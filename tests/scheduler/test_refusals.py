"""Refused registrations in the scheduler's log."""

from __future__ import annotations

from scheduler.refusals import Refusals


def test_a_process_that_asks_again_and_again_is_shown_once() -> None:
    refusals = Refusals()
    assert refusals.lines(1, "another job", 0.0) == ["refused: another job"]
    assert refusals.lines(1, "another job", 0.5) == []
    assert refusals.lines(2, "one too many", 1.0) == ["refused: one too many"]
    assert refusals.last == "one too many"
    assert refusals.end() == []


def test_forged_registrations_do_not_fill_the_log() -> None:
    refusals = Refusals()
    lines = [line for token in range(100_000) for line in refusals.lines(token, "forged", now=10.0)]
    assert lines == ["refused: forged"] * 20
    assert refusals.lines(100_000, "meant well", now=69.9) == []
    assert refusals.lines(100_001, "meant well", now=70.0) == [
        "refused 99981 more, which are not shown",
        "refused: meant well",
    ]


def test_what_was_not_shown_is_told_at_the_end() -> None:
    refusals = Refusals()
    for token in range(25):
        refusals.lines(token, "forged", now=0.0)
    assert refusals.end() == ["refused 5 more, which are not shown"]
    assert refusals.end() == []
