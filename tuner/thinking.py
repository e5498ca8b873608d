"""How long a tuner thinks: what a simulation inside of it would take, as a clock that tells the same on every machine.

While a tuner simulates the job's twin, the job goes on. A played job (:mod:`tuner.trace`) has no processor to measure,
so the partitions that are simulated are counted, each with what one takes on the machine of docs/benchmarks.md.
"""

from __future__ import annotations

import math
from typing import Sequence

from ps.config import CommConfig
from tuner.refinement import QUICK_STEPS, QUICK_WORKERS, SIMULATED_STEPS, SIMULATED_WORKERS, simulated_seconds
from tuner.twin import Twin

__all__ = ["Thinking"]

#: What the compiled simulator takes for a partition of a worker: 0.7 us in the median of 16 models and clusters.
PARTITION_SECONDS = 0.8e-6


class Thinking:
    """Simulates for a :class:`~tuner.refinement.Refinement`, and counts the time."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def simulate(self, twin: Twin, configs: Sequence[CommConfig], quick: bool) -> Sequence[float]:
        """Return the step time under each of ``configs``."""
        steps, most = (QUICK_STEPS, QUICK_WORKERS) if quick else (SIMULATED_STEPS, SIMULATED_WORKERS)
        partitions = sum(_partitions(twin, config) for config in configs)
        self._seconds += PARTITION_SECONDS * steps * min(twin.conditions.num_workers, most) * partitions
        return simulated_seconds(twin, configs, quick)

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _partitions(twin: Twin, config: CommConfig) -> int:
    servers = twin.conditions.num_servers
    return sum(servers * math.ceil(each.size_bytes / servers / config.partition_bytes) for each in twin.profile.tensors)
