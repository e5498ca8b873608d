"""How far the step times of a job scatter of their own accord: what a comparison before and after can tell at best.

Two things make steps of the same configuration differ. Each has its own *noise*, which more steps average out. And
their level *drifts*, as other processes take the same processors, which more steps do not. The noise is read from
the differences of neighbouring rounds, each as exact as its number of steps allows, the drift from those of
neighbouring blocks of rounds: comparisons of the job with itself, between which nothing has changed.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple, Sequence

__all__ = ["Scatter"]

#: A block is so many rounds.
BLOCK_ROUNDS = 3
#: So many latest differences are remembered.
MAX_DIFFERENCES = 40
#: The noise of a step before differences tell; it counts as one of them.
PRIOR_NOISE = 0.015
#: Fewer differences are averaged; of more the median is taken, which a true change does not move.
FEW = 5
#: Before so many comparisons of blocks the drift is taken for as large as what noise leaves after so many rounds.
LEAST_BLOCKS = 4
UNKNOWN_DRIFT_ROUNDS = 6
#: Of a median over normal values, the variance is larger than that of the mean.
MEDIAN_VARIANCE = math.pi / 2
#: A normal deviation over the median of absolute values.
DEVIATION_OF_MEDIAN = 1.4826


class _Difference(NamedTuple):
    """Of the medians of two blocks, which have so many steps each on average."""

    value: float
    steps: float


class Scatter:
    """Learns from each round's step time.

    Examples
    --------
    >>> scatter = Scatter()
    >>> for seconds in (1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0):
    ...     scatter.add(seconds)
    >>> scatter.noise(1) > 0.2 > scatter.noise(100) > 0.05
    True
    """

    def __init__(self) -> None:
        self._logs: list[float] = []  # under the same configuration and conditions
        self._steps: list[int] = []  # of these rounds
        self._single: list[float] = []  # differences of neighbouring rounds, as large as those of single steps would be
        self._blocks: list[_Difference] = []  # of neighbouring blocks

    @property
    def rounds(self) -> int:
        """Comparisons of neighbouring rounds so far."""
        return len(self._single)

    def add(self, seconds: float, steps: int = 1) -> None:
        """Take the median step time of the next round, which had so many steps."""
        logs = self._logs = [*self._logs, math.log(seconds)][-2 * BLOCK_ROUNDS :]
        counts = self._steps = [*self._steps, max(1, steps)][-2 * BLOCK_ROUNDS :]
        if len(logs) > 1:
            exactness = math.sqrt(2 / (1 / counts[-1] + 1 / counts[-2]))
            self._single = [*self._single, exactness * abs(logs[-1] - logs[-2])][-MAX_DIFFERENCES:]
        if len(logs) == 2 * BLOCK_ROUNDS:
            older, newer = logs[:BLOCK_ROUNDS], logs[BLOCK_ROUNDS:]
            difference = abs(statistics.median(newer) - statistics.median(older))
            self._blocks = [*self._blocks, _Difference(difference, sum(counts) / 2)][-MAX_DIFFERENCES:]

    def restart(self) -> None:
        """What comes next is of another configuration, or of other conditions."""
        self._logs, self._steps = [], []

    def noise(self, steps: int) -> float:
        """Return the deviation of the logarithm of the median of so many steps."""
        single = self._of_one()
        return math.sqrt(single**2 * MEDIAN_VARIANCE / max(steps, 2) + self._drift_squared(single))

    def _of_one(self) -> float:
        count = len(self._single)
        squared = PRIOR_NOISE**2 + count * _deviation(self._single) ** 2 / 2
        return math.sqrt(squared / (1 + count))

    def _drift_squared(self, single: float) -> float:
        if len(self._blocks) < LEAST_BLOCKS:
            return single**2 / UNKNOWN_DRIFT_ROUNDS / (statistics.median(self._steps) if self._steps else 1)
        seen = _deviation([block.value for block in self._blocks]) ** 2 / 2
        steps = statistics.median(block.steps for block in self._blocks)
        return max(0.0, seen - single**2 * MEDIAN_VARIANCE / steps)


def _deviation(differences: Sequence[float]) -> float:
    """Return the deviation of what has these absolute values."""
    if not differences:
        return 0.0
    if len(differences) < FEW:
        return math.sqrt(statistics.fmean(value**2 for value in differences))
    return DEVIATION_OF_MEDIAN * statistics.median(differences)
