"""A server's table of commands."""

from __future__ import annotations

import sys
import time

import pytest

from ps.commands import Commands
from ps.errors import SettingsError
from ps.messages import CommandReply, ServerCommand
from ps.shards import ShardBook


@pytest.fixture
def commands() -> Commands:
    return Commands(0, ShardBook(0, 2, 60.0), ["no_such_module_of_optimizers"])


def test_a_command_is_answered_with_what_its_handler_returns(commands: Commands) -> None:
    commands.add({"echo": lambda body: body + body})
    assert commands.execute(ServerCommand(3, "echo", b"ab")) == [CommandReply(3, "", b"abab")]


def test_an_unknown_command_is_answered_with_an_error(commands: Commands) -> None:
    assert commands.execute(ServerCommand(3, "dance", b"")) == [CommandReply(3, "there is no command 'dance'", b"")]


def test_what_a_handler_raises_becomes_the_reason(commands: Commands) -> None:
    def refuse(body: bytes) -> bytes:
        raise SettingsError("not like this")

    commands.add({"refuse": refuse, "fail": lambda body: bytes(body[7])})
    assert commands.execute(ServerCommand(1, "refuse", b"")) == [CommandReply(1, "not like this", b"")]
    assert commands.execute(ServerCommand(2, "fail", b"")) == [
        CommandReply(2, "command 'fail' failed: IndexError('index out of range')", b"")
    ]


@pytest.mark.timeout(60)
def test_an_import_that_fails_is_the_reply_to_a_command_of_the_optimizers_and_nothing_waits_for_it(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ps.mxnet.optimizer_commands", None)
    for variable in ("MXNET_ENGINE_TYPE", "DMLC_ROLE"):  # which a server sets or drops for good
        monkeypatch.setenv(variable, "")
    assert commands.execute(ServerCommand(1, "optimizer/set", b"")) == []
    replies: list[CommandReply] = []
    while not replies:
        time.sleep(0.01)
        replies = commands.waited()
    assert replies[0].number == 1
    assert replies[0].error.startswith("this server cannot import what an optimizer needs: ")
