"""Ends the job's processes where the launcher was killed and could not do it (``kill -9``, out of memory).

A process of its own, in a session of its own, that reads from a pipe which only the launcher writes: ``+group`` and
``-group`` lines. The end of that file is the launcher's end, however it came; the groups that are then left, it ends.
The kernel's own means (PR_SET_PDEATHSIG) would reach the nodes but not what they started, such as the training script
behind ``sh -c``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

from scheduler.launch import groups

__all__ = ["Guard"]

_GRACE_SECONDS = 5.0


class Guard:
    """The launcher's end of the pipe. A context manager; leaving it ends the guard."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "scheduler.launch.guard"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    def watch(self, group: int) -> None:
        """End ``group`` should the launcher die."""
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """``group`` has ended; its number may be taken by others now."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard; the job goes on without
            self._pipe.write(f"{line}\n".encode())


def main() -> None:
    """Read until the launcher is gone, then end what it left."""
    left: set[int] = set()
    for line in sys.stdin:
        change = left.add if line.startswith("+") else left.discard
        change(int(line[1:]))
    groups.end(left, _GRACE_SECONDS)


if __name__ == "__main__":
    main()
