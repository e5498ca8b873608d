"""Files of optimizer states: reading them from the servers and bringing them back.

The format is in docs/optimizer-states.md: a zip archive of ``.npy`` members, one per array of state, as long as its
tensor, and ``optimizer.json``. Nothing in it depends on servers, placement or configuration, and nothing is pickled.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from typing import Any, Iterator, Mapping, Optional, Union

import msgspec
import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from ps.errors import SettingsError
from ps.messages import TensorSpec
from ps.mxnet.description import (
    EVOLVING,
    Plain,
    needs_whole_tensors,
    parameters,
    plain_attributes,
    registered_name,
    set_parameters,
    state_leaves,
)
from ps.mxnet.wire import PIECE_BYTES, Piece, Read, Reads, Restore, ShardState, Writes
from ps.worker import Worker

__all__ = ["load", "save"]

Key = Union[int, str]
Array = NDArray[Any]

FORMAT = 1
_npy: Any = np.lib.format
_DESCRIPTION = "optimizer.json"


class _KeyStates(msgspec.Struct):
    key: Key
    shape: tuple[int, ...]
    dtype: str
    count: int
    arrays: list[str]  #: members of the archive, in the order of the optimizer's state


class _Schedule(msgspec.Struct):
    name: str
    parameters: dict[str, Plain]


class _Contents(msgspec.Struct):
    format: int
    optimizer: str
    keys: list[_KeyStates]
    evolving: dict[str, Plain] = {}
    parameters: Optional[dict[str, Plain]] = None
    lr_mult: Optional[list[tuple[Key, float]]] = None
    wd_mult: Optional[list[tuple[Key, float]]] = None
    schedule: Optional[_Schedule] = None


# ------------------------------------------------------------------------------------------------ saving


def save(
    path: str, worker: Worker, store: str, optimizer: Any, specs: Mapping[Key, TensorSpec], dump_optimizer: bool
) -> None:
    """Write the states that the servers have for the keys of a store."""
    name = registered_name(optimizer)
    shards = _shard_states(worker, store)
    contents = _Contents(
        FORMAT, name, [], {attribute: getattr(optimizer, attribute) for attribute in EVOLVING.get(name, ())}
    )
    if dump_optimizer:
        contents.parameters = parameters(optimizer)
        contents.lr_mult = list(optimizer.lr_mult.items())
        contents.wd_mult = list(optimizer.wd_mult.items())
        schedule = optimizer.lr_scheduler
        if schedule is not None:
            contents.schedule = _Schedule(type(schedule).__name__, plain_attributes(schedule))
    members: dict[str, Array] = {}
    for number, (key, spec) in enumerate(specs.items()):
        found = [(server, state) for server, state in shards.get(spec.name, []) if state.start < state.stop]
        count = max((state.count for _, state in found), default=0)
        slots = min((len(state.dtypes) for _, state in found), default=0)
        names = [f"{number}.{slot}.npy" for slot in range(1, slots + 1)]
        contents.keys.append(_KeyStates(key, spec.shape, spec.dtype, count, names))
        for slot, member in enumerate(names):
            members[member] = np.empty(sum(state.sizes[slot] for _, state in found), found[0][1].dtypes[slot])
    _fetch(worker, shards, specs, contents, members)
    _write(path, contents, members)


def _shard_states(worker: Worker, store: str) -> dict[str, list[tuple[int, ShardState]]]:
    """Return by tensor what each server has."""
    shards: dict[str, list[tuple[int, ShardState]]] = {}
    bodies = worker.command("optimizer/states", store.encode(), collective=False)
    for server, body in enumerate(bodies):
        for state in msgspec.msgpack.decode(body, type=list[ShardState]):
            shards.setdefault(state.tensor, []).append((server, state))
    return shards


def _fetch(
    worker: Worker,
    shards: Mapping[str, list[tuple[int, ShardState]]],
    specs: Mapping[Key, TensorSpec],
    contents: _Contents,
    members: Mapping[str, Array],
) -> None:
    """Fill the arrays with what the servers have."""
    reads: list[Read] = []
    targets: list[Array] = []
    nbytes = 0

    def flush() -> None:
        nonlocal nbytes
        if reads:
            bodies = worker.command("optimizer/read", msgspec.msgpack.encode(Reads(reads)), collective=False)
            offsets = [0] * len(bodies)
            for read, target in zip(reads, targets):
                for server, state in shards[read.tensor]:
                    size = min(read.stop, state.sizes[read.slot - 1]) - read.start
                    if size > 0:
                        values = np.frombuffer(bodies[server], target.dtype, size, offsets[server])
                        offsets[server] += values.nbytes
                        target[state.start + read.start : state.start + read.start + size] = values
        reads.clear()
        targets.clear()
        nbytes = 0

    for entry in contents.keys:
        tensor = specs[entry.key].name
        for slot, member in enumerate(entry.arrays, 1):
            target = members[member]
            longest = max(state.sizes[slot - 1] for _, state in shards[tensor])
            step = max(1, PIECE_BYTES // target.itemsize)
            for start in range(0, longest, step):
                stop = min(start + step, longest)
                reads.append(Read(tensor, slot, start, stop))
                targets.append(target)
                nbytes += (stop - start) * target.itemsize
                if nbytes >= PIECE_BYTES:
                    flush()
    flush()


def _write(path: str, contents: _Contents, members: Mapping[str, Array]) -> None:
    """Write the file, which appears under its name when it is complete."""
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        with zipfile.ZipFile(unfinished, "w") as archive:
            archive.writestr(_DESCRIPTION, msgspec.json.format(msgspec.json.encode(contents)))
            for name, values in members.items():
                with archive.open(name, "w", force_zip64=True) as member:
                    _npy.write_array(member, values, allow_pickle=False)
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


# ----------------------------------------------------------------------------------------------- loading


def load(path: str, worker: Worker, store: str, optimizer: Any, specs: Mapping[Key, TensorSpec]) -> None:
    """Restore the states of a store's keys from a file, and the object's parameters and counts."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    try:
        archive = zipfile.ZipFile(path)
        contents = msgspec.json.decode(archive.read(_DESCRIPTION), type=_Contents)
    except (zipfile.BadZipFile, KeyError, msgspec.MsgspecError) as error:
        raise SettingsError(f"{path!r} is no file of AutoByte's optimizer states: {error}") from error
    with archive:
        _check(path, archive, contents, optimizer, specs)
        counts = {specs[entry.key].name: entry.count for entry in contents.keys}
        restore = msgspec.msgpack.encode(Restore(store, counts))
        worker.command("optimizer/restore", restore, agreed=f"a file with hash {digest.hexdigest()[:16]}")
        if worker.rank == 0:
            _send(worker, archive, contents, specs)
    _take(contents, optimizer)
    worker.barrier(f"{store}: states are loaded")


