"""Row-sparse arrays: MXNet's ``RowSparseNDArray`` on its way to the rows of :mod:`ps.rows`, and back.

How many rows an array has is known only when the engine has computed it, and neither its ids nor their number can be
asked for from within an operation of the engine without waiting for others. So a gradient is copied, by the engine, to
an array of its own, which nothing writes any more; when that copy is there, one thread reads it and hands the rows to
the communication thread. Nothing blocks the caller, and the copy is the snapshot that ``push`` promises.

The ids of a pull are known at the call: it waits for them (they come with the data), makes an array of these rows
whose memory the communication thread fills, and has the engine copy that to the outputs.

All operations on a key write its *order* array, which puts them in program order.
"""

from __future__ import annotations

import functools
import queue
import threading
from typing import Any, Callable, Optional, Sequence

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from ps.errors import AutoByteError
from ps.messages import SpanKind, Storage, TensorSpec
from ps.mxnet.arguments import describe
from ps.mxnet.connection import Connection
from ps.mxnet.errors import TensorError, raised_for_mxnet
from ps.mxnet.rows import new_rows, read_rows
from ps.mxnet.stage import Stage
from ps.operation import Operation
from ps.rows import Ids, add_up, merge, records, row_ids, rows_of

__all__ = ["OrderStage", "ids_by_output", "pull_dense", "pull_rows", "push_rows", "storage"]

Array = NDArray[Any]


def storage(array: Any) -> Storage:
    """Return how the values of an array of MXNet's are stored.

    Raises
    ------
    TypeError
        It is a CSR matrix, which no store sums.
    """
    if array.stype == "csr":
        raise TypeError("a store keeps dense and row_sparse arrays, not csr")
    return Storage(array.stype)


class OrderStage(Stage):
    """The stage of a row-sparse key, which has no memory for all of its rows.

    Attributes
    ----------
    array
        The key's order.
    memory
        The first value, dense and one-dimensional, where this rank gives it; else zeros that take no memory.
    """

    def __init__(self, value: Any, gives_value: bool) -> None:
        self._zeros: Array = np.broadcast_to(np.zeros(1, value.dtype), int(np.prod(value.shape)))
        super().__init__(mx.nd.zeros(1), value.asnumpy().reshape(-1) if gives_value else self._zeros)

    def fill(self, values: Sequence[Any]) -> None:
        """Do nothing: values of such a key travel without the stage."""

    def forget_value(self) -> None:
        """Keep the first value no longer: the servers have it."""
        self.memory = self._zeros


def push_rows(
    connection: Connection, spec: TensorSpec, order: Any, values: Sequence[Any], priority: int, settings: bytes = b""
) -> None:
    """Put a push of the sum of ``values``, one array per device, into the engine's order.

    Dense values are pushed by their rows that are not zero; without any values no rows are pushed.
    """
    sparse = [value if value.stype == "row_sparse" else value.tostype("row_sparse") for value in values]
    copies = [value.copyto(mx.cpu()) for value in sparse]

    def begin(done: Callable[[Optional[AutoByteError]], None]) -> None:
        def send(parts: list[tuple[Array, Array]]) -> None:
            tensor = connection.worker.tensor(spec.name)
            num_rows, width = rows_of(tensor, f"push({spec.name!r})")
            merged = [
                merge(row_ids(ids, num_rows, f"push({spec.name!r})"), rows.reshape(len(ids), width))
                for ids, rows in parts
            ]
            if not merged:
                merged.append((np.empty(0, np.int64), np.empty((0, width), spec.dtype)))
            body = records(*add_up(merged))
            connection.worker.submit(Operation(tensor, SpanKind.PUSH_ROWS, body, None, priority, done, settings))

        _reader().read(copies, send, done)

    connection.operate(begin, 0, priority, const=copies, mutable=[order])


def pull_rows(connection: Connection, spec: TensorSpec, order: Any, ids: Ids, priority: int) -> Any:
    """Put a pull of the rows ``ids``, ascending, into the engine's order; return the array that will have them."""
    array, memory = new_rows(ids, spec.shape, np.dtype(spec.dtype))

    def begin(done: Callable[[Optional[AutoByteError]], None]) -> None:
        tensor = connection.worker.tensor(spec.name)
        rows_of(tensor, f"row_sparse_pull({spec.name!r})")
        connection.worker.submit(Operation(tensor, SpanKind.PULL_ROWS, ids, memory, priority, done))

    connection.operate(begin, None, priority, mutable=[array, order])
    return array


def pull_dense(connection: Connection, spec: TensorSpec, order: Any, priority: int) -> Any:
    """Put a pull of all rows into the engine's order; return the dense array that will have them."""
    memory = np.empty(spec.shape, spec.dtype)
    array = mx.nd.from_numpy(memory[:])

    def begin(done: Callable[[Optional[AutoByteError]], None]) -> None:
        tensor = connection.worker.tensor(spec.name)
        connection.worker.submit(Operation(tensor, SpanKind.PULL, None, memory.reshape(-1), priority, done))

    connection.operate(begin, None, priority, mutable=[array, order])
    return array


def ids_by_output(what: str, outputs: Sequence[Any], ids: Any, shape: tuple[int, ...]) -> list[tuple[Ids, list[Any]]]:
    """Return which rows go to which outputs, ascending and each once.

    Parameters
    ----------
    what
        What the user called, for error messages.
    outputs
        Row-sparse arrays of ``shape``.
    ids
        An array of row ids for all outputs, or a list of one array for all or one for each.

    Raises
    ------
    ValueError
        There are not as many arrays of ids.
    TensorError
        An output is dense; or an id is not one of the rows, or may have been rounded.
    """
    arrays = ids if isinstance(ids, (list, tuple)) else [ids]
    for output in outputs:
        if output.stype != "row_sparse":
            raise TensorError(f"{what}: an output is a row_sparse array, not {output.stype}; use pull")
    for array in arrays:
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(f"{what}: row_ids are an NDArray or a list of them, not {describe(array)}")
    if len(arrays) not in (1, len(outputs)):
        raise ValueError(f"{what}: {len(arrays)} arrays of row ids for {len(outputs)} outputs; give one for each")
    with raised_for_mxnet():
        found = [np.unique(row_ids(array.asnumpy(), shape[0], what)) for array in arrays]
    if len(found) == 1:
        return [(found[0], list(outputs))]
    return [(one, [output]) for one, output in zip(found, outputs)]


class _Reader:
    """The thread that reads the ids and rows of arrays."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="autobyte-rows", daemon=True).start()

    def read(
        self,
        arrays: Sequence[Any],
        use: Callable[[list[tuple[Array, Array]]], None],
        failed: Callable[[Optional[AutoByteError]], None],
    ) -> None:
        """Call ``use`` with ids and rows of ``arrays``, which are ready; ``failed`` where it, or reading, raises."""
        self._jobs.put(functools.partial(self._read, arrays, use, failed))

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    @staticmethod
    def _read(
        arrays: Sequence[Any],
        use: Callable[[list[tuple[Array, Array]]], None],
        failed: Callable[[Optional[AutoByteError]], None],
    ) -> None:
        try:
            use([read_rows(array) for array in arrays])
        except AutoByteError as error:
            failed(error)
        except Exception as error:
            failed(AutoByteError(f"reading the rows of a gradient: {error!r}"))


@functools.cache
def _reader() -> _Reader:
    return _Reader()
