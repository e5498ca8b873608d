"""A little cluster as a formula: step time from (P, C), with a known optimum, reported as nodes would report it."""

from __future__ import annotations

import random
from typing import Optional

import msgspec

from ps.config import CommConfig, Role
from ps.stats import Estimate, Observation
from tuner.interface import Tuner
from tuner.rule import Network
from tuner.space import candidates

NUM_WORKERS = 2


class Cluster:
    """Steps of ``compute_seconds`` whose communication is hidden as far as P and C allow.

    The bytes of the model leave with the rate that wire, messages and credit allow; a first partition and a full credit
    window stand in the way of the first tensor of the next step.
    """

    def __init__(
        self,
        network: Network,
        model_bytes: float = 100e6,
        compute_seconds: float = 0.3,
        noise: float = 0.0,
        seed: int = 0,
        estimates: Optional[Network] = None,
    ) -> None:
        self.network = network
        self.model_bytes = model_bytes
        self.compute_seconds = compute_seconds
        self.noise = noise
        self.estimates = estimates  # what the nodes believe; None: the truth
        self._random = random.Random(seed)

    def step_seconds(self, config: CommConfig) -> float:
        bandwidth, latency, overhead = self.network
        partition, credit = float(config.partition_bytes), float(config.credit_bytes)
        per_message = max(overhead, partition / bandwidth) + 0.2 * min(overhead, partition / bandwidth)
        round_trip = per_message + 2 * latency + 2.5 * overhead
        rate = min(partition / per_message, max(credit, partition) / round_trip)
        wire_seconds = self.model_bytes / rate
        exposed_seconds = min(self.model_bytes, credit + 2 * partition) / bandwidth
        return max(self.compute_seconds, wire_seconds) + exposed_seconds

    def best_seconds(self, like: CommConfig) -> float:
        return min(self.step_seconds(config) for config in candidates(like))

    def window(self, config: CommConfig, seconds: float = 1.0) -> list[Observation]:
        """Return what all nodes report after a window under ``config``."""
        step = self.step_seconds(config)
        seen = self.estimates or self.network
        network: dict[str, object] = {
            "model_bytes": int(self.model_bytes),
            "bandwidth_bytes_per_second": Estimate(seen.bandwidth_bytes_per_second, 0.01, 5),
            "latency_seconds": Estimate(seen.latency_seconds, 0.1, 16),
            "overhead_seconds": Estimate(seen.overhead_seconds, 0.1, 10),
        }
        measured = step * self._random.lognormvariate(0, self.noise)
        workers = [worker_window(rank, measured, max(1, int(seconds / step)), **network) for rank in range(NUM_WORKERS)]
        return [*workers, msgspec.structs.replace(workers[0], role=Role.SERVER, steps=0, step_seconds=None)]


def worker_window(rank: int, step_seconds: Optional[float], steps: int, **fields: object) -> Observation:
    return Observation(
        role=Role.WORKER,
        rank=rank,
        epoch=0,
        window_seconds=1.0,
        num_workers=NUM_WORKERS,
        num_servers=1,
        steps=steps,
        step_seconds=step_seconds,
        **fields,  # type: ignore[arg-type]
    )


def play(tuner: Tuner, cluster: Cluster, config: CommConfig, windows: int, start: float = 0.0) -> list[CommConfig]:
    """Host ``tuner`` for so many windows of a second; return the configurations of the windows, and the last one."""
    history = [config]
    for window in range(windows):
        tuner.observe(cluster.window(config))
        proposal = tuner.propose(start + window)
        if proposal is not None:
            config = proposal.config
        history.append(config)
    return history
