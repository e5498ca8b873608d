"""Which addresses a process binds, advertises and connects to.

Nothing is ever bound to all interfaces: a process listens on the one address through which the others reach it.

* The scheduler listens where ``DMLC_PS_ROOT_URI`` points, if that is an address of this host. Where it is not (a service's
  virtual address) or only means this host itself (``localhost``, or Debian's 127.0.1.1 for the own name),
  ``DMLC_INTERFACE`` or ``DMLC_NODE_HOST`` says where else.
* A server listens on ``DMLC_INTERFACE``, else on ``DMLC_NODE_HOST``, else on the interface that routes to the scheduler:
  loopback exactly when the scheduler is on loopback. It advertises ``DMLC_NODE_HOST`` if given, else what it binds.

Names are resolved to IPv4 where there is a choice, so that both ends of ``localhost`` mean the same address.
"""

from __future__ import annotations

import logging
import socket
import time

import psutil

from ps.config import Settings
from ps.errors import SettingsError

__all__ = ["endpoint", "interface_address", "resolve", "root_address", "scheduler_hosts", "server_hosts"]

log = logging.getLogger("autobyte.network")

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_RETRY_SECONDS = 0.5


def endpoint(host: str, port: int) -> str:
    """Return the ZeroMQ endpoint of a numeric address and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _interfaces() -> dict[str, list[str]]:
    """Return the addresses of every interface, IPv4 first, without link-local ones."""
    return {
        name: [
            entry.address
            for family in _FAMILIES
            for entry in entries
            if entry.family == family and not entry.address.startswith("fe80:")
        ]
        for name, entries in psutil.net_if_addrs().items()
    }


def interface_address(name: str) -> str:
    """Return the address of network interface ``name``.

    Raises
    ------
    SettingsError
        There is no such interface, or it has no address; the text lists those that can be used.
    """
    usable = {interface: addresses for interface, addresses in _interfaces().items() if addresses}
    if name not in usable:
        known = ", ".join(f"{interface} ({addresses[0]})" for interface, addresses in sorted(usable.items()))
        raise SettingsError(f"DMLC_INTERFACE={name!r}: no such interface with an address; this host has {known}")
    return usable[name][0]


def resolve(host: str, variable: str, patience_seconds: float) -> str:
    """Return the numeric address of ``host``, trying for ``patience_seconds``: names appear late in some clusters.

    Raises
    ------
    SettingsError
        The name does not resolve; the text names ``variable``, which ``host`` came from.
    """
    give_up_at = time.monotonic() + patience_seconds
    warned = False
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            break
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        if time.monotonic() >= give_up_at:
            raise SettingsError(f"{variable}={host!r} does not resolve to an address: {reason}")
        if not warned:
            log.warning("%s=%r does not resolve yet (%s); trying for %g s", variable, host, reason, patience_seconds)
            warned = True
        time.sleep(_RETRY_SECONDS)
    return min((family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found)[1]


def root_address(settings: Settings) -> str:
    """Return the numeric address of the scheduler."""
    return resolve(settings.root_host, "DMLC_PS_ROOT_URI", settings.start_seconds)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _is_local(address: str) -> bool:
    return _is_loopback(address) or any(address in addresses for addresses in _interfaces().values())


def _chosen_host(settings: Settings) -> str:
    """Return the address to bind that the settings ask for; empty where they leave it open."""
    if settings.interface:
        return interface_address(settings.interface)
    if not settings.node_host:
        return ""
    address = resolve(settings.node_host, "DMLC_NODE_HOST", 0.0)
    if not _is_local(address):
        known = ", ".join(sorted(a for addresses in _interfaces().values() for a in addresses))
        raise SettingsError(
            f"DMLC_NODE_HOST={settings.node_host!r} is not an address of this host ({known});"
            " set DMLC_INTERFACE as well to say where to listen"
        )
    return address


def scheduler_hosts(settings: Settings) -> list[str]:
    """Return the addresses that the scheduler binds: one, or a loopback address and the chosen one."""
    root, chosen = root_address(settings), _chosen_host(settings)
    if not _is_local(root):
        if not chosen:
            raise SettingsError(
                f"DMLC_PS_ROOT_URI={settings.root_host!r} ({root}) is not an address of this host: start the scheduler"
                " there, or set DMLC_INTERFACE or DMLC_NODE_HOST to where it shall listen"
            )
        return [chosen]
    if not chosen or chosen == root:
        return [root]
    if not _is_loopback(root):
        if root in _interfaces().get(settings.interface, []):
            return [root]
        variable, value = (
            ("DMLC_INTERFACE", settings.interface) if settings.interface else ("DMLC_NODE_HOST", settings.node_host)
        )
        raise SettingsError(
            f"{variable}={value!r} means {chosen}, but DMLC_PS_ROOT_URI={settings.root_host!r} means {root}:"
            " nodes would look for the scheduler where it does not listen"
        )
    return [root] if _is_loopback(chosen) else [root, chosen]


def server_hosts(settings: Settings) -> tuple[str, str]:
    """Return the address that a server binds and the one that it advertises to the workers."""
    bind = _chosen_host(settings)
    if not bind:
        root = root_address(settings)
        family = socket.AF_INET6 if ":" in root else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket only asks for the route
            try:
                probe.connect((root, settings.root_port))
            except OSError as error:
                raise SettingsError(
                    f"DMLC_PS_ROOT_URI={settings.root_host!r}: no route to {root} ({error.strerror})"
                ) from None
            bind = str(probe.getsockname()[0])
    advertise = resolve(settings.node_host, "DMLC_NODE_HOST", 0.0) if settings.node_host else bind
    return bind, advertise
