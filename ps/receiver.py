"""The receiving side of a peer; :mod:`ps.link` is the sending one."""

from __future__ import annotations

from typing import Optional

__all__ = ["Receiver"]


class Receiver:
    """The receiving side of one peer: takes messages in their order and says what to acknowledge.

    Attributes
    ----------
    expected
        Number of the next message.
    duplicates, gaps
        Messages refused because they were had before, or because one before them is missing.
    gap_begins
        Whether the message just refused is the first after a missing one: time to ask for that.
    """

    __slots__ = ("expected", "duplicates", "gaps", "gap_begins", "_gap_at", "_pending")

    def __init__(self) -> None:
        self.expected = 1
        self.duplicates = 0
        self.gaps = 0
        self.gap_begins = False
        self._gap_at = 0
        self._pending = False

    def accept(self, seq: int) -> bool:
        """Return whether message ``seq`` is the expected one, and so is to be processed."""
        if seq == self.expected:
            self.expected = seq + 1
            self._pending = True
            return True
        if seq < self.expected:
            self.duplicates += 1
            self.gap_begins = False
            self._pending = True  # its acknowledgement was lost
        else:
            self.gaps += 1
            self.gap_begins = self._gap_at != self.expected
            self._gap_at = self.expected
        return False

    def acknowledge(self) -> Optional[int]:
        """Return the number up to which all has been received; None where nothing arrived since the last call."""
        if not self._pending:
            return None
        self._pending = False
        return self.expected - 1
