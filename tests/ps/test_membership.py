"""A node's client of the scheduler, against a socket that plays the scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Optional

import msgspec
import pytest
import zmq

from ps import membership, messages
from ps.config import CommConfig, Role, Settings
from ps.errors import Closed, DeadlineExceeded, RegistrationRefused
from ps.membership import Membership
from ps.messages import ControlMessage, Heartbeat, Peer, PeerGone, Register, Registered, Started

STARTED = Started(5, [], CommConfig(), 60.0)


class FakeScheduler:
    """A ROUTER that says what a test wants it to say."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int = 0) -> None:
        self._context = context
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.port = int(self._socket.getsockopt(zmq.LAST_ENDPOINT).rsplit(b":", 1)[1])
        self.node = b""

    def take(self, seconds: float = 5.0) -> Optional[ControlMessage]:
        """Return the next message; None where none comes within ``seconds``."""
        if not self._socket.poll(int(seconds * 1000)):
            return None
        self.node, frame = self._socket.recv_multipart()
        return messages.decode_control(frame)

    def say(self, *said: ControlMessage) -> None:
        for message in said:
            self._socket.send_multipart([self.node, messages.encode(message)])

    def say_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart([self.node, *frames])

    def close(self) -> None:
        self._socket.close(0)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def scheduler(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[FakeScheduler]:
    scheduler = FakeScheduler(context)
    yield scheduler
    scheduler.close()


def settings(port: int, **changes: Any) -> Settings:
    plain = Settings(
        role=Role.WORKER,
        root_host="localhost",
        root_port=port,
        num_workers=2,
        num_servers=1,
        start_seconds=5.0,
        preferred_rank=1,
    )
    return msgspec.structs.replace(plain, **changes)


def in_background(action: Any) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def registered(scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]], **changes: Any) -> Membership:
    """Return a client that has gone through registration."""

    def welcome() -> None:
        assert isinstance(scheduler.take(), Register)
        scheduler.say(Registered(1), STARTED)

    thread = in_background(welcome)
    node = Membership(settings(scheduler.port, **changes), context)
    assert node.register() == (1, STARTED)
    thread.join(5.0)
    return node


def receive_for(node: Membership, seconds: float) -> list[ControlMessage]:
    """Turn the node's loop for a while."""
    seen = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        node.socket.poll(10)
        seen += node.receive(time.monotonic())
    return seen


# ----------------------------------------------------------------------------------------- registration


