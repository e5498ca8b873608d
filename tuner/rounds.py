"""Windows of many nodes, put together: a round is one window of every node.

Nodes report once per window, each at its own time. A round closes when all have reported, or when one reports again
(others may have left, or been slow to report); so a round is about as long as a window, whatever is lost.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple, Optional, Sequence

from ps.config import Role
from ps.stats import Observation

__all__ = ["Round", "Rounds"]


class Round(NamedTuple):
    """About one window of each node."""

    observations: tuple[Observation, ...]

    @property
    def step_seconds(self) -> Optional[float]:
        """Median over the workers; None where no step ended."""
        known = [seen.step_seconds for seen in self.observations if seen.role is Role.WORKER and seen.step_seconds]
        return statistics.median(known) if known else None

    @property
    def steps(self) -> int:
        """Steps that ended, of the worker that has seen most."""
        return max((seen.steps for seen in self.observations), default=0)


class Rounds:
    """Collects observations into rounds."""

    def __init__(self) -> None:
        self._open: dict[tuple[Role, int], Observation] = {}

    def add(self, observations: Sequence[Observation]) -> list[Round]:
        """Take observations, oldest first; return the rounds that have closed."""
        closed = []
        for seen in observations:
            node = seen.role, seen.rank
            if node in self._open:
                closed.append(self._close())
            self._open[node] = seen
            if len(self._open) >= seen.num_workers + seen.num_servers:
                closed.append(self._close())
        return closed

    def clear(self) -> None:
        """Forget the round that is open: a new configuration is in force."""
        self._open.clear()

    def _close(self) -> Round:
        closed = Round(tuple(self._open.values()))
        self._open.clear()
        return closed
