"""Payload between processes of one host: in shared memory where both can read it, in messages otherwise."""

from __future__ import annotations

import os

import pytest

from tests.cluster.harness import Cluster

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd")

#: Keeps this worker from sharing its memory, and from reading the servers'.
WITHOUT = {
    "to the servers": "import os; del os.memfd_create\n",
    "to the workers": "from ps import shared\ndef _map(pid, place): raise OSError('not here')\nshared._map = _map\n",
}


def _values(shares_to_servers: bool, shares_to_workers: bool) -> str:
    return f"""
import numpy as np, ps
from ps import messages, transport

sent, received = [], []
send, receive = transport.WorkerLane.send, transport.WorkerLane.receive

def counting_send(lane, header, payload):
    if payload is not None:
        sent.append(len(payload))
    send(lane, header, payload)

def counting_receive(lane, **ready):
    message = receive(lane, **ready)
    if message is not None and message[1] is not None:
        received.append(len(message[1]))
    return message

types = {{"float32": 300_001, "float16": 200_001, "float64": 3, "int8": 1001}}
with ps.Worker() as worker:
    worker.init({{name: np.zeros(size, name) for name, size in types.items()}})
    transport.WorkerLane.send, transport.WorkerLane.receive = counting_send, counting_receive
    for round_ in range(1, 7):
        values = {{name: (np.arange(size) % 50 + round_).astype(name) for name, size in types.items()}}
        if round_ % 2:
            handles = {{name: worker.push_pull(name, value) for name, value in values.items()}}
        else:
            for name, value in values.items():
                worker.push(name, value)
            handles = {{name: worker.pull(name) for name in types}}
        for name, handle in handles.items():
            assert np.array_equal(handle.wait(), values[name] * 2), (name, round_)
            assert np.array_equal(worker.pull(name).wait(), values[name] * 2), (name, round_)
    neighbours = [server.neighbour for server in worker._loop._servers]
    assert all(neighbour.reads_ours is {shares_to_servers} for neighbour in neighbours)
    assert all(neighbour.readable is {shares_to_workers} for neighbour in neighbours)
    assert bool(sent) is not {shares_to_servers}, sent
    assert bool(received) is not {shares_to_workers}, received
"""


@pytest.mark.parametrize(
    "without",
    [
        (),
        pytest.param(("to the servers",), marks=pytest.mark.slow),
        pytest.param(("to the workers",), marks=pytest.mark.slow),
        tuple(WITHOUT),
    ],
    ids=str,
)
def test_values_are_the_same_however_payload_travels(without: tuple[str, ...]) -> None:
    source = "".join(WITHOUT[direction] for direction in without)
    source += _values("to the servers" not in without, "to the workers" not in without)
    with Cluster(workers=2, servers=2, env={"AUTOBYTE_PARTITION_BYTES": "50000"}) as cluster:
        cluster.run(source, timeout=40)
        assert cluster.finish() == [0, 0, 0]


def test_workers_that_share_and_workers_that_do_not_are_summed_together() -> None:
    sources = [
        _values(True, True),
        WITHOUT["to the servers"] + WITHOUT["to the workers"] + _values(False, False),
    ]
    with Cluster(workers=2, servers=1) as cluster:
        cluster.run(sources, timeout=40)
        assert cluster.finish() == [0, 0]


def test_a_worker_that_lies_about_its_memory_gets_an_error_and_the_job_goes_on() -> None:
    source = """
import numpy as np, ps
from ps.messages import Place
from ps.shared import Arena

honest = Arena.place
lies = [
    (lambda place: Place(place.fd, place.inode, 1 << 40), "refers to byte"),
    (lambda place: Place(place.fd, place.inode, -8), "refers to byte"),
    (lambda place: Place(place.fd, place.inode, 256 * 2**20 - 4), "more than it sent"),
    (lambda place: Place(0, place.inode, 0), "cannot read memory of worker 1"),
    (lambda place: Place(place.fd, 1, 0), "another file"),
]
with ps.Worker() as worker:
    worker.init({f"a{number}": np.zeros(1000, "float32") for number in range(len(lies))})
    worker.init("b", np.zeros(1000, "float32"))
    worker.push_pull("b", np.ones(1000, "float32")).wait()  # its answer comes after the greetings
    for number, (lie, text) in enumerate(lies if worker.rank == 1 else []):
        Arena.place = lambda arena, array: lie(honest(arena, array))
        try:
            worker.push(f"a{number}", np.ones(1000, "float32")).wait()
        except ps.TensorError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"lie {number} was taken")
        Arena.place = honest
    worker.barrier()
    assert (worker.push_pull("b", np.ones(1000, "float32")).wait() == 2).all()
"""
    with Cluster(workers=2, servers=1) as cluster:
        cluster.run(source, timeout=20)
        assert cluster.finish() == [0, 0]


def test_a_worker_whose_greeting_lies_is_served_through_the_socket() -> None:
    source = """
import msgspec, numpy as np, ps
from ps.shared import Arena

honest = Arena.probe.fget
Arena.probe = property(lambda arena: msgspec.structs.replace(honest(arena), nonce=b"0" * 16))
with ps.Worker() as worker:
    worker.init("a", np.zeros(1000, "float32"))
    assert (worker.push_pull("a", np.ones(1000, "float32")).wait() == 2).all()
    assert not worker._loop._servers[0].neighbour.reads_ours
"""
    with Cluster(workers=2, servers=1) as cluster:
        cluster.run(source, timeout=20)
        assert cluster.finish() == [0, 0]


def test_a_killed_worker_leaves_no_memory_behind() -> None:
    source = """
import numpy as np, ps
worker = ps.Worker()
worker.init("k", np.zeros(1_000_000, "float32"))
try:
    while True:
        assert (worker.push_pull("k", np.ones(1_000_000, "float32")).wait() == 2).all()
        print("round", flush=True)
except ps.PeerLost:
    worker.close("lost")
"""
    with Cluster(workers=2, servers=1) as cluster:
        first, second = cluster.start_workers(source)
        second.wait_for("round")
        links = [os.readlink(f"/proc/{second.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{second.pid}/fd")]
        shared = [link for link in links if "autobyte" in link and str(cluster.directory) not in link]
        assert shared and all(link == "/memfd:autobyte (deleted)" for link in shared), "files without a name"
        second.kill()
        assert first.wait(10) == 0
        cluster.finish()
