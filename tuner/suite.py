"""The fixed suite of traces: what may change while a job trains, one kind of change in each.

A trace is a function of its name, the size of the cluster, the model and a seed. All begin with hosts on 10 Gbit/s,
50 us of latency and 50 us of overhead per message unless they say otherwise. :func:`balanced` gives the model the
accelerator on which communication takes about as long as computation, which is where a configuration matters most.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from tuner.conditions import Conditions, Host
from tuner.profiles import ModelProfile
from tuner.trace import Phase, Trace

__all__ = ["SUITE", "balanced", "build"]

#: Steps per phase.
PHASE_STEPS = 200
GIGABIT = 1e9 / 8
US = 1e-6
#: The processor's time per byte of a message (copies, system calls).
BYTE_SECONDS = 0.1e-9


def balanced(profile: ModelProfile, conditions: Conditions, ratio: float = 1.0) -> ModelProfile:
    """Return the model on an accelerator whose passes take ``ratio`` times as long as the bytes on the slowest wire."""
    fan_in = conditions.num_workers / conditions.num_servers
    rate = min(
        min(host.send_bytes_per_second for host in conditions.workers),
        min(host.send_bytes_per_second for host in conditions.servers) / fan_in,
    )
    return profile.scaled(ratio * profile.model_bytes / rate / (profile.forward_seconds + profile.backward_seconds))


def build(name: str, num_workers: int, num_servers: int, seed: int = 0) -> Trace:
    """Return the trace of that name from :data:`SUITE`.

    Examples
    --------
    >>> trace = build("bandwidth steps", 4, 4)
    >>> [phase.conditions.workers[0].send_bytes_per_second * 8 / 1e9 for phase in trace.phases]
    [10.0, 2.5, 25.0, 10.0]
    """
    rng = np.random.default_rng([seed, sorted(SUITE).index(name)])
    return SUITE[name](_Cluster(name, num_workers, num_servers), rng)


class _Cluster:
    """Builds the phases of one trace."""

    def __init__(self, name: str, num_workers: int, num_servers: int) -> None:
        self.name = name
        self.num_workers = num_workers
        self.num_servers = num_servers

    def conditions(self, gigabits: float = 10.0, latency_us: float = 50.0, overhead_us: float = 50.0) -> Conditions:
        return Conditions.uniform(
            self.num_workers,
            self.num_servers,
            gigabits * GIGABIT,
            latency_us * US,
            overhead_us * US,
            byte_seconds=min(BYTE_SECONDS, 0.5 / (gigabits * GIGABIT)),
        )

    def trace(self, *conditions: Conditions, steps: int = PHASE_STEPS, **errors: float) -> Trace:
        phases = tuple(Phase(each, steps) for each in conditions)
        return Trace(name=self.name, phases=phases, **errors)


def _with(
    conditions: Conditions, worker: Callable[[Host], Host] = lambda h: h, server: Callable[[Host], Host] = lambda h: h
) -> Conditions:
    """Return conditions with another last worker, or another last server."""
    return replace(
        conditions,
        workers=(*conditions.workers[:-1], worker(conditions.workers[-1])),
        servers=(*conditions.servers[:-1], server(conditions.servers[-1])),
    )


def _slower_link(factor: float) -> Callable[[Host], Host]:
    return lambda host: replace(
        host,
        send_bytes_per_second=host.send_bytes_per_second / factor,
        receive_bytes_per_second=host.receive_bytes_per_second / factor,
    )


def _slower(factor: float) -> Callable[[Host], Host]:
    return lambda host: replace(host, speed=host.speed / factor)


def _bandwidth_steps(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    return cluster.trace(*(cluster.conditions(gigabits=rate) for rate in (10, 2.5, 25, 10)))


def _bandwidth_ramp(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    rates = np.geomspace(25, 2.5, 9)
    return cluster.trace(*(cluster.conditions(gigabits=float(rate)) for rate in rates), steps=60)


def _latency_steps(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    return cluster.trace(*(cluster.conditions(latency_us=latency) for latency in (20, 1000, 100, 20)))


def _overhead_steps(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    return cluster.trace(*(cluster.conditions(overhead_us=overhead) for overhead in (10, 300, 50, 10)))


def _everything_steps(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    kinds = ((10, 50, 10), (25, 50, 300), (2.5, 1000, 100), (25, 20, 20))
    return cluster.trace(*(cluster.conditions(*kind) for kind in kinds))


def _straggler(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    quiet = cluster.conditions(overhead_us=100)
    slow = _with(quiet, worker=_slower(1.6))
    return cluster.trace(quiet, slow, quiet)


def _slow_link(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    quiet = cluster.conditions(overhead_us=100)
    return cluster.trace(quiet, _with(quiet, worker=_slower_link(3)), quiet, _with(quiet, server=_slower_link(3)))


def _cross_traffic(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    """Others take half of every wire, or three quarters, in bursts of 20 to 120 steps."""
    rates = (10.0, 5.0, 10.0, 2.5)
    phases = [
        Phase(cluster.conditions(gigabits=rates[number % 4], overhead_us=100), int(rng.integers(20, 121)))
        for number in range(12)
    ]
    return Trace(name=cluster.name, phases=tuple(phases), step_noise=0.02)


def _noise(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    """Nothing changes but the steps themselves, and the estimates are poor."""
    steady = cluster.conditions(overhead_us=150)
    return cluster.trace(steady, steps=4 * PHASE_STEPS, step_noise=0.05, estimate_spread=0.4)


def _steady(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    return cluster.trace(cluster.conditions(), steps=3 * PHASE_STEPS)


def _random_walk(cluster: _Cluster, rng: np.random.Generator) -> Trace:
    """Bandwidth, latency and overhead each change by a random factor at every phase."""
    logs = np.log([10.0, 100.0, 60.0])
    low, high = np.log([1.0, 20.0, 10.0]), np.log([50.0, 1000.0, 300.0])
    phases = []
    for _ in range(8):
        gigabits, latency, overhead = np.exp(logs).tolist()
        phases.append(Phase(cluster.conditions(gigabits, latency, overhead), int(rng.integers(80, 201))))
        logs = np.clip(logs + rng.normal(size=3) * math.log(2.5), low, high)
    return Trace(name=cluster.name, phases=tuple(phases))


#: Builders by name.
SUITE: Mapping[str, Callable[[_Cluster, np.random.Generator], Trace]] = {
    "bandwidth steps": _bandwidth_steps,
    "bandwidth ramp": _bandwidth_ramp,
    "latency steps": _latency_steps,
    "overhead steps": _overhead_steps,
    "everything steps": _everything_steps,
    "straggler": _straggler,
    "slow link": _slow_link,
    "cross-traffic": _cross_traffic,
    "noise": _noise,
    "steady": _steady,
    "random walk": _random_walk,
}
