"""The shards of a server: whose operations a completion answers, and whose fail when something cannot end."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from numpy.typing import NDArray

from ps.book import LedgerError
from ps.errors import ErrorCode
from ps.ledger import Ledger, OrderedLedger
from ps.messages import Mode, Shard, Span, SpanKind, Tensor, TensorSpec
from ps.shards import Answer, ShardBook
from ps.tally import Tally
from tests.ps.descent import Descent

Array = NDArray[Any]

SYNC = Tensor(0, TensorSpec("s", (4,), "float32"), [Shard(0, 0, 4)])
ASYNC = Tensor(1, TensorSpec("a", (4,), "float32", mode=Mode.ASYNC), [Shard(0, 0, 4)])


class Server:
    """A book of shards with two workers, whose first values are zero."""

    def __init__(self, *tensors: Tensor, **settings: Any) -> None:
        self.book = ShardBook(0, 2, 10.0, **settings)
        self.book.add(list(tensors))
        for tensor in tensors:
            self.send(0, tensor, SpanKind.INIT, 0, 0, np.zeros(4, "float32"))

    def send(
        self,
        rank: int,
        tensor: Tensor,
        kind: SpanKind,
        version: int,
        start: int,
        values: Optional[Array],
        now: float = 0.0,
    ) -> list[Answer]:
        count = 4 if values is None else values.size
        payload = None if values is None else memoryview(values.tobytes())
        answers, _ = self.book.take(rank, Span(kind, tensor.id, version, start, count, 0), payload, 0, now)
        return answers

    def push_pull(self, rank: int, tensor: Tensor, version: int, now: float = 0.0) -> list[Answer]:
        return self.send(rank, tensor, SpanKind.PUSH_PULL, version, 0, np.ones(4, "float32"), now)


def results(answers: list[Answer]) -> list[tuple[int, list[float]]]:
    """Who gets which values."""
    return [(answer.rank, answer.values.tolist()) for answer in answers if answer.values is not None]


def failures(answers: list[Answer]) -> list[tuple[int, ErrorCode, str]]:
    """Who is told of which error."""
    texts = [(answer.rank, bytes(answer.values)) for answer in answers if answer.kind is SpanKind.ERROR]  # type: ignore
    return [(rank, ErrorCode(text[0]), text[1:].decode()) for rank, text in texts]


@pytest.mark.parametrize(
    ("tensor", "deterministic", "kind"), [(SYNC, False, Ledger), (SYNC, True, OrderedLedger), (ASYNC, True, Tally)]
)
def test_the_tensor_and_the_settings_decide_about_the_book(tensor: Tensor, deterministic: bool, kind: type) -> None:
    server = Server(tensor, deterministic=deterministic)
    assert type(server.book._shards[tensor.id].book) is kind


def test_a_round_answers_all_and_an_asynchronous_push_its_own_worker() -> None:
    server = Server(SYNC, ASYNC)
    assert server.push_pull(0, SYNC, 1) == []
    assert results(server.push_pull(1, SYNC, 1)) == [(0, [2] * 4), (1, [2] * 4)]
    assert results(server.push_pull(0, ASYNC, 1)) == [(0, [1] * 4)]
    assert results(server.push_pull(0, ASYNC, 2)) == [(0, [2] * 4)]
    assert results(server.send(1, ASYNC, SpanKind.PULL, 0, 0, None)) == [(1, [2] * 4)]


def test_a_lost_worker_fails_rounds_and_frees_those_who_wait_for_it_asynchronously() -> None:
    server = Server(SYNC, ASYNC, staleness=0)
    server.push_pull(0, SYNC, 1)
    server.push_pull(0, ASYNC, 1)
    answers = server.book.worker_gone(1, "was lost")
    assert failures(answers) == [(0, ErrorCode.PEER_LOST, "'s', round 1: worker 1 was lost")]
    assert results(server.push_pull(0, ASYNC, 2)) == [(0, [2] * 4)]
    late = Tensor(2, TensorSpec("late", (4,), "float32", mode=Mode.ASYNC), [Shard(0, 0, 4)])
    server.book.add([late])
    server.send(0, late, SpanKind.INIT, 0, 0, np.zeros(4, "float32"))
    assert results(server.push_pull(0, late, 1)) == [(0, [1] * 4)]


def test_at_the_deadline_only_those_who_wait_are_told() -> None:
    server = Server(SYNC, ASYNC, staleness=0)
    for rank in (0, 1):
        server.push_pull(rank, SYNC, 1)
    server.push_pull(0, SYNC, 2, now=5.0)
    server.push_pull(0, ASYNC, 1, now=5.0)
    assert server.book.expired_pushes(15.0) == []
    assert failures(server.book.expired_pushes(15.1)) == [
        (0, ErrorCode.DEADLINE, "'s', round 2: server 0 waits for worker 1 at the deadline of 10 s"),
        (
            0,
            ErrorCode.DEADLINE,
            "'a', push 1 of worker 0 (staleness 0): server 0 waits for worker 1 at the deadline of 10 s",
        ),
    ]
    assert [code for _, code, _ in failures(server.push_pull(1, SYNC, 2))] == [ErrorCode.DEADLINE]
    assert results(server.push_pull(1, ASYNC, 1)) == [(1, [2] * 4)]


def test_updaters_are_made_for_present_and_future_tensors() -> None:
    server = Server(SYNC)
    made = []

    def make(tensor: Tensor, place: Shard) -> Descent:
        made.append((tensor.spec.name, place))
        return Descent()

    server.book.set_updater(make)
    server.book.add([ASYNC])
    server.send(0, ASYNC, SpanKind.INIT, 0, 0, np.zeros(4, "float32"))
    assert made == [("s", Shard(0, 0, 4)), ("a", Shard(0, 0, 4))]
    server.push_pull(0, SYNC, 1)
    assert results(server.push_pull(1, SYNC, 1)) == [(0, [-2] * 4), (1, [-2] * 4)]
    assert results(server.push_pull(1, ASYNC, 1)) == [(1, [-1] * 4)]


def test_a_maker_that_refuses_changes_nothing() -> None:
    server = Server(SYNC, ASYNC)

    def make(tensor: Tensor, place: Shard) -> Descent:
        if tensor is ASYNC:
            raise ValueError("not this one")
        return Descent()

    with pytest.raises(ValueError, match="not this one"):
        server.book.set_updater(make)
    server.push_pull(0, SYNC, 1)
    assert results(server.push_pull(1, SYNC, 1)) == [(0, [2] * 4), (1, [2] * 4)]


def test_an_update_that_raises_fails_its_key_on_all_ranks() -> None:
    server = Server(SYNC, ASYNC)
    updaters: dict[str, Descent] = {}
    server.book.set_updater(lambda tensor, place: updaters.setdefault(tensor.spec.name, Descent()))
    updaters["s"].fails = True
    server.push_pull(0, SYNC, 1)
    text = "'s', round 1: the update failed at server 0: ZeroDivisionError('no step')"
    assert failures(server.push_pull(1, SYNC, 1)) == [(0, ErrorCode.INTERNAL, text), (1, ErrorCode.INTERNAL, text)]
    assert failures(server.push_pull(0, SYNC, 2)) == [(0, ErrorCode.INTERNAL, text)]
    assert results(server.push_pull(0, ASYNC, 1)) == [(0, [-1] * 4)]


def test_a_key_with_infinite_sums_is_reported_once() -> None:
    server = Server(SYNC, ASYNC)
    assert server.book.nonfinite_keys() == []
    server.send(0, ASYNC, SpanKind.PUSH, 1, 0, np.array([np.nan, 1, np.inf, 1], "float32"))
    assert server.book.nonfinite == 2
    assert server.book.nonfinite_keys() == ["'a' after 1 pushes: 2 elements so far are infinite or no number"]
    assert server.book.nonfinite_keys() == []


def test_what_is_announced_has_to_be_there() -> None:
    server = Server(SYNC)
    with pytest.raises(LedgerError, match="'s': worker 1 announced"):
        server.book.take(1, Span(SpanKind.PUSH, 0, 1, 0, 4, 0), memoryview(b"\0" * 15), 0, 0.0)
    with pytest.raises(LedgerError, match="server 0 has no tensor 7"):
        server.book.take(1, Span(SpanKind.PUSH, 7, 1, 0, 4, 0), memoryview(b"\0" * 16), 0, 0.0)


def test_a_first_value_that_comes_with_the_tensor_needs_no_message_of_worker_0() -> None:
    server = Server()
    tensor = Tensor(7, TensorSpec("late", (8,), "float32"), [Shard(1, 0, 4), Shard(0, 4, 8)])
    server.book.add([tensor], [np.arange(8, dtype="float32").tobytes()])
    assert results(server.send(0, tensor, SpanKind.PULL, 0, 4, None)) == [(0, [4, 5, 6, 7])]
