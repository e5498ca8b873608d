"""Fits the simulator's parameters to what a real job measured, and says how far off it still is.

A job that has run under several configurations (its tuner tries some) has shown more than one step time, and these tell
apart what a single one cannot: large partitions feel the bandwidth, small ones the overhead, little credit the latency.
All hosts are taken to be alike. The parameters are fitted on a logarithmic scale: of many random ones around the start
the best few are improved by Levenberg's and Marquardt's damped least squares (Nocedal and Wright, Numerical
Optimization, chapter 10). Step times count most, what else was reported counts less, and where the measurements say
nothing about a parameter it stays what the job's own estimates say.

Needs the compiled simulator, and so the extra ``tune``.
"""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple, Optional, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ps.config import CommConfig, Role
from ps.stats import Observation
from tuner.compiled import simulate_compiled
from tuner.conditions import SUM_BYTES_PER_SECOND, Conditions
from tuner.profiles import ModelProfile

__all__ = ["Calibration", "Measurement", "Parameters", "calibrate"]

#: To which part of itself a measured figure is believed.
SPREAD = {
    "step_seconds": 0.01,
    "backward_seconds": 0.03,
    "forward_seconds": 0.15,
    "first_tensor_seconds": 0.15,
    "queue_wait_seconds": 0.15,
    "ack_seconds": 0.15,
}
#: Times below this are noise of clocks and schedulers: they count as if they were as long.
LEAST_SECONDS = 50e-6
#: Random parameters that are tried, and how many of the best are improved.
SAMPLES = 40
STARTS = 2
#: Steps of the numerical derivatives: large enough to see through the graininess of partitions, then finer.
DERIVATIVE_STEPS = (0.1, 0.02)
ITERATIONS = 8
#: The fit ends when a whole iteration gains less than this part.
LEAST_GAIN = 1e-3

Array = NDArray[np.float64]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured under one configuration; seconds, and None for what was not.

    The names are those of :class:`tuner.simulator.Simulated`.
    """

    config: CommConfig
    step_seconds: float
    first_tensor_seconds: Optional[float] = None
    forward_seconds: Optional[float] = None
    backward_seconds: Optional[float] = None
    queue_wait_seconds: Optional[float] = None
    ack_seconds: Optional[float] = None

    @classmethod
    def from_observations(cls, config: CommConfig, observations: Sequence[Observation]) -> Optional[Measurement]:
        """Return the medians of what workers reported under ``config``; None where no step ended."""
        workers = [each for each in observations if each.role is Role.WORKER and each.epoch == config.epoch]
        found = {name: _median([getattr(each, name) for each in workers]) for name in _OBSERVED}
        step_seconds = found.pop("step_seconds")
        return None if step_seconds is None else cls(config=config, step_seconds=step_seconds, **found)


_OBSERVED = ("step_seconds", "forward_seconds", "backward_seconds", "queue_wait_seconds", "ack_seconds")


class Parameters(NamedTuple):
    """What is fitted; all above 0. As spreads: the standard deviations of their logarithms."""

    compute_factor: float  #: of the profile's times
    bandwidth_bytes_per_second: float
    latency_seconds: float
    overhead_seconds: float
    byte_seconds: float

    def conditions(self, num_workers: int, num_servers: int, sum_bytes_per_second: float) -> Conditions:
        """Return the conditions in which all hosts are like this."""
        return Conditions.uniform(num_workers, num_servers, *self[1:], sum_bytes_per_second=sum_bytes_per_second)


#: How far off the start may be: estimates of bandwidth are good, all others may be wrong by a factor of three.
SPREADS = Parameters(1.0, 0.3, 1.0, 1.0, 1.0)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A simulator that does what the job did.

    Attributes
    ----------
    profile, conditions
        What to simulate with.
    parameters
        What they were made of.
    step_errors
        Simulated step time over the measured one, less 1, of each measurement.
    """

    profile: ModelProfile
    conditions: Conditions
    parameters: Parameters
    step_errors: tuple[float, ...]


