"""Who is in the job: registration, ranks, heartbeats, and the end of a node.

Pure: no sockets and no clock. A node is *alive* from its registration on, and in the end it has *left* (it said so) or
is *lost* (it did not). It is lost when

* it was silent for ``silence_seconds``, counting only time in which this scheduler listened, or
* its connection is broken for :data:`GONE_SECONDS`. A process that ended has no connection, so this notices a crash
  long before the silence does; a process that is merely stopped keeps its connection.

Invariants: a rank belongs to one process for the whole job; a node that is lost stays lost, whatever it sends later,
because the others have been told. Before the start nobody has been told anything, so a node that is lost then is
forgotten and its rank is free.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Optional, Union

from ps.config import COUNT_VARIABLES, RANK_VARIABLES, Role
from ps.messages import PROTOCOL, Peer, Register
from scheduler.wording import count_of, one_line

__all__ = ["Membership", "Node", "State"]

#: What workers may be told to connect to: a port, and names of the same socket that only its host has.
_ADDRESS = re.compile(r"tcp://[0-9.]{7,15}:[0-9]{1,5}( ipc://@[\w.-]{1,200})?")

#: A broken connection may take this long to come back before the node counts as lost.
GONE_SECONDS = 2.0
#: The loop turns more often than this; a longer turn was a stop of the scheduler, and no silence of the nodes.
LONGEST_TURN_SECONDS = 1.0


class State(enum.Enum):
    """What has become of a node."""

    ALIVE = "alive"
    LEFT = "left"
    LOST = "lost"


@dataclasses.dataclass
class Node:
    """A process that registered."""

    peer: Peer
    sender: bytes  #: its routing id on the scheduler's socket
    token: int
    host: str
    pid: int
    state: State = State.ALIVE
    error: str = ""  #: why it left or was lost; empty where it left well
    silent_seconds: float = 0.0
    gone_since: Optional[float] = None  #: its connection is broken since then

    def __str__(self) -> str:
        return f"{self.peer.role.value} {self.peer.rank} on {self.host} (pid {self.pid})"


class Membership:
    """The nodes of one job.

    Parameters
    ----------
    job, num_workers, num_servers
        What every node must have been told as well.
    session
        A number unlike that of any other run; workers show it to servers.
    silence_seconds
        A node that is not heard for longer is lost.
    now
        Seconds, monotonic, as for all methods.
    """

    def __init__(
        self, job: str, num_workers: int, num_servers: int, session: int, silence_seconds: float, now: float
    ) -> None:
        self.job = job
        self.session = session
        self.started = False
        self._counts = {Role.WORKER: num_workers, Role.SERVER: num_servers}
        self._silence_seconds = silence_seconds
        self._nodes: dict[tuple[Role, int], Node] = {}
        self._tokens: dict[int, Node] = {}
        self._senders: dict[bytes, Node] = {}
        self._failures: list[str] = []
        self._last_turn = now

    # ------------------------------------------------------------------------------- registration

    def register(self, sender: bytes, request: Register) -> Union[Node, str]:
        """Take in the node behind ``request``, or return why it is refused, in one line.

        A repeat, known by its token, gets the same node again.
        """
        node = self._tokens.get(request.token)
        if node is None:
            host = one_line(request.host, 100)
            refusal = self._refusal(request, f"{request.role.value} on {host} (pid {request.pid})")
            if refusal:
                return refusal
            rank = self._free_ranks(request.role)[0] if request.preferred < 0 else request.preferred
            node = Node(Peer(request.role, rank, request.address), sender, request.token, host, request.pid)
            self._nodes[request.role, rank] = self._tokens[request.token] = node
        self._senders.pop(node.sender, None)
        self._senders[sender] = node
        node.sender = sender
        return node

    def _refusal(self, request: Register, who: str) -> str:
        if request.role not in self._counts:
            return f"DMLC_ROLE: {who} cannot join a job; only workers and servers do"
        for name, ours, theirs in (
            ("protocol version", PROTOCOL, request.protocol),
            ("AUTOBYTE_JOB", repr(self.job), repr(one_line(request.job, 100))),
            ("DMLC_NUM_WORKER", self._counts[Role.WORKER], request.num_workers),
            ("DMLC_NUM_SERVER", self._counts[Role.SERVER], request.num_servers),
        ):
            if ours != theirs:
                return f"{name}: the scheduler has {ours}, {who} has {theirs}"
        if request.role is Role.SERVER and not _ADDRESS.fullmatch(request.address):
            return f"{who} does not say where it listens, but {one_line(request.address, 100)!r}"
        count, variable, rank = self._counts[request.role], COUNT_VARIABLES[request.role], request.preferred
        if not self._free_ranks(request.role):
            return f"{variable}: the scheduler has {count}, and all of them are there; {who} is one too many"
        if rank >= count:
            return f"{RANK_VARIABLES[request.role]}: {who} asks for rank {rank}, but {variable} is {count}"
        holder = self.find(request.role, rank)
        if holder is not None:
            return f"{RANK_VARIABLES[request.role]}: {who} asks for rank {rank}, which {holder} has"
        return ""

    def _free_ranks(self, role: Role) -> list[int]:
        return [rank for rank in range(self._counts[role]) if (role, rank) not in self._nodes]

    @property
    def complete(self) -> bool:
        """Whether every node of the job has registered."""
        return len(self._nodes) == sum(self._counts.values())

    def missing(self) -> str:
        """Return which ranks have not registered: ``1 of 2 workers (rank 1)``; empty where all have."""
        texts = []
        for role, count in self._counts.items():
            free = self._free_ranks(role)
            if free:
                ranks = ", ".join(map(str, free[:8])) + (", ..." if len(free) > 8 else "")
                texts.append(f"{len(free)} of {count_of(count, role)} (rank {ranks})")
        return " and ".join(texts)

    # -------------------------------------------------------------------------------------- look-up

    def node(self, sender: bytes) -> Optional[Node]:
        """Return the node that ``sender`` is; None for a stranger."""
        return self._senders.get(sender)

    def find(self, role: Role, rank: int) -> Optional[Node]:
        """Return the node of that role and rank; None where there is none."""
        return self._nodes.get((role, rank))

    def of(self, role: Role) -> list[Node]:
        """Return the nodes of a role, by rank."""
        return [self._nodes[key] for key in sorted(self._nodes) if key[0] is role]

    def alive(self) -> list[Node]:
        """Return the nodes that are still part of the job."""
        return [node for node in self._nodes.values() if node.state is State.ALIVE]

    @property
    def workers_gone(self) -> bool:
        """Whether the job has ended: it had started, and no worker is left."""
        return self.started and all(node.state is not State.ALIVE for node in self.of(Role.WORKER))

    def failure(self) -> str:
        """Return why the job failed: what happened first. Empty where all left well and nothing was lost."""
        more = f" (and {len(self._failures) - 1} more)" if len(self._failures) > 1 else ""
        return self._failures[0] + more if self._failures else ""

    # ------------------------------------------------------------------------------- life and death

    def heard(self, node: Node) -> None:
        """Note that ``node`` has sent something."""
        node.silent_seconds = 0.0

    def probed(self, node: Node, connected: bool, now: float) -> None:
        """Note whether ``node`` had a connection when it was last sent something."""
        if connected:
            node.gone_since = None
        elif node.gone_since is None:
            node.gone_since = now

    def leave(self, node: Node, error: str) -> None:
        """Note that ``node`` has said good-bye, because of ``error`` where that is not empty."""
        self._end(node, State.LEFT, error, "ended with an error")

    def lose(self, node: Node, reason: str) -> None:
        """Note that ``node`` is lost."""
        self._end(node, State.LOST, reason, "was lost")

    def _end(self, node: Node, state: State, error: str, how: str) -> None:
        node.state, node.error = state, error
        if self.started:
            self._failures += [f"{node} {how}: {error}"] if error else []
        else:
            del self._nodes[node.peer.role, node.peer.rank]
            del self._tokens[node.token]
            del self._senders[node.sender]

    def expire(self, now: float) -> list[Node]:
        """Return the nodes that are lost as of now and were not before."""
        turn_seconds = min(now - self._last_turn, LONGEST_TURN_SECONDS)
        self._last_turn = now
        lost = []
        for node in self.alive():
            node.silent_seconds += turn_seconds
            if node.gone_since is not None and now - node.gone_since > GONE_SECONDS:
                self.lose(node, "its connection to the scheduler broke: its process has ended, or the network failed")
            elif node.silent_seconds > self._silence_seconds:
                self.lose(node, f"silent for {self._silence_seconds:g} s (AUTOBYTE_SILENCE_SECONDS)")
            else:
                continue
            lost.append(node)
        return lost
