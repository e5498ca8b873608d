"""The worker's communication thread: the only owner of its sockets.

User threads post actions (submit an operation, enter a barrier) and never touch a socket. One turn of the loop takes
what was posted, what arrived and what timed out, hands it to the pure classes, and sends what the links let go. It
takes no decision of its own: operations and their answers are :mod:`ps.exchange`'s, barriers, inits and commands
:mod:`ps.calls`', order and amount :mod:`ps.link`'s, membership :mod:`ps.membership`'s.
"""

from __future__ import annotations

import collections
import functools
import logging
import math
import os
import threading
import time
import weakref
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np
import zmq
from numpy.typing import NDArray

from ps import messages
from ps.calls import Call, Calls
from ps.config import CommConfig, Role, Settings
from ps.errors import AutoByteError, Closed, PeerLost
from ps.exchange import Exchange, error_for
from ps.membership import Membership
from ps.messages import Tensor, TensorSpec
from ps.operation import Handle, Operation
from ps.receiver import Receiver
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
#: First values up to this size go with the declaration: fewer steps, each of which takes a turn of some process.
CARRIED_BYTES = 16384
#: How long a worker that leaves waits for the scheduler to take note.
LEAVE_SECONDS = 3.0


_loops: weakref.WeakSet[CommunicationLoop] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for loop in list(_loops):
        loop.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Server:
    """One server as this worker sees it."""

    __slots__ = ("peer", "lane", "neighbour", "receiver", "heard_at", "connected")

    def __init__(self, peer: messages.Peer, lane: WorkerLane) -> None:
        self.peer = peer
        self.lane = lane
        self.neighbour = Neighbour(f"server {peer.rank}")
        self.receiver = Receiver()
        self.heard_at = 0.0
        self.connected = False


