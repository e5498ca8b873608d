"""Key identity: what the ranks have to agree on, and what they are told where they do not."""

from __future__ import annotations

from tests.cluster.harness import Cluster

EXPECT = """
import contextlib, numpy as np, ps

@contextlib.contextmanager
def expect(kind, *words):
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}")
"""


def run(source: str, **env: str) -> list[str]:
    """Run ``source`` on two workers, with ``worker``, ``rank`` and ``expect`` at hand; return what each printed."""
    body = "".join(f"    {line}\n" for line in source.strip("\n").splitlines())
    program = f"{EXPECT}\nwith ps.Worker() as worker:\n    rank = worker.rank\n{body}"
    with Cluster(workers=2, servers=1, env={"AUTOBYTE_DEADLINE_SECONDS": "5", **env}) as cluster:
        outputs = [process.stdout for process in cluster.run(program, timeout=25)]
        assert cluster.finish() == [0, 0]
    return outputs


def test_keys_are_known_by_name_whatever_the_order_in_one_call() -> None:
    source = """
worker.init({"a": np.float32(1), "b": np.float32(100)} if rank == 0 else {"b": np.float32(100), "a": np.float32(1)})
assert worker.pull("a").wait() == 1 and worker.pull("b").wait() == 100
a, b = worker.push_pull("a", np.float32(1)), worker.push_pull("b", np.float32(100))
assert a.wait() == 2 and b.wait() == 200
"""
    run(source)


def test_another_order_of_blocking_calls_is_an_error_that_names_the_order() -> None:
    source = """
first, second = ("a", "b") if rank == 0 else ("b", "a")
with expect(ps.DeadlineExceeded, "'a'", "'b'", "order"):
    worker.init(first, np.float32(1))
worker.init("c", np.float32(3))
assert worker.push_pull("c", np.float32(3)).wait() == 6
"""
    run(source)


def test_a_second_init_and_an_unknown_key_are_errors_that_change_nothing() -> None:
    source = """
worker.init("a", np.float32(1))
with expect(ps.TensorError, "'a'"):
    worker.init("a", np.float32(2))
for call in worker.pull, lambda key: worker.push(key, np.float32(1)), lambda key: worker.push_pull(key, np.float32(1)):
    with expect(ps.TensorError, "'nosuch'"):
        call("nosuch")
assert worker.pull("a").wait() == 1
assert worker.push_pull("a", np.float32(2)).wait() == 4
"""
    run(source)


def test_a_key_that_one_rank_lacks_is_named_on_both() -> None:
    source = """
worker.init("a", np.float32(1))
with expect(ps.DeadlineExceeded, "'b'"):
    worker.init("b", np.float32(1)) if rank == 0 else worker.barrier()
assert worker.push_pull("a", np.float32(2)).wait() == 4
"""
    run(source)


def test_ranks_that_disagree_about_shape_or_type_are_both_told_and_go_on() -> None:
    source = """
with expect(ps.TensorError, "'x'", "(4,)", "(2,)"):
    worker.init("x", np.zeros(4 if rank == 0 else 2, "float32"))
with expect(ps.TensorError, "'z'", "float32", "float16"):
    worker.init("z", np.zeros(4, "float32" if rank == 0 else "float16"))
worker.init("y", np.zeros(2, "float32"))
assert (worker.push_pull("y", np.ones(2, "float32")).wait() == 2).all()
"""
    run(source)


def test_a_push_of_another_shape_or_type_is_refused_at_the_call_and_changes_nothing() -> None:
    source = """
worker.init("x", np.full(2, 7, "float32"))
for wrong in np.zeros(3, "float32"), np.zeros((1, 2), "float32"), np.zeros(2, "float64"):
    with expect(ps.TensorError, "'x'", f"worker {rank}", str(wrong.shape), str(wrong.dtype), "(2,)", "float32"):
        worker.push("x", wrong)
with expect(ps.TensorError, "'x'", "output"):
    worker.pull("x", out=np.zeros((2, 2), "float32")[:, 0])
with expect(ps.TensorError, "'c'", "complex64"):
    worker.init("c", np.zeros(2, "complex64"))
assert worker.pull("x").wait().tolist() == [7, 7]
assert worker.push_pull("x", np.ones(2, "float32")).wait().tolist() == [2, 2]
"""
    run(source)


def test_masked_arrays_are_refused_since_servers_sum_all_elements() -> None:
    source = """
worker.init("a", np.zeros((2, 1), "float32"))
masked = np.ma.array(np.ones((2, 1), "float32"), mask=[[False], [True]])
for verb, call in (
    ("init('b')", lambda: worker.init("b", masked)),
    ("push('a')", lambda: worker.push("a", masked)),
    ("push_pull('a')", lambda: worker.push_pull("a", masked)),
    ("push_rows('a')", lambda: worker.push_rows("a", [0, 1], masked)),
    ("pull_rows('a')", lambda: worker.pull_rows("a", np.ma.array([0, 1], mask=[False, True]))),
):
    with expect(TypeError, verb, "masked array", "array.filled(0)"):
        call()
with expect(TypeError, "pull('a')", "MaskedArray"):
    worker.pull("a", out=masked)
assert worker.push_pull("a", masked.filled(0)).wait().tolist() == [[2], [0]]
"""
    run(source)


def test_names_and_priorities_that_cannot_travel_are_refused_at_the_call_and_harm_nothing() -> None:
    source = """
worker.init("a", np.float32(1))
init_one, init_several = lambda name: worker.init(name, np.float32(1)), lambda name: worker.init({name: np.float32(1)})
for call in init_one, init_several, worker.barrier:
    for name in 3, b"a", None:
        with expect(TypeError, repr(name)):
            call(name)
    for name in "\\ud800", "x" * 2000, "x" * 70_000_000:
        with expect(ps.TensorError, ascii(name[:5])[:-1]):
            call(name)
for priority in 1.5, None, "1", np.float32(1):
    with expect(TypeError, "'a'", "priority", repr(priority)):
        worker.push_pull("a", np.float32(1), priority=priority)
with expect(ValueError, "'a'", "priority", str(1 << 63)):
    worker.push_pull("a", np.float32(1), priority=1 << 63)
with expect(TypeError, "'nonsense'"):
    worker.configure("nonsense")
with expect(TypeError, "'a'", "list"):
    worker.pull("a", out=[0])
for priority in np.int64(3), True, -(1 << 63), (1 << 63) - 1:
    assert worker.push_pull("a", np.float32(1), priority=priority).wait(float("inf")) == 2
"""
    run(source)
