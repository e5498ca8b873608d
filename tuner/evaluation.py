"""AutoByte against every honest baseline, over the traces of the suite, in simulation.

Each *case* is a trace, a model (on an accelerator that makes communication take about as long as computation in the
trace's first phase) and a size of the cluster. In each case the same steps, with the same noise, are played by

=====================  =================================================================================
``autobyte``           the tuner under test, its search and its errors included
``bayesian kept``      what the one-shot search finds in the first phase *before* the trace begins, then kept
``rule``               the rule, verified
``hindsight static``   the best single configuration of the space for the whole trace: nobody can know it
``phase oracle``       the best configuration of the space in every phase, switched without delay: the bound
``default``            what a job starts with: 512 KiB, 4 MiB
``4 MB / 16 MB``       a common setting by hand
``layer-wise FIFO``    one partition per shard, unlimited credit, no fusion: tensors leave as they become ready
=====================  =================================================================================

Twice: over *equal steps*, where phases change after so many steps and the times count, and in *equal wall time*,
where phases last as long as they do under the default and the steps count. A gain of 5 % means 1.05 times as fast.

**Convergence** after a change is counted in steps: the first one from which :data:`RUNNING_STEPS` steps in a row are on
average within :data:`CONVERGED` of the phase's best configuration. ``converge windows`` counts the same in windows of
a node to which nothing happens.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ps.config import MIB, CommConfig
from tuner.bayesian import BayesianTuner
from tuner.interface import Tuner
from tuner.profiles import load
from tuner.rule import RuleTuner
from tuner.space import UNSLICED, candidates
from tuner.suite import balanced, build
from tuner.thinking import Thinking
from tuner.trace import WINDOW_SECONDS, Phase, Played, StepTimes, Trace, play

__all__ = ["Case", "Evaluated", "Row", "evaluate"]

Array = npt.NDArray[np.float64]

DEFAULT = CommConfig()
FOUR_SIXTEEN = CommConfig(partition_bytes=4 * MIB, credit_bytes=16 * MIB)
FIFO = CommConfig(partition_bytes=UNSLICED.partition_bytes, credit_bytes=UNSLICED.credit_bytes, fusion_bytes=0)
STATIC: Mapping[str, CommConfig] = {"default": DEFAULT, "4 MB / 16 MB": FOUR_SIXTEEN, "layer-wise FIFO": FIFO}
#: A one-shot search gets as many steps as it needs in the conditions of the first phase.
SEARCH_STEPS = 2000
#: The mean phase lasts so long at least: links and neighbours do not change ten times per second.
LEAST_PHASE_SECONDS = 20.0
#: Converged: so many steps in a row are on average this near to the phase's best.
RUNNING_STEPS = 5
CONVERGED = 0.03
#: The speed during convergence is averaged over so many steps.
AVERAGED_STEPS = 20


class Case(NamedTuple):
    """What is played."""

    trace: str
    model: str
    num_workers: int
    num_servers: int
    seed: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of one case.

    Attributes
    ----------
    seconds
        Of all steps, by policy.
    steps
        In equal wall time, by policy.
    worst_speed
        The lowest speed of AutoByte over that of the default, averaged over 20 steps.
    excess
        Of each phase, how much longer AutoByte's steps took than the phase's best after the first 20 steps.
    converge_steps, converge_windows
        Of each phase; None where it never did.
    speedups
        Of AutoByte's switches, predicted and measured.
    """

    trace: str
    model: str
    num_workers: int
    num_servers: int
    seed: int
    seconds: dict[str, float]
    steps: dict[str, float]
    switches: int
    worst_speed: float
    excess: list[float]
    converge_steps: list[Optional[int]]
    converge_windows: list[Optional[float]]
    speedups: list[tuple[Optional[float], Optional[float]]]

    @property
    def case(self) -> Case:
        return Case(self.trace, self.model, self.num_workers, self.num_servers, self.seed)

    def gain(self, policy: str) -> float:
        """Return how much faster AutoByte was over equal steps, as a part: 0.05 is 5 % faster."""
        return self.seconds[policy] / self.seconds["autobyte"] - 1

    def gain_in_time(self, policy: str) -> float:
        """Return how many more steps AutoByte did in equal wall time, as a part."""
        return self.steps["autobyte"] / self.steps[policy] - 1


class Evaluated(NamedTuple):
    """One case: what came out, and for plots the steps of AutoByte, of the best and of the default of their phases."""

    row: Row
    played: Played
    best: Array
    default: Array


