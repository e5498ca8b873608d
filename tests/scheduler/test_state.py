"""What a tuner has learned survives in a file, and a bad file harms nobody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional, Sequence

import pytest

from ps.config import CommConfig
from ps.stats import Observation
from scheduler.state import MAX_STATE_BYTES, StateFile
from scheduler.tuning import Tuning
from tuner.interface import Proposal, Tuner
from tuner.static import StaticTuner

pytestmark = pytest.mark.timeout(10)


class Learner(Tuner):
    """Has the state that it was given; proposes once."""

    def __init__(self, learned: Optional[bytes] = None) -> None:
        self.learned = learned
        self.proposed = False

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def propose(self, now: float) -> Optional[Proposal]:
        if self.proposed:
            return None
        self.proposed = True
        return Proposal(config=CommConfig(partition_bytes=1 << 20), reason="told to")

    def state(self) -> Optional[bytes]:
        return self.learned

    def restore(self, state: bytes) -> None:
        if not state.startswith(b"learned"):
            raise ValueError("it does not begin like one")
        self.learned = state


def test_the_state_is_kept_after_every_proposal_and_restored_by_the_next_run(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path / "state"))
    tuning = Tuning(Learner(b"learned a lot"), CommConfig(), 2, 1, lambda event: None, file.keep)
    tuning.step(0.0)
    assert (tmp_path / "state").read_bytes() == b"learned a lot"
    assert os.listdir(tmp_path) == ["state"]
    later = Learner()
    StateFile(str(tmp_path / "state")).restore(later)
    assert later.learned == b"learned a lot"


def test_a_tuner_without_a_state_writes_none(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path / "state"))
    Tuning(Learner(None), CommConfig(), 2, 1, lambda event: None, file.keep).step(0.0)
    assert os.listdir(tmp_path) == []


def test_without_a_path_nothing_is_kept_nor_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tuner = Learner()
    StateFile("").keep(b"learned")
    StateFile("").restore(tuner)
    assert (tuner.learned, os.listdir(tmp_path)) == (None, [])


def test_the_first_run_finds_no_file_and_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    StateFile(str(tmp_path / "state")).restore(Learner())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}", "it does not begin like one"),
        (b"", "it does not begin like one"),
        (b"learned" + bytes(MAX_STATE_BYTES), f"larger than {MAX_STATE_BYTES} bytes"),
    ],
    ids=["other", "empty", "large"],
)
def test_a_broken_file_is_told_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    tuner = Learner()
    StateFile(str(path)).restore(tuner)
    assert tuner.learned is None
    assert caplog.messages == [f"AUTOBYTE_TUNER_STATE={str(path)!r} is ignored: {reason}"]


def test_a_tuner_that_keeps_nothing_ignores_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"learned")
    StateFile(str(path)).restore(StaticTuner())
    assert caplog.messages == [f"AUTOBYTE_TUNER_STATE={str(path)!r} is ignored: this tuner keeps no state"]


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "missing" / "state"
    file = StateFile(str(path))
    file.keep(b"learned")
    file.keep(b"learned more")
    assert caplog.messages == [f"AUTOBYTE_TUNER_STATE={str(path)!r} cannot be written: No such file or directory"]


def test_a_state_that_is_too_large_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = StateFile(str(tmp_path / "state"))
    file.keep(b"learned")
    file.keep(bytes(MAX_STATE_BYTES + 1))
    assert (tmp_path / "state").read_bytes() == b"learned"
    assert len(caplog.messages) == 1
