"""Ending process groups. A node's group holds the node and all that it started, unless that made a group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Iterable

__all__ = ["end", "send"]

_POLL_SECONDS = 0.02


def send(group: int, signum: int) -> bool:
    """Send ``signum`` (0: none) to every process of ``group``; return whether there was one to send it to."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end(groups: Iterable[int], grace_seconds: float) -> None:
    """Terminate ``groups``, wait up to ``grace_seconds`` for their processes to end, and kill those that have not."""
    left = [group for group in groups if send(group, signal.SIGTERM)]
    deadline = time.monotonic() + grace_seconds
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        for group in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)  # a child that has ended counts as there until it is waited for
        left = [group for group in left if send(group, 0)]
    for group in left:
        send(group, signal.SIGKILL)
