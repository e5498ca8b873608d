"""The stores that the benchmark compares: how each is opened and called, and which processes serve it."""

from __future__ import annotations

import sys
from typing import Dict, List, NamedTuple

__all__ = ["STORES", "Store"]

AUTOBYTE = {"scheduler": [sys.executable, "-m", "scheduler"], "server": [sys.executable, "-m", "ps.server"]}
#: ps-lite's scheduler and servers run inside the import, as DMLC_ROLE tells them.
PS_LITE = {role: [sys.executable, "-c", "import mxnet"] for role in ("scheduler", "server")}


class Store(NamedTuple):
    """One way to sum gradients.

    Attributes
    ----------
    kvstore
        The name for ``mx.kv.create``, or ``""`` for AutoByte's NumPy API.
    one_call
        Whether a gradient goes with ``pushpull``, as ``gluon.Trainer`` and ``Module`` of MXNet 1.9.1 do, or with
        ``push`` and then ``pull``, as scripts do that call the store themselves.
    processes
        The commands of the scheduler and of a server.
    variables
        What all processes need in their environment.
    """

    kvstore: str
    one_call: bool
    processes: Dict[str, List[str]]
    variables: Dict[str, str] = {}


STORES: Dict[str, Store] = {
    "autobyte": Store("dist_sync_autobyte", True, AUTOBYTE),
    "worker": Store("", True, AUTOBYTE),
    "dist_sync": Store("dist_sync", True, PS_LITE),
    "dist_sync_2calls": Store("dist_sync", False, PS_LITE),
    "p3": Store("p3store_dist", True, PS_LITE, {"DMLC_PS_VAN_TYPE": "p3"}),
}
