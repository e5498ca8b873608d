"""Runs the tuning in a thread of its own, so that the scheduler's loop never waits for a tuner.

The loop posts what nodes report and takes what was decided; neither blocks. A tuner that computes for long delays its
own decisions, and one that never comes back only means that the configuration stays: the thread is a daemon, what is
posted to it is bounded, and the end of the process does not wait for it. Where servers and workers share its
processors, they go first, and no mathematics takes more than one of them: the matrices are small, and threads that
wait for each other would only spin.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import sys
import threading
import time
from typing import Callable, Optional

from threadpoolctl import threadpool_limits

from ps.config import CommConfig, Role
from ps.stats import Observation
from scheduler.tuning import Tuning

__all__ = ["TuningThread"]

log = logging.getLogger("autobyte.tuning")

#: The tuning turns at least this often.
TURN_SECONDS = 0.25
#: What waits for the tuning; beyond that the oldest is dropped.
MAX_POSTED = 10_000
#: A turn that takes longer is told in the log.
SLOW_SECONDS = 30.0
#: How nice the thread is to others on its processors: it gets a tenth of one that somebody else wants, too.
NICENESS = 10


class TuningThread:
    """See the module. All methods are for the scheduler's loop.

    Parameters
    ----------
    tuning
        Belongs to the thread from :meth:`start` on.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._posted: collections.deque[Callable[[], None]] = collections.deque(maxlen=MAX_POSTED)
        self._decided: collections.deque[CommConfig] = collections.deque()
        self._posting = threading.Event()  # set when something was posted
        self._stopped = False
        self._turn_began: Optional[float] = None
        self._thread = threading.Thread(target=self._run, name="autobyte-tuning", daemon=True)

    def start(self) -> None:
        """Begin to tune."""
        self._thread.start()

    def observe(self, observation: Observation, now: float) -> None:
        """A node has reported what it saw."""
        self._post(lambda: self._tuning.observe(observation, now))

    def confirmed(self, role: Role, rank: int, epoch: int) -> None:
        """A node uses the configuration of ``epoch``."""
        self._post(lambda: self._tuning.confirmed(role, rank, epoch))

    def gone(self, role: Role, rank: int) -> None:
        """A node has left or was lost."""
        self._post(lambda: self._tuning.gone(role, rank))

    def _post(self, posted: Callable[[], None]) -> None:
        self._posted.append(posted)
        self._posting.set()

    @property
    def busy(self) -> bool:
        """Whether a decision may come at any moment."""
        return self._turn_began is not None or self._posting.is_set()

    def take(self) -> Optional[CommConfig]:
        """Return the next configuration that was decided; None where there is none."""
        return self._decided.popleft() if self._decided else None

    def slow(self, now: float) -> bool:
        """Return whether the present turn takes very long; True once per turn."""
        slow = self._turn_began is not None and now - self._turn_began > SLOW_SECONDS
        if slow:
            self._turn_began = None
        return slow

    def stop(self, wait_seconds: float) -> None:
        """End the thread; wait for it, but not longer than ``wait_seconds``."""
        self._stopped = True
        self._posting.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        _give_way()
        try:
            with threadpool_limits(limits=1):
                while not self._stopped:
                    self._turn()
        except Exception:  # the job goes on with the configuration that it has
            log.exception("the tuning ended with an error; the configuration stays as it is")

    def _turn(self) -> None:
        self._posting.wait(TURN_SECONDS)
        self._turn_began = time.monotonic()
        self._posting.clear()
        while self._posted:
            self._posted.popleft()()
        config = self._tuning.step(time.monotonic())
        if config is not None:
            self._decided.append(config)
        self._turn_began = None


def _give_way() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
