"""The worker: tensors in, sums out. NumPy arrays only; the MXNet store in :mod:`ps.mxnet` is built on it.

Everything here runs on the caller's thread and is short: check the arguments, take a snapshot, post to the
communication thread (:mod:`ps.communication`). Nothing blocks except ``wait``, ``init``, ``barrier`` and ``close``.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import TracebackType
from typing import Any, Callable, Mapping, Optional, Sequence, Type, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ps import exit_hook
from ps.codecs import Codec, codec_of, describe
from ps.communication import CommunicationLoop
from ps.config import CommConfig, Role, Settings
from ps.errors import AutoByteError, Closed, SettingsError, TensorError
from ps.layers import StepTimes
from ps.messages import Mode, SpanKind, Storage, Tensor, TensorSpec
from ps.operation import VERBS, Handle, Operation, checked_array, checked_name
from ps.rows import merge, records, row_ids, rows_of
from ps.staging import Staging
from ps.transport import keep_freed_memory

__all__ = ["Worker", "DTYPES"]

_Choice = TypeVar("_Choice", Mode, Storage)

#: What the servers can sum. float16 is summed in float32 and rounded once.
DTYPES = frozenset(["float16", "float32", "float64", "int8", "uint8", "int32", "int64"])


class Worker:
    """This process's part in the job: a connection to the scheduler and to every server.

    All ranks initialise the same keys, then push and pull them. A *round* of a key is one push by every worker; its
    result is the sum, the same on all ranks (but see ``mode`` of :meth:`init`). Operations on one key take effect in
    program order; operations on different keys overlap, the more urgent first. Arguments are snapshots: they may be
    changed as soon as the call returns.

    Parameters
    ----------
    settings
        Default: read from the environment (``DMLC_*`` and ``AUTOBYTE_*``).

    Raises
    ------
    SettingsError, RegistrationRefused, DeadlineExceeded
        The job could not be joined; the text tells which variable or node is concerned.

    Examples
    --------
    >>> with ps.Worker() as worker:                                # doctest: +SKIP
    ...     worker.init("weight", np.zeros(4, "float32"))
    ...     worker.push_pull("weight", np.ones(4, "float32")).wait()
    array([2., 2., 2., 2.], dtype=float32)
    """

    def __init__(self, settings: Optional[Settings] = None) -> None:
        settings = settings or Settings.from_env(Role.WORKER)
        keep_freed_memory()
        self._loop = CommunicationLoop(settings)
        self._loop.start_and_wait()
        self._staging = Staging(self._loop.memory.empty)
        self._closed = False
        self._close_lock = threading.Lock()
        # The communication thread shares the interpreter with the training thread: the default of 5 ms
        # between switches doubles the duration of a step (docs/architecture.md).
        self._switch_interval_seconds = sys.getswitchinterval()
        sys.setswitchinterval(settings.switch_interval_seconds)
        exit_hook.remember(self)

    # ------------------------------------------------------------------------------------ who and what

    @property
    def rank(self) -> int:
        """This worker's number, 0 to ``num_workers - 1``."""
        return self._loop.rank

    @property
    def num_workers(self) -> int:
        return self._loop.settings.num_workers

    @property
    def num_servers(self) -> int:
        return self._loop.settings.num_servers

    @property
    def deadline_seconds(self) -> float:
        """The job's deadline: nothing waits for longer."""
        return self._loop.deadline_seconds

    @property
    def config(self) -> CommConfig:
        """The configuration in use, with its epoch."""
        return self._loop.traffic.config

    def tensor(self, name: str) -> Tensor:
        """Return what was agreed about ``name``: shape, dtype, number, shards.

        Raises
        ------
        TensorError
            The key is not initialised.
        """
        tensor = self._loop.tensors.get(name)
        if tensor is None:
            known = ", ".join(map(repr, sorted(self._loop.tensors)[:8])) or "none"
            raise TensorError(
                f"key {name!r} is not initialised on worker {self.rank} (initialised: {known}); call init first"
            )
        return tensor

    def statistics(self) -> dict[str, Any]:
        """Return totals since the start: bytes, messages, partitions, steps, and the present configuration."""
        return self._loop.statistics()

    # ------------------------------------------------------------------------------------- operations

    def init(
        self,
        key: Union[str, Mapping[str, ArrayLike]],
        value: Optional[ArrayLike] = None,
        *,
        mode: Union[str, Mode] = Mode.SYNC,
        stype: Union[str, Storage] = Storage.DEFAULT,
        whole: bool = False,
        codec: Union[None, str, Mapping[str, Any], Codec] = None,
    ) -> None:
        """Give keys their first value: rank 0's. Collective: returns when all ranks may use the keys.

        Parameters
        ----------
        key, value
            One key and its value, or a mapping of several (one round trip for all).
        mode
            ``"sync"``: pushes are summed in rounds. ``"async"``: each counts at once and by itself (docs/modes.md).
        stype
            ``"default"``, or ``"row_sparse"``: few rows of a value are not zero, and only these travel.
        whole
            Keep each tensor on one server, for an optimizer that has to see all of it. These are alike on all ranks.
        codec
            How what is pushed to these keys is encoded (:func:`ps.codecs.codec_of`), such as ``"2bit"`` or
            ``{"type": "topk", "ratio": 0.01}``; alike on all ranks. The first values travel as they are.

        Raises
        ------
        TensorError
            The ranks disagree about shape, dtype or codec, the key exists, or the dtype cannot be summed or encoded.
        SettingsError
            There is no such codec, mode or stype.
        DeadlineExceeded
            A rank did not initialise the key.
        """
        named = key if isinstance(key, Mapping) else {key: value}
        values = {
            checked_name(name, "init"): np.array(checked_array(item, f"init({name!r})"), order="C")
            for name, item in named.items()
        }
        mode, stype = _one_of(Mode, "mode", mode), _one_of(Storage, "stype", stype)
        chosen = None if codec is None else codec_of(codec)
        specs = [_spec(name, array, mode, stype, whole, chosen) for name, array in values.items()]
        self.init_tensors(specs, values)

    def init_tensors(self, specs: Sequence[TensorSpec], values: Mapping[str, NDArray[Any]]) -> None:
        """Do what :meth:`init` does, with C-contiguous ``values`` and without any copy or check."""
        self._loop.init(specs, values).wait()

    def begin_init(
        self,
        specs: Sequence[TensorSpec],
        values: Mapping[str, NDArray[Any]],
        done: Callable[[Optional[AutoByteError]], None],
    ) -> None:
        """Begin an :meth:`init_tensors` and return; ``done`` is called on another thread.

        ``values`` are not to be changed until then; operations on the keys are to be submitted after it.
        """
        self._loop.begin_init(specs, values, done)

    def push(self, key: str, value: ArrayLike, priority: int = 0) -> Handle:
        """Add ``value`` to the key's round. The handle completes when all workers have pushed."""
        tensor = self.tensor(key)
        stage = self._snapshot(SpanKind.PUSH, tensor, value)
        return self._submit(tensor, SpanKind.PUSH, stage, None, priority, None, self._giving_back(stage))

    def pull(self, key: str, out: Optional[NDArray[Any]] = None, priority: int = 0) -> Handle:
        """Fetch the value that the key has after this worker's earlier operations. ``wait`` returns it.

        Parameters
        ----------
        out
            Where to write it: C-contiguous, of the key's shape and dtype; default: a new array.
        """
        tensor = self.tensor(key)
        target = self._output(SpanKind.PULL, tensor, out)
        return self._submit(tensor, SpanKind.PULL, None, target.reshape(-1), priority, target)

    def push_pull(self, key: str, value: ArrayLike, out: Optional[NDArray[Any]] = None, priority: int = 0) -> Handle:
        """Push ``value`` and fetch the round's sum, range by range as the servers complete it."""
        tensor = self.tensor(key)
        target = self._output(SpanKind.PUSH_PULL, tensor, out)
        stage = self._snapshot(SpanKind.PUSH_PULL, tensor, value)
        receive = target.reshape(-1)
        return self._submit(tensor, SpanKind.PUSH_PULL, stage, receive, priority, target, self._giving_back(stage))

    def push_rows(self, key: str, ids: ArrayLike, rows: ArrayLike, priority: int = 0) -> Handle:
        """Add a value to the key's round of which only some rows are not zero; only these travel.

        The handle completes when all workers have pushed. Each may push other rows, or none.

        Parameters
        ----------
        ids
            Which rows, in any order; int64, or floats that are exact. Rows of equal ids are added up.
        rows
            Shape ``(len(ids), *shape[1:])``.

        Raises
        ------
        TensorError
            An id is not a row of the tensor, or ``rows`` has another shape or dtype.
        """
        tensor = self.tensor(key)
        what = f"push_rows({key!r})"
        num_rows, width = rows_of(tensor, what)
        numbers, array, spec = row_ids(ids, num_rows, what), checked_array(rows, what), tensor.spec
        if array.shape != (numbers.size, *spec.shape[1:]) or array.dtype.name != spec.dtype:
            raise TensorError(
                f"{what}: worker {self.rank} gave rows of shape {array.shape} and dtype {array.dtype};"
                f" expected {(numbers.size, *spec.shape[1:])} and {spec.dtype}"
            )
        send = records(*merge(numbers, array.reshape(numbers.size, width)))
        return self._submit(tensor, SpanKind.PUSH_ROWS, send, None, priority, None)

    def pull_rows(self, key: str, ids: ArrayLike, priority: int = 0) -> Handle:
        """Fetch rows of the value that the key has after this worker's earlier operations; only these travel.

        ``wait`` returns them in the order of ``ids``, which may be any, shape ``(len(ids), *shape[1:])``.

        Raises
        ------
        TensorError
            An id is not a row of the tensor.
        """
        tensor = self.tensor(key)
        what = f"pull_rows({key!r})"
        num_rows, _ = rows_of(tensor, what)
        wanted, places = np.unique(row_ids(ids, num_rows, what), return_inverse=True)
        rows = np.empty((wanted.size, *tensor.spec.shape[1:]), tensor.spec.dtype)
        result = np.empty((places.size, *tensor.spec.shape[1:]), tensor.spec.dtype)

        def finish() -> None:
            np.take(rows, places, axis=0, out=result)

        return self._submit(tensor, SpanKind.PULL_ROWS, wanted, rows.reshape(-1), priority, result, finish)

    def submit(self, operation: Operation) -> None:
        """Queue a ready-made operation without any copy or check; for stores built on this class."""
        self._loop.submit(operation)

    def allocate(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a one-dimensional array that servers on this host read without a copy, for :meth:`submit`.

        Its memory is kept as long as the worker: for buffers that are used again and again.
        """
        return self._loop.memory.empty(size, dtype)

    def barrier(self, name: str = "") -> None:
        """Wait until every worker has entered the barrier of this ``name``.

        Raises
        ------
        DeadlineExceeded, PeerLost
            A rank did not come; the text names it.
        """
        self._loop.barrier(checked_name(name, "barrier")).wait()

    def command(self, name: str, body: bytes = b"", agreed: str = "", collective: bool = True) -> list[bytes]:
        """Have every server execute command ``name``; return their replies, by rank.

        Parameters
        ----------
        body
            For the servers; of a collective command rank 0's is used.
        agreed
            What all ranks must give alike: a word or two, since an error shows it.
        collective
            Whether to wait until every worker has called it. Otherwise the servers execute it at once.

        Raises
        ------
        SettingsError
            The ranks differ, or a server refused; the text tells why.
        DeadlineExceeded, PeerLost
            A rank did not call it, or a node was lost.
        """
        return self._loop.command(name, body, agreed, collective)

    # ------------------------------------------------------------------------------- tuning and the end

    def configure(self, config: CommConfig) -> None:
        """Use ``config`` at this worker alone, from its next operation on, until the scheduler sends another."""
        if not isinstance(config, CommConfig):
            raise TypeError(f"configure: expected a CommConfig, not {config!r}")
        self._loop.configure(config)

    def note_training(self, step: StepTimes) -> None:
        """Report how long the last step computed, for the tuner."""
        self._loop.post(lambda: self._loop.traffic.counters.note_training(step))

    def close(self, error: str = "") -> None:
        """Wait for what is pending and leave the job. With ``error`` leave at once: the job has failed.

        At the end of the process this happens by itself: with an error where an uncaught exception ends it.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        exit_hook.forget(self)
        self._loop.leave(error.encode("utf-8", "replace").decode())
        self._loop.join()
        sys.setswitchinterval(self._switch_interval_seconds)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        well = error is None or (isinstance(error, SystemExit) and not error.code)
        self.close("" if well else f"worker {self.rank}: {kind.__name__ if kind else ''}: {error}")

    # --------------------------------------------------------------------------------------- details

    def _submit(
        self,
        tensor: Tensor,
        kind: SpanKind,
        send: Optional[NDArray[Any]],
        receive: Optional[NDArray[Any]],
        priority: int,
        result: Optional[NDArray[Any]],
        finish: Optional[Callable[[], None]] = None,
    ) -> Handle:
        if self._closed:
            raise Closed(f"{VERBS[kind]}({tensor.spec.name!r}): the store is closed")
        limit_seconds = 10 * self.deadline_seconds  # operations before it on the same key have their deadlines too
        handle = Handle(f"{VERBS[kind]}({tensor.spec.name!r})", limit_seconds, result)

        def done(error: Optional[AutoByteError]) -> None:
            if finish is not None and error is None:
                finish()
            handle.complete(error)

        self._loop.submit(Operation(tensor, kind, send, receive, priority, done))
        return handle

    def _giving_back(self, stage: NDArray[Any]) -> Callable[[], None]:
        # Only after a good end: after an error a server may yet read it.
        return functools.partial(self._staging.give_back, stage)

    def _check(self, kind: SpanKind, tensor: Tensor, array: NDArray[Any], what: str) -> None:
        spec = tensor.spec
        if array.shape != spec.shape or array.dtype.name != spec.dtype:
            raise TensorError(
                f"{VERBS[kind]}({spec.name!r}): worker {self.rank} gave {what} of shape {array.shape} and dtype"
                f" {array.dtype}; the key was initialised with shape {spec.shape} and dtype {spec.dtype}"
            )

    def _snapshot(self, kind: SpanKind, tensor: Tensor, value: ArrayLike) -> NDArray[Any]:
        array = checked_array(value, f"{VERBS[kind]}({tensor.spec.name!r})")
        self._check(kind, tensor, array, "a value")
        stage = self._staging.take(array.size, np.dtype(tensor.spec.dtype))
        np.copyto(stage.reshape(array.shape), array)
        return stage

    def _output(self, kind: SpanKind, tensor: Tensor, out: Optional[NDArray[Any]]) -> NDArray[Any]:
        if out is None:
            return np.empty(tensor.spec.shape, tensor.spec.dtype)
        if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
            raise TypeError(
                f"{VERBS[kind]}({tensor.spec.name!r}): the output must be an array, not {type(out).__name__}"
            )
        self._check(kind, tensor, out, "an output")
        if not (out.flags.c_contiguous and out.flags.writeable and out.dtype.isnative):
            what = "C-contiguous, writeable and of native byte order"
            raise TensorError(f"{VERBS[kind]}({tensor.spec.name!r}): the output must be {what}")
        return out


def _one_of(kind: Type[_Choice], what: str, value: Union[str, _Choice]) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        names = " or ".join(repr(choice.value) for choice in kind)
        raise SettingsError(f"init: {what} {value!r}: expected {names}") from None


def _spec(
    name: str, array: NDArray[Any], mode: Mode, stype: Storage, whole: bool, codec: Optional[Codec]
) -> TensorSpec:
    if array.dtype.name not in DTYPES:
        raise TensorError(f"init({name!r}): dtype {array.dtype} cannot be summed; use one of {sorted(DTYPES)}")
    if codec is not None and not codec.accepts(array.dtype):
        raise TensorError(f"init({name!r}): {describe(codec)} encodes no {array.dtype}; leave the codec out")
    return TensorSpec(name, array.shape, array.dtype.name, mode, stype, whole, codec)
