"""What both simulators share: the model placed on the servers, the configuration of each node, what nodes cost.

Tensors have elements of :data:`ITEM_BYTES`; a size that is no multiple of it is rounded up.
"""

from __future__ import annotations

import functools
from typing import Sequence, Union

from ps.config import CommConfig, server_config
from ps.messages import Shard
from ps.placement import Placement
from tuner.conditions import Conditions
from tuner.profiles import ModelProfile

__all__ = ["Configs", "ITEM_BYTES", "node_configs", "shards_of"]

#: Gradients are float32.
ITEM_BYTES = 4

#: One configuration for all nodes, or one for each worker, or one for each worker and each server.
Configs = Union[CommConfig, Sequence[CommConfig]]


def shards_of(profile: ModelProfile, num_servers: int) -> tuple[tuple[Shard, ...], ...]:
    """Return the shards of each tensor, as the scheduler places them."""
    return _shards(tuple(tensor.size_bytes for tensor in profile.tensors), num_servers)


@functools.lru_cache(maxsize=256)
def _shards(sizes_bytes: tuple[int, ...], num_servers: int) -> tuple[tuple[Shard, ...], ...]:
    placement = Placement(num_servers)
    return tuple(tuple(placement.place(-(-size_bytes // ITEM_BYTES), ITEM_BYTES)) for size_bytes in sizes_bytes)


def node_configs(config: Configs, conditions: Conditions) -> tuple[CommConfig, ...]:
    """Return the configuration of each node, workers first. Servers make their own of the first one, unless given.

    Raises
    ------
    ValueError
        The number of configurations fits neither the workers nor all nodes.
    """
    num_workers, num_servers = conditions.num_workers, conditions.num_servers
    num_nodes = num_workers + num_servers
    if isinstance(config, CommConfig):
        config = (config,) * num_workers
    if len(config) == num_nodes:
        return tuple(config)
    if len(config) == num_workers:
        return (*config, *(server_config(config[0], num_workers, num_servers),) * num_servers)
    raise ValueError(
        f"{len(config)} configurations: expected one, or {num_workers} (one per worker), or {num_nodes} (one per node)"
    )
