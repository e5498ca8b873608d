"""What ranks declare, and what of it is refused."""

from __future__ import annotations

import pytest

from ps.messages import Mode, Shard, Storage, Tensor, TensorSpec
from ps.placement import Placement
from scheduler.tensors import Tensors

A = TensorSpec("a", (4,), "float32")


def tensors(num_workers: int = 2) -> Tensors:
    return Tensors(num_workers, Placement(1))


def test_an_agreed_name_gets_a_number_and_shards() -> None:
    book = tensors()
    entry = book.declare(0, A)
    assert book.missing(entry) == [1]
    book.declare(1, A)
    assert book.missing(entry) == []
    assert book.disagreement(entry) == ""
    assert book.place(entry) == Tensor(0, A, [Shard(0, 0, 4)])


def test_a_disagreement_names_every_version_and_its_ranks() -> None:
    book = tensors(3)
    for rank, shape in ((0, (4,)), (1, (2,)), (2, (4,))):
        entry = book.declare(rank, TensorSpec("x", shape, "float32"))
    assert book.disagreement(entry) == (
        "'x' differs between the ranks: (4,) float32 on workers 0 and 2, (2,) float32 on worker 1;"
        " give all ranks the same shape and dtype"
    )


def test_a_disagreement_about_the_dtype() -> None:
    book = tensors()
    book.declare(0, A)
    entry = book.declare(1, TensorSpec("a", (4,), "float16"))
    assert "(4,) float32 on worker 0, (4,) float16 on worker 1" in book.disagreement(entry)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (TensorSpec("b", (1,), "complex64"), "'b': cannot sum dtype 'complex64': expected one of float32, float64,"),
        (TensorSpec("b", (-1,), "float32"), "'b': shape (-1,) is no shape"),
        (TensorSpec("b", (1 << 40, 1 << 40), "float32"), "is no shape of at most 9007199254740992 elements"),
        (TensorSpec("b", (1,) * 33, "float32"), "is no shape"),
        (TensorSpec("", (1,), "float32"), "has 0 characters: expected 1 to 1024"),
        (TensorSpec("n" * 1025, (1,), "float32"), "has 1025 characters"),
        (TensorSpec("s", (), "float32", stype=Storage.ROW_SPARSE), "'s': a scalar has no rows"),
    ],
)
def test_what_cannot_be_a_tensor_is_refused(spec: TensorSpec, problem: str) -> None:
    assert problem in tensors().problem(0, [A, spec])


@pytest.mark.parametrize(
    ("spec", "edge"),
    [
        (TensorSpec("few", (3, 99_999), "float32"), 150_000),  # 16 elements are a cache line
        (TensorSpec("few", (3, 99_999), "float32", stype=Storage.ROW_SPARSE), 2 * 99_999),
        (TensorSpec("many", (257, 5_001), "float32"), 128 * 5_001),
        (TensorSpec("flat", (1_000_000,), "float32"), 500_000),
    ],
)
def test_row_sparse_tensors_and_those_of_many_rows_are_placed_by_rows(spec: TensorSpec, edge: int) -> None:
    book = Tensors(1, Placement(2))
    assert [shard.stop for shard in book.place(book.declare(0, spec)).shards][:-1] == [edge]


def test_an_empty_tensor_and_a_scalar_are_tensors() -> None:
    empty, scalar = TensorSpec("e", (0, 3), "float32"), TensorSpec("s", (), "int64")
    assert tensors().problem(0, [empty, scalar]) == ""


def test_a_name_given_twice_in_one_call_is_refused() -> None:
    assert tensors().problem(0, [A, A]) == "'a' is given twice"


def test_a_second_declaration_by_the_same_rank_is_refused() -> None:
    book = tensors()
    entry = book.declare(0, A)
    assert book.problem(0, [A]) == "worker 0 is initialising 'a' already; a key is initialised once"
    entry.ready = True
    assert book.problem(0, [A]) == "worker 0 has initialised 'a' already; a key is initialised once"
    assert book.problem(1, [A]) == ""


def test_a_late_declaration_must_fit_the_tensor() -> None:
    book = tensors()
    entry = book.declare(0, A)
    book.declare(1, A)
    book.place(entry)
    book.withdraw(1, entry)
    assert book.problem(1, [TensorSpec("a", (2,), "float32")]) == (
        "'a': worker 1 has (2,) float32, the tensor is (4,) float32"
    )


def test_a_withdrawn_name_is_free_again() -> None:
    book = tensors()
    entry = book.declare(0, A)
    assert not book.withdraw(0, entry)
    assert book.declare(0, TensorSpec("a", (2,), "float32")) is not entry


def test_a_tensor_without_its_first_value_is_void_when_worker_0_gives_up_and_its_number_is_not_used_again() -> None:
    book = tensors()
    entry = book.declare(0, A)
    book.declare(1, A)
    book.place(entry)
    assert not book.withdraw(1, entry)
    assert book.withdraw(0, entry)
    again = book.declare(0, A)
    book.declare(1, A)
    assert book.place(again).id == 1


def test_a_disagreement_about_the_mode_or_the_storage() -> None:
    book = tensors(3)
    book.declare(0, A)
    book.declare(1, TensorSpec("a", (4,), "float32", mode=Mode.ASYNC))
    entry = book.declare(2, TensorSpec("a", (4,), "float32", stype=Storage.ROW_SPARSE, whole=True))
    assert book.disagreement(entry) == (
        "'a' differs between the ranks: (4,) float32 on worker 0, (4,) float32 async on worker 1,"
        " (4,) float32 row_sparse whole on worker 2; give all ranks the same kind of store, storage type,"
        " optimizer and compression"
    )


def test_a_whole_tensor_lives_on_one_server() -> None:
    book = Tensors(1, Placement(3))
    shards = []
    for number in range(3):
        entry = book.declare(0, TensorSpec(f"w{number}", (1 << 20,), "float32", whole=True))
        shards += book.place(entry).shards
    assert shards == [Shard(server, 0, 1 << 20) for server in range(3)]
