"""What the scheduler decided about the configuration, as events: one JSON object per line, and one line in the log.

Every event names the epoch of the configuration in force after it, and ``seconds`` since the tuning began; the file
adds the time of day. ``docs/tuning.md`` explains how to read them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import IO, Any, Callable, Optional, Union

import msgspec

from ps.config import CommConfig
from tuner.space import describe

__all__ = ["Decided", "Event", "EventLog", "Kept", "Measured", "Refused", "Retired", "Unconfirmed"]

log = logging.getLogger("autobyte.tuning")


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="decided"):
    """A configuration is in force from now on (epoch 0: the one that the job starts with)."""

    seconds: float
    epoch: int
    config: CommConfig
    reason: str
    predicted_speedup: Optional[float] = None

    def __str__(self) -> str:
        predicted = "" if self.predicted_speedup is None else f"; predicted speedup {self.predicted_speedup:.2f}"
        return f"epoch {self.epoch}: {describe(self.config)} ({self.reason}{predicted})"


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="kept"):
    """The tuner decided for the configuration that is in force already."""

    seconds: float
    epoch: int
    reason: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} stays ({self.reason})"


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="measured"):
    """What a switch brought: the median step before it and since."""

    seconds: float
    epoch: int
    speedup: float
    step_seconds_before: float
    step_seconds: float
    steps: int

    def __str__(self) -> str:
        before, after = self.step_seconds_before * 1e3, self.step_seconds * 1e3
        return (
            f"epoch {self.epoch}: measured speedup {self.speedup:.2f} over {self.steps} steps"
            f" ({before:.4g} -> {after:.4g} ms per step)"
        )


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="refused"):
    """The tuner proposed what no configuration can be; the present one stays."""

    seconds: float
    epoch: int
    reason: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} stays: a proposal was refused: {self.reason}"


class Retired(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="retired"):
    """The tuner failed and is asked no more; the present configuration stays for the rest of the job."""

    seconds: float
    epoch: int
    reason: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} stays for the rest of the job: the tuner failed: {self.reason}"


class Unconfirmed(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="unconfirmed"):
    """Some nodes have not confirmed the configuration in force for long; sums are right all the same."""

    seconds: float
    epoch: int
    nodes: list[str]
    waited_seconds: float

    def __str__(self) -> str:
        return f"epoch {self.epoch}: not confirmed by {', '.join(self.nodes)} after {self.waited_seconds:.0f} s"


Event = Union[Decided, Kept, Measured, Refused, Retired, Unconfirmed]


class EventLog:
    """Writes events as JSON lines to a file, and as text to the log.

    Parameters
    ----------
    path
        The file, appended to; empty for the log alone. A file that cannot be written is reported once: no job ends
        for it.
    clock
        Seconds since 1970, for the field ``time``.
    """

    def __init__(self, path: str = "", clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._file: Optional[IO[bytes]] = None
        if path:
            try:
                self._file = open(path, "ab")  # noqa: SIM115  # closed by close()
            except OSError as error:
                log.warning("AUTOBYTE_EVENT_FILE=%r: %s; events go to the log only", path, error.strerror)

    def __call__(self, event: Event) -> None:
        """Write one event."""
        log.log(logging.INFO if isinstance(event, (Decided, Kept, Measured)) else logging.WARNING, "%s", event)
        if self._file is None:
            return
        line: dict[str, Any] = {"time": round(self._clock(), 3), **msgspec.to_builtins(event)}
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            log.warning("cannot write events: %s; from now on they go to the log only", error.strerror)
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # what could not be written was reported already
                file.close()
