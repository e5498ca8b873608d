"""Bandwidth from what comes through a wire, and the memory that forgets what was before a change.

A :class:`RateMeter` is told what came through, when, and since when the wire had no idle moment. It adds up the bytes
and the busy time, whatever the number of peers, and closes a window after 50 ms of busy time. A training that hardly
uses the wire yields a shorter one as soon as the wire falls idle, so that every step has its say. Single messages say
little: they are 5 to 30 % off, windows of many 0.5 %.

What comes through first is not counted: peers that start, allocate and meet their memory for the first time let a wire
wait that has work, for up to seconds, while hardly any bytes are there to make up for it.

:class:`Recent` keeps the last nine windows. The mean of their middle half is the estimate, which a stall or a burst of
others does not move. When three windows in a row are all above, or all below, what the older ones allow, the
conditions have changed, and the older ones are dropped: a change is seen within three windows, and the estimate is no
mixture.

Pure: times are parameters (seconds, monotonic).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Iterable, Optional, Sequence

from ps.config import KIB, MIB
from ps.stats import Estimate

__all__ = ["Recent", "RateMeter"]

#: A window closes when the wire was busy for so long and so many messages came through.
WINDOW_SECONDS = 0.05
WINDOW_MESSAGES = 8
#: It closes already after so much busy time when the wire was idle for so long.
SHORT_WINDOW_SECONDS = 0.01
IDLE_SECONDS = 0.005
#: So many bytes have to come through before rates count.
FIRST_BYTES = 4 * MIB
#: What is smaller takes its time for other reasons than its bytes, and tells nothing.
LEAST_BYTES = 8 * KIB
#: Nothing for so long is not a busy wire, whatever a peer says that may have gone.
MAX_GAP_SECONDS = 2.0
WINDOWS = 9
#: So many samples beyond the older ones are a change; they lie off by this spread times their own, and at least so far.
CHANGE_SAMPLES = 3
CHANGE_SPREADS = 2.5
LEAST_CHANGE = 0.1
#: What the spread is before samples tell; it counts as one of them.
PRIOR_SPREAD = 0.1


class Recent:
    """The last samples of a positive quantity, without those from before a change.

    Attributes
    ----------
    changes
        So many there were since the start.
    """

    __slots__ = ("changes", "_logs")

    def __init__(self) -> None:
        self.changes = 0
        self._logs: deque[float] = deque(maxlen=WINDOWS)

    def add(self, value: float) -> None:
        """Take a sample."""
        logs = self._logs
        logs.append(math.log(value))
        if len(logs) < CHANGE_SAMPLES + 2:
            return
        *past, one, two, three = logs
        middle = _middle(past)
        above, below = min(one, two, three) - middle, middle - max(one, two, three)
        change = max(above, below)
        if change > LEAST_CHANGE and change > CHANGE_SPREADS * _spread(past, middle):
            self.changes += 1
            for _ in past:
                logs.popleft()

    def estimate(self) -> Optional[Estimate]:
        """Return the middle; the spread is that of a single sample, so the middle is rather better."""
        if not self._logs:
            return None
        middle = _middle(self._logs)
        return Estimate(math.exp(middle), _spread(self._logs, middle), len(self._logs))

    def highest(self) -> Optional[float]:
        """Return the largest sample."""
        return math.exp(max(self._logs)) if self._logs else None


def _middle(logs: Iterable[float]) -> float:
    """Return the mean of the middle half: as deaf to a few stalls as the median, and steadier."""
    ordered = sorted(logs)
    outside = len(ordered) // 4
    return math.fsum(ordered[outside : len(ordered) - outside]) / (len(ordered) - 2 * outside)


def _spread(logs: Sequence[float], middle: float) -> float:
    return math.sqrt((PRIOR_SPREAD**2 + sum((value - middle) ** 2 for value in logs)) / len(logs))


class RateMeter:
    """Bytes per second of one direction of a wire while it is busy.

    Attributes
    ----------
    busy_seconds
        How long it was busy since the start.
    """

    __slots__ = ("busy_seconds", "_rates", "_first", "_at", "_seconds", "_bytes", "_messages", "_gap_at", "_gap_bytes")

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self._rates = Recent()
        self._first = FIRST_BYTES  # that are still to come
        self._at = -math.inf  # when something came through last
        self._seconds = 0.0  # of the open window, like the next two
        self._bytes = 0
        self._messages = 0
        # From then to _at nobody has said yet that the wire was busy with bytes.
        self._gap_at: Optional[float] = None
        self._gap_bytes = 0

    def add(self, nbytes: int, messages: int, since: float, now: float) -> None:
        """Take note of messages that came through at ``now``; in the order of time.

        Parameters
        ----------
        nbytes, messages
            How much it was.
        since
            From then on, at least, the wire was busy.
        """
        at = self._at
        if now > at:
            self._at = now
            if since > at or nbytes < LEAST_BYTES or now - at > MAX_GAP_SECONDS:
                self._begin_gap(at, nbytes, now)
                return
            seconds = now - at
            if self._gap_at is not None:
                if since <= self._gap_at:  # it has been busy after all: this one was under way all the time
                    seconds = now - self._gap_at
                    nbytes += self._gap_bytes
                self._gap_at = None
            if self._seconds >= WINDOW_SECONDS and self._messages >= WINDOW_MESSAGES:
                self._close()
            self._seconds += seconds
            self.busy_seconds += seconds
        elif self._gap_at is not None:
            self._gap_bytes += nbytes
            return
        self._bytes += nbytes
        self._messages += messages

    def _begin_gap(self, at: float, nbytes: int, now: float) -> None:
        idle = now - at >= IDLE_SECONDS
        if idle and self._seconds >= SHORT_WINDOW_SECONDS and self._messages >= WINDOW_MESSAGES:
            self._close()
        if now - at > MAX_GAP_SECONDS:
            self._gap_at, self._gap_bytes = now, 0
            return
        if self._gap_at is None:
            self._gap_at, self._gap_bytes = at, 0
        self._gap_bytes += nbytes

    def _close(self) -> None:
        if self._first <= 0:
            self._rates.add(self._bytes / self._seconds)
        self._first -= self._bytes
        self._bytes = self._messages = 0
        self._seconds = 0.0

    def estimate(self) -> Optional[Estimate]:
        """Return bytes per second, or None before the first window."""
        return self._rates.estimate()

    @property
    def changes(self) -> int:
        """Sudden changes of the rate since the start."""
        return self._rates.changes

    def highest(self) -> Optional[float]:
        """Return the bytes per second of the best window: what a message finds that meets nobody."""
        return self._rates.highest()
