"""What all searches before the work have in common: trials in the first steps of a job, then the best one for ever.

They adapt to nothing that changes later; the job pays for the trials and then has what they found.

A trial lasts :data:`TRIAL_STEPS` steps (the steps around a switch are not reported by the workers) and counts with
their median. It is cut short when it is much slower than the best so far, or when no step ends at all; then it counts
as slow as it was seen. The first trial is the configuration that the job starts with.

Ties: of all trials within :data:`TIE` of the fastest, the one with the larger P, then the larger C is kept, because
too small is ruinous where conditions change and too large is mild.
"""

from __future__ import annotations

import abc
from typing import NamedTuple, Optional, Sequence, Union

from ps.config import CommConfig
from ps.stats import Observation
from tuner.interface import Proposal, Tuner
from tuner.space import candidates, size_key
from tuner.steps import StepMeter, StepTime

__all__ = ["Choice", "OneShotTuner", "Result"]

#: Steps and windows per worker that a trial lasts.
TRIAL_STEPS = 10
TRIAL_WINDOWS = 2
#: A trial that is slower than the best by this factor after this many steps is cut short.
BAD_FACTOR = 1.5
BAD_STEPS = 2
#: A trial in which no step ends for this long, in seconds or in steps of the best, is cut short ...
SILENT_SECONDS = 10.0
SILENT_STEPS = 10
#: ... and counts as so many times slower than the best.
SILENT_FACTOR = 10.0
#: Trials this much slower than the fastest, as a part of it, are as good.
TIE = 0.02


class Result(NamedTuple):
    """What a trial has shown."""

    config: CommConfig
    time: StepTime

    @property
    def seconds(self) -> float:
        return self.time.seconds


class Choice(NamedTuple):
    """What is tried next, and why."""

    config: CommConfig
    why: str
    predicted_seconds: Optional[float] = None


class OneShotTuner(Tuner):
    """Tries what :meth:`choose` says, in a bounded number of trials, then keeps the best.

    Parameters
    ----------
    name
        Stands before every reason.
    config
        What the job starts with; it is the first trial.
    trials
        How many configurations are tried at most, the first included.
    """

    def __init__(self, name: str, config: CommConfig, trials: int) -> None:
        self._name = name
        self._config = config
        self._trials = trials
        self._results: list[Result] = []
        self._meter = StepMeter()
        self._began = 0.0  # when the trial began; the first one has all the time that it needs
        self._frozen = False
        self._candidates = candidates(config)

    @abc.abstractmethod
    def choose(self, results: Sequence[Result], untried: Sequence[CommConfig]) -> Union[Choice, str]:
        """Return the next trial after ``results``, of which there are some; a text instead says why to stop."""

    def observe(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            self._meter.add(observation)

    def propose(self, now: float) -> Optional[Proposal]:
        if self._frozen:
            return None
        ended = self._trial_ended(now)
        if ended is None:
            return None
        self._results.append(Result(self._config, ended))
        number = len(self._results) + 1
        if number > self._trials:
            return self._freeze(f"{self._trials} trials are done")
        tried = {(result.config.partition_bytes, result.config.credit_bytes) for result in self._results}
        untried = [c for c in self._candidates if (c.partition_bytes, c.credit_bytes) not in tried]
        choice = self.choose(self._results, untried) if untried else "all candidates were tried"
        if isinstance(choice, str):
            return self._freeze(choice)
        self._config, self._meter, self._began = choice.config, StepMeter(), now
        predicted = choice.predicted_seconds
        return Proposal(
            config=choice.config,
            reason=f"{self._name}, trial {number} of {self._trials}: {choice.why}",
            predicted_speedup=None if predicted is None else ended.seconds / predicted,
        )

    def _trial_ended(self, now: float) -> Optional[StepTime]:
        """Return the step time of the present trial once it is over."""
        whole = self._meter.time(TRIAL_STEPS, TRIAL_WINDOWS)
        if whole is not None or not self._results:
            return whole
        fastest = min(result.seconds for result in self._results)
        early = self._meter.time(BAD_STEPS, 1)
        if early is not None and early.seconds > BAD_FACTOR * fastest:
            return early
        if not self._meter.steps and now - self._began > max(SILENT_SECONDS, SILENT_STEPS * fastest):
            return StepTime(SILENT_FACTOR * fastest, 0.0)
        return None

    def _freeze(self, why: str) -> Proposal:
        self._frozen = True
        limit = (1 + TIE) * min(result.seconds for result in self._results)
        tied = [result for result in self._results if result.seconds <= limit]
        best = max(tied, key=lambda result: size_key(result.config))
        first, last = self._results[0], self._results[-1]
        reason = (
            f"{self._name}, frozen: {why}; "
            f"a step took {best.seconds * 1e3:.4g} ms in its trial, {first.seconds * 1e3:.4g} ms in the first"
        )
        return Proposal(config=best.config, reason=reason, predicted_speedup=last.seconds / best.seconds)
