"""How long a node's window lasts: a second while nothing happens, a few steps where something has.

Who reports once per second hears of a change after thirty steps, if a step takes 30 ms. So a node looks at its own
steps, the one in progress included, and at whether its estimates have dropped what was before a change
(:mod:`ps.meter`). Steps that have left the
band in which they were end the window at once, with these steps alone in it; the next windows are short, as are those
after a new configuration has come into force, whose verdict waits for them.

Short windows cost what long ones do, each. So they are paid from an allowance that refills slowly: where steps have no
band, or estimates jump all the time, windows become long again.

Pure: times are parameters (seconds, monotonic).
"""

from __future__ import annotations

import math
import statistics
from collections import deque

__all__ = ["Attention"]

#: A short window has so many steps, and lasts so long at least; without steps (a server's) it lasts for so long.
SHORT_STEPS = 3
LEAST_SECONDS = 0.05
STEPLESS_SECONDS = 0.2
#: So many windows are short after a change, and after a switch.
SHORT_WINDOWS = 8
#: Steps are compared with the median of so many before them, when there are so many at least.
BAND_STEPS = 24
LEAST_BAND_STEPS = 4
#: So many steps in a row, all off to the same side by so many deviations and by this part, have left the band.
LEAVING = ((2, 8.0, 0.25), (3, 4.0, 0.05))
#: A step that lasts this many times as long as those before is overdue.
OVERDUE = 2.0
#: No band is narrower.
LEAST_DEVIATION = 0.005
#: Short windows that may be saved up, and that are added in a second.
ALLOWANCE = 24.0
REFILL_PER_SECOND = 1.0


class Attention:
    """See the module.

    Parameters
    ----------
    window_seconds
        How long a window is while nothing happens.
    now
        When the first one begins.

    Examples
    --------
    >>> attention = Attention(window_seconds=1.0, now=0.0)
    >>> [attention.step(0.1) for _ in range(8)]
    [0, 0, 0, 0, 0, 0, 0, 0]
    >>> [attention.step(0.2) for _ in range(2)]  # the last two are to be told, and no others
    [0, 2]
    """

    def __init__(self, window_seconds: float, now: float) -> None:
        self._window_seconds = window_seconds
        self._began = self._filled = now
        self._steps = 0  # in the window
        self._stepless = True  # whether no step was ever seen
        self._short = SHORT_WINDOWS  # windows that are still to be short
        self._over = False  # whether the window is to end at once
        self._allowance = ALLOWANCE
        self._seconds: deque[float] = deque(maxlen=BAND_STEPS)  # of the last steps under this configuration

    def switched(self) -> None:
        """Another configuration is in force: what follows is of interest, and has a band of its own."""
        self._seconds.clear()
        self._steps = 0
        self._short = SHORT_WINDOWS

    def changed(self) -> None:
        """An estimate has jumped: there is something to tell."""
        self._short = SHORT_WINDOWS
        self._over = True

    def step(self, seconds: float) -> int:
        """A step has ended; return of how many last ones, this one included, the window is to tell alone; 0: of all."""
        self._steps += 1
        self._stepless = False
        left = self._left(seconds)
        self._seconds.append(seconds)
        if not left:
            return 0
        latest = list(self._seconds)[-left:]
        self._seconds.clear()
        self._seconds.extend(latest)
        self.changed()
        return left

    def _left(self, seconds: float) -> int:
        """Return how many last steps, with one of so many seconds, have left the band."""
        for count, deviations, part in LEAVING:
            before = list(self._seconds)[: 1 - count]
            if len(before) < LEAST_BAND_STEPS:
                continue
            latest = [*list(self._seconds)[1 - count :], seconds]
            middle = statistics.median(before)
            deviation = 1.4826 * statistics.median(abs(each - middle) for each in before)
            bound = max(part * middle, deviations * max(deviation, LEAST_DEVIATION * middle))
            if min(latest) > middle + bound or max(latest) < middle - bound:
                return count
        return 0

    @property
    def patience_seconds(self) -> float:
        """How long a step may last before it is overdue."""
        if len(self._seconds) < LEAST_BAND_STEPS:
            return math.inf
        return OVERDUE * max(statistics.median(self._seconds), max(self._seconds) / 1.5)

    @property
    def ends(self) -> float:
        """When the window ends at the latest."""
        return self._began + self._window_seconds

    @property
    def close(self) -> bool:
        """Whether windows are short at present."""
        return self._short > 0 and self._allowance >= 1.0

    def due(self, now: float) -> bool:
        """Return whether the window is to end."""
        if now >= self.ends:
            return True
        if not self.close:
            return False
        seconds = now - self._began
        if self._stepless:
            return seconds >= (LEAST_SECONDS if self._over else STEPLESS_SECONDS)
        return self._over or (self._steps >= SHORT_STEPS and seconds >= LEAST_SECONDS)

    def ended(self, now: float) -> None:
        """A window has ended, and the next one begins."""
        self._allowance = min(ALLOWANCE, self._allowance + REFILL_PER_SECOND * (now - self._filled))
        self._filled = now
        if self.close:
            self._short -= 1
            if now - self._began < self._window_seconds:
                self._allowance -= 1.0
        self._began = now
        self._steps = 0
        self._over = False
