"""The event loop of :mod:`tuner.compiled`, as machine code: :mod:`tuner.simulator` with arrays in place of objects.

The rules are those of :mod:`ps.link`, :mod:`ps.partition` and :mod:`ps.ledger`, written once more because compiled code
cannot call objects; ``tests/tuner/test_compiled.py`` holds the two together. Objects are rows of arrays
(:mod:`tuner.arrays`), and a link's queue is a pairing heap of rows.

This is the only module that imports numba.
"""

from __future__ import annotations

from numba import njit

from ps.link import MAX_SPANS, MESSAGE_BYTES
from ps.transfer import SPAN_COST

# One name a line would be a page.
# isort: off
from tuner.arrays import (
    ACKS, ARRIVALS, ARRIVES, BUSY, BYTES, CHILD, CODE_BITS, COUNT, DONE, ENDS_AT, EVENTS, FIRST_AT, FIRST_LINK,
    FIRST_SECONDS, FORWARD, FORWARD_AT, FORWARD_SECONDS, FREE_MESSAGE, FREE_SPAN, FREE_TRANSFER, GRADIENT,
    GRADIENTS, INBOX_HEAD, INBOX_TAIL, IN_FLIGHT, ISSUED_AT, IS_ACK, KEY, KIND_BITS, LINK, MESSAGES, NEXT,
    NUM_LINKS, NUM_SPANS, PARTITIONS, POOL_MESSAGES, PREFER_SEND, PROGRESS, RECEIVED, ROOT, RX_FREE, SENT, SENT_AT,
    SEQUENCE, SHARD, SOURCE, SPAN, SPANS, SPAN_SHARD, STALL, STALLED_SINCE, START, STEP, STOP, TAKEN, TARGET,
    THREAD, TOTAL_EVENTS, TRANSFERS, TX_FREE, WAIT, WORKER,
    Costs, Model, Result, grown, new_state,
)  # fmt: skip
from tuner.layout import ITEM_BYTES
# isort: on

__all__ = ["run"]

#: Nothing is allocated in compiled code, so it need not count references, which would take most of its time.
compiled = njit(cache=True, nogil=True, _nrt=False)
#: Parts of the loop, which pass on more arrays than a call is worth.
inlined = njit(inline="always", nogil=True, _nrt=False)


# --------------------------------------------------------------------------------------------- events


@compiled
def _schedule(counters, event_at, events, at, kind, subject):
    size = counters[EVENTS]
    counters[EVENTS] = size + 1
    code = (counters[SEQUENCE] << CODE_BITS) | (subject << KIND_BITS) | kind
    counters[SEQUENCE] += 1
    while size > 0:
        parent = (size - 1) >> 1
        if event_at[parent] <= at:
            break
        event_at[size] = event_at[parent]
        events[size] = events[parent]
        size = parent
    event_at[size] = at
    events[size] = code


@compiled
def _remove_first(counters, event_at, events):
    """Remove the event at the top of the heap, after the caller has read it."""
    size = counters[EVENTS] - 1
    counters[EVENTS] = size
    at, code = event_at[size], events[size]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            event_at[other] < event_at[child] or (event_at[other] == event_at[child] and events[other] < events[child])
        ):
            child = other
        if at < event_at[child] or (at == event_at[child] and code < events[child]):
            break
        event_at[hole] = event_at[child]
        events[hole] = events[child]
        hole = child
    event_at[hole] = at
    events[hole] = code


# --------------------------------------------------------------------------------------------- pools


@compiled
def _take_row(counters, rows, size, free):
    """Return a free row of a pool, whose counters are ``size`` and ``free``."""
    row = counters[free]
    if row >= 0:
        counters[free] = rows[row, NEXT]
    else:
        row = counters[size]
        counters[size] = row + 1
    return row


@compiled
def _free_row(counters, rows, free, row):
    rows[row, NEXT] = counters[free]
    counters[free] = row


# ------------------------------------------------------------------------------- links, as in ps.link


