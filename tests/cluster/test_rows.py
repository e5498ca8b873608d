"""Rows between real processes, through the NumPy API."""

from __future__ import annotations

from tests.cluster.harness import Cluster

PRELUDE = """
import numpy as np, ps
from ps.messages import Mode, Storage

def sent_and_received():
    worker.barrier("statistics")  # both sides have counted
    counters = worker.statistics()
    return counters["bytes_sent"], counters["bytes_received"]

with ps.Worker() as worker:
    rank = worker.rank
"""


def run(source: str, workers: int = 2, servers: int = 2, **env: str) -> list[str]:
    indented = "".join(f"    {line}\n" for line in source.strip().splitlines())
    with Cluster(workers, servers, env=env) as cluster:
        outputs = [worker.stdout for worker in cluster.run(PRELUDE + indented, timeout=50)]
        assert cluster.finish() == [0] * (1 + servers)
        return outputs


def test_rows_by_id_in_any_order_and_any_number_of_times() -> None:
    source = """
worker.init("a", np.arange(12, dtype="float32").reshape(4, 3), stype=Storage.ROW_SPARSE)
print(worker.pull_rows("a", [3, 1, 3]).wait().tolist())
print(worker.pull_rows("a", []).wait().shape)
worker.push_rows("a", [3, rank, 3], np.array([[1, 1, 1], [5, 5, 5], [2, 2, 2]], "float32")).wait()
print(worker.pull("a").wait().tolist())
rows = np.ones((1, 3), "float32") if rank == 0 else np.empty((0, 3), "float32")
worker.push_rows("a", [2] if rank == 0 else [], rows)
print(worker.pull("a").wait().tolist())
"""
    for output in run(source):
        assert output.splitlines() == [
            "[[9.0, 10.0, 11.0], [3.0, 4.0, 5.0], [9.0, 10.0, 11.0]]",
            "(0, 3)",
            "[[5.0, 5.0, 5.0], [5.0, 5.0, 5.0], [0.0, 0.0, 0.0], [6.0, 6.0, 6.0]]",
            "[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]",
        ]


def test_only_the_rows_that_are_needed_travel() -> None:
    source = """
worker.init("table", np.zeros((100_000, 64), "float32"), stype=Storage.ROW_SPARSE)
assert len(worker.tensor("table").shards) == 2
before = sent_and_received()
ids = np.arange(rank, 100_000, 1000)
worker.push_rows("table", ids, np.ones((100, 64), "float32")).wait()
assert (worker.pull_rows("table", ids[::-1]).wait() == 1).all()
after = sent_and_received()
print(after[0] - before[0], after[1] - before[1])
"""
    sent = 100 * (8 + 256) + 100 * 8  # ids with rows, then ids
    assert run(source) == [f"{sent} {100 * 256}\n"] * 2


def test_many_rounds_with_any_partition_size_and_types() -> None:
    source = """
from ps.config import CommConfig
rng = np.random.default_rng(rank)
sizes = [100, 5000, 4 << 20]
for dtype in ("float16", "float32", "float64", "int8", "int64"):
    worker.init(dtype, np.zeros((501, 7), dtype), stype=Storage.ROW_SPARSE)
    dense = dtype + " dense"
    worker.init(dense, np.zeros((501, 7), dtype))
    for round_ in range(4 * len(sizes)):
        worker.configure(CommConfig(partition_bytes=sizes[round_ % len(sizes)]))
        ids = rng.integers(0, 501, rng.integers(0, 90))
        rows = rng.integers(-3, 4, (ids.size, 7)).astype(dtype)
        value = np.zeros((501, 7), dtype)
        np.add.at(value, ids, rows)
        expected = worker.push_pull(dense, value)
        worker.push_rows(dtype, ids, rows)
        everything = worker.pull(dtype)
        some = worker.pull_rows(dtype, ids)
        assert (everything.wait() == expected.wait()).all()
        assert (some.wait() == expected.wait()[ids]).all()
"""
    run(source)


