"""The twins of a job: what it may be, each as likely as its steps last as long as those that were measured.

No estimate is exact, and the cost of a message least of all: on a processor that others use, too, a message takes
longer than its thread computes. But a twin whose messages are too cheap takes less time for a step than the job does.
So a factor on that cost is fitted to the step times under every configuration that these conditions have seen. What
they leave open is kept open: beside the most likely twin there are two with dearer and with cheaper messages, because
steps are not smooth (a shard that just fits one partition, a worker that overtakes another), and what is best in one
twin only is seldom best in the job.

What nodes do not tell leaves more open, and each possibility is a twin. Where no pass is told, the rest of a step may
be computation that communication overlaps with, computation before all of it, or messages that are dearer than stated.
Where the cost per byte, the tensors' sizes or the computation of each is not told, it may be any of several.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.situation import Across, Situation
from tuner.twin import TOLD, Guess, Twin, twin_of

__all__ = ["Member", "Simulate", "fit_twins"]

Array = npt.NDArray[np.float64]
#: Returns the step time of a twin under each configuration, in seconds; or, in less time, about that.
Simulate = Callable[[Twin, Sequence[CommConfig], bool], Sequence[float]]

#: The factor on the cost of messages is searched in such steps of its logarithm, and within these bounds.
FACTOR_STEP = 0.15
LEAST_FACTOR, MOST_FACTOR = -1.0, 2.0
#: Spread of the factor's logarithm before anything is measured, at least.
FACTOR_SPREAD = 0.15
#: A step time of the twin that is as near as this (of the logarithm) fits.
FITS = 0.02
#: What fits worse by this is less likely.
SAYS = 0.04
#: Beside the most likely twin are two that differ by so many deviations, and each counts as much as this.
SIGMA, SIGMA_WEIGHT = 1.2, 0.25
#: What a byte may cost a communication thread, where that is not told, and at most this part of what the wire takes.
BYTE_SECONDS = (0.0, 0.05e-9, 0.15e-9, 0.4e-9)
MOST_OF_WIRE = 0.7
#: How tensors may grow from the first to the last, and their computation with their size.
GROWTHS = (0.0, 4.0, 8.0)
LAYER_POWERS = (0.0, 0.5, 1.0)
#: Of what is not told, what is less likely than the likeliest by this factor is left out, and all but so many.
UNLIKELY = 0.15
MOST_MEMBERS = 4
#: Communication that explains all but this part of a step leaves no computation.
LEAST_COMPUTATION = 0.03
#: Computation is found in so many steps at most.
SEARCHES = 7


class Member(NamedTuple):
    """One of a job's twins."""

    twin: Twin
    guess: Guess
    weight: float
    misfit: float  #: how far its step times are from those that were measured, a logarithm
    log_seconds: dict[CommConfig, float]  #: of what has been simulated


def fit_twins(situation: Situation, measured: Mapping[CommConfig, float], simulate: Simulate) -> list[Member]:
    """Return the twins that ``measured`` step times (logarithms) speak for, the likeliest first.

    There is none where the situation knows too little.
    """
    if twin_of(situation) is None:
        return []
    fit = _Fit(situation, measured, simulate)
    members = fit.likely(_possible(situation))
    likely = max(members, key=lambda member: member.weight)
    if situation.backward_seconds is None and fit.error(likely) < -LEAST_COMPUTATION:
        members = fit.computation(likely)
    elif len(members) == 1:
        members = fit.messages(likely)
    else:
        members[members.index(likely)] = fit.nearest(likely)._replace(weight=likely.weight)
    total = sum(member.weight for member in members)
    members = [member._replace(weight=member.weight / total) for member in members]
    return sorted(members, key=lambda member: -member.weight)


def _possible(situation: Situation) -> list[Guess]:
    """Return what may be where nodes do not tell."""
    across = situation.bandwidth_bytes_per_second
    assert across is not None  # else there is no twin
    guesses = [TOLD]
    if situation.byte_seconds is None:
        most = MOST_OF_WIRE / across.median
        guesses = [Guess(byte_seconds=seconds) for seconds in sorted({min(seconds, most) for seconds in BYTE_SECONDS})]
    if not situation.tensor_bytes:
        return [guess._replace(growth=growth) for guess in guesses for growth in GROWTHS]
    if not situation.tensor_seconds and situation.backward_seconds is not None:
        return [guess._replace(layer_power=power) for guess in guesses for power in LAYER_POWERS]
    return guesses


