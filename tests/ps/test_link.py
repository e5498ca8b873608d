"""Links: strict priority, a bounded amount in flight, delivery once and in order, links that keep in step."""

from __future__ import annotations

from collections import deque
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.codecs.interface import Array
from ps.config import KIB, MIB, CommConfig
from ps.link import MAX_SPANS, MESSAGE_BYTES, Link
from ps.link_group import LinkGroup
from ps.messages import Data, Place, SpanKind, decode_data
from ps.partition import cut
from ps.receiver import Receiver
from ps.transfer import Message, Transfer


def push(tensor_id: int, size_bytes: int, partition_bytes: int = 100, priority: int = 0) -> Transfer:
    """A push of ``size_bytes`` elements of one byte, each with the value ``tensor_id``."""
    payload = memoryview(bytes([tensor_id]) * size_bytes)
    ranges = cut(0, size_bytes, 1, partition_bytes)
    return Transfer(SpanKind.PUSH_PULL, tensor_id, 1, priority, 1, 0, payload, ranges)


def done(tensor_id: int, priority: int = 0) -> Transfer:
    return Transfer(SpanKind.DONE, tensor_id, 1, priority, 4, 0, None, iter([(0, 1000)]))


def link_of(*transfers: Transfer, credit_bytes: int = MIB, fusion_bytes: int = 0) -> Link:
    link = Link(0, credit_bytes, fusion_bytes)
    for transfer in transfers:
        link.put(transfer, now=0.0)
    return link


def sent(link: Link, now: float = 0.0) -> list[list[tuple[int, int, int]]]:
    """Pop all that the link lets go: per message the (tensor, start, count) of its spans."""
    return [[(span.tensor_id, span.start, span.count) for span in message.spans] for message in _pop_all(link, now)]


def _pop_all(link: Link, now: float) -> list[Message]:
    messages = []
    while (message := link.pop(now)) is not None:
        messages.append(message)
    return messages


# ------------------------------------------------------------------------------------------ priority


def test_the_larger_priority_goes_first_and_equal_ones_in_order_of_arrival() -> None:
    link = link_of(push(1, 10, priority=-5), push(2, 10, priority=0), push(3, 10, priority=0), push(4, 10, priority=-1))
    assert sent(link) == [[(2, 0, 10)], [(3, 0, 10)], [(4, 0, 10)], [(1, 0, 10)]]


def test_an_urgent_tensor_overtakes_the_rest_of_one_under_way() -> None:
    link = link_of(push(1, 300, priority=-1))
    first = link.pop(0.0)
    assert first is not None and first.spans[0].start == 0
    link.put(push(2, 100, priority=0), now=0.0)
    assert sent(link) == [[(2, 0, 100)], [(1, 100, 100)], [(1, 200, 100)]]


def test_a_message_refers_to_the_bytes_of_its_range_without_a_copy() -> None:
    buffer = bytearray(range(40))
    transfer = Transfer(SpanKind.RESULT, 7, 3, -2, 4, 100, memoryview(buffer), iter([(100, 6), (106, 4)]))
    link = link_of(transfer)
    first, second = _pop_all(link, 0.0)
    assert bytes(first.payload) == bytes(range(24)) and bytes(second.payload) == bytes(range(24, 40))
    buffer[0] = 99
    assert bytes(first.payload)[0] == 99
    decoded = decode_data(second.header)
    assert isinstance(decoded, Data) and decoded.seq == 2
    span = decoded.spans[0]
    assert (span.kind, span.tensor_id, span.version, span.start, span.count, span.priority) == (3, 7, 3, 106, 4, -2)


def test_an_error_travels_as_one_span_of_its_bytes() -> None:
    text = b"\x03wrong shape"
    link = link_of(Transfer(SpanKind.ERROR, 7, 1, 0, 1, 0, memoryview(text), iter([(0, len(text))])))
    message = link.pop(0.0)
    assert message is not None and message.payload == text and message.spans[0].count == 12


def test_a_transfer_without_ranges_is_no_work() -> None:
    link = link_of(push(1, 0))
    assert not link.queued and link.pop(0.0) is None


