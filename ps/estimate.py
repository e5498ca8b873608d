"""What one host's network can do, estimated from traffic that flows anyway: no probes are sent.

Each quantity comes from the one source that identifies it:

* **bandwidth** B of the host, sending and receiving: bytes over time, counted only while the wire was busy, over all
  links of the host together (:mod:`ps.meter`). Sending is read from acknowledgements, receiving from arrivals: every
  message tells whether its link had work ever since the message before it;
* **bandwidth of a link**: the same of the link alone. The links of a worker wait for each other, so when sending only
  time counts in which something was in flight on that link. Where several links fill the wire each has its part;
* **latency** L, one way: half of a low percentile of the round trips of small messages that met an empty host. Queueing
  and scheduling only ever add to a round trip, so the low end is the truth (:class:`_Latency`);
* **overhead** o per message: the communication thread's CPU time over the messages that it handled. Acknowledgements
  cannot tell it from latency. The part that grows with the bytes is told apart (:class:`_Overhead`).

All of them forget what was before a sudden change. A host that sends less than it could because its credit is small
shows a bandwidth below the true one; a tuner that answers with more credit sees it rise, so the error heals itself
upwards. The same holds for a host whose peers are the slower ones: what is measured is the way, not the network card.

Pure: no clocks, times are parameters (seconds, monotonic).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Iterable, NamedTuple, Optional, Protocol, Sequence

import msgspec

from ps.config import KIB
from ps.meter import RateMeter
from ps.stats import MAX_LINKS, Estimate, LinkEstimate

__all__ = ["HostEstimate", "HostEstimator", "Sent"]

#: A round trip of more bytes says more about bandwidth than about latency.
SMALL_MESSAGE_BYTES = 16 * KIB
ROUND_TRIPS = 16
LOW_PERCENTILE = 0.2
#: So many small round trips make the large ones superfluous.
ENOUGH_ROUND_TRIPS = 4
#: So many round trips in a row that are all beyond the older ones, by this factor of their median, are a change.
CHANGED_ROUND_TRIPS = 4
CHANGED_ROUND_TRIP = 1.25
#: A latency is at least this.
LEAST_LATENCY_SECONDS = 1e-6
#: The spread of round trips before samples tell; it counts as one of them.
PRIOR_ROUND_TRIP_SPREAD = 0.3
#: What a large message costs at its receiver passes for latency; this is how wrong that may be.
LARGE_MESSAGE_SPREAD = 0.5
#: The overhead is a regression over this many windows of CPU time, of at least so many messages each.
COST_WINDOWS = 24
COST_MESSAGES = 32
#: Message sizes that differ by less than this, relative to their mean, are alike.
SIZE_SPREAD = 0.2
#: The cost per byte never explains more than this part of a message's cost.
MAX_BYTE_SHARE = 0.75
#: The cost of a message is not more exact than this, and a block of windows tells no more than so many would that had
#: nothing to do with each other: what varies with the sizes varies with the time in the step, too.
LEAST_NOISE = 0.1
INDEPENDENT_WINDOWS = 4
#: The deviation of what was known of the cost per byte grows by this for each block of windows.
FORGETTING = 1.2
#: So many windows whose cost is off from that of others of like size by this (in logarithms), all in the same
#: direction, are a change.
CHANGED_COSTS = 3
CHANGED_COST = 0.3


class Sent(Protocol):
    """What is asked of a message that was acknowledged; see :class:`ps.transfer.Message`."""

    nbytes: int
    sent_at: float
    alone: bool
    follows: bool


class HostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What is known by now; None where nothing could be observed yet."""

    bandwidth_bytes_per_second: Optional[Estimate] = None  #: sending
    receive_bandwidth_bytes_per_second: Optional[Estimate] = None
    latency_seconds: Optional[Estimate] = None  #: one way
    overhead_seconds: Optional[Estimate] = None  #: CPU time per message, without the part that grows with the bytes
    byte_seconds: Optional[Estimate] = None  #: CPU time per byte
    links: tuple[LinkEstimate, ...] = ()  #: MAX_LINKS of them at most; where there are more, others the next time
    send_busy_seconds: float = 0.0  #: since the start
    receive_busy_seconds: float = 0.0


class _Link:
    """What is known of one link."""

    __slots__ = ("peer", "sending", "receiving", "latency", "acked_at", "arrived_at")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.sending = RateMeter()
        self.receiving = RateMeter()
        self.latency = _Latency()
        self.acked_at = 0.0
        self.arrived_at = 0.0


