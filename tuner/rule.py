"""A formula instead of a search: partition and credit from bandwidth, latency and overhead, then verified.

With B in bytes per second, L one way and o per message::

    P = 2 o B
    C = 8 P + 2 B (2 L + 2.5 o)

A partition costs o and takes P / B on the wire, so 2 o B spends at most half as much on overhead as on bytes, and the
two overlap; the credit covers eight partitions and twice what is under way in a round trip. In a simulation study
this came within 0.6 % of the best (P, C) on average, for B, L and o known exactly.

They are not known exactly, and a processor that is busy, or a wire that is memory, follows no formula. So the formula
only says where to go; whether to stay is measured. Too small is ruinous and too large is mild, hence:

* a proposal needs estimates on enough samples, and a target that differs by more than :data:`HYSTERESIS` from what is
  in force;
* upwards it goes at once, downwards by a factor of :data:`DOWN_FACTOR` at most, and only where the shorter wait behind
  the credit is worth more than the processor's time for more messages (:func:`saved_seconds`);
* the median step is compared with the one before: a larger configuration must not be slower, a smaller one must be
  faster, both by more than noise. Otherwise the old configuration comes back, the target is not tried again until it
  has moved, and the next attempt waits twice as long;
* a trial that is obviously bad is ended after a few steps.

So the job is never for long on a configuration that is slower than the one it started with.
"""

from __future__ import annotations

import math
import statistics
from typing import Iterable, NamedTuple, Optional, Sequence

from msgspec.structs import replace

from ps.config import KIB, CommConfig, Role
from ps.stats import Estimate, Observation
from tuner.interface import Proposal, Tuner
from tuner.space import (
    LEAST_CREDIT_PARTITIONS,
    MAX_SEARCHED_CREDIT_BYTES,
    MAX_SEARCHED_PARTITION_BYTES,
    MIN_PARTITION_BYTES,
    describe,
)
from tuner.steps import LEAST_DIFFERENCE, StepMeter, StepTime

__all__ = ["Network", "RuleTuner", "partition_and_credit", "saved_seconds"]

#: A target closer than this factor to what is in force, in both P and C, is not worth a switch.
HYSTERESIS = 1.5
#: A switch makes P and C smaller by this factor at most.
DOWN_FACTOR = 4
#: The part of the overhead that a step is assumed to feel, since training and communication share the processors.
FELT_OVERHEAD = 0.5
#: An estimate on fewer windows or messages is not used.
MIN_SAMPLES = 3
#: Steps and windows per worker before a step time is believed.
MIN_STEPS = 10
MIN_WINDOWS = 5
#: A trial that is slower by this factor after this many steps is ended.
BAD_FACTOR = 1.5
BAD_STEPS = 2
#: A trial in which no step ends for this long, in seconds or in steps as they were, is ended.
SILENT_SECONDS = 10.0
SILENT_STEPS = 10
#: The wait after rejected trials doubles up to so many windows.
MAX_WAIT_WINDOWS = 80
#: The first tensor waits behind C / B of credit in flight; with 15 ms more it is to be there after 60 ms.
MAX_CREDIT_SECONDS = 0.045
#: Assumed where no small message ever met an empty network.
UNKNOWN_LATENCY_SECONDS = 250e-6


class Network(NamedTuple):
    """What the formula needs to know of the network."""

    bandwidth_bytes_per_second: float
    latency_seconds: float
    overhead_seconds: float

    def __str__(self) -> str:
        return (
            f"B = {self.bandwidth_bytes_per_second * 8 / 1e9:.3g} Gbit/s, L = {self.latency_seconds * 1e6:.0f} us, "
            f"o = {self.overhead_seconds * 1e6:.0f} us"
        )


def partition_and_credit(network: Network) -> tuple[int, int]:
    """Return partition and credit in bytes as the formula has them, within the bounds of the search space."""
    bandwidth, latency, overhead = network
    partition = min(max(2 * overhead * bandwidth, MIN_PARTITION_BYTES), MAX_SEARCHED_PARTITION_BYTES)
    credit = 8 * partition + 2 * bandwidth * (2 * latency + 2.5 * overhead)
    credit = min(credit, MAX_CREDIT_SECONDS * bandwidth, MAX_SEARCHED_CREDIT_BYTES)
    credit = max(credit, LEAST_CREDIT_PARTITIONS * partition)
    return _round_up(partition, 4 * KIB), _round_up(credit, 16 * KIB)


def saved_seconds(present: CommConfig, smaller: CommConfig, network: Network, model_bytes: int) -> float:
    """Return what a step of a model of ``model_bytes`` can save at most by going from ``present`` to ``smaller``.

    Before the first tensor of the next step, the bytes of the credit and of a partition at either end are on the wire.
    Smaller partitions are more messages, and part of their overhead is taken from the training.
    """

    def in_the_way(config: CommConfig) -> int:
        return min(model_bytes, config.credit_bytes + 2 * config.partition_bytes)

    wait_seconds = (in_the_way(present) - in_the_way(smaller)) / network.bandwidth_bytes_per_second
    messages = model_bytes / smaller.partition_bytes - model_bytes / present.partition_bytes
    return wait_seconds - FELT_OVERHEAD * messages * network.overhead_seconds


