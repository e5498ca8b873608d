"""Barriers and init: who is answered what and when, on an injected clock."""

from __future__ import annotations

from typing import Optional

import pytest

from ps.config import Role
from ps.errors import ErrorCode
from ps.messages import (
    AddTensors,
    BarrierPassed,
    CallFailed,
    Declare,
    Declared,
    EnterBarrier,
    Initialized,
    Peer,
    Shard,
    Tensor,
    TensorsAdded,
    TensorSpec,
    ValuesReady,
)
from ps.placement import Placement
from scheduler.collectives import Collectives, Post
from scheduler.tensors import Tensors


class Job:
    """Collectives with short calls; servers confirm at once, and worker 0 sets its values at once."""

    def __init__(self, num_workers: int = 2, deadline_seconds: float = 60.0, at_once: bool = True) -> None:
        self.collectives = Collectives(num_workers, 1, Tensors(num_workers, Placement(1)), deadline_seconds)
        self.now = 0.0
        self.at_once = at_once
        self.numbers: dict[str, int] = {}

    def barrier(self, rank: int, name: str) -> list[Post]:
        return self._play(self.collectives.enter(rank, EnterBarrier(self._number(f"{rank}:{name}"), name), self.now))

    def init(
        self, rank: int, *names: str, shape: tuple[int, ...] = (4,), dtype: str = "float32", waits: bool = True
    ) -> list[Post]:
        specs = [TensorSpec(name, shape, dtype) for name in names]
        call = self._number(f"{rank}:{','.join(names)}")
        return self._play(self.collectives.declare(rank, Declare(call, specs, waits), self.now))

    def pass_time(self, seconds: float) -> list[Post]:
        """Let time pass in turns of 0.1 s."""
        posts: list[Post] = []
        until = self.now + seconds
        while self.now < until:
            self.now = round(self.now + 0.1, 6)
            posts += self._play(self.collectives.step(self.now))
        return posts

    def leave(self, rank: int) -> list[Post]:
        return self.collectives.gone(Peer(Role.WORKER, rank, ""), False, "")

    def _number(self, what: str) -> int:
        self.numbers[what] = len(self.numbers) + 1
        return self.numbers[what]

    def _play(self, posts: list[Post]) -> list[Post]:
        seen = []
        while posts:
            post = posts.pop(0)
            seen.append(post)
            if self.at_once and isinstance(post.message, AddTensors):
                posts += self.collectives.added(0, TensorsAdded(post.message.call))
            if self.at_once and isinstance(post.message, Declared) and post.rank == 0:
                posts += self.collectives.initialized(0, Initialized(post.message.call))
        return seen


def ready(posts: list[Post]) -> list[int]:
    """The ranks whose init is complete."""
    return sorted(post.rank for post in posts if isinstance(post.message, ValuesReady))


def failure(posts: list[Post], rank: int) -> Optional[tuple[ErrorCode, str]]:
    """Why the call of ``rank`` failed."""
    found = [p.message for p in posts if isinstance(p.message, CallFailed) and p.rank == rank and p.role is Role.WORKER]
    assert len(found) <= 1
    return (found[0].code, found[0].text) if found else None


def text(posts: list[Post], rank: int) -> str:
    found = failure(posts, rank)
    assert found is not None
    return found[1]


# -------------------------------------------------------------------------------------------- barriers


def test_a_barrier_opens_when_the_last_rank_enters() -> None:
    job = Job()
    assert job.barrier(0, "x") == []
    assert job.barrier(1, "x") == [
        Post(Role.WORKER, 0, BarrierPassed(1)),
        Post(Role.WORKER, 1, BarrierPassed(2)),
    ]


def test_a_barrier_can_be_used_again() -> None:
    job = Job()
    for _ in range(2):
        assert job.barrier(0, "x") == []
        assert len(job.barrier(1, "x")) == 2


def test_a_rank_cannot_enter_a_barrier_twice_at_a_time() -> None:
    job = Job()
    job.barrier(0, "x")
    assert failure(job.barrier(0, "x"), 0) == (
        ErrorCode.INTERNAL,
        "barrier('x'): worker 0 waits in this barrier already",
    )


def test_a_barrier_that_one_rank_does_not_reach_fails_at_the_deadline_and_names_it() -> None:
    job = Job(deadline_seconds=5.0)
    job.barrier(0, "x")
    assert job.pass_time(4.9) == []
    assert failure(job.pass_time(0.1), 0) == (
        ErrorCode.DEADLINE,
        "barrier('x'): waiting for worker 1 to enter, not done after 5 s",
    )


