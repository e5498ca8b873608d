"""What MXNet needs from the outside before it can be imported.

This module imports no mxnet: it decides whether that may be imported at all.
"""

from __future__ import annotations

import os

import numpy as np

from ps.errors import SettingsError

__all__ = ["prepare", "check_version"]

#: The MXNet release whose engine and store interface the plugin is written for.
SUPPORTED = "1.9."


def prepare() -> None:
    """Make ``import mxnet`` possible, or say why it must not happen.

    Raises
    ------
    SettingsError
        ``DMLC_ROLE`` is set to something else than ``worker``: mxnet would become a server of its own store and never
        return.
    """
    role = os.environ.get("DMLC_ROLE", "worker")
    if role != "worker":
        raise SettingsError(
            f"DMLC_ROLE={role!r}: ps.mxnet is for workers; start servers and the scheduler by"
            " autobyte-server and autobyte-scheduler"
        )
    vars(np).setdefault("bool", bool)  # removed in NumPy 1.24; MXNet 1.9 uses the name


def check_version(version: str) -> None:
    """Raise ImportError where this MXNet is not one that the plugin knows."""
    if not version.startswith(SUPPORTED):
        raise ImportError(f"ps.mxnet needs MXNet {SUPPORTED}x, found {version}: install 'autobyte[mxnet]'")
