"""Every message survives the wire, and nothing else does."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from msgspec.structs import replace

from ps import messages as m
from ps.config import CommConfig, Role
from ps.errors import ErrorCode
from ps.stats import MAX_LAYERS, MAX_LINKS, Estimate, LayerGroup, LinkEstimate, Observation

SPEC = m.TensorSpec("fc6_weight", (4096, 9216), "float32")
TENSOR = m.Tensor(3, SPEC, [m.Shard(0, 0, 100), m.Shard(1, 100, 37748736)])
PEER = m.Peer(Role.SERVER, 1, "tcp://127.0.0.1:4000")
OBSERVATION = Observation(
    role=Role.WORKER,
    rank=0,
    epoch=2,
    window_seconds=1.0,
    num_workers=2,
    num_servers=1,
    bandwidth_bytes_per_second=Estimate(1e8, 0.01, 40),
)

DATA = [
    m.Hello("job", 12, 1, 7, True, False),
    m.Data(1, [m.Span(m.SpanKind.PUSH_PULL, 3, 1, 12_884_901_888 - 8, 8, -5)]),
    m.Hello("job", 12, 1, 7, True, True, m.Probe(4711, m.Place(7, 2**64 - 1, 0), b"nonce"), True),
    m.Data(2, [m.Span(m.SpanKind.RESULT, 3, 1, 0, 8, -5, m.Place(7, 12, 4096))], follows=True),
    m.Ack(9),
]
CONTROL = [
    m.Register(m.PROTOCOL, "job", Role.WORKER, 2, 1, "", "host", 77, (1 << 63) - 1, 1),
    m.Registered(1),
    m.Refused("why"),
    m.Started(12, [PEER], CommConfig(epoch=4), 600.0),
    m.Heartbeat(),
    m.EnterBarrier(1, "x"),
    m.BarrierPassed(1),
    m.Declare(2, [SPEC]),
    m.Declared(2, [TENSOR]),
    m.AddTensors(1, [TENSOR]),
    m.TensorsAdded(1),
    m.Initialized(2),
    m.ValuesReady(2),
    m.CallFailed(2, ErrorCode.TENSOR, "why"),
    m.Command(5, "set", "sgd", b"body", True),
    m.ServerCommand(6, "set", b"body"),
    m.CommandReply(6, "", b"reply"),
    m.CommandDone(5, [b"a", b""]),
    m.ConfigUpdate(CommConfig(partition_bytes=1, epoch=5)),
    m.ConfigConfirmed(5),
    m.Report(OBSERVATION),
    m.PeerGone(PEER, True, "why"),
    m.Suspect(PEER),
    m.Leave(""),
    m.Shutdown(""),
]


@pytest.mark.parametrize("message", DATA, ids=lambda message: type(message).__name__)
def test_a_data_message_survives_the_wire(message: m.DataMessage) -> None:
    assert m.decode_data(m.encode(message)) == message


@pytest.mark.parametrize("message", CONTROL, ids=lambda message: type(message).__name__)
def test_a_control_message_survives_the_wire(message: m.ControlMessage) -> None:
    assert m.decode_control(m.encode(message)) == message


def test_every_control_message_is_tested_here() -> None:
    assert {type(message) for message in CONTROL} == set(m.ControlMessage.__args__)  # type: ignore[attr-defined]


def test_random_frames_and_pickles_do_not_decode() -> None:
    source = random.Random(1)
    for _ in range(1000):
        frame = source.randbytes(source.randint(0, 1024))
        assert m.decode_data(frame) is None
        assert m.decode_control(frame) is None
    for frame in (pickle.dumps(SPEC), b"\x91" * 100_000, b"", b"\xc0"):
        assert m.decode_data(frame) is None
        assert m.decode_control(frame) is None


def test_a_truncated_message_does_not_decode() -> None:
    frame = m.encode(CONTROL[0])
    assert all(m.decode_control(frame[:length]) is None for length in range(len(frame)))


def test_a_configuration_out_of_range_does_not_decode() -> None:
    frame = m.encode(m.ConfigUpdate(CommConfig(partition_bytes=77, epoch=1)))
    assert m.decode_control(frame) is not None
    assert m.decode_control(frame.replace(b"\x4d", b"\x00")) is None


@pytest.mark.parametrize(
    "fields",
    [{"layers": (LayerGroup(1, 2, 3, 4),) * (MAX_LAYERS + 1)}, {"links": (LinkEstimate(0),) * (MAX_LINKS + 1)}],
    ids=lambda fields: next(iter(fields)),
)
def test_an_observation_that_says_too_much_does_not_decode(fields: dict[str, Any]) -> None:
    assert m.decode_control(m.encode(m.Report(replace(OBSERVATION, **fields)))) is None
    bounded = {name: value[:-1] for name, value in fields.items()}
    assert m.decode_control(m.encode(m.Report(replace(OBSERVATION, **bounded)))) is not None


def test_only_what_carries_data_has_a_payload() -> None:
    with_payload = [kind.name for kind in m.SpanKind if kind.has_payload]
    assert with_payload == ["INIT", "PUSH_PULL", "PUSH", "RESULT", "ERROR", "PUSH_ROWS", "PULL_ROWS", "CHANGES"]
