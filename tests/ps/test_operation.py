"""How an operation is called in messages to the user."""

from __future__ import annotations

from ps.messages import Shard, SpanKind, Tensor, TensorSpec
from ps.operation import Operation


def test_a_round_is_named_once_there_is_one() -> None:
    tensor = Tensor(0, TensorSpec("a", (4,), "float32"), [Shard(0, 0, 4)])
    operation = Operation(tensor, SpanKind.PUSH_PULL, None, None, 0, lambda error: None)
    assert str(operation) == "push_pull('a')"
    operation.version = 3
    assert str(operation) == "push_pull('a'), round 3"