def _round_up(value: float, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


class _Trial(NamedTuple):
    """A switch whose effect is being measured."""

    before: CommConfig
    before_time: StepTime
    target: CommConfig
    smaller: bool
    began: float


class RuleTuner(Tuner):
    """Goes where the formula points, and back where that does not pay.

    Parameters
    ----------
    config
        What the job starts with.

    Examples
    --------
    >>> from ps.config import CommConfig
    >>> RuleTuner(CommConfig()).propose(now=0.0)  # nothing is known yet: keep what is in force
    """

    def __init__(self, config: CommConfig) -> None:
        self._config = config
        self._nodes: dict[tuple[Role, int], Observation] = {}
        self._meter = StepMeter()
        self._aim: Optional[CommConfig] = None  # the target for which the meter runs
        self._trial: Optional[_Trial] = None
        self._rejected: Optional[CommConfig] = None
        self._wait_windows = MIN_WINDOWS

    def observe(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            self._nodes[observation.role, observation.rank] = observation
            self._meter.add(observation)

    def propose(self, now: float) -> Optional[Proposal]:
        if self._trial is not None:
            return self._judge(self._trial, now)
        network = self._network()
        if network is None:
            return None
        partition_bytes, credit_bytes = partition_and_credit(network)
        target = replace(self._config, partition_bytes=partition_bytes, credit_bytes=credit_bytes)
        if self._aim is None or not _close(target, self._aim):
            # Conditions have changed: what was measured before says nothing about now.
            self._aim = target
            self._meter = StepMeter()
            return None
        if _close(target, self._config) or (self._rejected is not None and _close(target, self._rejected)):
            return None
        before = self._meter.time(MIN_STEPS, self._wait_windows)
        if before is None:
            return None
        return self._try(target, network, before, now)

    def _network(self) -> Optional[Network]:
        """Combine the estimates of all nodes: the slowest sender, the dearest messages, the typical latency."""
        nodes = self._nodes.values()
        bandwidths = _values(node.bandwidth_bytes_per_second for node in nodes)
        latencies = _values(node.latency_seconds for node in nodes)
        overheads = _values(node.overhead_seconds for node in nodes)
        if not bandwidths or not overheads:
            return None
        latency = statistics.median(latencies) if latencies else UNKNOWN_LATENCY_SECONDS
        return Network(min(bandwidths), latency, max(overheads))

    def _try(self, target: CommConfig, network: Network, before: StepTime, now: float) -> Optional[Proposal]:
        present = self._config
        config = self._next(target, network, before)
        if _close(config, present):
            return None
        smaller = config.partition_bytes < present.partition_bytes or config.credit_bytes < present.credit_bytes
        self._trial = _Trial(present, before, target, smaller, now)
        self._switch(config)
        on_the_way = "" if config == target else f", on the way to {describe(target)}"
        return Proposal(config=config, reason=f"rule for {network}{on_the_way}")

    def _next(self, target: CommConfig, network: Network, before: StepTime) -> CommConfig:
        """Return how far to go towards ``target`` now: all that grows; what shrinks only if that pays."""
        present = self._config
        config = replace(
            target,
            partition_bytes=_towards(target.partition_bytes, present.partition_bytes, MAX_SEARCHED_PARTITION_BYTES),
            credit_bytes=_towards(target.credit_bytes, present.credit_bytes, MAX_SEARCHED_CREDIT_BYTES),
        )
        larger = replace(
            target,
            partition_bytes=max(target.partition_bytes, present.partition_bytes),
            credit_bytes=max(target.credit_bytes, present.credit_bytes),
        )
        model_bytes = max(node.model_bytes for node in self._nodes.values())
        pays = saved_seconds(larger, config, network, model_bytes) > LEAST_DIFFERENCE * before.seconds
        return config if pays else larger

    def _judge(self, trial: _Trial, now: float) -> Optional[Proposal]:
        before = trial.before_time
        early = self._meter.time(BAD_STEPS, 1)
        if early is not None and early.seconds > BAD_FACTOR * before.seconds:
            return self._go_back(trial, _compared(early, before))
        silent_seconds = max(SILENT_SECONDS, SILENT_STEPS * before.seconds)
        if not self._meter.steps and now - trial.began > silent_seconds:
            return self._go_back(trial, f"no step has ended for {silent_seconds:.0f} s")
        after = self._meter.time(MIN_STEPS, MIN_WINDOWS)
        if after is None:
            return None
        if trial.smaller and not after.faster_than(before):
            return self._go_back(trial, f"{_compared(after, before)}, and smaller has to be faster")
        if before.faster_than(after):
            return self._go_back(trial, _compared(after, before))
        self._trial = self._rejected = None
        self._wait_windows = MIN_WINDOWS
        return None

    def _go_back(self, trial: _Trial, reason: str) -> Proposal:
        self._trial = None
        self._rejected = trial.target
        self._wait_windows = min(2 * self._wait_windows, MAX_WAIT_WINDOWS)
        self._switch(trial.before)
        return Proposal(config=trial.before, reason=f"taken back: {reason}")

    def _switch(self, config: CommConfig) -> None:
        self._config = config
        self._aim = None
        self._meter = StepMeter()


def _values(estimates: Iterable[Optional[Estimate]]) -> list[float]:
    return [estimate.value for estimate in estimates if estimate is not None and estimate.samples >= MIN_SAMPLES]


def _towards(target_bytes: int, present_bytes: int, unlimited_bytes: int) -> int:
    """Return the target, or how far down it may go at once; all that is above ``unlimited_bytes`` is alike."""
    return max(target_bytes, min(present_bytes, unlimited_bytes) // DOWN_FACTOR)


def _close(one: CommConfig, other: CommConfig) -> bool:
    pairs = (
        (one.partition_bytes, other.partition_bytes),
        (one.credit_bytes, other.credit_bytes),
    )
    return all(max(pair) <= HYSTERESIS * min(pair) for pair in pairs)


def _compared(after: StepTime, before: StepTime) -> str:
    return f"a step takes {after.seconds / before.seconds:.0%} of what it took"