@compiled
def _meld(transfers, a, b):
    if a < 0:
        return b
    if b < 0:
        return a
    if transfers[b, KEY] < transfers[a, KEY]:
        a, b = b, a
    transfers[b, NEXT] = transfers[a, CHILD]
    transfers[a, CHILD] = b
    return a


@compiled
def _without_root(transfers, root):
    """Return the root of a pairing heap without its first member: siblings are melded in pairs, then all together."""
    pairs = -1
    child = transfers[root, CHILD]
    while child >= 0:
        other = transfers[child, NEXT]
        following = -1 if other < 0 else transfers[other, NEXT]
        pair = _meld(transfers, child, other)
        transfers[pair, NEXT] = pairs
        pairs = pair
        child = following
    rest = -1
    while pairs >= 0:
        following = transfers[pairs, NEXT]
        transfers[pairs, NEXT] = -1
        rest = _meld(transfers, rest, pairs)
        pairs = following
    return rest


@inlined
def _put(s, model, link, shard, start, stop, now):
    """Queue elements of a shard on a link."""
    links, transfers = s.links, s.transfers
    if links[link, ROOT] < 0:
        node = links[link, SOURCE]
        least = -1
        first = s.nodes[node, FIRST_LINK]
        for other in range(first, first + s.nodes[node, NUM_LINKS]):
            if links[other, ROOT] >= 0 and (least < 0 or links[other, PROGRESS] < least):
                least = links[other, PROGRESS]
        if least >= 0:
            links[link, PROGRESS] = least
    row = _take_row(s.counters, transfers, TRANSFERS, FREE_TRANSFER)
    s.counters[ARRIVALS] += 1
    transfers[row, KEY] = (model.shard_tensor[shard] << 40) | s.counters[ARRIVALS]
    transfers[row, SHARD] = shard
    transfers[row, START] = start
    transfers[row, STOP] = stop
    transfers[row, CHILD] = -1
    transfers[row, NEXT] = -1
    s.queued_at[row] = now
    links[link, ROOT] = _meld(transfers, links[link, ROOT], row)


@inlined
def _next_bytes(s, costs, node, link):
    row = s.links[link, ROOT]
    return min(costs.partition_elements[node], s.transfers[row, STOP] - s.transfers[row, START]) * ITEM_BYTES


@inlined
def _choose(s, costs, node, now):
    """Return the link that may send next, or -1."""
    links, times = s.links, s.node_times
    credit = costs.link_credit_bytes[node]
    slowest = chosen = -1
    first = s.nodes[node, FIRST_LINK]
    for link in range(first, first + s.nodes[node, NUM_LINKS]):
        if links[link, ROOT] >= 0:
            progress = links[link, PROGRESS]
            if slowest < 0 or progress < links[slowest, PROGRESS]:
                slowest = link
            if chosen < 0 or progress < links[chosen, PROGRESS]:
                in_flight = links[link, IN_FLIGHT]
                if in_flight == 0 or (in_flight < credit and _next_bytes(s, costs, node, link) <= credit):
                    chosen = link
    if times[node, STALLED_SINCE] >= 0:
        times[node, STALL] += now - times[node, STALLED_SINCE]
        times[node, STALLED_SINCE] = -1.0
    if slowest < 0:
        return -1
    if chosen >= 0 and node < costs.num_workers:  # servers do not bound the skew
        lead = links[chosen, PROGRESS] - links[slowest, PROGRESS]
        most = max(_next_bytes(s, costs, node, chosen), costs.fusion_bytes[node])
        if lead != 0 and lead + most > costs.skew_bytes[node]:
            chosen = -1
    if chosen < 0:
        times[node, STALLED_SINCE] = now
    return chosen


