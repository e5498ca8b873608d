"""How links change while a job trains, and what its steps say about the tuner; pure, the driver is ``bench_traces.py``.

A trace is a list of changes, each with a time, a host (or all) and a rate; it has the same times for every rival. A
*phase* is what lies between two changes. Two questions are asked of the same run:

* equal wall time: how many steps were made in a phase, or in the whole trace;
* equal steps: how long two rivals took, in each phase, for as many steps as the slower of them made in it.

The progress of a job is its number of steps as a function of time, linear within a step, so that a phase that ends
within a step does not cost a rival a whole one.
"""

from __future__ import annotations

import statistics
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

__all__ = [
    "NAMED",
    "Change",
    "Composed",
    "Phase",
    "Progress",
    "Trace",
    "gain_in_steps",
    "gain_in_time",
    "hindsight",
    "oracle",
    "parse",
]

#: The traces by name: each change is after a part of the trace, of hosts, to a multiple of the rate at the start.
#: ``worker`` and ``server`` are the last one of the role.
NAMED: Dict[str, Tuple[Tuple[float, str, float], ...]] = {
    "drop": ((0.35, "all", 0.4),),
    "rise": ((0.35, "all", 2.5),),
    "straggler": ((0.3, "worker", 0.4), (0.7, "worker", 1.0)),
    "cross": ((0.2, "server", 0.5), (0.4, "server", 1.0), (0.6, "server", 0.35), (0.8, "server", 1.0)),
    "steady": (),
}


class Change(NamedTuple):
    """After so many seconds a host's link has another rate; None: every host's."""

    at_seconds: float
    host: Optional[int]
    rate_mbit: float


class Phase(NamedTuple):
    """From one change to the next, in seconds of the trace, and what has changed at its beginning."""

    begin: float
    end: float
    label: str


class Trace(NamedTuple):
    """All changes, in order of time, and how long the whole lasts."""

    name: str
    changes: Tuple[Change, ...]
    seconds: float

    @property
    def phases(self) -> List[Phase]:
        """What lies between the changes; those of the same moment are one."""
        labels = {0.0: "start"}
        for at_seconds, host, rate_mbit in self.changes:
            text = f"{'all' if host is None else f'host {host}'} at {rate_mbit:g}"
            labels[at_seconds] = f"{labels[at_seconds]}, {text}" if labels.get(at_seconds, "start") != "start" else text
        begins = sorted(labels)
        return [Phase(begin, end, labels[begin]) for begin, end in zip(begins, [*begins[1:], self.seconds])]


def parse(text: str, seconds: float, rate_mbit: float, num_workers: int, num_servers: int) -> Trace:
    """Return the trace that ``text`` names or spells.

    Parameters
    ----------
    text
        One of :data:`NAMED`, or ``NAME=SECONDS:HOST:MBIT+SECONDS:HOST:MBIT...``, HOST a number or ``all``: worker i is
        on host i, server j on host ``num_workers + j``.
    seconds
        How long it lasts.
    rate_mbit
        The rate of all links at the start.

    Raises
    ------
    ValueError
        It is neither; the text says what was expected.

    Examples
    --------
    >>> parse("drop", 20.0, 400.0, 2, 2).changes
    (Change(at_seconds=7.0, host=None, rate_mbit=160.0),)
    >>> parse("mine=5:0:100+9:all:50", 20.0, 400.0, 2, 2).changes
    (Change(at_seconds=5.0, host=0, rate_mbit=100.0), Change(at_seconds=9.0, host=None, rate_mbit=50.0))
    """
    name, spelt, changes = text.partition("=")
    hosts: Dict[str, Optional[int]] = {"all": None, "worker": num_workers - 1, "server": num_workers + num_servers - 1}
    if spelt:
        made = [_change(part, num_workers + num_servers) for part in changes.split("+")]
    elif name in NAMED:
        made = [Change(part * seconds, hosts[who], factor * rate_mbit) for part, who, factor in NAMED[name]]
    else:
        raise ValueError(f"trace {text!r}: expected one of {', '.join(NAMED)}, or NAME=SECONDS:HOST:MBIT+...")
    late = [change for change in made if not 0 < change.at_seconds < seconds]
    if late:
        raise ValueError(f"trace {text!r}: {late[0].at_seconds:g} s is not within its {seconds:.1f} s")
    return Trace(name, tuple(sorted(made, key=lambda change: change.at_seconds)), seconds)


