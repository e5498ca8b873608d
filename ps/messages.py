"""Every message on the wire. Nothing else in the project parses bytes.

Two conversations:

* **data**, between a worker and a server: a header frame (a :data:`DataMessage`) and, for :class:`Data`
  only, one payload frame that holds the raw elements of its spans one after the other, except of those whose
  payload the receiver finds in the sender's shared memory (:mod:`ps.shared`);
* **control**, between a node and the scheduler: one frame, a :data:`ControlMessage`.

All are msgspec structs encoded as MessagePack arrays: typed, bounded, and decoding runs no code of the
sender's. A frame that does not decode is counted and dropped by whoever received it.

Messages of one link carry a sequence number from 1; the receiver takes them in that order, acknowledges on
receipt (``Ack.seq`` acknowledges everything up to it), drops what it has had and, after a connection broke,
says in ``Hello.expected`` where to go on. Acknowledgements and hellos carry no number of their own.
"""

from __future__ import annotations

import enum
from typing import Optional, Union

import msgspec

from ps.codecs import Codec
from ps.config import CommConfig, Role
from ps.errors import ErrorCode
from ps.stats import Observation

__all__ = [
    "PROTOCOL",
    "SpanKind",
    "Place",
    "Span",
    "Probe",
    "Hello",
    "Data",
    "Ack",
    "DataMessage",
    "Shard",
    "Mode",
    "Storage",
    "TensorSpec",
    "Tensor",
    "Peer",
    "Register",
    "Registered",
    "Refused",
    "Started",
    "Heartbeat",
    "EnterBarrier",
    "BarrierPassed",
    "Declare",
    "Declared",
    "AddTensors",
    "TensorsAdded",
    "Initialized",
    "ValuesReady",
    "CallFailed",
    "Command",
    "ServerCommand",
    "CommandReply",
    "CommandDone",
    "ConfigUpdate",
    "ConfigConfirmed",
    "Report",
    "PeerGone",
    "Suspect",
    "Leave",
    "Shutdown",
    "ControlMessage",
    "encode",
    "decode_data",
    "decode_control",
]

#: Counts up whenever a message changes; nodes of another number are refused at registration.
PROTOCOL = 3

# ------------------------------------------------------------------------------------------- data


class SpanKind(enum.IntEnum):
    """What a span asks for or brings."""

    INIT = 0  #: worker 0 -> server: the first value; answered by DONE
    PUSH_PULL = 1  #: worker -> server: to be summed; answered by RESULT as ranges complete
    PUSH = 2  #: worker -> server: to be summed; answered by DONE as ranges complete
    RESULT = 3  #: server -> worker: the value of a range
    ERROR = 4  #: server -> worker: the operation failed; the payload is a code byte and UTF-8 text
    PULL = 5  #: worker -> server: asks for the present value of a range; answered by RESULT
    DONE = 6  #: server -> worker: the range is complete
    PUSH_ROWS = 7  #: worker -> server: of the range only these rows are not zero; answered by DONE as it completes
    PULL_ROWS = 8  #: worker -> server: asks for rows by their ids; answered by RESULT, as elements of these rows
    PULL_CHANGES = 9  #: worker -> server: like PULL, by one who has an earlier version; answered by CHANGES or RESULT
    CHANGES = 10  #: server -> worker: of the range only these rows have changed since that version

    @property
    def has_payload(self) -> bool:
        return self not in (SpanKind.PULL, SpanKind.PULL_CHANGES, SpanKind.DONE)


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where payload lies in the sender's shared memory: descriptor and inode of its file, and offset in bytes."""

    fd: int
    inode: int
    offset: int


class Span(msgspec.Struct, array_like=True, frozen=True):
    """A range of elements of one tensor at one version.

    ``start`` counts elements from the beginning of the *tensor* (not of the shard); ``count`` is the number
    of elements, except for ``ERROR``, where it is the number of payload bytes. ``priority`` is MXNet's: larger is
    more urgent (Gluon passes ``-i``); the server's answer travels with the priority of the request.
    ``place`` is set where the payload is not in the message. ``encoded_bytes`` is the size of a payload that the
    tensor's codec has made, or of the records of ``PUSH_ROWS`` and ``CHANGES`` (:mod:`ps.rows`); 0 for raw elements.
    ``start`` and ``count`` of ``PULL_ROWS`` are those of the ids, in the list of all that the worker asks for.
    ``start`` of ``PULL_CHANGES`` is the version that the worker has; the whole shard is meant. The first span of a push
    of worker 0 brings along the ``settings`` of the servers' optimizer that hold from this version on, where they have
    changed.
    """

    kind: SpanKind
    tensor_id: int
    version: int
    start: int
    count: int
    priority: int
    place: Optional[Place] = None
    encoded_bytes: int = 0
    settings: bytes = b""