def test_a_tensor_of_twelve_gigabytes_is_one_entry_of_the_queue() -> None:
    pull = Transfer(SpanKind.PULL, 1, 1, 0, 4, 0, None, cut(0, 3 * 2**30, 4, 4))
    link = link_of(pull)
    message = link.pop(0.0)
    assert message is not None and message.spans[0].count == 1 and link.queued


# -------------------------------------------------------------------------------------------- credit


def test_a_link_stops_when_the_credit_is_in_flight_and_goes_on_when_it_is_acknowledged() -> None:
    link = link_of(push(1, 500), credit_bytes=2 * (100 + MESSAGE_BYTES))
    assert sent(link) == [[(1, 0, 100)], [(1, 100, 100)]]
    assert link.in_flight_bytes == 328
    assert [message.seq for message in link.acknowledge(1, 0.5)] == [1]
    assert sent(link) == [[(1, 200, 100)]]


def test_a_partition_larger_than_the_credit_goes_alone() -> None:
    link = link_of(push(1, 10), push(2, 3000, partition_bytes=1000), credit_bytes=500)
    assert sent(link) == [[(1, 0, 10)]]
    link.acknowledge(1, 0.0)
    assert sent(link) == [[(2, 0, 1000)]]
    link.acknowledge(2, 0.0)
    assert sent(link) == [[(2, 1000, 1000)]]


def test_messages_without_payload_use_credit_too() -> None:
    link = link_of(*(done(index) for index in range(100)), credit_bytes=3 * MESSAGE_BYTES)
    assert len(sent(link)) == 3


# -------------------------------------------------------------------------------------------- fusion


def test_small_partitions_share_a_message_up_to_the_fusion_size() -> None:
    link = link_of(*(push(index, 40) for index in range(1, 6)), fusion_bytes=100)
    messages = _pop_all(link, 0.0)
    assert [[span.tensor_id for span in message.spans] for message in messages] == [[1, 2], [3, 4], [5]]
    assert messages[0].payload == b"\1" * 40 + b"\2" * 40
    assert [len(message.spans) for message in messages] == [2, 2, 1]


def test_fusion_never_skips_a_more_urgent_partition() -> None:
    link = link_of(push(1, 40), push(2, 90, priority=-1), push(3, 40, priority=-2), fusion_bytes=100)
    assert sent(link) == [[(1, 0, 40)], [(2, 0, 90)], [(3, 0, 40)]]


def test_spans_without_payload_always_fit_up_to_a_bound() -> None:
    link = link_of(push(1, 100), *(done(index) for index in range(2, 2 + MAX_SPANS)), fusion_bytes=10)
    assert [len(spans) for spans in sent(link)] == [MAX_SPANS, 1]


def test_without_fusion_every_span_has_its_own_message() -> None:
    assert sent(link_of(done(1), done(2))) == [[(1, 0, 1000)], [(2, 0, 1000)]]


# ---------------------------------------------------------------------------------- acknowledgements


def test_an_acknowledgement_covers_all_messages_up_to_its_number_once() -> None:
    link = link_of(push(1, 300))
    for now in (1.0, 2.0, 3.0):
        link.pop(now)
    assert link.oldest_sent_at == 1.0
    assert [(message.seq, message.sent_at) for message in link.acknowledge(2, 4.0)] == [(1, 1.0), (2, 2.0)]
    assert link.acknowledge(2, 5.0) == []
    assert (link.oldest_sent_at, link.in_flight_bytes) == (3.0, 164)


def test_an_acknowledgement_of_what_was_never_sent_is_counted_and_changes_nothing() -> None:
    link = link_of(push(1, 100))
    link.pop(0.0)
    assert link.acknowledge(2, 0.0) == [] and link.acknowledgements_refused == 1
    assert link.in_flight_bytes == 164


def test_after_a_broken_connection_the_rest_goes_again_in_order() -> None:
    link = link_of(push(1, 400))
    messages = _pop_all(link, 0.0)
    assert link.resume(3, asks=True, now=9.0) == messages[2:]
    assert (link.oldest_sent_at, link.in_flight_bytes, link.messages_resent) == (9.0, 2 * 164, 2)
    assert link.resume(5, asks=True, now=10.0) == [] and link.in_flight_bytes == 0


