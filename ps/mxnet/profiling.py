"""``mx.profiler`` with ``profile_process='server'``: what a worker has set runs MXNet's profiler in the servers.

As with MXNet's own stores worker 0's calls count and the other workers' do nothing, and server 1 writes
``rank1_<filename>``: always into its working directory, and at the latest when the profiler is stopped. Seen are the
operators of MXNet's that a server runs, which are those of optimizers. A call returns when all servers have obeyed.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import msgspec
import mxnet as mx

from ps.mxnet import connection
from ps.mxnet.errors import raised_for_mxnet
from ps.mxnet.optimizer_client import wait_for_import
from ps.mxnet.wire import Profile

__all__ = ["ServerProfiler", "install"]


def install() -> None:
    """Wrap the functions of ``mx.profiler``; for the worker they do what they did."""
    for name in ("set_config", "set_state", "dump", "pause", "resume"):
        setattr(mx.profiler, name, _wrapped(getattr(mx.profiler, name)))


def _wrapped(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options).arguments
        arguments = {**bound, **bound.get("kwargs", {})}
        arguments.pop("kwargs", None)
        current = connection.current()
        if arguments.pop("profile_process", "worker") != "server" or current is None:
            original(*args, **options)
        elif current.worker.rank == 0:
            current.drain()
            with raised_for_mxnet():
                wait_for_import(current.worker)
                body = msgspec.msgpack.encode(Profile(original.__name__, arguments))
                current.worker.command("optimizer/profile", body, collective=False)

    return call


class ServerProfiler:
    """MXNet's profiler of server ``rank``."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._stopped = False

    def execute(self, body: bytes) -> bytes:
        """Do what a worker was told."""
        request = msgspec.msgpack.decode(body, type=Profile)
        arguments = dict(request.arguments)
        if "filename" in arguments:
            arguments["filename"] = f"rank{self._rank}_{os.path.basename(str(arguments['filename']))}"
        if request.function == "dump" and self._stopped:
            return b""  # was written then
        getattr(mx.profiler, request.function)(**arguments)
        if request.function == "set_state":
            self._stopped = arguments.get("state", "stop") == "stop"
            if self._stopped:
                mx.profiler.dump()
        return b""