def calibrate(
    profile: ModelProfile,
    num_workers: int,
    num_servers: int,
    measurements: Sequence[Measurement],
    start: Parameters,
    spreads: Parameters = SPREADS,
    sum_bytes_per_second: float = SUM_BYTES_PER_SECOND,
) -> Calibration:
    """Return the parameters under which the simulator fits ``measurements`` best.

    Parameters
    ----------
    profile
        The job's model; of its times only the proportions matter.
    start
        What the job estimates, or a guess.
    spreads
        How far from the start each may be; 0.01 keeps it.

    Raises
    ------
    ValueError
        There is no measurement.
    """
    if not measurements:
        raise ValueError("nothing to fit to: calibrate needs at least one measurement")
    problem = _Problem(profile, num_workers, num_servers, measurements, start, spreads, sum_bytes_per_second)
    parameters = Parameters(*np.exp(_search(problem)).tolist())
    fitted, conditions = problem.world(parameters)
    errors = (
        simulate_compiled(fitted, conditions, each.config).step_seconds / each.step_seconds - 1 for each in measurements
    )
    return Calibration(profile=fitted, conditions=conditions, parameters=parameters, step_errors=tuple(errors))


class _Problem(NamedTuple):
    profile: ModelProfile
    num_workers: int
    num_servers: int
    measurements: Sequence[Measurement]
    start: Parameters
    spreads: Parameters
    sum_bytes_per_second: float

    def world(self, parameters: Parameters) -> tuple[ModelProfile, Conditions]:
        conditions = parameters.conditions(self.num_workers, self.num_servers, self.sum_bytes_per_second)
        return self.profile.scaled(parameters.compute_factor), conditions

    def residuals(self, logarithms: Array) -> Array:
        """Return what is wrong with the parameters of these logarithms, each in units of what is believed."""
        profile, conditions = self.world(Parameters(*np.exp(logarithms).tolist()))
        wrong = ((logarithms - np.log(self.start)) / self.spreads).tolist()
        for measured in self.measurements:
            simulated = simulate_compiled(profile, conditions, measured.config)
            for name, spread in SPREAD.items():
                value = getattr(measured, name)
                if value is not None:
                    ratio = (getattr(simulated, name) + LEAST_SECONDS) / (value + LEAST_SECONDS)
                    wrong.append(math.log(ratio) / spread)
        return np.array(wrong)


def _search(problem: _Problem) -> Array:
    """Return the parameters, as logarithms, at which the sum of squares of the residuals is least."""

    def badness(logarithms: Array) -> float:
        residuals = problem.residuals(logarithms)
        return float(residuals @ residuals)

    start = np.log(problem.start)
    offsets = np.random.default_rng(0).normal(size=(SAMPLES, start.size)).clip(-2, 2)
    tried = sorted([start, *(start + offsets * problem.spreads)], key=badness)
    improved = []
    for at in tried[:STARTS]:
        for step in DERIVATIVE_STEPS:
            at = _improve(problem, at, step)
        improved.append(at)
    return min(improved, key=badness)


def _improve(problem: _Problem, at: Array, derivative_step: float) -> Array:
    """Return where the sum of squares of the residuals is least near ``at``."""
    residuals = problem.residuals(at)
    damping = 0.1
    for _ in range(ITERATIONS):
        before = float(residuals @ residuals)
        steps = derivative_step * np.eye(at.size)
        slopes = np.stack([(problem.residuals(at + step) - residuals) / derivative_step for step in steps], axis=1)
        normal, gradient = slopes.T @ slopes, slopes.T @ residuals
        while damping < 1e4:
            move = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            tried = at + np.clip(move, -1, 1)
            found = problem.residuals(tried)
            if found @ found < before:
                at, residuals = tried, found
                damping /= 5
                break
            damping *= 4
        if float(residuals @ residuals) > before * (1 - LEAST_GAIN):
            break
    return at


def _median(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return median(known) if known else None
