"""A node's running counters, turned into one :class:`~ps.stats.Observation` per window.

The loops call the small methods as things happen; once per window, which ends when :mod:`ps.attention` says so, they
take an observation, which starts the next one. What the links count themselves (:class:`LinkTotals`) is read at the
end of the window instead of being counted twice.

Steps are told apart by the first key: a worker calls :meth:`Counters.step_began` when its version advances. A change of
configuration falls into the middle of a step, and other nodes hear of it a little later, so the step in progress and
the next one belong to no configuration and are not reported.

Pure: times are parameters (seconds, monotonic).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import NamedTuple, Optional, Protocol, Sequence

from ps.attention import Attention
from ps.config import KIB, Role
from ps.estimate import HostEstimate
from ps.layers import LayerTimes, StepTimes
from ps.meter import Recent
from ps.stats import MAX_TENSORS, LayerGroup, Observation

__all__ = ["Counters", "LinkTotals"]

#: The step in which a configuration arrives and the one that follows are of neither configuration.
STEPS_LOST_BY_SWITCH = 2
#: What was not pushed in so many whole steps is no part of the model.
MODEL_STEPS = 2
#: Only so many of a window's latest durations are kept for a median.
MAX_SAMPLES = 256
#: The rate of summation is taken over so many seconds of it, from messages whose bytes are what takes the time.
SUM_WINDOW_SECONDS = 0.02
SUM_MESSAGE_BYTES = 64 * KIB


class LinkTotals(Protocol):
    """What all links of a node have counted together since the start."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def messages_sent(self) -> int: ...

    @property
    def partitions_sent(self) -> int: ...

    @property
    def queue_wait_seconds(self) -> float:
        """Sum over all partitions sent."""

    @property
    def credit_stall_seconds(self) -> float: ...


class _Totals(NamedTuple):
    """What is counted since the start, as it was when the window began."""

    bytes_sent: int = 0
    messages_sent: int = 0
    partitions_sent: int = 0
    queue_wait_seconds: float = 0.0
    credit_stall_seconds: float = 0.0
    bytes_received: int = 0
    send_busy_seconds: float = 0.0
    receive_busy_seconds: float = 0.0
    thread_seconds: float = 0.0
    cpu_seconds: float = 0.0


class _Pushed(NamedTuple):
    """A tensor's last push."""

    step: int  #: in which it was
    place: int  #: in the forward pass: minus its priority
    size_bytes: int