def test_a_dense_tensor_of_many_rows_can_be_pushed_by_rows() -> None:
    source = """
worker.init("dense", np.zeros((1000, 100), "float32"))
worker.push_rows("dense", [999, 0], np.ones((2, 100), "float32"))
print(worker.pull("dense").wait().sum(axis=1).nonzero()[0].tolist())
print(worker.push_pull("dense", np.ones((1000, 100), "float32")).wait().min())
worker.init("few", np.zeros((3, 99_999), "float32"))
try:
    worker.push_rows("few", [0], np.zeros((1, 99_999), "float32"))
except ps.TensorError as error:
    print(error)
"""
    for output in run(source):
        assert output.splitlines() == [
            "[0, 999]",
            "2.0",
            "push_rows('few'): the rows of a tensor of shape (3, 99999) are themselves spread over servers;"
            " initialise the key as row_sparse",
        ]


def test_ids_and_rows_that_do_not_fit_are_refused_and_the_key_stays_usable() -> None:
    source = """
worker.init("e", np.zeros((20_000_000,), "int8"), stype=Storage.ROW_SPARSE)
def refused(call, *arguments):
    try:
        call("e", *arguments)
    except ps.TensorError as error:
        print(error)
refused(worker.pull_rows, [20_000_000])
refused(worker.pull_rows, np.array([2**24 + 1], "float32"))
refused(worker.push_rows, [-1], np.ones(1, "int8"))
refused(worker.push_rows, [1], np.ones((1, 2), "int8"))
worker.push_rows("e", [2**24 + 1], np.ones(1, "int8")).wait()
print(worker.pull_rows("e", [2**24, 2**24 + 1]).wait().tolist())
"""
    first, second = run(source)
    assert first.splitlines() == [
        "pull_rows('e'): row id 20000000 is not one of the tensor's 20000000 rows",
        "pull_rows('e'): row id 16777216.0 is given as float32, which is exact only below 2**24 = 16777216;"
        " give row ids as int64",
        "push_rows('e'): row id -1 is not one of the tensor's 20000000 rows",
        "push_rows('e'): worker 0 gave rows of shape (1, 2) and dtype int8; expected (1,) and int8",
        "[0, 2]",
    ]
    assert second == first.replace("worker 0", "worker 1")


def test_a_rank_that_declares_another_storage_type_is_named() -> None:
    source = """
try:
    worker.init("x", np.zeros((4, 2), "float32"), stype=Storage.ROW_SPARSE if rank else Storage.DEFAULT)
except ps.TensorError as error:
    print(error)
worker.init("y", np.zeros((4, 2), "float32"), stype=Storage.ROW_SPARSE)
"""
    for output in run(source):
        assert (
            "'x' differs between the ranks: (4, 2) float32 on worker 0, (4, 2) float32 row_sparse on worker 1" in output
        )


def test_asynchronous_rows_are_added_at_once() -> None:
    source = """
worker.init("a", np.zeros((4, 2), "float32"), mode=Mode.ASYNC, stype=Storage.ROW_SPARSE)
if rank == 0:
    worker.push_rows("a", [1, 3], np.ones((2, 2), "float32")).wait()
    worker.push_rows("a", [3], np.ones((1, 2), "float32")).wait()
    print(worker.pull_rows("a", [0, 1, 3]).wait().tolist())
worker.barrier()
if rank == 1:
    print(worker.pull_rows("a", [0, 1, 3]).wait().tolist())
"""
    assert run(source) == ["[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]\n"] * 2


def test_a_worker_that_has_ended_fails_the_round_of_rows() -> None:
    source = """
worker.init("a", np.zeros((4, 2), "float32"), stype=Storage.ROW_SPARSE)
worker.push_rows("a", [rank], np.ones((1, 2), "float32")).wait()
if rank == 0:
    try:
        worker.push_rows("a", [3], np.ones((1, 2), "float32")).wait()
    except ps.PeerLost as error:
        print(error)
"""
    first, _ = run(source, servers=1)
    assert first == "'a', round 2: worker 1 has finished\n"
