"""Bodies of the commands about optimizers (:mod:`ps.mxnet.optimizer_commands`), typed and without MXNet."""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from ps.mxnet.description import Description

__all__ = ["OTHER_CLASS", "Piece", "Profile", "Read", "Reads", "Restore", "SetOptimizer", "ShardState", "Writes"]

#: A command or reply carries about this much of a state.
PIECE_BYTES = 4 << 20
#: ``optimizer/set`` replies this where nothing has changed, since the store has no optimizer of the class.
OTHER_CLASS = b"other class"


class SetOptimizer(msgspec.Struct, frozen=True):
    """``optimizer/set`` and ``optimizer/begin``: give the tensors of a store an optimizer."""

    store: str
    description: Description


class ShardState(msgspec.Struct, frozen=True):
    """``optimizer/states`` replies one of each shard that has an updater; its body is the store's name."""

    tensor: str
    start: int
    stop: int
    count: int
    dtypes: list[str]  #: of the arrays of state; none before the first update
    sizes: list[int]  #: in elements


class Read(msgspec.Struct, frozen=True):
    """Elements of an array of state, counted from the beginning of each shard's."""

    tensor: str
    slot: int
    start: int
    stop: int


class Reads(msgspec.Struct, frozen=True):
    """``optimizer/read`` replies the elements, as far as they are there, one after the other."""

    reads: list[Read]


class Restore(msgspec.Struct, frozen=True):
    """``optimizer/restore``: forget all states of a store, and how many updates its tensors have had."""

    store: str
    counts: dict[str, int]


class Piece(msgspec.Struct, frozen=True):
    """Elements of an array of state; ``start`` counts from the beginning of the tensor's."""

    tensor: str
    slot: int
    dtype: str
    start: int
    data: bytes


class Writes(msgspec.Struct, frozen=True):
    """``optimizer/write``: each server takes the elements that belong to its shards."""

    pieces: list[Piece]


class Profile(msgspec.Struct, frozen=True):
    """``optimizer/profile``: call a function of ``mx.profiler`` (:mod:`ps.mxnet.profiling`)."""

    function: Literal["set_config", "set_state", "dump", "pause", "resume"]
    arguments: dict[str, Union[bool, int, float, str]]