@inlined
def _pop(s, costs, node, link, now):
    """Make the next message of a link: one partition, or several small ones."""
    links, transfers, spans = s.links, s.transfers, s.spans
    fusion = min(costs.fusion_bytes[node], costs.link_credit_bytes[node])
    max_spans = MAX_SPANS if fusion else 1
    payload = num_spans = 0
    first = last = -1
    while True:
        root = links[link, ROOT]
        start = transfers[root, START]
        count = min(costs.partition_elements[node], transfers[root, STOP] - start)
        payload += count * ITEM_BYTES
        span = _take_row(s.counters, spans, SPANS, FREE_SPAN)
        spans[span, SPAN_SHARD] = transfers[root, SHARD]
        spans[span, COUNT] = count
        spans[span, NEXT] = -1
        if last < 0:
            first = span
        else:
            spans[last, NEXT] = span
        last = span
        num_spans += 1
        s.node_times[node, WAIT] += now - s.queued_at[root]
        transfers[root, START] = start + count
        if start + count == transfers[root, STOP]:
            links[link, ROOT] = _without_root(transfers, root)
            _free_row(s.counters, transfers, FREE_TRANSFER, root)
            if links[link, ROOT] < 0:
                break
        if num_spans >= max_spans or payload + _next_bytes(s, costs, node, link) > fusion:
            break
    message = _take_row(s.counters, s.messages, POOL_MESSAGES, FREE_MESSAGE)
    s.messages[message, LINK] = link
    s.messages[message, BYTES] = payload + MESSAGE_BYTES
    s.messages[message, SPAN] = first
    s.messages[message, IS_ACK] = 0
    s.messages[message, NUM_SPANS] = num_spans
    s.message_times[message, SENT_AT] = now
    links[link, IN_FLIGHT] += payload + MESSAGE_BYTES
    links[link, PROGRESS] += payload + MESSAGE_BYTES
    s.nodes[node, PARTITIONS] += num_spans
    s.nodes[node, MESSAGES] += 1
    return message


# ------------------------------------------------------------------------------------------ the nodes


@inlined
def _size(s, costs, node, message):
    """Return the bytes that a message, or its acknowledgement, takes of the network card of ``node``."""
    size = MESSAGE_BYTES if s.messages[message, IS_ACK] else s.messages[message, BYTES]
    if node < costs.num_workers:
        return float(size)
    return size * costs.weight[s.links[s.messages[message, LINK], WORKER]]


@inlined
def _transmit(s, costs, node, message, now):
    """Have the network card of ``node`` send a message, after those before it."""
    begins = max(s.node_times[node, TX_FREE], now)
    ends = begins + _size(s, costs, node, message) * costs.send_byte_seconds[node]
    s.node_times[node, TX_FREE] = ends
    s.message_times[message, ENDS_AT] = ends + costs.latency_seconds
    _schedule(s.counters, s.event_at, s.events, begins + costs.latency_seconds, ARRIVES, message)


@inlined
def _arrive(s, costs, node, message, now):
    """Have the network card of ``node`` receive a message whose first byte is there."""
    begins = max(s.node_times[node, RX_FREE], now)
    ends = begins + _size(s, costs, node, message) * costs.receive_byte_seconds[node]
    s.node_times[node, RX_FREE] = ends
    _schedule(s.counters, s.event_at, s.events, max(ends, s.message_times[message, ENDS_AT]), RECEIVED, message)


@inlined
def _deliver(s, node, message):
    """Put what has been received into the inbox of the communication thread."""
    s.messages[message, NEXT] = -1
    if s.nodes[node, INBOX_HEAD] < 0:
        s.nodes[node, INBOX_HEAD] = message
    else:
        s.messages[s.nodes[node, INBOX_TAIL], NEXT] = message
    s.nodes[node, INBOX_TAIL] = message