def evaluate(
    case: Case,
    autobyte: Callable[[CommConfig], Tuner],
    window_seconds: float = WINDOW_SECONDS,
    thinking: Optional[Thinking] = None,
) -> Evaluated:
    """Play one case.

    Parameters
    ----------
    autobyte
        Makes the tuner under test for a job that starts with a configuration.
    thinking
        What those tuners simulate with; None: they do not.
    """
    trace = build(case.trace, case.num_workers, case.num_servers, case.seed)
    first = trace.phases[0].conditions
    times = StepTimes(balanced(load(case.model), first))
    trace = trace.lasting(times.of(first, DEFAULT).step_seconds, LEAST_PHASE_SECONDS)
    space = candidates(DEFAULT)
    grid = _grid(trace, times, [*space, *STATIC.values()])
    best, default = grid[:, : len(space)].min(axis=1), grid[:, len(space)]
    kept = _one_shot(trace, times, case.seed)

    def player(tuner: Tuner, over: Trace) -> Played:
        return play(tuner, over, times.profile, DEFAULT, case.seed, times, window_seconds, thinking)

    seconds, steps = {}, {}
    counts = np.array([phase.steps for phase in trace.phases])
    timed = trace.timed(default.tolist())
    lengths = counts * default
    played = player(autobyte(DEFAULT), trace)
    for name, made in (("autobyte", played), ("rule", player(RuleTuner(DEFAULT), trace))):
        seconds[name] = made.total_seconds
    steps["autobyte"] = float(len(player(autobyte(DEFAULT), timed).step_seconds))
    steps["rule"] = float(len(player(RuleTuner(DEFAULT), timed).step_seconds))
    # All others would have had the same noise in their steps.
    noise = _noise(trace, times, played)
    totals: dict[str, Array] = {name: grid[:, len(space) + index] for index, name in enumerate(STATIC)}
    totals["bayesian kept"] = grid[:, space.index(kept)]
    totals["hindsight static"] = grid[:, int((counts[:, None] * grid[:, : len(space)]).sum(axis=0).argmin())]
    totals["phase oracle"] = best
    for name, each in totals.items():
        seconds[name] = float((each[played.phases] * noise).sum())
        steps[name] = float((lengths / each).sum())
    fastest = (lengths[:, None] / grid[:, : len(space)]).sum(axis=0)
    steps["hindsight static"] = float(fastest.max())
    converge = [_converge(played, number, best[number]) for number in range(len(trace.phases))]
    row = Row(
        **case._asdict(),
        seconds=seconds,
        steps=steps,
        switches=len(played.configs) - 1,
        worst_speed=_worst_speed(played.step_seconds, default[played.phases] * noise),
        excess=[_excess(played, number, best[number]) for number in range(len(trace.phases))],
        converge_steps=converge,
        converge_windows=[_windows(played, number, step, window_seconds) for number, step in enumerate(converge)],
        speedups=[(made.predicted_speedup, made.measured_speedup) for made in played.decisions if made.step >= 0],
    )
    return Evaluated(row, played, best[played.phases], default[played.phases])


def _grid(trace: Trace, times: StepTimes, configs: Sequence[CommConfig]) -> Array:
    """Return the step time of each phase under each configuration."""
    return np.array([[times.of(phase.conditions, c).step_seconds for c in configs] for phase in trace.phases])


def _one_shot(trace: Trace, times: StepTimes, seed: int) -> CommConfig:
    """Return what the one-shot search keeps, which runs in the first phase's conditions, before the work."""
    before = msgspec.structs.replace(trace, phases=(Phase(trace.phases[0].conditions, SEARCH_STEPS),))
    found = play(BayesianTuner(DEFAULT, seed=seed), before, times.profile, DEFAULT, seed, times).configs[-1]
    return msgspec.structs.replace(found, epoch=0)


def _noise(trace: Trace, times: StepTimes, played: Played) -> Array:
    """Return the factor by which each step took longer than was simulated."""
    exact = [
        times.of(trace.phases[phase].conditions, played.configs[epoch]).step_seconds
        for phase, epoch in zip(played.phases.tolist(), played.epochs.tolist())
    ]
    return np.asarray(played.step_seconds / np.array(exact))


def _running(seconds: Array, steps: int) -> Array:
    """Return the mean of every ``steps`` steps in a row; of all, where there are fewer."""
    steps = min(steps, len(seconds))
    return np.convolve(seconds, np.full(steps, 1 / steps), "valid")


def _worst_speed(seconds: Array, default: Array) -> float:
    return float((_running(default, AVERAGED_STEPS) / _running(seconds, AVERAGED_STEPS)).min())


def _excess(played: Played, phase: int, best_seconds: float) -> float:
    settled = played.step_seconds[played.phases == phase][AVERAGED_STEPS:]
    return float(settled.mean() / best_seconds - 1) if settled.size else math.nan


def _converge(played: Played, phase: int, best_seconds: float) -> Optional[int]:
    means = _running(played.step_seconds[played.phases == phase], RUNNING_STEPS)
    near = np.flatnonzero(means <= (1 + CONVERGED) * best_seconds)
    return int(near[0]) if near.size else None


def _windows(played: Played, phase: int, step: Optional[int], window_seconds: float) -> Optional[float]:
    if step is None:
        return None
    return float(played.step_seconds[played.phases == phase][:step].sum() / window_seconds)
