"""What a node has seen in one window, as it is sent to the tuner.

An :class:`Observation` is a plain value: counters turned into rates and percentiles, tagged with the epoch of
the configuration under which they were taken. Seconds, bytes and bytes per second throughout; a quantity that
could not be observed in the window is None, never a made-up zero.
"""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from ps.config import Role

__all__ = ["Estimate", "LayerGroup", "Observation", "MAX_LAYERS"]

#: A model with more tensors is described in so many groups of neighbours.
MAX_LAYERS = 64


class Estimate(msgspec.Struct, array_like=True, frozen=True):
    """A measured quantity: its value, relative spread (standard deviation of its logarithm), and number of samples."""

    value: float
    spread: float
    samples: int


class LayerGroup(msgspec.Struct, array_like=True, frozen=True):
    """Tensors that are neighbours in forward order; whole microseconds, to be short on the wire."""

    tensors: int
    size_bytes: int
    forward_microseconds: int  #: computation of the layers that these tensors belong to
    backward_microseconds: int  #: computation that ends with their gradients

    @property
    def forward_seconds(self) -> float:
        return self.forward_microseconds / 1e6

    @property
    def backward_seconds(self) -> float:
        return self.backward_microseconds / 1e6


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One node's view of one window."""

    role: Role
    rank: int
    epoch: int
    window_seconds: float
    num_workers: int
    num_servers: int

    # workers: training
    steps: int = 0  #: training steps that ended in the window
    step_seconds: Optional[float] = None  #: median duration of those steps
    forward_seconds: Optional[float] = None
    backward_seconds: Optional[float] = None
    layers: Annotated[tuple[LayerGroup, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()  #: in forward order
    tensors: int = 0  #: number of tensors pushed per step, as known so far
    model_bytes: int = 0  #: bytes pushed per step, as known so far
    tensor_bytes: tuple[int, ...] = ()  #: size of each tensor in forward order; one worker of a job tells

    # both: communication
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    partitions_sent: int = 0
    queue_wait_seconds: Optional[float] = None  #: mean time of a partition between entering the queue and leaving it
    credit_stall_seconds: float = 0.0  #: time in which work was queued and no link had credit
    ack_seconds: Optional[float] = None  #: median round trip from send to acknowledgement
    bandwidth_bytes_per_second: Optional[Estimate] = None  #: of this host's sending side
    latency_seconds: Optional[Estimate] = None  #: one way
    overhead_seconds: Optional[Estimate] = None  #: CPU time of the communication thread per message
    byte_seconds: Optional[Estimate] = None  #: CPU time of the communication thread per byte, on top of the overhead
    cpu_seconds: float = 0.0  #: CPU time of the whole process in the window

    # servers
    sum_bytes: int = 0
    sum_seconds: float = 0.0  #: time spent in summation
    nonfinite: int = 0  #: elements of gradients or their sums that were infinite or no number, since the start
    malformed: int = 0  #: frames dropped as malformed, since the start
