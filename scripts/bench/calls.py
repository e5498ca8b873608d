"""One worker of a job that times single calls of a store, each waited for before the next one begins.

Started by ``job.py`` as ``python -m bench.calls STORE -``. A line ``CALL COUNT`` of its standard input names one of
:data:`CALLS` and how often to time it; the answer is the list of seconds. All workers make the same calls at the same
time, since most need all of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Dict, List

import numpy as np

from bench.stores import AUTOBYTE, STORES

__all__ = ["CALLS"]

ROWS, WIDTH = 100_000, 64
SMALL, LARGE, SPARSE = 900, 901, 902


class Calls:
    """A store with some keys; each method makes one call and waits for what it brings."""

    def __init__(self, kvstore: str, mx: Any) -> None:
        self._mx = mx
        self._store = mx.kv.create(kvstore)
        self.rank = self._store.rank
        self._small, self._large = mx.nd.ones((10,)), mx.nd.ones((1 << 18,))
        self._many = [mx.nd.ones((1000,)) for _ in range(50)]
        self._out = [mx.nd.zeros((1000,)) for _ in range(50)]
        self._fresh = 1000
        self._store.init(SMALL, self._small)
        self._store.init(LARGE, self._large)
        self._store.init(list(range(50)), self._many)
        self._store.init(SPARSE, mx.nd.ones((ROWS, WIDTH)).tostype("row_sparse"))
        rng = np.random.default_rng(7)
        few, some = (np.sort(rng.choice(ROWS, count, replace=False)) for count in (10, 1000))
        self._few, self._some = mx.nd.array(few, dtype="int64"), mx.nd.array(some, dtype="int64")
        shape = (ROWS, WIDTH)
        self._gradient = mx.nd.sparse.row_sparse_array((np.ones((1000, WIDTH), np.float32), some), shape=shape)
        self._got = mx.nd.sparse.zeros("row_sparse", shape)
        mx.nd.waitall()

    def barrier(self) -> None:
        self._store._barrier()

    def init_small(self) -> None:
        self._fresh += 1
        self._store.init(self._fresh, self._small)
        self._store.pull(self._fresh, out=self._small)
        self._small.wait_to_read()

    def broadcast_50_keys(self) -> None:
        keys = list(range(self._fresh + 1, self._fresh + 51))
        self._fresh += 50
        self._store.broadcast(keys, self._many, out=self._out)
        self._mx.nd.waitall()

    def pushpull_40_bytes(self) -> None:
        self._store.pushpull(SMALL, self._small, out=self._small)
        self._small.wait_to_read()

    def push_then_pull_40_bytes(self) -> None:
        self._store.push(SMALL, self._small)
        self._store.pull(SMALL, out=self._small)
        self._small.wait_to_read()

    def pull_40_bytes(self) -> None:
        self._store.pull(SMALL, out=self._small)
        self._small.wait_to_read()

    def pushpull_1_mb(self) -> None:
        self._store.pushpull(LARGE, self._large, out=self._large)
        self._large.wait_to_read()

    def pushpull_50_keys(self) -> None:
        self._store.pushpull(list(range(50)), self._many, out=self._out)
        self._mx.nd.waitall()

    def row_sparse_pull_10_rows(self) -> None:
        self._store.row_sparse_pull(SPARSE, out=self._got, row_ids=self._few)
        self._got.wait_to_read()

    def push_and_row_sparse_pull_1000_rows(self) -> None:
        self._store.push(SPARSE, self._gradient)
        self._store.row_sparse_pull(SPARSE, out=self._got, row_ids=self._some)
        self._got.wait_to_read()

    def set_optimizer(self) -> None:
        """The last one: from here on pushes mean updates."""
        self._store.set_optimizer(self._mx.optimizer.SGD(learning_rate=0.1))


CALLS: Dict[str, Callable[[Calls], None]] = {
    name: call for name, call in vars(Calls).items() if not name.startswith("_") and callable(call)
}


def main() -> None:
    """Open the store, obey the orders, leave."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    store = STORES[sys.argv[1]]
    if store.processes is AUTOBYTE:
        import ps.mxnet  # noqa: F401
    import mxnet

    calls = Calls(store.kvstore, mxnet)
    print(json.dumps({"rank": calls.rank}), file=answers)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        name, count = line.split()
        seconds: List[float] = []
        for _ in range(int(count)):
            started = time.monotonic()
            CALLS[name](calls)
            seconds.append(time.monotonic() - started)
        print(json.dumps(seconds), file=answers)


if __name__ == "__main__":
    main()
