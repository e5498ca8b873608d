"""The worker's communication thread: the only owner of its sockets.

User threads post actions (submit an operation, enter a barrier) and never touch a socket. One turn of the loop takes
what was posted, what arrived and what timed out, hands it to the pure classes, and sends what the links let go. It
takes no decision of its own about order or amount (:mod:`ps.link`), ranges (:mod:`ps.partition`) or membership
(:mod:`ps.membership`).

What it guarantees:

* Operations of one key run one after the other in the order of their submission, so that program order holds
  whatever the priorities, and an answer never mixes rounds.
* Every operation and call ends: with its result, with the error that a server or the scheduler sent, with the loss
  of a node, or at the job's deadline.
* After the loss of a node every later operation fails at once with the same reason; after that of a worker, those on
  asynchronous keys go on.
"""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import math
import os
import threading
import time
import weakref
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np
import zmq
from numpy.typing import NDArray

from ps import messages
from ps.config import CommConfig, Role, Settings
from ps.errors import AutoByteError, Closed, DeadlineExceeded, ErrorCode, PeerLost, error_from_code
from ps.link import Receiver, Transfer
from ps.membership import Membership
from ps.messages import Mode, SpanKind, Tensor, TensorSpec
from ps.operation import Handle, Operation
from ps.partition import cut
from ps.rows import RowsEncoder, row_width, split, unpack
from ps.shared import Arena, Neighbour
from ps.traffic import Traffic
from ps.transport import WorkerLane, new_context

__all__ = ["CommunicationLoop"]

log = logging.getLogger("autobyte.worker")

#: Messages taken from one lane before acknowledgements and new work get their turn.
RECEIVE_BATCH = 16
#: Messages sent in one turn, whatever the credit: heartbeats and acknowledgements must not wait for all that is queued.
SEND_BATCH = 256
#: How often deadlines and silent links are looked at.
CHECK_SECONDS = 0.25
#: A server that is silent for this long while operations wait is asked where it stands.
PROBE_SECONDS = 5.0
#: The servers, who know which rank is missing, get this much longer than the deadline to say so.
DEADLINE_GRACE_SECONDS = 2.0
#: How long a worker that leaves waits for the scheduler to take note.
LEAVE_SECONDS = 3.0


_loops: weakref.WeakSet[CommunicationLoop] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for loop in list(_loops):
        loop.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Key:
    """One tensor at this worker: its round, the operation under way and those behind it."""

    __slots__ = ("tensor", "dtype", "size", "encoder", "version", "active", "waiting", "failed")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.dtype = np.dtype(tensor.spec.dtype)
        self.size = tensor.shards[-1].stop
        codec = tensor.spec.codec
        self.encoder = None if codec is None else codec.encoder(self.size, self.dtype)
        self.version = 0
        self.active: Optional[Operation] = None
        self.waiting: collections.deque[Operation] = collections.deque()
        self.failed: Optional[AutoByteError] = None


class _Call:
    """A barrier, an init or a command on its way through the scheduler."""

    __slots__ = ("complete", "what", "values", "left", "tensors", "bodies", "started_at")

    def __init__(
        self, complete: Callable[[Optional[AutoByteError]], None], what: str, values: Mapping[str, NDArray[Any]]
    ) -> None:
        self.complete = complete
        self.what = what
        self.values = values
        self.left = 0
        self.tensors: list[Tensor] = []
        self.bodies: list[bytes] = []
        self.started_at = time.monotonic()


class _Server:
    """One server as this worker sees it."""

    __slots__ = ("peer", "lane", "neighbour", "receiver", "heard_at")

    def __init__(self, peer: messages.Peer, lane: WorkerLane) -> None:
        self.peer = peer
        self.lane = lane
        self.neighbour = Neighbour(f"server {peer.rank}")
        self.receiver = Receiver()
        self.heard_at = 0.0


