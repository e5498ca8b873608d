"""The KVStore that Gluon's Trainer, Module and Estimator talk to.

Registered with MXNet as ``dist_sync_autobyte`` (short: ``dist_autobyte``) and ``dist_async_autobyte``; each also with
``device`` in its name, which changes nothing else. It is a subclass of ``mx.kvstore.KVStore``, because MXNet asks for
that class in places, but it has no native store behind it: every public method is replaced.

A store only puts work into the engine's order: gradient -> stage, the transfer, stage -> output
(:mod:`ps.mxnet.stage`, :mod:`ps.mxnet.connection`). Nothing blocks but ``init``, ``barrier`` and what is said to the
servers as a whole (``set_optimizer`` ...), which are collective. Everything that a method is given it takes at the time
of the call; operations on one key happen in the order of the calls.

Keys belong to the store: two Trainers in one process both use 0, 1, 2. On the wire a key is called after its store's
number and its ``repr``, so that 3 and '3' are two keys; all workers create their stores in the same order.

docs/kvstore.md compares every call with MXNet's own stores.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import Any, Callable, Iterable, Iterator, Mapping, NoReturn, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray.sparse import BaseSparseNDArray

from ps.codecs import Codec
from ps.messages import Mode, SpanKind, TensorSpec
from ps.mxnet import sparse
from ps.mxnet.arguments import Key, pairs
from ps.mxnet.arrays import paused
from ps.mxnet.compression import codec_for, codec_from
from ps.mxnet.connection import connect
from ps.mxnet.entries import Entries, Entry
from ps.mxnet.errors import TensorError, raised_for_mxnet
from ps.mxnet.optimizer_client import StoreOptimizer
from ps.mxnet.sparse import OrderStage
from ps.mxnet.stage import deliver, new_stage
from ps.operation import checked_priority
from ps.rows import Ids
from ps.worker import DTYPES, Worker

__all__ = ["AutoByteKVStore"]

log = logging.getLogger("autobyte.mxnet")


class AutoByteKVStore(mx.kvstore.KVStore):  # type: ignore[misc]
    """A store that sums over all workers.

    Parameters
    ----------
    mode
        When a push takes effect (docs/modes.md).
    type
        What it says that it is. Module looks for ``_sync`` in it, Trainer for ``dist`` and ``async``.

    Examples
    --------
    >>> import ps.mxnet                                                  # doctest: +SKIP
    >>> import mxnet as mx
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', kvstore='dist_sync_autobyte', update_on_kvstore=False)
    """

    _numbers = itertools.count()

    def __init__(self, mode: Mode = Mode.SYNC, type: str = "dist_sync_autobyte") -> None:
        # attributes of the base class that MXNet's own code looks at
        self.handle = None
        self._updater: Any = None
        self._updater_func = None
        self._str_updater_func = None
        self._is_p3 = False

        self._mode = mode
        self._type = type
        self._codec: Optional[Codec] = None
        self._connection = connect()
        self._number = next(self._numbers)
        self._entries = Entries(self.rank)
        self._optimizer = StoreOptimizer(self._connection.worker, f"store{self._number}")
        self._stale: frozenset[int] = frozenset()  #: ids of gradients that are not pushed (ps.mxnet.trainer)
        self._values: Optional[dict[Key, Any]] = None  #: the keys' values where the workers update them

    def __del__(self) -> None:
        pass  # the base class would free a native handle

    # ------------------------------------------------------------------------------------ who and what

    @property
    def type(self) -> str:
        """The name that it was created by; of the short one, the long one."""
        return self._type

    @property
    def rank(self) -> int:
        """This worker's number, 0 to ``num_workers - 1``."""
        return self._connection.worker.rank

    @property
    def num_workers(self) -> int:
        """How many workers push into each sum."""
        return self._connection.worker.num_workers

    @property
    def worker(self) -> Worker:
        """This process's part in the job, with its ``statistics()`` and its present ``config``."""
        return self._connection.worker

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether the store has a capability; ``optimizer`` is the only one that MXNet knows."""
        if capability.lower() == mx.kvstore.KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"unknown capability {capability!r}")

    # ------------------------------------------------------------------------------------- operations

    def init(self, key: Any, value: Any) -> None:
        """Give keys their first value: rank 0's. Collective: returns when all ranks may use the keys.

        Parameters
        ----------
        key
            An int or a str, or a list of them (one round trip for all). Every rank initialises the same keys.
        value
            An NDArray per key, of the same shape and dtype on all ranks (a list of them: one per device, all alike).

        Raises
        ------
        TensorError
            The key was initialised before, or the ranks disagree about it; the text names the key and the ranks.
        """
        entries = self._entries.new("init", key, value, self._new_entry)
        values = {}
        for entry in entries.values():
            entry.stage.array.wait_to_read()
            values[entry.spec.name] = entry.stage.memory.reshape(entry.spec.shape)
        self._connection.init([entry.spec for entry in entries.values()], values)
        for entry in entries.values():
            if isinstance(entry.stage, OrderStage):
                entry.stage.forget_value()
        self._entries.add(entries)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Initialise keys, and write rank 0's values to ``out``, on every rank, without waiting for it.

        Trainer calls this in its first step. What ``broadcast_parameters`` brought before and no step pushes, such as
        the running means of a batch normalisation, has become the rank's own since and is left alone.

        Where the ranks disagree about a key, the error is raised by whoever waits for an ``out``, and by the next call
        that uses the key.
        """
        checked_priority(priority, "broadcast")
        outputs = dict(pairs("broadcast", key, out))
        entries = self._entries.new("broadcast", key, value, self._new_entry)
        self._entries.add(entries)
        self._connection.begin_init(list(entries.values()))
        for name, entry in entries.items():
            wanted = [array for array in outputs[name] if not self._connection.is_own(array)]
            if self.rank != 0 or isinstance(entry.stage, OrderStage):
                self._pull(name, entry, wanted, priority)
            else:
                self._deliver(name, entry, wanted)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add this worker's value to the key's round. The sum becomes the key's value when all workers have pushed.

        Parameters
        ----------
        key
            An int or a str, or a list of them.
        value
            Per key an NDArray, or a list of NDArrays, one per device, whose sum is this worker's value.
        priority
            Larger is more urgent; Trainer passes minus the parameter's index.
        """
        checked_priority(priority, "push")
        inputs = pairs("push", key, value)
        entries = {name: self._entries.find("push", name, values) for name, values in inputs}
        for name, values in inputs:
            self._push(SpanKind.PUSH, name, entries[name], values, priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the key's value to ``out``, and nothing else: what this worker's earlier operations left, or round 0's.

        Parameters
        ----------
        key
            An int or a str, or a list of them.
        out
            Per key an NDArray or a list of NDArrays, one per device. Where its dtype is another, values are converted.
        ignore_sparse
            Leave outputs that are not dense alone; False: they get all rows.
        """
        checked_priority(priority, "pull")
        for name, outputs in pairs("pull", key, out):
            if ignore_sparse:
                outputs = [output for output in outputs if output.stype == "default"]
            self._pull(name, self._entries.find("pull", name, outputs, any_dtype=True), outputs, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Write some rows of the key's value to row-sparse ``out``; only these rows travel. It waits for the ids.

        Parameters
        ----------
        key
            An int or a str, or a list of them.
        out
            Per key a RowSparseNDArray or a list of them, one per device.
        row_ids
            Which rows, in any order and any number of times: per key an NDArray for all outputs, or a list of one for
            each. int64, or floats that are exact.

        Raises
        ------
        TensorError
            An id is not a row of the key's, or may have been rounded; the text names both.
        """
        checked_priority(priority, "row_sparse_pull")
        inputs = pairs("row_sparse_pull", key, out)
        several = isinstance(key, (list, tuple)) and isinstance(row_ids, (list, tuple)) and len(row_ids) > 1
        ids = dict(pairs("row_sparse_pull", key, row_ids)) if several else {}
        with paused():
            for name, outputs in inputs:
                entry = self._entries.find("row_sparse_pull", name, outputs, any_dtype=True)
                wanted = ids[name] if several else row_ids
                for rows, takers in sparse.ids_by_output(
                    f"row_sparse_pull({name!r})", outputs, wanted, entry.spec.shape
                ):
                    self._pull_rows(entry, rows, takers, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push ``value`` and write the key's new value, the sum over all workers, to ``out``, by default ``value``."""
        checked_priority(priority, "pushpull")
        inputs = pairs("pushpull", key, value)
        outputs = dict(inputs if out is None else pairs("pushpull", key, out))
        entries = {name: self._entries.find("pushpull", name, values) for name, values in inputs}
        for name in entries:
            self._entries.find("pushpull", name, outputs[name], any_dtype=True)
        for name, values in inputs:
            self._push(SpanKind.PUSH_PULL, name, entries[name], values, priority)
        for name, values in inputs:
            if _in_rows(entries[name], [*values, *outputs[name]]):
                self._pull(name, entries[name], outputs[name], priority)
            else:
                self._deliver(name, entries[name], outputs[name])

    def barrier(self) -> None:
        """Wait until every worker has come here."""
        self._connection.barrier(f"store {self._number}")

    _barrier = barrier

    def set_updater(self, updater: Callable[[Key, Any, Any], None]) -> None:
        """Have every worker change a key's value by ``updater(key, sum, value)`` when the key is pushed.

        The updater runs in this process, as in MXNet's local stores (their dist stores ignore it). All workers get the
        same sums; with the same updater they keep the same values. It begins with the values that the keys have now.
        Where an optimizer is set on the servers it is removed: collective, then.

        Parameters
        ----------
        updater
            Changes ``value`` in place, by operations of MXNet; not to be called with values of earlier calls.
        """
        if not callable(updater):
            raise TypeError(f"set_updater: expected a function of key, sum and value, not {updater!r}")
        if self._mode is not Mode.SYNC:
            raise NotImplementedError("set_updater: asynchronous workers get no common sums; use set_optimizer")
        self._connection.drain()
        with raised_for_mxnet():
            self._optimizer.remove()
        self._updater = updater
        self._values = self._values or {}

    _set_updater = set_updater

    # ----------------------------------------------------------------------- the optimizer on the servers

    def set_optimizer(self, optimizer: Any) -> None:
        """Have the servers update the keys' values by the sums that are pushed (docs/optimizer.md). Collective.

        The object stays the truth: what is set on it later counts from the next push on. Setting one of the same class
        again keeps momentum and counts.

        Parameters
        ----------
        optimizer
            An ``mx.optimizer.Optimizer``, of the same class on all ranks; otherwise rank 0's settings count.

        Raises
        ------
        SettingsError
            The servers do not know the class, or it needs whole tensors and keys are spread over servers already.
        """
        if self._values is not None:
            self._hand_over()
        self._connection.drain()
        with raised_for_mxnet():
            self._optimizer.set(optimizer, self._entries.specs)
        self._updater = self._optimizer
        self._values = None

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file (docs/optimizer-states.md). Any rank may do so, alone.

        Parameters
        ----------
        dump_optimizer
            Write the optimizer's parameters as well.
        """
        self._connection.drain()
        with raised_for_mxnet():
            self._optimizer.save(fname, self._entries.specs(), dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Restore what ``save_optimizer_states`` wrote, by any number of servers. Collective: all ranks, the same file.

        Raises
        ------
        SettingsError
            The file is of another optimizer or other keys; nothing has changed.
        """
        self._connection.drain()
        with raised_for_mxnet():
            self._optimizer.load(fname, self._entries.specs())

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Encode what is pushed to the keys that are initialised from now on (docs/compression.md).

        Parameters
        ----------
        compression_params
            ``{'type': '2bit', 'threshold': 0.5}``, or another of :mod:`ps.codecs`; alike on all ranks.
        """
        self._codec = codec_from(compression_params)
        if self._entries:
            log.warning("%d keys initialised before set_gradient_compression stay uncompressed", len(self._entries))

    def _send_command_to_servers(self, head: int, body: str) -> NoReturn:
        raise NotImplementedError(f"command {head}: AutoByte's servers take no commands of MXNet's")

    @contextlib.contextmanager
    def leaving_out(self, arrays: Iterable[Any]) -> Iterator[None]:
        """Push none of ``arrays`` meanwhile; where nothing is left of a key's, this worker contributes nothing."""
        self._stale = frozenset(map(id, arrays))
        try:
            yield
        finally:
            self._stale = frozenset()

    # ---------------------------------------------------------------------------------------- details

    def _push(self, kind: SpanKind, name: Key, entry: Entry, values: Sequence[Any], priority: int) -> None:
        value = None if self._values is None else self._value(name, entry, priority)
        fresh = [array for array in values if id(array) not in self._stale] if self._stale else values
        settings = self._optimizer.settings(name) if fresh else self._optimizer.absent()
        with paused():
            if _in_rows(entry, values):
                self._refuse_updater("push", name)
                entry.current = False
                sparse.push_rows(self._connection, entry.spec, entry.stage.array, fresh, priority, settings)
                return
            if fresh:
                entry.stage.fill(fresh)
            else:
                entry.stage.clear()
            kind = SpanKind.PUSH_PULL if value is not None else kind
            entry.current = entry.keeps_values and kind is SpanKind.PUSH_PULL
            self._connection.transfer(kind, entry.spec.name, entry.stage, priority, settings)
            if value is not None:
                self._updater(name, entry.stage.array, value)

    def _pull(self, name: Key, entry: Entry, outputs: Sequence[Any], priority: int) -> None:
        """Write the key's value to ``outputs`` of any storage type."""
        dense = [output for output in outputs if not isinstance(output, BaseSparseNDArray)]
        with paused():
            if len(dense) < len(outputs):
                rows = np.arange(entry.spec.shape[0])
                self._pull_rows(
                    entry, rows, [output for output in outputs if isinstance(output, BaseSparseNDArray)], priority
                )
            if dense and isinstance(entry.stage, OrderStage):
                deliver(sparse.pull_dense(self._connection, entry.spec, entry.stage.array, priority), dense)
            elif dense:
                if self._values is None:
                    self._refresh(entry, priority)
                else:
                    self._value(name, entry, priority)
                self._deliver(name, entry, dense)

    def _refresh(self, entry: Entry, priority: int) -> None:
        """Have the key's value in its stage; nothing travels where it is there already."""
        if not entry.current or self._connection.failed:
            self._connection.transfer(SpanKind.PULL, entry.spec.name, entry.stage, priority)
            entry.current = entry.keeps_values

    def _pull_rows(self, entry: Entry, ids: Ids, outputs: Sequence[Any], priority: int) -> None:
        self._refuse_updater("row_sparse_pull", entry.spec.name)
        deliver(sparse.pull_rows(self._connection, entry.spec, entry.stage.array, ids, priority), outputs)

    def _refuse_updater(self, verb: str, name: Key) -> None:
        if self._values is not None:
            raise NotImplementedError(
                f"{verb}({name!r}): set_updater is for dense arrays; use set_optimizer for row-sparse ones"
            )

    def _deliver(self, name: Key, entry: Entry, outputs: Sequence[Any]) -> None:
        if outputs:
            with paused():
                deliver(entry.stage.array if self._values is None else self._values[name], outputs)

    def _value(self, name: Key, entry: Entry, priority: int) -> Any:
        """Return the value of a key that the workers update."""
        assert self._values is not None
        if name not in self._values:
            self._refresh(entry, priority)
            with paused():
                self._values[name] = entry.stage.array.copy()
        return self._values[name]

    def _hand_over(self) -> None:
        """Make what the workers have updated the servers' values: the sum of rank 0's and of nothing."""
        for name, spec in self._entries.specs().items():
            entry = self._entries.find("set_optimizer", name, [])
            if isinstance(entry.stage, OrderStage):
                continue
            if spec.codec is not None:
                raise NotImplementedError(f"set_optimizer: key {name!r} is compressed, and an updater has its value")
            value = self._value(name, entry, 0)
            with paused():
                if self.rank == 0:
                    entry.stage.fill([value])
                else:
                    entry.stage.clear()
            self._connection.transfer(SpanKind.PUSH, spec.name, entry.stage, 0)
            entry.current = False

    def _new_entry(self, verb: str, name: Key, value: Any) -> Entry:
        """Return an entry for a key with values such as ``value``."""
        dtype = np.dtype(value.dtype).name
        if dtype not in DTYPES:
            raise TensorError(f"{verb}({name!r}): dtype {dtype} cannot be summed; use one of {sorted(DTYPES)}")
        codec = codec_for(self._codec, np.dtype(dtype))
        wire_name, whole = f"store{self._number}[{name!r}]", self._optimizer.whole
        spec = TensorSpec(wire_name, value.shape, dtype, self._mode, sparse.storage(value), whole, codec)
        if value.stype == "default":
            return Entry(spec, new_stage(value, self.worker.allocate))
        return Entry(spec, OrderStage(value, gives_value=self.rank == 0))


def _in_rows(entry: Entry, arrays: Iterable[Any]) -> bool:
    """Return whether ``arrays`` travel as rows, without the key's stage."""
    return isinstance(entry.stage, OrderStage) or any(isinstance(array, BaseSparseNDArray) for array in arrays)
