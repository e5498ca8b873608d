"""What a node has seen in one window, as it is sent to the tuner.

An :class:`Observation` is a plain value: counters turned into rates and percentiles, tagged with the epoch of
the configuration under which they were taken. Seconds, bytes and bytes per second throughout; a quantity that
could not be observed in the window is None, never a made-up zero. Its size on the wire is bounded, whatever the model
and the cluster: docs/estimates.md has the figures.
"""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from ps.config import Role

__all__ = ["Estimate", "LayerGroup", "LinkEstimate", "Observation", "MAX_LAYERS", "MAX_LINKS", "MAX_TENSORS"]

#: A model with more tensors is described in so many groups of neighbours.
MAX_LAYERS = 64
#: The sizes of so many tensors are told, the first ones of larger models.
MAX_TENSORS = 2048
#: A node with more links reports so many in a window, and others in the next one.
MAX_LINKS = 16


class Estimate(msgspec.Struct, array_like=True, frozen=True):
    """A measured quantity: its value, relative spread (standard deviation of its logarithm), and number of samples."""

    value: float
    spread: float
    samples: int


class LinkEstimate(msgspec.Struct, array_like=True, frozen=True):
    """What is known of one link; None where it cannot be told from the host's other links."""

    peer: int  #: rank of the other end: a server for a worker, a worker for a server
    bandwidth_bytes_per_second: Optional[Estimate] = None  #: sending
    receive_bandwidth_bytes_per_second: Optional[Estimate] = None
    latency_seconds: Optional[Estimate] = None  #: one way


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


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    overdue_seconds: Optional[float] = None  #: how long the step in progress has lasted, where that is far too long
    forward_seconds: Optional[float] = None  #: median, computation alone: without waiting for sums
    backward_seconds: Optional[float] = None  #: median
    layers: Annotated[tuple[LayerGroup, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()  #: in forward order
    tensors: int = 0  #: number of tensors pushed per step, as known so far
    model_bytes: int = 0  #: bytes pushed per step, as known so far
    #: Size of each tensor in forward order; worker 0 tells, since all have the same.
    tensor_bytes: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_TENSORS)] = ()

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
    receive_bandwidth_bytes_per_second: Optional[Estimate] = None  #: of this host's receiving side
    byte_seconds: Optional[Estimate] = None  #: CPU time of the communication thread per byte, on top of the overhead
    links: Annotated[tuple[LinkEstimate, ...], msgspec.Meta(max_length=MAX_LINKS)] = ()
    send_busy_seconds: float = 0.0  #: time in which the sending wire was busy
    receive_busy_seconds: float = 0.0
    thread_seconds: float = 0.0  #: CPU time of the communication thread
    cpu_seconds: float = 0.0  #: CPU time of the whole process in the window

    # servers
    sum_bytes: int = 0
    sum_seconds: float = 0.0  #: time spent in summation
    sum_bytes_per_second: Optional[Estimate] = None  #: of messages large enough to tell
    nonfinite: int = 0  #: elements of gradients or their sums that were infinite or no number, since the start
    malformed: int = 0  #: frames dropped as malformed, since the start
