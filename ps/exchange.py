"""A worker's operations under way: from a submitted operation to transfers, from answers back to its end.

Pure: operations and answers go in, transfers go out to the links, ``done`` is called; time is a parameter.

Invariants:

* Operations of one key run one after the other in the order of their submission, so that program order holds
  whatever the priorities, and an answer never mixes rounds.
* Every operation ends exactly once: with its result, with an error of a server, with the loss of a node, or late.
  A ``done`` that raises ends all others with an error.
* Late answers are dropped: nothing is written to an operation's memory once it has ended.
* After the loss of a node every later operation fails at once with the same reason; after that of a worker, those on
  asynchronous keys go on.
"""

from __future__ import annotations

import collections
import logging
from typing import Any, Callable, Iterable, Iterator, Optional

import numpy as np
from numpy.typing import NDArray

from ps.errors import AutoByteError, DeadlineExceeded, ErrorCode, error_from_code
from ps.messages import Mode, Place, Span, SpanKind, Tensor
from ps.operation import Operation
from ps.partition import cut
from ps.rows import RowsEncoder, row_width, split, unpack
from ps.traffic import Traffic
from ps.transfer import Transfer

__all__ = ["Exchange", "error_for"]

log = logging.getLogger("autobyte.worker")

#: Finds the place of an array in memory that a server can read, or None.
FindPlace = Callable[[int, NDArray[Any]], Optional[Place]]

_PUSHES = frozenset([SpanKind.PUSH, SpanKind.PUSH_PULL, SpanKind.PUSH_ROWS])


class _Key:
    """One tensor at this worker: its round, the operation under way and those behind it."""

    __slots__ = ("tensor", "dtype", "size", "shards", "encoder", "version", "active", "waiting", "failed")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.dtype = np.dtype(tensor.spec.dtype)
        self.size = tensor.shards[-1].stop
        self.shards = [shard for shard in tensor.shards if shard.start < shard.stop]
        codec = tensor.spec.codec
        self.encoder = None if codec is None else codec.encoder(self.size, self.dtype)
        self.version = 0
        self.active: Optional[Operation] = None
        self.waiting: collections.deque[Operation] = collections.deque()
        self.failed: Optional[AutoByteError] = None


