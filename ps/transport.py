"""ZeroMQ sockets for the data between workers and servers: the one place that knows how bytes travel.

A worker has one :class:`WorkerLane` (a DEALER) for each server, a server one :class:`ServerLane` (a ROUTER) for all
workers. A lane sends and receives a header frame and at most one payload frame, never blocks, and tells when a
connection was made or broken; what to send, in which order and how much is the link's business (:mod:`ps.link`). The
interface is narrow on purpose: another bulk transport has to offer these few methods only.

Between processes of one host the lanes use an (abstract) Unix socket, which takes half the CPU time of TCP over
loopback. Its name contains what tells whether it can be reached: the machine's boot and the network namespace.

Payload is sent without a copy: the memory must stay as it is until the message is acknowledged. Send queues inside
ZeroMQ are unbounded, because the credit of the links bounds what is in them; what a stranger may send is bounded by
``MAXMSGSIZE`` and by the receive queue. Raising glibc's thresholds lets the receive buffers of large messages be used
again instead of being mapped and faulted in anew for each message (48 to 174 thousand page faults per GB without it).
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from typing import Optional, Union

import zmq

from ps import network
from ps.config import MAX_PARTITION_BYTES, MIB

__all__ = ["WorkerLane", "ServerLane", "Payload", "new_context", "keep_freed_memory"]

Payload = Union[bytes, memoryview]

_NOTHING = memoryview(b"")

#: A partition and, for fused messages, some room.
MAX_FRAME_BYTES = MAX_PARTITION_BYTES + MIB

# Plain integers: operations on pyzmq's enumerations take microseconds, in loops that run for every message.
_RCVMORE = int(zmq.RCVMORE)
_NOBLOCK = int(zmq.NOBLOCK)
_SNDMORE = int(zmq.NOBLOCK | zmq.SNDMORE)

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(threshold_bytes: int = 512 * MIB) -> None:
    """Have the C library keep freed blocks up to ``threshold_bytes`` for reuse. Does nothing without glibc."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(32 * MIB))  # glibc's upper limit on 64 bit
        libc.mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(threshold_bytes))
    except (OSError, AttributeError):
        pass


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context of its own; one I/O thread, which measured better than two."""
    return zmq.Context(io_threads=1)


def _local_prefix() -> str:
    """Return how the names of Unix sockets begin that a process of this host and network namespace can reach."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"ipc://@autobyte-{boot}-{os.stat('/proc/self/ns/net').st_ino}-"
    except OSError:
        return ""


def _nearest(address: str) -> str:
    """Return the best endpoint of ``address``: a Unix socket where the server is on this host."""
    endpoints = address.split()
    prefix = _local_prefix()
    return next((name for name in endpoints if prefix and name.startswith(prefix)), endpoints[0])


def _prepare(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)


def _drop_rest(socket: zmq.Socket[bytes]) -> None:
    while socket.getsockopt(_RCVMORE):
        socket.recv(_NOBLOCK, copy=False)


class WorkerLane:
    """A worker's connection to one server."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], identity: bytes, address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        _prepare(self.socket)
        self.socket.setsockopt(zmq.ROUTING_ID, identity)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self.monitor = self.socket.get_monitor_socket(events)
        endpoint = _nearest(address)
        self.near = endpoint.startswith("ipc:")  #: whether the server is on this host
        self.socket.connect(endpoint)

    def send(self, header: bytes, payload: Optional[Payload]) -> None:
        """Queue one message; never blocks."""
        if payload is None:
            self.socket.send(header, _NOBLOCK)
        else:
            self.socket.send(header, _SNDMORE)
            self.socket.send(payload, _NOBLOCK, copy=False, track=False)

    def receive(self, ready: bool) -> Optional[tuple[memoryview, Optional[memoryview]]]:
        """Return the header and the payload, if any, of the next message; None where there is no message.

        ``ready`` says that a poll has just told that there is one. A message of more frames has an empty header here.
        """
        socket = self.socket
        if not (ready or network.readable(socket)):
            return None
        try:
            header = socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:  # a connection that broke since the poll took its messages along
            return None
        if not header.more:
            return header.buffer, None
        payload = socket.recv(_NOBLOCK, copy=False)
        if payload.more:
            _drop_rest(socket)
            return _NOTHING, None
        return header.buffer, payload.buffer

    def changes(self) -> list[bool]:
        """Return what happened to the connection since the last call: True for made, False for broken."""
        return network.connection_changes(self.monitor)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class ServerLane:
    """A server's socket for all its workers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        _prepare(self.socket)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)

    def bind(self, host: str) -> str:
        """Bind a free port of the numeric address ``host``, and a name for workers of the same host.

        Returns
        -------
        str
            The endpoints, separated by a space: what :class:`WorkerLane` takes as address.
        """
        self.socket.bind(network.endpoint(host, 0))
        address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        prefix = _local_prefix()
        if prefix:
            name = prefix + secrets.token_hex(8)
            self.socket.bind(name)
            address += " " + name
        return address

    def receive(self, ready: bool) -> Optional[tuple[bytes, memoryview, Optional[memoryview]]]:
        """Return the sender's identity, and header and payload as :meth:`WorkerLane.receive` does."""
        socket = self.socket
        if not (ready or network.readable(socket)):
            return None
        try:
            identity = socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:  # a connection that broke since the poll took its messages along
            return None
        if not identity.more:
            return identity.bytes, _NOTHING, None
        header = socket.recv(_NOBLOCK, copy=False)
        if not header.more:
            return identity.bytes, header.buffer, None
        payload = socket.recv(_NOBLOCK, copy=False)
        if payload.more:
            _drop_rest(socket)
            return identity.bytes, _NOTHING, None
        return identity.bytes, header.buffer, payload.buffer

    def send(self, identity: bytes, header: bytes, payload: Optional[Payload]) -> bool:
        """Queue one message for ``identity``; never blocks. False where that peer is not connected."""
        try:
            self.socket.send(identity, _SNDMORE)
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return False
            raise
        if payload is None:
            self.socket.send(header, _NOBLOCK)
        else:
            self.socket.send(header, _SNDMORE)
            self.socket.send(payload, _NOBLOCK, copy=False, track=False)
        return True

    def close(self) -> None:
        self.socket.close(0)
