"""Runs the processes of a job: one loop, no threads; the parent of everything.

The loop waits for three things at once: output of a node, a signal (which arrives as a byte in a pipe, a child's end
included), and the time of the next order of the :class:`~scheduler.launch.watch.Watch`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import time
from typing import IO, Callable, Iterator, Optional, Sequence

from scheduler.launch import groups
from scheduler.launch.guard import Guard
from scheduler.launch.output import Lines, Output
from scheduler.launch.plan import Node
from scheduler.launch.watch import Watch

__all__ = ["supervise"]

#: What a pipe holds.
_CHUNK_BYTES = 1 << 16


def supervise(nodes: Sequence[Node], output: Output, grace_seconds: float = 5.0) -> int:
    """Start ``nodes`` in their order, run them to their end and return the job's exit code.

    To be called in the main thread. However it is left, none of the processes is there any more.
    """
    watch = Watch(nodes, grace_seconds)
    cause = ""
    children: list[_Child] = []  # those whose group is not empty
    with _signals() as signals, Guard() as guard, selectors.DefaultSelector() as selector:
        selector.register(signals, selectors.EVENT_READ)
        try:
            for node in nodes:
                children.append(_Child(node, output, selector))
                guard.watch(children[-1].group)
            while not watch.finished:
                for key, _ in selector.select(watch.seconds_to_order(time.monotonic())):
                    if key.fileobj is not signals:
                        key.data.read()
                        continue
                    for signum in signals.recv(_CHUNK_BYTES):
                        if signum != signal.SIGCHLD:
                            watch.interrupted(signal.Signals(signum), time.monotonic())
                for child in list(children):
                    returncode = child.newly_ended()
                    if returncode is not None:
                        note = watch.ended(child.node, returncode, time.monotonic())
                        output.note(note and f"{note}{child.last_words if cause else ''}")
                        cause = cause or (note and f"job failed: {note}{child.last_words}")
                        groups.send(child.group, signal.SIGTERM)  # what it leaves behind ends with it
                    if child.is_gone():
                        guard.forget(child.group)
                        child.close()
                        children.remove(child)
                order = watch.order(time.monotonic())
                if order:
                    output.note(order.reason)
                    for child in children:
                        groups.send(child.group, order.signal)
        finally:
            groups.end([child.group for child in children], grace_seconds)
            for child in children:
                guard.forget(child.group)
                child.close()
    output.note(cause)
    return watch.exit_code


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Give a socket that has a byte, its number, for every signal that arrives; a hang-up that is ignored stays so."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {signum: signal.signal(signum, lambda *_: None) for signum in wanted}
    descriptor = signal.set_wakeup_fd(writer.fileno())
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(descriptor)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        reader.close()
        writer.close()


class _Child:
    """One running node: its process group and its two output streams."""

    def __init__(self, node: Node, output: Output, selector: selectors.BaseSelector) -> None:
        self._process = subprocess.Popen(
            node.command,
            env=node.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        self.node = node
        self.group = self._process.pid
        self._streams = [
            _Stream(self._process.stdout, functools.partial(output.line, node, "stdout"), selector),
            _Stream(self._process.stderr, self._pass_on_error, selector),
        ]
        self._output = output
        self.last_words = ""  #: its last line on stderr, to be put behind how it ended

    def _pass_on_error(self, line: bytes) -> None:
        self._output.line(self.node, "stderr", line)
        if line.strip():
            self.last_words = f": {line.decode(errors='replace').strip()}"

    def newly_ended(self) -> Optional[int]:
        """Return the return code the first time that the process is found ended, after passing on its last output."""
        if self._process.returncode is not None or self._process.poll() is None:
            return None
        for stream in self._streams:
            stream.read()
        return self._process.returncode

    def is_gone(self) -> bool:
        """Whether the process and its whole group have ended. The group's number may then become another's."""
        return self._process.returncode is not None and not groups.send(self.group, 0)

    def close(self) -> None:
        """Pass on what is left of the output."""
        for stream in self._streams:
            stream.close()


class _Stream:
    """One output stream of a node, registered with the selector until it ends."""

    def __init__(self, pipe: IO[bytes], pass_on: Callable[[bytes], None], selector: selectors.BaseSelector) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._pass_on = pass_on
        self._selector = selector
        self._lines = Lines()
        selector.register(pipe, selectors.EVENT_READ, self)

    def read(self) -> None:
        """Pass on what is there: one pipe's content at most, so that no node holds up the others."""
        if self._pipe.closed:
            return
        try:
            data = os.read(self._pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        for line in self._lines.feed(data):
            self._pass_on(line)
        if not data:
            self._end()

    def close(self) -> None:
        """Pass on the rest, even if somebody still holds the other end."""
        self.read()
        if not self._pipe.closed:
            self._end()

    def _end(self) -> None:
        for line in self._lines.end():
            self._pass_on(line)
        self._selector.unregister(self._pipe)
        self._pipe.close()
