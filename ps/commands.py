"""What a server does when it is told to, other than summing: a table of named commands.

A command comes from the workers through the scheduler (:class:`ps.messages.ServerCommand`) and is answered with bytes
or with a reason. Whatever a command raises becomes the reason; the server goes on.

Commands that begin with ``optimizer/`` are MXNet's business: :mod:`ps.mxnet.optimizer_commands` is imported when the
first of them comes, and with it MXNet, so that a server that only sums needs no MXNet and starts at once.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Callable, Sequence

from ps import messages
from ps.errors import AutoByteError, SettingsError
from ps.shards import ShardBook

__all__ = ["Commands", "Handler"]

log = logging.getLogger("autobyte.server")

Handler = Callable[[bytes], bytes]

_OPTIMIZER = "optimizer/"


class Commands:
    """The commands of server ``rank``.

    Parameters
    ----------
    book
        The server's shards.
    optimizer_modules
        Modules to be imported with MXNet, which register optimizers of the user's own.
    """

    def __init__(self, rank: int, book: ShardBook, optimizer_modules: Sequence[str] = ()) -> None:
        self._rank = rank
        self._book = book
        self._optimizer_modules = optimizer_modules
        self._handlers: dict[str, Handler] = {}

    def add(self, handlers: dict[str, Handler]) -> None:
        """Make more commands known."""
        self._handlers.update(handlers)

    def execute(self, message: messages.ServerCommand) -> messages.CommandReply:
        """Do as ``message`` says, and return the reply."""
        name = message.name
        try:
            if name.startswith(_OPTIMIZER) and name not in self._handlers:
                self._import_optimizers()
            handler = self._handlers.get(name)
            if handler is None:
                raise SettingsError(f"there is no command {name[:40]!r}")
            return messages.CommandReply(message.number, "", handler(message.body))
        except AutoByteError as error:
            return messages.CommandReply(message.number, str(error), b"")
        except Exception as error:
            log.exception("command %r failed", name)
            return messages.CommandReply(message.number, f"command {name!r} failed: {error!r}", b"")

    def _import_optimizers(self) -> None:
        os.environ.pop("DMLC_ROLE", None)  # MXNet would become a server of its own, and never return
        os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"  # an update is done when its call returns
        try:
            commands = importlib.import_module("ps.mxnet.optimizer_commands")
            for module in self._optimizer_modules:
                importlib.import_module(module)
        except ImportError as error:
            raise SettingsError(
                f"this server cannot import what an optimizer needs: {error}; install MXNet where the servers run,"
                " and have the modules of AUTOBYTE_OPTIMIZER_MODULES on their PYTHONPATH"
            ) from error
        self.add(commands.handlers(self._rank, self._book))
