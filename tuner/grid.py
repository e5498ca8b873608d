"""A search before the work: a coarse grid in the first steps of a job, then the best one is kept.

P in four sizes from 128 KiB to 8 MiB, C of 4, 16, 64 or 256 P up to 64 MiB, and no slicing at all: eleven
configurations, with the start twelve trials, as many as the other searches have. Largest first, because too large is
mild: by the time that the ruinous corner has its turn there is something fast to compare with, and its trials are cut
short. What ends a trial and how ties are decided is :mod:`tuner.oneshot`'s.
"""

from __future__ import annotations

from typing import Sequence, Union

from msgspec.structs import replace

from ps.config import KIB, CommConfig
from tuner.oneshot import Choice, OneShotTuner, Result
from tuner.space import LEAST_CREDIT_PARTITIONS, MAX_SEARCHED_CREDIT_BYTES, MAX_SEARCHED_PARTITION_BYTES, UNSLICED

__all__ = ["GridTuner", "grid"]

LEAST_PARTITION_BYTES = 128 * KIB
#: From one value to the next.
FACTOR = 4


def grid(like: CommConfig) -> list[CommConfig]:
    """Return the configurations of the grid, smallest first; what is not searched is taken from ``like``."""
    sizes = []
    partition_bytes = LEAST_PARTITION_BYTES
    while partition_bytes <= MAX_SEARCHED_PARTITION_BYTES:
        credit_bytes = LEAST_CREDIT_PARTITIONS * partition_bytes
        while credit_bytes <= MAX_SEARCHED_CREDIT_BYTES:
            sizes.append((partition_bytes, credit_bytes))
            credit_bytes *= FACTOR
        partition_bytes *= FACTOR
    sizes.append((UNSLICED.partition_bytes, UNSLICED.credit_bytes))
    return [replace(like, partition_bytes=partition, credit_bytes=credit) for partition, credit in sizes]


class GridTuner(OneShotTuner):
    """Tries a coarse grid, then keeps the fastest.

    Parameters
    ----------
    config
        What the job starts with; it is the first trial.

    Examples
    --------
    >>> from ps.config import CommConfig
    >>> GridTuner(CommConfig()).propose(now=0.0)  # the start configuration is being measured
    """

    def __init__(self, config: CommConfig) -> None:
        self._grid = grid(config)
        super().__init__("grid", config, trials=1 + len(self._grid))

    def choose(self, results: Sequence[Result], untried: Sequence[CommConfig]) -> Union[Choice, str]:
        left = [config for config in self._grid if config in untried]
        return Choice(left[-1], "largest first") if left else "the grid is done"
