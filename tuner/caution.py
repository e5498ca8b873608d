"""Which configurations may be tried next: down only in small steps, and not again where it has failed.

Too small is ruinous and too large is mild. So below the start's configuration a trial goes down by one power of two at
most, in P and in C, from what is in force, or by two where much is gained for certain; what lies further down is
reached when that was verified as a gain, and a quarter of the start's P is the end. What is not smaller than the
start's, and what was measured under these conditions, may be tried at once.

A trial of something smaller that was taken back says something of all that is as small or smaller: messages cost more
than was estimated, for whatever reason. All of it is left alone for a time that doubles with each such failure, and
until the network is known to have changed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ps.config import CommConfig
from tuner.space import MAX_SEARCHED_CREDIT_BYTES, MAX_SEARCHED_PARTITION_BYTES

__all__ = ["Refusals", "is_far", "is_smaller", "powers_below", "within_reach", "within_two_steps_up"]

#: Down by this factor at most.
DOWN_FACTOR = 2
#: P is not made smaller than the start's by more powers of two: where messages suddenly are dear, one step is ruin.
DEEPEST = 2
#: Up by this factor at most, where a gain is not probable but possible.
UP_FACTOR = 4
#: What was refused is left alone for so many seconds, doubled with each refusal so many times at most.
REFUSED_SECONDS = 20.0
MAX_DOUBLINGS = 6
#: What was on trial when conditions changed is put off for so many seconds, doubled with each time in a row.
VOID_SECONDS = 4.0


def powers_below(candidate: CommConfig, other: CommConfig) -> float:
    """Return by how many powers of two the candidate's P is smaller; 0 where it is not."""
    return max(0.0, math.log2(_partition(other) / _partition(candidate)))


def is_smaller(candidate: CommConfig, other: CommConfig) -> bool:
    """Return whether P or C is smaller: more messages, or fewer bytes on the way."""
    return _partition(candidate) < _partition(other) or _credit(candidate) < _credit(other)


def is_far(candidate: CommConfig, start: CommConfig) -> bool:
    """Return whether the candidate may be much slower than the ``start``'s where conditions are others."""
    return is_smaller(candidate, start) or candidate.partition_bytes > UP_FACTOR * start.partition_bytes


def within_reach(candidate: CommConfig, present: CommConfig, start: CommConfig, certain: bool = False) -> bool:
    """Return whether neither P nor C is smaller than half of the present ones, nor P smaller while C is larger.

    Where a large gain is ``certain``: than a quarter. P is never less than a quarter of the ``start``'s, and what is
    not smaller than the start's is always within reach.

    Of the latter nobody could tell what was to blame if it fails. No slicing at all is one step above the largest P
    and C that are searched.
    """
    partition, credit = _partition(candidate), _credit(candidate)
    if not is_smaller(candidate, start):
        return True
    if powers_below(candidate, start) > DEEPEST:
        return False
    factor = DOWN_FACTOR ** (2 if certain else 1)
    near = partition * factor >= _partition(present) and credit * factor >= _credit(present)
    return near and (partition >= _partition(present) or credit <= _credit(present))


def _partition(config: CommConfig) -> int:
    return min(config.partition_bytes, DOWN_FACTOR * MAX_SEARCHED_PARTITION_BYTES)


def _credit(config: CommConfig) -> int:
    return min(config.credit_bytes, DOWN_FACTOR * MAX_SEARCHED_CREDIT_BYTES)


def within_two_steps_up(candidate: CommConfig, present: CommConfig) -> bool:
    """Return whether P and C are at most four times the present ones: as far as goes what is only possible."""
    partition, credit = _partition(candidate), _credit(candidate)
    return partition <= UP_FACTOR * _partition(present) and credit <= UP_FACTOR * _credit(present)


class _Refused(NamedTuple):
    partition_bytes: int
    credit_bytes: float  # infinite where P alone was too small
    until: float  # seconds
    judged: bool  # else put off


class Refusals:
    """What was tried downwards and taken back.

    Examples
    --------
    >>> refusals = Refusals()
    >>> large, small = CommConfig(), CommConfig(partition_bytes=262144)
    >>> refusals.refuse(small, large)
    >>> refusals.allow(small), refusals.allow(large)
    (False, True)
    """

    def __init__(self) -> None:
        self._refused: list[_Refused] = []
        self._seconds = 0.0
        self._in_a_row = 0
        self._void = 0

    def pass_time(self, seconds: float) -> None:
        """So much time has passed."""
        self._seconds += seconds
        self._refused = [refused for refused in self._refused if refused.until > self._seconds]

    def refuse(self, config: CommConfig, before: CommConfig) -> None:
        """``config`` was smaller than what was in force before it, and no gain."""
        seconds = REFUSED_SECONDS * 2 ** min(self._in_a_row, MAX_DOUBLINGS)
        self._in_a_row += 1
        self._leave_alone(config, before, seconds, judged=True)

    def put_off(self, config: CommConfig, before: CommConfig) -> None:
        """Conditions have changed during a trial of ``config``: where they do so all the time nothing can be tried."""
        self._leave_alone(config, before, VOID_SECONDS * 2 ** min(self._void, MAX_DOUBLINGS), judged=False)
        self._void += 1

    def _leave_alone(self, config: CommConfig, before: CommConfig, seconds: float, judged: bool) -> None:
        credit_bytes = math.inf if config.partition_bytes < before.partition_bytes else float(config.credit_bytes)
        self._refused.append(_Refused(config.partition_bytes, credit_bytes, self._seconds + seconds, judged))

    def judged(self) -> None:
        """A trial has ended with a verdict."""
        self._void = 0

    def gained(self) -> None:
        """Something smaller was verified as a gain."""
        self._in_a_row = 0

    def forget(self) -> None:
        """The network has changed: what failed may work now."""
        self._refused.clear()

    def allow(self, config: CommConfig, measured: bool = False) -> bool:
        """Return whether nothing as large or larger was refused; what was measured is not put off."""
        return not any(
            config.partition_bytes <= refused.partition_bytes
            and config.credit_bytes <= refused.credit_bytes
            and (refused.judged or not measured)
            for refused in self._refused
        )
