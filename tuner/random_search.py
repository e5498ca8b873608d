"""A search before the work: configurations drawn at random in the first steps of a job, then the best one is kept.

The baseline of every cleverer search (Bergstra and Bengio, JMLR 2012). Drawn evenly from the space, without
repetition; what ends a trial and how ties are decided is :mod:`tuner.oneshot`'s.
"""

from __future__ import annotations

import random
from typing import Sequence, Union

from ps.config import CommConfig
from tuner.oneshot import Choice, OneShotTuner, Result

__all__ = ["RandomTuner"]


class RandomTuner(OneShotTuner):
    """Tries members of the space at random, then keeps the fastest.

    Parameters
    ----------
    config
        What the job starts with; it is the first trial.
    trials
        How many configurations are tried, the first included.
    seed
        Decides what is drawn.

    Examples
    --------
    >>> from ps.config import CommConfig
    >>> RandomTuner(CommConfig(), seed=1).propose(now=0.0)  # the start configuration is being measured
    """

    def __init__(self, config: CommConfig, trials: int = 12, seed: int = 0) -> None:
        super().__init__("random", config, trials)
        self._random = random.Random(seed)

    def choose(self, results: Sequence[Result], untried: Sequence[CommConfig]) -> Union[Choice, str]:
        return Choice(self._random.choice(untried), "drawn at random")
