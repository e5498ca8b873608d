"""Hosts a tuner: groups what nodes observe, asks for proposals, and lets only sound ones through.

Whatever a tuner or a node does, the job goes on with a valid configuration:

* observations with numbers that are not finite, or negative, or from ranks that do not exist, are dropped;
* only observations taken under the configuration in force reach the tuner and the verdicts;
* a proposal is rebuilt, and with it validated, before it gets the next epoch; what cannot be is refused and reported;
* a tuner that raises, or has proposed nonsense :data:`MAX_REFUSALS` times in a row, is retired;
* what a tuner wants to be kept over a restart is given to ``keep`` after each of its proposals.

Every decision is an event (:mod:`scheduler.events`) with its reason; what it brought is another one, once enough steps
have ended. A proposal is asked for when all nodes have confirmed the configuration before, or had
:data:`CONFIRM_SECONDS` for it.

Pure: no sockets, no thread, no clock. It is not thread-safe; call all methods from one thread.
"""

from __future__ import annotations

import logging
import math
from typing import Callable, Optional, TypedDict

from msgspec.structs import asdict, astuple, replace

from ps.config import CommConfig, Role
from ps.stats import Estimate, LayerGroup, LinkEstimate, Observation
from scheduler.events import Decided, Event, Kept, Measured, Refused, Retired, Unconfirmed
from tuner.interface import Proposal, Tuner
from tuner.steps import StepMeter, StepTime

__all__ = ["Tuning"]

log = logging.getLogger("autobyte.tuning")

#: Nodes have so long to confirm a configuration before they are named, and the tuner is asked again.
CONFIRM_SECONDS = 5.0
#: The tuner is asked for a proposal when all workers have reported again, and after so long if some do not. So long it
#: is left alone after a refusal.
PROPOSE_SECONDS = 0.5
MAX_REFUSALS = 10
#: Steps and windows per worker before a speedup is reported.
MEASURED_STEPS = 10
MEASURED_WINDOWS = 2
#: Observations of one node that wait to be handed to the tuner; more are dropped.
MAX_WAITING = 16

Node = tuple[Role, int]


class _Stamp(TypedDict):
    seconds: float
    epoch: int


