"""``set_gradient_compression``: MXNet's dictionary of parameters, and to which keys of a store it applies.

The codecs are those of :mod:`ps.codecs`: MXNet's ``2bit`` with its numbers, ``1bit``, ``fp16`` and ``topk``. Each
worker keeps the residual of its own gradients, summed over its devices first, as MXNet's dist stores do.

A key is compressed when it is initialised after the call: the servers have to know how to read it, and all ranks have
to agree. Keys of integers are left alone, and so is what is pushed as rows (MXNet's store refuses both).
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import numpy as np

from ps.codecs import Codec, codec_of
from ps.errors import SettingsError
from ps.mxnet.errors import raised_for_mxnet

__all__ = ["codec_from", "codec_for"]


def codec_from(compression_params: Mapping[str, Any]) -> Codec:
    """Return the codec of MXNet's ``compression_params``.

    Raises
    ------
    SettingsError
        There is no such type or parameter, or a value is out of range. It is an ``MXNetError`` too.
    """
    with raised_for_mxnet():
        if not isinstance(compression_params, (str, Mapping)):
            expected = {"type": "2bit", "threshold": 0.5}
            raise SettingsError(
                f"gradient compression: expected parameters such as {expected}, not {compression_params!r}"
            )
        return codec_of(compression_params)


def codec_for(codec: Optional[Codec], dtype: np.dtype[Any]) -> Optional[Codec]:
    """Return ``codec`` where it can encode a key of ``dtype``, else None."""
    return codec if codec is not None and codec.accepts(dtype) else None
