"""What all workers do together: barriers, the initialisation of tensors, and commands to all servers.

Pure: messages and the time go in, messages to send come out. A *call* is one barrier, one ``init`` or one command of
one rank; it is open until it is answered, with success or with a reason.

``init`` in steps: a rank declares some names. A name that all ranks have declared alike is placed, and the servers are
told. When they all know every name of a call, the call gets its ``Declared``. Rank 0 then sends the first values to the
servers and says ``Initialized``; a call whose names all have their value gets its ``ValuesReady``. The ranks may group
names into calls as they like. Where they disagree about a name, every call that holds it fails, the name is forgotten,
and other names are not affected.

A command goes to every server at once (a *run*), with rank 0's body as soon as all workers have given it alike, or
for the one that gave it where it is not collective. The calls of a run end when every server has replied.

No call stays open for ever. It ends

* at once, where it needs a worker that has finished or any node that was lost;
* after a short grace, where every worker waits and none can go on (ranks that initialise keys in different orders);
* at the job's deadline.

The reason always says who is waited for, and where those are.
"""

from __future__ import annotations

import dataclasses
from typing import Iterable, NamedTuple, Optional, Sequence

from ps import messages
from ps.config import Role
from ps.errors import ErrorCode
from ps.messages import ControlMessage, Peer
from scheduler.tensors import Entry, Tensors
from scheduler.wording import ranks_text

__all__ = ["Collectives", "Post"]

#: All waiting for each other is no accident of timing after this long.
STUCK_SECONDS = 2.0
#: After this long a line in the log says who is missing.
SLOW_SECONDS = 10.0

_STUCK_ADVICE = "enter barriers and initialise keys in the same order on all ranks, or give all keys to one call"


class Post(NamedTuple):
    """A message and where to send it."""

    role: Role
    rank: int
    message: ControlMessage


@dataclasses.dataclass(eq=False)
class _Call:
    rank: int
    number: int
    since: float
    barrier: Optional[str] = None
    command: Optional[messages.Command] = None
    entries: Sequence[Entry] = ()  #: of an ``init``
    waits: bool = True  #: its rank does nothing else meanwhile
    declared: bool = False  #: ``Declared`` was sent
    running: bool = False  #: the servers are at the command
    noticed: bool = False  #: the log has a line about it

    @property
    def key(self) -> tuple[int, int]:
        return self.rank, self.number

    def __str__(self) -> str:
        if self.barrier is not None:
            return f"barrier({_short(self.barrier)})"
        if self.command is not None:
            return f"command({_short(self.command.name)})"
        return f"init({_names(self.entries)})"


@dataclasses.dataclass(eq=False)
class _Run:
    """A command at the servers."""

    calls: Sequence[_Call]
    waiting: set[int]  #: servers that have yet to reply
    bodies: list[bytes]
    errors: dict[int, str] = dataclasses.field(default_factory=dict)  #: by server


