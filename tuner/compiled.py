"""The simulator for bulk work: what :mod:`tuner.simulator` does, in machine code.

Same rules, same order of events, same results to rounding; some ten million events per second instead of a
hundred thousand. numba compiles the loop once and keeps the result on disk.

**Workers that are alike.** Where more workers than :data:`MAX_WORKERS` share a host's figures and a configuration, only
some of them are simulated, each of which stands for several: at a server its messages take as much of the network card
and of the thread as those of all that it stands for, and are complete with the last of them. That makes 64 workers cost
little more than 8. ``max_workers`` says how many are simulated; a step time moves by about a per cent by it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from ps.config import MIB, CommConfig
from tuner import arrays, kernel
from tuner.conditions import Conditions, Host
from tuner.layout import ITEM_BYTES, Configs, node_configs, shards_of
from tuner.profiles import ModelProfile
from tuner.simulator import Simulated

__all__ = ["MAX_WORKERS", "simulate_compiled", "simulate_many"]

#: So many workers are simulated where more are alike.
MAX_WORKERS = 8


class _Group(NamedTuple):
    """Workers that are alike, and one configuration that they share."""

    host: Host
    config: CommConfig
    ranks: list[int]


def simulate_compiled(
    profile: ModelProfile,
    conditions: Conditions,
    config: Configs,
    steps: int = 3,
    max_workers: int = MAX_WORKERS,
) -> Simulated:
    """Return what :func:`tuner.simulator.simulate` returns.

    ``events`` are those that were simulated, which are fewer where a worker stands for several.
    """
    configs = node_configs(config, conditions)
    simulated = _representatives(conditions, configs, max_workers)
    costs = _costs(conditions, configs, simulated)
    result = kernel.run(_model(profile, conditions.num_servers), costs, steps)
    if np.isnan(result.step_ends).any():
        raise RuntimeError(f"the simulation of {profile.name} came to a halt; this is an error of the simulator")
    return _summary(profile, conditions, costs, result, [ranks for _, ranks in simulated])


def simulate_many(
    profile: ModelProfile,
    conditions: Conditions,
    configs: Sequence[Configs],
    steps: int = 3,
    max_workers: int = MAX_WORKERS,
) -> NDArray[np.float64]:
    """Return the step time of each configuration, in seconds.

    Examples
    --------
    >>> from tuner.profiles import load
    >>> conditions = Conditions.uniform(2, 2, 125e6, 50e-6, 100e-6)
    >>> simulate_many(load("resnet50_v1"), conditions, [CommConfig(), CommConfig(partition_bytes=4 << 20)]).shape
    (2,)
    """
    model = _model(profile, conditions.num_servers)
    seconds = np.empty(len(configs))
    for number, config in enumerate(configs):
        nodes = node_configs(config, conditions)
        costs = _costs(conditions, nodes, _representatives(conditions, nodes, max_workers))
        step_ends = kernel.run(model, costs, steps).step_ends
        seconds[number] = np.average(_step_seconds(step_ends), weights=costs.weight[: costs.num_workers])
    return seconds


# ------------------------------------------------------------------------------------ into the kernel


def _representatives(
    conditions: Conditions, configs: Sequence[CommConfig], max_workers: int
) -> list[tuple[int, list[int]]]:
    """Return the ranks to simulate, ascending, each with the ranks that it stands for."""
    groups: dict[tuple[Host, CommConfig], list[int]] = {}
    for rank, host in enumerate(conditions.workers):
        groups.setdefault((host, configs[rank]), []).append(rank)
    chosen = []
    for ranks in groups.values():
        count = min(len(ranks), max(1, round(max_workers * len(ranks) / conditions.num_workers)))
        for part in np.array_split(np.array(ranks), count):
            members = part.tolist()
            chosen.append((members[0], members))
    return sorted(chosen)


@functools.lru_cache(maxsize=64)
def _model(profile: ModelProfile, num_servers: int) -> arrays.Model:
    placed = shards_of(profile, num_servers)
    flat = [(tensor, shard) for tensor, shards in enumerate(placed) for shard in shards]
    return arrays.Model(
        forward_seconds=np.array([tensor.forward_seconds for tensor in profile.tensors], np.float64),
        backward_seconds=np.array([tensor.backward_seconds for tensor in profile.tensors], np.float64),
        elements=np.array([shards[-1].stop for shards in placed], np.int64),
        shard_first=np.cumsum([0, *(len(shards) for shards in placed)]).astype(np.int64),
        shard_tensor=np.array([tensor for tensor, _ in flat], np.int64),
        shard_server=np.array([shard.server for _, shard in flat], np.int64),
        shard_elements=np.array([shard.stop - shard.start for _, shard in flat], np.int64),
    )


def _costs(
    conditions: Conditions, configs: Sequence[CommConfig], simulated: Sequence[tuple[int, list[int]]]
) -> arrays.Costs:
    num_workers, num_servers = conditions.num_workers, conditions.num_servers
    hosts = [*(conditions.workers[rank] for rank, _ in simulated), *conditions.servers]
    chosen = [*(configs[rank] for rank, _ in simulated), *configs[num_workers:]]
    speeds = np.array([host.speed for host in hosts])
    peers = np.array([num_servers] * len(simulated) + [num_workers] * num_servers)
    # as a LinkGroup has it
    skews = [max(2 * config.partition_bytes, 2 * config.fused_bytes, MIB) for config in chosen]
    sums = np.arange(len(hosts)) >= len(simulated)
    return arrays.Costs(
        num_workers=len(simulated),
        latency_seconds=float(conditions.latency_seconds),
        weight=np.array([*(len(ranks) for _, ranks in simulated), *(1,) * num_servers], np.float64),
        compute=1 / speeds,
        send_byte_seconds=1 / np.array([host.send_bytes_per_second for host in hosts], np.float64),
        receive_byte_seconds=1 / np.array([host.receive_bytes_per_second for host in hosts], np.float64),
        overhead_seconds=np.array([host.overhead_seconds for host in hosts], np.float64),
        byte_seconds=np.array([host.byte_seconds for host in hosts], np.float64),
        sum_byte_seconds=sums / (conditions.sum_bytes_per_second * speeds),
        partition_elements=np.array([max(1, config.partition_bytes // ITEM_BYTES) for config in chosen], np.int64),
        link_credit_bytes=np.maximum(1, np.array([config.credit_bytes for config in chosen], np.int64) // peers),
        fusion_bytes=np.array([config.fused_bytes for config in chosen], np.int64),
        skew_bytes=np.array(skews, np.int64),
    )


# -------------------------------------------------------------------------------------- and out of it


def _step_seconds(step_ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean step of each worker, without the first one where there are more."""
    num_steps = step_ends.shape[1]
    if num_steps == 1:
        return step_ends[:, 0]
    seconds: NDArray[np.float64] = (step_ends[:, -1] - step_ends[:, 0]) / (num_steps - 1)
    return seconds