class Tuning:
    """Decides which configuration is in force.

    Parameters
    ----------
    tuner
        The tuner to host.
    config
        What the job starts with.
    num_workers, num_servers
        The nodes that must confirm a configuration.
    events
        Called with every event.
    keep
        Called with the tuner's state when it may have changed.

    Attributes
    ----------
    config
        The configuration in force.
    dropped
        Number of observations dropped as unsound.
    """

    def __init__(
        self,
        tuner: Tuner,
        config: CommConfig,
        num_workers: int,
        num_servers: int,
        events: Callable[[Event], None],
        keep: Callable[[bytes], None] = lambda state: None,
    ) -> None:
        self.config = config
        self.dropped = 0
        self._keep = keep
        self._tuner: Optional[Tuner] = tuner
        self._nodes: frozenset[Node] = frozenset(
            [(Role.WORKER, rank) for rank in range(num_workers)] + [(Role.SERVER, rank) for rank in range(num_servers)]
        )
        self._counts = {Role.WORKER: num_workers, Role.SERVER: num_servers}
        self._events = events
        self._began: Optional[float] = None
        self._ask_at = self._rest_until = -math.inf
        self._waiting: list[Observation] = []
        self._heard: set[int] = set()  # workers that have reported since the tuner was asked
        self._refusals = 0
        # of the last switch
        self._switched_at = 0.0
        self._unconfirmed: set[Node] = set()
        self._meter = StepMeter()
        self._before: Optional[StepTime] = None

    def observe(self, observation: Observation, now: float) -> None:
        """Take note of what a node saw in a window."""
        self._begin(now)
        fault = self._fault(observation)
        if fault:
            if not self.dropped:
                log.warning("dropped an observation, and will drop others silently: %s", fault)
            self.dropped += 1
        elif observation.epoch == self.config.epoch:
            self._meter.add(observation)
            if self._tuner is not None and len(self._waiting) < MAX_WAITING * sum(self._counts.values()):
                self._waiting.append(observation)
                if observation.role is Role.WORKER:
                    self._heard.add(observation.rank)

    def confirmed(self, role: Role, rank: int, epoch: int) -> None:
        """A node uses the configuration of ``epoch``."""
        if epoch == self.config.epoch:
            self._unconfirmed.discard((role, rank))

    def gone(self, role: Role, rank: int) -> None:
        """A node has left or was lost: it is not waited for any more."""
        self._nodes -= {(role, rank)}
        self._unconfirmed.discard((role, rank))

    def step(self, now: float) -> Optional[CommConfig]:
        """Let time pass; return the configuration to be broadcast, if it changes now."""
        self._begin(now)
        self._report_speedup(now)
        if self._is_waiting_for_nodes(now) or self._tuner is None:
            return None
        if now < (self._ask_at if len(self._heard) < self._counts[Role.WORKER] else self._rest_until):
            return None
        self._heard.clear()
        self._ask_at = now + PROPOSE_SECONDS
        proposal = self._ask(self._tuner, now)
        return None if proposal is None else self._accept(proposal, now)

    # -------------------------------------------------------------------------------------- the tuner

    def _ask(self, tuner: Tuner, now: float) -> Optional[Proposal]:
        observations, self._waiting = self._waiting, []
        try:
            tuner.observe(observations)
            proposal = tuner.propose(now)
            state = tuner.state() if proposal is not None else None
            if state is not None:
                self._keep(state)
            return proposal
        except ValueError as error:
            self._refuse(str(error), now)
        except Exception as error:  # whatever it is, the job goes on without the tuner
            log.debug("the tuner failed", exc_info=True)
            self._retire(f"{type(error).__name__}: {error}", now)
        return None

    def _accept(self, proposal: Proposal, now: float) -> Optional[CommConfig]:
        try:
            config = self._validated(proposal)
        except ValueError as error:
            self._refuse(str(error), now)
            return None
        self._refusals = 0
        if config == replace(self.config, epoch=config.epoch):
            self._events(Kept(**self._stamp(now), reason=proposal.reason))
            return None
        self._before = self._meter.time(min_steps=1, min_windows=1)
        self._meter = StepMeter()
        self._waiting.clear()
        self._heard.clear()
        self.config = config
        self._switched_at = now
        self._unconfirmed = set(self._nodes)
        self._events(
            Decided(
                **self._stamp(now),
                config=config,
                reason=proposal.reason,
                predicted_speedup=proposal.predicted_speedup,
            )
        )
        return config

    def _validated(self, proposal: Proposal) -> CommConfig:
        """Return the proposed configuration with the next epoch; a ValueError says what is wrong with it."""
        if not isinstance(proposal, Proposal) or not isinstance(proposal.config, CommConfig):
            raise ValueError(f"expected a Proposal with a CommConfig, not {repr(proposal)[:200]}")
        predicted = proposal.predicted_speedup
        if predicted is not None and not (isinstance(predicted, float) and _is_quantity(predicted)):
            raise ValueError(f"predicted_speedup must be a finite number or None, not {predicted!r}")
        # Made anew by the constructor, which validates: a frozen struct can be forced to hold anything.
        return CommConfig(**{**asdict(proposal.config), "epoch": self.config.epoch + 1})

    def _refuse(self, reason: str, now: float) -> None:
        self._events(Refused(**self._stamp(now), reason=reason))
        self._refusals += 1
        self._rest_until = now + PROPOSE_SECONDS
        if self._refusals == MAX_REFUSALS:
            self._retire(f"{MAX_REFUSALS} refused proposals in a row", now)

    def _retire(self, reason: str, now: float) -> None:
        self._tuner = None
        self._waiting.clear()
        self._events(Retired(**self._stamp(now), reason=reason))

    # -------------------------------------------------------------------------------------- the nodes

    def _fault(self, observation: Observation) -> str:
        """Return why no node of this job can have seen this, or nothing; nothing from the network is trusted."""
        node = f"{observation.role.value} {observation.rank}"
        if not observation.rank < self._counts.get(observation.role, 0):
            return f"there is no {node} in this job"
        if (observation.num_workers, observation.num_servers) != tuple(self._counts.values()):
            return f"{node} believes in {observation.num_workers} workers and {observation.num_servers} servers"
        peers = Role.SERVER if observation.role is Role.WORKER else Role.WORKER
        for link in observation.links:
            if not link.peer < self._counts[peers]:
                return f"{node} has a link to {peers.value} {link.peer}, which this job does not have"
        for name, value in asdict(observation).items():
            if not _is_sound(value):
                return f"{name} of {node} cannot be {value}"
        return ""

    def _is_waiting_for_nodes(self, now: float) -> bool:
        waited_seconds = now - self._switched_at
        if self._unconfirmed and waited_seconds >= CONFIRM_SECONDS:
            names = [f"{role.value} {rank}" for role, rank in sorted(self._unconfirmed)]
            self._unconfirmed.clear()
            self._events(Unconfirmed(**self._stamp(now), nodes=names, waited_seconds=waited_seconds))
        return bool(self._unconfirmed)

    # ----------------------------------------------------------------------------------------- events

    def _begin(self, now: float) -> None:
        if self._began is None:
            self._began = now
            self._events(Decided(**self._stamp(now), config=self.config, reason="what the job starts with"))

    def _report_speedup(self, now: float) -> None:
        after = self._meter.time(MEASURED_STEPS, MEASURED_WINDOWS)
        if self._before is None or after is None:
            return
        before, self._before = self._before, None
        self._events(
            Measured(
                **self._stamp(now),
                speedup=after.speedup_over(before),
                step_seconds_before=before.seconds,
                step_seconds=after.seconds,
                steps=int(self._meter.steps),
            )
        )

    def _stamp(self, now: float) -> _Stamp:
        began = now if self._began is None else self._began
        return {"seconds": round(now - began, 3), "epoch": self.config.epoch}


def _is_sound(value: object) -> bool:
    """Whether a field of an observation, with all that is in it, can have been measured."""
    if isinstance(value, Estimate):
        return value.value > 0 and all(map(_is_quantity, astuple(value)))
    if isinstance(value, LayerGroup):
        return all(number >= 0 for number in astuple(value))  # whole numbers, and many of them
    if isinstance(value, LinkEstimate):
        return all(map(_is_sound, astuple(value)))
    if isinstance(value, tuple):
        return all(map(_is_sound, value))
    return not isinstance(value, (int, float)) or _is_quantity(value)


def _is_quantity(number: float) -> bool:
    return math.isfinite(number) and number >= 0
