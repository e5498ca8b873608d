"""The KVStore that Gluon's Trainer, Module and Estimator talk to.

Registered with MXNet as ``dist_sync_autobyte`` and ``dist_autobyte``. It is a subclass of ``mx.kvstore.KVStore``,
because MXNet asks for that class in places, but it has no native store behind it: every public method is replaced.

A store only puts work into the engine's order: gradient -> stage, the transfer, stage -> output
(:mod:`ps.mxnet.stage`, :mod:`ps.mxnet.connection`). Nothing blocks but ``init``, ``broadcast`` and ``barrier``, which
are collective. Everything that a method is given it takes at the time of the call; operations on one key happen in
the order of the calls.

Keys belong to the store: two Trainers in one process both use 0, 1, 2. On the wire a key is called after its store's
number and its ``repr``, so that 3 and '3' are two keys; all workers create their stores in the same order.
"""

from __future__ import annotations

import itertools
from typing import Any, NoReturn, Sequence, Union

import mxnet as mx
import numpy as np

from ps.errors import TensorError
from ps.messages import SpanKind, Tensor
from ps.mxnet.connection import connect
from ps.mxnet.stage import Stage
from ps.worker import Worker

__all__ = ["AutoByteKVStore", "register"]

Key = Union[int, str]

_SERVER_OPTIMIZER = (
    "AutoByte's servers run no optimizer in this release: create the Trainer with update_on_kvstore=False"
    " (or None), so that each worker updates its weights with the summed gradients"
)


class _Entry:
    """An initialised key of one store."""

    __slots__ = ("tensor", "stage")

    def __init__(self, tensor: Tensor, stage: Stage) -> None:
        self.tensor = tensor
        self.stage = stage