@inlined
def _run(s, costs, node, now):
    """Give an idle communication thread its next message: acknowledgements at once, then in and out by turns."""
    nodes, messages = s.nodes, s.messages
    head = nodes[node, INBOX_HEAD]
    while head >= 0 and messages[head, IS_ACK]:
        following = messages[head, NEXT]
        _acknowledged(s, costs, node, head, now)
        head = following
    nodes[node, INBOX_HEAD] = head
    message, kind = head, TAKEN
    if nodes[node, PREFER_SEND] or head < 0:
        link = _choose(s, costs, node, now)
        if link >= 0:
            message, kind = _pop(s, costs, node, link, now), SENT
    if message < 0:
        return
    payload = messages[message, BYTES] - MESSAGE_BYTES
    seconds = costs.overhead_seconds[node] * (1 + SPAN_COST * (messages[message, NUM_SPANS] - 1))
    seconds += payload * costs.byte_seconds[node]
    if kind == TAKEN:
        nodes[node, INBOX_HEAD] = messages[head, NEXT]
        seconds += payload * costs.sum_byte_seconds[node]
    if node >= costs.num_workers:
        seconds *= costs.weight[s.links[messages[message, LINK], WORKER]]
    nodes[node, BUSY] = 1
    s.node_times[node, THREAD] += seconds
    _schedule(s.counters, s.event_at, s.events, now + seconds, kind, message)


@inlined
def _acknowledged(s, costs, node, message, now):
    s.links[s.messages[message, LINK], IN_FLIGHT] -= s.messages[message, BYTES]
    if node < costs.num_workers:
        s.acks[node, s.num_acks[node] % ACKS] = now - s.message_times[message, SENT_AT]
        s.num_acks[node] += 1
    _free_row(s.counters, s.messages, FREE_MESSAGE, message)


@inlined
def _taken(s, model, costs, node, message, now):
    """A message has been worked on: sum its spans, or count them as answers."""
    worker = s.links[s.messages[message, LINK], WORKER]
    span = s.messages[message, SPAN]
    while span >= 0:
        shard, count = s.spans[span, SPAN_SHARD], s.spans[span, COUNT]
        if node >= costs.num_workers:
            _sum(s, model, costs, node, worker, shard, count, now)
        else:
            _answered(s, model, costs, worker, model.shard_tensor[shard], count, now)
        following = s.spans[span, NEXT]
        _free_row(s.counters, s.spans, FREE_SPAN, span)
        span = following


@inlined
def _sum(s, model, costs, node, worker, shard, count, now):
    """The ledger: raise the worker's watermark, and answer what all workers have pushed."""
    marks, num_workers = s.marks, costs.num_workers
    complete = s.complete[shard]
    lowest = marks[shard, worker] == complete
    marks[shard, worker] += count
    if not lowest:
        return
    least = marks[shard, 0]
    for other in range(1, num_workers):
        least = min(least, marks[shard, other])
    if least == complete:
        return
    s.complete[shard] = least
    if least == model.shard_elements[shard]:
        s.complete[shard] = 0
        for other in range(num_workers):
            marks[shard, other] = 0
    first = s.nodes[node, FIRST_LINK]
    for other in range(num_workers):
        _put(s, model, first + other, shard, complete, least, now)


# ---------------------------------------------------------------------------------------- the workers


@inlined
def _gradient(s, model, costs, worker, now):
    """A gradient is ready: queue it, and go on with the backward pass."""
    workers, times = s.workers, s.worker_times
    tensor = workers[worker, GRADIENTS]
    first = s.nodes[worker, FIRST_LINK]
    s.remaining[worker, tensor] = model.elements[tensor]
    for shard in range(model.shard_first[tensor], model.shard_first[tensor + 1]):
        _put(s, model, first + model.shard_server[shard], shard, 0, model.shard_elements[shard], now)
    if tensor == 0:
        times[worker, ISSUED_AT] = now
    else:
        workers[worker, GRADIENTS] = tensor - 1
        following = now + model.backward_seconds[tensor - 1] * costs.compute[worker]
        _schedule(s.counters, s.event_at, s.events, following, GRADIENT, worker)