class HostEstimator:
    """Estimates bandwidth, latency and overhead of this host and its links.

    One per process. :meth:`acknowledged` and :meth:`received` are on the hot path and take about a microsecond.

    Parameters
    ----------
    peers
        Ranks of the nodes at the other ends of the links.
    """

    def __init__(self, peers: Iterable[int]) -> None:
        self._links = {peer: _Link(peer) for peer in peers}
        self._turn = 0
        self._sending = RateMeter()
        self._receiving = RateMeter()
        self._latency = _Latency()
        self._overhead = _Overhead()

    def acknowledged(self, peer: int, messages: Sequence[Sent], now: float) -> None:
        """Take note of the messages, oldest first, that ``peer`` has acknowledged at once; there is one at least.

        Call it in the order of time.
        """
        link = self._links[peer]
        nbytes = 0
        for message in messages:
            nbytes += message.nbytes
            if message.alone:
                self._latency.add(now - message.sent_at, message.nbytes)
                link.latency.add(now - message.sent_at, message.nbytes)
        first = messages[0]
        sent_at = first.sent_at
        count = len(messages)
        self._sending.add(nbytes, count, min(link.acked_at, sent_at) if first.follows else sent_at, now)
        link.sending.add(nbytes, count, sent_at, now)
        link.acked_at = now

    def received(self, peer: int, nbytes: int, follows: bool, now: float) -> None:
        """Take note of a message from ``peer``; ``follows`` is as in :class:`ps.transfer.Message`."""
        link = self._links[peer]
        since = link.arrived_at if follows else now
        self._receiving.add(nbytes, 1, since, now)
        link.receiving.add(nbytes, 1, since, now)
        link.arrived_at = now

    @property
    def changes(self) -> int:
        """Sudden changes of what is known of this host since the start."""
        return self._sending.changes + self._receiving.changes + self._latency.changes + self._overhead.changes

    def thread_time(self, cpu_seconds: float, messages: float, message_bytes: int) -> None:
        """Take note of the CPU time that the communication thread used in part of a second.

        It handled so many messages (sent and received, acknowledgements not counted) of so many bytes together. What
        each further span of a message costs counts as a part of a message (:data:`ps.transfer.SPAN_COST`).
        """
        self._overhead.add(cpu_seconds, messages, message_bytes)

    def estimates(self) -> HostEstimate:
        """Return what is known by now."""
        highest = self._sending.highest()
        seconds_per_byte = 1 / highest if highest else None
        overhead, byte_seconds = self._overhead.estimates()
        return HostEstimate(
            bandwidth_bytes_per_second=self._sending.estimate(),
            receive_bandwidth_bytes_per_second=self._receiving.estimate(),
            latency_seconds=self._latency.estimate(seconds_per_byte),
            overhead_seconds=overhead,
            byte_seconds=byte_seconds,
            links=self._next_links(seconds_per_byte),
            send_busy_seconds=self._sending.busy_seconds,
            receive_busy_seconds=self._receiving.busy_seconds,
        )

    def _next_links(self, seconds_per_byte: Optional[float]) -> tuple[LinkEstimate, ...]:
        links = list(self._links.values())
        if len(links) > MAX_LINKS:
            links = (links[self._turn :] + links[: self._turn])[:MAX_LINKS]
            self._turn = (self._turn + MAX_LINKS) % len(self._links)
        estimates = [
            LinkEstimate(
                link.peer, link.sending.estimate(), link.receiving.estimate(), link.latency.estimate(seconds_per_byte)
            )
            for link in links
        ]
        return tuple(known for known in estimates if known != LinkEstimate(known.peer))


class _RoundTrip(NamedTuple):
    seconds: float
    nbytes: int