def test_an_answer_that_tells_of_no_loss_lets_nothing_be_sent_again() -> None:
    link = link_of(push(1, 400), credit_bytes=2 * 164)
    _pop_all(link, 0.0)
    link.ask()
    link.acknowledge(1, 1.0)
    _pop_all(link, 1.0)  # message 3, after the question
    assert link.resume(3, asks=False, now=2.0) == [] and link.in_flight_bytes == 164
    assert link.messages_resent == 0


def test_an_answer_that_tells_of_a_loss_lets_all_be_sent_again_once() -> None:
    link = link_of(push(1, 400))
    messages = _pop_all(link, 0.0)
    link.ask()
    assert link.resume(3, asks=False, now=1.0) == messages[2:]
    assert link.resume(3, asks=False, now=1.0) == []


@pytest.mark.parametrize("expected", [0, 1, 5, 1000])
def test_a_peer_that_expects_what_it_cannot_is_refused(expected: int) -> None:
    link = link_of(push(1, 300))
    sent(link)
    link.acknowledge(1, 0.0)
    with pytest.raises(ValueError, match=f"peer 0 expects message {expected}"):
        link.resume(expected, asks=True, now=0.0)


def test_a_link_counts_what_it_does() -> None:
    link = link_of(push(1, 250), fusion_bytes=200)
    _pop_all(link, now=2.0)
    assert (link.bytes_sent, link.messages_sent, link.partitions_sent, link.queue_wait_seconds) == (250, 2, 3, 6.0)


# ------------------------------------------------------------------------------------------ receiver


def test_a_receiver_takes_only_the_next_message_and_acknowledges_what_arrived() -> None:
    receiver = Receiver()
    assert receiver.acknowledge() is None
    assert [receiver.accept(seq) for seq in (1, 2, 4, 3, 2)] == [True, True, False, True, False]
    assert (receiver.expected, receiver.duplicates, receiver.gaps) == (4, 1, 1)
    assert receiver.acknowledge() == 3
    assert receiver.acknowledge() is None


def test_a_duplicate_is_acknowledged_again_because_its_acknowledgement_was_lost() -> None:
    receiver = Receiver()
    receiver.accept(1)
    receiver.acknowledge()
    assert not receiver.accept(1)
    assert receiver.acknowledge() == 1


def test_what_is_missing_is_asked_for_once() -> None:
    receiver = Receiver()
    assert [(receiver.accept(seq), receiver.gap_begins) for seq in (2, 3)] == [(False, True), (False, False)]
    assert receiver.accept(1) and receiver.accept(2)
    assert (receiver.accept(4), receiver.gap_begins) == (False, True)


# --------------------------------------------------------------------------------------- link groups


def group_of(peers: int, bounded_skew: bool = True, **config: int) -> LinkGroup:
    group = LinkGroup(range(peers), bounded_skew)
    group.configure(CommConfig(**{"fusion_bytes": 0, **config}))
    return group


def peers_of(group: LinkGroup, most: int = 1000) -> list[int]:
    """Pop at most ``most`` messages; return their peers."""
    peers = []
    while len(peers) < most and (popped := group.pop(0.0)) is not None:
        peers.append(popped[0].peer)
    return peers


def test_the_credit_of_a_host_is_split_evenly_over_its_links() -> None:
    group = group_of(3, credit_bytes=10_000, fusion_bytes=7)
    assert [(link.credit_bytes, link.fusion_bytes) for link in group.links.values()] == [(3333, 7)] * 3
    group.configure(CommConfig(credit_bytes=1))
    assert [link.credit_bytes for link in group.links.values()] == [1] * 3


def test_the_link_that_has_sent_least_goes_next() -> None:
    group = group_of(2)
    group.put(0, push(1, 600, partition_bytes=300), 0.0)
    group.put(1, push(2, 600, partition_bytes=100), 0.0)
    assert peers_of(group) == [0, 1, 1, 1, 0, 1, 1, 1]


def test_a_link_waits_for_a_slower_one_that_has_work() -> None:
    group = group_of(2, partition_bytes=512 * KIB, credit_bytes=64 * MIB)
    size_bytes = 8 * MIB
    for peer in (0, 1):
        group.put(peer, push(peer, size_bytes, partition_bytes=512 * KIB - MESSAGE_BYTES), 0.0)
    group.links[0].credit_bytes = 1  # one partition at a time
    assert peers_of(group) == [0, 1, 1, 1]  # 1 is two partitions, 1 MiB, ahead
    group.links[0].acknowledge(1, 0.0)
    assert peers_of(group) == [0, 1]


