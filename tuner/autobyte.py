"""The tuner that predicts, verifies, and follows changes: AutoByte's own.

Each round (about a window of every node) is summarised as a :class:`~tuner.situation.Situation`. A predictor says what
every candidate would bring, what was measured corrects it (:mod:`tuner.belief`), and one rule decides at a time:

1. **switch** to the candidate with the largest probable gain (mean less a part of a deviation), if that is above a
   threshold. Ties go to the larger P, then C: too large is mild, too small is ruinous where conditions change;
2. **verify** (:mod:`tuner.trial`): the steps before and after are compared, and a loss is taken back. Each trial in a
   row that brings nothing doubles what the next one has to promise, a gain resets it;
3. **explore** what may be better, when nothing is probable: only where hardly anything can be lost, upwards or
   one power of two down, and only as long as the time lost in trials stays below a small part of all time;
4. **re-open** the search when conditions change (:mod:`tuner.change`): what was measured before is doubted as much as
   they have changed, and remembered (:mod:`tuner.memory`) for when they come back;
5. **check** against the start's configuration, once after each change, where it may be better: what is in force must
   not stay slower than the default for long;
6. **retreat** when steps suddenly take much longer under P or C smaller than the start's, before any estimate has
   followed: back to the start's, which is safe.

The predictor learns from every verdict; how far it was off also widens what is believed of its next predictions.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from ps.config import CommConfig
from ps.stats import Observation
from tuner.belief import Array, Belief, believe, expected_gain
from tuner.change import Watch
from tuner.interface import Proposal, Tuner
from tuner.memory import Memory
from tuner.predictor import Prediction, Predictor, RulePredictor, Sample
from tuner.purse import Purse
from tuner.rounds import Round, Rounds
from tuner.situation import Situation
from tuner.space import candidates, size_key
from tuner.steps import StepMeter, StepTime
from tuner.trial import Outcome, Trial

__all__ = ["AutoByteTuner"]

#: Probable is the mean less so many deviations. A wrong trial is taken back: to ask for more is to wait for too long.
DEVIATIONS = 0.3
#: A switch needs a probable gain of so much ...
THRESHOLD = 0.01
#: ... and this much more when conditions have changed less than so many rounds ago. What is measured until then may be
#: partly of before the change: it is doubted by UNSETTLED_DOUBT.
UNSETTLED = 0.05
SETTLED_ROUNDS = 2
UNSETTLED_DOUBT = 0.08
#: The threshold doubles with each trial in a row that gains less than this, so many times at most.
FUTILE_GAIN = 0.01
MAX_DOUBLINGS = 5
#: Gains that differ by less are a tie; before what is known has settled, estimates are still on their way.
TIE = 0.005
UNSETTLED_TIE = 0.05
#: Each power of two by which P is smaller than the start's has to be worth so much: if messages suddenly cost more, the
#: next steps are ruined.
FEAR = 0.02
#: What was measured for so many rounds is remembered for when these conditions come back.
NOTED_ROUNDS = 3
#: A situation is made of so many latest rounds, and a step time of so many.
SITUATION_ROUNDS = 4
TIMED_ROUNDS = 10
#: No step time is believed to be more exact than this.
LEAST_NOISE = 0.005
#: What was measured before a change is doubted by this part of the change (of the logarithm).
DOUBT = 0.5
#: With more doubt than this a trial says nothing, and is no trial any more; nor is such a measurement kept.
MOST_DOUBT = 0.15
FORGOTTEN = 0.5
#: The predictor is trusted as if it had been off by what it says so many times before, and never this much more.
TRUSTED = 4.0
MOST_TRUST = 0.5
#: One prediction counts as off by so many spreads at most: a change may have gone unnoticed.
MOST_MISS = 3.0

#: Exploration begins after so many rounds in which nothing changed.
EXPLORING_ROUNDS = 4
#: A trial is worth it when the expected gain, were it kept if it is one, is above this ...
LEAST_PROMISE = 0.003
#: ... and is not likely to lose more than this (one deviation below the mean).
MOST_RISK = math.log(1.06)
#: A trial that loses is over after about so many rounds.
TRIAL_ROUNDS = 3
#: Down by this factor at most, from what is in force or from the start, which is safe.
DOWN_FACTOR = 2
#: A slow-down by this factor under a configuration smaller than the start's ends it at once.
RETREAT_FACTOR = 1.3
#: After a change the start's configuration is tried where this gain is possible (one deviation above the mean).
CHECKED_GAIN = 0.03

#: So many verdicts are remembered.
MAX_SAMPLES = 32


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="tuner", tag="autobyte"):
    """What a restarted tuner goes on with."""

    config: CommConfig
    samples: list[Sample]


class AutoByteTuner(Tuner):
    """See the module.

    Parameters
    ----------
    config
        What the job starts with.
    predictor
        Says what candidates would bring; None: the closed form.

    Examples
    --------
    >>> from ps.config import CommConfig
    >>> AutoByteTuner(CommConfig()).propose(now=0.0)  # nothing is known yet: keep what is in force
    """

    def __init__(self, config: CommConfig, predictor: Optional[Predictor] = None) -> None:
        self._start = self._config = replace(config, epoch=0)
        self._predictor = predictor or RulePredictor()
        self._candidates = list(dict.fromkeys([*candidates(self._start), self._start]))
        self._fears = np.array([-FEAR * _powers_below(candidate, self._start) for candidate in self._candidates])
        self._watch = Watch()
        self._collecting = Rounds()
        self._rounds: list[Round] = []  # under the configuration in force, since conditions changed
        self._measured: dict[CommConfig, StepTime] = {}  # of other configurations
        self._memory = Memory()
        self._trial: Optional[Trial] = None
        self._change = ""  # what has changed since the last proposal
        self._mixed = False  # whether the first round may be partly of before a change
        self._retreat = False
        self._check = False  # whether the start's configuration is to be tried
        self._resume: Optional[CommConfig] = None  # what an earlier run of the job has ended with
        self._futile = 0  # trials in a row that brought nothing
        self._purse = Purse()
        self._samples: list[Sample] = []
        self._misses: list[float] = []  # how far each prediction was off, in its own spreads
        self._began = False
        self._heard = False  # whether a round has closed since the last search

    def observe(self, observations: Sequence[Observation]) -> None:
        for closed in self._collecting.add(observations):
            self._take(closed)

    def propose(self, now: float) -> Optional[Proposal]:
        self._purse.fill(now)
        if self._trial is not None:
            return self._judge(self._trial, now)
        situation, present = self._situation(), self._time()
        if situation is None or present is None or not self._heard:
            return None
        self._began = self._began or self._settled
        if not self._began:
            return None  # the first steps of a job are like no others
        self._heard = False
        return self._search(situation, present, now)

    # -------------------------------------------------------------------------------- what is known

    def _take(self, closed: Round) -> None:
        situation = Situation.from_observations(closed.observations, self._config)
        if situation is None:
            return
        self._heard = True
        self._rounds.append(closed)
        del self._rounds[:-TIMED_ROUNDS]
        changed = self._watch.add(situation)
        if changed:
            self._reopen(changed, closed)

    def _reopen(self, changed: dict[str, float], closed: Round) -> None:
        self._change = ", ".join(f"{name} {ratio:.0%} of what it was" for name, ratio in changed.items())
        doubt = DOUBT * sum(abs(math.log(ratio)) for ratio in changed.values())
        doubted = {config: _doubted(time, doubt) for config, time in self._measured.items()}
        self._measured = {config: time for config, time in doubted.items() if time.noise < FORGOTTEN}
        if self._trial is not None:
            self._trial = self._trial._replace(time=_doubted(self._trial.time, doubt))
            if self._trial.time.noise < MOST_DOUBT:
                return
            self._trial = None
        self._rounds = [closed]
        self._mixed = True
        self._futile = 0
        self._check = True
        smaller = (
            self._config.partition_bytes < self._start.partition_bytes
            or self._config.credit_bytes < self._start.credit_bytes
        )
        self._retreat = smaller and changed.get("a step", 1.0) > RETREAT_FACTOR

    def _situation(self) -> Optional[Situation]:
        latest = self._rounds[-SITUATION_ROUNDS:]
        seen = [observation for closed in latest for observation in closed.observations]
        return Situation.from_observations(seen, self._config)

    def _time(self) -> Optional[StepTime]:
        """Return the step time under the configuration in force."""
        meter = StepMeter()
        for closed in self._rounds:
            for observation in closed.observations:
                meter.add(observation)
        time = meter.time(min_steps=1, min_windows=0)
        if time is None:
            return None
        return _doubted(time, UNSETTLED_DOUBT if self._mixed and not self._settled else LEAST_NOISE)

    @property
    def _settled(self) -> bool:
        return len(self._rounds) >= SETTLED_ROUNDS

    def _belief(self, situation: Situation, present: StepTime) -> Belief:
        gains, spreads = self._predictor.predict(situation, self._candidates)
        caution = math.sqrt((TRUSTED + sum(miss**2 for miss in self._misses)) / (TRUSTED + len(self._misses)))
        prediction = Prediction(gains, spreads * max(MOST_TRUST, caution))
        known = {**self._memory.recall(situation, present), **self._measured}
        measured = {
            config: (math.log(time.speedup_over(present)), math.hypot(time.noise, present.noise))
            for config, time in known.items()
        }
        return believe(self._candidates, prediction, measured)

    # ------------------------------------------------------------------------------------ the search

    def _search(self, situation: Situation, present: StepTime, now: float) -> Optional[Proposal]:
        if len(self._rounds) >= NOTED_ROUNDS:
            self._memory.note(situation, present)
        belief = self._belief(situation, present)
        probable = belief.mean - DEVIATIONS * belief.deviation + self._fears
        best = self._largest_of_tied(probable)
        threshold = THRESHOLD * self._demand
        if not self._settled:
            threshold += UNSETTLED
        if probable[best] - probable[self._present] > threshold:
            self._retreat, self._resume = False, None
            return self._switch(best, belief, situation, present, "", now)
        if self._retreat:
            return self._go_up()
        if self._resume is not None:
            return self._go_on(belief, situation, present, now)
        if self._check and self._settled:
            self._check = False
            index = self._candidates.index(self._start)
            if belief.mean[index] > -MOST_RISK and belief.mean[index] + belief.deviation[index] > CHECKED_GAIN:
                return self._switch(index, belief, situation, present, "against the start's; ", now)
        if len(self._rounds) >= EXPLORING_ROUNDS:
            return self._explore(belief, situation, present, now)
        return None

    @property
    def _demand(self) -> float:
        """Return how much more than usual a trial has to promise."""
        return float(2 ** min(self._futile, MAX_DOUBLINGS))

    @property
    def _present(self) -> int:
        return self._candidates.index(self._config)

    def _largest_of_tied(self, gains: Array) -> int:
        tie = TIE if self._settled else UNSETTLED_TIE
        tied = [index for index, gain in enumerate(gains) if gain >= gains.max() - tie]
        return max(tied, key=lambda index: size_key(self._candidates[index]))

    def _explore(self, belief: Belief, situation: Situation, present: StepTime, now: float) -> Optional[Proposal]:
        def cost(index: int) -> float:
            """Return the seconds that a trial is expected to lose, and one deviation more."""
            loss = max(0.0, belief.deviation[index] - belief.mean[index])
            return float(loss) * TRIAL_ROUNDS * max(1.0, present.seconds)

        worth = belief.mean + self._fears - self._fears[self._present]
        promising = [
            (expected_gain(float(worth[index]), float(belief.deviation[index])), index)
            for index, candidate in enumerate(self._candidates)
            if belief.mean[index] - belief.deviation[index] > -MOST_RISK
            and _not_far_below(candidate, self._config, self._start)
            and cost(index) <= self._purse.seconds
        ]
        promise, index = max(promising, default=(0.0, 0))
        if promise <= LEAST_PROMISE * self._demand:
            return None
        return self._switch(index, belief, situation, present, "exploring; ", now)

    def _go_on(self, belief: Belief, situation: Situation, present: StepTime, now: float) -> Optional[Proposal]:
        """Try what an earlier run of the job has ended with, unless the predictor knows better."""
        config, self._resume = self._resume, None
        index = self._candidates.index(config) if config in self._candidates else -1
        if index < 0 or config == self._config or belief.mean[index] + belief.deviation[index] < 0:
            return None
        return self._switch(index, belief, situation, present, "where the last run of the job ended; ", now)

    def _switch(
        self, index: int, belief: Belief, situation: Situation, present: StepTime, why: str, now: float
    ) -> Proposal:
        config, gain, spread = self._candidates[index], float(belief.mean[index]), float(belief.deviation[index])
        self._trial = Trial(self._config, config, present, situation, gain, spread, now)
        return self._put_in_force(config, f"{why}gain {gain:+.1%} ± {spread:.1%} expected", gain)

    def _go_up(self) -> Proposal:
        config = replace(
            self._config,
            partition_bytes=max(self._config.partition_bytes, self._start.partition_bytes),
            credit_bytes=max(self._config.credit_bytes, self._start.credit_bytes),
        )
        return self._put_in_force(config, "back up before more is known")

    def _put_in_force(self, config: CommConfig, why: str, predicted: Optional[float] = None) -> Proposal:
        time = self._time()
        if time is not None and time.noise < FORGOTTEN:
            self._measured[self._config] = time
        known = self._measured.pop(config, None)  # from now on it is measured anew
        self._watch.switched(None if known is None else known.seconds)
        self._config = config
        self._rounds.clear()
        self._collecting.clear()
        change = f"{self._change}: " if self._change else ""
        self._change, self._retreat, self._mixed = "", False, False
        return Proposal(
            config=config,
            reason=f"{change}{why}",
            predicted_speedup=None if predicted is None else math.exp(predicted),
        )

    # ----------------------------------------------------------------------------------- the verdict

    def _judge(self, trial: Trial, now: float) -> Optional[Proposal]:
        steps = sum(closed.steps for closed in self._rounds)
        after = self._time()
        verdict = trial.verdict(after, len(self._rounds), steps, now)
        if verdict is None:
            return None
        self._trial = None
        if verdict.gain is not None and not trial.doubtful:
            self._learn(trial, verdict.gain, verdict.noise)
        if verdict.gain is not None and verdict.gain > FUTILE_GAIN:
            self._futile = 0
            self._purse.earn(verdict.gain)
        elif not trial.doubtful:
            self._futile += 1
        if verdict.outcome is Outcome.KEEP:
            self._change = ""
            return Proposal(config=self._config, reason=f"verified: {verdict.text}")
        if after is not None:
            self._purse.pay(max(0.0, after.seconds - trial.time.seconds) * steps)
        return self._put_in_force(trial.before, f"taken back: {verdict.text}")

    def _learn(self, trial: Trial, gain: float, noise: float) -> None:
        miss = abs(gain - trial.predicted) / math.hypot(trial.spread, noise)
        self._misses.append(min(miss, MOST_MISS))
        self._samples.append(Sample(trial.situation, trial.config, gain, noise))
        del self._misses[:-MAX_SAMPLES], self._samples[:-MAX_SAMPLES]
        self._predictor.fine_tune(self._samples)

    # --------------------------------------------------------------------------------- over a restart

    def state(self) -> bytes:
        config = self._config if self._trial is None else self._trial.before  # what is being tried is not proven
        return msgspec.json.encode(_State(config=config, samples=self._samples))

    def restore(self, state: bytes) -> None:
        try:
            restored = msgspec.json.decode(state, type=_State)
            samples = restored.samples[-MAX_SAMPLES:]
            for sample in samples:  # numbers that no job can have seen make no finite prediction
                self._predictor.fine_tune([sample])
                gains = self._predictor.predict(sample.situation, self._candidates)
                if not all(np.isfinite(part).all() for part in (*gains, sample.log_speedup, sample.noise)):
                    raise ValueError("numbers that no job can have seen")
            self._predictor.fine_tune(samples)
        except Exception as error:  # from a file that anybody may have written
            self._predictor.fine_tune([])
            raise ValueError(f"no state of this tuner: {error}") from error
        self._samples = samples
        self._resume = replace(restored.config, epoch=0)


def _doubted(time: StepTime, doubt: float) -> StepTime:
    """Return the step time with more noise."""
    return StepTime(time.seconds, math.hypot(time.noise, doubt))


def _powers_below(candidate: CommConfig, start: CommConfig) -> float:
    """Return by how many powers of two the candidate's P is smaller than the start's."""
    return max(0.0, math.log2(start.partition_bytes / candidate.partition_bytes))


def _not_far_below(candidate: CommConfig, present: CommConfig, start: CommConfig) -> bool:
    """Return whether a candidate is at most a little smaller than the present configuration or the start's."""
    return candidate.partition_bytes * DOWN_FACTOR >= min(
        present.partition_bytes, start.partition_bytes
    ) and candidate.credit_bytes * DOWN_FACTOR >= min(present.credit_bytes, start.credit_bytes)