class _Latency:
    """Half of a low percentile of round trips, less the time that the bytes take; see the module.

    Small messages are what tells it. Where there are none, large ones serve, though what their receiver does with them
    before it acknowledges then passes for latency.
    """

    __slots__ = ("changes", "_small", "_large")

    def __init__(self) -> None:
        self.changes = 0
        self._small: deque[_RoundTrip] = deque(maxlen=ROUND_TRIPS)
        self._large: deque[_RoundTrip] = deque(maxlen=ROUND_TRIPS)

    def add(self, seconds: float, nbytes: int) -> None:
        """Take a round trip that met an empty host."""
        if nbytes > SMALL_MESSAGE_BYTES:
            self._large.append(_RoundTrip(seconds, nbytes))
            return
        trips = self._small
        trips.append(_RoundTrip(seconds, nbytes))
        older = len(trips) - CHANGED_ROUND_TRIPS
        if older < CHANGED_ROUND_TRIPS:
            return
        past = sorted(trip.seconds for trip in list(trips)[:older])
        latest = [trip.seconds for trip in list(trips)[older:]]
        middle = past[older // 2]
        if min(latest) > max(past[-1], CHANGED_ROUND_TRIP * middle) or (
            max(latest) < min(past[0], middle / CHANGED_ROUND_TRIP)
        ):
            self.changes += 1
            for _ in past:
                trips.popleft()

    def estimate(self, seconds_per_byte: Optional[float]) -> Optional[Estimate]:
        """Return seconds one way; ``seconds_per_byte`` is what a byte takes on an empty wire, None while not known."""
        small = len(self._small) >= ENOUGH_ROUND_TRIPS or seconds_per_byte is None or not self._large
        trips = self._small if small else self._large
        if not trips:
            return None
        ways = sorted(
            max(LEAST_LATENCY_SECONDS, (trip.seconds - trip.nbytes * (seconds_per_byte or 0.0)) / 2) for trip in trips
        )
        logs = [math.log(way) for way in ways[: len(ways) // 2 + 1]]
        middle = statistics.fmean(logs)
        squares = sum((log - middle) ** 2 for log in logs)
        spread = math.sqrt((PRIOR_ROUND_TRIP_SPREAD**2 + squares) / (len(logs) + 1))
        value = ways[int(len(ways) * LOW_PERCENTILE)]
        return Estimate(value, spread if small else spread + LARGE_MESSAGE_SPREAD, len(ways))


class _Cost(NamedTuple):
    """What messages cost in a window: seconds of CPU and bytes, per message."""

    messages: float
    seconds: float
    nbytes: float


class _Slope(NamedTuple):
    """A cost per byte, and how far it may be off."""

    byte_seconds: float
    deviation: float


class _Overhead:
    """Cost of a message = overhead + cost per byte * size: a weighted regression over the last windows.

    The part that grows with the bytes (copies, system calls) is no overhead: counting it would make the overhead grow
    with the partition that is chosen from it. Where sizes do not differ the slope is not identifiable; it then stays
    what it was (0 at first, which makes the overhead an upper bound, and too large an overhead is the mild error).
    What a block of windows says of the slope is weighed against what was known before it by how sure either is.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._windows: deque[_Cost] = deque(maxlen=COST_WINDOWS)
        self._open_seconds = 0.0
        self._open_messages = 0.0
        self._open_bytes = 0
        self._known: Optional[_Slope] = None  # before the present block
        self._left_in_block = COST_WINDOWS
        self._slope = _Slope(0.0, 0.0)  # the last regression, like the next ones
        self._cost = self._size = self._residual = 0.0

    def add(self, cpu_seconds: float, messages: float, message_bytes: int) -> None:
        """Take a window; small ones are put together."""
        self._open_seconds += cpu_seconds
        self._open_messages += messages
        self._open_bytes += message_bytes
        if self._open_messages < COST_MESSAGES:
            return
        if self._open_seconds > 0:
            count = self._open_messages
            self._windows.append(_Cost(count, self._open_seconds / count, self._open_bytes / count))
            self._forget_what_was_before_a_change()
            self._regress()
        self._open_seconds, self._open_messages, self._open_bytes = 0.0, 0.0, 0

    def _forget_what_was_before_a_change(self) -> None:
        windows = list(self._windows)
        past, latest = windows[:-CHANGED_COSTS], windows[-CHANGED_COSTS:]
        size = statistics.fmean(window.nbytes for window in latest)
        alike = [window for window in past if abs(window.nbytes - size) <= SIZE_SPREAD * size]
        if len(alike) < CHANGED_COSTS or any(abs(window.nbytes - size) > SIZE_SPREAD * size for window in latest):
            return
        before = [math.log(window.seconds) for window in alike]
        after = [math.log(window.seconds) for window in latest]
        middle = statistics.median(before)
        bound = max(CHANGED_COST, 2 * statistics.pstdev(before))
        if min(after) > middle + bound or max(after) < middle - bound:
            self.changes += 1
            self._windows.clear()
            self._windows.extend(latest)

    def _regress(self) -> None:
        windows = self._windows
        total = sum(window.messages for window in windows)
        size = sum(window.messages * window.nbytes for window in windows) / total
        cost = sum(window.messages * window.seconds for window in windows) / total
        off = [(window.messages, window.nbytes - size, window.seconds - cost) for window in windows]
        variance = sum(messages * nbytes**2 for messages, nbytes, _ in off) / total
        covariance = sum(messages * nbytes * seconds for messages, nbytes, seconds in off) / total
        most = MAX_BYTE_SHARE * cost / size if size else 0.0
        known = self._known or _Slope(0.0, most / 2)
        seen, weight = 0.0, 0.0
        if variance > 0:
            seen = covariance / variance
            noise = max(LEAST_NOISE * cost, _residual(off, seen))
            weight = known.deviation**2 / (known.deviation**2 + noise**2 / variance / INDEPENDENT_WINDOWS)
        slope = known.byte_seconds + weight * (seen - known.byte_seconds)
        self._slope = _Slope(min(max(0.0, slope), most), known.deviation * math.sqrt(1 - weight))
        self._cost, self._size, self._residual = cost, size, _residual(off, self._slope.byte_seconds)
        self._left_in_block -= 1
        if not self._left_in_block:
            self._left_in_block = COST_WINDOWS
            self._known = _Slope(self._slope.byte_seconds, min(FORGETTING * self._slope.deviation, most / 2))

    def estimates(self) -> tuple[Optional[Estimate], Optional[Estimate]]:
        """Return seconds per message, and per byte; the latter is None while it cannot be told."""
        samples = len(self._windows)
        if not samples:
            return None, None
        slope, deviation = self._slope
        value = self._cost - slope * self._size
        overhead = Estimate(value, math.hypot(self._residual, deviation * self._size) / value, samples)
        known = slope > 2 * deviation
        return overhead, Estimate(slope, deviation / slope, samples) if known else None


def _residual(off: Sequence[tuple[float, float, float]], slope: float) -> float:
    total = sum(messages for messages, _, _ in off)
    return math.sqrt(sum(messages * (seconds - slope * nbytes) ** 2 for messages, nbytes, seconds in off) / total)
