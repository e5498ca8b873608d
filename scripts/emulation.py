"""An emulated cluster on one machine: hosts with a network of their own, at rates that may change.

Each host is a network namespace with one interface, ``eth0``: one end of a veth pair whose other end is a
port of a bridge that lives in a namespace of its own, so nothing of the machine's network is touched and
two labs never meet. Both ends of each pair carry a token bucket (``tbf``): the host's end limits what it
sends, the bridge's end what it receives, as a full-duplex link to a switch does. Hosts share the
machine's CPUs and files; only the network is emulated.

Why the links are built this way:

* MTU 1500, as on most clusters. The rate counts whole Ethernet frames, so a TCP stream carries at most
  1448/1514 of it (:func:`payload_share`).
* Segmentation offload stays on (veth's default): up to 64 KB cross as one packet and ``tbf`` still charges
  every frame's header. Without it the shared CPUs, not the links, would set the speed.
* The burst is 1 ms of the rate, and not below 80 KB, so that a 64 KB packet passes in one piece.
* A port queues up to ``QUEUE_MS`` of its rate before it drops, in the bucket's own queue: veth's
  txqueuelen plays no part.
* Namespaces inherit the machine's TCP congestion control, and it changes results by several per cent. The lab
  pins it on the route (``congctl``); ``measure`` and every benchmark print what a socket really uses.

A lab always cleans up: at the end, on an exception, on SIGINT, SIGTERM and SIGHUP. Names carry the
pid, so what a SIGKILL leaves is found by ``clean``. Needs Linux, root and iproute2; only the standard
library of Python.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

__all__ = ["Lab", "LabError", "Stream", "clean", "orderly_endings", "payload_share", "running", "set_rate", "why_not"]

NAMESPACES = Path("/run/netns")
NAME = re.compile(r"(autobyte-(\d+)-\d+)-(switch|host(\d+))")
MTU_BYTES = 1500
ETHERNET_BYTES = 14
#: IPv4 header, TCP header, TCP time stamps.
HEADER_BYTES = 20 + 20 + 12
#: What a port of the switch holds before it drops.
QUEUE_MS = 10.0
#: CAP_NET_ADMIN and CAP_SYS_ADMIN.
REQUIRED_CAPABILITIES = {12, 21}
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LabError(RuntimeError):
    """The lab cannot be built or changed; the text says what is missing."""


def why_not() -> Optional[str]:
    """Return what this process lacks to build a lab, or None."""
    if not sys.platform.startswith("linux"):
        return f"the lab needs Linux (network namespaces), this is {sys.platform}"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"the lab needs '{program}' of iproute2 (Debian: apt-get install iproute2)"
    if not _capabilities() >= REQUIRED_CAPABILITIES:
        return "the lab needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) to make network namespaces"
    return None


def _capabilities() -> Set[int]:
    status = Path("/proc/self/status").read_text()
    bits = int(status.split("CapEff:")[1].split()[0], 16)
    return {number for number in range(bits.bit_length()) if bits >> number & 1}


def payload_share() -> float:
    """Return the largest share of a link's rate that TCP payload can have: (1500 - 52) / (1500 + 14)."""
    return (MTU_BYTES - HEADER_BYTES) / (MTU_BYTES + ETHERNET_BYTES)


