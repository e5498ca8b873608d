"""A job whose step time is a function of the configuration, and a predictor that believes another such function."""

from __future__ import annotations

import math
import random
from typing import Callable, NamedTuple, Optional, Sequence

import numpy as np
from msgspec.structs import replace

from ps.config import CommConfig, Role
from ps.stats import Estimate, Observation
from tuner.interface import Proposal, Tuner
from tuner.predictor import Prediction, Sample
from tuner.situation import Situation

Seconds = Callable[[CommConfig], float]


class Job:
    """Two workers and a server; what they are and see may be changed at any time."""

    def __init__(self, seconds: Seconds, noise: float = 0.0, seed: int = 0) -> None:
        self.seconds = seconds
        self.noise = noise
        self.bandwidth = 1.25e9
        self.latency = 50e-6
        self.overhead = 100e-6
        self.stuck = False  # no step ends
        self._random = random.Random(seed)

    def window(self, config: CommConfig) -> list[Observation]:
        """Return what all nodes see in a second under ``config``."""
        step = self.seconds(config) * math.exp(self._random.gauss(0, self.noise))

        def seen(role: Role, rank: int, steps: int, step_seconds: Optional[float]) -> Observation:
            return Observation(
                role=role,
                rank=rank,
                epoch=0,
                window_seconds=1.0,
                num_workers=2,
                num_servers=1,
                steps=steps,
                step_seconds=step_seconds,
                tensors=50,
                model_bytes=100_000_000,
                bandwidth_bytes_per_second=Estimate(self.bandwidth, 0.01, 9),
                latency_seconds=Estimate(self.latency, 0.1, 16),
                overhead_seconds=Estimate(self.overhead, 0.05, 20),
            )

        steps, seconds = (0, None) if self.stuck else (max(1, int(1 / step)), step)
        return [
            seen(Role.WORKER, 0, steps, seconds),
            seen(Role.WORKER, 1, steps, seconds),
            seen(Role.SERVER, 0, 0, None),
        ]


class Believer:
    """A predictor that believes in step times, and remembers what it was taught."""

    def __init__(self, seconds: Seconds, spread: float = 0.01) -> None:
        self.seconds = seconds
        self.spread = spread
        self.samples: Sequence[Sample] = ()

    def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
        present = self.seconds(situation.config)
        gains = [math.log(present / self.seconds(candidate)) for candidate in candidates]
        spreads = [0.0 if candidate == situation.config else self.spread for candidate in candidates]
        return Prediction(np.array(gains), np.array(spreads))

    def fine_tune(self, samples: Sequence[Sample]) -> None:
        self.samples = tuple(samples)


class Told(NamedTuple):
    """A proposal, and the window after which it came."""

    window: int
    proposal: Proposal


class Host:
    """Hosts a tuner, one window after the other."""

    def __init__(self, tuner: Tuner, job: Job, config: CommConfig) -> None:
        self.tuner = tuner
        self.job = job
        self.config = config
        self.windows = 0
        self.told: list[Told] = []
        self.history: list[CommConfig] = []

    def run(self, windows: int) -> list[Told]:
        """Let so many windows pass; return what was proposed in them."""
        before = len(self.told)
        for _ in range(windows):
            self.tuner.observe(self.job.window(self.config))
            self.history.append(self.config)
            proposal = self.tuner.propose(float(self.windows))
            self.windows += 1
            if proposal is not None:
                self.told.append(Told(self.windows, proposal))
                self.config = replace(proposal.config, epoch=self.config.epoch)
        return self.told[before:]

    @property
    def seconds_lost(self) -> float:
        """Seconds that steps took longer than under the first configuration."""
        start = self.job.seconds(self.history[0])
        return sum(max(0.0, 1 - start / self.job.seconds(config)) for config in self.history)