class CommunicationLoop:
    """See the module. Public methods may be called from any thread; all others run on the loop's own."""

    def __init__(self, settings: Settings) -> None:
        self._thread = threading.Thread(target=self._run, name="autobyte-communication", daemon=True)
        self.settings = settings
        self.rank = -1
        self.deadline_seconds = settings.deadline_seconds
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
        self.traffic = Traffic(settings, range(settings.num_servers), bounded_skew=True, now=time.monotonic())
        self._exchange = Exchange(self.traffic, self._find_place)
        self._calls = Calls(self._exchange, self._tell)
        self._leaving: Optional[Handle] = None
        self._left = False
        self._stop_at = math.inf
        self._next_check = 0.0
        self._more_to_send = False
        self._scheduler_gone = False
        _loops.add(self)

    # --------------------------------------------------------------------------- from other threads

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """What is initialised, by name."""
        return self._calls.tensors

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
        self._exchange.unusable = Closed(
            "a forked child is not a worker of the job: use the store in the parent process"
        )

    def submit(self, operation: Operation) -> None:
        """Queue an operation. Its ``done`` is called in any case, even where the store is closed."""
        if not self.post(lambda: self._exchange.submit(operation, time.monotonic())):
            operation.done(self._why_closed(str(operation)))

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
        carried, sent = [], dict(values)
        if self.rank == 0:
            small = {name for name, value in values.items() if 0 < value.nbytes <= CARRIED_BYTES}
            carried = [sent.pop(spec.name).tobytes() if spec.name in small else b"" for spec in specs]
        self._begin(Call("init", lambda number: messages.Declare(number, list(specs), waits, carried), done, sent))

    def barrier(self, name: str) -> Handle:
        """Begin a barrier; the handle completes when all workers have entered it."""
        handle = self._handle(f"barrier({name!r})")
        self._begin(Call("barrier", lambda number: messages.EnterBarrier(number, name), handle.complete))
        return handle

    def command(self, name: str, body: bytes, agreed: str, collective: bool) -> list[bytes]:
        """Have all servers execute a command; wait for it and return one body per server."""
        what = f"command({name!r})"
        handle = self._handle(what)
        call = Call(what, lambda number: messages.Command(number, name, agreed, body, collective), handle.complete)
        self._begin(call)
        handle.wait()
        return call.bodies

    def _begin(self, call: Call) -> None:
        if not self.post(lambda: self._calls.begin(call, time.monotonic())):
            call.complete(self._why_closed(call.what))

    def _why_closed(self, what: str) -> AutoByteError:
        return error_for(what, self._exchange.unusable or Closed("the store is closed"))

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
                self._give_up(AutoByteError(f"the communication thread failed: {error!r}"))
        finally:
            self._end(context, membership)

    def _end(self, context: zmq.Context[zmq.Socket[bytes]], membership: Optional[Membership]) -> None:
        """Close everything, then fail what is left, whose memory nobody reads any more, and release who waits."""
        with self._lock:
            self._ended = True
        why = self._exchange.unusable = self._exchange.unusable or Closed("the store is closed")
        while self._inbox:
            self._inbox.popleft()()
        for server in self._servers:
            server.lane.close()
        if membership is not None:
            membership.close()
        context.term()
        self._fail_everything(lambda what: error_for(what, why))
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
            for _ in range(len(self._inbox)):  # what is posted meanwhile waits, so that a burst idles no wire
                self._inbox.popleft()()
            for server in self._servers:
                if server.lane.socket in ready:
                    self._receive(server, now)
            if membership.socket in ready or now >= self._next_check:
                for message in membership.receive(now):
                    self._control(message, now)
            self._send(now)
            if self._exchange.broken is not None:
                raise self._exchange.broken
            if self.traffic.due(now):
                self._report(now)
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
        if answer:
            self.traffic.ask(server.peer.rank)
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
            if not made:
                self._membership.send(messages.Suspect(server.peer))
            elif server.connected:
                self._greet(server)
            server.connected = True  # the first connection began with a greeting

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
                self._receive_data(server, message, payload, now)
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
        for message in self.traffic.resume(server.peer.rank, hello.expected, hello.answer, now):
            server.lane.send(message.header, message.payload)

    def _receive_data(self, server: _Server, message: messages.Data, payload: Optional[memoryview], now: float) -> None:
        if not server.receiver.accept(message.seq):
            if server.receiver.gap_begins:
                self._greet(server)
            return
        offset = taken = 0
        for span in message.spans:
            if span.place is None:
                end = self._exchange.receive(span, payload, offset, now)
                taken += end - offset
                offset = end
            else:
                taken += self._exchange.receive(span, server.neighbour.payload(span).data, 0, now)
        self.traffic.received(server.peer.rank, taken, len(message.spans), message.follows, now)

    def _find_place(self, server: int, array: NDArray[Any]) -> Optional[messages.Place]:
        return self.memory.place(array) if self._servers[server].neighbour.reads_ours else None

    # -------------------------------------------------------------------------- from the scheduler

    def _tell(self, message: messages.ControlMessage) -> None:
        self._membership.send(message)

    def _control(self, message: messages.ControlMessage, now: float) -> None:
        if self._calls.receive(message, self.rank, now):
            return
        if isinstance(message, messages.ConfigUpdate):
            self.traffic.configure(message.config)
            self._tell(messages.ConfigConfirmed(message.config.epoch))
        elif isinstance(message, messages.PeerGone):
            self._peer_gone(message, now)
        elif isinstance(message, messages.Shutdown):
            self._shut_down(message)

    def _peer_gone(self, gone: messages.PeerGone, now: float) -> None:
        if not gone.lost and gone.peer.role is Role.WORKER:
            return  # the servers and the scheduler fail what needs it, and know which rounds those are
        if gone.peer.role is Role.SCHEDULER:
            self._scheduler_gone = True
            if self._left:
                self._stop_at = 0.0
        verb = "was lost" if gone.lost else "has ended"
        who = gone.peer.role.value + ("" if gone.peer.role is Role.SCHEDULER else f" {gone.peer.rank}")

        def error_of(what: str) -> AutoByteError:
            return PeerLost(f"{what}: {who} {verb}: {gone.reason}")

        if gone.peer.role is Role.WORKER and self._exchange.asynchronous:
            self._calls.fail(error_of)
            self._exchange.fail_rounds(error_of, now)
        else:
            self._fail_everything(error_of)

    def _shut_down(self, message: messages.Shutdown) -> None:
        if self._left:
            self._stop_at = 0.0
        elif message.error:
            self._fail_everything(lambda what: AutoByteError(f"{what}: the job has ended: {message.error}"))
        else:
            self._fail_everything(lambda what: Closed(f"{what}: the job has ended"))

    def _fail_everything(self, error_of: Callable[[str], AutoByteError]) -> None:
        """End every operation and call with an error; what comes later ends in the same way."""
        self._calls.fail(error_of)
        self._exchange.fail_everything(error_of, time.monotonic())

    # ---------------------------------------------------------------------------------- time passes

    def _check(self, now: float) -> None:
        for server in self._servers:
            self._connection_changed(server)
            if self._exchange.busy and now - server.heard_at > PROBE_SECONDS:
                server.heard_at = now
                self._greet(server)
        late = self._exchange.late(self.deadline_seconds + DEADLINE_GRACE_SECONDS, now)
        if late is not None:
            self._give_up(late)
        self._calls.expire(self.deadline_seconds, DEADLINE_GRACE_SECONDS, now)
        if self._leaving is not None:
            self._leave_when_done(now)

    def _report(self, now: float) -> None:
        observation = self.traffic.report(now)
        if observation is not None:
            self._membership.send(messages.Report(observation))

    def _give_up(self, error: AutoByteError) -> None:
        """Leave the job as failed and end the loop. Operations end when nobody reads their memory any more."""
        self._exchange.unusable = error
        self._membership.send(messages.Leave(f"worker {self.rank}: {error}"))
        self._stop_at = 0.0

    # ---------------------------------------------------------------------------------------- leaving

    def _begin_leave(self, handle: Handle, error: str) -> None:
        self._leaving = handle
        self._next_check = 0.0
        if error or self._exchange.unusable is not None:
            self._send_leave(error or str(self._exchange.unusable))

    def _leave_when_done(self, now: float) -> None:
        if self._left:
            return
        if self._exchange.busy or self._calls.open:
            self._next_check = min(self._next_check, now + 0.005)
        else:
            self._send_leave("")

    def _send_leave(self, error: str) -> None:
        self._left = True
        self._stop_at = 0.0 if self._scheduler_gone else time.monotonic() + LEAVE_SECONDS
        self._membership.send(messages.Leave(error))
