"""What trials may lose: a small part of all time, and some of what they have gained."""

from __future__ import annotations

from typing import Optional

__all__ = ["Purse"]

#: Seconds that may be lost at the start, and the part of all time that is added.
FIRST_SECONDS = 0.3
RATE = 0.01
#: A verified gain adds what it saves in so many seconds.
GAIN_SECONDS = 3.0
#: Bounds of what is saved up, and of what is owed.
MAX_SECONDS = 30.0
MAX_DEBT_SECONDS = 10.0
#: With a debt of more than this no trial begins.
LEAST_SECONDS = -0.3
#: A changed network cancels debts, once in so many seconds.
CANCEL_SECONDS = 20.0


class Purse:
    """Seconds that trials may lose.

    Attributes
    ----------
    seconds
        What is left.
    """

    def __init__(self) -> None:
        self.seconds = FIRST_SECONDS
        self._now: Optional[float] = None
        self._cancelled: Optional[float] = None

    def fill(self, now: float) -> None:
        """Time has passed."""
        if self._now is not None:
            self.seconds = min(self.seconds + RATE * (now - self._now), MAX_SECONDS)
        self._now = now

    def earn(self, gain: float) -> None:
        """A gain (of the logarithm of the speedup) was verified."""
        self.seconds = min(self.seconds + GAIN_SECONDS * gain, MAX_SECONDS)

    def cancel(self) -> None:
        """The network has changed: what was lost before says nothing of what can be gained now."""
        if self._now is None or (self._cancelled is not None and self._now - self._cancelled < CANCEL_SECONDS):
            return
        self._cancelled = self._now
        self.seconds = max(self.seconds, 0.0)

    @property
    def open(self) -> bool:
        """Whether another trial may begin."""
        return self.seconds > LEAST_SECONDS

    def pay(self, lost_seconds: float) -> None:
        """A trial has lost so much."""
        self.seconds = max(self.seconds - lost_seconds, -MAX_DEBT_SECONDS)
