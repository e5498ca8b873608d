"""Random jobs for the data set: a cluster, a model, and configurations that may be in force there.

All that has a scale is drawn on a logarithmic one, over what is found in practice: 2 to 64 workers, 0.2 to 100 Gbit/s,
20 us to 1 ms, 10 to 300 us of overhead. A third of the clusters have equal hosts; the others have unequal or asymmetric
links, stragglers, slow servers, or several of these. The model's computation is scaled so that it takes from a tenth to
ten times as long as its communication, most often about as long, which is where a configuration matters most.

A scenario is a function of its seed and its number, so a data set can be made in parts, and continued.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import msgspec
import numpy as np

from ps.config import CommConfig
from tuner.conditions import Conditions, Host
from tuner.profiles import ModelProfile, load, synthetic, zoo
from tuner.rule import Network, partition_and_credit

__all__ = ["PRESENTS", "Scenario", "draw", "model", "model_is_held_out", "nearest", "rule_choice", "size_is_held_out"]

#: Configurations that are assumed to be in force, per scenario: the default, the rule's, and two random ones.
PRESENTS = 4
SYNTHETIC = "synthetic-"
MOST_KINDS = 4
#: Larger synthetic models take long to simulate and behave like this one.
MOST_MODEL_BYTES = 600e6
#: What no network is trained on, so that it can be tested there.
HELD_OUT_FAMILIES = ("vgg", "bert", "densenet")
HELD_OUT_WORKERS = ((3, 3), (6, 6), (12, 15), (40, 47))


class Scenario(NamedTuple):
    """One job; what is to be simulated."""

    seed: int
    number: int
    model: str  #: a name for :func:`model`
    compute_factor: float
    conditions: Conditions
    presents: tuple[int, ...]  #: candidates that are in force in turn
    estimate_spread: float

    @property
    def profile(self) -> ModelProfile:
        return model(self.model).scaled(self.compute_factor)


def model(name: str) -> ModelProfile:
    """Return a model of the zoo, or the synthetic one whose seed is in its name."""
    if name.startswith(SYNTHETIC):
        return synthetic(np.random.default_rng(int(name[len(SYNTHETIC) :])))
    return load(name)


def model_is_held_out(name: str) -> bool:
    """Return whether no network is trained on this model: families of the zoo, a fifth of the others."""
    if name.startswith(SYNTHETIC):
        return int(name[len(SYNTHETIC) :]) % 5 == 0
    return name.startswith(HELD_OUT_FAMILIES)


def size_is_held_out(num_workers: int) -> bool:
    """Return whether no network is trained on clusters of this size."""
    return any(low <= num_workers <= high for low, high in HELD_OUT_WORKERS)


def draw(seed: int, number: int, candidates: Sequence[CommConfig]) -> Scenario:
    """Return scenario ``number`` of those that ``seed`` makes; ``presents`` are numbers of ``candidates``."""
    rng = np.random.default_rng([seed, number])
    names = zoo()
    synthetic_seed = int(rng.integers(1 << 31))
    zoo_name = names[int(rng.integers(len(names)))]
    name = zoo_name if rng.random() < 0.4 else f"{SYNTHETIC}{synthetic_seed}"
    while (profile := model(name)).model_bytes > MOST_MODEL_BYTES:
        synthetic_seed += 1
        name = f"{SYNTHETIC}{synthetic_seed}"
    workers = round(_log_uniform(rng, 2, 64))
    servers = min(workers, max(1, round(workers * _log_uniform(rng, 0.25, 1.5))))
    conditions = _cluster(rng, workers, servers)
    busy_seconds = _communication_seconds(conditions, profile.model_bytes)
    ratio = math.exp(float(np.clip(rng.normal(0, 0.9), -2.3, 2.3)))
    factor = ratio * busy_seconds / (profile.forward_seconds + profile.backward_seconds)
    presents = (
        nearest(CommConfig(), candidates),
        rule_choice(conditions, candidates),
        *(int(choice) for choice in rng.integers(len(candidates), size=PRESENTS - 2)),
    )
    spread = 0.0 if rng.random() < 0.2 else _log_uniform(rng, 0.03, 0.5)
    return Scenario(seed, number, name, factor, conditions, presents, spread)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(float(rng.uniform(math.log(low), math.log(high))))


def _cluster(rng: np.random.Generator, num_workers: int, num_servers: int) -> Conditions:
    bandwidth = _log_uniform(rng, 0.2e9, 100e9) / 8
    overhead = _log_uniform(rng, 10e-6, 300e-6)
    byte_seconds = 0.0 if rng.random() < 0.3 else min(_log_uniform(rng, 0.02e-9, 0.7e-9), 0.7 / bandwidth)
    uneven = rng.random(5) < 0.25
    if rng.random() < 0.15:
        uneven[:] = False
    count = num_workers + num_servers
    # Hosts come in up to four kinds, as machines were bought; few kinds are also what the simulator makes use of.
    kinds = rng.integers(rng.integers(1, MOST_KINDS + 1), size=count)
    send = np.full(count, bandwidth)
    if uneven[0]:
        send *= np.exp(rng.normal(0, _log_uniform(rng, 0.05, 0.5), MOST_KINDS))[kinds]
    if uneven[1]:
        send[rng.integers(count)] /= _log_uniform(rng, 1.3, 6)
    receive = send * (_log_uniform(rng, 0.4, 2.5) if uneven[2] else 1.0)
    overheads = overhead * (np.exp(rng.normal(0, 0.4, MOST_KINDS))[kinds] if uneven[3] else np.ones(count))
    speeds = np.ones(count)
    if uneven[4]:
        slow = rng.permutation(count)[: max(1, count // 8)]
        speeds[slow] = rng.uniform(0.3, 0.95)
    hosts = tuple(
        Host(
            send_bytes_per_second=float(send[rank]),
            receive_bytes_per_second=float(receive[rank]),
            overhead_seconds=float(overheads[rank]),
            byte_seconds=byte_seconds,
            speed=float(speeds[rank]),
        )
        for rank in range(count)
    )
    return Conditions(
        workers=hosts[:num_workers],
        servers=hosts[num_workers:],
        latency_seconds=_log_uniform(rng, 20e-6, 1e-3),
        sum_bytes_per_second=_log_uniform(rng, 1.5e9, 20e9),
    )


def _communication_seconds(conditions: Conditions, model_bytes: int) -> float:
    """Return how long the busiest host needs at least to move its part of the model in and out."""

    def slowest(hosts: Sequence[Host]) -> float:
        return max(max(1 / h.send_bytes_per_second, 1 / h.receive_bytes_per_second, 2 * h.byte_seconds) for h in hosts)

    fan_in = conditions.num_workers / conditions.num_servers
    return model_bytes * max(slowest(conditions.workers), fan_in * slowest(conditions.servers))


def rule_choice(conditions: Conditions, candidates: Sequence[CommConfig]) -> int:
    """Return which candidate is nearest to what the rule's formula says for the true conditions."""
    hosts = (*conditions.workers, *conditions.servers)
    network = Network(
        min(host.send_bytes_per_second for host in hosts),
        conditions.latency_seconds,
        max(host.overhead_seconds for host in hosts),
    )
    partition_bytes, credit_bytes = partition_and_credit(network)
    wanted = msgspec.structs.replace(candidates[0], partition_bytes=partition_bytes, credit_bytes=credit_bytes)
    return nearest(wanted, candidates)


def nearest(config: CommConfig, candidates: Sequence[CommConfig]) -> int:
    """Return the number of the candidate whose partition and credit are nearest to those of ``config``."""

    def distance(candidate: CommConfig) -> float:
        return math.hypot(
            math.log(candidate.partition_bytes / config.partition_bytes),
            math.log(candidate.credit_bytes / config.credit_bytes),
        )

    return min(range(len(candidates)), key=lambda number: distance(candidates[number]))
