"""The names under which MXNet knows the stores."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx

from ps.errors import SettingsError
from ps.messages import Mode
from ps.mxnet.errors import for_mxnet
from ps.mxnet.kvstore import AutoByteKVStore

__all__ = ["register"]


def register() -> None:
    """Make ``mx.kv.create`` and Trainer know the stores by name."""
    registry = mx.kvstore.KVStoreBase.kv_registry
    registry["dist_autobyte"] = AutoByteKVStore
    for mode in Mode:
        for name in (f"dist_{mode.value}", f"dist_device_{mode.value}", f"dist_{mode.value}_device"):
            registry[f"{name}_autobyte"] = functools.partial(AutoByteKVStore, mode, f"{name}_autobyte")
    original = mx.kvstore.create

    @functools.wraps(original)
    def create(name: Any = "local") -> Any:
        if isinstance(name, str) and "autobyte" in name.lower() and name.lower() not in registry:
            names = ", ".join(repr(known) for known in registry if "autobyte" in known)
            raise for_mxnet(SettingsError(f"there is no store {name!r}; AutoByte's are {names}"))
        return original(name)

    mx.kvstore.create = create  # MXNet would make a store of its own of any name with dist in it