class Probe(msgspec.Struct, array_like=True, frozen=True):
    """A try of the sender's shared memory: who reads ``nonce`` at ``place`` of process ``pid`` can read all of it."""

    pid: int
    place: Place
    nonce: bytes


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """First message of either side on a new connection; the other side answers with its own.

    ``expected`` is the sequence number that the sender of the hello expects to receive next; ``session`` is
    the number that the scheduler gave the worker at registration, so a leftover of another run is refused.
    ``answer`` asks the receiver for a hello in return; ``near`` says that both are on one host.
    Then ``probe`` is there to try whether the sender's memory can be read, and ``reads`` says that it can read the
    receiver's.
    """

    job: str
    session: int
    rank: int
    expected: int
    answer: bool
    near: bool
    probe: Optional[Probe] = None
    reads: bool = False


class Data(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A numbered message: spans, whose payload follows in the second frame in the same order where it has no place."""

    seq: int
    spans: list[Span]
    follows: bool = False  #: see :class:`ps.transfer.Message`; for estimates only


class Ack(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Everything up to and including ``seq`` has been received."""

    seq: int


DataMessage = Union[Hello, Data, Ack]

# ---------------------------------------------------------------------------------------- control

#: Longest name of a key or a barrier, in characters.
MAX_NAME_LENGTH = 1024


class Shard(msgspec.Struct, array_like=True, frozen=True):
    """Elements ``start`` (inclusive) to ``stop`` (exclusive) of a tensor live on server ``server``."""

    server: int
    start: int
    stop: int


class Mode(str, enum.Enum):
    """When a push is applied and answered (docs/modes.md)."""

    SYNC = "sync"  #: as a round, when all workers have pushed
    ASYNC = "async"  #: by itself, at once


class Storage(str, enum.Enum):
    """How values travel; MXNet calls it ``stype``."""

    DEFAULT = "default"  #: all elements
    ROW_SPARSE = "row_sparse"  #: only the rows that are needed


class TensorSpec(msgspec.Struct, array_like=True, frozen=True):
    """What all ranks must agree on about a key. ``dtype`` is NumPy's name, such as ``float32``.

    A ``whole`` tensor lives on one server, which gives it to an updater in one piece. ``codec`` encodes what is pushed;
    first values travel as they are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    mode: Mode = Mode.SYNC
    stype: Storage = Storage.DEFAULT
    whole: bool = False
    codec: Optional[Codec] = None


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """An agreed tensor: its number on the wire and where its shards live (ascending, gapless)."""

    id: int
    spec: TensorSpec
    shards: list[Shard]


class Peer(msgspec.Struct, array_like=True, frozen=True):
    """An entry of the address book. ``address`` holds ZeroMQ endpoints (see ``ps.transport``); none for workers."""

    role: Role
    rank: int
    address: str


class Register(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Node -> scheduler, repeated until answered. ``token`` tells a repeat from a stranger.

    ``preferred`` is the rank that the node asks for; -1 leaves it to the scheduler.
    """

    protocol: int
    job: str
    role: Role
    num_workers: int
    num_servers: int
    address: str
    host: str
    pid: int
    token: int
    preferred: int = -1


class Registered(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Scheduler -> node: your rank; the job starts when ``Started`` comes."""

    rank: int


class Refused(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Scheduler -> node: you are not of this job, and why."""

    reason: str


class Started(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Scheduler -> node: all are there. ``session`` is this run's number, unlike any other run's.

    ``staleness`` and ``deterministic`` are those of :class:`~ps.config.Settings`.
    """

    session: int
    servers: list[Peer]
    config: CommConfig
    deadline_seconds: float
    staleness: int = -1
    deterministic: bool = False


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """Both ways, every ``heartbeat_seconds``."""


class EnterBarrier(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Worker -> scheduler. ``call`` is the worker's own number for this call."""

    call: int
    name: str


class BarrierPassed(msgspec.Struct, array_like=True, frozen=True, tag=7):
    call: int


class Declare(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """Worker -> scheduler: first part of ``init``; answered by ``Declared`` when all ranks agree.

    A worker that ``waits`` does nothing else until the call is answered. ``first_values`` of worker 0, if any, has the
    bytes of the first value for each tensor; empty for those that it sends to the servers itself, when it has their
    places.
    """

    call: int
    tensors: list[TensorSpec]
    waits: bool = True
    first_values: list[bytes] = []


class Declared(msgspec.Struct, array_like=True, frozen=True, tag=9):
    call: int
    tensors: list[Tensor]


class AddTensors(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """Scheduler -> server: these tensors exist now, with these ``first_values``; answered by ``TensorsAdded``.

    A value is the whole tensor's, or empty where worker 0 sends it.
    """

    call: int
    tensors: list[Tensor]
    first_values: list[bytes] = []


class TensorsAdded(msgspec.Struct, array_like=True, frozen=True, tag=11):
    call: int


class Initialized(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """Worker 0 -> scheduler: the first values of the tensors of its ``call`` are on the servers."""

    call: int


class ValuesReady(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """Scheduler -> worker: ``init`` number ``call`` is complete on all ranks."""

    call: int


class CallFailed(msgspec.Struct, array_like=True, frozen=True, tag=14):
    """Scheduler -> worker: the barrier, init or command number ``call`` failed."""

    call: int
    code: ErrorCode
    text: str


class ConfigUpdate(msgspec.Struct, array_like=True, frozen=True, tag=15):
    """Scheduler -> node: use this from the next push on; answered by ``ConfigConfirmed``."""

    config: CommConfig


class ConfigConfirmed(msgspec.Struct, array_like=True, frozen=True, tag=16):
    epoch: int


class Report(msgspec.Struct, array_like=True, frozen=True, tag=17):
    """Node -> scheduler: what was seen in one window."""

    observation: Observation


class PeerGone(msgspec.Struct, array_like=True, frozen=True, tag=18):
    """Scheduler -> node: ``peer`` has left (``lost=False``: it finished its part) or died (``lost=True``)."""

    peer: Peer
    lost: bool
    reason: str


class Suspect(msgspec.Struct, array_like=True, frozen=True, tag=19):
    """Node -> scheduler: my connection to ``peer`` broke; look whether it is alive."""

    peer: Peer


class Leave(msgspec.Struct, array_like=True, frozen=True, tag=20):
    """Node -> scheduler: my part is done (``error`` empty) or ended with an error."""

    error: str


class Shutdown(msgspec.Struct, array_like=True, frozen=True, tag=21):
    """Scheduler -> node: the job has ended; ``error`` is empty where it ended well.

    To a worker that sent ``Leave`` it confirms that the scheduler has taken note.
    """

    error: str


class Command(msgspec.Struct, array_like=True, frozen=True, tag=22):
    """Worker -> scheduler: have all servers execute ``name``; answered by ``CommandDone``.

    A ``collective`` command waits for all workers, who must give the same ``agreed`` text; rank 0's ``body`` is the
    one that counts.
    """

    call: int
    name: str
    agreed: str
    body: bytes
    collective: bool


class ServerCommand(msgspec.Struct, array_like=True, frozen=True, tag=23):
    """Scheduler -> server: execute ``name``; ``number`` is the scheduler's. Answered by ``CommandReply``."""

    number: int
    name: str
    body: bytes


class CommandReply(msgspec.Struct, array_like=True, frozen=True, tag=24):
    """Server -> scheduler: the command's result, or why it failed where ``error`` is not empty."""

    number: int
    error: str
    body: bytes


class CommandDone(msgspec.Struct, array_like=True, frozen=True, tag=25):
    """Scheduler -> worker: command number ``call`` is done; one body per server, by rank."""

    call: int
    bodies: list[bytes]


ControlMessage = Union[
    Register,
    Registered,
    Refused,
    Started,
    Heartbeat,
    EnterBarrier,
    BarrierPassed,
    Declare,
    Declared,
    AddTensors,
    TensorsAdded,
    Initialized,
    ValuesReady,
    CallFailed,
    Command,
    ServerCommand,
    CommandReply,
    CommandDone,
    ConfigUpdate,
    ConfigConfirmed,
    Report,
    PeerGone,
    Suspect,
    Leave,
    Shutdown,
]

_encoder = msgspec.msgpack.Encoder()
_data_decoder = msgspec.msgpack.Decoder(DataMessage)
_control_decoder = msgspec.msgpack.Decoder(ControlMessage)


def encode(message: Union[DataMessage, ControlMessage]) -> bytes:
    """Return the header frame of a data message, or the only frame of a control message."""
    return _encoder.encode(message)


def decode_data(frame: Union[bytes, memoryview]) -> Optional[DataMessage]:
    """Return the data message in ``frame``, or None where it is malformed."""
    try:
        return _data_decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def decode_control(frame: bytes) -> Optional[ControlMessage]:
    """Return the control message in ``frame``, or None where it is malformed."""
    try:
        return _control_decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
