"""Memory that processes of one host read from each other, so that payload between them is not sent at all.

Each process allocates what it sends from in an :class:`Arena`, over anonymous files (memfd) that end with their last
user, even after SIGKILL. Peers who find in their greetings that they can read each other's memory (:class:`Neighbour`)
send headers only: a span says at which :class:`~ps.messages.Place` its payload lies. The receiver maps the file
read-only, through ``/proc/<pid>/fd``, when it first meets it. Where that fails (another user, another pid namespace,
not Linux), payload travels inside the messages.

Payload is then read when its message is processed, later than it was sent. That it is still the same follows from
what holds for the whole job (docs/architecture.md), since a receiver sums or copies a span in the turn in which it
accepts its number, and never looks at the payload of a message that it does not accept:

* *Worker to server.* ``Operation.send`` is written again when the range is answered (in place, by the result) or when
  the operation has ended well. Every answer (RESULT, DONE) to a range says that the server has summed it.
* *Server to worker.* What the ledger sends from is written again in the round after the next one, or by an updater when
  all workers have pushed the element. A worker pushes to a key only when its previous operation on it, push or pull,
  has ended: when it has copied its results. This holds for float16, too: only its sums are kept elsewhere.
* *Asynchronous keys.* What a worker reads of an element is a value that it had in between (:mod:`ps.tally`).
* *Failures.* A failed operation may end while its messages are unread. Its key accepts nothing more at this worker,
  :class:`ps.Worker` never uses its staging memory again, and a server writes no more to a round that failed.
* *Ends.* A mapping keeps the memory of a process that has ended. A file that ended before it was mapped is an error
  of that span; the job has lost that node anyway.

Nothing that a peer says is trusted. The probe in its greeting proves that the process that it names is its own; a
file has to be a memfd of ours that cannot shrink, so that reading within its size never ends in SIGBUS; every
reference is checked against that size.
"""

from __future__ import annotations

import bisect
import fcntl
import logging
import mmap
import os
import secrets
import threading
import weakref
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ps.config import MIB
from ps.messages import Place, Probe, Span, SpanKind

__all__ = ["Arena", "Neighbour", "SharedMemoryError"]

log = logging.getLogger("autobyte.shared")

#: Address space of one file. Only what is written takes memory; few files take few descriptors.
SEGMENT_BYTES = 256 * MIB
#: Arrays begin at multiples of this: a cache line, and what vector instructions want.
ALIGNMENT_BYTES = 64
#: No peer makes this process map more files than that.
MAX_SEGMENTS = 256
NONCE_BYTES = 16

#: Spans whose payload may be shared: whatever is written there meanwhile, elements are numbers. What has to be decoded
#: could change between its check and its use.
_RAW = (SpanKind.INIT, SpanKind.PUSH, SpanKind.PUSH_PULL, SpanKind.RESULT)
_NAME = "autobyte"
# fcntl.h; Python has these names from 3.10 on.
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4


class SharedMemoryError(ValueError):
    """A peer refers to memory that it does not share."""