class Exchange:
    """The operations of one worker.

    Parameters
    ----------
    traffic
        Takes the transfers.
    find_place
        Called with a server's rank and an array that is to be sent.

    Attributes
    ----------
    unusable
        Why nothing succeeds any more; None while all is well.
    no_rounds
        Why nothing succeeds that needs all workers.
    broken
        What a caller's ``done`` has raised: the loop is to end with it. None while all is well.
    """

    def __init__(self, traffic: Traffic, find_place: FindPlace) -> None:
        self.unusable: Optional[AutoByteError] = None
        self.no_rounds: Optional[AutoByteError] = None
        self.broken: Optional[AutoByteError] = None
        self._traffic = traffic
        self._find_place = find_place
        self._keys: dict[int, _Key] = {}
        self._active: dict[int, Operation] = {}
        self._step_key: Optional[_Key] = None

    @property
    def busy(self) -> bool:
        """Whether any operation is under way."""
        return bool(self._active)

    @property
    def asynchronous(self) -> bool:
        """Whether there are keys that do not need all workers."""
        return any(key.tensor.spec.mode is Mode.ASYNC for key in self._keys.values())

    def add(self, tensor: Tensor) -> None:
        """Take note of a tensor that all ranks have agreed on."""
        self._keys[tensor.id] = _Key(tensor)

    # ------------------------------------------------------------------------------------- outwards

    def submit(self, operation: Operation, now: float) -> None:
        """Begin ``operation``, or have it wait for those before it on the same key."""
        key = self._keys[operation.tensor.id]
        if key.active is not None:
            key.waiting.append(operation)
        else:
            self._begin(key, operation, now)

    def _begin(self, key: _Key, operation: Operation, now: float) -> None:
        error = self.unusable or key.failed or (self.no_rounds if key.tensor.spec.mode is Mode.SYNC else None)
        if error is not None:
            self.tell(operation, operation.done, error_for(operation, error))
            return
        if operation.kind in _PUSHES:
            assert operation.send is not None
            key.version += 1
            self._count_step(key, operation.send.nbytes, operation.priority, now)
        operation.version = key.version
        operation.remaining = key.size if operation.receive is None else operation.receive.size
        if operation.remaining == 0:
            self.tell(operation, operation.done, None)
            return
        operation.started_at = now
        key.active = operation
        self._active[key.tensor.id] = operation
        if operation.kind in (SpanKind.PUSH_ROWS, SpanKind.PULL_ROWS):
            self._send_rows(operation, now)
        else:
            self._send_elements(key, operation, now)

    def _send_elements(self, key: _Key, operation: Operation, now: float) -> None:
        kind, send = operation.kind, operation.send
        payload = None if send is None else send.view(np.uint8).data
        encoder = key.encoder if kind in _PUSHES else None
        if encoder is not None:
            assert send is not None
            encoder.begin(operation.version, send)
            payload = None
        itemsize = key.dtype.itemsize
        for shard in key.shards:
            ranges: Iterator[tuple[int, int]]
            if kind is SpanKind.PULL_CHANGES:
                ranges = iter(((operation.known, 0),))
            elif kind is SpanKind.PULL:
                ranges = iter(((shard.start, shard.stop - shard.start),))
            else:
                ranges = cut(shard.start, shard.stop, itemsize, self._traffic.config.partition_bytes)
            place = None if payload is None or send is None else self._find_place(shard.server, send)
            self._put(shard.server, operation, itemsize, payload, ranges, place, encoder, now)

    def _send_rows(self, operation: Operation, now: float) -> None:
        kind, tensor, send = operation.kind, operation.tensor, operation.send
        assert send is not None
        width, partition_bytes = row_width(tensor.spec.shape), self._traffic.config.partition_bytes
        ids = send["id"] if kind is SpanKind.PUSH_ROWS else send
        for shard, (first, last) in zip(tensor.shards, split(ids, tensor.shards, width)):
            if kind is SpanKind.PUSH_ROWS:
                encoder = RowsEncoder(width)
                encoder.begin(operation.version, send)
                ranges = encoder.ranges(shard.start, shard.stop, partition_bytes)
                self._put(shard.server, operation, send.itemsize, None, ranges, None, encoder, now)
            else:
                ranges = cut(first, last, send.itemsize, partition_bytes)
                self._put(shard.server, operation, send.itemsize, send.view(np.uint8).data, ranges, None, None, now)

    def _put(
        self,
        server: int,
        operation: Operation,
        itemsize: int,
        payload: Optional[memoryview],
        ranges: Iterator[tuple[int, int]],
        place: Optional[Place],
        encoder: Any,
        now: float,
    ) -> None:
        transfer = Transfer(
            operation.kind,
            operation.tensor.id,
            operation.version,
            operation.priority,
            itemsize,
            0,
            payload,
            ranges,
            place,
            encoder,
            operation.settings,
        )
        self._traffic.put(server, transfer, now)

    def _count_step(self, key: _Key, nbytes: int, priority: int, now: float) -> None:
        # Steps are counted by the first key; one that is left two rounds behind was pushed once, such as a broadcast.
        if self._step_key is None or key.version > self._step_key.version + 1:
            self._step_key = key
        if key is self._step_key:
            self._traffic.counters.step_began(now)
        self._traffic.counters.pushed(key.tensor.id, nbytes, priority)

    # -------------------------------------------------------------------------------------- answers

    def receive(self, span: Span, payload: Optional[memoryview], offset: int, now: float) -> int:
        """Take one span of a server, its payload at ``offset``; return the offset behind it.

        Raises
        ------
        AutoByteError
            The answer fits no operation of this worker: the server is not what it says.
        """
        end = offset
        kind = span.kind
        if kind is SpanKind.RESULT:
            key, target = self._target(span)
            known = key or self._keys.get(span.tensor_id)
            if known is None or payload is None:
                raise AutoByteError(f"a server sent a result that nobody asked for: {span}")
            end += span.encoded_bytes or span.count * known.dtype.itemsize
            if key is not None and target is not None:
                if end > payload.nbytes:
                    raise AutoByteError(f"a server sent a payload that is shorter than its span {span}")
                target[:] = _raw(payload, offset, end, span, key)
                self._advance(key, span.count, now)
        elif kind is SpanKind.DONE:
            key, _ = self._target(span)
            if key is not None:
                self._advance(key, span.count, now)
        elif kind is SpanKind.ERROR:
            end += span.count
            if payload is not None:
                self._server_error(span, bytes(payload[offset:end]), now)
        elif kind is SpanKind.CHANGES:
            end += span.encoded_bytes
            key, _ = self._target(span)
            if key is not None:
                self._receive_changes(key, span, memoryview(b"") if payload is None else payload[offset:end], now)
        else:
            self._traffic.counters.malformed()
        return end

    def _receive_changes(self, key: _Key, span: Span, payload: memoryview, now: float) -> None:
        """Put the rows into the value of an earlier version, which the operation began with."""
        assert key.active is not None and key.active.receive is not None
        width, stop = row_width(key.tensor.spec.shape), span.start + span.count
        rows = key.active.receive[span.start : stop].reshape(-1, width)
        changed = unpack(payload, key.dtype, width, span.start, stop)
        rows[changed.ids - span.start // width] = changed.rows
        self._advance(key, span.count, now)

    def _target(self, span: Span) -> tuple[Optional[_Key], Optional[NDArray[np.uint8]]]:
        """Return the key that an answer is for and where its payload goes; (None, None) for a late answer."""
        key = self._keys.get(span.tensor_id)
        operation = key.active if key is not None else None
        if key is None or operation is None or operation.version != span.version:
            return None, None
        size = key.size if operation.receive is None else operation.receive.size
        if span.start < 0 or span.count < 0 or span.start + span.count > size:
            raise AutoByteError(f"{operation}: a server answered with {span}, but there are {size} elements to answer")
        if operation.receive is None:
            return key, None
        return key, operation.receive[span.start : span.start + span.count].view(np.uint8)

    def _advance(self, key: _Key, elements: int, now: float) -> None:
        operation = key.active
        assert operation is not None
        operation.remaining -= elements
        if operation.remaining == 0:
            self._finish(key, None, now)

    def _server_error(self, span: Span, payload: bytes, now: float) -> None:
        key = self._keys.get(span.tensor_id)
        if key is None or key.active is None or key.active.version != span.version or not payload:
            return
        code = ErrorCode(payload[0]) if payload[0] in ErrorCode._value2member_map_ else ErrorCode.INTERNAL
        key.failed = error_from_code(code, payload[1:].decode("utf-8", "replace"))
        self._finish(key, key.failed, now)

    def _finish(self, key: _Key, error: Optional[AutoByteError], now: float) -> None:
        operation = key.active
        assert operation is not None
        key.active = None
        self._active.pop(key.tensor.id, None)
        self.tell(operation, operation.done, error)
        while key.waiting and key.active is None:
            self._begin(key, key.waiting.popleft(), now)

    def tell(
        self, what: object, done: Callable[[Optional[AutoByteError]], None], error: Optional[AutoByteError]
    ) -> None:
        """Call ``done``, the caller's own code: what it raises must not keep others from being told."""
        try:
            done(error)
        except BaseException as raised:  # SystemExit would end the thread without a word
            log.exception("done of %s raised", what)
            failure = AutoByteError(f"done of {what} raised {raised!r}")
            failure.__cause__ = raised
            self.broken = self.broken or failure

    # ------------------------------------------------------------------------------------- failures

    def fail_everything(self, error_of: Callable[[str], AutoByteError], now: float) -> None:
        """End every operation with an error; what comes later ends in the same way."""
        if self.unusable is None:
            self.unusable = error_of("the store is unusable")
        self._fail(list(self._active.values()), error_of, now)

    def fail_rounds(self, error_of: Callable[[str], AutoByteError], now: float) -> None:
        """End every operation on a synchronous key, now and later; operations on asynchronous ones go on."""
        if self.no_rounds is None:
            self.no_rounds = error_of("nothing works that needs all workers")
        self._fail([each for each in self._active.values() if each.tensor.spec.mode is Mode.SYNC], error_of, now)

    def _fail(self, operations: Iterable[Operation], error_of: Callable[[str], AutoByteError], now: float) -> None:
        for operation in operations:
            self._finish(self._keys[operation.tensor.id], error_of(str(operation)), now)

    def late(self, limit_seconds: float, now: float) -> Optional[AutoByteError]:
        """Return what to say where an operation has been under way for longer: the servers should have ended it."""
        for operation in self._active.values():
            if operation.started_at + limit_seconds < now:
                servers = sorted({shard.server for shard in operation.tensor.shards})
                return DeadlineExceeded(
                    f"servers {servers} have not answered {operation.remaining} elements of {operation} after"
                    f" {now - operation.started_at:.1f} s; is one of them stopped or cut off?"
                )
        return None


def _raw(payload: memoryview, start: int, end: int, span: Span, key: _Key) -> NDArray[np.uint8]:
    """Return the bytes of the elements that an answer brings in bytes ``start`` to ``end``."""
    codec = key.tensor.spec.codec
    if span.encoded_bytes == 0 or codec is None:
        return np.frombuffer(payload, np.uint8, end - start, start)
    return codec.decode(payload[start:end], span.count, key.dtype).view(np.uint8)


def error_for(what: object, error: AutoByteError) -> AutoByteError:
    """Return ``error`` as the error of ``what``, which came after it."""
    return type(error)(f"{what}: {error}")