def test_a_link_without_work_holds_nobody_back_and_joins_level_with_the_slowest() -> None:
    group = group_of(2, credit_bytes=64 * MIB)
    group.put(1, push(2, 8 * MIB, partition_bytes=512 * KIB), 0.0)
    assert peers_of(group, most=6) == [1] * 6
    group.put(0, push(1, 8 * MIB, partition_bytes=512 * KIB), 0.0)
    assert peers_of(group, most=4) == [0, 1, 0, 1]


def test_without_a_bound_every_link_goes_as_far_as_its_credit() -> None:
    group = group_of(2, bounded_skew=False, credit_bytes=64 * MIB)
    for peer in (0, 1):
        group.put(peer, push(peer, 4 * MIB, partition_bytes=512 * KIB), 0.0)
    group.links[0].credit_bytes = 1
    assert peers_of(group) == [0] + [1] * 8


def test_the_time_in_which_work_waits_for_credit_is_counted() -> None:
    group = group_of(1, credit_bytes=1)
    assert group.pop(1.0) is None and group.credit_stall_seconds == 0.0  # nothing to send is no stall
    group.put(0, push(1, 300), 2.0)
    assert group.queued
    assert group.pop(2.0) is not None
    assert group.pop(2.5) is None
    assert group.pop(4.0) is None and group.credit_stall_seconds == 1.5
    group.links[0].acknowledge(1, 5.0)
    assert group.pop(5.0) is not None and group.credit_stall_seconds == 2.5


def test_a_message_follows_the_one_before_while_the_link_never_runs_out_of_work() -> None:
    link = link_of(push(1, 300), credit_bytes=100)
    follows = []
    for seq in (1, 2, 3):  # one at a time: what is queued keeps the link busy
        follows += [message.follows for message in _pop_all(link, 0.0)]
        link.acknowledge(seq, 0.0)
    link.put(push(2, 100), now=1.0)  # after an idle time
    follows += [message.follows for message in _pop_all(link, 1.0)]
    link.credit_bytes = 1000
    link.put(push(3, 100), now=1.0)  # while the one before is in flight
    last = link.pop(1.0)
    assert last is not None
    assert [*follows, last.follows] == [False, True, True, False, True]
    decoded = decode_data(last.header)
    assert isinstance(decoded, Data) and decoded.follows


def test_a_group_sums_the_counters_of_its_links_and_knows_who_was_alone() -> None:
    group = group_of(2)
    for peer in (0, 1):
        group.put(peer, push(peer, 100), 0.0)
    alone = [popped[1].alone for popped in iter(lambda: group.pop(3.0), None)]
    assert alone == [True, False]
    assert (group.bytes_sent, group.messages_sent, group.partitions_sent) == (200, 2, 2)
    assert (group.queue_wait_seconds, group.queued) == (6.0, False)


# ---------------------------------------------------------------------------------------- properties