class _Fit:
    """What is tried, and how well that fits."""

    def __init__(self, situation: Situation, measured: Mapping[CommConfig, float], simulate: Simulate) -> None:
        self._situation = situation
        self._configs = list(measured)
        self._measured = np.array(list(measured.values()))
        self._simulate = simulate
        self._spread = max(FACTOR_SPREAD, _spread(situation.overhead_seconds))

    def attempt(self, guess: Guess, weight: float = 1.0) -> Member:
        twin = twin_of(self._situation, guess)
        assert twin is not None  # what is known does not depend on the guess
        logs = np.log(self._simulate(twin, self._configs, False))
        misfit = float(np.sqrt(np.mean((logs - self._measured) ** 2)))
        return Member(twin, guess, weight, misfit, dict(zip(self._configs, logs.tolist())))

    def error(self, member: Member) -> float:
        """Return the mean error of the logarithm of its step times: above 0 where steps are too long."""
        return float(np.mean([member.log_seconds[config] for config in self._configs] - self._measured))

    def messages(self, plain: Member) -> list[Member]:
        """Return the most likely factor on the cost of messages, and one on each side of it."""
        best = self.nearest(plain)
        log_factor, count = math.log(best.guess.overhead_factor), len(self._configs)
        dearer = self.attempt(_dearer(best.guess, FACTOR_STEP))
        slope = (self.error(dearer) - self.error(best)) / FACTOR_STEP
        information = self._spread**-2 + count * (slope / FITS) ** 2
        pull = log_factor / self._spread**2 + count * slope * self.error(best) / FITS**2
        best = self.attempt(_dearer(best.guess, float(np.clip(-pull / information, -FACTOR_STEP, FACTOR_STEP))))
        aside = SIGMA / math.sqrt(information)
        late = SIGMA * _spread(self._situation.latency_seconds)
        sides = [self.attempt(_dearer(best.guess, side * aside, side * late), SIGMA_WEIGHT) for side in (-1, 1)]
        return [best._replace(weight=1 - 2 * SIGMA_WEIGHT), *sides]

    def nearest(self, plain: Member) -> Member:
        """Return the best factor of those that are whole steps away."""
        best = plain
        if best.misfit <= FITS:
            return best
        step = FACTOR_STEP if self.error(best) < 0 else -FACTOR_STEP  # steps are too short: messages are dearer
        log_factor, cost = step, self._cost(best)
        while LEAST_FACTOR <= log_factor <= MOST_FACTOR:
            attempted = self.attempt(_dearer(plain.guess, log_factor))
            next_cost = self._cost(attempted)
            if next_cost >= cost:
                break
            cost, best = next_cost, attempted
            log_factor += step
        return best

    def _cost(self, member: Member) -> float:
        log_factor = math.log(member.guess.overhead_factor)
        return (log_factor / self._spread) ** 2 + len(self._configs) * (member.misfit / FITS) ** 2

    def likely(self, guesses: Sequence[Guess]) -> list[Member]:
        """Return the twins of the guesses that fit best."""
        members = self._weighed([self.attempt(guess) for guess in guesses])
        members = sorted(members, key=lambda member: -member.weight)[:MOST_MEMBERS]
        return [member for member in members if member.weight > UNLIKELY * members[0].weight]

    def computation(self, idle: Member) -> list[Member]:
        """Return what the part of a step may be that communication, with which ``idle`` does nothing else, leaves."""
        step_seconds = float(np.exp(self._measured).mean())
        rest = step_seconds * -math.expm1(self.error(idle))
        overlapped = self._filled(idle.guess, rest, step_seconds)
        before = self._filled(idle.guess._replace(before=True), rest / 2, step_seconds)
        return self._weighed([overlapped, before, self.nearest(idle)])

    def _filled(self, guess: Guess, low: float, high: float) -> Member:
        """Return the twin whose computation, between these seconds, makes its steps as long as the job's."""
        tried = []
        for _ in range(SEARCHES):
            middle = (low + high) / 2
            tried.append(self.attempt(guess._replace(computation_seconds=middle)))
            error = self.error(tried[-1])
            if abs(error) < FITS / 2:
                break
            low, high = (low, middle) if error > 0 else (middle, high)
        return min(tried, key=lambda member: member.misfit)

    def _weighed(self, members: Sequence[Member]) -> list[Member]:
        """Return members with how likely each is."""
        factors = np.array([math.log(member.guess.overhead_factor) for member in members])
        misfits = np.array([member.misfit for member in members])
        costs = (factors / self._spread) ** 2 + len(self._configs) * (misfits / SAYS) ** 2
        weights = np.exp(-(costs - costs.min()) / 2)
        return [member._replace(weight=float(weight)) for member, weight in zip(members, weights)]


def _dearer(guess: Guess, by: float, later: float = 0.0) -> Guess:
    """Return a guess whose messages cost more, and are on their way for longer, by such a logarithm."""
    return guess._replace(
        overhead_factor=guess.overhead_factor * math.exp(by), latency_factor=guess.latency_factor * math.exp(later)
    )


def _spread(across: Optional[Across]) -> float:
    return 0.0 if across is None else across.spread