@inlined
def _answered(s, model, costs, worker, tensor, count, now):
    """Elements of a sum are there: go on with the forward pass as far as it goes."""
    s.remaining[worker, tensor] -= count
    if s.remaining[worker, tensor] > 0:
        return
    workers, times = s.workers, s.worker_times
    step, num_steps = workers[worker, STEP], s.step_ends.shape[1]
    if tensor == 0:
        times[worker, FIRST_AT] = now
        if step > 0 or num_steps == 1:
            times[worker, FIRST_SECONDS] += now - times[worker, ISSUED_AT]
    if tensor != workers[worker, FORWARD]:
        return
    at = max(times[worker, FORWARD_AT], now)
    num_tensors = model.elements.size
    while tensor < num_tensors and s.remaining[worker, tensor] == 0:
        at += model.forward_seconds[tensor] * costs.compute[worker]
        tensor += 1
    times[worker, FORWARD_AT] = at
    workers[worker, FORWARD] = tensor
    if tensor < num_tensors:
        return
    s.step_ends[worker, step] = at
    if step > 0 or num_steps == 1:
        times[worker, FORWARD_SECONDS] += at - times[worker, FIRST_AT]
    workers[worker, STEP] = step + 1
    if step + 1 == num_steps:
        s.counters[DONE] += 1
        return
    _begin(s, model, costs, worker, at)


@inlined
def _begin(s, model, costs, worker, at):
    """Begin a backward pass."""
    last = model.elements.size - 1
    s.workers[worker, FORWARD] = 0
    s.workers[worker, GRADIENTS] = last
    s.remaining[worker, :] = -1
    following = at + model.backward_seconds[last] * costs.compute[worker]
    _schedule(s.counters, s.event_at, s.events, following, GRADIENT, worker)


# ------------------------------------------------------------------------------------------- the loop


@compiled
def _go_on(s, model, costs, room):
    """Go on until all workers are done; return False where a pool is full."""
    counters, nodes, links = s.counters, s.nodes, s.links
    limit = s.event_at.size - room  # all pools have the same size
    while counters[EVENTS] > 0 and counters[DONE] < costs.num_workers:
        if max(counters[TRANSFERS], counters[SPANS], counters[POOL_MESSAGES], counters[EVENTS]) > limit:
            return False
        now, code = s.event_at[0], s.events[0]
        _remove_first(counters, s.event_at, s.events)
        counters[TOTAL_EVENTS] += 1
        kind, subject = code & ((1 << KIND_BITS) - 1), (code & ((1 << CODE_BITS) - 1)) >> KIND_BITS
        if kind == GRADIENT:
            node = subject
            _gradient(s, model, costs, node, now)
        else:
            link = s.messages[subject, LINK]
            node = links[link, SOURCE] if (kind == SENT or s.messages[subject, IS_ACK]) else links[link, TARGET]
            if kind == ARRIVES:
                _arrive(s, costs, node, subject, now)
                continue
            if kind == RECEIVED:
                _deliver(s, node, subject)
            else:
                if kind == TAKEN:
                    _taken(s, model, costs, node, subject, now)
                    s.messages[subject, IS_ACK] = 1
                _transmit(s, costs, node, subject, now)
                nodes[node, BUSY] = 0
                nodes[node, PREFER_SEND] = kind == TAKEN
        if not nodes[node, BUSY]:
            _run(s, costs, node, now)
    return True


def run(model: Model, costs: Costs, num_steps: int) -> Result:
    """Return the :class:`Result` of so many steps; step ends are NaN where the simulation came to a halt."""
    room = MAX_SPANS * costs.num_workers + costs.weight.size + 8  # rows that one event can take of any pool
    state = grown(new_state(model, costs, num_steps), 2 * room + 4096)
    for worker in range(costs.num_workers):
        _begin.py_func(state, model, costs, worker, 0.0)
    while not _go_on(state, model, costs, room):
        state = grown(state, room)
    events = int(state.counters[TOTAL_EVENTS])
    return Result(
        state.step_ends, state.worker_times, state.node_times, state.nodes, state.acks, state.num_acks, events
    )