class Counters:
    """Counts what one node does; see the module docstring.

    Parameters
    ----------
    role, rank, num_workers, num_servers
        Of this node and its job, copied to every observation. ``rank`` may be set later.
    now
        When the first window begins.
    window_seconds
        How long one is while nothing happens.

    Attributes
    ----------
    attention
        Tells when a window ends.
    """

    def __init__(
        self, role: Role, rank: int, num_workers: int, num_servers: int, now: float, window_seconds: float = 1.0
    ) -> None:
        self.rank = rank
        self.attention = Attention(window_seconds, now)
        self.total_steps = 0  #: that ended since the start, whether or not they are reported
        self.nonfinite = 0  #: elements that were infinite or no number, since the start
        self._role = role
        self._num_workers = num_workers
        self._num_servers = num_servers
        self._epoch = 0
        self._window_began = now
        # steps
        self._step_began: Optional[float] = None
        self._steps_to_drop = 0
        self._overdue_at = math.inf  # when the step in progress lasts too long
        self._overdue_seconds: Optional[float] = None  # how long it lasted when that was noticed, in this window
        self._pushed: dict[int, _Pushed] = {}  # by the number of the tensor
        self._layer_times = LayerTimes()
        self._layers: tuple[LayerGroup, ...] = ()
        # summation
        self._sum_rate = Recent()
        self._rate_bytes = 0
        self._rate_seconds = 0.0
        # since the start
        self._malformed = 0
        self._totals = _Totals()  # at the window's begin
        self._start_window()

    def _start_window(self) -> None:
        self._steps = 0
        self._step_seconds: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._trained = False
        self._ack_seconds: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._sum_bytes = 0
        self._sum_seconds = 0.0

    # ------------------------------------------------------------------------------------- workers

    def step_began(self, now: float) -> None:
        """The version of the first key has advanced: a step ended, and the next one began."""
        if self._step_began is not None:
            self.total_steps += 1
            if self._steps_to_drop:
                self._steps_to_drop -= 1
            else:
                self._count(now - self._step_began)
        self._step_began = now
        self._overdue_at = now + self.attention.patience_seconds

    @property
    def overdue_at(self) -> float:
        """When the step in progress will have lasted far longer than those before."""
        return self._overdue_at

    def overdue(self, now: float) -> None:
        """The step in progress lasts for too long, and not since nothing is sent: the window is to tell it."""
        if self._step_began is not None:
            self._overdue_at = math.inf
            self._overdue_seconds = now - self._step_began
            self.attention.changed()

    def _count(self, seconds: float) -> None:
        self._steps += 1
        self._step_seconds.append(seconds)
        alone = self.attention.step(seconds)
        if alone:  # the steps before are of what was before a change
            self._steps = min(self._steps, alone)
            while len(self._step_seconds) > alone:
                self._step_seconds.popleft()

    def pushed(self, tensor: int, tensor_bytes: int, priority: int = 0) -> None:
        """A tensor was pushed in the step in progress (call it after :meth:`step_began` for the first key)."""
        self._pushed[tensor] = _Pushed(self.total_steps, -priority, tensor_bytes)

    def note_training(self, step: StepTimes) -> None:
        """A step computed for so long."""
        self._layer_times.add(step)
        self._trained = True

    def _model(self) -> list[_Pushed]:
        """Return the tensors of a step in forward order.

        Gradients that are ready at the same time as the first key's are pushed before it in one step and after it in
        the next. So it is not one step that tells.
        """
        if not self.total_steps:
            return []
        model = [pushed for pushed in self._pushed.values() if pushed.step >= self.total_steps - MODEL_STEPS]
        return sorted(model, key=lambda pushed: pushed.place)

    # ---------------------------------------------------------------------------------------- both

    def switched(self, epoch: int) -> None:
        """The configuration of ``epoch`` is in use from now on."""
        self._epoch = epoch
        self._steps = 0
        self._step_seconds.clear()
        self.attention.switched()
        self._overdue_at = math.inf
        self._overdue_seconds = None
        self._steps_to_drop = STEPS_LOST_BY_SWITCH

    def acknowledged(self, round_trip_seconds: float) -> None:
        """A message was acknowledged so long after it was sent."""
        self._ack_seconds.append(round_trip_seconds)

    def malformed(self) -> None:
        """A frame was dropped as malformed."""
        self._malformed += 1

    # ------------------------------------------------------------------------------------- servers

    def summed(self, sum_bytes: int, seconds: float) -> None:
        """Gradients of so many bytes were added (or copied) to a sum, which took so long."""
        self._sum_bytes += sum_bytes
        self._sum_seconds += seconds
        if sum_bytes >= SUM_MESSAGE_BYTES:
            self._rate_bytes += sum_bytes
            self._rate_seconds += seconds
            if self._rate_seconds >= SUM_WINDOW_SECONDS:
                self._sum_rate.add(self._rate_bytes / self._rate_seconds)
                self._rate_bytes, self._rate_seconds = 0, 0.0

    # -------------------------------------------------------------------------------------- report

    def observation(
        self,
        now: float,
        links: LinkTotals,
        estimates: HostEstimate,
        bytes_received: int,
        thread_seconds: float,
        cpu_seconds: float,
    ) -> Observation:
        """Return what was seen since the last call, and start the next window.

        Parameters
        ----------
        links
            Totals since the start over all links.
        estimates
            From :class:`~ps.estimate.HostEstimator`.
        bytes_received
            Payload received since the start.
        thread_seconds, cpu_seconds
            CPU time of the communication thread, and of the process, since the start.
        """
        before = self._totals
        self._totals = _Totals(
            links.bytes_sent,
            links.messages_sent,
            links.partitions_sent,
            links.queue_wait_seconds,
            links.credit_stall_seconds,
            bytes_received,
            estimates.send_busy_seconds,
            estimates.receive_busy_seconds,
            thread_seconds,
            cpu_seconds,
        )
        profile = self._layer_times.profile() if self._trained else None
        if profile is not None:
            self._layers = profile.layers
        model = self._model()
        waited_seconds = links.queue_wait_seconds - before.queue_wait_seconds
        partitions_sent = links.partitions_sent - before.partitions_sent
        observation = Observation(
            role=self._role,
            rank=self.rank,
            epoch=self._epoch,
            window_seconds=now - self._window_began,
            num_workers=self._num_workers,
            num_servers=self._num_servers,
            steps=self._steps,
            step_seconds=_median(self._step_seconds),
            overdue_seconds=self._overdue_seconds,
            forward_seconds=None if profile is None else profile.forward_seconds,
            backward_seconds=None if profile is None else profile.backward_seconds,
            layers=self._layers,
            tensors=len(model),
            model_bytes=sum(pushed.size_bytes for pushed in model),
            tensor_bytes=tuple(pushed.size_bytes for pushed in model[:MAX_TENSORS]) if self.rank == 0 else (),
            bytes_sent=links.bytes_sent - before.bytes_sent,
            bytes_received=bytes_received - before.bytes_received,
            messages_sent=links.messages_sent - before.messages_sent,
            partitions_sent=partitions_sent,
            queue_wait_seconds=waited_seconds / partitions_sent if partitions_sent else None,
            credit_stall_seconds=links.credit_stall_seconds - before.credit_stall_seconds,
            ack_seconds=_median(self._ack_seconds),
            bandwidth_bytes_per_second=estimates.bandwidth_bytes_per_second,
            latency_seconds=estimates.latency_seconds,
            overhead_seconds=estimates.overhead_seconds,
            receive_bandwidth_bytes_per_second=estimates.receive_bandwidth_bytes_per_second,
            byte_seconds=estimates.byte_seconds,
            links=estimates.links,
            send_busy_seconds=estimates.send_busy_seconds - before.send_busy_seconds,
            receive_busy_seconds=estimates.receive_busy_seconds - before.receive_busy_seconds,
            thread_seconds=thread_seconds - before.thread_seconds,
            cpu_seconds=cpu_seconds - before.cpu_seconds,
            sum_bytes=self._sum_bytes,
            sum_seconds=self._sum_seconds,
            sum_bytes_per_second=self._sum_rate.estimate(),
            nonfinite=self.nonfinite,
            malformed=self._malformed,
        )
        self._window_began = now
        self._overdue_seconds = None
        self._start_window()
        self.attention.ended(now)
        return observation


def _median(values: Sequence[float]) -> Optional[float]:
    return statistics.median(values) if values else None