class _Segment:
    """One anonymous file of this process, mapped."""

    def __init__(self, nbytes: int) -> None:
        self.fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.ftruncate(self.fd, nbytes)
        fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
        self.inode = os.fstat(self.fd).st_ino
        self.nbytes = nbytes
        self.memory = np.frombuffer(mmap.mmap(self.fd, nbytes), np.uint8)
        self.address: int = self.memory.ctypes.data
        self.used_bytes = 0

    def take(self, nbytes: int) -> Optional[NDArray[np.uint8]]:
        start = -(-self.used_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if start + nbytes > self.nbytes:
            return None
        self.used_bytes = start + nbytes
        return self.memory[start : self.used_bytes]


class Arena:
    """Allocates arrays that other processes of this user can read. Safe in any thread.

    Memory comes back only with the arena: its arrays are buffers that a job uses again in every round.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []  # ascending by address
        self._addresses: list[int] = []
        self._open: Optional[_Segment] = None  # where small arrays go
        self._works = True
        self._probe: Optional[Probe] = None

    def empty(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a one-dimensional array with arbitrary content; ordinary memory where none can be shared."""
        nbytes = size * dtype.itemsize
        with self._lock:
            memory = self._take(nbytes) if nbytes and self._works else None
        return np.empty(size, dtype) if memory is None else memory.view(dtype)

    def _take(self, nbytes: int) -> Optional[NDArray[np.uint8]]:
        memory = self._open.take(nbytes) if self._open is not None else None
        if memory is not None:
            return memory
        try:
            segment = _Segment(max(nbytes, SEGMENT_BYTES))
        except (OSError, ValueError, AttributeError) as error:  # the last: Python without memfd_create
            self._works = False
            log.info("no more memory can be shared with processes of this host, the rest is sent: %s", error)
            return None
        index = bisect.bisect(self._addresses, segment.address)
        self._addresses.insert(index, segment.address)
        self._segments.insert(index, segment)
        if nbytes < SEGMENT_BYTES:
            self._open = segment
        return segment.take(nbytes)

    def place(self, array: NDArray[Any]) -> Optional[Place]:
        """Return where the first byte of a C-contiguous ``array`` lies; None where it is in no memory of this arena."""
        address: int = array.__array_interface__["data"][0]
        with self._lock:
            index = bisect.bisect(self._addresses, address) - 1
            segment = self._segments[index] if index >= 0 else None
        if segment is None or address + array.nbytes > segment.address + segment.nbytes:
            return None
        return Place(segment.fd, segment.inode, address - segment.address)

    @property
    def probe(self) -> Optional[Probe]:
        """By which a peer can find out whether it can read this memory; None where nothing can be shared."""
        if self._probe is None:
            nonce = secrets.token_bytes(NONCE_BYTES)
            memory = self.empty(NONCE_BYTES, np.dtype(np.uint8))
            memory[:] = np.frombuffer(nonce, np.uint8)
            place = self.place(memory)
            self._probe = None if place is None else Probe(os.getpid(), place, nonce)
        return self._probe


class Neighbour:
    """The memory of one peer, as far as both sides can read each other's.

    Parameters
    ----------
    name
        What the peer is called in errors, such as ``worker 1``.

    Attributes
    ----------
    reads_ours
        Whether the peer can read this process's memory.
    readable
        Whether this process can read the peer's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reads_ours = False
        self.readable = False
        self._pid = 0
        self._tried = False
        self._segments: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def greeted(self, probe: Optional[Probe], reads_ours: bool) -> bool:
        """Take what a greeting says. True where the peer has to be told that its memory has become readable."""
        self.reads_ours = reads_ours
        if self._tried or probe is None:
            return False
        self._tried = True
        self._pid = probe.pid
        try:
            nonce = self._read(probe.place)[:NONCE_BYTES].tobytes()
        except SharedMemoryError as error:
            log.info("payload of %s comes through the socket: %s", self.name, error)
            return False
        self.readable = len(nonce) == NONCE_BYTES and nonce == probe.nonce
        return self.readable

    def payload(self, span: Span) -> NDArray[np.uint8]:
        """Return the peer's memory from the place of ``span`` to the end of its file, read-only.

        Raises
        ------
        SharedMemoryError
            There is none that this process may read, or it holds something else than raw elements.
        """
        if not self.readable:
            raise SharedMemoryError(f"{self.name} refers to shared memory, but has not proved that it has any")
        if span.place is None or span.encoded_bytes or span.kind not in _RAW:
            raise SharedMemoryError(f"{self.name} refers to shared memory by {span}; only raw elements may lie there")
        return self._read(span.place)

    def _read(self, place: Place) -> NDArray[np.uint8]:
        segment = self._segments.get((place.fd, place.inode))
        if segment is None:
            if len(self._segments) >= MAX_SEGMENTS:
                raise SharedMemoryError(f"{self.name} shares more than {MAX_SEGMENTS} files")
            try:
                segment = _map(self._pid, place)
            except (OSError, ValueError, OverflowError) as error:
                raise SharedMemoryError(f"cannot read memory of {self.name}: {error}") from None
            self._segments[place.fd, place.inode] = segment
        if not 0 <= place.offset <= segment.size:
            raise SharedMemoryError(
                f"{self.name} refers to byte {place.offset} of a shared file of {segment.size} bytes"
            )
        return segment[place.offset :]


def _map(pid: int, place: Place) -> NDArray[np.uint8]:
    path = f"/proc/{pid}/fd/{place.fd}"
    # Before it is opened, since opening a device or a pipe may have effects.
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise ValueError(f"{path} is not shared memory of AutoByte's")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if status.st_ino != place.inode:
            raise ValueError(f"{path} is another file than the one announced")
        if not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise ValueError(f"{path} might shrink")
        return np.frombuffer(mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)
