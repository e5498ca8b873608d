"""Registration, ranks and the end of nodes, on an injected clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ps.config import Role
from ps.messages import PROTOCOL, Register
from scheduler.membership import Membership, Node, State


def membership(num_workers: int = 2, num_servers: int = 1) -> Membership:
    return Membership("job", num_workers, num_servers, session=7, silence_seconds=20.0, now=0.0)


def request(token: int, role: Role = Role.WORKER, **changes: Any) -> Register:
    plain = Register(
        protocol=PROTOCOL,
        job="job",
        role=role,
        num_workers=2,
        num_servers=1,
        address="tcp://127.0.0.1:1234" if role is Role.SERVER else "",
        host="h",
        pid=100 + token,
        token=token,
    )
    return msgspec.structs.replace(plain, **changes)


def join(nodes: Membership, *requests: Register) -> list[Node]:
    joined = [nodes.register(b"s%d" % each.token, each) for each in requests]
    assert all(isinstance(node, Node) for node in joined), joined
    return joined  # type: ignore[return-value]


def started() -> tuple[Membership, Node, Node, Node]:
    nodes = membership()
    first, second, server = join(nodes, request(1), request(2), request(3, Role.SERVER))
    nodes.started = True
    return nodes, first, second, server


# ------------------------------------------------------------------------------------- registration


def test_ranks_are_given_in_the_order_of_registration() -> None:
    first, server, second = join(membership(), request(1), request(2, Role.SERVER), request(3))
    assert [first.peer.rank, server.peer.rank, second.peer.rank] == [0, 0, 1]


def test_a_repeat_gets_the_same_node_again() -> None:
    nodes = membership()
    (node,) = join(nodes, request(1))
    assert nodes.register(b"s1", request(1)) is node
    assert len(nodes.of(Role.WORKER)) == 1


def test_a_repeat_over_a_new_connection_moves_the_node() -> None:
    nodes = membership()
    (node,) = join(nodes, request(1))
    assert nodes.register(b"other", request(1)) is node
    assert nodes.node(b"other") is node
    assert nodes.node(b"s1") is None


def test_a_preferred_rank_is_given() -> None:
    first, second = join(membership(), request(1, preferred=1), request(2))
    assert [first.peer.rank, second.peer.rank] == [1, 0]


def test_the_job_is_complete_when_all_are_there() -> None:
    nodes = membership()
    join(nodes, request(1), request(2))
    assert not nodes.complete
    assert nodes.missing() == "1 of 1 server (rank 0)"
    join(nodes, request(3, Role.SERVER))
    assert nodes.complete
    assert nodes.missing() == ""


def test_what_is_missing_is_listed_by_role() -> None:
    nodes = membership()
    join(nodes, request(1, preferred=1))
    assert nodes.missing() == "1 of 2 workers (rank 0) and 1 of 1 server (rank 0)"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol": PROTOCOL + 1}, f"protocol version: the scheduler has {PROTOCOL}, WHO has {PROTOCOL + 1}"),
        ({"job": "old"}, "AUTOBYTE_JOB: the scheduler has 'job', WHO has 'old'"),
        ({"num_workers": 1}, "DMLC_NUM_WORKER: the scheduler has 2, WHO has 1"),
        ({"num_servers": 4}, "DMLC_NUM_SERVER: the scheduler has 1, WHO has 4"),
        ({"preferred": 2}, "DMLC_WORKER_ID: WHO asks for rank 2, but DMLC_NUM_WORKER is 2"),
        ({"preferred": 0}, "DMLC_WORKER_ID: WHO asks for rank 0, which worker 0 on h (pid 101) has"),
    ],
)
def test_a_refusal_names_the_variable_and_both_values(changes: dict[str, Any], reason: str) -> None:
    nodes = membership()
    join(nodes, request(1))
    assert nodes.register(b"x", request(9, **changes)) == reason.replace("WHO", "worker on h (pid 109)")
    assert nodes.node(b"x") is None


def test_one_worker_too_many_is_refused() -> None:
    nodes = membership()
    join(nodes, request(1), request(2))
    assert nodes.register(b"x", request(9)) == (
        "DMLC_NUM_WORKER: the scheduler has 2, and all of them are there; worker on h (pid 109) is one too many"
    )


def test_a_second_scheduler_is_refused() -> None:
    assert "cannot join a job" in str(membership().register(b"x", request(9, Role.SCHEDULER)))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:4000", "tcp://10.0.0.1:65535 ipc://@autobyte-0f-5.6"])
def test_a_server_says_where_it_listens(address: str) -> None:
    (server,) = join(membership(), request(1, Role.SERVER, address=address))
    assert server.peer.address == address


@pytest.mark.parametrize("address", ["", "ipc:///tmp/x", "inproc://x", "tcp://*:1", "tcp://127.0.0.1:1\n"])
def test_a_server_whose_address_is_none_is_refused(address: str) -> None:
    reason = membership().register(b"x", request(9, Role.SERVER, address=address))
    assert str(reason).startswith("server on h (pid 109) does not say where it listens, but '")


def test_what_strangers_say_is_shown_in_one_bounded_line() -> None:
    reason = str(membership().register(b"x", request(9, job="a\n\x1b[2J" + "b" * 10**6, host="h\ni")))
    assert reason.startswith("AUTOBYTE_JOB: the scheduler has 'job', worker on h i (pid 109) has 'a  [2Jbbb")
    assert len(reason) < 250


# ------------------------------------------------------------------------------------- the end of nodes


def test_a_silent_node_is_lost_once() -> None:
    nodes, first, second, server = started()
    for second_number in range(1, 21):
        nodes.heard(second)
        nodes.heard(server)
        assert nodes.expire(float(second_number)) == []
    assert nodes.expire(21.0) == [first]
    assert first.state is State.LOST
    assert first.error == "silent for 20 s (AUTOBYTE_SILENCE_SECONDS)"
    assert nodes.expire(22.0) == []
    assert first not in nodes.alive()


def test_time_in_which_the_scheduler_was_stopped_is_no_silence() -> None:
    nodes, *_ = started()
    assert nodes.expire(1.0) == []
    assert nodes.expire(1000.0) == []


def test_a_broken_connection_is_a_loss_after_two_seconds() -> None:
    nodes, first, *_ = started()
    nodes.probed(first, False, 10.0)
    nodes.probed(first, False, 11.0)
    assert nodes.expire(12.0) == []
    assert nodes.expire(12.1) == [first]
    assert "its process has ended" in first.error


def test_a_connection_that_comes_back_is_no_loss() -> None:
    nodes, first, *_ = started()
    nodes.probed(first, False, 10.0)
    nodes.probed(first, True, 11.0)
    assert nodes.expire(13.0) == []


def test_a_node_that_is_lost_before_the_start_frees_its_rank() -> None:
    nodes = membership()
    (first,) = join(nodes, request(1))
    nodes.probed(first, False, 0.0)
    assert nodes.expire(3.0) == [first]
    assert nodes.node(b"s1") is None
    (again,) = join(nodes, request(2, preferred=0))
    assert again.peer.rank == 0


def test_a_node_that_left_is_neither_alive_nor_lost() -> None:
    nodes, first, *_ = started()
    nodes.leave(first, "")
    nodes.probed(first, False, 1.0)
    assert nodes.expire(60.0) == []
    assert first.state is State.LEFT


def test_the_workers_are_gone_when_the_last_has_left_or_is_lost() -> None:
    nodes, first, second, _ = started()
    nodes.leave(first, "")
    assert not nodes.workers_gone
    nodes.lose(second, "why")
    assert nodes.workers_gone


def test_a_job_without_losses_has_not_failed() -> None:
    nodes, first, second, server = started()
    for node in (first, second, server):
        nodes.leave(node, "")
    assert nodes.failure() == ""


def test_a_failed_job_names_what_happened_first() -> None:
    nodes, first, second, _ = started()
    nodes.lose(second, "silent")
    nodes.leave(first, "PeerLost: worker 1 was lost")
    assert nodes.failure() == "worker 1 on h (pid 102) was lost: silent (and 1 more)"