def test_a_slow_barrier_is_noticed_once_after_ten_seconds() -> None:
    job = Job()
    job.barrier(0, "x")
    assert job.collectives.notices(9.9) == []
    assert job.collectives.notices(10.0) == ["worker 0 in barrier('x'), waiting for worker 1 to enter, for 10 s now"]
    assert job.collectives.notices(11.0) == []


# ------------------------------------------------------------------------------------------------ init


def test_init_step_by_step() -> None:
    job = Job(at_once=False)
    spec = TensorSpec("a", (4,), "float32")
    tensor = Tensor(0, spec, [Shard(0, 0, 4)])
    collectives = job.collectives
    assert job.init(0, "a") == []
    assert job.init(1, "a") == [Post(Role.SERVER, 0, AddTensors(1, [tensor], [b""]))]
    assert collectives.added(0, TensorsAdded(1)) == [
        Post(Role.WORKER, 0, Declared(1, [tensor])),
        Post(Role.WORKER, 1, Declared(2, [tensor])),
    ]
    assert collectives.initialized(0, Initialized(1)) == [
        Post(Role.WORKER, 0, ValuesReady(1)),
        Post(Role.WORKER, 1, ValuesReady(2)),
    ]


def test_ranks_may_group_names_differently() -> None:
    job = Job()
    assert ready(job.init(0, "a", "b")) == []
    assert ready(job.init(1, "b")) == []
    assert ready(job.init(1, "a")) == [0, 1, 1]


def test_ranks_may_name_keys_of_one_call_in_different_order() -> None:
    job = Job()
    job.init(0, "a", "b")
    assert ready(job.init(1, "b", "a")) == [0, 1]


def test_first_values_that_come_with_the_declaration_go_to_the_servers_with_the_tensor() -> None:
    collectives = Collectives(2, 1, Tensors(2, Placement(1)), deadline_seconds=10.0)
    spec = TensorSpec("a", (2,), "float32")
    assert collectives.declare(1, Declare(1, [spec], True, [b"ignored"]), 0.0) == []
    (post,) = collectives.declare(0, Declare(1, [spec], True, [b"12345678"]), 0.0)
    assert isinstance(post.message, AddTensors)
    assert post.message.first_values == [b"12345678"]
    assert ready(collectives.added(0, TensorsAdded(1))) == [0, 1]


def test_a_first_value_of_another_size_is_refused() -> None:
    collectives = Collectives(2, 1, Tensors(2, Placement(1)), deadline_seconds=10.0)
    posts = collectives.declare(0, Declare(1, [TensorSpec("a", (2,), "float32")], True, [b"1234567"]), 0.0)
    assert text(posts, 0) == "init: 'a': a first value of 7 bytes for (2,) float32"


def test_an_init_of_nothing_is_complete() -> None:
    assert ready(Job().init(0)) == [0]


def test_every_server_has_to_confirm() -> None:
    collectives = Collectives(1, 2, Tensors(1, Placement(2)), 60.0)
    collectives.declare(0, Declare(1, [TensorSpec("a", (4,), "float32")]), 0.0)
    assert collectives.added(0, TensorsAdded(1)) == []
    assert collectives.added(0, TensorsAdded(1)) == []
    assert len(collectives.added(1, TensorsAdded(1))) == 1


def test_a_disagreement_fails_on_every_rank_and_other_keys_work() -> None:
    job = Job()
    job.init(0, "x", shape=(4,))
    posts = job.init(1, "x", shape=(2,))
    expected = (
        "init('x'): 'x' differs between the ranks: (4,) float32 on worker 0, (2,) float32 on worker 1;"
        " give all ranks the same shape and dtype"
    )
    assert failure(posts, 0) == failure(posts, 1) == (ErrorCode.TENSOR, expected)
    job.init(0, "y")
    assert ready(job.init(1, "y")) == [0, 1]
    job.init(0, "x")
    assert ready(job.init(1, "x")) == [0, 1]


def test_keys_of_a_failed_call_can_be_initialised_again() -> None:
    job = Job()
    job.init(0, "x", "y", shape=(4,))
    assert failure(job.init(1, "x", shape=(2,)), 0) is not None
    job.init(1, "y")
    assert ready(job.init(0, "y")) == [0, 1]


def test_a_second_init_names_the_key() -> None:
    job = Job()
    job.init(0, "a")
    job.init(1, "a")
    assert failure(job.init(1, "a"), 1) == (
        ErrorCode.TENSOR,
        "init: worker 1 has initialised 'a' already; a key is initialised once",
    )


