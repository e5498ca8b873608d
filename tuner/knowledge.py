"""What a job has taught: step times by configuration, verdicts, and how far predictions were off.

Predictions are believed as far as they were right before, with messages as dear as verdicts say
(:mod:`tuner.dearness`), and corrected by what was measured now (:mod:`tuner.belief`) or under the same conditions
before (:mod:`tuner.memory`).
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

import numpy as np

from ps.config import CommConfig
from tuner.belief import Belief, believe
from tuner.dearness import Dearness
from tuner.memory import Memory
from tuner.predictor import Prediction, Predictor, Sample
from tuner.refinement import Refinement
from tuner.situation import Situation
from tuner.steps import StepTime
from tuner.trial import Trial

__all__ = ["Knowledge", "doubted"]

#: What was measured with more noise than this is forgotten, and with less than this may be returned to at once.
FORGOTTEN = 0.5
EXACT = 0.1
#: The predictor is trusted as if it had been off by what it says so many times before, and never this much more.
TRUSTED = 4.0
MOST_TRUST = 0.8
#: One prediction counts as off by so many spreads at most: a change may have gone unnoticed.
MOST_MISS = 3.0
#: The steps before and after a trial that was taken back may differ by so many times their noise, and by this.
MOST_DRIFTS = 3.0
LEAST_DRIFT = 0.02
#: So many verdicts are remembered.
MAX_SAMPLES = 32


class Knowledge:
    """See the module.

    Parameters
    ----------
    predictor
        Says what candidates would bring.
    candidates
        All that may be asked for.
    refinement
        Refines predictions by a simulation of the job; it finds its own cost of messages, and learns no verdicts.

    Attributes
    ----------
    samples
        The verdicts.
    """

    def __init__(
        self, predictor: Predictor, candidates: Sequence[CommConfig], refinement: Optional[Refinement] = None
    ) -> None:
        self.samples: list[Sample] = []
        self._predictor = predictor
        self._refinement = refinement
        self._candidates = candidates
        self._dearness = Dearness()
        self._memory = Memory()
        self._measured: dict[CommConfig, StepTime] = {}  # of configurations that are not in force
        self._misses: list[float] = []  # how far each prediction was off, in its own spreads

    def note(self, situation: Situation, time: StepTime) -> None:
        """Remember how long a step takes under the configuration in force, for when these conditions come back."""
        self._memory.note(situation, time)

    def keep(self, config: CommConfig, time: Optional[StepTime]) -> None:
        """A configuration goes out of force, under which a step took so long."""
        if time is not None and time.noise < FORGOTTEN:
            self._measured[config] = time

    def take(self, config: CommConfig) -> Optional[StepTime]:
        """A configuration comes into force and is measured anew; return what was known of it."""
        return self._measured.pop(config, None)

    def doubt(self, doubt: float) -> None:
        """Conditions have changed by so much: what was measured before is doubted."""
        measured = {config: doubted(time, doubt) for config, time in self._measured.items()}
        self._measured = {config: time for config, time in measured.items() if time.noise < FORGOTTEN}
        if self._refinement is not None:
            self._refinement.forget()

    def belief(self, situation: Situation, present: StepTime) -> Belief:
        """Return what is believed of each candidate."""
        opinion = self._predictor.predict(self._dearness.apply(situation), self._candidates)
        if self._refinement is not None:
            opinion = self._refinement.refine(situation, self._candidates, opinion)
        caution = math.sqrt((TRUSTED + sum(miss**2 for miss in self._misses)) / (TRUSTED + len(self._misses)))
        prediction = Prediction(opinion.log_speedup, opinion.spread * max(MOST_TRUST, caution))
        measured = {
            config: (math.log(time.speedup_over(present)), math.hypot(time.noise, present.noise))
            for config, time in self._known(situation, present).items()
        }
        return believe(self._candidates, prediction, measured, situation.config)

    def exact(self, situation: Situation, present: StepTime) -> set[CommConfig]:
        """Return the configurations that were measured well under these conditions."""
        return {config for config, time in self._known(situation, present).items() if time.noise < EXACT}

    def _known(self, situation: Situation, present: StepTime) -> dict[CommConfig, StepTime]:
        known = self._memory.recall(situation, present)
        for config, time in self._measured.items():
            if config not in known or time.noise < known[config].noise:
                known[config] = time
        return known

    def learn(self, sample: Sample, predicted: float, spread: float) -> None:
        """Take a verdict on what was predicted with such a spread."""
        self._misses.append(min(abs(sample.log_speedup - predicted) / math.hypot(spread, sample.noise), MOST_MISS))
        self.samples.append(sample)
        del self._misses[:-MAX_SAMPLES], self.samples[:-MAX_SAMPLES]
        self._predictor.fine_tune([])  # else what it has learned would pass for the dearness of messages
        self._dearness.learn(self._predictor, sample)
        self._fine_tune()

    def learn_from(self, trial: Trial, gain: float, noise: float) -> None:
        """Take the gain of a trial (of the logarithm of the speedup)."""
        self.learn(Sample(trial.situation, trial.config, gain, noise), trial.predicted, trial.spread)

    def learn_from_loss(self, trial: Trial, tried: StepTime, present: StepTime) -> None:
        """Compare a trial that was taken back with the steps before it and after it, and learn if those are alike."""
        drift = math.log(present.speedup_over(trial.time))
        noise = math.hypot(tried.noise, present.noise)
        gain = math.log(tried.speedup_over(present))
        if abs(drift) < max(LEAST_DRIFT, MOST_DRIFTS * math.hypot(present.noise, trial.time.noise)):
            self.learn_from(trial, gain + drift / 2, noise + abs(drift) / 2)

    def restore(self, samples: Sequence[Sample]) -> None:
        """Begin with the verdicts of an earlier run.

        Raises
        ------
        ValueError
            They contain numbers that no job can have seen; then nothing is known.
        """
        try:
            for sample in samples:  # what no job can have seen makes no finite prediction
                self._predictor.fine_tune([sample])
                gains = self._predictor.predict(sample.situation, self._candidates)
                if not all(np.isfinite(part).all() for part in (*gains, sample.log_speedup, sample.noise)):
                    raise ValueError("numbers that no job can have seen")
            self._predictor.fine_tune([])
            for sample in samples:
                self._dearness.learn(self._predictor, sample)
            self.samples = list(samples)
            self._fine_tune()
        except Exception as error:  # from a file that anybody may have written
            self.samples = []
            self._dearness.forget()
            self._predictor.fine_tune([])
            raise ValueError(f"no state of this tuner: {error}") from error

    def _fine_tune(self) -> None:
        self._predictor.fine_tune(
            [sample._replace(situation=self._dearness.apply(sample.situation)) for sample in self.samples]
        )


def doubted(time: StepTime, doubt: float) -> StepTime:
    """Return the step time with more noise."""
    return StepTime(time.seconds, math.hypot(time.noise, doubt))
