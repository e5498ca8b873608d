"""The tuner that predicts, verifies, and follows changes: AutoByte's own.

Each round (a window of every worker) is summarised as a :class:`~tuner.situation.Situation`. A predictor says what
every candidate would bring, what was measured corrects it (:mod:`tuner.belief`), and one rule decides at a time:

1. **switch** to the candidate with the largest probable gain (mean less a part of a deviation), if that is above a
   threshold and above what this job's steps scatter by themselves (:mod:`tuner.scatter`). Ties go to what was measured,
   then to the larger P, then C: too large is mild, too small is ruinous. Down in small steps (:mod:`tuner.caution`);
2. **verify** (:mod:`tuner.trial`): the steps before and after are compared, and a loss is taken back. What is learned
   from it takes the steps after it into account, too. Each trial in a row that brings nothing doubles what the next
   one has to promise, a gain resets it, and all trials together may lose a small part of all time (:mod:`tuner.purse`);
3. **explore** what may be better, when nothing is probable: only where hardly anything can be lost;
4. **re-open** the search when conditions change (:mod:`tuner.change`): what was measured before is doubted as much as
   they have changed, and remembered for when they come back. The round of the change may be partly of before it, so the
   next one decides. A trial during which the network changes is void;
5. **check** against the start's configuration, once after each change, where it may be better: what is in force must
   not stay slower than the default for long;
6. **retreat** to the start's configuration when steps suddenly last much longer or shorter under one that is far from
   it (smaller, or much larger): before any estimate has followed, even before a step ends that lasts for too long. When
   estimates have followed, **return** to what was verified before, if that is still believed to be better.

What the job teaches is kept, and learned from, in :mod:`tuner.knowledge`.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from ps.attention import OVERDUE
from ps.config import CommConfig
from ps.stats import Observation
from tuner.belief import Array, Belief
from tuner.caution import Refusals, is_far, is_smaller, within_reach
from tuner.change import NETWORK, STEP, Watch, felt, is_only_slower
from tuner.choice import Choice, Setting, certain_gains
from tuner.interface import Proposal, Tuner
from tuner.knowledge import MAX_SAMPLES, Knowledge, doubted
from tuner.predictor import Predictor, RulePredictor, Sample
from tuner.purse import Purse
from tuner.refinement import Refinement
from tuner.rounds import Round, Rounds
from tuner.scatter import Scatter
from tuner.situation import Situation
from tuner.steps import StepMeter, StepTime
from tuner.trial import MOST_ROUNDS, VERDICT_ROUNDS, Outcome, Trial, Verdict

__all__ = ["AutoByteTuner"]

#: An estimate that jumps within so many rounds after the step time has only followed the same change.
SAME_CHANGE_ROUNDS = 3
#: So many first rounds with steps are not looked at: the first steps of a job are like no others.
SKIPPED_ROUNDS = 1
#: Nothing smaller is tried before rounds were compared so many times.
LEAST_COMPARED = 2
#: A step that does not end is fled from at most once in so many seconds: it may have had reasons of its own.
FLEE_SECONDS = 20.0
#: What a trial has to promise doubles with each one in a row that gains less than this, so many times at most.
FUTILE_GAIN = 0.01
MAX_DOUBLINGS = 5
#: What was measured for so many rounds is remembered for when these conditions come back.
NOTED_ROUNDS = 3
#: A situation is made of so many latest rounds, and a step time of so many.
SITUATION_ROUNDS = 4
TIMED_ROUNDS = 10
#: Where nothing has changed for as many, a search comes with each of so many rounds: of 64 workers it takes 10 ms.
SETTLED_EACH = 4
#: No step time is believed to be more exact than this.
LEAST_NOISE = 0.005
#: What was measured before a change is doubted by this part of the change (of the logarithm).
DOUBT = 0.5
#: Exploration begins after so many rounds in which nothing changed, and when rounds were compared so many times.
EXPLORING_ROUNDS = 4
EXPLORING_COMPARED = 5
#: What was left in a retreat is returned to after so many rounds in which nothing changed.
RETURN_ROUNDS = 3
#: ... if it is believed to gain as much, and more than a deviation.
LEAST_RETURN = 0.03
#: A slow-down by this factor under a configuration smaller than the start's ends it at once, and a step that changes by
#: it during a trial makes that void.
RETREAT_FACTOR = 1.3
#: Steps whose noise is large jump when they change by so many times that.
JUMP_NOISES = 4.0
#: A trial is void when what has changed meanwhile may be felt more than this, and than this part of what is expected.
LEAST_VOID, VOID_PART = 0.05, 0.5
#: What is larger never loses more than this (of the logarithm): conditions have changed, and what was in force before,
#: if smaller than the start's, is not safe any more.
MOST_LOSS = math.log(1.3)


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
    refinement
        Simulates the job beside it; None: nobody does.

    Examples
    --------
    >>> from ps.config import CommConfig
    >>> AutoByteTuner(CommConfig()).propose(now=0.0)  # nothing is known yet: keep what is in force
    """

    def __init__(
        self, config: CommConfig, predictor: Optional[Predictor] = None, refinement: Optional[Refinement] = None
    ) -> None:
        self._start = self._config = replace(config, epoch=0)
        self._choice = Choice(self._start)
        self._knowledge = Knowledge(predictor or RulePredictor(), self._choice.candidates, refinement)
        self._refusals = Refusals()
        self._scatter = Scatter()
        self._watch = Watch()
        self._collecting = Rounds()
        self._rounds: list[Round] = []  # under the configuration in force, since conditions changed
        self._trial: Optional[Trial] = None
        self._void = False  # whether the network has changed during the trial
        self._taken_back: Optional[tuple[Trial, StepTime]] = None  # and not learned from yet
        self._change = ""  # what has changed since the last proposal
        self._mixed = False  # whether the first round may be partly of before a change
        self._after = False  # whether the rounds began with a change of the step time
        self._retreat = False
        self._overdue = False  # whether a step lasts far too long, under something smaller than the start's
        self._flee_at = -math.inf  # not before
        self._check = False  # whether the start's configuration is to be tried
        self._resume: Optional[CommConfig] = None  # what an earlier run of the job has ended with
        self._left: Optional[CommConfig] = None  # what was in force before a retreat
        self._futile = 0  # trials in a row that brought nothing
        self._purse = Purse()
        self._to_skip = SKIPPED_ROUNDS
        self._heard = False  # whether a round has closed since it was last asked
        self._unsearched = 0  # rounds since the last search

    def observe(self, observations: Sequence[Observation]) -> None:
        for closed in self._collecting.add(observations):
            self._take(closed)
        self._overdue = is_smaller(self._config, self._start) and any(seen.overdue_seconds for seen in observations)

    def propose(self, now: float) -> Optional[Proposal]:
        self._purse.fill(now)
        if self._overdue and now >= self._flee_at:
            return self._flee(now)
        if self._trial is not None:
            if self._trial.began is None:  # the decision itself may have taken long
                self._trial = self._trial._replace(began=now)
            return self._give_up(self._trial) if self._void else self._judge(self._trial, now)
        if not self._heard or self._scatter.rounds < 1:
            return None
        self._heard = False
        self._unsearched += 1
        if self._settled and self._unsearched < SETTLED_EACH:
            return None
        situation, present = self._situation(), self._time()
        if situation is None or present is None:
            return None
        self._unsearched = 0
        if self._taken_back is not None:
            if len(self._rounds) < VERDICT_ROUNDS:
                return None
            self._knowledge.learn_from_loss(*self._taken_back, present)
            self._taken_back = None
        return self._search(situation, present)

    @property
    def _settled(self) -> bool:
        """Whether nothing has changed for so long that the next round will say nothing new."""
        return len(self._rounds) == TIMED_ROUNDS and not self._check and self._taken_back is None

    # -------------------------------------------------------------------------------- what is known

    def _take(self, closed: Round) -> None:
        situation = Situation.from_observations(closed.observations, self._config)
        if situation is None:
            return
        if self._to_skip > 0:  # the first steps of a job are like no others
            self._to_skip -= bool(closed.steps)
            return
        self._heard = True
        if self._mixed and closed.steps:
            self._rounds.clear()
            self._mixed = False
        self._rounds.append(closed)
        del self._rounds[:-TIMED_ROUNDS]
        self._refusals.pass_time(closed.seconds)
        noise = self._scatter.noise(closed.steps)
        changed = self._watch.add(situation, noise)
        jumped = abs(math.log(changed.get(STEP, 1.0))) > max(math.log(RETREAT_FACTOR), JUMP_NOISES * noise)
        if NETWORK & changed.keys() or jumped:
            self._scatter.restart()
        if situation.step_seconds:
            self._scatter.add(situation.step_seconds, closed.steps)
        if changed:
            feels = sum(felt(name, changed[name], situation) for name in NETWORK & changed.keys())
            self._reopen(changed, closed, jumped, feels)

    def _reopen(self, changed: dict[str, float], closed: Round, jumped: bool, feels: float) -> None:
        self._change = ", ".join(f"{name} {ratio:.0%} of what it was" for name, ratio in changed.items())
        self._knowledge.doubt(DOUBT * sum(abs(math.log(ratio)) for ratio in changed.values()))
        network = bool(NETWORK & changed.keys())
        self._retreat = jumped and is_far(self._config, self._start) and not is_only_slower(changed)
        self._check = True
        if self._trial is not None:
            hidden = feels > max(LEAST_VOID, VOID_PART * abs(self._trial.predicted))
            self._void = self._void or hidden or jumped
        else:
            network = network or changed.keys() != {STEP}
            self._taken_back = None
            if STEP in changed or not (self._after and len(self._rounds) <= SAME_CHANGE_ROUNDS):
                self._rounds = [closed]
                self._mixed = True
                self._after = STEP in changed
        if network:
            self._refusals.forget()
            self._purse.cancel()
            self._futile = 0

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
        time = StepTime(time.seconds, max(time.noise, self._scatter.noise(self._steps)))
        return doubted(time, LEAST_NOISE)

    @property
    def _steps(self) -> int:
        """Under the configuration in force, since conditions changed."""
        return sum(closed.steps for closed in self._rounds)

    @property
    def _most_exact(self) -> float:
        """The noise that steps still have in a trial that lasts as long as one may."""
        return self._scatter.noise(MOST_ROUNDS * self._rounds[-1].steps if self._rounds else MOST_ROUNDS)

    def _setting(self, belief: Belief, situation: Situation, present: StepTime) -> Setting:
        known = self._knowledge.exact(situation, present)
        return Setting(
            present=self._config,
            known=np.array([candidate in known for candidate in self._choice.candidates]),
            allowed=self._allowed(belief, known),
            noise=math.hypot(self._scatter.noise(self._steps), self._most_exact),
            demand=2.0 ** min(self._futile, MAX_DOUBLINGS),
            step_seconds=present.seconds,
            purse_seconds=self._purse.seconds,
        )

    def _allowed(self, belief: Belief, known: set[CommConfig]) -> Array:
        """Return whether each candidate may be tried now."""
        down = self._scatter.rounds >= LEAST_COMPARED

        def allowed(candidate: CommConfig, certain: bool) -> bool:
            if candidate in (self._config, self._start):
                return True
            if not self._refusals.allow(candidate, measured=candidate in known):
                return False
            within = within_reach(candidate, self._config, self._start, certain)
            return candidate in known or (within and (down or not is_smaller(candidate, self._config)))

        certain = certain_gains(belief)
        return np.array([allowed(*each) for each in zip(self._choice.candidates, certain)])

    # ------------------------------------------------------------------------------------ the search

    def _search(self, situation: Situation, present: StepTime) -> Optional[Proposal]:
        if len(self._rounds) >= NOTED_ROUNDS:
            self._knowledge.note(situation, present)
        if self._mixed:  # whatever is predicted now is partly of before the change
            return self._go_back(self._config) if self._retreat else None
        belief = self._knowledge.belief(situation, present)
        setting = self._setting(belief, situation, present)
        best = self._choice.probable(belief, setting) if self._purse.open else None
        if best is not None:
            self._retreat, self._resume, self._left = False, None, None
            return self._switch(best, belief, situation, present)
        if self._retreat:
            return self._go_back(self._config)
        if not self._purse.open:
            return None
        if self._resume is not None:
            return self._go_on(belief, situation, present)
        if self._left is not None and len(self._rounds) >= RETURN_ROUNDS:
            returned = self._return(self._left, belief, setting, situation, present)
            if returned is not None:
                return returned
        if self._check:
            self._check = False
            start = self._choice.start(belief, setting)
            if start is not None:
                return self._switch(start, belief, situation, present, "against the start's; ")
        if len(self._rounds) >= EXPLORING_ROUNDS and self._scatter.rounds >= EXPLORING_COMPARED:
            promising = self._choice.promising(belief, setting)
            if promising is not None:
                return self._switch(promising, belief, situation, present, "exploring; ")
        return None

    def _go_on(self, belief: Belief, situation: Situation, present: StepTime) -> Optional[Proposal]:
        """Try what an earlier run of the job has ended with, unless the predictor knows better."""
        config, self._resume = self._resume, None
        candidates = self._choice.candidates
        index = candidates.index(config) if config in candidates else -1
        if index < 0 or config == self._config or belief.mean[index] + belief.deviation[index] < 0:
            return None
        return self._switch(index, belief, situation, present, "where the last run of the job ended; ")

    def _return(
        self, left: CommConfig, belief: Belief, setting: Setting, situation: Situation, present: StepTime
    ) -> Optional[Proposal]:
        index = self._choice.candidates.index(left)
        if not setting.allowed[index]:
            return None
        self._left = None
        if belief.mean[index] <= max(LEAST_RETURN, belief.deviation[index]):
            return None
        return self._switch(index, belief, situation, present, "what was in force before; ")

    def _switch(self, index: int, belief: Belief, situation: Situation, present: StepTime, why: str = "") -> Proposal:
        config, gain, spread = self._choice.candidates[index], float(belief.mean[index]), float(belief.deviation[index])
        safe = config == self._start
        self._trial = Trial(self._config, config, present, situation, gain, spread, safe)
        self._void = False
        return self._put_in_force(config, f"{why}gain {gain:+.1%} ± {spread:.1%} expected", gain)

    def _go_back(self, verified: CommConfig, why: str = "back to the start's before more is known") -> Proposal:
        self._left = None if verified == self._start else verified
        return self._put_in_force(self._start, why)

    def _flee(self, now: float) -> Proposal:
        """Do not even wait for the end of the step."""
        self._flee_at = now + FLEE_SECONDS
        verified = self._config
        if self._trial is not None:
            self._refusals.put_off(self._trial.config, self._trial.before)
            verified = self._trial.before
            self._trial, self._void = None, False
        proposal = self._go_back(verified)
        self._knowledge.doubt(math.log(OVERDUE))
        return proposal

    def _put_in_force(self, config: CommConfig, why: str, predicted: Optional[float] = None) -> Proposal:
        self._knowledge.keep(self._config, self._time())
        known = self._knowledge.take(config)
        self._watch.switched(None if known is None else known.seconds)
        self._config = config
        self._rounds.clear()
        self._scatter.restart()
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
        after, steps = self._time(), self._steps
        verdict = trial.verdict(after, len(self._rounds), steps, now, self._most_exact)
        if verdict is None:
            return None
        self._trial = None
        self._refusals.judged()
        if verdict.outcome is Outcome.KEEP:
            return self._keep(trial, verdict)
        if not trial.smaller and (verdict.gain or 0.0) < -MOST_LOSS and is_smaller(trial.before, self._start):
            self._check = True
            return self._put_in_force(self._start, f"too slow for what is larger, the trial is void: {verdict.text}")
        self._futile += 1
        self._purse.pay(0.0 if after is None else max(0.0, after.seconds - trial.time.seconds) * steps)
        if trial.smaller:
            self._refusals.refuse(trial.config, trial.before)
        self._taken_back = None if after is None else (trial, after)
        return self._put_in_force(trial.before, f"taken back: {verdict.text}")

    def _keep(self, trial: Trial, verdict: Verdict) -> Proposal:
        gain = verdict.gain or 0.0
        self._knowledge.learn_from(trial, gain, verdict.noise)
        if gain > FUTILE_GAIN:
            self._futile = 0
        else:
            self._futile += 1
        if gain > 2 * verdict.noise:
            self._purse.earn(gain)
            if trial.smaller:
                self._refusals.gained()
        self._change = ""
        return Proposal(config=self._config, reason=f"verified: {verdict.text}")

    def _give_up(self, trial: Trial) -> Optional[Proposal]:
        """End a trial during which conditions have changed: back where that is safer, else all is measured anew."""
        self._trial, self._void = None, False
        self._check = True
        if trial.smaller:
            self._refusals.put_off(trial.config, trial.before)
            self._rounds.clear()  # of neither conditions
            if self._retreat:
                return self._go_back(trial.before)
            if is_far(trial.before, self._start):
                return self._go_back(trial.before, "the trial is void")
            return self._put_in_force(trial.before, "the trial is void")
        self._rounds = self._rounds[-1:]
        self._mixed = True
        return Proposal(config=self._config, reason=f"{self._change}: the trial is void, what is larger stays")

    # --------------------------------------------------------------------------------- over a restart

    def state(self) -> bytes:
        config = self._config if self._trial is None else self._trial.before  # what is being tried is not proven
        return msgspec.json.encode(_State(config=config, samples=self._knowledge.samples))

    def restore(self, state: bytes) -> None:
        try:
            restored = msgspec.json.decode(state, type=_State)
        except msgspec.MsgspecError as error:  # from a file that anybody may have written
            raise ValueError(f"no state of this tuner: {error}") from error
        self._knowledge.restore(restored.samples[-MAX_SAMPLES:])
        self._resume = replace(restored.config, epoch=0)
