"""Only the largest elements travel: top-k with error feedback and, as options, what Deep Gradient Compression adds.

Every range sends the share ``ratio`` of its elements that is largest in magnitude, at least one, each as its position
and its value; the others wait in the residual. The choice is made per partition: that needs no pass over the whole
tensor before the first byte leaves, and the same share of every block is as good a contraction of the error as the
share of the whole (Stich et al. 2018). So the partition size has an influence on which elements travel first.

Deep Gradient Compression (Lin et al., ICLR 2018, section 3):

* ``momentum``: the worker accumulates *velocities* instead of gradients, so that an element that waits for many rounds
  arrives with the momentum that it would have had. What was sent loses its velocity (momentum factor masking). The
  optimizer is then SGD without a momentum of its own.
* ``clip_norm``: a worker's gradient of one tensor is scaled down to this L2 norm before it is accumulated. (Their
  choice: the norm for all workers' sum, divided by the square root of their number.)
* ``warmup_rounds``: the share falls exponentially from ``ratio ** 0.2`` (a quarter, for the default) to ``ratio``.

A payload is the positions within the range, ascending, as uint32, and then the values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps.codecs.interface import Array, BaseCodec, Buffer, CodecError, working_dtype

__all__ = ["TopK"]

POSITION = np.dtype("<u4")
#: Every so many elements one is looked at, to guess how large the k-th largest is.
SAMPLE_STRIDE = 32


class TopK(BaseCodec, frozen=True, kw_only=True, tag="topk"):
    """Send the largest elements.

    Attributes
    ----------
    ratio
        Share of the elements that travels, above 0 and at most 1. One that travels takes 8 bytes in float32, so above a
        half this is no compression.
    momentum
        0 (plain error feedback) or the momentum of the training, below 1.
    clip_norm
        Largest L2 norm of a worker's gradient of one tensor; 0 for no limit.
    warmup_rounds
        Number of rounds until the share has fallen to ``ratio``; 0 for no warm-up.
    """

    ratio: float = 0.001
    momentum: float = 0.0
    clip_norm: float = 0.0
    warmup_rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"the ratio of topk must be above 0 and at most 1, not {self.ratio!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"the momentum of topk must be from 0 to below 1, not {self.momentum!r}")
        if not (math.isfinite(self.clip_norm) and self.clip_norm >= 0):
            raise ValueError(f"the clip_norm of topk must be 0 or above, not {self.clip_norm!r}")
        if self.warmup_rounds < 0:
            raise ValueError(f"the warmup_rounds of topk must be 0 or above, not {self.warmup_rounds!r}")

    def share(self, version: int) -> float:
        """Return the share of the elements that travels in round ``version``, which counts from 1.

        Examples
        --------
        >>> [round(TopK(warmup_rounds=4).share(version), 4) for version in (1, 2, 3, 4, 5)]
        [0.0631, 0.0158, 0.004, 0.001, 0.001]
        """
        progress = min(1.0, version / self.warmup_rounds) if self.warmup_rounds else 1.0
        return float(self.ratio ** (0.2 + 0.8 * progress))

    def encoder(self, size: int, dtype: np.dtype[Any]) -> _Encoder:
        return _Encoder(self, size, dtype)

    def decode(self, payload: Buffer, count: int, dtype: np.dtype[Any]) -> Array:
        data = np.frombuffer(payload, np.uint8)
        sent, rest = divmod(data.size, POSITION.itemsize + dtype.itemsize)
        if rest or sent > count:
            raise CodecError(f"{data.size} bytes are no topk of {count} elements of {dtype}")
        positions = data[: sent * POSITION.itemsize].view(POSITION)
        if sent and int(positions.max()) >= count:
            raise CodecError(f"topk of {count} elements names element {int(positions.max())}")
        values = np.zeros(count, dtype)
        values[positions] = np.frombuffer(payload, dtype, sent, positions.nbytes)
        return values


class _Encoder:
    def __init__(self, codec: TopK, size: int, dtype: np.dtype[Any]) -> None:
        self._codec = codec
        self._dtype = dtype
        self._share = codec.ratio
        self._scale = 1.0
        self._residual = np.zeros(size, working_dtype(dtype))
        self._velocity = np.zeros_like(self._residual) if codec.momentum else None
        self._gradient: Array = self._residual

    def begin(self, version: int, gradient: Array) -> None:
        self._gradient = gradient
        self._share = self._codec.share(version)
        if self._codec.clip_norm:
            norm = float(np.linalg.norm(gradient.astype(self._residual.dtype, copy=False)))
            self._scale = min(1.0, self._codec.clip_norm / norm) if norm else 1.0

    def encoded_bytes(self, count: int) -> int:
        return self._sent(count) * (POSITION.itemsize + self._dtype.itemsize)

    def encode(self, start: int, count: int) -> memoryview:
        chosen = slice(start, start + count)
        residual, gradient = self._residual[chosen], self._gradient[chosen]
        if self._scale != 1.0:
            gradient = np.multiply(gradient, self._scale, dtype=residual.dtype)
        if self._velocity is None:
            residual += gradient
        else:
            velocity = self._velocity[chosen]
            velocity *= self._codec.momentum
            velocity += gradient
            residual += velocity
        positions = largest(np.abs(residual), self._sent(count))
        values = residual[positions].astype(self._dtype)
        residual[positions] = 0
        if self._velocity is not None:
            velocity[positions] = 0
        payload: NDArray[np.uint8] = np.concatenate((positions.astype(POSITION).view(np.uint8), values.view(np.uint8)))
        return payload.data

    def _sent(self, count: int) -> int:
        return min(count, max(1, round(self._share * count)))


def largest(magnitudes: Array, number: int) -> Array:
    """Return the ascending positions of the ``number`` largest elements; NaN counts as largest.

    A sample tells a bound that the wanted ones are likely above; only those are looked at closely, which is ten times
    as fast for a small share. Where the guess was too high, all are.

    Examples
    --------
    >>> largest(np.array([3.0, 1.0, 4.0, 1.5, 9.0]), 2)
    array([2, 4])
    """
    size = magnitudes.size
    if number >= size:
        return np.arange(size)
    sample = magnitudes[::SAMPLE_STRIDE]
    rank = sample.size - 2 * (sample.size * number // size) - 8
    if rank > 0:
        bound = np.partition(sample, rank)[rank]
        candidates = np.flatnonzero(~(magnitudes < bound))
        if candidates.size >= number:
            first = candidates.size - number
            return np.sort(candidates[np.argpartition(magnitudes[candidates], first)[first:]])
    return np.sort(np.argpartition(magnitudes, size - number)[size - number :])
