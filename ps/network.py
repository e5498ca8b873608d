"""Which addresses a process binds, advertises and connects to. IPv4, over which MXNet's clusters run.

Nothing is ever bound to all interfaces: a process listens on the one address through which the others reach it.

* The scheduler listens where ``DMLC_PS_ROOT_URI`` points, if that is an address of this host. Where it is not (a
  service's virtual address), or only means this host itself (``localhost``, or Debian's 127.0.1.1 for the own name),
  ``DMLC_NODE_HOST`` or ``DMLC_INTERFACE`` says where else.
* A server listens on ``DMLC_NODE_HOST``, else on ``DMLC_INTERFACE``, else on the interface that routes to the
  scheduler: loopback exactly when the scheduler is on loopback. What it binds is what it advertises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import stat
import struct
import time

import psutil
import zmq

from ps.config import Settings
from ps.errors import SettingsError

__all__ = [
    "bind_host",
    "close_copies",
    "connection_changes",
    "endpoint",
    "free_port",
    "interface_address",
    "readable",
    "resolve",
    "root_address",
    "scheduler_hosts",
]

log = logging.getLogger("autobyte.network")

_RETRY_SECONDS = 0.5

# Plain integers, as in ps.transport.
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, for a job that is about to start there.

    It is none of those that Linux gives to connections, which another process may be given meanwhile.
    """
    for _ in range(100):
        port = 10000 + secrets.randbelow(22768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port was found on 127.0.0.1")


def endpoint(host: str, port: int) -> str:
    """Return the ZeroMQ endpoint of a numeric address and a port."""
    return f"tcp://{host}:{port}"


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether ``socket`` has a message: asking costs a microsecond, an exception for an empty one 32."""
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def connection_changes(monitor: zmq.Socket[bytes]) -> list[bool]:
    """Return what a monitor socket has told since the last call: True for each connection made, False for each broken.

    pyzmq's own decoder would bring asyncio with it, an eighth of the time that a process takes to start.
    """
    changes = []
    while readable(monitor):
        event = struct.unpack_from("=H", monitor.recv_multipart(zmq.NOBLOCK)[0])[0]
        changes.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
    return changes


def _interfaces() -> dict[str, list[str]]:
    """Return the addresses of every interface that has any."""
    found = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in found.items() if addresses}


def _known_interfaces() -> str:
    return ", ".join(f"{name} ({addresses[0]})" for name, addresses in sorted(_interfaces().items()))


def interface_address(name: str) -> str:
    """Return the address of network interface ``name``.

    Raises
    ------
    SettingsError
        There is no such interface, or it has no address; the text lists those that can be used.
    """
    addresses = _interfaces().get(name)
    if not addresses:
        raise SettingsError(
            f"DMLC_INTERFACE={name!r}: no such interface with an IPv4 address; this host has {_known_interfaces()}"
        )
    return addresses[0]


def resolve(host: str, variable: str, patience_seconds: float = 0.0) -> str:
    """Return the numeric address of ``host``, trying for ``patience_seconds``: in some clusters names appear late.

    Raises
    ------
    SettingsError
        The name does not resolve; the text names ``variable``, which ``host`` came from.
    """
    give_up_at = time.monotonic() + patience_seconds
    warned = False
    while True:
        try:
            return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        if time.monotonic() >= give_up_at:
            raise SettingsError(f"{variable}={host!r} does not resolve to an IPv4 address: {reason}")
        if not warned:
            log.warning("%s=%r does not resolve yet (%s); trying for %g s", variable, host, reason, patience_seconds)
            warned = True
        time.sleep(_RETRY_SECONDS)


def root_address(settings: Settings) -> str:
    """Return the numeric address of the scheduler."""
    return resolve(settings.root_host, "DMLC_PS_ROOT_URI", settings.start_seconds)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _is_local(address: str) -> bool:
    return _is_loopback(address) or any(address in addresses for addresses in _interfaces().values())


def _chosen_host(settings: Settings) -> str:
    """Return the address to bind that the settings ask for; empty where they leave it open."""
    host = interface_address(settings.interface) if settings.interface else ""
    if settings.node_host:
        host = resolve(settings.node_host, "DMLC_NODE_HOST")
        if settings.interface and host not in _interfaces()[settings.interface]:
            raise SettingsError(
                f"DMLC_NODE_HOST={settings.node_host!r} ({host}) is not an address of"
                f" DMLC_INTERFACE={settings.interface!r}, which has {', '.join(_interfaces()[settings.interface])}"
            )
        if not _is_local(host):
            raise SettingsError(
                f"DMLC_NODE_HOST={settings.node_host!r} ({host}) is not an address of this host, which has"
                f" {_known_interfaces()}"
            )
    return host


def scheduler_hosts(settings: Settings) -> list[str]:
    """Return the addresses that the scheduler binds: one, or a loopback address and the chosen one.

    Raises
    ------
    SettingsError
        The variables contradict each other or this host; the text names them.
    """
    root, chosen = root_address(settings), _chosen_host(settings)
    if not _is_local(root):
        if not chosen:
            raise SettingsError(
                f"DMLC_PS_ROOT_URI={settings.root_host!r} ({root}) is not an address of this host, which has"
                f" {_known_interfaces()}: start the scheduler there, or set DMLC_INTERFACE to where it shall listen"
            )
        return [chosen]
    if not chosen or chosen == root or (_is_loopback(chosen) and _is_loopback(root)):
        return [root]
    if _is_loopback(root):
        return [root, chosen]
    if not settings.node_host and root in _interfaces()[settings.interface]:
        return [root]
    variable, value = (
        ("DMLC_NODE_HOST", settings.node_host) if settings.node_host else ("DMLC_INTERFACE", settings.interface)
    )
    raise SettingsError(
        f"{variable}={value!r} means {chosen}, but DMLC_PS_ROOT_URI={settings.root_host!r} means {root}:"
        " nodes would look for the scheduler where it does not listen"
    )


def bind_host(settings: Settings) -> str:
    """Return the address that a server binds and advertises.

    Raises
    ------
    SettingsError
        The variables name no address of this host, or there is no route to the scheduler.
    """
    chosen = _chosen_host(settings)
    if chosen:
        return chosen
    root = root_address(settings)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((root, settings.root_port))  # sends nothing: it only asks for the route
        except OSError as error:
            raise SettingsError(
                f"DMLC_PS_ROOT_URI={settings.root_host!r}: no route to {root} ({error.strerror})"
            ) from None
        return str(probe.getsockname()[0])


def close_copies(host: str, port: int) -> None:
    """In a forked child: close the inherited copies of the parent's TCP connections to ``host``, an address.

    A connection ends when its last copy is closed. With a copy in a child that lives on, such as one that loads data,
    the other side would not notice that the parent was killed.
    """
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as copy:
                peer = copy.getpeername()
        except OSError:  # closed already, or connected to nobody
            continue
        if peer == (host, port):
            os.close(number)
