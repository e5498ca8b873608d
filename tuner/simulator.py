"""One training step on a virtual clock."""

from __future__ import annotations

from typing import Sequence, Union

import msgspec

from ps.config import CommConfig
from tuner.conditions import Conditions
from tuner.profiles import ModelProfile

__all__ = ["Simulated", "simulate"]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a simulated run; unless said otherwise the mean over workers and over all steps but the first.

    Attributes
    ----------
    step_seconds
        From the end of one forward pass to the end of the next.
    worker_step_seconds
        The same of each worker.
    first_tensor_seconds
        From the gradient of the first tensor, which is the last one of the backward pass, to its sum.
    forward_seconds
        As a job reports it: from the arrival of the first tensor to the end of the pass, waits for others included.
    backward_seconds
        Computation alone.
    queue_wait_seconds
        Mean time of a worker's partition between entering the queue and leaving it.
    credit_stall_seconds
        Time per step in which a worker had work queued and could send none of it.
    ack_seconds
        Median round trip of the workers' messages from send to acknowledgement.
    messages, partitions
        Sent per worker and step.
    thread_seconds
        Time per step that a worker's communication thread worked.
    events
        Of the whole run.
    """

    step_seconds: float
    worker_step_seconds: tuple[float, ...]
    first_tensor_seconds: float
    forward_seconds: float
    backward_seconds: float
    queue_wait_seconds: float
    credit_stall_seconds: float
    ack_seconds: float
    messages: float
    partitions: float
    thread_seconds: float
    events: int


def simulate(
    profile: ModelProfile, conditions: Conditions, config: Union[CommConfig, Sequence[CommConfig]], steps: int = 3
) -> Simulated:
    """Return what ``steps`` training steps are like.

    Parameters
    ----------
    config
        Of all nodes; or one per worker, where the servers use the first; or one per worker and server, in this order.
    """
    raise NotImplementedError
