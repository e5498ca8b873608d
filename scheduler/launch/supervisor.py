"""Runs the processes of a job: one loop, no threads; the parent of everything.

The loop waits for three things at once: output of a node, a signal (which arrives as a byte in a pipe, a child's end
included), and the time of the next order of the :class:`~scheduler.launch.watch.Watch`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from typing import IO, Iterator, Optional, Sequence

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
    children: list[_Child] = []
    with _signals() as signals, Guard() as guard, selectors.DefaultSelector() as selector:
        selector.register(signals, selectors.EVENT_READ)
        try:
            for node in nodes:
                child = _Child(node, output)
                children.append(child)
                guard.watch(child.group)
                for stream in child.streams:
                    selector.register(stream.pipe, selectors.EVENT_READ, stream)
            while not watch.finished:
                for key, _ in selector.select(watch.seconds_to_order(time.monotonic())):
                    if key.fileobj is signals:
                        for signum in signals.recv(_CHUNK_BYTES):
                            if signum != signal.SIGCHLD:
                                watch.interrupted(signal.Signals(signum), time.monotonic())
                    elif not key.data.read():
                        selector.unregister(key.fileobj)
                for child in children:
                    returncode = child.newly_ended()
                    if returncode is not None:
                        output.note(watch.ended(child.node, returncode, time.monotonic()))
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

    def __init__(self, node: Node, output: Output) -> None:
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
        self.streams = [
            _Stream(node, "stdout", self._process.stdout, output),
            _Stream(node, "stderr", self._process.stderr, output),
        ]

    def newly_ended(self) -> Optional[int]:
        """Return the return code the first time that the process is found ended, after passing on its last output."""
        if self._process.returncode is not None or self._process.poll() is None:
            return None
        for stream in self.streams:
            stream.read()
        return self._process.returncode

    def close(self) -> None:
        """Pass on what is left of the output."""
        for stream in self.streams:
            stream.close()


class _Stream:
    """One output stream of a node."""

    def __init__(self, node: Node, name: str, pipe: IO[bytes], output: Output) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.pipe = pipe
        self._node, self._name, self._output = node, name, output
        self._lines = Lines()

    def read(self) -> bool:
        """Pass on what is there, one pipe's content at most; return False at the end of the stream."""
        try:
            data = os.read(self.pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._pass_on(self._lines.feed(data))
        return bool(data)

    def close(self) -> None:
        self.read()
        self._pass_on(self._lines.end())
        self.pipe.close()

    def _pass_on(self, lines: list[bytes]) -> None:
        for line in lines:
            self._output.line(self._node, self._name, line)
