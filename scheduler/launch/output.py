"""Who said what: every line of a node's output behind its role and rank, such as ``[worker 0] epoch 1``."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ps.config import Role
from scheduler.launch.plan import Node

__all__ = ["Lines", "Output"]

#: A line longer than this is cut: a node that never ends its line must not fill the launcher's memory.
MAX_LINE_BYTES = 64 * 1024

_WORKER_STYLES = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
_OTHER_STYLE = "dim"
_LAUNCHER_STYLE = "bold"


class Lines:
    """Cuts one stream of bytes into lines. Pure.

    What a progress bar draws over and over behind a carriage return counts as one line, as it was in the end.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [_as_seen(line) for line in lines]

    def end(self) -> list[bytes]:
        """Return what was left without an end, as a line of its own."""
        line, self._rest = _as_seen(self._rest), b""
        return [line] if line else []


def _as_seen(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Output:
    """The launcher's own stdout and stderr. Colours are for terminals only (and not where NO_COLOR is set)."""

    def __init__(self, stdout: TextIO = sys.stdout, stderr: TextIO = sys.stderr) -> None:
        self._consoles = {"stdout": Console(file=stdout), "stderr": Console(file=stderr)}
        self._prefixes: dict[tuple[str, str], bytes] = {}

    def line(self, node: Node, stream: str, line: bytes) -> None:
        """Write a line of ``node``'s to ``stream`` ("stdout" or "stderr")."""
        style = _WORKER_STYLES[node.rank % len(_WORKER_STYLES)] if node.role is Role.WORKER else _OTHER_STYLE
        self._write(str(node), style, stream, line)

    def note(self, text: str) -> None:
        """Write a line of the launcher's own, if there is something to say, to stderr."""
        if text:
            self._write("launcher", _LAUNCHER_STYLE, "stderr", text.encode())

    def _write(self, who: str, style: str, stream: str, line: bytes) -> None:
        console = self._consoles[stream]
        if (who, stream) not in self._prefixes:
            with console.capture() as capture:
                console.print(Text(f"[{who}]", style), end=" ", soft_wrap=True)
            self._prefixes[who, stream] = capture.get().encode()
        console.file.write((self._prefixes[who, stream] + line).decode(errors="replace") + "\n")
        console.file.flush()
