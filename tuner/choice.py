"""Which candidate to try, if any, given what is believed of each: one that probably gains, or one that may.

Ties go to what was measured, then to the larger P, then to the larger C: too large is mild, too small is ruinous where
conditions change. And no gain is looked for that the job's own steps hide: what could not be verified is not tried.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.belief import Array, Belief, expected_gain
from tuner.caution import is_smaller, powers_below, within_two_steps_up
from tuner.space import candidates, size_key

__all__ = ["Choice", "Setting", "certain_gains"]

#: Probable is the mean less so many deviations. A wrong trial is taken back: to ask for more is to wait for too long.
DEVIATIONS = 0.3
#: A smaller P needs more.
DOWN_DEVIATIONS = 0.5
#: A switch needs a probable gain of so much.
THRESHOLD = 0.01
#: Gains that differ by less are a tie.
TIE = 0.005
#: A large gain that is certain: so much, so many deviations below the mean.
CERTAIN_GAIN = 0.02
CERTAIN_DEVIATIONS = 1.0
#: No gain is looked for that is not so many times the noise of a comparison; for what is only possible, more.
RESOLVED = 1.5
EXPLORED = 2.0
EXPLORED_DOWN = 2.5
#: Each power of two by which P is smaller than the start's has to be worth so much, and what can be told at all: if
#: messages suddenly cost more, the next steps are ruined.
FEAR = 0.005
#: A trial is worth it when the expected gain, were it kept if it is one, is above this ...
LEAST_PROMISE = 0.003
#: ... and is not likely to lose more than this (one deviation below the mean).
MOST_RISK = math.log(1.06)
#: A trial that loses is over after about so many steps.
TRIAL_STEPS = 8
#: After a change the start's configuration is tried where this gain is possible (one deviation above the mean).
CHECKED_GAIN = 0.03


def certain_gains(belief: Belief) -> npt.NDArray[np.bool_]:
    """Return of each candidate whether it gains much for certain."""
    return np.asarray(belief.mean - CERTAIN_DEVIATIONS * belief.deviation > CERTAIN_GAIN)


class Setting(NamedTuple):
    """What a choice depends on, beside what is believed."""

    present: CommConfig
    known: Array  #: whether each candidate was measured under these conditions
    allowed: Array  #: whether each candidate may be tried
    noise: float  #: of a comparison of the steps so far with those of a long trial
    demand: float  #: how many times more than usual a trial has to promise
    step_seconds: float
    purse_seconds: float


class Choice:
    """See the module.

    Parameters
    ----------
    start
        What the job starts with.

    Attributes
    ----------
    candidates
        All configurations that may be chosen, by index.
    """

    def __init__(self, start: CommConfig) -> None:
        self.candidates = list(dict.fromkeys([*candidates(start), start]))
        self._start = start
        self._below = np.array([powers_below(candidate, start) for candidate in self.candidates])

    def probable(self, belief: Belief, setting: Setting) -> Optional[int]:
        """Return what probably gains most, if that is enough."""
        down = np.array([powers_below(candidate, setting.present) > 0 for candidate in self.candidates])
        deviations = np.where(down, DOWN_DEVIATIONS, DEVIATIONS) * belief.deviation
        gains = belief.mean - deviations - self._below * max(FEAR, setting.noise)
        present = gains[self.candidates.index(setting.present)]
        gains = np.where(setting.allowed, gains, -np.inf)
        tied = [index for index, gain in enumerate(gains) if gain >= gains.max() - TIE]
        best = max(tied, key=lambda index: (setting.known[index], size_key(self.candidates[index])))
        enough = (
            gains[best] - present > THRESHOLD * setting.demand
            and (belief.mean - deviations)[best] > RESOLVED * setting.noise
        )
        return best if enough else None

    def start(self, belief: Belief, setting: Setting) -> Optional[int]:
        """Return the start's configuration, if it may be better."""
        index = self.candidates.index(self._start)
        mean, deviation = belief.mean[index], belief.deviation[index]
        possible = mean + deviation > max(CHECKED_GAIN, RESOLVED * setting.noise)
        return index if possible and mean > -MOST_RISK and self._start != setting.present else None

    def promising(self, belief: Belief, setting: Setting) -> Optional[int]:
        """Return what may gain most, where hardly anything can be lost."""
        fears = FEAR * (self._below - powers_below(setting.present, self._start))

        def promise(index: int) -> float:
            mean, deviation = float(belief.mean[index]), float(belief.deviation[index])
            told = EXPLORED_DOWN if is_smaller(self.candidates[index], setting.present) else EXPLORED
            lost_seconds = max(0.0, deviation - mean) * TRIAL_STEPS * setting.step_seconds
            if (
                not setting.allowed[index]
                or not within_two_steps_up(self.candidates[index], setting.present)
                or mean - deviation <= -MOST_RISK
                or mean + deviation <= told * setting.noise
                or lost_seconds > setting.purse_seconds
            ):
                return 0.0
            return expected_gain(mean - float(fears[index]), deviation)

        best, index = max((promise(index), index) for index in range(len(self.candidates)))
        return index if best > LEAST_PROMISE * setting.demand else None
