"""What the ranks read from the store: first values, sums, snapshots, order, sizes, types."""

from __future__ import annotations

import pytest

from tests.cluster.harness import Cluster


def run(source: str, workers: int = 2, servers: int = 1, **env: str) -> list[str]:
    """Run ``source`` on all workers, with ``worker`` and ``rank`` at hand; return what each printed."""
    body = "".join(f"    {line}\n" for line in source.strip("\n").splitlines())
    program = f"import numpy as np, ps\nwith ps.Worker() as worker:\n    rank = worker.rank\n{body}"
    with Cluster(workers=workers, servers=servers, env=env) as cluster:
        outputs = [process.stdout for process in cluster.run(program, timeout=30)]
        assert cluster.finish() == [0] * (1 + servers)
    return outputs


def test_first_values_are_those_of_rank_0() -> None:
    source = """
keys = {f"k{i}": np.array([7, 7] if rank == 0 else [-1, -1], "float32") for i in range(50)}
worker.init(keys)
assert all((worker.pull(key).wait() == [7, 7]).all() for key in keys)
"""
    run(source, servers=2)


def test_a_round_replaces_the_value_by_the_sum_of_that_round() -> None:
    source = """
worker.init("a", np.zeros(3, "float32"))
for factor in 1, 2:
    worker.push("a", np.full(3, factor * (rank + 1), "float32"))
    print(worker.pull("a").wait().tolist())
"""
    assert run(source) == ["[3.0, 3.0, 3.0]\n[6.0, 6.0, 6.0]\n"] * 2


def test_a_push_is_a_snapshot_and_a_pull_writes_only_its_output() -> None:
    source = """
worker.init({"w": np.zeros(2, "float32"), "t": np.zeros((4, 3), "float32"), "big": np.zeros(1 << 20, "float32")})
g, a = np.full(2, 2.5, "float32"), np.zeros(2, "float32")
worker.push("w", g)
worker.pull("w", out=a).wait()
assert a.tolist() == [5, 5] and g.tolist() == [2.5, 2.5]

transposed = np.arange(12, dtype="float32").reshape(3, 4).T
result = worker.push_pull("t", transposed).wait()
assert (result / 2).tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]

same = np.ones(1 << 20, "float32")
handle = worker.push_pull("big", same, out=same)
assert (handle.wait() == 2).all() and handle.wait() is same

changed = np.ones(1 << 20, "float32")
handle = worker.push_pull("big", changed)
changed[:] = 99
assert (handle.wait() == 2).all()
"""
    run(source)


def test_rounds_never_mix_and_operations_keep_program_order() -> None:
    source = """
worker.init({"k": np.full(3000, -1, "int64"), "slow": np.zeros(1 << 20, "float32")})
worker.push_pull("slow", np.ones(1 << 20, "float32"), priority=9)
first = worker.pull("k", priority=-9)
pending = []
for i in range(100):
    worker.push("k", np.full(3000, i + rank), priority=i % 7)
    pending.append(worker.pull("k", priority=-i % 5))
assert (first.wait() == -1).all()
for i, handle in enumerate(pending):
    assert (handle.wait() == 2 * i + 1).all(), i
"""
    run(source, servers=2, AUTOBYTE_PARTITION_BYTES="4096")


def test_sizes_from_nothing_to_thousands_of_keys() -> None:
    source = """
worker.init({"empty": np.zeros((0, 3), "float32"), "scalar": np.zeros((), "float64"),
             "odd": np.zeros(10_000, "float32")})
worker.push("empty", np.zeros((0, 3), "float32")).wait()
assert worker.pull("empty").wait().shape == (0, 3)
assert worker.push_pull("empty", np.zeros((0, 3), "float32")).wait().shape == (0, 3)
assert worker.push_pull("scalar", np.float64(0.1)).wait() == 0.2
odd = np.arange(10_000, dtype="float32")
assert (worker.push_pull("odd", odd).wait() == 2 * odd).all()

worker.init({f"k{i}": np.zeros(1, "float32") for i in range(2000)})
handles = [worker.push_pull(f"k{i}", np.full(1, (rank + 1) * i, "float32")) for i in range(2000)]
for i, handle in enumerate(handles):
    assert handle.wait() == 3 * i
"""
    run(source, servers=2, AUTOBYTE_PARTITION_BYTES="4097")


def test_a_partition_may_be_larger_than_the_tensor_and_than_the_credit() -> None:
    source = """
worker.init({"a": np.zeros(1 << 18, "float32"), "b": np.zeros(7, "float32")})
for _ in range(3):
    a = worker.push_pull("a", np.ones(1 << 18, "float32"))
    b = worker.push_pull("b", np.ones(7, "float32"))
    assert (a.wait() == 2).all() and (b.wait() == 2).all()
"""
    run(source, AUTOBYTE_PARTITION_BYTES=str(1 << 30), AUTOBYTE_CREDIT_BYTES="1")


