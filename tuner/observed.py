"""What the nodes of a simulated job would report, with estimates that are wrong as real ones are.

The same :class:`~tuner.situation.Situation` is made of it as of a running job's reports, so a tuner, a data set and a
test see a simulated job through the eyes of its nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from ps.config import CommConfig, Role
from ps.stats import MAX_LAYERS, Estimate, LayerGroup, Observation
from tuner.conditions import Conditions, Host
from tuner.profiles import ModelProfile
from tuner.simulator import Simulated
from tuner.situation import Situation

__all__ = ["EstimateErrors", "observations_of", "situation_of"]

#: Bandwidth is estimated this many times more exactly than latency and overhead.
BANDWIDTH_EXACTNESS = 8.0
#: Beside the error that all hosts share, each has one of its own that is this many times smaller.
HOST_EXACTNESS = 4.0
#: No thread costs less per byte.
LEAST_BYTE_SECONDS = 1e-13
#: What nodes say of their own spread; the true errors are not known to them.
STATED_SAMPLES = 9


class EstimateErrors(NamedTuple):
    """Factors by which a job's estimates are wrong; they stay for as long as the job's conditions do.

    ``spread`` is what the nodes state as the spread of latency and overhead, ``host`` that of each host's own error.
    """

    bandwidth: float = 1.0
    latency: float = 1.0
    overhead: float = 1.0
    spread: float = 0.0
    host: float = 0.0

    @classmethod
    def draw(cls, rng: np.random.Generator, spread: float) -> EstimateErrors:
        """Draw errors: latency and overhead with ``spread`` (of the logarithm), bandwidth more exactly."""
        bandwidth, latency, overhead = np.exp(
            rng.normal(size=3) * np.array([spread / BANDWIDTH_EXACTNESS, spread, spread])
        )
        return cls(float(bandwidth), float(latency), float(overhead), spread, spread / HOST_EXACTNESS)


def observations_of(
    profile: ModelProfile,
    conditions: Conditions,
    config: CommConfig,
    simulated: Simulated,
    rng: np.random.Generator,
    errors: Optional[EstimateErrors] = None,
    window_seconds: float = 1.0,
    steps: Optional[int] = None,
    step_seconds: Optional[float] = None,
    overdue_seconds: Optional[float] = None,
) -> list[Observation]:
    """Return what all nodes would report of a window in which steps went as in ``simulated``.

    Parameters
    ----------
    conditions
        What the estimates are of; they may lag behind those of ``simulated``.
    window_seconds
        The window is this long, or one step if ``steps`` is not given and that takes longer.
    steps, step_seconds
        How many steps ended in the window, and their median; None: as many and as long as ``simulated`` says. Workers
        step together, so all report alike.
    overdue_seconds
        How long the step in progress has lasted, where that is too long.
    """
    errors = errors or EstimateErrors()
    if steps is None:
        window_seconds = max(window_seconds, simulated.step_seconds)
        steps, step_seconds = int(window_seconds / simulated.step_seconds), simulated.step_seconds
    model_bytes, num_workers, num_servers = profile.model_bytes, conditions.num_workers, conditions.num_servers
    passed = window_seconds / simulated.step_seconds  # bytes flow whether or not a step ends
    moved_bytes = int(model_bytes * passed)

    def estimates(host: Host) -> dict[str, Any]:
        own = np.exp(rng.normal(size=3) * errors.host)
        wire = errors.bandwidth * float(own[0]) ** (1 / BANDWIDTH_EXACTNESS)
        exact = errors.spread / BANDWIDTH_EXACTNESS
        latency = conditions.latency_seconds * errors.latency * float(own[1])
        overhead = host.overhead_seconds * errors.overhead * float(own[2])
        per_byte = host.byte_seconds * errors.overhead * float(own[2])
        return {
            "bandwidth_bytes_per_second": Estimate(host.send_bytes_per_second * wire, exact, STATED_SAMPLES),
            "receive_bandwidth_bytes_per_second": Estimate(host.receive_bytes_per_second * wire, exact, STATED_SAMPLES),
            "latency_seconds": Estimate(latency, errors.spread, STATED_SAMPLES) if latency > 0 else None,
            "overhead_seconds": Estimate(overhead, errors.spread, STATED_SAMPLES) if overhead > 0 else None,
            "byte_seconds": Estimate(max(per_byte, LEAST_BYTE_SECONDS), errors.spread, STATED_SAMPLES),
        }

    def seen(role: Role, rank: int, host: Host, **told: Any) -> Observation:
        return Observation(
            role=role,
            rank=rank,
            epoch=config.epoch,
            window_seconds=window_seconds,
            num_workers=num_workers,
            num_servers=num_servers,
            **estimates(host),
            **told,
        )

    workers = [
        seen(
            Role.WORKER,
            rank,
            host,
            steps=steps,
            step_seconds=step_seconds,
            overdue_seconds=overdue_seconds,
            # computation alone, as a worker tells; the simulator's has the waiting in it
            forward_seconds=profile.forward_seconds / host.speed if steps else None,
            backward_seconds=profile.backward_seconds / host.speed if steps else None,
            tensors=len(profile.tensors),
            tensor_bytes=tuple(tensor.size_bytes for tensor in profile.tensors) if rank == 0 else (),
            layers=_layers_of(profile, host.speed) if rank == 0 else (),
            model_bytes=model_bytes,
            bytes_sent=moved_bytes,
            bytes_received=moved_bytes,
            messages_sent=int(simulated.messages * passed),
            partitions_sent=int(simulated.partitions * passed),
            queue_wait_seconds=simulated.queue_wait_seconds,
            credit_stall_seconds=min(window_seconds, simulated.credit_stall_seconds * passed),
            ack_seconds=simulated.ack_seconds,
        )
        for rank, host in enumerate(conditions.workers)
    ]
    share_bytes = moved_bytes * num_workers // num_servers
    servers = [
        seen(
            Role.SERVER,
            rank,
            host,
            bytes_sent=share_bytes,
            bytes_received=share_bytes,
            sum_bytes=share_bytes,
            sum_seconds=share_bytes / (conditions.sum_bytes_per_second * host.speed),
        )
        for rank, host in enumerate(conditions.servers)
    ]
    return [*workers, *servers]


def _layers_of(profile: ModelProfile, speed: float) -> tuple[LayerGroup, ...]:
    """Return the model in groups of neighbours, as a worker that computes with this speed describes it."""
    size = -(-len(profile.tensors) // MAX_LAYERS)
    groups = [profile.tensors[first : first + size] for first in range(0, len(profile.tensors), size)]
    return tuple(
        LayerGroup(
            len(group),
            sum(tensor.size_bytes for tensor in group),
            round(1e6 / speed * sum(tensor.forward_seconds for tensor in group)),
            round(1e6 / speed * sum(tensor.backward_seconds for tensor in group)),
        )
        for group in groups
    )


def situation_of(
    profile: ModelProfile,
    conditions: Conditions,
    config: CommConfig,
    simulated: Simulated,
    rng: np.random.Generator,
    estimate_spread: float = 0.0,
) -> Situation:
    """Return what would be known of a simulated job: one window of every node, with errors drawn from ``rng``.

    ``estimate_spread`` is the standard deviation of the logarithm of the latency's and the overhead's error.
    """
    errors = EstimateErrors.draw(rng, estimate_spread)
    observations = observations_of(profile, conditions, config, simulated, rng, errors)
    situation = Situation.from_observations(observations, config)
    assert situation is not None  # there is at least one worker
    return situation
