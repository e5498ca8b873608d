"""The order on the wire is the order of priorities, and what is urgent does not wait for what was queued before it."""

from __future__ import annotations

from tests.cluster.harness import Cluster

#: Records (tensor, version) of every partition as it leaves.
TRACE = """
import threading, numpy as np, ps
from ps import messages, transport

trace = []
send = transport.WorkerLane.send

def traced(lane, header, payload):
    message = messages.decode_data(header)
    if isinstance(message, messages.Data):
        trace.extend((span.tensor_id, span.priority) for span in message.spans)
    send(lane, header, payload)

transport.WorkerLane.send = traced

def at_once(worker, submit):
    '''Run ``submit`` while the communication loop is held, so that all it queues is there before anything is sent.'''
    held, release = threading.Event(), threading.Event()
    worker._loop.post(lambda: (held.set(), release.wait(10)))
    held.wait(10)
    result = submit()
    release.set()
    return result
"""


def test_the_wire_order_is_the_priority_order_under_a_small_credit() -> None:
    source = (
        TRACE
        + """
with ps.Worker() as worker:
    sizes = [50_000, 3, 120_000, 7, 1, 30_000, 99_999, 2]
    worker.init({f"t{i}": np.zeros(size, "float32") for i, size in enumerate(sizes)})
    worker.barrier()
    del trace[:]
    backward = list(enumerate(sizes))[::-1]
    handles = at_once(worker, lambda: [
        worker.push_pull(f"t{i}", np.ones(size, "float32"), priority=-i) for i, size in backward])
    for handle in handles:
        assert (handle.wait() == 2).all()
    priorities = [priority for _, priority in trace]
    assert priorities == sorted(priorities, reverse=True) and set(priorities) == set(range(-7, 1))
"""
    )
    env = {"AUTOBYTE_PARTITION_BYTES": "16384", "AUTOBYTE_CREDIT_BYTES": "16384", "AUTOBYTE_FUSION_BYTES": "4096"}
    with Cluster(workers=2, servers=1, env=env) as cluster:
        cluster.run(source, timeout=30)


def test_an_urgent_tensor_overtakes_a_large_one_and_the_next_step_begins_while_others_are_in_flight() -> None:
    source = (
        TRACE
        + """
with ps.Worker() as worker:
    worker.init({"deep": np.zeros(8_000_000, "float32"), "first": np.zeros(10_000, "float32")})
    for step in range(3):
        deep = worker.push_pull("deep", np.ones(8_000_000, "float32"), priority=-9)
        first = worker.push_pull("first", np.ones(10_000, "float32"), priority=0)
        assert (first.wait() == 2).all()
        assert not deep.done
        # the first layer of the next step may go ahead now: its gradient is pushed again while "deep" is on its way
        again = worker.push_pull("first", np.full(10_000, 2, "float32"), priority=0)
        assert (again.wait() == 4).all()
        assert not deep.done
        assert (deep.wait() == 2).all()
"""
    )
    env = {"AUTOBYTE_PARTITION_BYTES": "65536", "AUTOBYTE_CREDIT_BYTES": "131072"}
    with Cluster(workers=2, servers=1, env=env) as cluster:
        cluster.run(source, timeout=30)
        assert cluster.finish() == [0, 0]