class AutoByteKVStore(mx.kvstore.KVStore):  # type: ignore[misc]
    """A synchronous store that sums over all workers.

    Examples
    --------
    >>> import ps.mxnet                                                  # doctest: +SKIP
    >>> import mxnet as mx
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', kvstore='dist_sync_autobyte', update_on_kvstore=False)
    """

    _numbers = itertools.count()

    def __init__(self) -> None:
        # attributes of the base class that MXNet's own code looks at
        self.handle = None
        self._updater = None
        self._updater_func = None
        self._str_updater_func = None
        self._is_p3 = False

        self._connection = connect()
        self._number = next(self._numbers)
        self._entries: dict[Key, _Entry] = {}

    def __del__(self) -> None:
        pass  # the base class would free a native handle

    # ------------------------------------------------------------------------------------ who and what

    @property
    def type(self) -> str:
        """The name; Module looks for ``_sync`` in it, Trainer for ``dist`` and ``async``."""
        return "dist_sync_autobyte"

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
        """Return whether the store has a capability; ``optimizer``, the only one that MXNet knows, it has not."""
        if capability.lower() == mx.kvstore.KVStoreBase.OPTIMIZER:
            return False
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
        entries: dict[Key, Stage] = {}
        for name, values in self._pairs("init", key, value):
            if name in self._entries or name in entries:
                raise TensorError(
                    f"init({name!r}): worker {self.rank} has initialised this key before; its value is unchanged"
                )
            memory = self._connection.worker.allocate(values[0].size, np.dtype(values[0].dtype))
            entries[name] = stage = Stage(values[0].shape, memory)
            with mx.autograd.pause():
                stage.fill(values[:1])
        first_values = {}
        for name, stage in entries.items():
            stage.array.wait_to_read()
            first_values[self._wire_name(name)] = stage.memory.reshape(stage.array.shape)
        self._connection.init(first_values)
        for name, stage in entries.items():
            self._entries[name] = _Entry(self._connection.worker.tensor(self._wire_name(name)), stage)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Initialise keys, then write rank 0's values to ``out``, on every rank.

        Trainer calls this in its first step. What ``broadcast_parameters`` brought before and no step pushes, such as
        the running means of a batch normalisation, has become the rank's own since and is left alone.
        """
        self.init(key, value)
        for name, outputs in self._pairs("broadcast", key, out):
            outputs = [output for output in outputs if not self._connection.is_own(output)]
            if outputs:
                self.pull(name, outputs, priority)

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
        for name, values in self._pairs("push", key, value):
            entry = self._entry("push", name, values)
            self._run(SpanKind.PUSH, entry, values, (), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the key's value to ``out``, and nothing else: what this worker's earlier operations left, or round 0's.

        Parameters
        ----------
        key
            An int or a str, or a list of them.
        out
            Per key an NDArray or a list of NDArrays, one per device.
        ignore_sparse
            Accepted for MXNet's sake: the store has no sparse values.
        """
        for name, outputs in self._pairs("pull", key, out):
            entry = self._entry("pull", name, outputs)
            self._run(SpanKind.PULL, entry, (), outputs, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push ``value`` and write the sum over all workers to ``out``, by default ``value`` itself."""
        pairs = self._pairs("pushpull", key, value)
        for (name, values), (_, outputs) in zip(pairs, pairs if out is None else self._pairs("pushpull", key, out)):
            entry = self._entry("pushpull", name, [*values, *outputs])
            self._run(SpanKind.PUSH_PULL, entry, values, outputs, priority)

    def barrier(self) -> None:
        """Wait until every worker has come here."""
        self._connection.barrier(f"store {self._number}")

    _barrier = barrier

    # ------------------------------------------------------------------------------- not in this release

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> NoReturn:
        """Not in this release."""
        raise NotImplementedError(
            f"row_sparse_pull({key!r}): AutoByte has no row-sparse values in this release;"
            " use dense parameters (Embedding with sparse_grad=False) and pull"
        )

    def set_optimizer(self, optimizer: Any) -> NoReturn:
        """Not in this release: update on the worker."""
        raise NotImplementedError(f"set_optimizer: {_SERVER_OPTIMIZER}")

    def set_gradient_compression(self, compression_params: Any) -> NoReturn:
        """Not in this release."""
        raise NotImplementedError(
            f"set_gradient_compression({compression_params!r}): AutoByte compresses no gradients in this release;"
            " leave compression_params out"
        )

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> NoReturn:
        """The optimizer's state is the Trainer's."""
        raise NotImplementedError(
            f"save_optimizer_states: {_SERVER_OPTIMIZER}; then trainer.save_states({fname!r}) has them"
        )

    def load_optimizer_states(self, fname: str) -> NoReturn:
        """The optimizer's state is the Trainer's."""
        raise NotImplementedError(
            f"load_optimizer_states: {_SERVER_OPTIMIZER}; then trainer.load_states({fname!r}) does it"
        )

    def _set_updater(self, updater: Any) -> NoReturn:
        raise NotImplementedError(f"_set_updater: {_SERVER_OPTIMIZER}")

    def _send_command_to_servers(self, head: int, body: str) -> NoReturn:
        raise NotImplementedError(f"command {head}: AutoByte's servers take no commands of MXNet's")

    # ---------------------------------------------------------------------------------------- details

    def _run(self, kind: SpanKind, entry: _Entry, values: Sequence[Any], outputs: Sequence[Any], priority: int) -> None:
        with mx.autograd.pause():
            if values:
                entry.stage.fill(values)
            self._connection.transfer(kind, entry.tensor, entry.stage, priority)
            entry.stage.deliver(outputs)

    def _wire_name(self, key: Key) -> str:
        return f"store{self._number}[{key!r}]"

    def _pairs(self, verb: str, key: Any, value: Any) -> list[tuple[Key, list[Any]]]:
        """Return each key with its arrays, one per device."""
        if not isinstance(key, (list, tuple)):
            return [(self._key(verb, key), self._arrays(verb, key, value))]
        if not isinstance(value, (list, tuple)) or len(key) != len(value):
            raise ValueError(f"{verb}: {len(key)} keys need a list of as many values, not {_describe(value)}")
        return [pair for one, arrays in zip(key, value) for pair in self._pairs(verb, one, arrays)]

    def _key(self, verb: str, key: Any) -> Key:
        if isinstance(key, str):
            return key
        if isinstance(key, (int, np.integer)):
            return int(key)
        raise TypeError(f"{verb}: a key is an int or a str, not {key!r}")

    def _arrays(self, verb: str, key: Any, value: Any) -> list[Any]:
        arrays = list(value) if isinstance(value, (list, tuple)) else [value]
        for array in arrays:
            if not isinstance(array, mx.nd.NDArray):
                raise TypeError(f"{verb}({key!r}): expected an NDArray or a list of them, not {_describe(array)}")
            if array.stype != "default":
                raise NotImplementedError(
                    f"{verb}({key!r}): AutoByte has no {array.stype} values in this release; use a dense array"
                )
        if not arrays:
            raise ValueError(f"{verb}({key!r}): the list of NDArrays is empty")
        return arrays

    def _entry(self, verb: str, key: Key, arrays: Sequence[Any]) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            known = ", ".join(map(repr, list(self._entries)[:8])) or "none"
            raise TensorError(
                f"{verb}({key!r}): worker {self.rank} has not initialised this key (it has: {known});"
                " call init or broadcast on every rank first"
            )
        spec = entry.tensor.spec
        for array in arrays:
            if array.shape != spec.shape or np.dtype(array.dtype).name != spec.dtype:
                raise TensorError(
                    f"{verb}({key!r}): worker {self.rank} gave shape {array.shape} and dtype {np.dtype(array.dtype)};"
                    f" the key was initialised with shape {spec.shape} and dtype {spec.dtype}"
                )
        return entry


def _describe(value: Any) -> str:
    length = f" of length {len(value)}" if isinstance(value, (list, tuple)) else ""
    return type(value).__name__ + length


def _create_async() -> NoReturn:
    raise NotImplementedError(
        "dist_async_autobyte is not in this release: use 'dist_sync_autobyte' with update_on_kvstore=False"
    )


def register() -> None:
    """Make ``mx.kv.create`` and Trainer know the stores by name."""
    registry = mx.kvstore.KVStoreBase.kv_registry
    registry["dist_sync_autobyte"] = registry["dist_autobyte"] = AutoByteKVStore
    registry["dist_async_autobyte"] = _create_async
