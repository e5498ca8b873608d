"""The server process: sums what the workers push, and answers by itself.

One loop owns everything. A turn takes what arrived, has the book of the shards (:mod:`ps.shards`) sum it, queues the
answers for ranges that became complete on the links to the workers, acknowledges, and sends what the links let go. An
answer uses the same queue, priorities, credit and acknowledgements as a push, in the other direction, so both
directions of every wire are busy at once.

Nothing that a worker sends can end this process: what is not a message of this job is counted and dropped, what is
wrong with an operation goes back to the worker as an error that names key, rank and round.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
import time
from typing import Optional

import click
import msgspec
import numpy as np
import zmq

from ps import messages
from ps.book import LedgerError
from ps.commands import Commands
from ps.config import Role, Settings
from ps.console import run_process, version_option
from ps.errors import ErrorCode
from ps.membership import Membership
from ps.messages import Span
from ps.network import bind_host
from ps.receiver import Receiver
from ps.shards import Answer, ShardBook
from ps.shared import Arena, Neighbour, SharedMemoryError
from ps.traffic import Traffic
from ps.transport import ServerLane, keep_freed_memory, new_context

__all__ = ["Server", "main"]

log = logging.getLogger("autobyte.server")

#: Messages taken before acknowledgements and answers get their turn.
RECEIVE_BATCH = 8
#: Messages sent in one turn, whatever the credit: heartbeats and acknowledgements must not wait for all that is queued.
SEND_BATCH = 256
CHECK_SECONDS = 0.25


class _Worker:
    """One worker as this server sees it."""

    __slots__ = ("identity", "near", "neighbour", "receiver")

    def __init__(self, rank: int) -> None:
        self.identity = b""  # empty until its hello has come
        self.near = False
        self.neighbour = Neighbour(f"worker {rank}")
        self.receiver = Receiver()


class Server:
    """A server's state and its loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._workers = [_Worker(rank) for rank in range(settings.num_workers)]
        self._rank_of: dict[bytes, int] = {}
        self._memory = Arena()
        self._traffic = Traffic(settings, range(settings.num_workers), bounded_skew=False, now=time.monotonic())
        self._next_check = 0.0
        self._more_to_send = False
        self._ending: Optional[str] = None

    def run(self) -> int:
        """Take part in the job until it ends; return the process's exit code."""
        context = new_context()
        self._lane = ServerLane(context)
        try:
            address = self._lane.bind(bind_host(self.settings))
            self._membership = Membership(self.settings, context, address)
            try:
                self.rank, started = self._membership.register(lambda: self._ending)
                self._session = started.session
                self._book = ShardBook(
                    self.rank,
                    self.settings.num_workers,
                    started.deadline_seconds,
                    self._memory.empty,
                    started.staleness,
                    started.deterministic,
                )
                self._commands = Commands(self.rank, self._book, self.settings.optimizer_modules)
                self._traffic.counters.rank = self.rank
                self._traffic.configure(started.config)
                gc.freeze()  # what has been imported stays: no need to look at it again and again
                with np.errstate(all="ignore"):  # a sum that overflows is inf, or wraps around, as in any other sum
                    self._loop()
                self._membership.send(messages.Leave(self._ending or ""))
            finally:
                self._membership.close()
        finally:
            self._lane.close()
            context.term()
        if self._ending:
            print(f"autobyte-server {self.rank}: {self._ending}", file=sys.stderr)
        return 1 if self._ending else 0

    def stop(self, reason: str) -> None:
        """End the loop at its next turn. Safe in a signal handler."""
        self._ending = reason

    # ------------------------------------------------------------------------------------- the loop

    def _loop(self) -> None:
        control = self._membership.socket
        poller = zmq.Poller()
        poller.register(control, zmq.POLLIN)
        poller.register(self._lane.socket, zmq.POLLIN)
        while self._ending is None:
            wait = 0.0 if self._more_to_send else min(self._next_check - time.monotonic(), CHECK_SECONDS)
            ready = dict(poller.poll(max(0, int(wait * 1000) + (wait > 0))))
            now = time.monotonic()
            # Control first: a tensor is announced on this socket before its data can come on the other one.
            if control in ready or now >= self._next_check:
                for message in self._membership.receive(now):
                    self._control(message, now)
            if self._lane.socket in ready:
                self._receive(now)
            self._send(now)
            if self._traffic.due(now):
                self._report(now)
            if now >= self._next_check:
                self._next_check = now + CHECK_SECONDS
                self._check(now)

    def _send(self, now: float) -> None:
        for worker in self._workers:
            seq = worker.receiver.acknowledge()
            if seq is not None:
                self._lane.send(worker.identity, messages.encode(messages.Ack(seq)), None)
        for _ in range(SEND_BATCH):
            popped = self._traffic.pop(now)
            if popped is None:
                self._more_to_send = False
                return
            peer, message = popped
            # Where the worker is not connected the link keeps the message until its next hello.
            self._lane.send(self._workers[peer].identity, message.header, message.payload)
        self._more_to_send = True

    # ------------------------------------------------------------------------------ from the workers

    def _receive(self, now: float) -> None:
        for already in range(RECEIVE_BATCH):
            received = self._lane.receive(ready=not already)
            if received is None:
                return
            identity, header, payload = received
            message = messages.decode_data(header)
            rank = self._rank_of.get(identity)
            if isinstance(message, messages.Hello):
                self._hello(identity, message, now)
            elif message is None or rank is None:
                self._traffic.counters.malformed()
            elif isinstance(message, messages.Data):
                receiver = self._workers[rank].receiver
                if receiver.accept(message.seq):
                    self._receive_data(rank, message, payload, now)
                elif receiver.gap_begins:
                    self._greet(rank, answer=True)
            else:
                self._traffic.acknowledged(rank, message.seq, now)

    def _hello(self, identity: bytes, hello: messages.Hello, now: float) -> None:
        known = 0 <= hello.rank < len(self._workers)
        if hello.job != self.settings.job or hello.session != self._session or not known:
            self._traffic.counters.malformed()
            return
        worker = self._workers[hello.rank]
        worker.identity = identity
        worker.near = hello.near
        self._traffic.set_near(hello.rank, hello.near)
        self._rank_of[identity] = hello.rank
        readable = worker.neighbour.greeted(hello.probe, hello.reads)
        if hello.answer or readable:
            self._greet(hello.rank, answer=False)
        try:
            again = self._traffic.resume(hello.rank, hello.expected, hello.answer, now)
        except ValueError as error:
            log.warning("worker %d: %s", hello.rank, error)
            self._traffic.counters.malformed()
            return
        for old in again:
            self._lane.send(identity, old.header, old.payload)

    def _greet(self, rank: int, answer: bool) -> None:
        if answer:
            self._traffic.ask(rank)
        worker = self._workers[rank]
        hello = messages.Hello(
            self.settings.job,
            self._session,
            self.rank,
            worker.receiver.expected,
            answer,
            worker.near,
            self._memory.probe if worker.near else None,
            worker.neighbour.readable,
        )
        self._lane.send(worker.identity, messages.encode(hello), None)

    def _receive_data(self, rank: int, message: messages.Data, payload: Optional[memoryview], now: float) -> None:
        offset = taken = 0
        began = time.perf_counter()
        for span in message.spans:
            try:
                if span.place is None:
                    answers, end = self._book.take(rank, span, payload, offset, now)
                    taken += end - offset
                    offset = end
                else:
                    memory = self._workers[rank].neighbour.payload(span)
                    answers, nbytes = self._book.take(rank, span, memory, 0, now)
                    taken += nbytes
            except (LedgerError, SharedMemoryError) as error:
                self._refuse(rank, span, error, now)
                return
            for answer in answers:
                self._answer(answer, now)
        self._traffic.received(rank, taken, len(message.spans), message.follows, now)
        self._traffic.counters.summed(taken, time.perf_counter() - began)

    def _refuse(self, rank: int, span: Span, error: ValueError, now: float) -> None:
        log.warning("%s", error)
        self._answer(Answer.failure(rank, span, ErrorCode.TENSOR, str(error)), now)

    def _answer(self, answer: Answer, now: float) -> None:
        place = None
        if answer.values is not None and self._workers[answer.rank].neighbour.reads_ours:
            place = self._memory.place(answer.values)
        self._traffic.put(answer.rank, answer.transfer(self._traffic.config, place), now)

    # -------------------------------------------------------------------------- from the scheduler

    def _control(self, message: messages.ControlMessage, now: float) -> None:
        if isinstance(message, messages.AddTensors):
            self._book.add(message.tensors, message.first_values)
            self._membership.send(messages.TensorsAdded(message.call))
        elif isinstance(message, messages.ServerCommand):
            self._reply(self._commands.execute(message))
        elif isinstance(message, messages.ConfigUpdate):
            self._traffic.configure(message.config)
            self._membership.send(messages.ConfigConfirmed(message.config.epoch))
        elif isinstance(message, messages.PeerGone):
            self._peer_gone(message, now)
        elif isinstance(message, messages.Shutdown):
            self._ending = message.error

    def _reply(self, replies: list[messages.CommandReply]) -> None:
        for reply in replies:
            self._membership.send(reply)

    def _peer_gone(self, gone: messages.PeerGone, now: float) -> None:
        if gone.peer.role is Role.SCHEDULER:
            self._ending = f"the scheduler was lost: {gone.reason}"
        elif gone.peer.role is Role.WORKER:
            verb = "was lost" if gone.lost else "has finished"
            for answer in self._book.worker_gone(gone.peer.rank, f"{verb}: {gone.reason}" if gone.lost else verb):
                self._answer(answer, now)

    # ---------------------------------------------------------------------------------- time passes

    def _check(self, now: float) -> None:
        for line in [*self._book.slow_pushes(now), *self._book.nonfinite_keys()]:
            log.warning("%s", line)
        for answer in self._book.expired_pushes(now):
            self._answer(answer, now)
        self._reply(self._commands.waited())

    def _report(self, now: float) -> None:
        self._traffic.counters.nonfinite = self._book.nonfinite
        observation = self._traffic.report(now)
        if observation is not None:
            self._membership.send(messages.Report(observation))


@click.command()
@version_option()
@click.option(
    "--optimizer-module",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import this module before an optimizer is set, since it registers one; may be repeated.",
)
def serve(modules: tuple[str, ...]) -> None:
    """Run a server of a job, as the variables in its environment say (docs/settings.md)."""

    def run() -> int:
        settings = Settings.from_env(Role.SERVER)
        chosen = (*settings.optimizer_modules, *modules)
        server = Server(msgspec.structs.replace(settings, optimizer_modules=chosen))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop("stopped by a signal"))
        keep_freed_memory()
        return server.run()

    run_process("autobyte-server", run)


def main() -> None:
    """Run the command; the entry point of ``autobyte-server``."""
    serve(prog_name="autobyte-server")


if __name__ == "__main__":
    main()
