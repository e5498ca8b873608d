"""Rows at a server: what is asked for by id, what has changed, and what cannot be a row."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from numpy.typing import NDArray

from ps.book import LedgerError
from ps.config import CommConfig
from ps.messages import Shard, Span, SpanKind, Storage, Tensor, TensorSpec
from ps.rows import records
from ps.shards import Answer, ShardBook
from tests.ps.descent import Descent

Array = NDArray[Any]

#: Rows 2 to 5 of six rows of 2 elements.
TENSOR = Tensor(7, TensorSpec("e", (6, 2), "float32", stype=Storage.ROW_SPARSE), [Shard(1, 0, 4), Shard(0, 4, 12)])


class Server:
    """Server 0 of a job of one worker, with the value 0, 1, ... 7 of its shard."""

    def __init__(self, tensor: Tensor = TENSOR) -> None:
        self.book = ShardBook(0, 1, 10.0)
        self.book.add([tensor])
        self.tensor = tensor
        place = next(shard for shard in tensor.shards if shard.server == 0)
        self.start, self.size = place.start, place.stop - place.start
        self.take(SpanKind.INIT, 0, self.start, self.size, np.arange(self.size, dtype="float32"))

    def take(
        self, kind: SpanKind, version: int, start: int, count: int, values: Optional[Array] = None
    ) -> list[Answer]:
        payload = None if values is None else memoryview(values.tobytes())
        encoded_bytes = payload.nbytes if payload is not None and kind is SpanKind.PUSH_ROWS else 0
        span = Span(kind, self.tensor.id, version, start, count, 0, encoded_bytes=encoded_bytes)
        return self.book.take(0, span, payload, 0, 0.0)[0]

    def push_rows(self, version: int, *ids: int) -> list[Answer]:
        rows = np.ones((len(ids), 2), "float32")
        return self.take(SpanKind.PUSH_ROWS, version, self.start, self.size, records(np.array(ids, np.int64), rows))


def test_rows_are_answered_as_elements_of_the_list_that_the_worker_asked_for() -> None:
    (answer,) = Server().take(SpanKind.PULL_ROWS, 0, 10, 2, np.array([2, 5]))
    assert (answer.kind, answer.start, answer.count) == (SpanKind.RESULT, 20, 4)
    assert answer.values is not None and answer.values.tolist() == [0, 1, 6, 7]


def test_a_push_of_rows_is_answered_when_the_round_is_complete() -> None:
    server = Server()
    (answer,) = server.push_rows(1, 3)
    assert (answer.kind, answer.start, answer.count) == (SpanKind.DONE, 4, 8)
    (answer,) = server.push_rows(2)
    assert (answer.kind, answer.version) == (SpanKind.DONE, 2)


def test_rows_and_all_elements_in_one_round_fail_it_for_all_workers_at_once() -> None:
    book = ShardBook(0, 2, 10.0)
    book.add([TENSOR])
    for kind, count in ((SpanKind.INIT, 8), (SpanKind.PUSH, 8)):
        book.take(1, Span(kind, 7, int(kind is SpanKind.PUSH), 4, count, 0), memoryview(bytes(32)), 0, 0.0)
    rows = memoryview(records(np.array([3]), np.ones((1, 2), "float32")).tobytes())
    answers, _ = book.take(0, Span(SpanKind.PUSH_ROWS, 7, 1, 4, 8, 0, encoded_bytes=rows.nbytes), rows, 0, 0.0)
    assert [(answer.rank, answer.kind) for answer in answers] == [(0, SpanKind.ERROR), (1, SpanKind.ERROR)]
    (answer,) = book.take(1, Span(SpanKind.PUSH, 7, 2, 4, 8, 0), memoryview(bytes(32)), 0, 0.0)[0]
    assert answer.kind is SpanKind.ERROR


def test_who_has_an_earlier_version_gets_the_rows_that_have_changed() -> None:
    server = Server()
    server.book.set_updater(lambda tensor, shard: Descent())
    server.push_rows(1, 3)
    (answer,) = server.take(SpanKind.PULL_CHANGES, 1, 0, 0)
    assert (answer.kind, answer.start, answer.count) == (SpanKind.CHANGES, 4, 8)
    assert answer.values is not None
    assert answer.values["id"].tolist() == [3] and answer.values["row"].tolist() == [[1, 2]]
    transfer = answer.transfer(CommConfig(), None)
    assert transfer.advance() and transfer.next_range == (4, 8) and transfer.next_bytes == 16
    (answer,) = server.take(SpanKind.PULL_CHANGES, 1, 1, 0)
    assert (answer.kind, answer.values is not None and answer.values.size) == (SpanKind.CHANGES, 0)


def test_where_most_rows_have_changed_all_elements_are_shorter() -> None:
    server = Server()
    server.book.set_updater(lambda tensor, shard: Descent())
    server.push_rows(1, 2, 3, 5)
    (answer,) = server.take(SpanKind.PULL_CHANGES, 1, 0, 0)
    assert (answer.kind, answer.start, answer.count) == (SpanKind.RESULT, 4, 8)


def test_after_a_dense_round_everything_is_answered() -> None:
    server = Server()
    server.take(SpanKind.PUSH, 1, 4, 8, np.ones(8, "float32"))
    (answer,) = server.take(SpanKind.PULL_CHANGES, 1, 0, 0)
    assert (answer.kind, answer.count) == (SpanKind.RESULT, 8)


@pytest.mark.parametrize("wrong", [1, 6, -1, 2**62])
def test_rows_of_another_server_are_refused(wrong: int) -> None:
    server = Server()
    with pytest.raises(LedgerError, match="'e': worker 0 asked for rows that server 0 does not have"):
        server.take(SpanKind.PULL_ROWS, 0, 0, 1, np.array([wrong]))
    with pytest.raises(LedgerError, match="are not within elements 4 to 12"):
        server.push_rows(1, wrong)


def test_bytes_that_are_no_records_are_refused() -> None:
    with pytest.raises(LedgerError, match="'e': 8 bytes are no list of records of 16 bytes"):
        Server().take(SpanKind.PUSH_ROWS, 1, 4, 8, np.zeros(1))


@pytest.mark.parametrize(("shape", "stop"), [((), 1), ((3, 2), 3)])
def test_a_tensor_without_whole_rows_has_none_to_push_or_pull(shape: tuple[int, ...], stop: int) -> None:
    server = Server(Tensor(8, TensorSpec("t", shape, "float32"), [Shard(0, 0, stop)]))
    with pytest.raises(LedgerError, match="'t' has no rows, or they are spread over servers"):
        server.push_rows(1)
    with pytest.raises(LedgerError, match="'t' has no rows, or they are spread over servers"):
        server.take(SpanKind.PULL_ROWS, 0, 0, 1, np.array([0]))
    (answer,) = server.take(SpanKind.PULL_CHANGES, 0, 0, 0)
    assert (answer.kind, answer.count) == (SpanKind.RESULT, stop)
