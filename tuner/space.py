"""The configurations that a search may try: partition P and credit C, both on a logarithmic scale.

Step time is smooth in (log P, log C) and flat around its optimum, so whole powers of two are fine enough (half a
power away from the optimum costs about a per cent). The bounds follow a simulation study: the worst configurations
are those with P or C too small, by factors of 33 to 251, while P up to 4 MB with C of at least 4 P costs 1.5 at most.
Hence:

* P from 64 KiB to 8 MiB, C from 4 P to 64 MiB;
* one member outside the grid, :data:`UNSLICED`: one partition per tensor and unlimited credit, because slicing can be
  pure cost;
* ties go to the larger P, then to the larger C (:func:`size_key`).
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from ps.config import GIB, KIB, MAX_CREDIT_BYTES, MAX_PARTITION_BYTES, MIB, CommConfig

__all__ = [
    "LEAST_CREDIT_PARTITIONS",
    "MAX_SEARCHED_CREDIT_BYTES",
    "MAX_SEARCHED_PARTITION_BYTES",
    "MIN_PARTITION_BYTES",
    "UNSLICED",
    "candidates",
    "coordinates",
    "size_key",
    "describe",
]

MIN_PARTITION_BYTES = 64 * KIB
MAX_SEARCHED_PARTITION_BYTES = 8 * MIB
MAX_SEARCHED_CREDIT_BYTES = 64 * MIB
#: A credit of fewer partitions leaves the wire idle between an acknowledgement and the next message.
LEAST_CREDIT_PARTITIONS = 4

#: One partition per tensor, unlimited credit.
UNSLICED = CommConfig(partition_bytes=MAX_PARTITION_BYTES, credit_bytes=MAX_CREDIT_BYTES)


def candidates(like: CommConfig) -> list[CommConfig]:
    """Return all configurations of the space, smallest first; what is not searched is taken from ``like``."""
    found = []
    partition_bytes = MIN_PARTITION_BYTES
    while partition_bytes <= MAX_SEARCHED_PARTITION_BYTES:
        credit_bytes = LEAST_CREDIT_PARTITIONS * partition_bytes
        while credit_bytes <= MAX_SEARCHED_CREDIT_BYTES:
            found.append(replace(like, partition_bytes=partition_bytes, credit_bytes=credit_bytes))
            credit_bytes *= 2
        partition_bytes *= 2
    whole = replace(like, partition_bytes=UNSLICED.partition_bytes, credit_bytes=UNSLICED.credit_bytes)
    return [*found, whole]


def coordinates(config: CommConfig) -> tuple[float, float]:
    """Return ``(log P, log C)`` scaled to the unit square of the grid; :data:`UNSLICED` lies one power beyond it."""
    least_credit_bytes = LEAST_CREDIT_PARTITIONS * MIN_PARTITION_BYTES
    return (
        _scaled(config.partition_bytes, MIN_PARTITION_BYTES, MAX_SEARCHED_PARTITION_BYTES),
        _scaled(config.credit_bytes, least_credit_bytes, MAX_SEARCHED_CREDIT_BYTES),
    )


def _scaled(value: int, low: int, high: int) -> float:
    return math.log(min(value, 2 * high) / low) / math.log(high / low)


def size_key(config: CommConfig) -> tuple[int, int]:
    """Return what ties are decided by: the larger key is the safer configuration."""
    return config.partition_bytes, config.credit_bytes


def describe(config: CommConfig) -> str:
    """Return partition and credit for the reader of a log, such as ``P = 512 KiB, C = 4 MiB``."""
    return f"P = {_size(config.partition_bytes)}, C = {_size(config.credit_bytes)}"


def _size(size_bytes: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"
