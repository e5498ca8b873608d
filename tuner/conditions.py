"""What a simulated step runs on: hosts, the wire between them, and what communication costs their processors.

Every node has a host of its own. A host's network card has one rate in each direction, which all of its links share;
the switch between the hosts never limits. A message costs its sender and its receiver time of the communication
thread: ``overhead_seconds`` and ``byte_seconds`` for each byte. Plain values, so that a trace is a list of them and a
row of a data set can hold one.
"""

from __future__ import annotations

import math

import msgspec

__all__ = ["Conditions", "Host", "SUM_BYTES_PER_SECOND"]

#: A server adds gradients at about this rate where nothing else is known: one core that is limited by its memory.
SUM_BYTES_PER_SECOND = 4e9


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One node's network card and processor.

    Attributes
    ----------
    send_bytes_per_second, receive_bytes_per_second
        Rate of the network card in each direction, above 0.
    overhead_seconds
        Time of the communication thread per data message, on sending and on receiving it; 0 or more. A message of
        several spans takes :data:`ps.transfer.SPAN_COST` of it for each further one.
    byte_seconds
        The same per byte of payload.
    speed
        Factor on the speed of computation (a worker's layers, a server's sums); below 1 is a straggler.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    send_bytes_per_second: float
    receive_bytes_per_second: float
    overhead_seconds: float = 0.0
    byte_seconds: float = 0.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("send_bytes_per_second", "receive_bytes_per_second", "speed"):
            _check(name, getattr(self, name), positive=True)
        for name in ("overhead_seconds", "byte_seconds"):
            _check(name, getattr(self, name), positive=False)


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts of a job, and what they have in common.

    Attributes
    ----------
    workers, servers
        By rank; at least one each.
    latency_seconds
        One way, between any two hosts.
    sum_bytes_per_second
        Bytes of gradient that a server of speed 1 adds per second.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    workers: tuple[Host, ...]
    servers: tuple[Host, ...]
    latency_seconds: float
    sum_bytes_per_second: float = SUM_BYTES_PER_SECOND

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise ValueError("a job has at least one worker and one server")
        _check("latency_seconds", self.latency_seconds, positive=False)
        _check("sum_bytes_per_second", self.sum_bytes_per_second, positive=True)

    @classmethod
    def uniform(
        cls,
        num_workers: int,
        num_servers: int,
        bandwidth_bytes_per_second: float,
        latency_seconds: float,
        overhead_seconds: float = 0.0,
        byte_seconds: float = 0.0,
        sum_bytes_per_second: float = SUM_BYTES_PER_SECOND,
    ) -> Conditions:
        """Return conditions in which all hosts are alike, with the same rate in both directions.

        Examples
        --------
        >>> Conditions.uniform(2, 1, 125e6, 50e-6, 100e-6).workers[1].send_bytes_per_second
        125000000.0
        """
        host = Host(
            send_bytes_per_second=bandwidth_bytes_per_second,
            receive_bytes_per_second=bandwidth_bytes_per_second,
            overhead_seconds=overhead_seconds,
            byte_seconds=byte_seconds,
        )
        return cls(
            workers=(host,) * num_workers,
            servers=(host,) * num_servers,
            latency_seconds=latency_seconds,
            sum_bytes_per_second=sum_bytes_per_second,
        )

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    @property
    def num_servers(self) -> int:
        return len(self.servers)


def _check(name: str, value: float, positive: bool) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name} must be a finite number {'above 0' if positive else 'from 0'}, not {value!r}")
