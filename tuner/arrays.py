"""What the compiled event loop works on: arrays with rows for objects, whose columns are named here.

Pools of transfers, spans, messages and events grow in one place, :func:`grown`, between two events; what is free in
them is chained. The loop itself is :mod:`tuner.kernel`. numba keeps what it has compiled until *that* file changes:
after a change of a column here, touch it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numba's arrays are NumPy's, of whatever type

#: So many of a worker's last round trips are kept.
ACKS = 1024

# Events: what happens, to a worker or to a message (or to its acknowledgement, which takes its row).
GRADIENT, ARRIVES, RECEIVED, SENT, TAKEN = 0, 1, 2, 3, 4
#: An event's code is its number, for the order of those at the same time, then its subject, then what happens.
KIND_BITS, CODE_BITS = 3, 28

# Columns of nodes: times ...
TX_FREE, RX_FREE, STALLED_SINCE, STALL, WAIT, THREAD = 0, 1, 2, 3, 4, 5
# ... and counts.
BUSY, PREFER_SEND, INBOX_HEAD, INBOX_TAIL, PARTITIONS, MESSAGES, FIRST_LINK, NUM_LINKS = 0, 1, 2, 3, 4, 5, 6, 7

# Columns of links.
IN_FLIGHT, PROGRESS, ROOT, SOURCE, TARGET, WORKER = 0, 1, 2, 3, 4, 5

# Columns of transfers, of the spans of messages, and of messages. NEXT also chains what is free.
NEXT, KEY, SHARD, START, STOP, CHILD = 0, 1, 2, 3, 4, 5
SPAN_SHARD, COUNT = 1, 2
LINK, BYTES, SPAN, IS_ACK, NUM_SPANS = 1, 2, 3, 4, 5
SENT_AT, ENDS_AT = 0, 1

# Columns of workers: how far they are ...
GRADIENTS, FORWARD, STEP = 0, 1, 2
# ... and when.
FORWARD_AT, ISSUED_AT, FIRST_AT, FIRST_SECONDS, FORWARD_SECONDS = 0, 1, 2, 3, 4

# Counters: sizes of pools and heads of their chains of free rows.
EVENTS, SEQUENCE, DONE, ARRIVALS, TOTAL_EVENTS = 0, 1, 2, 3, 4
TRANSFERS, FREE_TRANSFER, SPANS, FREE_SPAN, POOL_MESSAGES, FREE_MESSAGE = 5, 6, 7, 8, 9, 10


class Model(NamedTuple):
    """Tensors and shards; ``shard_first[i]`` is the first shard of tensor i, and there is one more at the end."""

    forward_seconds: Array
    backward_seconds: Array
    elements: Array
    shard_first: Array
    shard_tensor: Array
    shard_server: Array
    shard_elements: Array


class Costs(NamedTuple):
    """Per node, workers first: what it can do and how it is configured."""

    num_workers: int
    latency_seconds: float
    weight: Array  # so many workers are like this one
    compute: Array  # factor on the time of computation
    send_byte_seconds: Array
    receive_byte_seconds: Array
    overhead_seconds: Array
    byte_seconds: Array
    sum_byte_seconds: Array
    partition_elements: Array
    link_credit_bytes: Array
    fusion_bytes: Array
    skew_bytes: Array


class State(NamedTuple):
    """Everything that changes; pools have the same number of rows, all of them."""

    counters: Array
    node_times: Array
    nodes: Array
    links: Array
    transfers: Array
    queued_at: Array
    spans: Array
    messages: Array
    message_times: Array
    event_at: Array
    events: Array
    marks: Array
    complete: Array
    remaining: Array
    workers: Array
    worker_times: Array
    step_ends: Array
    acks: Array
    num_acks: Array


class Result(NamedTuple):
    """Per worker, except for the number of events."""

    step_ends: Array
    worker_times: Array
    node_times: Array
    nodes: Array
    acks: Array
    num_acks: Array
    events: int


def new_state(model: Model, costs: Costs, num_steps: int) -> State:
    workers, num_nodes = costs.num_workers, costs.weight.size
    servers, shards, tensors = num_nodes - workers, model.shard_server.size, model.elements.size
    counters = np.zeros(11, np.int64)
    counters[[FREE_TRANSFER, FREE_SPAN, FREE_MESSAGE]] = -1
    node_times = np.zeros((num_nodes, 6))
    node_times[:, STALLED_SINCE] = -1.0
    sources = np.repeat(np.arange(num_nodes), [servers] * workers + [workers] * servers)
    targets = np.concatenate([np.tile(np.arange(workers, num_nodes), workers), np.tile(np.arange(workers), servers)])
    links = np.zeros((sources.size, 6), np.int64)
    links[:, ROOT] = -1
    links[:, SOURCE], links[:, TARGET], links[:, WORKER] = sources, targets, np.minimum(sources, targets)
    nodes = np.zeros((num_nodes, 8), np.int64)
    nodes[:, INBOX_HEAD] = nodes[:, INBOX_TAIL] = -1
    nodes[:, FIRST_LINK] = np.searchsorted(sources, np.arange(num_nodes))
    nodes[:, NUM_LINKS] = np.bincount(sources)
    return State(
        counters=counters,
        node_times=node_times,
        nodes=nodes,
        links=links,
        transfers=np.empty((0, 6), np.int64),
        queued_at=np.empty(0),
        spans=np.empty((0, 3), np.int64),
        messages=np.empty((0, 6), np.int64),
        message_times=np.empty((0, 2)),
        event_at=np.empty(0),
        events=np.empty(0, np.int64),
        marks=np.zeros((shards, workers), np.int64),
        complete=np.zeros(shards, np.int64),
        remaining=np.zeros((workers, tensors), np.int64),
        workers=np.zeros((workers, 3), np.int64),
        worker_times=np.zeros((workers, 5)),
        step_ends=np.full((workers, num_steps), np.nan),
        acks=np.zeros((workers, ACKS)),
        num_acks=np.zeros(workers, np.int64),
    )


def grown(state: State, room: int) -> State:
    """Return the state with pools of at least twice their size, and room for what one event can make."""
    pools = ("transfers", "queued_at", "spans", "messages", "message_times", "event_at", "events")
    return state._replace(**{name: _longer(getattr(state, name), room) for name in pools})


def _longer(rows: Array, room: int) -> Array:
    longer = np.empty((2 * len(rows) + room, *rows.shape[1:]), rows.dtype)
    longer[: len(rows)] = rows
    return longer
