"""Which refused registrations go to the log. Pure: time is a parameter.

A process that is refused registers once, perhaps again and again; a stranger may forge as many registrations as the
network carries. The log has each process once, and no more than :data:`LINES` lines in :data:`PERIOD_SECONDS`, so that
neither fills a disk or hides what else happens.
"""

from __future__ import annotations

__all__ = ["Refusals"]

LINES = 20
PERIOD_SECONDS = 60.0


class Refusals:
    """The refusals of one job.

    Attributes
    ----------
    last
        The reason of the last one; empty before the first.
    """

    def __init__(self) -> None:
        self.last = ""
        self._tokens: set[int] = set()  # processes that the log has, of this period
        self._left_out = 0
        self._period_ends = 0.0

    def lines(self, token: int, reason: str, now: float) -> list[str]:
        """Return what to log when the process with ``token`` has been refused for ``reason``."""
        self.last = reason
        lines = []
        if now >= self._period_ends:
            self._period_ends = now + PERIOD_SECONDS
            self._tokens.clear()
            lines += self.end()
        if token in self._tokens:
            return lines
        if len(self._tokens) == LINES:
            self._left_out += 1
            return lines
        self._tokens.add(token)
        return [*lines, f"refused: {reason}"]

    def end(self) -> list[str]:
        """Return what is left to log."""
        left_out, self._left_out = self._left_out, 0
        return [f"refused {left_out} more, which are not shown"] if left_out else []
