"""How much dearer messages are than hosts estimate, learned from what trials have cost.

The overhead is the communication thread's own CPU time per message. Where more threads want to run than there are
processors, every message also waits for its turn at each of the threads that it needs, at both ends, and no thread can
see that in its own time. What can be seen is that a trial with more messages was slower than predicted, or one with
fewer was faster. So a factor on the overhead is fitted to all verdicts of the job: the most probable one, where 1 is
most probable beforehand.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tuner.predictor import Predictor, Sample
from tuner.situation import Across, Situation

__all__ = ["Dearness"]

Array = npt.NDArray[np.float64]

#: Factors that are thought possible; never below 1, since a thread that waits for nobody needs its own time.
FACTORS = np.geomspace(1.0, 16.0, 9)
#: Deviation of the factor's logarithm before anything is known.
PRIOR_SPREAD = math.log(2.0)
#: One verdict is off by so many deviations at most: conditions may have changed without notice.
MOST_MISS = 3.0
MAX_VERDICTS = 12


class Dearness:
    """The factor, and how it is learned.

    Attributes
    ----------
    factor
        The most probable one.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._verdicts: list[Array] = []  # log likelihood of each factor

    def learn(self, predictor: Predictor, sample: Sample) -> None:
        """Take a verdict; ``predictor`` is one that has not learned from this job, or it has its own excuse."""
        misses = []
        for factor in FACTORS:
            gains, spreads = predictor.predict(dearer(sample.situation, float(factor)), [sample.candidate])
            scale = max(1e-3, math.hypot(min(float(spreads[0]), 10.0), sample.noise))
            misses.append(min(abs(sample.log_speedup - float(gains[0])) / scale, MOST_MISS))
        self._verdicts = [*self._verdicts, -np.square(misses) / 2][-MAX_VERDICTS:]
        prior = -np.square(np.log(FACTORS) / PRIOR_SPREAD) / 2
        likelihood = prior + np.sum(self._verdicts, axis=0)
        self.factor = float(FACTORS[int(likelihood.argmax())])

    def forget(self) -> None:
        """Begin anew."""
        self.factor = 1.0
        self._verdicts.clear()

    def apply(self, situation: Situation) -> Situation:
        """Return the situation with the overhead that messages are believed to have."""
        return dearer(situation, self.factor)


def dearer(situation: Situation, factor: float) -> Situation:
    """Return the situation with so many times the overhead."""
    overhead = situation.overhead_seconds
    if overhead is None or factor == 1.0:
        return situation
    least, median, most, spread = overhead
    return replace(situation, overhead_seconds=Across(factor * least, factor * median, factor * most, spread))