class Collectives:
    """The open calls of one job.

    Parameters
    ----------
    num_workers, num_servers
        All ranks take part in everything.
    tensors
        The job's tensors.
    deadline_seconds
        No call stays open for longer.
    """

    def __init__(self, num_workers: int, num_servers: int, tensors: Tensors, deadline_seconds: float) -> None:
        self._num_workers = num_workers
        self._num_servers = num_servers
        self._tensors = tensors
        self._deadline_seconds = deadline_seconds
        self._calls: dict[tuple[int, int], _Call] = {}  # by rank and number
        self._holders: dict[Entry, list[_Call]] = {}  # the open calls that declare a name
        self._additions: dict[int, tuple[set[int], list[Entry]]] = {}  # servers yet to confirm, what they confirm
        self._next_addition = 1
        self._runs: dict[int, _Run] = {}
        self._next_run = 1
        self._gone: dict[int, str] = {}  # workers that finished: why nothing can wait for them
        self._lost = ""  # why no call can succeed any more
        self._changed = False
        self._stuck_since: Optional[float] = None

    # ------------------------------------------------------------------------------------ messages in

    def enter(self, rank: int, message: messages.EnterBarrier, now: float) -> list[Post]:
        """``rank`` enters a barrier."""
        call = _Call(rank, message.call, now, barrier=message.name)
        if any(other.rank == rank for other in self._in_barrier(message.name)):
            text = f"{call}: worker {rank} waits in this barrier already"
            return [Post(Role.WORKER, rank, messages.CallFailed(call.number, ErrorCode.INTERNAL, text))]
        posts = self._open(call)
        inside = self._in_barrier(message.name)
        if len(inside) == self._num_workers:
            posts += [self._complete(other, messages.BarrierPassed(other.number)) for other in inside]
        return posts

    def declare(self, rank: int, message: messages.Declare, now: float) -> list[Post]:
        """``rank`` begins an ``init``."""
        first_values = message.first_values if rank == 0 else []
        problem = self._tensors.problem(rank, message.tensors, first_values)
        if problem:
            return [Post(Role.WORKER, rank, messages.CallFailed(message.call, ErrorCode.TENSOR, f"init: {problem}"))]
        entries = [self._tensors.declare(rank, spec) for spec in message.tensors]
        for entry, value in zip(entries, first_values):
            entry.first_value = value
        call = _Call(rank, message.call, now, entries=entries, waits=message.waits)
        for entry in entries:
            self._holders.setdefault(entry, []).append(call)
        posts = self._open(call)
        agreed = [entry for entry in entries if entry.tensor is None and self._tensors.all_declared(entry)]
        for entry in agreed:
            disagreement = self._tensors.disagreement(entry)
            if disagreement:
                posts += self._fail_holders(entry, ErrorCode.TENSOR, disagreement)
        if call.key in self._calls:
            posts += self._place(agreed)
        return posts + self._advance([call] if call.key in self._calls else [])

    def added(self, server: int, message: messages.TensorsAdded) -> list[Post]:
        """``server`` knows the tensors of an ``AddTensors``."""
        waiting, entries = self._additions.get(message.call, (set(), []))
        waiting.discard(server)
        if waiting or not entries:
            return []
        del self._additions[message.call]
        for entry in entries:
            entry.added = True
            entry.ready = entry.ready or bool(entry.first_value)
            entry.first_value = b""
        return self._advance(self._holding(entries))

    def initialized(self, rank: int, message: messages.Initialized) -> list[Post]:
        """Rank 0 has set the first values of its call."""
        call = self._calls.get((rank, message.call))
        if rank != 0 or call is None or not call.declared:
            return []
        for entry in call.entries:
            entry.ready = True
        return self._advance(self._holding(call.entries))

    def command(self, rank: int, message: messages.Command, now: float) -> list[Post]:
        """``rank`` has a command for the servers."""
        call = _Call(rank, message.call, now, command=message, running=not message.collective)
        if not message.collective:
            return self._open(call) or self._execute([call])
        if any(other.rank == rank for other in self._in_command(message.name)):
            text = f"{call}: worker {rank} waits in this command already"
            return [Post(Role.WORKER, rank, messages.CallFailed(call.number, ErrorCode.INTERNAL, text))]
        posts = self._open(call)
        inside = sorted(self._in_command(message.name), key=lambda other: other.rank)
        if len(inside) < self._num_workers:
            return posts
        differing = _disagreement(inside)
        if differing:
            return [post for other in inside for post in self._fail(other, ErrorCode.SETTINGS, differing)]
        return posts + self._execute(inside)

    def replied(self, server: int, message: messages.CommandReply) -> list[Post]:
        """``server`` has executed a command."""
        run = self._runs.get(message.number)
        if run is None or server not in run.waiting:
            return []
        run.waiting.discard(server)
        run.bodies[server] = message.body
        if message.error:
            run.errors[server] = message.error
        if run.waiting:
            return []
        del self._runs[message.number]
        open_calls = [call for call in run.calls if call.key in self._calls]
        if run.errors:
            first = min(run.errors)
            text = f"server {first}: {run.errors[first]}"
            return [post for call in open_calls for post in self._fail(call, ErrorCode.SETTINGS, text)]
        return [self._complete(call, messages.CommandDone(call.number, run.bodies)) for call in open_calls]

    def gone(self, peer: Peer, lost: bool, reason: str) -> list[Post]:
        """A node has finished its part or was lost; answer every call that it leaves without hope."""
        if lost:
            self._lost = self._lost or f"{peer.role.value} {peer.rank} was lost: {reason}"
        posts: list[Post] = []
        if peer.role is Role.WORKER:
            self._gone[peer.rank] = f"worker {peer.rank} has finished its part of the job"
            for call in [call for call in self._calls.values() if call.rank == peer.rank]:
                posts += self._fail(call, ErrorCode.PEER_LOST, self._lost or self._gone[peer.rank])
        posts += self._fail_hopeless(self._calls.values())
        return [post for post in posts if post.rank != peer.rank or peer.role is not Role.WORKER]

    def step(self, now: float) -> list[Post]:
        """Time has passed: answer the calls that nothing will complete."""
        if self._changed:
            self._changed = False
            self._stuck_since = now if self._stuck() else None
        posts: list[Post] = []
        if self._stuck_since is not None and now - self._stuck_since >= min(STUCK_SECONDS, self._deadline_seconds / 2):
            everyone = "; ".join(self._whereabouts(self._calls.values()))
            reason = f"no worker can go on: {everyone}; {_STUCK_ADVICE}"
            posts += self._fail_late({call: f"{self._obstacle(call)}, but {reason}" for call in self._calls.values()})
        late = [call for call in self._calls.values() if now - call.since >= self._deadline_seconds]
        return posts + self._fail_late({call: self._late_text(call) for call in late})

    def notices(self, now: float) -> list[str]:
        """Return a line for the calls that have become slow, saying what they wait for."""
        slow = [call for call in self._calls.values() if not call.noticed and now - call.since >= SLOW_SECONDS]
        for call in slow:
            call.noticed = True
        return [f"{text}, for {SLOW_SECONDS:g} s now" for text in self._whereabouts(slow)]

    # --------------------------------------------------------------------------------- calls complete

    def _open(self, call: _Call) -> list[Post]:
        self._changed = True
        self._calls[call.key] = call
        return self._fail_hopeless([call])

    def _place(self, entries: Sequence[Entry]) -> list[Post]:
        """Give tensors that all ranks agree on their place and tell the servers."""
        if not entries:
            return []
        addition = self._next_addition
        self._next_addition += 1
        self._additions[addition] = (set(range(self._num_servers)), list(entries))
        tensors = [self._tensors.place(entry) for entry in entries]
        message = messages.AddTensors(addition, tensors, [entry.first_value for entry in entries])
        return [Post(Role.SERVER, rank, message) for rank in range(self._num_servers)]

    def _execute(self, calls: Sequence[_Call]) -> list[Post]:
        """Have the servers execute the command of ``calls``, the first of which has the body."""
        command = calls[0].command
        assert command is not None
        for call in calls:
            call.running = True
        number = self._next_run
        self._next_run += 1
        servers = range(self._num_servers)
        self._runs[number] = _Run(calls, set(servers), [b""] * self._num_servers)
        message = messages.ServerCommand(number, command.name, command.body)
        return [Post(Role.SERVER, rank, message) for rank in servers]

    def _holding(self, entries: Iterable[Entry]) -> list[_Call]:
        """Return the calls that declare one of ``entries``."""
        return list(dict.fromkeys(call for entry in entries for call in self._holders.get(entry, ())))

    def _advance(self, calls: Iterable[_Call]) -> list[Post]:
        """Answer those of ``calls``, each an ``init``, that have come further."""
        self._changed = True
        posts = []
        for call in calls:
            if not call.declared and all(entry.added for entry in call.entries):
                call.declared = True
                tensors = [entry.tensor for entry in call.entries if entry.tensor is not None]
                posts.append(Post(Role.WORKER, call.rank, messages.Declared(call.number, tensors)))
            if call.declared and all(entry.ready for entry in call.entries):
                posts.append(self._complete(call, messages.ValuesReady(call.number)))
        return posts

    def _complete(self, call: _Call, message: ControlMessage) -> Post:
        self._changed = True
        del self._calls[call.key]
        for entry in call.entries:
            self._holders[entry].remove(call)
            if not self._holders[entry]:
                del self._holders[entry]
        return Post(Role.WORKER, call.rank, message)

    # ------------------------------------------------------------------------------------- calls fail

    def _fail(self, call: _Call, code: ErrorCode, reason: str) -> list[Post]:
        """End a call, take back its declarations, and end the calls that relied on them."""
        posts = [self._complete(call, messages.CallFailed(call.number, code, f"{call}: {reason}"))]
        for entry in call.entries:
            if self._tensors.withdraw(call.rank, entry):
                posts += self._fail_holders(entry, code, f"worker {call.rank} gave up {call}: {reason}")
        return posts

    def _fail_holders(self, entry: Entry, code: ErrorCode, reason: str) -> list[Post]:
        """End every call that holds ``entry``."""
        posts: list[Post] = []
        for call in self._holding([entry]):
            if call.key in self._calls:
                posts += self._fail(call, code, reason)
        return posts

    def _fail_late(self, reasons: dict[_Call, str]) -> list[Post]:
        posts: list[Post] = []
        for call, reason in reasons.items():
            if call.key in self._calls:
                posts += self._fail(call, ErrorCode.DEADLINE, reason)
        return posts

    def _fail_hopeless(self, calls: Iterable[_Call]) -> list[Post]:
        """End those of ``calls`` that need a node that is gone."""
        posts: list[Post] = []
        for call in list(calls):
            reason = self._lost
            if self._gone and not reason:
                gone = [self._gone[rank] for rank in self._needs(call) if rank in self._gone]
                reason = f"{self._obstacle(call)}, but {gone[0]}" if gone else ""
            if reason and call.key in self._calls:
                posts += self._fail(call, ErrorCode.PEER_LOST, reason)
        return posts

    # ------------------------------------------------------------------------------ who waits for whom

    def _in_barrier(self, name: str) -> list[_Call]:
        return [call for call in self._calls.values() if call.barrier == name]

    def _in_command(self, name: str) -> list[_Call]:
        """Return the calls that wait for other workers before the servers execute ``name``."""
        return [
            call for call in self._calls.values() if call.command and call.command.name == name and not call.running
        ]

    def _needs(self, call: _Call) -> list[int]:
        """Return the ranks that have not yet done their part of a call, other than setting values."""
        if call.running:
            return []
        if call.barrier is not None or call.command is not None:
            others = self._in_command(call.command.name) if call.command else self._in_barrier(call.barrier or "")
            inside = {other.rank for other in others}
            return [rank for rank in range(self._num_workers) if rank not in inside]
        return sorted({rank for entry in call.entries for rank in self._tensors.missing(entry)})

    def _stuck(self) -> bool:
        """Whether every worker waits for another worker."""
        waiting = {call.rank for call in self._calls.values() if call.waits}
        busy = [rank for rank in range(self._num_workers) if rank not in self._gone and rank not in waiting]
        return bool(waiting) and not busy and not any(self._progresses(call) for call in self._calls.values())

    def _progresses(self, call: _Call) -> bool:
        """Whether servers, or rank 0 with its values, are at work for a call."""
        if call.declared:
            return call.rank == 0
        if call.command is not None:
            return call.running
        return call.barrier is None and not any(self._tensors.missing(entry) for entry in call.entries)

    def _obstacle(self, call: _Call) -> str:
        """Return what a call waits for: ``waiting for worker 1 to declare 'b'``."""
        if call.barrier is not None:
            return f"waiting for {ranks_text(self._needs(call))} to enter"
        if call.command is not None:
            needs = self._needs(call)
            return f"waiting for {ranks_text(needs)} to call it" if needs else "waiting for the servers"
        for entry in call.entries:
            missing = self._tensors.missing(entry)
            if missing:
                alike = [other for other in call.entries if self._tensors.missing(other) == missing]
                return f"waiting for {ranks_text(missing)} to declare {_names(alike)}"
        if not call.declared:
            return f"waiting for the servers to take note of {_names(call.entries)}"
        return f"waiting for worker 0 to set the first value of {_names([e for e in call.entries if not e.ready])}"

    def _whereabouts(self, calls: Iterable[_Call]) -> list[str]:
        """Return where ranks are waiting: ``worker 1 in init('b'), waiting for worker 0 to declare 'b'``."""
        ranks: dict[str, list[int]] = {}
        for call in calls:
            ranks.setdefault(f"{call}, {self._obstacle(call)}", []).append(call.rank)
        texts = [f"{ranks_text(of_text)} in {text}" for text, of_text in ranks.items()]
        return texts[:4] + ([f"{len(texts) - 4} more"] if len(texts) > 4 else [])

    def _late_text(self, call: _Call) -> str:
        needs = set(self._needs(call))
        elsewhere = self._whereabouts(other for other in self._calls.values() if other.rank in needs)
        meanwhile = f"; meanwhile {'; '.join(elsewhere)}" if elsewhere else ""
        return f"{self._obstacle(call)}, not done after {self._deadline_seconds:g} s{meanwhile}"


def _disagreement(calls: Sequence[_Call]) -> str:
    """Return how ranks differ about their common command; empty where they agree."""
    ranks: dict[str, list[int]] = {}
    for call in calls:
        if call.command is not None:
            ranks.setdefault(call.command.agreed, []).append(call.rank)
    if len(ranks) == 1:
        return ""
    texts = ", ".join(f"{_short(text)} on {ranks_text(of_text)}" for text, of_text in ranks.items())
    return f"the ranks differ: {texts}; give all ranks the same"


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _names(entries: Sequence[Entry]) -> str:
    """Return ``'a', 'b', 'c' and 40 more``."""
    shown = ", ".join(_short(entry.name) for entry in entries[:3])
    return shown if len(entries) <= 3 else f"{shown} and {len(entries) - 3} more"
