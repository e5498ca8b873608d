"""Commands to all servers: who is asked what, and who is answered, on an injected clock."""

from __future__ import annotations

from ps.config import Role
from ps.errors import ErrorCode
from ps.messages import CallFailed, Command, CommandDone, CommandReply, Peer, ServerCommand
from ps.placement import Placement
from scheduler.collectives import Collectives, Post
from scheduler.tensors import Tensors


def job(num_workers: int = 2, num_servers: int = 2) -> Collectives:
    return Collectives(num_workers, num_servers, Tensors(num_workers, Placement(num_servers)), 60.0)


def command(name: str = "set", agreed: str = "", body: bytes = b"", collective: bool = True) -> Command:
    return Command(7, name, agreed, body, collective)


def test_a_collective_command_goes_to_all_servers_with_rank_0s_body_when_all_workers_have_called() -> None:
    collectives = job()
    assert collectives.command(1, command(body=b"one"), 0.0) == []
    assert collectives.command(0, command(body=b"zero"), 1.0) == [
        Post(Role.SERVER, 0, ServerCommand(1, "set", b"zero")),
        Post(Role.SERVER, 1, ServerCommand(1, "set", b"zero")),
    ]
    assert collectives.replied(1, CommandReply(1, "", b"B")) == []
    assert collectives.replied(0, CommandReply(1, "", b"A")) == [
        Post(Role.WORKER, 0, CommandDone(7, [b"A", b"B"])),
        Post(Role.WORKER, 1, CommandDone(7, [b"A", b"B"])),
    ]


def test_a_command_of_one_rank_does_not_wait_for_the_others() -> None:
    collectives = job(num_servers=1)
    posts = collectives.command(1, command("get", body=b"x", collective=False), 0.0)
    assert posts == [Post(Role.SERVER, 0, ServerCommand(1, "get", b"x"))]
    assert collectives.replied(0, CommandReply(1, "", b"y")) == [Post(Role.WORKER, 1, CommandDone(7, [b"y"]))]


def test_ranks_that_give_different_commands_all_fail_and_the_servers_are_not_asked() -> None:
    collectives = job()
    collectives.command(0, command(agreed="sgd"), 0.0)
    text = "command('set'): the ranks differ: 'sgd' on worker 0, 'adam' on worker 1; give all ranks the same"
    assert collectives.command(1, command(agreed="adam"), 0.0) == [
        Post(Role.WORKER, rank, CallFailed(7, ErrorCode.SETTINGS, text)) for rank in (0, 1)
    ]


def test_the_error_of_a_server_fails_the_call_of_every_rank_once_all_servers_have_replied() -> None:
    collectives = job()
    collectives.command(0, command(), 0.0)
    collectives.command(1, command(), 0.0)
    assert collectives.replied(0, CommandReply(1, "unknown optimizer", b"")) == []
    text = "command('set'): server 0: unknown optimizer"
    assert collectives.replied(1, CommandReply(1, "", b"")) == [
        Post(Role.WORKER, rank, CallFailed(7, ErrorCode.SETTINGS, text)) for rank in (0, 1)
    ]


def test_a_command_that_one_rank_never_calls_ends_at_the_deadline_and_names_it() -> None:
    collectives = job()
    collectives.command(0, command(), 0.0)
    assert collectives.step(30.0) == []
    text = "command('set'): waiting for worker 1 to call it, not done after 60 s"
    assert collectives.step(60.0) == [Post(Role.WORKER, 0, CallFailed(7, ErrorCode.DEADLINE, text))]


def test_a_command_fails_at_once_when_a_worker_that_it_needs_has_finished_or_a_server_is_lost() -> None:
    collectives = job()
    collectives.command(0, command(), 0.0)
    text = "command('set'): waiting for worker 1 to call it, but worker 1 has finished its part of the job"
    assert collectives.gone(Peer(Role.WORKER, 1, ""), False, "") == [
        Post(Role.WORKER, 0, CallFailed(7, ErrorCode.PEER_LOST, text))
    ]
    collectives = job()
    collectives.command(0, command(collective=False), 0.0)
    posts = collectives.gone(Peer(Role.SERVER, 1, ""), True, "killed")
    text = "command('set'): server 1 was lost: killed"
    assert posts == [Post(Role.WORKER, 0, CallFailed(7, ErrorCode.PEER_LOST, text))]
    assert collectives.replied(0, CommandReply(1, "", b"")) == []


def test_a_command_that_a_rank_waits_in_already_is_refused() -> None:
    collectives = job()
    collectives.command(0, command(), 0.0)
    text = "command('set'): worker 0 waits in this command already"
    assert collectives.command(0, command(), 0.0) == [Post(Role.WORKER, 0, CallFailed(7, ErrorCode.INTERNAL, text))]