def _call(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _namespaces() -> List[re.Match[str]]:
    names = sorted(os.listdir(NAMESPACES)) if NAMESPACES.is_dir() else []
    return [match for match in map(NAME.fullmatch, names) if match]


def _inhabitants(namespace: str) -> List[int]:
    try:
        return [int(pid) for pid in _call("ip", "netns", "pids", namespace).split()]
    except LabError:  # it is gone, and all in it
        return []


def _remove(namespaces: Sequence[str]) -> None:
    """End every process in the namespaces, then the namespaces; with them go links and queues."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2.0
        pids = [pid for namespace in namespaces for pid in _inhabitants(namespace)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while pids and time.monotonic() < deadline:
            time.sleep(0.05)
            pids = [pid for namespace in namespaces for pid in _inhabitants(namespace)]
    for namespace in namespaces:
        with contextlib.suppress(LabError):
            _call("ip", "netns", "delete", namespace)


def clean() -> List[str]:
    """Remove the namespaces (and end the processes in them) of labs whose process is dead; return their names."""
    dead = [match[0] for match in _namespaces() if not Path("/proc", match[2]).exists()]
    _remove(dead)
    return dead


def running() -> List[str]:
    """Return the names of the labs whose process lives."""
    return sorted({match[1] for match in _namespaces() if Path("/proc", match[2]).exists()})


def set_rate(lab: str, host: int, rate_mbit: float, verb: str = "change") -> None:
    """Set the rate of both ends of a host's link in the lab of that name."""
    if not 0.1 <= rate_mbit <= 100_000:
        raise LabError(f"rate of host {host}: expected 0.1 to 100000 Mbit/s, not {rate_mbit:g}")
    burst_bytes = max(80_000, int(rate_mbit * 1e6 / 8 * 1e-3))
    limit_bytes = burst_bytes + int(rate_mbit * 1e6 / 8 * QUEUE_MS * 1e-3)
    for namespace, device in ((f"{lab}-host{host}", "eth0"), (f"{lab}-switch", f"port{host}")):
        bucket = f"tbf rate {int(rate_mbit * 1e6)}bit burst {burst_bytes} limit {limit_bytes}"
        _call("tc", "-netns", namespace, "qdisc", verb, "dev", device, "root", "handle", "1:", *bucket.split())


@contextlib.contextmanager
def orderly_endings() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the program as SIGINT does, through every ``finally``, while the body runs."""

    def end(number: int, _: Optional[FrameType]) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Stream(NamedTuple):
    """What one plain TCP stream measured."""

    goodput_mbit: float
    congestion: str


class Lab:
    """Hosts 0 to ``hosts - 1`` around one switch.

    Parameters
    ----------
    hosts
        How many, 1 to 250.
    rate_mbit
        Rate of every link in Mbit/s, each way, counting whole frames; see :meth:`set_rate`.
    delay_ms
        One-way delay added to what a host sends. Needs a kernel with ``netem``.
    congestion
        The TCP congestion control between hosts.

    Raises
    ------
    LabError
        On entering the context: something that the lab needs is missing.

    Examples
    --------
    >>> with Lab(hosts=2, rate_mbit=1000) as lab:                             # doctest: +SKIP
    ...     lab.popen(1, ["python3", "-m", "http.server", "--bind", lab.address(1)])
    ...     lab.set_rate(1, 200)
    """

    _numbers = itertools.count()

    def __init__(self, hosts: int, rate_mbit: float = 1000.0, delay_ms: float = 0.0, congestion: str = "cubic") -> None:
        if not 1 <= hosts <= 250:
            raise LabError(f"hosts: expected 1 to 250, not {hosts}")
        self.hosts = hosts
        self.name = f"autobyte-{os.getpid()}-{next(self._numbers)}"
        self._rate_mbit = rate_mbit
        self._delay_ms = delay_ms
        self._congestion = congestion
        self._processes: List[subprocess.Popen[str]] = []
        self._endings = orderly_endings()

    def __enter__(self) -> Lab:
        missing = why_not()
        if missing:
            raise LabError(missing)
        self._endings.__enter__()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._endings.__exit__(None, None, None)

    def address(self, host: int) -> str:
        """Return the IPv4 address of ``host``, the same in every lab."""
        return f"10.99.0.{host + 1}"

    def namespace(self, host: int) -> str:
        """Return the name of the host's namespace, for ``ip netns exec``."""
        return f"{self.name}-host{host}"

    def popen(
        self,
        host: int,
        command: Sequence[str],
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[int] = subprocess.DEVNULL,
        stdout: Optional[int] = None,
        stderr: Optional[int] = None,
    ) -> subprocess.Popen[str]:
        """Start ``command`` on ``host``; text streams, a process group of its own, ended with the lab."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(host), *command],
            env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def set_rate(self, host: int, rate_mbit: float) -> None:
        """Set the rate of the host's link, both ways, from now on; what is queued stays queued."""
        set_rate(self.name, host, rate_mbit)

    def measure(self, source: int = 0, target: int = 1, seconds: float = 1.0) -> Stream:
        """Return what a plain TCP stream from ``source`` to ``target`` carries within ``seconds``."""
        stream = [sys.executable, str(Path(__file__).with_name("stream.py"))]
        receiver = self.popen(target, [*stream, "receive", self.address(target), str(seconds)], stdout=subprocess.PIPE)
        sender = self.popen(source, [*stream, "send", self.address(target)], stdout=subprocess.PIPE)
        goodput_mbit, _ = receiver.communicate(timeout=seconds + 20)
        congestion, _ = sender.communicate(timeout=20)
        return Stream(float(goodput_mbit), congestion.strip())

    def _end(self) -> None:
        """End what runs on the hosts and remove them, whatever signals come."""
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
        try:
            for process in self._processes:  # one that has not reached its namespace yet is found only here
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            _remove([match[0] for match in _namespaces() if match[1] == self.name])
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=5)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)

    def _build(self) -> None:
        switch = f"{self.name}-switch"
        _call("ip", "netns", "add", switch)
        _call("ip", "-n", switch, "link", "add", "bridge0", "mtu", str(MTU_BYTES), "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "bridge0", "up")
        for host in range(self.hosts):
            namespace, port, address = self.namespace(host), f"port{host}", self.address(host)
            _call("ip", "netns", "add", namespace)
            _call("ip", "-n", namespace, "link", "set", "lo", "up")
            _call("ip", "-n", namespace, "link", "add", "eth0", "mtu", str(MTU_BYTES), "type", "veth",
                  "peer", "name", port, "mtu", str(MTU_BYTES), "netns", switch)  # fmt: skip
            _call("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
            set_rate(self.name, host, self._rate_mbit, verb="add")
            self._add_delay(namespace)
            _call("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0", "noprefixroute")
            _call("ip", "-n", namespace, "link", "set", "eth0", "up")
            _call("ip", "-n", namespace, "route", "add", "10.99.0.0/24", "dev", "eth0", "src", address,
                  "congctl", self._congestion)  # fmt: skip

    def _add_delay(self, namespace: str) -> None:
        if not self._delay_ms:
            return
        try:
            _call("tc", "-netns", namespace, "qdisc", "add", "dev", "eth0", "parent", "1:1", "handle", "2:",
                  "netem", "delay", f"{self._delay_ms}ms", "limit", "100000")  # fmt: skip
        except LabError as error:
            raise LabError(f"a delay needs a kernel with netem (module sch_netem): {error}") from None