def test_when_worker_0_fails_those_who_wait_for_its_values_fail_too() -> None:
    job = Job()
    job.init(0, "x", "y", shape=(4,))
    assert failure(job.init(1, "y", shape=(4,)), 1) is None
    posts = job.collectives.declare(1, Declare(99, [TensorSpec("x", (2,), "float32")]), 0.0)
    failed = {post.message.call: post.message.text for post in posts if isinstance(post.message, CallFailed)}
    assert sorted(failed) == [1, 2, 99]
    assert failed[2].startswith("init('y'): worker 0 gave up init('x', 'y'): 'x' differs between the ranks")


# --------------------------------------------------------------------------------------- stuck and gone


def test_keys_in_different_orders_fail_after_a_grace() -> None:
    job = Job()
    job.init(0, "a")
    job.init(1, "b")
    assert job.pass_time(2.0) == []
    posts = job.pass_time(0.1)
    assert failure(posts, 0) == (
        ErrorCode.DEADLINE,
        "init('a'): waiting for worker 1 to declare 'a', but no worker can go on:"
        " worker 0 in init('a'), waiting for worker 1 to declare 'a';"
        " worker 1 in init('b'), waiting for worker 0 to declare 'b';"
        " enter barriers and initialise keys in the same order on all ranks, or give all keys to one call",
    )
    assert text(posts, 1).startswith("init('b'): waiting for worker 0 to declare 'b', but no worker can go on")


def test_a_key_that_one_rank_lacks_is_named_on_both() -> None:
    job = Job()
    job.init(0, "a", "b")
    job.init(1, "a")
    posts = job.pass_time(2.1)
    assert "waiting for worker 1 to declare 'b'" in text(posts, 0)
    assert "waiting for worker 1 to declare 'b'" in text(posts, 1)


def test_the_grace_is_shorter_under_a_short_deadline() -> None:
    job = Job(deadline_seconds=1.0)
    job.barrier(0, "x")
    job.barrier(1, "y")
    assert failure(job.pass_time(0.6), 1) is not None


def test_ranks_are_not_stuck_while_one_of_them_works() -> None:
    job = Job(num_workers=3)
    job.init(0, "a")
    job.barrier(1, "x")
    assert job.pass_time(30.0) == []


def test_ranks_that_do_not_wait_for_their_init_may_declare_in_any_order() -> None:
    job = Job()
    job.init(0, "a", waits=False)
    job.init(1, "b", waits=False)
    assert job.pass_time(3.0) == []
    assert ready(job.init(0, "b", waits=False)) == [0, 1]
    assert ready(job.init(1, "a", waits=False)) == [0, 1]


def test_ranks_are_not_stuck_while_worker_0_sets_values() -> None:
    job = Job(at_once=False)
    job.init(0, "a")
    job.init(1, "a")
    job.collectives.added(0, TensorsAdded(1))
    assert job.pass_time(30.0) == []


def test_the_deadline_tells_where_the_missing_rank_is() -> None:
    job = Job(num_workers=3, deadline_seconds=5.0)
    job.init(0, "a")
    job.barrier(1, "x")
    assert text(job.pass_time(5.0), 0) == (
        "init('a'): waiting for workers 1 and 2 to declare 'a', not done after 5 s;"
        " meanwhile worker 1 in barrier('x'), waiting for workers 0 and 2 to enter"
    )


@pytest.mark.parametrize("before", [True, False])
def test_a_barrier_that_needs_a_finished_worker_fails_at_once(before: bool) -> None:
    job = Job()
    posts = job.leave(1) + job.barrier(0, "x") if before else job.barrier(0, "x") + job.leave(1)
    assert failure(posts, 0) == (
        ErrorCode.PEER_LOST,
        "barrier('x'): waiting for worker 1 to enter, but worker 1 has finished its part of the job",
    )


def test_an_init_that_needs_a_finished_worker_fails_at_once() -> None:
    job = Job()
    job.init(0, "a")
    assert text(job.leave(1), 0) == (
        "init('a'): waiting for worker 1 to declare 'a', but worker 1 has finished its part of the job"
    )


def test_a_loss_fails_what_is_open_and_what_comes_later() -> None:
    job = Job()
    job.barrier(0, "x")
    posts = job.collectives.gone(Peer(Role.SERVER, 0, ""), True, "silent for 20 s")
    assert failure(posts, 0) == (ErrorCode.PEER_LOST, "barrier('x'): server 0 was lost: silent for 20 s")
    assert text(job.init(1, "a"), 1) == "init('a'): server 0 was lost: silent for 20 s"
