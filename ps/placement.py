"""Which server owns which elements of which tensor.

Invariants: the shards of a tensor are ascending, gapless and cover it exactly once, on a server at most once each; the
same tensors in the same order get the same shards in every process; and the servers' loads, relative to
their weights, never differ by more than about the largest shard of a tensor that was not split over all of them.

Two rules, by size, for tensors that need not stay whole. One of at least ``min_shard_bytes`` per server goes to all
servers in proportion to their weights, so that its transfer uses every wire. A smaller one is split into as many shards
as reach that size (often one), which go to the servers that would be least loaded with it: the greedy rule of Graham
(1969), for machines of different speed. MXNet's own store splits by a fixed number of elements and otherwise places by
a hash of the key, which balances only on average.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

from ps.config import KIB
from ps.messages import Shard

__all__ = ["Placement", "MIN_SHARD_BYTES", "ALIGNMENT_BYTES"]

#: Below this, the overhead of one more message is worth more than one more wire.
MIN_SHARD_BYTES = 64 * KIB
#: Shards begin at multiples of a cache line where they hold more than a few, so that summation starts aligned.
ALIGNMENT_BYTES = 64


class Placement:
    """Places tensors one after the other on ``num_servers`` servers.

    Parameters
    ----------
    num_servers
        At least 1.
    server_weights
        Relative speed of each server, above 0; equal where None.
    min_shard_bytes
        A tensor is not split into shards smaller than this (but for weights), at least 1.

    Raises
    ------
    ValueError
        An argument is out of range.

    Examples
    --------
    >>> Placement(2).place(1_000_000, itemsize=4)
    [Shard(server=0, start=0, stop=500000), Shard(server=1, start=500000, stop=1000000)]
    """

    def __init__(
        self,
        num_servers: int,
        server_weights: Optional[Sequence[float]] = None,
        min_shard_bytes: int = MIN_SHARD_BYTES,
    ) -> None:
        if num_servers < 1:
            raise ValueError(f"num_servers must be at least 1, not {num_servers}")
        weights = [1.0] * num_servers if server_weights is None else list(server_weights)
        if len(weights) != num_servers or not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(f"server_weights must be {num_servers} numbers above 0, not {server_weights}")
        if min_shard_bytes < 1:
            raise ValueError(f"min_shard_bytes must be at least 1, not {min_shard_bytes}")
        self._weights = weights
        self._min_shard_bytes = min_shard_bytes
        self._load_bytes = [0] * num_servers

    @property
    def load_bytes(self) -> tuple[int, ...]:
        """Bytes placed on each server so far."""
        return tuple(self._load_bytes)

    def place(self, size_elements: int, itemsize: int, whole: bool = False, unit_elements: int = 1) -> list[Shard]:
        """Return the shards of the next tensor: one if it is to be ``whole``; an empty tensor has one empty shard.

        Shards begin at multiples of ``unit_elements``.

        Raises
        ------
        ValueError
            ``size_elements`` is negative, or no multiple of the unit, or ``itemsize`` or the unit is below 1.
        """
        if size_elements < 0 or itemsize < 1 or unit_elements < 1 or size_elements % unit_elements:
            raise ValueError(f"cannot place {size_elements} elements of {itemsize} bytes in units of {unit_elements}")
        servers = self._choose(size_elements * itemsize, 1 if whole else len(self._weights))
        edges = self._edges(servers, size_elements // unit_elements, unit_elements * itemsize)
        shards = []
        start = 0
        for server, stop in zip(servers, (edge * unit_elements for edge in edges)):
            if start < stop or size_elements == 0:
                shards.append(Shard(server, start, stop))
                self._load_bytes[server] += (stop - start) * itemsize
                start = stop
        return shards

    def _choose(self, size_bytes: int, most: int) -> list[int]:
        """Return the servers, ascending and at most so many, that share a tensor of ``size_bytes``."""
        count = min(most, max(1, size_bytes // self._min_shard_bytes))
        shard_bytes = size_bytes / count
        by_load = sorted(
            range(len(self._weights)),
            key=lambda server: ((self._load_bytes[server] + shard_bytes) / self._weights[server], server),
        )
        return sorted(by_load[:count])

    def _edges(self, servers: list[int], size_units: int, unit_bytes: int) -> list[int]:
        """Return where the shard of each of ``servers`` stops, in units, in proportion to their weights."""
        step = ALIGNMENT_BYTES // math.gcd(ALIGNMENT_BYTES, unit_bytes)
        if size_units < len(servers) * step * 16:
            step = 1  # so few cache lines are better balanced than aligned
        total = sum(self._weights[server] for server in servers)
        edges = []
        below = 0.0
        for server in servers[:-1]:
            below += self._weights[server]
            edges.append(min(size_units, step * round(size_units * below / total / step)))
        return [*edges, size_units]