class Wire:
    """A link, the receiver of its peer, and a connection between them that may break at any time.

    Beside the link it keeps a plain list of the partitions that are queued, to know what must come next.
    """

    def __init__(self, credit_bytes: int, fusion_bytes: int) -> None:
        self.link = Link(0, credit_bytes, fusion_bytes)
        self.receiver = Receiver()
        self.connection: deque[Message] = deque()
        self.queued: list[tuple[int, int, int, int]] = []  # (-priority, tensor, start, count)
        self.arrived: list[tuple[int, int, int, bytes]] = []  # (tensor, start, count, payload)

    def put(self, tensor_id: int, size: int, partition_bytes: int, priority: int) -> None:
        self.link.put(push(tensor_id, size, partition_bytes, priority), 0.0)
        self.queued += [(-priority, tensor_id, start, count) for start, count in cut(0, size, 1, partition_bytes)]
        self.queued.sort()

    def pop(self) -> Optional[Message]:
        link = self.link
        before = link.in_flight_bytes
        message = link.pop(0.0)
        if message is None:
            assert not self.queued or before > 0  # an idle link with work always sends
            assert not self.queued or before >= link.credit_bytes or self.queued[0][3] > link.credit_bytes
            return None
        spans = [(-span.priority, span.tensor_id, span.start, span.count) for span in message.spans]
        assert spans == self.queued[: len(spans)], "the order of priority"
        del self.queued[: len(spans)]
        assert link.queued == bool(self.queued)
        payload_bytes = sum(span.count for span in message.spans)
        assert message.nbytes == payload_bytes + MESSAGE_BYTES
        assert len(spans) == 1 or payload_bytes <= link.fusion_bytes
        assert before == 0 or before < link.credit_bytes >= spans[0][3]
        assert link.in_flight_bytes == before + message.nbytes < link.credit_bytes + message.nbytes
        self.connection.append(message)
        return message

    def deliver(self) -> None:
        message = self.connection.popleft()
        if self.receiver.accept(message.seq):
            payload, offset = bytes(message.payload or b""), 0
            for span in message.spans:
                data = payload[offset : offset + span.count]
                self.arrived.append((span.tensor_id, span.start, span.count, data))
                offset += span.count

    def acknowledge(self) -> None:
        seq = self.receiver.acknowledge()
        if seq is not None:
            self.link.acknowledge(seq, 0.0)

    def break_connection(self) -> None:
        self.connection.clear()
        self.receiver.acknowledge()  # lost as well
        self.connection.extend(self.link.resume(self.receiver.expected, True, 0.0))


events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 400), st.integers(1, 200), st.integers(-3, 3)),
        st.tuples(st.sampled_from(["pop", "pop", "deliver", "acknowledge", "break_connection"])),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(events=events, credit_bytes=st.integers(1, 600), fusion_bytes=st.integers(0, 100))
def test_whatever_happens_every_partition_arrives_once_and_in_order(
    events: list[tuple[object, ...]], credit_bytes: int, fusion_bytes: int
) -> None:
    wire = Wire(credit_bytes, fusion_bytes)
    expected: dict[int, list[tuple[int, int, int, bytes]]] = {}
    for tensor_id, (name, *arguments) in enumerate(events):
        if name == "put":
            size, partition_bytes, priority = arguments
            wire.put(tensor_id, size, partition_bytes, priority)
            expected[tensor_id] = [
                (tensor_id, start, count, bytes([tensor_id]) * count)
                for start, count in cut(0, size, 1, partition_bytes)
            ]
        elif name != "deliver" or wire.connection:
            getattr(wire, str(name))()
    for _ in range(len(events) * 400):
        if not wire.link.queued and not wire.link.in_flight_bytes:
            break
        while wire.pop() is not None:
            pass
        while wire.connection:
            wire.deliver()
        wire.acknowledge()
    for tensor_id, partitions in expected.items():
        assert [partition for partition in wire.arrived if partition[0] == tensor_id] == partitions
    assert len(wire.arrived) == sum(map(len, expected.values()))
    assert (wire.link.queued, wire.link.oldest_sent_at, wire.link.in_flight_bytes) == (False, None, 0)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), credit_bytes=st.integers(1, 2 * MIB), fusion_bytes=st.sampled_from([0, 64 * KIB, MIB]))
