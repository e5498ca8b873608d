"""The bridge: our operations in the engine's order, completed from other threads."""

import threading
import time

import mxnet as mx
import pytest

from ps.errors import AutoByteError, Closed, PeerLost
from ps.mxnet import engine


def test_operation_runs_when_its_arrays_are_ready_and_ends_when_completed():
    array = mx.nd.zeros(2)
    array[:] = 3
    seen, completions = [], []
    started = threading.Event()

    def start(completion):
        seen.append(threading.current_thread() is threading.main_thread())
        completions.append(completion)
        started.set()

    engine.push(start, mutable=[array])
    doubled = array * 2
    assert started.wait(5)
    assert seen == [False]
    assert not engine.drain(0.05)
    threading.Thread(target=completions[0]).start()
    assert doubled.asnumpy().tolist() == [6, 6]
    assert engine.drain(5)


def test_readers_of_an_array_do_not_wait_for_an_operation_that_reads_it():
    array = mx.nd.ones(2)
    completions = []
    engine.push(completions.append, const=[array])
    assert (array * 2).asnumpy().tolist() == [2, 2]
    while not completions:
        time.sleep(0.001)
    completions[0]()
    assert engine.drain(5)


def test_push_does_not_wait():
    array = mx.nd.zeros(1)
    completions = []
    before = time.monotonic()
    engine.push(completions.append, mutable=[array])
    engine.push(completions.append, mutable=[array])
    assert time.monotonic() - before < 1
    engine.abandon("enough")
    assert engine.drain(5)
    with pytest.raises(Closed, match="enough"):
        array.wait_to_read()


def test_error_is_raised_by_its_class_to_whoever_waits_and_the_array_is_usable_again():
    array = mx.nd.ones(2)
    engine.push(lambda completion: completion(PeerLost("push_pull('fc6'): worker 1 was lost")), mutable=[array])
    dependent = array + 1
    with pytest.raises(PeerLost, match=r"push_pull\('fc6'\): worker 1 was lost"):
        dependent.wait_to_read()
    array[:] = 5
    assert array.asnumpy().tolist() == [5, 5]
    assert engine.errors_reach_waiters()


def test_exception_in_start_becomes_the_error():
    array = mx.nd.ones(2)

    def start(completion):
        raise AutoByteError("no such thing")

    engine.push(start, mutable=[array])
    with pytest.raises(AutoByteError, match="no such thing"):
        array.wait_to_read()


def test_completion_counts_once():
    array = mx.nd.ones(2)

    def start(completion):
        completion()
        completion(AutoByteError("too late"))

    engine.push(start, mutable=[array])
    array.wait_to_read()
    assert engine.drain(5)


def test_operation_behind_a_failed_one_is_skipped_and_forgotten():
    array = mx.nd.ones(2)
    called = []
    engine.push(lambda completion: completion(AutoByteError("first")), mutable=[array])
    engine.push(called.append, mutable=[array])
    assert engine.drain(5)
    assert called == []
    with pytest.raises(AutoByteError, match="first"):
        array.wait_to_read()


def test_other_engines_have_threads():
    assert engine.has_threads()


def test_naive_engine_blocks_in_push_and_does_not_deadlock(script):
    result = script(
        """
import os, threading, time
from ps.mxnet import engine
array = mx.nd.ones(2)
del os.environ["MXNET_ENGINE_TYPE"]  # the engine is what it is
engine.push(lambda completion: threading.Timer(0.2, completion).start(), mutable=[array])
print(engine.drain(0), engine.errors_reach_waiters(), engine.has_threads(), (array * 2).asnumpy().tolist())
""",
        MXNET_ENGINE_TYPE="NaiveEngine",
    )
    assert result.stdout == "True False False [2.0, 2.0]\n", result.stderr