def test_a_node_says_who_it_is_again_and_again_until_the_job_starts(
    scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    seen = []

    def welcome() -> None:
        for answer in ([], [Registered(1)], [STARTED]):
            seen.append(scheduler.take())
            scheduler.say(*answer)

    thread = in_background(welcome)
    node = Membership(settings(scheduler.port), context, "tcp://127.0.0.1:7")
    assert node.register() == (1, STARTED)
    thread.join(5.0)
    first = seen[0]
    assert isinstance(first, Register)
    assert (first.protocol, first.job, first.role, first.num_workers, first.num_servers, first.preferred) == (
        (messages.PROTOCOL, "default", Role.WORKER, 2, 1, 1)
    )
    assert first.address == "tcp://127.0.0.1:7"
    assert seen == [first, first, first]
    node.close()


def test_the_scheduler_may_come_later(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    port = FakeScheduler(context)
    port.close()

    def welcome() -> None:
        time.sleep(0.8)
        scheduler = FakeScheduler(context, port.port)
        assert isinstance(scheduler.take(), Register)
        scheduler.say(Registered(0), STARTED)
        time.sleep(0.5)
        scheduler.close()

    thread = in_background(welcome)
    node = Membership(settings(port.port), context)
    assert node.register() == (0, STARTED)
    node.close()
    thread.join(5.0)


def test_a_refusal_is_raised_with_its_reason(scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    def refuse() -> None:
        scheduler.take()
        scheduler.say(messages.Refused("DMLC_NUM_WORKER: the scheduler has 3"))

    in_background(refuse)
    node = Membership(settings(scheduler.port), context)
    with pytest.raises(RegistrationRefused) as caught:
        node.register()
    assert str(caught.value) == (
        f"refused by the scheduler at localhost:{scheduler.port}: DMLC_NUM_WORKER: the scheduler has 3"
    )
    node.close()


def test_no_answer_names_host_and_port(scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    node = Membership(settings(scheduler.port, start_seconds=0.2), context)
    with pytest.raises(
        DeadlineExceeded, match=f"no answer from the scheduler at localhost:{scheduler.port} within 0.2 s"
    ):
        node.register()
    node.close()


def test_who_waits_for_the_scheduler_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    scheduler: FakeScheduler,
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    monkeypatch.setattr(membership, "STILL_WAITING_SECONDS", 0.1)
    node = Membership(settings(scheduler.port, start_seconds=1.2), context)
    with pytest.raises(DeadlineExceeded):
        node.register()
    assert caplog.messages == [f"still waiting for the scheduler at localhost:{scheduler.port}"]
    node.close()


def test_no_start_says_that_others_are_missing(
    monkeypatch: pytest.MonkeyPatch, scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    monkeypatch.setattr(membership, "VERDICT_SECONDS", 0.1)

    def answer() -> None:
        scheduler.take()
        scheduler.say(Registered(1))

    in_background(answer)
    node = Membership(settings(scheduler.port, start_seconds=0.5), context)
    with pytest.raises(DeadlineExceeded, match="as worker 1, but the job did not start within 0.5 s"):
        node.register()
    node.close()


def test_a_registration_can_be_stopped(scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    node = Membership(settings(scheduler.port), context)
    with pytest.raises(Closed, match="by a signal"):
        node.register(lambda: "by a signal")
    node.close()


# --------------------------------------------------------------------------------------- the job runs


def test_what_came_together_with_the_start_is_not_lost(
    scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    update = messages.ConfigUpdate(CommConfig(epoch=1))

    def welcome() -> None:
        scheduler.take()
        scheduler.say(Registered(1), STARTED, update)

    in_background(welcome)
    node = Membership(settings(scheduler.port), context)
    node.register()
    assert receive_for(node, 0.2) == [update]
    node.close()


def test_repeats_heartbeats_and_garbage_do_not_reach_the_node(
    scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    node = registered(scheduler, context)
    scheduler.say(Registered(1), STARTED, Heartbeat(), messages.BarrierPassed(3))
    scheduler.say_frames(b"\x00garbage")
    scheduler.say_frames(messages.encode(Heartbeat()), b"one too many")
    assert receive_for(node, 0.2) == [messages.BarrierPassed(3)]
    assert node.malformed == 2
    node.close()


def test_heartbeats_are_sent_when_they_are_due(
    scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    node = registered(scheduler, context, heartbeat_seconds=0.5)
    now = time.monotonic()
    assert node.next_wake(now) == 0.0
    node.receive(now)
    assert node.next_wake(now) == 0.5
    node.receive(now + 0.4)
    node.receive(now + 0.5)
    assert [scheduler.take(1.0), scheduler.take(1.0), scheduler.take(0.2)] == [Heartbeat(), Heartbeat(), None]
    node.close()


def test_a_silent_scheduler_is_lost_once(scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    node = registered(scheduler, context, silence_seconds=2.0)
    now = time.monotonic()
    assert [node.receive(now + passed) for passed in (0.9, 1.8)] == [[], []]
    where = f"localhost:{scheduler.port}"
    lost = PeerGone(Peer(Role.SCHEDULER, 0, where), True, f"{where} was silent for 2 s")
    assert node.receive(now + 2.1) == [lost]
    assert node.receive(now + 3.0) == []
    node.close()


def test_time_in_which_the_node_was_stopped_is_no_silence(
    scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    node = registered(scheduler, context, silence_seconds=2.0)
    assert node.receive(time.monotonic() + 1000.0) == []
    node.close()


def test_a_connection_that_breaks_for_good_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, scheduler: FakeScheduler, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    monkeypatch.setattr(membership, "RECONNECT_SECONDS", 0.3)
    node = registered(scheduler, context)
    assert receive_for(node, 0.1) == []
    scheduler.close()
    (gone,) = receive_for(node, 1.0)
    assert isinstance(gone, PeerGone)
    assert (gone.peer.role, gone.lost) == (Role.SCHEDULER, True)
    assert gone.reason.endswith("broke: the scheduler's process has ended, or the network failed")
    node.close()


def test_a_node_closes_soon_even_when_nobody_takes_its_messages(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    own = zmq.Context()
    gone = FakeScheduler(context)
    gone.close()
    node = Membership(settings(gone.port), own)
    node.send(messages.Leave(""))
    began = time.monotonic()
    node.close()
    own.term()
    assert time.monotonic() - began < 2.0
