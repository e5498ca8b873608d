"""What users give to a store: keys, and per key one array or one for each device."""

from __future__ import annotations

from typing import Any, Union

import mxnet as mx
import numpy as np

__all__ = ["Key", "pairs", "describe"]

Key = Union[int, str]


def pairs(verb: str, key: Any, value: Any) -> list[tuple[Key, list[Any]]]:
    """Return each key with its arrays, in the order of the keys.

    Parameters
    ----------
    verb
        What the user called, for error messages.
    key, value
        A key and an array or a list of arrays; or a list of keys and a list with one of these for each. A key that is
        given several times has all of its arrays, as in MXNet.

    Raises
    ------
    TypeError, ValueError
        The arguments are nothing of this kind.
    """
    if not isinstance(key, (list, tuple)):
        return [(_key(verb, key), _arrays(verb, key, value))]
    if not isinstance(value, (list, tuple)) or len(key) != len(value):
        raise ValueError(f"{verb}: {len(key)} keys need a list of as many values, not {describe(value)}")
    found: dict[Key, list[Any]] = {}
    for one, arrays in zip(key, value):
        found.setdefault(_key(verb, one), []).extend(_arrays(verb, one, arrays))
    return list(found.items())


def describe(value: Any) -> str:
    """Return what kind of thing ``value`` is: ``list of length 3``."""
    length = f" of length {len(value)}" if isinstance(value, (list, tuple)) else ""
    return type(value).__name__ + length


def _key(verb: str, key: Any) -> Key:
    if isinstance(key, str):
        return key
    if isinstance(key, (int, np.integer)):
        return int(key)
    raise TypeError(f"{verb}: a key is an int or a str, not {key!r}")


def _arrays(verb: str, key: Any, value: Any) -> list[Any]:
    if isinstance(value, mx.nd.NDArray):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{verb}({key!r}): expected an NDArray or a list of them, not {describe(value)}")
    for array in value:
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(f"{verb}({key!r}): expected an NDArray or a list of them, not {describe(array)}")
    if not value:
        raise ValueError(f"{verb}({key!r}): the list of NDArrays is empty")
    return list(value)
