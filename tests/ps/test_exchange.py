"""A worker's operations without a network: what ends them, and what may be written when."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from ps.config import Role, Settings
from ps.errors import AutoByteError, DeadlineExceeded
from ps.exchange import Exchange
from ps.messages import Shard, Span, SpanKind, Tensor, TensorSpec
from ps.operation import Operation
from ps.traffic import Traffic

SETTINGS = Settings(role=Role.WORKER, root_host="127.0.0.1", root_port=1, num_workers=2, num_servers=1)


class Worker:
    """An exchange with one tensor of three elements, and what its operations ended with, in order."""

    def __init__(self) -> None:
        self.exchange = Exchange(Traffic(SETTINGS, range(1), bounded_skew=True, now=0.0), lambda server, array: None)
        self.tensor = Tensor(7, TensorSpec("a", (3,), "float32"), [Shard(0, 0, 3)])
        self.exchange.add(self.tensor)
        self.ended: list[Optional[AutoByteError]] = []

    def push_pull(self, done: Any = None) -> np.ndarray[Any, Any]:
        result = np.zeros(3, "float32")
        send = np.ones(3, "float32")
        operation = Operation(self.tensor, SpanKind.PUSH_PULL, send, result, 0, done or self.ended.append)
        self.exchange.submit(operation, 0.0)
        return result

    def answer(self, version: int, start: int, *values: float) -> None:
        payload = memoryview(np.array(values, "float32").tobytes())
        self.exchange.receive(Span(SpanKind.RESULT, 7, version, start, len(values), 0), payload, 0, 1.0)

    def fail(self) -> None:
        self.exchange.fail_everything(lambda what: AutoByteError(f"{what}: the end"), 1.0)


def test_a_late_answer_writes_nothing() -> None:
    worker = Worker()
    result = worker.push_pull()
    worker.answer(1, 0, 2)
    worker.fail()
    worker.answer(1, 1, 2, 2)
    assert result.tolist() == [2, 0, 0]
    assert [str(error) for error in worker.ended] == ["push_pull('a'), round 1: the end"]


def test_an_operation_is_late_when_servers_have_answered_too_little_for_too_long() -> None:
    worker = Worker()
    worker.push_pull()
    worker.answer(1, 0, 2)
    assert worker.exchange.late(3.0, now=3.0) is None
    error = worker.exchange.late(3.0, now=3.5)
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == (
        "servers [0] have not answered 2 elements of push_pull('a'), round 1 after 3.5 s;"
        " is one of them stopped or cut off?"
    )
    assert worker.ended == [], "it ends when its memory is not read any more"


def test_a_done_that_raises_keeps_nobody_from_being_told() -> None:
    def done(error: Optional[AutoByteError]) -> None:
        raise KeyError("a bug")

    worker = Worker()
    worker.push_pull(done)
    worker.push_pull()
    worker.push_pull(done)
    worker.push_pull()
    worker.answer(1, 0, 2, 2, 2)
    assert str(worker.exchange.broken) == "done of push_pull('a'), round 1 raised KeyError('a bug')"
    worker.fail()
    assert [str(error) for error in worker.ended] == [
        "push_pull('a'), round 2: the end",
        "push_pull('a'): the store is unusable: the end",
    ]
