"""How far the step times of a job scatter of their own accord: what a comparison before and after can tell at best.

Two things make steps of the same configuration differ. Each has its own *noise*, which more steps average out. And
their level *drifts*, as other processes take the same processors, which more steps do not. The noise is read from
the differences of neighbouring rounds, the drift from those of neighbouring blocks of rounds: comparisons of the job
with itself, between which nothing has changed.
"""

from __future__ import annotations

import math
import statistics
from typing import Sequence

__all__ = ["Scatter"]

#: A block is so many rounds.
BLOCK_ROUNDS = 3
#: So many latest differences are remembered.
MAX_DIFFERENCES = 40
#: The noise of a round before differences tell; it counts as one of them.
PRIOR_NOISE = 0.01
#: Fewer differences are averaged; of more the median is taken, which a true change does not move.
FEW = 5
#: Before so many comparisons of blocks the drift is taken for as large as what noise leaves after so many rounds.
LEAST_BLOCKS = 4
UNKNOWN_DRIFT_ROUNDS = 6
#: Of a median over normal values, the variance is larger than that of the mean.
MEDIAN_VARIANCE = math.pi / 2
#: A normal deviation over the median of absolute values.
DEVIATION_OF_MEDIAN = 1.4826


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
        self._single: list[float] = []  # differences of neighbouring rounds
        self._blocks: list[float] = []  # and of neighbouring blocks

    @property
    def rounds(self) -> int:
        """Comparisons of neighbouring rounds so far."""
        return len(self._single)

    def add(self, seconds: float) -> None:
        """Take the step time of the next round."""
        logs = [*self._logs, math.log(seconds)][-2 * BLOCK_ROUNDS :]
        self._logs = logs
        if len(logs) > 1:
            self._single = [*self._single, abs(logs[-1] - logs[-2])][-MAX_DIFFERENCES:]
        if len(logs) == 2 * BLOCK_ROUNDS:
            older, newer = logs[:BLOCK_ROUNDS], logs[BLOCK_ROUNDS:]
            difference = abs(statistics.median(newer) - statistics.median(older))
            self._blocks = [*self._blocks, difference][-MAX_DIFFERENCES:]

    def restart(self) -> None:
        """What comes next is of another configuration, or of other conditions."""
        self._logs = []

    def noise(self, rounds: int) -> float:
        """Return the deviation of the logarithm of the median step of so many rounds."""
        single = self._of_one()
        return math.sqrt(single**2 * MEDIAN_VARIANCE / max(rounds, 2) + self._drift_squared(single))

    def _of_one(self) -> float:
        count = len(self._single)
        squared = PRIOR_NOISE**2 + count * _deviation(self._single) ** 2 / 2
        return math.sqrt(squared / (1 + count))

    def _drift_squared(self, single: float) -> float:
        if len(self._blocks) < LEAST_BLOCKS:
            return single**2 / UNKNOWN_DRIFT_ROUNDS
        return max(0.0, _deviation(self._blocks) ** 2 / 2 - single**2 * MEDIAN_VARIANCE / BLOCK_ROUNDS)


def _deviation(differences: Sequence[float]) -> float:
    """Return the deviation of what has these absolute values."""
    if not differences:
        return 0.0
    if len(differences) < FEW:
        return math.sqrt(statistics.fmean(value**2 for value in differences))
    return DEVIATION_OF_MEDIAN * statistics.median(differences)
