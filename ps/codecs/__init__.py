"""What travels instead of raw elements: one codec per file, behind the interface of :mod:`ps.codecs.interface`.

========  ========================================  =========================================
type      a float32 becomes                         class
========  ========================================  =========================================
``2bit``  2 bits                                    :class:`~ps.codecs.two_bit.TwoBit`
``1bit``  1 bit                                     :class:`~ps.codecs.one_bit.OneBit`
``fp16``  16 bits                                   :class:`~ps.codecs.half.Half`
``topk``  64 bits for the largest, none otherwise   :class:`~ps.codecs.top_k.TopK`
========  ========================================  =========================================

The way in for users is :func:`codec_of`; the wire knows the union :data:`Codec`.
"""

from __future__ import annotations

from typing import Any, Mapping, Union

import msgspec

from ps.codecs.half import Half
from ps.codecs.interface import BaseCodec, CodecError, Encoder
from ps.codecs.one_bit import OneBit
from ps.codecs.top_k import TopK
from ps.codecs.two_bit import TwoBit
from ps.errors import SettingsError

__all__ = ["Codec", "CodecError", "Encoder", "Half", "OneBit", "TopK", "TwoBit", "codec_of", "describe"]

Codec = Union[TwoBit, OneBit, Half, TopK]


def codec_of(description: Union[str, Mapping[str, Any], Codec]) -> Codec:
    """Return the codec that ``description`` means: a type, MXNet's dictionary of type and parameters, or a codec.

    Raises
    ------
    SettingsError
        There is no such type or parameter, or a value is out of range.

    Examples
    --------
    >>> codec_of({"type": "2bit", "threshold": 0.25})
    TwoBit(threshold=0.25)
    >>> codec_of("fp16")
    Half(answers=False)
    """
    if isinstance(description, BaseCodec):
        return description
    parameters = {"type": description} if isinstance(description, str) else dict(description)
    try:
        return msgspec.convert(parameters, Codec, strict=False)  # type: ignore[no-any-return]
    except (msgspec.ValidationError, ValueError) as error:
        raise SettingsError(f"gradient compression {parameters!r}: {error}; known are {_KNOWN}") from None


def describe(codec: BaseCodec) -> str:
    """Return a codec as its users write it, such as ``{'type': '2bit', 'threshold': 0.5}``."""
    return repr(msgspec.to_builtins(codec))


_KNOWN = ", ".join(describe(kind()) for kind in (TwoBit, OneBit, Half, TopK))
