"""What was measured under which conditions, for when they come back.

Cross-traffic ends, a neighbour's job stops, a link recovers: conditions return to what they were. What was measured
then is worth more than any prediction. Conditions are alike when bandwidth, latency, overhead and the backward pass
are, as far as they are known; and when the configuration in force takes as long as it did, which also tells what no
estimate sees, such as a worker that computes more slowly than the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from msgspec.structs import replace

from ps.config import CommConfig
from tuner.situation import Situation
from tuner.steps import StepTime

__all__ = ["Memory"]

#: So far may the logarithms of bandwidth, latency, overhead and backward pass differ.
TOLERANCES = (0.1, 0.4, 0.25, 0.1)
#: So far may a step under the same configuration differ, and by so many times the noise.
STEP_TOLERANCE = 0.05
NOISES = 2.0
#: What is remembered is doubted: with the configuration in force to compare with, and without.
DOUBT = 0.02
BLIND_DOUBT = 0.06
#: So many conditions are remembered; the one that was not met for longest is forgotten.
MAX_CONDITIONS = 16

_Key = tuple[Optional[float], ...]


class _Met(NamedTuple):
    key: _Key
    times: dict[CommConfig, StepTime]


class Memory:
    """Step times by conditions and configuration."""

    def __init__(self) -> None:
        self._met: list[_Met] = []  # the last ones at the end

    def note(self, situation: Situation, time: StepTime) -> None:
        """Remember how long a step takes under the configuration in force."""
        met = self._find(situation, time) or _Met(_key(situation), {})
        met.times[replace(situation.config, epoch=0)] = time
        self._met = [*(other for other in self._met if other is not met), met][-MAX_CONDITIONS:]

    def recall(self, situation: Situation, present: StepTime) -> dict[CommConfig, StepTime]:
        """Return the step times of other configurations under these conditions; none where they were not met."""
        met = self._find(situation, present)
        if met is None:
            return {}
        config = replace(situation.config, epoch=0)
        then = met.times.get(config)
        factor, doubt = (1.0, BLIND_DOUBT) if then is None else (present.seconds / then.seconds, DOUBT)
        return {
            other: StepTime(time.seconds * factor, math.hypot(time.noise, doubt))
            for other, time in met.times.items()
            if other != config
        }

    def _find(self, situation: Situation, present: StepTime) -> Optional[_Met]:
        key, config = _key(situation), replace(situation.config, epoch=0)
        met = [met for met in reversed(self._met) if _alike(met.key, key)]
        same = (each for each in met if config in each.times and _as_long(each.times[config], present))
        return next(same, next((each for each in met if config not in each.times), None))


def _key(situation: Situation) -> _Key:
    bandwidth, latency, overhead = (
        situation.bandwidth_bytes_per_second,
        situation.latency_seconds,
        situation.overhead_seconds,
    )
    values = (
        None if bandwidth is None else bandwidth.least,
        None if latency is None else latency.median,
        None if overhead is None else overhead.most,
        situation.backward_seconds,
    )
    return tuple(None if value is None or value <= 0 else math.log(value) for value in values)


def _alike(one: _Key, other: _Key) -> bool:
    return all(
        (a is None) == (b is None) and (a is None or b is None or abs(a - b) <= tolerance)
        for a, b, tolerance in zip(one, other, TOLERANCES)
    )


def _as_long(one: StepTime, other: StepTime) -> bool:
    tolerance = max(STEP_TOLERANCE, NOISES * math.hypot(one.noise, other.noise))
    return abs(math.log(one.seconds / other.seconds)) <= tolerance