def _check(
    path: str, archive: zipfile.ZipFile, contents: _Contents, optimizer: Any, specs: Mapping[Key, TensorSpec]
) -> None:
    """Raise where the file does not fit the store."""

    def refuse(what: str) -> None:
        raise SettingsError(f"load_optimizer_states({path!r}): {what}; nothing was changed")

    if contents.format != FORMAT:
        refuse(f"its format is {contents.format}, this version reads {FORMAT}")
    name = registered_name(optimizer)
    if contents.optimizer != name:
        refuse(f"it holds the states of {contents.optimizer!r}, the store has {name!r}")
    entries = {entry.key: entry for entry in contents.keys}
    for key, spec in specs.items():
        entry = entries.get(key)
        if entry is None:
            refuse(f"it has no key {key!r}")
        elif (entry.shape, entry.dtype) != (spec.shape, spec.dtype):
            refuse(
                f"key {key!r} has shape {entry.shape} and dtype {entry.dtype} in it, but shape {spec.shape} and dtype"
                f" {spec.dtype} here"
            )
    for entry in contents.keys:
        if entry.key not in specs:
            refuse(f"its key {entry.key!r} is not in this store")
        if entry.arrays:
            expected = _layout(contents, optimizer, specs[entry.key])
            found = [_header(archive, member) for member in entry.arrays]
            if found != expected:
                refuse(f"the states of key {entry.key!r} are {found}, expected {expected}")