def test_types_are_summed_as_they_are_and_float16_in_float32() -> None:
    source = """
values = {"float16": 40000, "float32": 0.1, "float64": 0.1, "int8": 100, "uint8": 200, "int32": -(1 << 31),
          "int64": (1 << 53) + 1}
worker.init({name: np.zeros(5, name) for name in values})
for name, value in values.items():
    result = worker.push_pull(name, np.full(5, value, name)).wait()
    print(name, result.dtype, result[0])
worker.init("small", np.zeros(1, "float16"))
print(worker.push_pull("small", np.array([2048 if rank == 0 else 1], "float16")).wait())
"""
    for output in run(source, workers=3):
        assert output.splitlines() == [
            "float16 float16 inf",
            "float32 float32 0.3",
            "float64 float64 0.30000000000000004",
            "int8 int8 44",
            "uint8 uint8 88",
            "int32 int32 -2147483648",
            "int64 int64 27021597764222979",
            "[2050.]",
        ]


def test_a_new_configuration_takes_effect_in_the_middle_of_a_run_on_each_worker_when_it_hears_of_it() -> None:
    source = """
import time
worker.init("a", np.zeros(1_000_000, "float32"))
value = np.arange(1_000_000, dtype="float32")
for round_ in range(1, 11):
    if round_ == 6:
        if rank == 1:
            time.sleep(0.5)
        worker.configure(ps.CommConfig(partition_bytes=1 << 20, credit_bytes=1 << 22, epoch=1))
    assert (worker.push_pull("a", value).wait() == 2 * value).all(), round_
assert worker.config.partition_bytes == 1 << 20
"""
    run(source, servers=2, AUTOBYTE_PARTITION_BYTES="65536", AUTOBYTE_CREDIT_BYTES="262144")


def test_workers_with_different_configurations_get_equal_sums() -> None:
    source = """
worker.configure(ps.CommConfig(partition_bytes=[1000, 4097, 1 << 20][rank], credit_bytes=[1, 70_000, 1 << 30][rank],
                               fusion_bytes=[0, 9_000, 1 << 16][rank]))
rng = np.random.default_rng(rank)
shapes = {"a": (333, 77), "b": (5,), "c": (100_001,), "d": (1, 1)}
worker.init({key: np.zeros(shape, "int64") for key, shape in shapes.items()})
for round_ in range(5):
    handles = {key: worker.push_pull(key, rng.integers(-9, 9, shape)) for key, shape in shapes.items()}
    for handle in handles.values():
        print(int((handle.wait() * np.arange(handle.wait().size).reshape(handle.wait().shape)).sum()))
"""
    first, second, third = run(source, workers=3, servers=2)
    assert first == second == third and len(first.splitlines()) == 20


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_many_tensors_in_flight_at_once(servers: int) -> None:
    source = """
shapes = {f"t{i}": (i * 997 % 5000 + 1,) for i in range(120)}
worker.init({key: np.zeros(shape, "float32") for key, shape in shapes.items()})
for round_ in range(5):
    handles = {key: worker.push_pull(key, np.full(shape, rank + round_, "float32"), priority=-i)
               for i, (key, shape) in enumerate(shapes.items())}
    for handle in handles.values():
        assert (handle.wait() == 1 + 2 * round_).all()
"""
    run(source, servers=servers)


def test_arrays_of_the_other_byte_order_are_summed_by_value() -> None:
    source = """
other = np.dtype("int64").newbyteorder()
worker.init({"a": np.arange(8).astype(other), "b": np.zeros(8, "int64")})
assert worker.pull("a").wait().tolist() == list(range(8))
for value in np.arange(8).astype(other), np.arange(8), np.arange(8).astype(other):
    assert worker.push_pull("b", value).wait().tolist() == [2 * i for i in range(8)]
try:
    worker.pull("a", out=np.zeros(8, other))
except ps.TensorError as error:
    assert "byte order" in str(error), error
else:
    raise AssertionError("an output of the other byte order was taken")
"""
    run(source)


def test_a_turn_of_the_loop_is_short_however_much_credit_there_is() -> None:
    source = """
import numpy as np, ps
from ps import communication, traffic, transport
taken, most = 0, 0
pop, poll = traffic.Traffic.pop, communication.CommunicationLoop._poll

def counted_pop(*args):
    global taken
    taken += 1
    return pop(*args)

def counted_poll(*args):
    global taken, most
    taken, most = 0, max(most, taken)
    return poll(*args)

transport._local_prefix = lambda: ""  # over TCP, where partitions are not joined
traffic.Traffic.pop, communication.CommunicationLoop._poll = counted_pop, counted_poll
with ps.Worker() as worker:
    worker.init("a", np.zeros(2000, "int8"))
    assert (worker.push_pull("a", np.ones(2000, "int8")).wait() == 1).all()
    assert worker.statistics()["messages_sent"] >= 2000
assert 0 < most <= 256, most
"""
    env = {"AUTOBYTE_PARTITION_BYTES": "1", "AUTOBYTE_FUSION_BYTES": "0", "AUTOBYTE_CREDIT_BYTES": str(1 << 36)}
    with Cluster(workers=1, servers=1, env=env) as cluster:
        cluster.run(source, timeout=30)
        assert cluster.finish() == [0, 0]
