"""What a server does when it is told to, other than summing: a table of named commands.

A command comes from the workers through the scheduler (:class:`ps.messages.ServerCommand`) and is answered with bytes
or with a reason. Whatever a command raises becomes the reason; the server goes on.

Commands that begin with ``optimizer/`` are MXNet's business: :mod:`ps.mxnet.optimizer_commands` is imported when the
first of them comes, in a thread of its own, and with it MXNet: a server that only sums needs no MXNet.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any, Callable, Optional, Sequence

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
        self._waiting: list[messages.ServerCommand] = []
        self._import: Optional[threading.Thread] = None
        self._imported = False
        self._module: Any = None  # what was imported, or why not

    def add(self, handlers: dict[str, Handler]) -> None:
        """Make more commands known."""
        self._handlers.update(handlers)

    def execute(self, message: messages.ServerCommand) -> list[messages.CommandReply]:
        """Do as ``message`` says, and return the reply; none where that has to wait for an import."""
        if message.name.startswith(_OPTIMIZER) and not self._imported:
            self._waiting.append(message)
            if self._import is None:
                self._import = threading.Thread(target=self._import_optimizers, name="autobyte-import", daemon=True)
                self._import.start()
            return []
        return [self._reply(message)]

    def waited(self) -> list[messages.CommandReply]:
        """Return the replies to commands that waited for an import and do not any more."""
        if self._import is None or self._import.is_alive():
            return []
        self._import = None
        if isinstance(self._module, AutoByteError):
            replies = [messages.CommandReply(message.number, str(self._module), b"") for message in self._waiting]
        else:
            self._imported = True
            self.add(self._module.handlers(self._rank, self._book))
            replies = [self._reply(message) for message in self._waiting]
        self._waiting = []
        return replies

    def _reply(self, message: messages.ServerCommand) -> messages.CommandReply:
        name = message.name
        try:
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
        """Import MXNet and the user's modules: seconds, in which the server goes on."""
        os.environ.pop("DMLC_ROLE", None)  # MXNet would become a server of its own, and never return
        os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"  # an update is done when its call returns
        try:
            self._module = importlib.import_module("ps.mxnet.optimizer_commands")
            for module in self._optimizer_modules:
                importlib.import_module(module)
        except Exception as error:
            self._module = SettingsError(
                f"this server cannot import what an optimizer needs: {error!r}; install MXNet where the servers run,"
                " and have the modules of AUTOBYTE_OPTIMIZER_MODULES on their PYTHONPATH"
            )
