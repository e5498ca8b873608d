"""Tells that a job's conditions have changed: step time, computation, bandwidth, latency or overhead, each watched.

Each signal's logarithm is compared with a baseline, the median of its first values, by a two-sided CUSUM (Page,
Biometrika 1954): what exceeds the baseline by more than a tolerance adds up, and an alarm is raised at a limit. A large
change is seen at once, a small one after some windows, one below the tolerance never. Noisy signals get a wider
tolerance, from how they scatter.

The first rounds of a job are like no others, and estimates rest on little then: nothing is compared with them.

After an alarm a signal begins anew. A step takes its own time under each configuration, so :meth:`Watch.switched` lets
the step time begin anew, or from what it was when that configuration was last in force; what the network is does not
depend on the configuration.
"""

from __future__ import annotations

import math
import statistics
from typing import Callable, Mapping, NamedTuple, Optional

from tuner.situation import Across, Situation

__all__ = ["NETWORK", "STEP", "Cusum", "Watch", "felt", "is_only_slower"]

STEP, BACKWARD, BANDWIDTH, LATENCY, OVERHEAD = "a step", "the backward pass", "bandwidth", "latency", "overhead"
#: What no configuration and no neighbour on the same processors can change. The overhead is none of these: how it is
#: told from the cost of bytes depends on the size of messages.
NETWORK = frozenset((BACKWARD, BANDWIDTH, LATENCY))

#: The baseline is the median of so many first values.
BASELINE_VALUES = 8
#: Of a signal's spread, so many times are tolerated, and so many times make an alarm.
TOLERATED_SPREADS = 1.0
ALARM_SPREADS = 4.0
#: What a step hardly feels is no change.
LEAST_FELT = 0.02
#: A step that takes as long times bandwidth as before, and this much more at most, only has less bandwidth.
SLOWER = 1.15
#: So many rounds of a job are not watched.
FIRST_ROUNDS = 2
#: The scatter of a signal is learned from so many latest differences.
SCATTER_VALUES = 12
LEAST_DIFFERENCES = 3


class Cusum:
    """Watches one positive quantity.

    Parameters
    ----------
    tolerance
        Relative differences from the baseline up to this are none.
    limit
        An alarm is raised when what exceeds the tolerance adds up to more.

    Examples
    --------
    >>> signal = Cusum(tolerance=0.02, limit=0.06)
    >>> [signal.add(value) for value in (1.0, 1.01, 0.99, 1.01, 1.3)]
    [None, None, None, None, 1.3]
    """

    def __init__(self, tolerance: float, limit: float) -> None:
        self._tolerance = tolerance
        self._limit = limit
        self._differences: list[float] = []  # from one value to the next; a restart does not change how they scatter
        self.restart()

    def restart(self, expected: Optional[float] = None) -> None:
        """Begin anew: the baseline is what is expected, or the next values where nothing is."""
        self._first: list[float] = [] if expected is None else [math.log(expected)]
        self._last: Optional[float] = None
        self._above = self._below = 0.0

    def add(self, value: float, spread: float = 0.0) -> Optional[float]:
        """Take the next value and its own relative spread, where it has one.

        Returns
        -------
        float or None
            The ratio of the value to the baseline at an alarm, after which the signal begins anew with this value.
        """
        logarithm = math.log(value)
        last, self._last = self._last, logarithm
        if not self._first:
            self._first.append(logarithm)
            return None
        baseline = statistics.median(self._first)
        spread = max(spread, self._scatter())
        tolerance = max(self._tolerance, TOLERATED_SPREADS * spread)
        difference = logarithm - baseline
        self._above = max(0.0, self._above + difference - tolerance)
        self._below = max(0.0, self._below - difference - tolerance)
        if max(self._above, self._below) > max(self._limit, ALARM_SPREADS * spread):
            self.restart()
            self._first.append(logarithm)
            self._last = logarithm
            return math.exp(difference)
        if len(self._first) < BASELINE_VALUES:
            self._first.append(logarithm)
        if last is not None:
            self._differences = [*self._differences, abs(logarithm - last)][-SCATTER_VALUES:]
        return None

    def _scatter(self) -> float:
        """Return the spread of single values."""
        if len(self._differences) < LEAST_DIFFERENCES:
            return 0.0
        return 1.4826 * statistics.median(self._differences) / math.sqrt(2)


def _median(across: Optional[Across]) -> tuple[Optional[float], float]:
    return (None, 0.0) if across is None else (across.median, across.spread)


def _least(across: Optional[Across]) -> tuple[Optional[float], float]:
    return (None, 0.0) if across is None else (across.least, across.spread)


def _most(across: Optional[Across]) -> tuple[Optional[float], float]:
    return (None, 0.0) if across is None else (across.most, across.spread)


def felt(name: str, ratio: float, situation: Situation) -> float:
    """Return by how much (of the logarithm) a step under the present configuration may feel such a change.

    Of a backward pass it feels the part that this has in it, and of a latency what the credit leaves no time for.
    """
    change = abs(math.log(ratio))
    step, backward, latency = situation.step_seconds, situation.backward_seconds, situation.latency_seconds
    bandwidth = situation.bandwidth_bytes_per_second
    if name == BACKWARD and step and backward is not None:
        return change * min(1.0, backward / step)
    if name == LATENCY and latency is not None and bandwidth is not None:
        there_and_back_seconds = 2 * latency.median * abs(1 - 1 / ratio)
        return min(change, there_and_back_seconds * bandwidth.median / situation.config.credit_bytes)
    return change


def is_only_slower(changed: Mapping[str, float]) -> bool:
    """Return whether steps last longer by as much as links are slower: messages are no dearer than they were."""
    step, bandwidth = changed.get(STEP, 1.0), changed.get(BANDWIDTH, 1.0)
    return step > 1 and step * bandwidth < SLOWER


class _Signal(NamedTuple):
    name: str
    cusum: Cusum
    value: Callable[[Situation], tuple[Optional[float], float]]
    of_configuration: bool  # whether it depends on the configuration


class Watch:
    """Watches all that may change in a job."""

    def __init__(self) -> None:
        self._rounds = 0
        self._signals = (
            _Signal(STEP, Cusum(0.02, 0.06), lambda s: (s.step_seconds, 0.0), True),
            _Signal(BACKWARD, Cusum(0.05, 0.15), lambda s: (s.backward_seconds, 0.0), False),
            _Signal(BANDWIDTH, Cusum(0.08, 0.2), lambda s: _least(s.bandwidth_bytes_per_second), False),
            _Signal(LATENCY, Cusum(0.3, 1.0), lambda s: _median(s.latency_seconds), False),
            _Signal(OVERHEAD, Cusum(0.15, 0.45), lambda s: _most(s.overhead_seconds), False),
        )

    def add(self, situation: Situation, step_spread: float = 0.0) -> dict[str, float]:
        """Take what one round has shown; return what has changed, with its ratio to what it was.

        ``step_spread`` is how far the step times of rounds are known to scatter.
        """
        self._rounds += 1
        if self._rounds <= FIRST_ROUNDS:
            return {}
        changed = {}
        for signal in self._signals:
            value, spread = signal.value(situation)
            if value is not None and value > 0:
                ratio = signal.cusum.add(value, step_spread if signal.of_configuration else spread)
                if ratio is not None and felt(signal.name, ratio, situation) > LEAST_FELT:
                    changed[signal.name] = ratio
        return changed

    def switched(self, step_seconds: Optional[float]) -> None:
        """Another configuration is in force, under which a step takes so long as far as is known."""
        for signal in self._signals:
            if signal.of_configuration:
                signal.cusum.restart(step_seconds)
