"""A node's client of the scheduler: registration, heartbeats, and noticing that the scheduler is gone.

Lives in the node's own loop, which polls :attr:`Membership.socket`, calls :meth:`Membership.receive` when it is
readable and at the latest after :meth:`Membership.next_wake`, and gets the messages that concern it. Heartbeats,
repeats and whatever does not decode end here.

The scheduler may start after the node: the socket connects when there is something to connect to, and ``Register`` is
repeated until the job starts. Later, the scheduler counts as lost in two ways, whichever is first:

* its connection broke and was not made again within :data:`RECONNECT_SECONDS` (a process that ended closes its
  connections, so this is the quick one);
* it was silent for ``silence_seconds`` (its host vanished, or it is stopped). Only time in which this node listened
  counts: a node that was itself stopped for a minute finds the scheduler's messages waiting.

The loss is reported once, as a ``PeerGone`` for the scheduler like that for any other node.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket as sockets
import time
import weakref
from typing import Callable, Optional

import zmq

from ps import messages, network
from ps.config import Role, Settings
from ps.errors import Closed, DeadlineExceeded, RegistrationRefused
from ps.messages import ControlMessage, Peer, PeerGone, Started

__all__ = ["Membership", "MAX_CONTROL_BYTES"]

log = logging.getLogger("autobyte.membership")

#: A control frame; the longest is the declaration of all tensors of a model, about 100 bytes each.
MAX_CONTROL_BYTES = 64 << 20
#: Registration is repeated this often.
REGISTER_SECONDS = 0.5
#: A node that has had no answer for this long says what it waits for, once.
STILL_WAITING_SECONDS = 5.0
#: A scheduler that knows this node will say why the job does not start: it gets this much longer to do so.
VERDICT_SECONDS = 2.0
#: A broken connection to the scheduler may take this long to come back.
RECONNECT_SECONDS = 2.5
#: Unsent messages, such as a last Leave, delay the end of the process by at most this.
LINGER_SECONDS = 1.0
#: The node's loop comes by at least this often; a longer turn was a stop of this node, no silence of the scheduler's.
LONGEST_TURN_SECONDS = 1.0


_memberships: weakref.WeakSet[Membership] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for membership in list(_memberships):
        membership.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Membership:
    """The connection of one worker or server to the scheduler.

    Parameters
    ----------
    settings
        Of this process.
    context
        Makes the sockets; its ``term`` waits at most :data:`LINGER_SECONDS` for this one.
    address
        The endpoint where a server can be reached, as workers connect to it; empty for a worker.

    Raises
    ------
    SettingsError
        The scheduler's name does not resolve, or ``DMLC_INTERFACE`` is no interface of this host.
    """

    def __init__(self, settings: Settings, context: zmq.Context[zmq.Socket[bytes]], address: str = "") -> None:
        if settings.interface:
            network.interface_address(settings.interface)
        self._settings = settings
        self._token = secrets.randbits(63)
        self._address = address
        self.rank = -1
        self.malformed = 0  #: frames that did not decode
        root = network.root_address(settings)
        self._root = root
        self._where = f"{settings.root_host}:{settings.root_port}"
        _memberships.add(self)
        self.socket = context.socket(zmq.DEALER)
        # Of its own choice, so that the scheduler knows this node again after the connection broke.
        self.socket.setsockopt(zmq.ROUTING_ID, b"n" + self._token.to_bytes(8, "big"))
        self.socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_CONTROL_BYTES)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(network.endpoint(root, settings.root_port))

        self._early: list[ControlMessage] = []  # came with Started
        self._lost = False
        self._broken_at: Optional[float] = None
        self._silent_seconds = 0.0
        self._last_turn = time.monotonic()
        self._next_heartbeat = 0.0

    # ------------------------------------------------------------------------------- registration

    def register(self, stopped: Callable[[], Optional[str]] = lambda: None) -> tuple[int, Started]:
        """Register with the scheduler and wait until the job starts.

        Parameters
        ----------
        stopped
            Asked a few times a second: a reason for which to give up, such as a signal.

        Returns
        -------
        rank, started
            This node's rank among those of its role, and what the scheduler says to all at the start.

        Raises
        ------
        RegistrationRefused
            The scheduler refused this node, or the job did not start; the text is the scheduler's.
        DeadlineExceeded
            ``start_seconds`` passed without an answer, or once more after it; the text names the scheduler's host and
            port.
        Closed
            With the reason that ``stopped`` gave.
        """
        settings = self._settings
        request = messages.Register(
            protocol=messages.PROTOCOL,
            job=settings.job,
            role=settings.role,
            num_workers=settings.num_workers,
            num_servers=settings.num_servers,
            address=self._address,
            host=sockets.gethostname(),
            pid=os.getpid(),
            token=self._token,
            preferred=settings.preferred_rank,
        )
        began = time.monotonic()
        give_up_at = began + settings.start_seconds
        next_request, silent = 0.0, True
        while True:
            reason = stopped()
            if reason:
                raise Closed(reason)
            now = time.monotonic()
            if now >= give_up_at:
                raise DeadlineExceeded(self._why_not_started())
            if silent and self.rank < 0 and now - began >= STILL_WAITING_SECONDS:
                silent = False
                log.warning("still waiting for the scheduler at %s", self._where)
            if now >= next_request:
                self.send(request)
                next_request = now + REGISTER_SECONDS
            self.socket.poll(int(1000 * max(0.0, min(next_request, give_up_at) - now)) + 1)
            taken = self._take()
            while taken:
                message = taken.pop(0)
                if isinstance(message, messages.Registered):
                    if self.rank < 0:
                        give_up_at = now + settings.start_seconds + VERDICT_SECONDS
                    self.rank = message.rank
                elif isinstance(message, messages.Refused):
                    raise RegistrationRefused(f"refused by the scheduler at {self._where}: {message.reason}")
                elif isinstance(message, Started) and self.rank >= 0:
                    self._early = taken
                    self._last_turn = time.monotonic()
                    return self.rank, message

    def _why_not_started(self) -> str:
        seconds = self._settings.start_seconds
        if self.rank >= 0:
            return (
                f"registered with the scheduler at {self._where} as {self._settings.role.value} {self.rank}, but the"
                f" job did not start within {seconds:g} s: other nodes are missing (AUTOBYTE_START_SECONDS)"
            )
        return (
            f"no answer from the scheduler at {self._where} within {seconds:g} s: is it running there?"
            " (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, AUTOBYTE_START_SECONDS)"
        )

    # --------------------------------------------------------------------------------- the job runs

    def send(self, message: ControlMessage) -> None:
        """Queue ``message`` for the scheduler; never blocks."""
        try:
            self.socket.send(messages.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != errno.EAGAIN:
                raise

    def receive(self, now: float) -> list[ControlMessage]:
        """Return what the scheduler has sent to this node, and send the heartbeat when it is due.

        Never blocks. ``now`` is ``time.monotonic()``. When the scheduler is lost, the last message is a ``PeerGone``
        for it, once.
        """
        seen: list[ControlMessage] = []
        self._silent_seconds += min(now - self._last_turn, LONGEST_TURN_SECONDS)
        self._last_turn = now
        taken, self._early = self._early + self._take(), []
        for message in taken:
            self._silent_seconds = 0.0
            if not isinstance(message, (messages.Heartbeat, messages.Registered, Started)):
                seen.append(message)
        self._watch_connection(now)
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._settings.heartbeat_seconds
            if self._broken_at is None:
                self.send(messages.Heartbeat())
        reason = self._why_lost(now)
        if reason and not self._lost:
            self._lost = True
            seen.append(PeerGone(Peer(Role.SCHEDULER, 0, self._where), True, reason))
        return seen

    def next_wake(self, now: float) -> float:
        """Return the seconds from ``now`` after which :meth:`receive` wants to be called, readable or not."""
        wake_at = min(self._next_heartbeat, self._last_turn + LONGEST_TURN_SECONDS)
        if self._broken_at is not None and not self._lost:
            wake_at = min(wake_at, self._broken_at + RECONNECT_SECONDS)
        return max(0.0, wake_at - now)

    def after_fork_in_child(self) -> None:
        """Leave the connection to the parent alone: its end is how the scheduler notices the parent's."""
        network.close_copies(self._root, self._settings.root_port)

    def close(self) -> None:
        """Close the sockets. What was sent still goes out within :data:`LINGER_SECONDS`."""
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close()

    # ------------------------------------------------------------------------------------- inside

    def _take(self) -> list[ControlMessage]:
        """Return every message that is there; count and drop what is malformed."""
        taken = []
        while network.readable(self.socket):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:  # a connection that broke since took its messages along
                break
            message = messages.decode_control(parts[0]) if len(parts) == 1 else None
            if message is None:
                self.malformed += 1
            else:
                taken.append(message)
        return taken

    def _watch_connection(self, now: float) -> None:
        for made in network.connection_changes(self._monitor):
            self._broken_at = None if made else now

    def _why_lost(self, now: float) -> str:
        if self._silent_seconds > self._settings.silence_seconds:
            return f"{self._where} was silent for {self._settings.silence_seconds:g} s"
        if self._broken_at is not None and now >= self._broken_at + RECONNECT_SECONDS:
            return f"the connection to {self._where} broke: the scheduler's process has ended, or the network failed"
        return ""