class CommunicationLoop:
    """See the module. Public methods may be called from any thread; all others run on the loop's own."""

    def __init__(self, settings: Settings) -> None:
        self._thread = threading.Thread(target=self._run, name="autobyte-communication", daemon=True)
        self.settings = settings
        self.rank = -1
        self.deadline_seconds = settings.deadline_seconds
        self.tensors: dict[str, Tensor] = {}
        self.memory = Arena()
        self._started = threading.Event()
        self._start_error: Optional[BaseException] = None
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._lock = threading.Lock()
        self._ended = False
        self._sleeping = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

        self._session = 0
        self._servers: list[_Server] = []
        self._keys: dict[int, _Key] = {}
        self._active: dict[int, Operation] = {}
        self._calls: dict[int, _Call] = {}
        self._call_numbers = itertools.count(1)
        self.traffic = Traffic(settings, range(settings.num_servers), bounded_skew=True, now=time.monotonic())
        self._step_key: Optional[_Key] = None
        self._fatal: Optional[AutoByteError] = None
        self._no_rounds: Optional[AutoByteError] = None  # why nothing succeeds that needs all workers
        self._leaving: Optional[Handle] = None
        self._left = False
        self._stop_at = math.inf
        self._next_check = 0.0
        self._more_to_send = False
        self._scheduler_gone = False
        _loops.add(self)

    # --------------------------------------------------------------------------- from other threads

    def start_and_wait(self) -> None:
        """Start, and return when all nodes of the job are there; raises what made that impossible."""
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self._thread.join()
            raise self._start_error

    def join(self) -> None:
        """Wait for the end of the thread, which :meth:`leave` began."""
        self._thread.join()

    def post(self, action: Callable[[], None]) -> bool:
        """Have ``action`` run on this thread; False where it has ended and will run nothing more."""
        with self._lock:
            if self._ended:
                return False
            self._inbox.append(action)
            if self._sleeping:
                self._sleeping = False
                os.write(self._wake_write, b"\0")
        return True

    def after_fork_in_child(self) -> None:
        """The thread stayed with the parent: refuse every call."""
        self._lock = threading.Lock()
        self._ended = True
        self._fatal = Closed("a forked child is not a worker of the job: use the store in the parent process")

    def submit(self, operation: Operation) -> None:
        """Queue an operation. Its ``done`` is called in any case, even where the store is closed."""
        if not self.post(functools.partial(self._submit, operation)):
            operation.done(self._fatal or Closed(f"{operation}: the store is closed"))

    def init(self, specs: Sequence[TensorSpec], values: Mapping[str, NDArray[Any]]) -> Handle:
        """Begin an init with C-contiguous ``values``; the handle completes when all ranks may use the tensors."""
        handle = self._handle(f"init({sorted(values)})")
        self.begin_init(specs, values, handle.complete, waits=True)
        return handle

    def begin_init(
        self,
        specs: Sequence[TensorSpec],
        values: Mapping[str, NDArray[Any]],
        done: Callable[[Optional[AutoByteError]], None],
        waits: bool = False,
    ) -> None:
        """Begin an init; ``done`` is called on this thread. ``waits``: this rank does nothing else until then."""
        call = _Call(done, "init", values)
        if not self.post(functools.partial(self._declare, call, specs, waits)):
            done(self._fatal or Closed("init: the store is closed"))

    def barrier(self, name: str) -> Handle:
        """Begin a barrier; the handle completes when all workers have entered it."""
        handle = self._handle(f"barrier({name!r})")
        call = _Call(handle.complete, "barrier", {})
        if not self.post(functools.partial(self._enter_barrier, call, name)):
            handle.complete(self._fatal or Closed("barrier: the store is closed"))
        return handle

    def command(self, name: str, body: bytes, agreed: str, collective: bool) -> list[bytes]:
        """Have all servers execute a command; wait for it and return one body per server."""
        handle = self._handle(f"command({name!r})")
        call = _Call(handle.complete, f"command({name!r})", {})
        if not self.post(functools.partial(self._send_command, call, name, body, agreed, collective)):
            handle.complete(self._fatal or Closed(f"{call.what}: the store is closed"))
        handle.wait()
        return call.bodies

    def configure(self, config: CommConfig) -> None:
        """Use ``config`` from the next operation on, at this worker."""
        self.post(functools.partial(self.traffic.configure, config))

    def statistics(self) -> dict[str, Any]:
        """Return totals since the start, and the configuration in use."""
        return self.traffic.statistics()

    def leave(self, error: str) -> Handle:
        """Finish what is pending, tell the scheduler, and end the thread. An ``error`` ends at once."""
        handle = self._handle("close()")
        if not self.post(functools.partial(self._begin_leave, handle, error)):
            handle.complete(None)
        return handle

    def _handle(self, what: str) -> Handle:
        return Handle(what, self.deadline_seconds + 2 * DEADLINE_GRACE_SECONDS)

    # ------------------------------------------------------------------------------------- the loop

    def _run(self) -> None:
        context = new_context()
        membership: Optional[Membership] = None
        try:
            membership = Membership(self.settings, context)
            self._connect(context, membership)
        except Exception as error:
            self._start_error = error
        else:
            try:
                with np.errstate(all="ignore"):  # codecs: what overflows is inf, as in any other sum
                    self._loop(membership)
            except Exception as error:
                log.exception("the communication thread failed")
                reason = f"the communication thread failed: {error!r}"
                self._fail_everything(lambda what: AutoByteError(f"{what}: {reason}"))
                membership.send(messages.Leave(f"worker {self.rank}: {reason}"))
        finally:
            self._end(context, membership)

    def _end(self, context: zmq.Context[zmq.Socket[bytes]], membership: Optional[Membership]) -> None:
        """Fail what is left, close everything, and release whoever waits for this thread."""
        with self._lock:
            self._ended = True
        self._fail_everything(lambda what: Closed(f"{what}: the store is closed"))
        while self._inbox:
            self._inbox.popleft()()
        for server in self._servers:
            server.lane.close()
        if membership is not None:
            membership.close()
        context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._started.set()
        if self._leaving is not None:
            self._leaving.complete(None)

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]], membership: Membership) -> None:
        self._membership = membership
        self.rank, started = membership.register()
        self._session = started.session
        self.deadline_seconds = started.deadline_seconds
        self.traffic.counters.rank = self.rank
        self.traffic.configure(started.config)
        identity = b"worker-%d-%x" % (self.rank, self._session)
        for peer in started.servers:
            server = _Server(peer, WorkerLane(context, identity, peer.address))
            self._servers.append(server)
            self.traffic.set_near(peer.rank, server.lane.near)
            self._greet(server)
        self._started.set()

    def _loop(self, membership: Membership) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        poller.register(membership.socket, zmq.POLLIN)
        for server in self._servers:
            poller.register(server.lane.socket, zmq.POLLIN)
        now = time.monotonic()
        while now < self._stop_at:
            ready = self._poll(poller)
            now = time.monotonic()
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            while self._inbox:
                self._inbox.popleft()()
            for server in self._servers:
                if server.lane.socket in ready:
                    self._receive(server, now)
            if membership.socket in ready or now >= self._next_check:
                for message in membership.receive(now):
                    self._control(message, now)
            self._send(now)
            if now >= self._next_check:
                self._next_check = now + CHECK_SECONDS
                self._check(now)

    def _poll(self, poller: zmq.Poller) -> dict[Any, int]:
        wait = min(self._next_check - time.monotonic(), CHECK_SECONDS)
        with self._lock:
            self._sleeping = not self._inbox
            if self._inbox or self._more_to_send:
                wait = 0.0
        ready = dict(poller.poll(max(0, int(wait * 1000) + (wait > 0))))
        self._sleeping = False
        return ready

    # --------------------------------------------------------------------------------- to the links

    def _send(self, now: float) -> None:
        for server in self._servers:
            seq = server.receiver.acknowledge()
            if seq is not None:
                server.lane.send(messages.encode(messages.Ack(seq)), None)
        for _ in range(SEND_BATCH):
            popped = self.traffic.pop(now)
            if popped is None:
                self._more_to_send = False
                return
            peer, message = popped
            self._servers[peer].lane.send(message.header, message.payload)
        self._more_to_send = True

    def _greet(self, server: _Server, answer: bool = True) -> None:
        """Tell a server what is expected from it next, and ask for the same."""
        near = server.lane.near
        hello = messages.Hello(
            self.settings.job,
            self._session,
            self.rank,
            server.receiver.expected,
            answer,
            near,
            self.memory.probe if near else None,
            server.neighbour.readable,
        )
        server.lane.send(messages.encode(hello), None)

    def _connection_changed(self, server: _Server) -> None:
        for made in server.lane.changes():
            if made:
                self._greet(server)
            else:
                self._membership.send(messages.Suspect(server.peer))

    # ------------------------------------------------------------------------------ from the servers

    def _receive(self, server: _Server, now: float) -> None:
        lane = server.lane
        server.heard_at = now
        for already in range(RECEIVE_BATCH):
            received = lane.receive(ready=not already)
            if received is None:
                return
            header, payload = received
            message = messages.decode_data(header)
            if isinstance(message, messages.Data):
                self._receive_data(server, message, payload)
            elif isinstance(message, messages.Ack):
                self.traffic.acknowledged(server.peer.rank, message.seq, now)
            elif isinstance(message, messages.Hello):
                self._resume(server, message, now)
            else:
                self.traffic.counters.malformed()

    def _resume(self, server: _Server, hello: messages.Hello, now: float) -> None:
        if hello.session != self._session or hello.job != self.settings.job:
            self.traffic.counters.malformed()
            return
        readable = server.lane.near and server.neighbour.greeted(hello.probe, hello.reads)
        if hello.answer or readable:
            self._greet(server, answer=False)
        for message in self.traffic.resume(server.peer.rank, hello.expected, now):
            server.lane.send(message.header, message.payload)

    def _receive_data(self, server: _Server, message: messages.Data, payload: Optional[memoryview]) -> None:
        if not server.receiver.accept(message.seq):
            if server.receiver.gap_begins:
                self._greet(server)
            return
        offset = taken = 0
        for span in message.spans:
            if span.place is None:
                end = self._receive_span(span, payload, offset)
                taken += end - offset
                offset = end
            else:
                taken += self._receive_span(span, server.neighbour.payload(span).data, 0)
        self.traffic.received(taken)

    def _receive_span(self, span: messages.Span, payload: Optional[memoryview], offset: int) -> int:
        """Take one span, its payload at ``offset``; return the offset behind it."""
        end = offset
        if span.kind is SpanKind.ERROR:
            end += span.count
            if payload is not None:
                self._server_error(span, bytes(payload[offset:end]))
        elif span.kind is SpanKind.DONE:
            key, _ = self._target(span)
            if key is not None:
                self._advance(key, span.count)
        elif span.kind is SpanKind.RESULT:
            key, target = self._target(span)
            known = key or self._keys.get(span.tensor_id)
            if known is None or payload is None:
                raise AutoByteError(f"a server sent a result that nobody asked for: {span}")
            end += span.encoded_bytes or span.count * known.dtype.itemsize
            if key is not None and target is not None:
                if end > payload.nbytes:
                    raise AutoByteError(f"a server sent a payload that is shorter than its span {span}")
                np.copyto(target, _raw(payload[offset:end], span, key))
                self._advance(key, span.count)
        elif span.kind is SpanKind.CHANGES:
            end += span.encoded_bytes
            key, _ = self._target(span)
            if key is not None:
                self._receive_changes(key, span, memoryview(b"") if payload is None else payload[offset:end])
        else:
            self.traffic.counters.malformed()
        return end

    def _receive_changes(self, key: _Key, span: messages.Span, payload: memoryview) -> None:
        """Put the rows into the value of an earlier version, which the operation began with."""
        assert key.active is not None and key.active.receive is not None
        width, stop = row_width(key.tensor.spec.shape), span.start + span.count
        rows = key.active.receive[span.start : stop].reshape(-1, width)
        changed = unpack(payload, key.dtype, width, span.start, stop)
        rows[changed.ids - span.start // width] = changed.rows
        self._advance(key, span.count)

    def _target(self, span: messages.Span) -> tuple[Optional[_Key], Optional[NDArray[np.uint8]]]:
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

    def _advance(self, key: _Key, elements: int) -> None:
        operation = key.active
        assert operation is not None
        operation.remaining -= elements
        if operation.remaining == 0:
            self._finish(key, None)

    def _server_error(self, span: messages.Span, payload: bytes) -> None:
        key = self._keys.get(span.tensor_id)
        if key is None or key.active is None or key.active.version != span.version or not payload:
            return
        code = ErrorCode(payload[0]) if payload[0] in ErrorCode._value2member_map_ else ErrorCode.INTERNAL
        key.failed = error_from_code(code, payload[1:].decode("utf-8", "replace"))
        self._finish(key, key.failed)

    # --------------------------------------------------------------------------------- operations

    def _submit(self, operation: Operation) -> None:
        key = self._keys[operation.tensor.id]
        if key.active is not None:
            key.waiting.append(operation)
        else:
            self._begin(key, operation)

    def _begin(self, key: _Key, operation: Operation) -> None:
        error = self._fatal or key.failed or (self._no_rounds if key.tensor.spec.mode is Mode.SYNC else None)
        if error is not None:
            operation.done(_for(operation, error))
            return
        now = time.monotonic()
        kind, tensor = operation.kind, key.tensor
        if kind in (SpanKind.PUSH, SpanKind.PUSH_PULL, SpanKind.PUSH_ROWS):
            assert operation.send is not None
            key.version += 1
            self._count_step(key, operation.send.nbytes, now)
        operation.version = key.version
        operation.remaining = key.size if operation.receive is None else operation.receive.size
        if operation.remaining == 0:
            operation.done(None)
            return
        operation.started_at = now
        key.active = operation
        self._active[tensor.id] = operation
        if kind in (SpanKind.PUSH_ROWS, SpanKind.PULL_ROWS):
            self._begin_rows(operation, now)
            return
        payload = place = None
        if operation.send is not None:
            payload = operation.send.view(np.uint8).data
            place = self.memory.place(operation.send)
        encoder = key.encoder if kind in (SpanKind.PUSH, SpanKind.PUSH_PULL) else None
        if encoder is not None:
            assert operation.send is not None
            encoder.begin(operation.version, operation.send)
            payload = place = None
        itemsize = key.dtype.itemsize
        for shard in tensor.shards:
            if shard.start == shard.stop:
                continue
            if kind is SpanKind.PULL_CHANGES:
                ranges = iter(((operation.known, 0),))
            elif kind is SpanKind.PULL:
                ranges = iter(((shard.start, shard.stop - shard.start),))
            else:
                ranges = cut(shard.start, shard.stop, itemsize, self.traffic.config.partition_bytes)
            reads = self._servers[shard.server].neighbour.reads_ours
            transfer = Transfer(
                kind,
                tensor.id,
                operation.version,
                operation.priority,
                itemsize,
                0,
                payload,
                ranges,
                place if reads else None,
                encoder,
                operation.settings,
            )
            self.traffic.put(shard.server, transfer, now)

    def _begin_rows(self, operation: Operation, now: float) -> None:
        kind, tensor, send = operation.kind, operation.tensor, operation.send
        assert send is not None
        width, partition_bytes = row_width(tensor.spec.shape), self.traffic.config.partition_bytes
        ids = send["id"] if kind is SpanKind.PUSH_ROWS else send
        for shard, (first, last) in zip(tensor.shards, split(ids, tensor.shards, width)):
            encoder = payload = None
            if kind is SpanKind.PUSH_ROWS:
                encoder = RowsEncoder(width)
                encoder.begin(operation.version, send)
                ranges = encoder.ranges(shard.start, shard.stop, partition_bytes)
            else:
                payload = send.view(np.uint8).data
                ranges = cut(first, last, send.itemsize, partition_bytes)
            transfer = Transfer(
                kind,
                tensor.id,
                operation.version,
                operation.priority,
                send.itemsize,
                0,
                payload,
                ranges,
                encoder=encoder,
                settings=operation.settings,
            )
            self.traffic.put(shard.server, transfer, now)

    def _finish(self, key: _Key, error: Optional[AutoByteError]) -> None:
        operation = key.active
        assert operation is not None
        key.active = None
        self._active.pop(key.tensor.id, None)
        operation.done(error)
        while key.waiting and key.active is None:
            self._begin(key, key.waiting.popleft())

    def _count_step(self, key: _Key, nbytes: int, now: float) -> None:
        # Steps are counted by the first key; one that is left two rounds behind was pushed once, such as a broadcast.
        if self._step_key is None or key.version > self._step_key.version + 1:
            self._step_key = key
        if key is self._step_key:
            self.traffic.counters.step_began(now)
        self.traffic.counters.pushed(nbytes)

    # --------------------------------------------------------------------------------- collectives

    def _declare(self, call: _Call, specs: Sequence[TensorSpec], waits: bool) -> None:
        if not self._refuse(call):
            self._membership.send(messages.Declare(self._number(call), list(specs), waits))

    def _enter_barrier(self, call: _Call, name: str) -> None:
        if not self._refuse(call):
            self._membership.send(messages.EnterBarrier(self._number(call), name))

    def _send_command(self, call: _Call, name: str, body: bytes, agreed: str, collective: bool) -> None:
        if not self._refuse(call):
            self._membership.send(messages.Command(self._number(call), name, agreed, body, collective))

    def _refuse(self, call: _Call) -> bool:
        error = self._fatal or self._no_rounds
        if error is not None:
            call.complete(_for(call.what, error))
        return error is not None

    def _number(self, call: _Call) -> int:
        number = next(self._call_numbers)
        self._calls[number] = call
        return number

    def _declared(self, number: int, tensors: list[Tensor]) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        call.tensors = tensors
        for tensor in tensors:
            self._keys[tensor.id] = _Key(tensor)
        if self.rank != 0:
            return
        call.left = len(tensors)
        for tensor in tensors:
            value = call.values[tensor.spec.name].reshape(-1)
            done = functools.partial(self._value_sent, number)
            self._submit(Operation(tensor, SpanKind.INIT, value, None, 0, done))

    def _value_sent(self, number: int, error: Optional[AutoByteError]) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if error is not None:
            del self._calls[number]
            call.complete(error)
            return
        call.left -= 1
        if call.left == 0:
            self._membership.send(messages.Initialized(number))

    def _command_done(self, message: messages.CommandDone) -> None:
        call = self._calls.get(message.call)
        if call is not None:
            call.bodies = message.bodies
        self._end_call(message.call, None)

    def _end_call(self, number: int, error: Optional[AutoByteError]) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return
        if error is None:
            for tensor in call.tensors:
                self.tensors[tensor.spec.name] = tensor
        call.complete(error)

    # -------------------------------------------------------------------------- from the scheduler

    def _control(self, message: messages.ControlMessage, now: float) -> None:
        if isinstance(message, messages.Declared):
            self._declared(message.call, message.tensors)
        elif isinstance(message, (messages.ValuesReady, messages.BarrierPassed)):
            self._end_call(message.call, None)
        elif isinstance(message, messages.CommandDone):
            self._command_done(message)
        elif isinstance(message, messages.CallFailed):
            self._end_call(message.call, error_from_code(message.code, message.text))
        elif isinstance(message, messages.ConfigUpdate):
            self.traffic.configure(message.config)
            self._membership.send(messages.ConfigConfirmed(message.config.epoch))
        elif isinstance(message, messages.PeerGone):
            self._peer_gone(message)
        elif isinstance(message, messages.Shutdown):
            self._shut_down(message)

    def _peer_gone(self, gone: messages.PeerGone) -> None:
        if not gone.lost and gone.peer.role is Role.WORKER:
            return  # the servers and the scheduler fail what needs it, and know which rounds those are
        if gone.peer.role is Role.SCHEDULER:
            self._scheduler_gone = True
            if self._left:
                self._stop_at = 0.0
        verb = "was lost" if gone.lost else "has ended"
        who = gone.peer.role.value + ("" if gone.peer.role is Role.SCHEDULER else f" {gone.peer.rank}")
        asynchronous = any(key.tensor.spec.mode is Mode.ASYNC for key in self._keys.values())
        fail = self._fail_rounds if gone.peer.role is Role.WORKER and asynchronous else self._fail_everything
        fail(lambda what: PeerLost(f"{what}: {who} {verb}: {gone.reason}"))

    def _shut_down(self, message: messages.Shutdown) -> None:
        if self._left:
            self._stop_at = 0.0
        elif message.error:
            self._fail_everything(lambda what: AutoByteError(f"{what}: the job has ended: {message.error}"))
        else:
            self._fail_everything(lambda what: Closed(f"{what}: the job has ended"))

    def _fail_everything(self, error_of: Callable[[str], AutoByteError]) -> None:
        """End every operation and call with an error; what comes later ends in the same way."""
        if self._fatal is None:
            self._fatal = error_of("the store is unusable")
        self._fail(list(self._active.values()), error_of)

    def _fail_rounds(self, error_of: Callable[[str], AutoByteError]) -> None:
        """End every call and every operation on a synchronous key; operations on asynchronous ones go on."""
        if self._no_rounds is None:
            self._no_rounds = error_of("nothing works that needs all workers")
        rounds = [operation for operation in self._active.values() if operation.tensor.spec.mode is Mode.SYNC]
        self._fail(rounds, error_of)

    def _fail(self, operations: Iterable[Operation], error_of: Callable[[str], AutoByteError]) -> None:
        """End every call, and these operations."""
        for number in list(self._calls):
            call = self._calls.pop(number)
            call.complete(error_of(call.what))
        for operation in operations:
            self._finish(self._keys[operation.tensor.id], error_of(str(operation)))

    # ---------------------------------------------------------------------------------- time passes

    def _check(self, now: float) -> None:
        for server in self._servers:
            self._connection_changed(server)
            if self._active and now - server.heard_at > PROBE_SECONDS:
                server.heard_at = now
                self._greet(server)
        limit = now - self.deadline_seconds - DEADLINE_GRACE_SECONDS
        for operation in list(self._active.values()):
            if operation.started_at < limit:
                self._expire(operation)
        for number, call in list(self._calls.items()):
            if call.started_at < limit:
                text = f"{call.what}: no answer from the scheduler after {self.deadline_seconds:g} s"
                self._end_call(number, DeadlineExceeded(text))
        observation = self.traffic.report(now)
        if observation is not None:
            self._membership.send(messages.Report(observation))
        if self._leaving is not None:
            self._leave_when_done(now)

    def _expire(self, operation: Operation) -> None:
        servers = sorted({shard.server for shard in operation.tensor.shards})
        key = self._keys[operation.tensor.id]
        key.failed = DeadlineExceeded(
            f"{operation}: {operation.remaining} of {key.size} elements not answered after {self.deadline_seconds:g} s"
            f" by servers {servers}; is one of them stopped or cut off?"
        )
        self._finish(key, key.failed)

    # ---------------------------------------------------------------------------------------- leaving

    def _begin_leave(self, handle: Handle, error: str) -> None:
        self._leaving = handle
        self._next_check = 0.0
        if error or self._fatal is not None:
            self._send_leave(error or str(self._fatal))

    def _leave_when_done(self, now: float) -> None:
        if self._left:
            return
        if self._active or self._calls:
            self._next_check = min(self._next_check, now + 0.005)
        else:
            self._send_leave("")

    def _send_leave(self, error: str) -> None:
        self._left = True
        self._stop_at = 0.0 if self._scheduler_gone else time.monotonic() + LEAVE_SECONDS
        self._membership.send(messages.Leave(error))


def _raw(payload: memoryview, span: messages.Span, key: _Key) -> NDArray[np.uint8]:
    """Return the bytes of the elements that an answer brings."""
    codec = key.tensor.spec.codec
    if span.encoded_bytes == 0 or codec is None:
        return np.frombuffer(payload, np.uint8)
    return codec.decode(payload, span.count, key.dtype).view(np.uint8)


def _for(what: object, error: AutoByteError) -> AutoByteError:
    """Return ``error`` as the error of ``what``, which came after it."""
    return type(error)(f"{what}: {error}")
