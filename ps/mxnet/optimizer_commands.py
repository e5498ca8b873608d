"""The commands by which workers set optimizers on a server, and read and restore their state.

A store's keys are called ``<store>[<key>]`` on the wire; an optimizer is set for one store, and every tensor of that
store has an updater from then on (:class:`ps.mxnet.optimizer.ShardUpdater`). Setting an optimizer of the same class
again changes its parameters, for all tensors at once, and keeps states and counts. Another class starts anew, when all
servers know it: ``optimizer/set`` is then followed by ``optimizer/begin``.

States travel in pieces, as raw elements with their place: a worker reads or writes one after the other, so that no
message is long and the server serves others in between.
"""

from __future__ import annotations

from typing import Iterator, Optional

import msgspec
import mxnet as mx
import numpy as np

from ps.commands import Handler
from ps.messages import Shard, Tensor
from ps.mxnet.description import build
from ps.mxnet.optimizer import Chosen, ShardUpdater
from ps.mxnet.profiling import ServerProfiler
from ps.mxnet.wire import OTHER_CLASS, Reads, Restore, SetOptimizer, ShardState, Writes
from ps.shards import ShardBook

__all__ = ["handlers"]


def handlers(rank: int, book: ShardBook) -> dict[str, Handler]:
    """Return the commands of server ``rank``."""
    mx.random.seed(rank)  # an optimizer that draws numbers draws others on every server
    optimizers = _Optimizers(book)
    return {
        "optimizer/import": lambda body: b"",  # done before, in a thread (ps.commands)
        "optimizer/set": optimizers.set,
        "optimizer/begin": optimizers.begin,
        "optimizer/remove": optimizers.remove,
        "optimizer/states": optimizers.states,
        "optimizer/read": optimizers.read,
        "optimizer/write": optimizers.write,
        "optimizer/restore": optimizers.restore,
        "optimizer/profile": ServerProfiler(rank).execute,
    }


class _Optimizers:
    """The optimizers of the stores, and the updaters of this server's shards."""

    def __init__(self, book: ShardBook) -> None:
        self._book = book
        self._chosen: dict[str, Chosen] = {}  # by store
        self._updaters: dict[str, ShardUpdater] = {}  # by name of the tensor

    def set(self, body: bytes) -> bytes:
        """Change the parameters of a store's optimizer; of another class only refuse what :meth:`begin` cannot do."""
        request = msgspec.msgpack.decode(body, type=SetOptimizer)
        build(request.description)
        chosen = self._chosen.get(request.store)
        if chosen is None or chosen.description.name != request.description.name:
            return OTHER_CLASS
        chosen.description = request.description
        return b""

    def begin(self, body: bytes) -> bytes:
        """Give the tensors of a store, present and future, updaters of an optimizer of another class."""
        request = msgspec.msgpack.decode(body, type=SetOptimizer)
        self._chosen[request.store] = Chosen(request.description)
        self._book.set_updater(self._updater_of)
        return b""

    def remove(self, body: bytes) -> bytes:
        """Let the tensors of a store keep sums again."""
        store = body.decode()
        self._chosen.pop(store, None)
        self._updaters = {name: updater for name, updater in self._updaters.items() if _store_of(name) != store}
        self._book.set_updater(self._updater_of)
        return b""

    def _updater_of(self, tensor: Tensor, shard: Shard) -> Optional[ShardUpdater]:
        name = tensor.spec.name
        chosen = self._chosen.get(_store_of(name))
        if chosen is None:
            return None
        updater = self._updaters.get(name)
        if updater is None or updater.chosen is not chosen:
            updater = self._updaters[name] = ShardUpdater(tensor, shard, chosen)
        return updater

    def _of_store(self, store: str) -> Iterator[tuple[str, ShardUpdater]]:
        return ((name, updater) for name, updater in self._updaters.items() if _store_of(name) == store)

    def states(self, body: bytes) -> bytes:
        """Reply what there is of a store's optimizer here."""
        found = []
        for name, updater in self._of_store(body.decode()):
            arrays = [updater.array(slot) for slot in range(1, updater.slots() + 1)]
            dtypes = [array.dtype.name for array in arrays]
            sizes = [array.size for array in arrays]
            found.append(ShardState(name, updater.start, updater.stop, updater.count, dtypes, sizes))
        return msgspec.msgpack.encode(found)

    def read(self, body: bytes) -> bytes:
        """Reply elements of states; nothing of tensors that have no shard here."""
        found = []
        for read in msgspec.msgpack.decode(body, type=Reads).reads:
            updater = self._updaters.get(read.tensor)
            if updater is not None and 1 <= read.slot <= updater.slots():
                found.append(updater.array(read.slot)[read.start : read.stop].tobytes())
        return b"".join(found)

    def write(self, body: bytes) -> bytes:
        """Set those elements of states that belong to shards of this server."""
        for piece in msgspec.msgpack.decode(body, type=Writes).pieces:
            updater = self._updaters.get(piece.tensor)
            if updater is None:
                continue
            values = np.frombuffer(piece.data, piece.dtype)
            start, stop = piece.start, piece.start + values.size
            if not updater.whole:
                start, stop = max(start, updater.start), min(stop, updater.stop)
            if start < stop:
                updater.put(piece.slot, start, values[start - piece.start : stop - piece.start])
        return b""

    def restore(self, body: bytes) -> bytes:
        """Forget the states of a store and set its counts."""
        request = msgspec.msgpack.decode(body, type=Restore)
        for name, updater in self._of_store(request.store):
            updater.restart(request.counts.get(name, 0))
        return b""


def _store_of(tensor: str) -> str:
    return tensor.partition("[")[0]
