"""Windows of many nodes, put together: a round is one window of every worker.

Nodes report once per window, each at its own time. A round closes when all workers have reported, or when one reports
again (others may have left, or been slow to report); so a round is about as long as a window, whatever is lost. Servers
train no steps, so their windows stay long where those of workers are short (:mod:`ps.attention`): what each has said
last counts, and only the first round waits for them.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple, Optional, Sequence

from ps.config import Role
from ps.stats import Observation

__all__ = ["Round", "Rounds"]


class Round(NamedTuple):
    """About one window of each worker, and the last one of each server."""

    observations: tuple[Observation, ...]

    @property
    def step_seconds(self) -> Optional[float]:
        """Median over the workers; None where no step ended."""
        known = [seen.step_seconds for seen in self.observations if seen.role is Role.WORKER and seen.step_seconds]
        return statistics.median(known) if known else None

    @property
    def seconds(self) -> float:
        """How long the windows of workers were."""
        return statistics.median(seen.window_seconds for seen in self.observations if seen.role is Role.WORKER)

    @property
    def steps(self) -> int:
        """Steps that ended, of the worker that has seen most."""
        return max((seen.steps for seen in self.observations), default=0)


class Rounds:
    """Collects observations into rounds."""

    def __init__(self) -> None:
        self._open: dict[int, Observation] = {}  # of workers, by rank
        self._servers: dict[int, Observation] = {}  # the last one of each

    def add(self, observations: Sequence[Observation]) -> list[Round]:
        """Take observations, oldest first; return the rounds that have closed."""
        closed = []
        self._servers.update((seen.rank, seen) for seen in observations if seen.role is Role.SERVER)
        for seen in observations:
            if seen.role is Role.WORKER:
                if seen.rank in self._open:
                    closed.append(self._close())
                self._open[seen.rank] = seen
            if len(self._open) >= seen.num_workers and len(self._servers) >= seen.num_servers:
                closed.append(self._close())
        return closed

    def clear(self) -> None:
        """Forget the round that is open: a new configuration is in force."""
        self._open.clear()

    def _close(self) -> Round:
        closed = Round((*self._open.values(), *self._servers.values()))
        self._open.clear()
        return closed
