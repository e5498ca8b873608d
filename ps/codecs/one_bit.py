"""One bit per element: whether it is above the threshold.

Two readings of the bits:

* MXNet's (since 2.0): above is +1, the rest is -1, and the difference stays in the residual. The learning rate has
  to be that of gradients of size 1.
* with ``scaled``, 1-bit SGD (Seide et al., Interspeech 2014): each range brings two floats, the mean of the rest and
  how far the mean of those above is from it, so that the sum keeps the size of the gradients.

A payload is the two floats, if any, and a plane of bits, eight elements a byte.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps.codecs.interface import Array, BaseCodec, Buffer, CodecError, working_dtype

__all__ = ["OneBit"]

#: The two floats, whatever the tensor's type: both sides compute with the value that travelled.
LEVEL = np.dtype("<f4")


class OneBit(BaseCodec, frozen=True, kw_only=True, tag="1bit"):
    """Quantise to two values.

    Attributes
    ----------
    threshold
        Any number; the default is MXNet's. With ``scaled`` 0 is the natural choice.
    scaled
        Whether the two values are the means of each range, instead of +1 and -1.
    """

    threshold: float = 0.5
    scaled: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"the threshold of 1bit must be a number, not {self.threshold!r}")

    def encoder(self, size: int, dtype: np.dtype[Any]) -> _Encoder:
        return _Encoder(self, size, dtype)

    def encoded_bytes(self, count: int) -> int:
        """Return the bytes of ``count`` elements."""
        return (2 * LEVEL.itemsize if self.scaled else 0) + (count + 7) // 8

    def decode(self, payload: Buffer, count: int, dtype: np.dtype[Any]) -> Array:
        data = np.frombuffer(payload, np.uint8)
        if data.size != self.encoded_bytes(count):
            raise CodecError(f"{count} elements in 1bit take {self.encoded_bytes(count)} bytes, not {data.size}")
        above = np.unpackbits(data[-((count + 7) // 8) :], count=count)
        if self.scaled:
            return _chosen(above, data[: 2 * LEVEL.itemsize].view(LEVEL), dtype)
        return _signs(above.view(np.int8), dtype)


class _Encoder:
    def __init__(self, codec: OneBit, size: int, dtype: np.dtype[Any]) -> None:
        self._codec = codec
        self._dtype = dtype
        self._residual = np.zeros(size, working_dtype(dtype))
        self._gradient: Array = self._residual

    def begin(self, version: int, gradient: Array) -> None:
        self._gradient = gradient

    def encoded_bytes(self, count: int) -> int:
        return self._codec.encoded_bytes(count)

    def encode(self, start: int, count: int) -> memoryview:
        residual = self._residual[start : start + count]
        residual += self._gradient[start : start + count]
        above = residual > self._codec.threshold
        bits = np.packbits(above)
        if not self._codec.scaled:
            residual -= _signs(above.view(np.int8), residual.dtype)
            return bits.data
        levels = _levels(residual, above)
        residual -= _chosen(above, levels, self._dtype)
        return np.concatenate((levels.view(np.uint8), bits)).data


def _signs(above: Array, dtype: np.dtype[Any]) -> Array:
    return np.subtract(above + above, 1, dtype=dtype)


def _levels(values: Array, above: Array) -> Array:
    """Return the mean of the rest, and how far that of those above is from it; the mean of none is 0."""
    sum_above = float(np.dot(values, above.astype(values.dtype)))
    num_above = int(np.count_nonzero(above))
    num_rest = values.size - num_above
    rest = (float(values.sum()) - sum_above) / num_rest if num_rest else 0.0
    high = sum_above / num_above if num_above else 0.0
    return np.array([rest, high - rest], LEVEL)


def _chosen(above: Array, levels: Array, dtype: np.dtype[Any]) -> Array:
    rest, step = levels.astype(dtype)
    values: Array = np.multiply(above, step, dtype=dtype)
    values += rest
    return values
