"""How long a step takes under one configuration, and whether one configuration is faster than another.

Workers report the median of the steps that ended in a window. The median over windows and workers ignores the odd step
with a validation pass in it; its standard error, from the median absolute deviation, says how much of a difference is
noise. Differences under 2 to 3 % are never called one.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import NamedTuple, Optional

from ps.config import Role
from ps.stats import Observation

__all__ = ["LEAST_DIFFERENCE", "StepMeter", "StepTime"]

#: Smaller relative differences are noise, whatever the samples say.
LEAST_DIFFERENCE = 0.03
#: A difference counts when it is so many times its own standard error.
SIGNIFICANCE = 2.0
#: The meter looks back over so many windows of each worker.
MAX_WINDOWS = 30


class StepTime(NamedTuple):
    """Median duration of a step, and the relative standard error of that median."""

    seconds: float
    noise: float

    def speedup_over(self, other: StepTime) -> float:
        """Return how many times faster this is than ``other``."""
        return other.seconds / self.seconds

    def faster_than(self, other: StepTime) -> bool:
        """Return whether this is faster than ``other`` by more than noise."""
        least = max(LEAST_DIFFERENCE, SIGNIFICANCE * math.hypot(self.noise, other.noise))
        return math.log(self.speedup_over(other)) > least


class StepMeter:
    """Collects the step times of all workers under one configuration."""

    def __init__(self) -> None:
        self._num_workers = 1
        self._seconds: deque[float] = deque(maxlen=MAX_WINDOWS)
        self._windows = 0
        self._steps = 0

    def add(self, observation: Observation) -> None:
        """Take note of one window of one node; servers, and windows without a step, say nothing."""
        if observation.role is not Role.WORKER or not observation.step_seconds:
            return
        if observation.num_workers != self._num_workers:
            self._num_workers = observation.num_workers
            self._seconds = deque(self._seconds, maxlen=MAX_WINDOWS * self._num_workers)
        self._seconds.append(observation.step_seconds)
        self._windows += 1
        self._steps += observation.steps

    @property
    def windows(self) -> float:
        """Windows with steps that each worker reported, on average."""
        return self._windows / self._num_workers

    @property
    def steps(self) -> float:
        """Steps that each worker reported, on average."""
        return self._steps / self._num_workers

    def time(self, min_steps: int, min_windows: int) -> Optional[StepTime]:
        """Return the duration of a step, or None while fewer steps or windows were seen than asked for."""
        if not self._seconds or self.steps < min_steps or self.windows < min_windows:
            return None
        median = statistics.median(self._seconds)
        deviation = 1.4826 * statistics.median(abs(seconds - median) for seconds in self._seconds)
        # Workers step together: more of them are no more samples.
        samples = len(self._seconds) / self._num_workers
        return StepTime(median, 1.2533 * deviation / median / math.sqrt(samples))
