"""A step as a fluid: the model's tensors flow at one rate, in the order of their priority or of their gradients.

Tensors are joined into at most :data:`PIECES` pieces in forward order. In the backward pass the gradient of one piece
after the other becomes ready, last piece first. The wire moves ``rate`` bytes per second:

* **by priority**: whatever is nearest to the input goes first, as with small partitions and little credit;
* **first in, first out**: as with whole tensors and unlimited credit.

A piece that is there may be used by the forward pass, which goes through the pieces in order and waits for each. What
comes out is the time of a step at these two extremes, for all rates at once. It knows nothing of what workers do to
each other at the servers, but it knows the model's shape, which decides more than anything else which configuration is
the fastest: without the sizes of the tensors even a perfect simulation chooses no better than a formula.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["PIECES", "Flow", "Pieces", "flow", "pieces_of"]

Array = npt.NDArray[np.float64]

PIECES = 12


class Pieces(NamedTuple):
    """A model in at most :data:`PIECES` pieces, in forward order."""

    size_bytes: Array
    forward_seconds: Array
    backward_seconds: Array


class Flow(NamedTuple):
    """Seconds for each rate."""

    by_priority: Array  #: a step
    in_order: Array  #: a step, first in, first out
    left: Array  #: part of the bytes that is not yet moved when the backward pass ends


def pieces_of(sizes_bytes: Array, forward_seconds: float, backward_seconds: float, work: Array) -> Pieces:
    """Join tensors into pieces of about equal bytes and number.

    ``work`` is proportional to the computation of each tensor; if there is none, half of the computation is taken to be
    spread evenly over the tensors, half by the square root of their bytes.
    """
    if work.sum() > 0:
        work = work / work.sum()
    else:
        roots = np.sqrt(sizes_bytes)
        work = 0.5 / len(sizes_bytes) + 0.5 * roots / roots.sum()
    sizes = sizes_bytes
    if len(sizes_bytes) > PIECES:
        passed = np.cumsum(sizes_bytes / sizes_bytes.sum() + 1 / len(sizes_bytes))
        piece = np.minimum((passed * (PIECES / 2)).astype(np.int64), PIECES - 1)
        sizes = np.bincount(piece, sizes_bytes, PIECES).astype(float)
        work = np.bincount(piece, work, PIECES).astype(float)
    return Pieces(sizes, work * forward_seconds, work * backward_seconds)


def flow(pieces: Pieces, rate: Array, delay: Array) -> Flow:
    """Return how a step flows at each of ``rate`` (bytes per second), whose every transfer comes ``delay`` later."""
    sizes, forward, backward = pieces
    last = len(sizes) - 1
    left = np.zeros((len(sizes), len(rate)))
    moved = np.zeros_like(left)
    ready = np.cumsum(backward[::-1])[::-1]
    until = np.zeros_like(rate)
    for piece in range(last, -1, -1):
        left[piece] = sizes[piece]
        until = np.maximum(until, ready[piece]) + sizes[piece] / rate
        moved[piece] = until
        if piece == 0:
            break
        room = rate * backward[piece - 1]  # until the next piece is ready, which then goes first
        for waiting in range(piece, last + 1):
            part = np.minimum(left[waiting], room)
            left[waiting] -= part
            room = room - part
            if not room.any():
                break
    arrived = ready[0] + np.where(left > 0, np.cumsum(left, axis=0) / rate + delay, 0.0)
    return Flow(
        by_priority=_forward(arrived, ready[0], forward),
        in_order=_forward(moved + delay, ready[0], forward),
        left=left.sum(axis=0) / sizes.sum(),
    )


def _forward(arrived: Array, backward_end: float, forward: Array) -> Array:
    """Return when the forward pass ends that waits for each piece."""
    at = np.full(arrived.shape[1], backward_end)
    for piece, seconds in enumerate(forward):
        at = np.maximum(at, arrived[piece]) + seconds
    return at