def test_no_link_runs_ahead_of_another_that_has_work(data: st.DataObject, credit_bytes: int, fusion_bytes: int) -> None:
    partition_bytes = data.draw(st.sampled_from([64 * KIB, 512 * KIB, MIB]))
    group = group_of(2, partition_bytes=partition_bytes, credit_bytes=credit_bytes, fusion_bytes=fusion_bytes)
    payload = memoryview(bytes(16 * MIB))
    both_busy = False
    sent_bytes = [0, 0]  # since both became busy
    for _ in range(data.draw(st.integers(1, 40))):
        peer = data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):
            size = data.draw(st.integers(1, 16 * MIB))
            ranges = cut(0, size, 1, partition_bytes)
            group.put(peer, Transfer(SpanKind.PUSH, 1, 1, 0, 1, 0, payload, ranges), 0.0)
        else:
            group.links[peer].acknowledge(group.links[peer].messages_sent, 0.0)
        while True:
            if not both_busy:
                sent_bytes = [0, 0]
            both_busy = all(link.queued for link in group.links.values())
            popped = group.pop(0.0)
            if popped is None:
                break
            link, message = popped
            sent_bytes[link.peer] += message.nbytes
            if both_busy:
                lead_bytes = sent_bytes[link.peer] - sent_bytes[1 - link.peer]
                assert lead_bytes <= max(group.skew_bytes + MESSAGE_BYTES, message.nbytes)
    for _ in range(40 * 16 * MIB // (64 * KIB)):
        for link in group.links.values():
            link.acknowledge(link.messages_sent, 0.0)
        if group.pop(0.0) is None:
            break
    assert not group.queued, "nobody waits for ever"


def test_payload_that_has_a_place_is_counted_but_not_sent() -> None:
    link = Link(0, credit_bytes=1000, fusion_bytes=1000)
    ranges = iter([(100, 6), (106, 4)])
    link.put(Transfer(SpanKind.RESULT, 7, 3, 0, 4, 100, memoryview(bytes(40)), ranges, Place(9, 77, 4096)), 0.0)
    link.put(Transfer(SpanKind.RESULT, 8, 1, 0, 1, 0, memoryview(b"inline"), iter([(0, 6)])), 0.0)
    message = link.pop(0.0)
    assert message is not None
    assert [span.place for span in message.spans] == [Place(9, 77, 4096), Place(9, 77, 4096 + 24), None]
    assert message.payload == b"inline"
    assert message.nbytes == 46 + MESSAGE_BYTES and link.bytes_sent == 46
    assert link.in_flight_bytes == message.charged_bytes == 24 // 4 + 16 // 4 + 6 + MESSAGE_BYTES


def test_four_times_the_credit_may_be_under_way_in_shared_memory() -> None:
    link = Link(0, credit_bytes=1000)
    payload = memoryview(bytes(100_000))
    link.put(Transfer(SpanKind.PUSH, 1, 1, 0, 1, 0, payload, cut(0, 100_000, 1, 400), Place(9, 77, 0)), 0.0)
    messages = _pop_all(link, 0.0)
    assert sum(message.nbytes - MESSAGE_BYTES for message in messages) == 7 * 400, "each also takes MESSAGE_BYTES"


class _Tenth:
    """Encodes ten elements into one byte, and notes what it encoded."""

    def __init__(self) -> None:
        self.encoded: list[tuple[int, int]] = []

    def begin(self, version: int, gradient: Array) -> None:
        raise AssertionError("whoever makes the transfer begins")

    def encoded_bytes(self, count: int) -> int:
        return count // 10

    def encode(self, start: int, count: int) -> memoryview:
        self.encoded.append((start, count))
        return memoryview(bytes(count // 10))


def test_a_range_is_encoded_when_it_leaves_and_counted_as_what_it_has_become() -> None:
    encoder = _Tenth()
    ranges = cut(1000, 2500, 4, 4000)
    transfer = Transfer(SpanKind.PUSH, 1, 1, 0, 4, 1000, None, ranges, encoder=encoder)
    link = link_of(transfer, credit_bytes=100 + MESSAGE_BYTES)
    first = link.pop(0.0)
    assert first is not None and link.pop(0.0) is None, "a hundred bytes are in flight"
    assert encoder.encoded == [(0, 1000)]
    assert first.nbytes == 100 + MESSAGE_BYTES and first.spans[0].encoded_bytes == 100
    [again] = link.resume(1, True, 1.0)
    assert again is first and encoder.encoded == [(0, 1000)]
    link.acknowledge(1, 2.0)
    second = link.pop(2.0)
    assert second is not None and (second.spans[0].start, second.spans[0].count) == (2000, 500)
    assert encoder.encoded == [(0, 1000), (1000, 500)] and link.bytes_sent == 150


def test_partitions_for_a_near_peer_are_joined_up_to_half_the_credit() -> None:
    link = Link(0, credit_bytes=1000)
    link.near = True
    link.put(Transfer(SpanKind.PUSH_PULL, 1, 1, 0, 4, 0, memoryview(bytes(1200)), cut(0, 300, 4, 160)), 0.0)
    sizes = []
    while True:
        message = link.pop(1.0)
        if message is None:
            break
        sizes.append([(span.start, span.count) for span in message.spans])
        link.acknowledge(message.seq, 1.0)
    assert sizes == [[(0, 120)], [(120, 120)], [(240, 60)]]
    assert link.partitions_sent == 8
