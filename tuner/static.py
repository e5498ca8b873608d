"""The tuner that changes nothing: for hand-tuned jobs, and as the baseline of the others."""

from __future__ import annotations

from typing import Optional, Sequence

from ps.stats import Observation
from tuner.interface import Proposal, Tuner

__all__ = ["StaticTuner"]


class StaticTuner(Tuner):
    """Keeps the configuration that the job was started with."""

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def propose(self, now: float) -> Optional[Proposal]:
        return None
