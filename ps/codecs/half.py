"""float16 on the wire for tensors of float32 and float64: half the bytes, or a quarter.

Each value is rounded to the nearest float16 (11 bits of precision; above 65504 it becomes inf, below 6e-8 zero). The
servers sum in the tensor's own type. There is no residual: what rounding leaves out is no more than what a mixed-
precision training leaves out of its gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ps.codecs.interface import Array, BaseCodec, Buffer, CodecError

__all__ = ["Half"]

HALF = np.dtype("<f2")


class Half(BaseCodec, frozen=True, kw_only=True, tag="fp16"):
    """Round to float16.

    Attributes
    ----------
    answers
        Whether the answers to a push-pull are rounded, too. A pull always brings the exact value.
    """

    answers: bool = False

    @property
    def encodes_answers(self) -> bool:
        return self.answers

    def accepts(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind == "f" and dtype.itemsize > HALF.itemsize

    def encoder(self, size: int, dtype: np.dtype[Any]) -> _Encoder:
        return _Encoder()

    def decode(self, payload: Buffer, count: int, dtype: np.dtype[Any]) -> Array:
        data = np.frombuffer(payload, np.uint8)
        if data.size != count * HALF.itemsize:
            raise CodecError(f"{count} elements in fp16 take {count * HALF.itemsize} bytes, not {data.size}")
        return data.view(HALF).astype(dtype)


class _Encoder:
    def __init__(self) -> None:
        self._gradient: Array = np.empty(0)

    def begin(self, version: int, gradient: Array) -> None:
        self._gradient = gradient

    def encoded_bytes(self, count: int) -> int:
        return count * HALF.itemsize

    def encode(self, start: int, count: int) -> memoryview:
        with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, as the module says
            return self._gradient[start : start + count].astype(HALF).view(np.uint8).data
