"""Two bits per element: minus the threshold, nothing, or the threshold. MXNet's ``2bit``, with its numbers.

The gradient is added to the residual; where that has reached the threshold, up or down, the threshold is sent and
subtracted, and the rest stays. Every step moves an element by one threshold at most: choose it near the largest
gradients, so that the residuals of the others, not of those, take time. A NaN stays in the residual, as in MXNet: the
element is never sent again.

A payload is two planes of bits, eight elements a byte: where the threshold goes up, and where it goes down.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps.codecs.interface import Array, BaseCodec, Buffer, CodecError, working_dtype

__all__ = ["TwoBit"]


class TwoBit(BaseCodec, frozen=True, kw_only=True, tag="2bit"):
    """Quantise to {-threshold, 0, threshold}.

    Attributes
    ----------
    threshold
        Above 0; the default is MXNet's.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ValueError(f"the threshold of 2bit must be above 0, not {self.threshold!r}")

    def encoder(self, size: int, dtype: np.dtype[Any]) -> _Encoder:
        return _Encoder(self.threshold, size, dtype)

    def decode(self, payload: Buffer, count: int, dtype: np.dtype[Any]) -> Array:
        bits = np.frombuffer(payload, np.uint8)
        plane_bytes = _plane_bytes(count)
        if bits.size != 2 * plane_bytes:
            raise CodecError(f"{count} elements in 2bit take {2 * plane_bytes} bytes, not {bits.size}")
        levels = np.unpackbits(bits[:plane_bytes], count=count).view(np.int8)
        levels -= np.unpackbits(bits[plane_bytes:], count=count).view(np.int8)
        return np.multiply(levels, self.threshold, dtype=dtype)


class _Encoder:
    def __init__(self, threshold: float, size: int, dtype: np.dtype[Any]) -> None:
        self._threshold = threshold
        self._residual = np.zeros(size, working_dtype(dtype))
        self._gradient: Array = self._residual

    def begin(self, version: int, gradient: Array) -> None:
        self._gradient = gradient

    def encoded_bytes(self, count: int) -> int:
        return 2 * _plane_bytes(count)

    def encode(self, start: int, count: int) -> memoryview:
        residual = self._residual[start : start + count]
        residual += self._gradient[start : start + count]
        up = residual >= self._threshold
        down = residual <= -self._threshold
        levels = up.view(np.int8) - down.view(np.int8)
        residual -= np.multiply(levels, self._threshold, dtype=residual.dtype)
        return np.concatenate((np.packbits(up), np.packbits(down))).data


def _plane_bytes(count: int) -> int:
    return (count + 7) // 8
