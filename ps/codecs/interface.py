"""What every codec is: parameters that all ranks agree on, an encoder with memory at the worker, a decoder without.

A *codec* is a frozen struct of parameters. It travels inside the tensor's specification, so that ranks which disagree
are told so, and a server that has the specification can decode. An *encoder* belongs to one key of one worker, and
keeps what was not sent yet: the *residual*, which is added to the next gradient (error feedback: Seide et al. 2014;
convergence: Stich et al. 2018). So a codec loses time, not information, whatever it leaves out of one round.

Invariants:

* a range is encoded once per round, when it is about to be sent; a resend sends the same bytes again;
* the number of bytes of a range is known before it is encoded: credit is counted in what really travels;
* any range of elements can be encoded, from one element up: partitions need no alignment;
* a payload that was not made by the encoder is refused by ``decode``, whatever its bytes.
"""

from __future__ import annotations

from typing import Any, Protocol, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "BaseCodec", "Buffer", "CodecError", "Encoder", "working_dtype"]

Array = NDArray[Any]
Buffer = Union[memoryview, NDArray[np.uint8]]


class CodecError(ValueError):
    """A payload that the codec's encoder cannot have made."""


class Encoder(Protocol):
    """The sending side of one key."""

    def begin(self, version: int, gradient: Array) -> None:
        """A round begins: ``gradient``, one-dimensional, is what :meth:`encode` reads until the next call."""

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes ``count`` elements become in this round."""

    def encode(self, start: int, count: int) -> memoryview:
        """Return the payload of elements ``start`` to ``start + count`` and remember what it leaves out."""


class BaseCodec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Parameters of a codec; each is checked where the struct is made or decoded (``ValueError``)."""

    @property
    def encodes_answers(self) -> bool:
        """Whether the servers encode the answers to a push-pull, too."""
        return False

    def accepts(self, dtype: np.dtype[Any]) -> bool:
        """Return whether tensors of ``dtype`` can be encoded; by default all floats."""
        return dtype.kind == "f"

    def encoder(self, size: int, dtype: np.dtype[Any]) -> Encoder:
        """Return an encoder for a tensor of ``size`` elements, with nothing left over from earlier rounds."""
        raise NotImplementedError

    def decode(self, payload: Buffer, count: int, dtype: np.dtype[Any]) -> Array:
        """Return the ``count`` elements that ``payload`` stands for; they may share its memory.

        Raises
        ------
        CodecError
            The payload is not one of ``count`` elements.
        """
        raise NotImplementedError


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a residual is kept: at least float32, since float16 would lose what is left over."""
    return np.promote_types(dtype, np.float32)
