"""Events as lines of a file and of the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from ps.config import CommConfig
from scheduler.events import Decided, EventLog, Kept, Measured, Refused, Retired, Unconfirmed

pytestmark = pytest.mark.timeout(10)

DECIDED = Decided(seconds=12.5, epoch=3, config=CommConfig(epoch=3), reason="because", predicted_speedup=1.25)


def test_one_json_object_per_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = EventLog(str(path), clock=lambda: 1700000000.0)
    events(DECIDED)
    events(Retired(seconds=13.0, epoch=3, reason="broken"))
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first == {
        "time": 1700000000.0,
        "event": "decided",
        "seconds": 12.5,
        "epoch": 3,
        "config": {"partition_bytes": 524288, "credit_bytes": 4194304, "fusion_bytes": None, "epoch": 3},
        "reason": "because",
        "predicted_speedup": 1.25,
    }
    assert (second["event"], second["reason"]) == ("retired", "broken")


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        events = EventLog(str(path))
        events(DECIDED)
        events.close()
    assert len(path.read_text().splitlines()) == 2


def test_the_log_has_one_sentence_per_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = EventLog()
    events(DECIDED)
    events(Kept(seconds=1.0, epoch=3, reason="fine as it is"))
    events(Measured(seconds=1, epoch=3, speedup=1.2, step_seconds_before=0.12, step_seconds=0.1, steps=40))
    events(Refused(seconds=1.0, epoch=3, reason="credit_bytes must be ..."))
    events(Unconfirmed(seconds=1.0, epoch=3, nodes=["worker 1", "server 0"], waited_seconds=5.2))
    events(Retired(seconds=1.0, epoch=3, reason="KeyError: 'x'"))
    assert caplog.messages == [
        "epoch 3: P = 512 KiB, C = 4 MiB (because; predicted speedup 1.25)",
        "epoch 3 stays (fine as it is)",
        "epoch 3: measured speedup 1.20 over 40 steps (120 -> 100 ms per step)",
        "epoch 3 stays: a proposal was refused: credit_bytes must be ...",
        "epoch 3: not confirmed by worker 1, server 0 after 5 s",
        "epoch 3 stays for the rest of the job: the tuner failed: KeyError: 'x'",
    ]


def test_a_file_that_cannot_be_written_is_reported_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = EventLog(str(tmp_path / "missing" / "events.jsonl"))
    events(DECIDED)
    events.close()
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"AUTOBYTE_EVENT_FILE={str(tmp_path / 'missing' / 'events.jsonl')!r}: No such file or directory;"
        " events go to the log only"
    ]


def test_a_full_disk_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    events = EventLog("/dev/full")
    events(DECIDED)
    events(DECIDED)
    assert sum("cannot write events" in message for message in caplog.messages) == 1
