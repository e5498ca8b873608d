"""What one host's network can do, estimated from traffic that flows anyway: no probes are sent.

Three quantities, each from the one source that identifies it:

* **bandwidth** B of the host's sending side: acknowledged bytes over time, counted only while the wire was busy. It is
  taken over all links of the host together and over windows of many messages; per link, or from single messages, it
  is 5 to 30 % off;
* **latency** L, one way: half of a low percentile of the round trips of small messages that met an empty host. Queueing
  and scheduling only ever add to a round trip, so the low end is the truth;
* **overhead** o per message: the communication thread's CPU time over the messages that it handled. Acknowledgements
  cannot tell it from latency. The part that grows with the bytes (copies, system calls) is no overhead: counting it
  would make the overhead grow with the partition that is chosen from it, so a regression separates it as soon as
  messages of different sizes were seen.

A host that sends less than it could because its credit is small shows a bandwidth below the true one; a tuner that
answers with more credit sees it rise, so the error heals itself upwards.

Pure: no clocks, times are parameters (seconds, monotonic).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Optional, Sequence

import msgspec

from ps.config import KIB
from ps.stats import Estimate

__all__ = ["HostEstimate", "HostEstimator"]

#: A window of bandwidth closes when the wire was busy for so long and so many messages were acknowledged.
WINDOW_SECONDS = 0.05
WINDOW_MESSAGES = 8
#: The bandwidth is the median of this many windows: a change has won after five.
WINDOWS = 9
#: A round trip of more bytes says more about bandwidth than about latency.
SMALL_MESSAGE_BYTES = 16 * KIB
ROUND_TRIPS = 16
LOW_PERCENTILE = 0.2
#: Weight of the past in the overhead when another window of CPU time is added.
MEMORY = 0.9
#: Message sizes that differ by less than this, relative to their mean, hardly tell overhead from cost per byte.
SIZE_SPREAD = 0.2
#: The cost per byte never explains more than this part of a message's cost.
MAX_BYTE_SHARE = 0.75


class HostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What is known by now; None where nothing could be observed yet."""

    bandwidth_bytes_per_second: Optional[Estimate] = None
    latency_seconds: Optional[Estimate] = None  #: one way
    overhead_seconds: Optional[Estimate] = None  #: CPU time per message, without the part that grows with the bytes


class HostEstimator:
    """Estimates bandwidth, latency and overhead of this host from acknowledgements and CPU time.

    One per process. :meth:`acknowledged` is on the hot path and takes about a microsecond.
    """

    def __init__(self) -> None:
        self._acked_at = -math.inf  # when the previous acknowledgement came
        self._queued = False  # whether work was waiting then
        self._busy = False  # whether the wire was busy all the time up to it
        self._window_bytes = 0
        self._window_messages = 0
        self._window_seconds = 0.0
        self._rates: deque[float] = deque(maxlen=WINDOWS)
        self._round_trips: deque[tuple[float, int]] = deque(maxlen=ROUND_TRIPS)
        self._overhead = _Overhead()

    def acknowledged(self, message_bytes: int, sent_at: float, acked_at: float, backlogged: bool, alone: bool) -> None:
        """Take note of one acknowledged message; call it for each message, in the order of acknowledgement.

        Parameters
        ----------
        message_bytes
            Size of the message on the wire.
        sent_at, acked_at
            When it was handed to the transport, and when its acknowledgement arrived. Messages acknowledged at once
            have the same ``acked_at``.
        backlogged
            Whether partitions were still queued on any link of this host at ``acked_at``.
        alone
            Whether nothing else was in flight on this host when it was sent.
        """
        if acked_at != self._acked_at:
            # Busy since the previous acknowledgement: work was waiting then, or this message was already under way.
            self._busy = self._queued or sent_at <= self._acked_at
            if self._busy:
                if self._window_seconds >= WINDOW_SECONDS and self._window_messages >= WINDOW_MESSAGES:
                    self._close_window()
                self._window_seconds += acked_at - self._acked_at
            self._acked_at = acked_at
        if self._busy:
            self._window_bytes += message_bytes
            self._window_messages += 1
        self._queued = backlogged
        if alone and message_bytes <= SMALL_MESSAGE_BYTES:
            self._round_trips.append((acked_at - sent_at, message_bytes))

    def _close_window(self) -> None:
        self._rates.append(self._window_bytes / self._window_seconds)
        self._window_bytes = self._window_messages = 0
        self._window_seconds = 0.0

    def thread_time(self, cpu_seconds: float, messages: int, message_bytes: int) -> None:
        """Take note of the CPU time that the communication thread used in a window of about a second.

        It handled so many messages (sent and received, acknowledgements not counted) of so many bytes together.
        """
        if messages > 0 and cpu_seconds > 0:
            self._overhead.add(messages, cpu_seconds / messages, message_bytes / messages)

    def estimates(self) -> HostEstimate:
        """Return what is known by now."""
        bandwidth = None
        if self._rates:
            bandwidth = Estimate(statistics.median(self._rates), _log_spread(self._rates), len(self._rates))
        return HostEstimate(
            bandwidth_bytes_per_second=bandwidth,
            latency_seconds=self._latency(bandwidth),
            overhead_seconds=self._overhead.estimate(),
        )

    def _latency(self, bandwidth: Optional[Estimate]) -> Optional[Estimate]:
        if not self._round_trips:
            return None
        seconds_per_byte = 1 / bandwidth.value if bandwidth else 0.0
        one_way = sorted(max(1e-6, (rtt - size * seconds_per_byte) / 2) for rtt, size in self._round_trips)
        low = one_way[: len(one_way) // 2 + 1]
        return Estimate(one_way[int(len(one_way) * LOW_PERCENTILE)], _log_spread(low), len(one_way))


class _Overhead:
    """Cost of a message = overhead + cost per byte * size: a regression over windows that forgets the past.

    Where sizes do not differ the slope is not identifiable; it then stays what it was (0 at first, which makes the
    overhead an upper bound, and too large an overhead is the mild error).
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._windows = 0
        self._size = self._cost = self._size_size = self._size_cost = self._cost_cost = 0.0  # weighted means
        self._byte_seconds = 0.0

    def add(self, messages: int, cost: float, size: float) -> None:
        self._weight = MEMORY * self._weight + messages
        share = messages / self._weight
        self._windows += 1
        self._size += share * (size - self._size)
        self._cost += share * (cost - self._cost)
        self._size_size += share * (size * size - self._size_size)
        self._size_cost += share * (size * cost - self._size_cost)
        self._cost_cost += share * (cost * cost - self._cost_cost)
        inertia = (SIZE_SPREAD * self._size) ** 2
        variance = max(0.0, self._size_size - self._size**2)
        if variance + inertia > 0:
            covariance = self._size_cost - self._size * self._cost
            slope = (covariance + inertia * self._byte_seconds) / (variance + inertia)
            self._byte_seconds = min(max(0.0, slope), MAX_BYTE_SHARE * self._cost / self._size)

    def estimate(self) -> Optional[Estimate]:
        if not self._windows:
            return None
        value = self._cost - self._byte_seconds * self._size
        spread = math.sqrt(max(0.0, self._cost_cost - self._cost**2)) / self._cost
        return Estimate(value, spread, self._windows)


def _log_spread(values: Sequence[float]) -> float:
    return statistics.pstdev([math.log(value) for value in values])
