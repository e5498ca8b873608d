"""A switch and its verdict: the steps after it against the steps before.

Too small is ruinous and too large is mild, so the verdict leans: an obvious loss ends a trial after one round, a loss
above noise after :data:`VERDICT_ROUNDS`; what is smaller stays only if it is faster by more than noise, what is larger
stays unless it is slower. A trial lasts for as long as noise hides what was expected of it, up to :data:`MOST_ROUNDS`;
where even those could not tell, it is given up at once.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple, Optional

from ps.config import CommConfig
from tuner.situation import Situation
from tuner.space import size_key
from tuner.steps import StepTime

__all__ = ["Outcome", "Trial", "Verdict"]

#: A verdict needs so many rounds and steps, and comes after the most rounds at the latest.
VERDICT_ROUNDS = 2
VERDICT_STEPS = 4
MOST_ROUNDS = 8
#: A loss of this much (of the logarithm) ends a trial after one round.
OBVIOUS_LOSS = math.log(1.2)
#: A loss counts when it is above this, and above twice its own noise.
LEAST_LOSS = 0.01
#: What is smaller has to gain so much, and more than its noise.
LEAST_GAIN = 0.01
#: A trial in which no step ends for this long, in seconds or in steps as they were, is ended.
SILENT_SECONDS = 10.0
SILENT_STEPS = 10


class Outcome(enum.Enum):
    """What comes of a trial."""

    KEEP = "keep"
    GO_BACK = "go back"


class Verdict(NamedTuple):
    """The outcome, in words, and what was measured: the log speedup and its noise, None where no step has ended."""

    outcome: Outcome
    text: str
    gain: Optional[float]
    noise: float


class Trial(NamedTuple):
    """A switch whose effect is being measured."""

    before: CommConfig
    config: CommConfig
    time: StepTime  #: of a step before
    situation: Situation  #: before
    predicted: float  #: log speedup
    spread: float
    safe: bool = False  #: whether it is what the job started with
    began: Optional[float] = None  #: when it was first looked at

    @property
    def smaller(self) -> bool:
        """Whether it is more dangerous than what was in force before."""
        return not self.safe and size_key(self.config) < size_key(self.before)

    def verdict(
        self, after: Optional[StepTime], rounds: int, steps: int, now: float, scatter: float = 0.0
    ) -> Optional[Verdict]:
        """Return the verdict on ``steps`` in so many rounds; None while it is too early for one.

        ``scatter`` is the noise that a step time over :data:`MOST_ROUNDS` still has in this job.
        """
        if after is None:
            silent_seconds = max(SILENT_SECONDS, SILENT_STEPS * self.time.seconds)
            if self.began is None or now - self.began <= silent_seconds:
                return None
            return Verdict(Outcome.GO_BACK, f"no step has ended for {silent_seconds:.0f} s", None, 0.0)
        gain = math.log(after.speedup_over(self.time))
        noise = math.hypot(after.noise, self.time.noise)
        text = f"speedup {math.exp(gain):.3f} measured, {math.exp(self.predicted):.3f} predicted"
        back = Verdict(Outcome.GO_BACK, text, gain, noise)
        if gain < -max(OBVIOUS_LOSS, 2 * noise):
            return back
        if rounds < VERDICT_ROUNDS or steps < VERDICT_STEPS:
            return None
        if gain < -max(LEAST_LOSS, noise if self.smaller else 2 * noise):
            return back
        keep = Verdict(Outcome.KEEP, text, gain, noise)
        if self.smaller and gain > max(LEAST_GAIN, 2 * noise) or not self.smaller and gain - 2 * noise > -LEAST_LOSS:
            return keep
        if self.smaller and gain < LEAST_GAIN - 2 * noise:
            return back._replace(text=f"{text}, and smaller has to be faster")
        if math.hypot(scatter, self.time.noise) > max(0.0, self.predicted) + self.spread:
            return back._replace(text=f"{text}, and steps vary too much to tell")
        if rounds < MOST_ROUNDS:
            return None
        if gain < -LEAST_LOSS / 2:
            return back
        if self.smaller and gain < max(LEAST_GAIN, noise):
            return back._replace(text=f"{text}, and smaller has to be faster")
        return keep