def _layout(contents: _Contents, optimizer: Any, spec: TensorSpec) -> list[tuple[str, int]]:
    """Return dtype and size of each array of state of a tensor, with the parameters of the file."""
    size = int(np.prod(spec.shape))
    whole = needs_whole_tensors(optimizer)
    saved = {name: getattr(optimizer, name) for name in contents.parameters or {} if hasattr(optimizer, name)}
    try:
        set_parameters(optimizer, contents.parameters or {})
        weight = mx.nd.zeros(spec.shape if whole else (1,), dtype=spec.dtype)
        leaves = list(state_leaves(optimizer.create_state_multi_precision(0, weight)))
    finally:
        set_parameters(optimizer, saved)
    return [(np.dtype(leaf.dtype).name, leaf.size if whole else size) for leaf in leaves]


def _header(archive: zipfile.ZipFile, member: str) -> tuple[str, int]:
    try:
        with archive.open(member) as file:
            version = _npy.read_magic(file)
            read = _npy.read_array_header_1_0 if version == (1, 0) else _npy.read_array_header_2_0
            shape, _, dtype = read(file)
    except (KeyError, ValueError) as error:
        raise SettingsError(f"optimizer states: {member!r}: {error}") from error
    return dtype.name, int(np.prod(shape))


def _send(worker: Worker, archive: zipfile.ZipFile, contents: _Contents, specs: Mapping[Key, TensorSpec]) -> None:
    """Send the states to the servers."""
    pieces: list[Piece] = []
    nbytes = 0
    for piece in _pieces(archive, contents, specs):
        pieces.append(piece)
        nbytes += len(piece.data)
        if nbytes >= PIECE_BYTES:
            worker.command("optimizer/write", msgspec.msgpack.encode(Writes(pieces)), collective=False)
            pieces = []
            nbytes = 0
    if pieces:
        worker.command("optimizer/write", msgspec.msgpack.encode(Writes(pieces)), collective=False)


def _pieces(archive: zipfile.ZipFile, contents: _Contents, specs: Mapping[Key, TensorSpec]) -> Iterator[Piece]:
    for entry in contents.keys:
        for slot, member in enumerate(entry.arrays, 1):
            with archive.open(member) as file:
                values = _npy.read_array(file, allow_pickle=False).reshape(-1)
            step = max(1, PIECE_BYTES // values.itemsize)
            for start in range(0, values.size, step):
                part = values[start : start + step]
                yield Piece(specs[entry.key].name, slot, values.dtype.name, start, part.tobytes())


def _take(contents: _Contents, optimizer: Any) -> None:
    """Give the user's object what the file has of it."""
    set_parameters(optimizer, contents.parameters or {})
    for attribute in EVOLVING.get(contents.optimizer, ()):
        if attribute in contents.evolving:
            setattr(optimizer, attribute, contents.evolving[attribute])
    if contents.lr_mult is not None:
        optimizer.lr_mult = dict(contents.lr_mult)
    if contents.wd_mult is not None:
        optimizer.wd_mult = dict(contents.wd_mult)
    schedule = optimizer.lr_scheduler
    if contents.schedule is not None and type(schedule).__name__ == contents.schedule.name:
        for name, value in contents.schedule.parameters.items():
            if hasattr(schedule, name):
                setattr(schedule, name, value)
    counts = optimizer._index_update_count
    counts.clear()
    counts.update({entry.key: entry.count for entry in contents.keys if entry.count})
    optimizer.num_update = max(counts.values(), default=optimizer.begin_num_update)