def _change(text: str, num_hosts: int) -> Change:
    try:
        at_seconds, host, rate_mbit = text.split(":")
        change = Change(float(at_seconds), None if host == "all" else int(host), float(rate_mbit))
        if change.host is not None and not 0 <= change.host < num_hosts:
            raise ValueError
        return change
    except ValueError:
        raise ValueError(f"change {text!r}: expected SECONDS:HOST:MBIT, HOST 0 to {num_hosts - 1} or 'all'") from None


class Progress:
    """The steps of one job.

    Parameters
    ----------
    ends
        When each step ended, in seconds of the trace, whose first step began at 0.
    phases
        Of the trace.

    Attributes
    ----------
    steps
        How many were made in each phase.
    """

    def __init__(self, ends: Sequence[float], phases: Sequence[Phase]) -> None:
        self._times = np.array([0.0, *ends])
        self._phases = list(phases)
        self._begins = [self._at(phase.begin) for phase in phases]
        self.steps: List[float] = [self._at(each.end) - begin for each, begin in zip(phases, self._begins)]

    def _at(self, seconds: float) -> float:
        return float(np.interp(seconds, self._times, np.arange(self._times.size)))

    def seconds_for(self, phase: int, steps: float) -> float:
        """Return how long the first ``steps`` of a phase took."""
        at = np.interp(self._begins[phase] + steps, np.arange(self._times.size), self._times)
        return float(at) - self._phases[phase].begin

    def step_seconds(self, phase: int, settled: bool = False) -> Optional[float]:
        """Return the median of the steps that lie in a phase, or with ``settled`` in its second half; None without."""
        begin, end, _ = self._phases[phase]
        if settled:
            begin = (begin + end) / 2
        inside = (self._times[:-1] >= begin) & (self._times[1:] <= end)
        durations = np.diff(self._times)[inside].tolist()
        return statistics.median(durations) if durations else None


class Composed:
    """The progress of whoever has the best job in each phase: the bound that no job can pass.

    Parameters
    ----------
    parts
        The best job's progress, one for each phase.
    """

    def __init__(self, parts: Sequence[Progress]) -> None:
        self._parts = parts
        self.steps: List[float] = [part.steps[phase] for phase, part in enumerate(parts)]

    def seconds_for(self, phase: int, steps: float) -> float:
        """Return how long the first ``steps`` of a phase took."""
        return self._parts[phase].seconds_for(phase, steps)


#: A rival's progress, an element per round.
Rounds = Sequence[Union[Progress, Composed]]


def gain_in_time(ours: Rounds, theirs: Rounds) -> float:
    """Return how many more steps we made in equal wall time, as a part of theirs."""
    return sum(sum(each.steps) for each in ours) / sum(sum(each.steps) for each in theirs) - 1


def gain_in_steps(ours: Rounds, theirs: Rounds) -> float:
    """Return how much longer they took than we, as a part of our time, for the steps of each phase that both made."""
    seconds = [0.0, 0.0]
    for mine, other in zip(ours, theirs):
        for phase, steps in enumerate(map(min, mine.steps, other.steps)):
            seconds[0] += mine.seconds_for(phase, steps)
            seconds[1] += other.seconds_for(phase, steps)
    return seconds[1] / seconds[0] - 1


def hindsight(statics: Mapping[str, Sequence[Progress]]) -> str:
    """Return the static configuration that made the most steps in the whole trace, which nobody knows beforehand."""
    return max(statics, key=lambda name: sum(sum(each.steps) for each in statics[name]))


def oracle(statics: Mapping[str, Sequence[Progress]]) -> Tuple[List[str], List[Composed]]:
    """Return which static configuration made the most steps in each phase, and what they made, by round."""
    rounds = len(next(iter(statics.values())))
    phases = range(len(next(iter(statics.values()))[0].steps))
    names = [max(statics, key=lambda name: sum(each.steps[phase] for each in statics[name])) for phase in phases]
    return names, [Composed([statics[name][number] for name in names]) for number in range(rounds)]
