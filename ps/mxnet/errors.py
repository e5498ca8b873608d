"""The project's errors as MXNet's users catch them.

What a store raises is an error of :mod:`ps.errors` and an ``mx.base.MXNetError`` at the same time, so that
``except mx.MXNetError`` goes on to work when the store's name changes.
"""

from __future__ import annotations

import contextlib
from typing import Iterator

from mxnet.base import MXNetError

from ps import errors
from ps.errors import AutoByteError

__all__ = ["TensorError", "for_mxnet", "raised_for_mxnet"]


class TensorError(errors.TensorError, MXNetError):  # type: ignore[misc]
    __doc__ = errors.TensorError.__doc__


_classes: dict[type[AutoByteError], type[AutoByteError]] = {errors.TensorError: TensorError}


def for_mxnet(error: AutoByteError) -> AutoByteError:
    """Return ``error`` as one that is an ``MXNetError`` too."""
    cls = type(error)
    if issubclass(cls, MXNetError):
        return error
    if cls not in _classes:
        _classes[cls] = type(cls.__name__, (cls, MXNetError), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return _classes[cls](*error.args)


@contextlib.contextmanager
def raised_for_mxnet() -> Iterator[None]:
    """Raise what the body raises :func:`for_mxnet`."""
    try:
        yield
    except AutoByteError as error:
        raise for_mxnet(error).with_traceback(error.__traceback__) from None
