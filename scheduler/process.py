"""The scheduler process: one loop that carries messages between the nodes and the pure classes.

Who is there is :mod:`scheduler.membership`'s to know, what the ranks do together :mod:`scheduler.collectives`'s, and
which configuration is next :mod:`scheduler.tuning`'s, in a thread of its own (:mod:`scheduler.background`). Here are
the socket, the clock and the three parts of a job: the nodes gather, the job runs, the job ends.

The socket is a ROUTER bound to the one address that :mod:`ps.network` names. ``ROUTER_MANDATORY`` makes every heartbeat
a probe: what cannot be sent has no connection any more. Messages for a node whose connection is broken are kept until
it is back or lost. What does not decode, comes from a stranger or makes no sense from its sender is counted and
dropped.
"""

from __future__ import annotations

import errno
import logging
import secrets
import signal
import sys
import time
from typing import Any, Callable, Iterable, Optional

import click
import zmq

from ps import messages
from ps.config import Role, Settings
from ps.console import run_process, version_option
from ps.errors import SettingsError
from ps.membership import MAX_CONTROL_BYTES
from ps.messages import ControlMessage
from ps.network import endpoint, scheduler_hosts
from ps.placement import Placement
from scheduler.background import TuningThread
from scheduler.collectives import Collectives, Post
from scheduler.events import EventLog
from scheduler.membership import Membership, Node, State
from scheduler.refusals import Refusals
from scheduler.state import StateFile
from scheduler.tensors import Tensors
from scheduler.tuning import Tuning
from scheduler.wording import count_of, one_line
from tuner import Tuner, create

__all__ = ["Scheduler", "main"]

log = logging.getLogger("autobyte.scheduler")

#: The loop turns at least this often.
TURN_SECONDS = 0.1
#: It turns as often while the tuning is at work, so that what it decides leaves at once.
SOON_SECONDS = 0.005
#: Messages taken before time gets its turn.
RECEIVE_BATCH = 1000
#: A broken connection is noticed within this.
PROBE_SECONDS = 0.5
#: At the end, nodes get this long to say good-bye.
END_SECONDS = 3.0
LINGER_SECONDS = 1.0

_HEARTBEAT = messages.encode(messages.Heartbeat())

#: What it means, most likely, that somebody speaks another language to the scheduler of a job that has not started.
_FOREIGN = (
    "a process sends messages that are not AutoByte's, as MXNet's own store does:"
    " is `import ps.mxnet` missing in the script, or the store's name misspelt?"
)