def _summary(
    profile: ModelProfile,
    conditions: Conditions,
    costs: arrays.Costs,
    result: arrays.Result,
    represented: Sequence[Sequence[int]],
) -> Simulated:
    num_workers, num_steps = result.step_ends.shape
    weights = costs.weight[:num_workers]
    counted = max(1, num_steps - 1)
    steps = _step_seconds(result.step_ends)
    worker_steps = np.empty(conditions.num_workers)
    for ranks, seconds in zip(represented, steps):
        worker_steps[list(ranks)] = seconds

    def mean(values: NDArray[np.float64]) -> float:
        return float(np.average(values, weights=weights))

    times, counts = result.node_times[:num_workers], result.nodes[:num_workers]
    partitions = counts[:, arrays.PARTITIONS]
    acks = np.concatenate([row[:count] for row, count in zip(result.acks, result.num_acks)])
    return Simulated(
        step_seconds=mean(steps),
        worker_step_seconds=tuple(worker_steps.tolist()),
        first_tensor_seconds=mean(result.worker_times[:, arrays.FIRST_SECONDS] / counted),
        forward_seconds=mean(result.worker_times[:, arrays.FORWARD_SECONDS] / counted),
        backward_seconds=mean(profile.backward_seconds * costs.compute[:num_workers]),
        queue_wait_seconds=mean(times[:, arrays.WAIT] / np.maximum(1, partitions)),
        credit_stall_seconds=mean(times[:, arrays.STALL]) / num_steps,
        ack_seconds=float(np.median(acks)) if acks.size else 0.0,
        messages=mean(counts[:, arrays.MESSAGES]) / num_steps,
        partitions=mean(partitions) / num_steps,
        thread_seconds=mean(times[:, arrays.THREAD]) / num_steps,
        events=int(result.events),
    )
