"""What a tuner is: it sees observations and may propose a configuration. Nothing else.

A tuner does no input and no output, has no thread and no clock, and knows nothing of processes: the scheduler hosts
it, and a simulator can play traces to it. The contract with its host:

* ``observe`` gets only observations that were taken under the configuration in force, which is the one that the tuner
  was made with, or its last proposal. Their numbers are finite and not negative;
* ``propose`` is asked after that, about once a second. A proposal is put in force unless it is refused as invalid,
  and then the old configuration stays;
* a ``ValueError`` counts as a refused proposal, any other exception retires the tuner, and the job goes on with
  the configuration in force;
* what ``state`` returns after a proposal may be kept and given to ``restore`` of a tuner that is to go on where this
  one ended, before it has observed anything.
"""

from __future__ import annotations

import abc
from typing import Optional, Sequence

import msgspec

from ps.config import CommConfig
from ps.stats import Observation

__all__ = ["Proposal", "Tuner"]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration to be put in force, and why.

    Attributes
    ----------
    config
        The proposed configuration; its epoch is set by the host.
    reason
        One sentence for the reader of the log.
    predicted_speedup
        Expected duration of a step under the configuration in force over that under the proposed one; None where the
        tuner expects nothing in particular.
    """

    config: CommConfig
    reason: str
    predicted_speedup: Optional[float] = None


class Tuner(abc.ABC):
    """Decides which configuration a job should use."""

    @abc.abstractmethod
    def observe(self, observations: Sequence[Observation]) -> None:
        """Take note of what nodes saw under the configuration in force; any number of nodes and windows."""

    @abc.abstractmethod
    def propose(self, now: float) -> Optional[Proposal]:
        """Return a configuration to be put in force at ``now`` (seconds, monotonic); None to keep the present one."""

    def state(self) -> Optional[bytes]:
        """Return what a tuner of the same job could use after a restart; None where there is nothing to keep."""
        return None

    def restore(self, state: bytes) -> None:
        """Go on where the tuner ended that had this ``state``.

        Raises
        ------
        ValueError
            It is no state of such a tuner; nothing was taken from it.
        """
        raise ValueError("this tuner keeps no state")