class Scheduler:
    """The scheduler of one job.

    Parameters
    ----------
    settings
        Of this process.
    tuner
        Chooses the configuration while the job runs.
    """

    def __init__(self, settings: Settings, tuner: Tuner) -> None:
        self.settings = settings
        self.config = settings.config
        self._events = EventLog(settings.event_file)
        state = StateFile(settings.tuner_state)
        state.restore(tuner)
        self._tuning = TuningThread(
            Tuning(tuner, settings.config, settings.num_workers, settings.num_servers, self._events, state.keep)
        )
        self.malformed = 0  #: messages that were dropped
        now = time.monotonic()
        self._nodes = Membership(
            settings.job,
            settings.num_workers,
            settings.num_servers,
            secrets.randbits(53),
            settings.silence_seconds,
            now,
        )
        self._collectives = Collectives(
            settings.num_workers,
            settings.num_servers,
            Tensors(settings.num_workers, Placement(settings.num_servers)),
            settings.deadline_seconds,
        )
        self._gather_until = now + settings.start_seconds
        self._end_at: Optional[float] = None  # the job has ended, and nodes say good-bye until then
        self._failure = ""  # why the job failed
        self._stop_reason = ""  # set by a signal
        self._probe_at = 0.0
        self._kept: dict[int, list[bytes]] = {}  # frames for nodes whose connection is broken, by token
        self._refusals = Refusals()
        self._foreign = False  # whether a message that did not decode came before the start
        self._handlers: dict[type, tuple[Optional[Role], Callable[[Node, Any, float], None]]] = {
            messages.Heartbeat: (None, lambda node, message, now: None),
            messages.Leave: (None, self._leave),
            messages.Suspect: (None, self._suspect),
            messages.EnterBarrier: (Role.WORKER, self._enter_barrier),
            messages.Declare: (Role.WORKER, self._declare),
            messages.Initialized: (Role.WORKER, self._initialized),
            messages.TensorsAdded: (Role.SERVER, self._tensors_added),
            messages.Command: (Role.WORKER, self._command),
            messages.CommandReply: (Role.SERVER, self._command_reply),
            messages.ConfigConfirmed: (None, self._config_confirmed),
            messages.Report: (None, self._report),
        }

    def run(self) -> int:
        """Run the job to its end; return the exit code of the process.

        Raises
        ------
        SettingsError
            The settings contradict this host, or the port is taken.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_CONTROL_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # bounded by the time after which a node that does not read is lost
        self._socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        try:
            self._bind()
            while not self._ended(time.monotonic()):
                self._socket.poll(int(1000 * (SOON_SECONDS if self._tuning.busy else TURN_SECONDS)))
                now = time.monotonic()
                self._receive(now)
                self._turn(now)
        finally:
            self._tuning.stop(LINGER_SECONDS)
            self._events.close()
            self._socket.close()
            context.term()
        for line in self._refusals.end():
            log.warning("%s", line)
        if self.malformed:
            log.warning("dropped %d malformed messages", self.malformed)
        if self._failure:
            print(f"autobyte-scheduler: the job failed: {self._failure}", file=sys.stderr)
        return 1 if self._failure else 0

    def stop(self, reason: str) -> None:
        """End the job at the loop's next turn. Safe in a signal handler."""
        self._stop_reason = reason

    def _bind(self) -> None:
        settings = self.settings
        for host in scheduler_hosts(settings):
            try:
                self._socket.bind(endpoint(host, settings.root_port))
            except zmq.ZMQError as error:
                raise SettingsError(
                    f"DMLC_PS_ROOT_PORT={settings.root_port}: cannot listen on {host}: {error.strerror};"
                    " is another job's scheduler running there?"
                ) from None
            log.info("listening on %s:%d for %s and %s", host, settings.root_port, *self._counts())

    def _counts(self) -> tuple[str, str]:
        settings = self.settings
        return count_of(settings.num_workers, Role.WORKER), count_of(settings.num_servers, Role.SERVER)

    # -------------------------------------------------------------------------------- messages come in

    def _receive(self, now: float) -> None:
        for _ in range(RECEIVE_BATCH):
            if not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:  # a connection that broke since took its messages along
                return
            message = messages.decode_control(parts[1]) if len(parts) == 2 else None
            if message is None:
                self._note_foreign()
            if message is None or not self._dispatch(parts[0], message, now):
                self.malformed += 1

    def _note_foreign(self) -> None:
        if not self._nodes.started and not self._foreign:
            self._foreign = True
            log.warning("%s", _FOREIGN)

    def _dispatch(self, sender: bytes, message: ControlMessage, now: float) -> bool:
        """Act on a message; False where it makes no sense from its sender."""
        if isinstance(message, messages.Register):
            self._register(sender, message, now)
            return True
        node = self._nodes.node(sender)
        if node is None:
            return False
        if node.state is State.LOST:
            self._send(node, messages.Shutdown(f"this node was given up: {node.error}"), now)
            return True
        self._nodes.heard(node)
        if node.state is State.LEFT:
            return True  # it was on its way when the node left
        role, handler = self._handlers.get(type(message), (None, None))
        if handler is None or role not in (None, node.peer.role):
            return False
        if not self._nodes.started and not isinstance(message, (messages.Heartbeat, messages.Leave)):
            return False
        handler(node, message, now)
        return True

    def _register(self, sender: bytes, request: messages.Register, now: float) -> None:
        new = self._nodes.node(sender) is None
        if self._end_at is not None:
            self._refuse(sender, request, "the job has ended", now)
            return
        answer = self._nodes.register(sender, request)
        if isinstance(answer, str):
            self._refuse(sender, request, answer, now)
            return
        self._nodes.heard(answer)
        self._send(answer, messages.Registered(answer.peer.rank), now)
        if new:
            log.info("%s is there", answer)
        if self._nodes.started:
            self._send(answer, self._start_message(), now)
        elif self._nodes.complete:
            self._start(now)

    def _refuse(self, sender: bytes, request: messages.Register, reason: str, now: float) -> None:
        for line in self._refusals.lines(request.token, reason, now):
            log.warning("%s", line)
        self._transmit(sender, messages.encode(messages.Refused(reason)))

    def _enter_barrier(self, node: Node, message: messages.EnterBarrier, now: float) -> None:
        self._post(self._collectives.enter(node.peer.rank, message, now), now)

    def _declare(self, node: Node, message: messages.Declare, now: float) -> None:
        self._post(self._collectives.declare(node.peer.rank, message, now), now)

    def _initialized(self, node: Node, message: messages.Initialized, now: float) -> None:
        self._post(self._collectives.initialized(node.peer.rank, message), now)

    def _tensors_added(self, node: Node, message: messages.TensorsAdded, now: float) -> None:
        self._post(self._collectives.added(node.peer.rank, message), now)

    def _command(self, node: Node, message: messages.Command, now: float) -> None:
        self._post(self._collectives.command(node.peer.rank, message, now), now)

    def _command_reply(self, node: Node, message: messages.CommandReply, now: float) -> None:
        self._post(self._collectives.replied(node.peer.rank, message), now)

    def _suspect(self, node: Node, message: messages.Suspect, now: float) -> None:
        suspect = self._nodes.find(message.peer.role, message.peer.rank)
        if suspect is not None and suspect.state is State.ALIVE:
            self._probe(suspect, now)

    def _config_confirmed(self, node: Node, message: messages.ConfigConfirmed, now: float) -> None:
        self._tuning.confirmed(node.peer.role, node.peer.rank, message.epoch)

    def _report(self, node: Node, message: messages.Report, now: float) -> None:
        if (message.observation.role, message.observation.rank) == (node.peer.role, node.peer.rank):
            self._tuning.observe(message.observation, now)
        else:
            self.malformed += 1

    # ------------------------------------------------------------------------------- messages go out

    def _transmit(self, sender: bytes, frame: bytes) -> bool:
        """Send ``frame``; False where there is no connection to ``sender``."""
        try:
            self._socket.send_multipart([sender, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (errno.EHOSTUNREACH, errno.EAGAIN):
                return False
            raise
        return True

    def _send(self, node: Node, message: ControlMessage, now: float) -> None:
        frame = messages.encode(message)
        if node.token not in self._kept and self._transmit(node.sender, frame):
            return
        if node.state is State.ALIVE:
            self._nodes.probed(node, False, now)
            self._kept.setdefault(node.token, []).append(frame)

    def _probe(self, node: Node, now: float) -> None:
        """See whether ``node`` has a connection; if so, send what was kept for it."""
        connected = self._transmit(node.sender, _HEARTBEAT)
        self._nodes.probed(node, connected, now)
        for frame in self._kept.pop(node.token, []) if connected else []:
            self._transmit(node.sender, frame)

    def _broadcast(self, message: ControlMessage, now: float) -> None:
        for node in self._nodes.alive():
            self._send(node, message, now)

    def _post(self, posts: Iterable[Post], now: float) -> None:
        for post in posts:
            node = self._nodes.find(post.role, post.rank)
            if node is not None and node.state is State.ALIVE:
                self._send(node, post.message, now)

    # ------------------------------------------------------------------------------------- time passes

    def _turn(self, now: float) -> None:
        if now >= self._probe_at:
            self._probe_at = now + min(PROBE_SECONDS, self.settings.heartbeat_seconds)
            for node in self._nodes.alive():
                self._probe(node, now)
        for node in self._nodes.expire(now):
            self._gone(node, True, now)
        self._post(self._collectives.step(now), now)
        for line in self._collectives.notices(now):
            log.warning("%s", line)
        self._follow_tuning(now)
        if self._end_at is not None:
            return
        if self._stop_reason:
            self._end(self._stop_reason, now)
        elif self._nodes.workers_gone:
            self._end(self._nodes.failure(), now)
        elif not self._nodes.started and now >= self._gather_until:
            self._end(self._why_not_started(), now)

    def _why_not_started(self) -> str:
        refusal = f"; the last one refused: {self._refusals.last}" if self._refusals.last else ""
        foreign = f"; {_FOREIGN}" if self._foreign else ""
        return (
            f"not started within {self.settings.start_seconds:g} s (AUTOBYTE_START_SECONDS):"
            f" {self._nodes.missing()} did not register{refusal}{foreign}"
        )

    def _follow_tuning(self, now: float) -> None:
        config = self._tuning.take()
        if config is not None and self._end_at is None:
            self.config = config
            self._broadcast(messages.ConfigUpdate(config), now)
        if self._tuning.slow(now):
            log.warning("the tuner has not come back for long; epoch %d stays until it does", self.config.epoch)

    def _start_message(self) -> messages.Started:
        servers = [node.peer for node in self._nodes.of(Role.SERVER)]
        settings = self.settings
        return messages.Started(
            self._nodes.session,
            servers,
            self.config,
            settings.deadline_seconds,
            settings.staleness,
            settings.deterministic,
        )

    def _start(self, now: float) -> None:
        self._nodes.started = True
        log.info("all nodes are there, the job starts")
        self._tuning.start()
        self._broadcast(self._start_message(), now)

    def _leave(self, node: Node, message: messages.Leave, now: float) -> None:
        error = one_line(message.error)
        if node.peer.role is Role.SERVER and self._end_at is None and self._nodes.started:
            error = error or "left before the end of the job"
        self._nodes.leave(node, error)
        if node.peer.role is Role.WORKER:
            self._send(node, messages.Shutdown(""), now)
        self._gone(node, bool(error), now)

    def _gone(self, node: Node, lost: bool, now: float) -> None:
        """``node`` has left or was lost: tell whom it concerns."""
        self._kept.pop(node.token, None)
        how = "was lost" if node.state is State.LOST else "has left"
        if self._end_at is not None:
            log.info("%s %s", node, how)
            return
        log.log(logging.WARNING if lost else logging.INFO, "%s %s%s", node, how, f": {node.error}" if lost else "")
        if self._nodes.started:
            self._tuning.gone(node.peer.role, node.peer.rank)
            self._post(self._collectives.gone(node.peer, lost, node.error), now)
            self._broadcast(messages.PeerGone(node.peer, lost, node.error), now)

    def _end(self, failure: str, now: float) -> None:
        """The job has ended; it failed if ``failure`` is not empty."""
        self._failure = failure
        self._end_at = now + END_SECONDS
        if self._nodes.started:
            self._broadcast(messages.Shutdown(failure), now)
        else:
            self._broadcast(messages.Refused(f"the job ended before it started: {failure}"), now)
            self._end_at = now

    def _ended(self, now: float) -> bool:
        if self._end_at is None:
            return False
        alive = self._nodes.alive()
        if alive and now >= self._end_at and self._nodes.started:
            log.warning("no good-bye within %g s from %s", END_SECONDS, ", ".join(map(str, alive)))
        return not alive or now >= self._end_at


@click.command()
@version_option()
def schedule() -> None:
    """Run the scheduler of a job, as the variables in its environment say (docs/settings.md)."""

    def run() -> int:
        settings = Settings.from_env(Role.SCHEDULER)
        scheduler = Scheduler(settings, create(settings.tuner, settings))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, lambda number, _: scheduler.stop(f"the scheduler was stopped by {signal.Signals(number).name}")
            )
        return scheduler.run()

    run_process("autobyte-scheduler", run)


def main() -> None:
    """Run the command; the entry point of ``autobyte-scheduler``."""
    schedule(prog_name="autobyte-scheduler")
