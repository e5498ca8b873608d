"""One worker of a benchmark job: issues a model's gradients the way a backward pass does, and times them.

Started by ``job.py`` as ``python -m bench.worker STORE PROFILE`` with the job's ``DMLC_*`` variables. It obeys
the lines of its standard input and answers each with one line of JSON:

* ``round K``: set the gradients to pattern K, sum them, and compare every element of every result;
* ``step``: sum once, and answer when it started, when the first tensor and when all had arrived (in seconds
  of the machine's monotonic clock, which all processes share, in whatever network namespace);
* ``end``: close the store.

Patterns are small whole numbers that repeat with a prime period and differ by tensor, rank and round: a range
that is misplaced, missing, summed twice or left from an earlier round is seen, and sums are exact.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, Optional, Protocol, Sequence, Tuple

import numpy as np

from bench.profiles import Tensor, profile
from bench.stores import AUTOBYTE, STORES, Store

PERIOD = 1009
#: Elements set or compared at a time; a multiple of the period.
CHUNK = PERIOD * 1000


class Gradients(Protocol):
    """A model's gradients and their sums in a store under test, by index of the tensor."""

    rank: int

    def issue(self, index: int) -> None:
        """Start the sum of one tensor over the workers, with priority ``-index``."""

    def wait(self, index: int) -> None:
        """Block until the sum of one tensor has arrived."""

    def flat(self, index: int) -> Tuple[Any, Any]:
        """Return the gradient and the sum of one tensor, one-dimensional and not copied."""

    def close(self) -> None:
        """Leave the job."""


class MXNetGradients:
    """In a store behind MXNet's KVStore interface."""

    def __init__(self, store: Store, tensors: Sequence[Tensor]) -> None:
        if store.processes is AUTOBYTE:
            import ps.mxnet  # noqa: F401  (registers the store; before mxnet, as Python 3.12 needs)
        import mxnet

        self._store = mxnet.kv.create(store.kvstore)
        self._one_call = store.one_call
        self.rank = self._store.rank
        self._gradients = [mxnet.nd.zeros(tensor.shape) for tensor in tensors]
        self._sums = [mxnet.nd.zeros(tensor.shape) for tensor in tensors]
        self._store.init(list(range(len(tensors))), self._sums)

    def issue(self, index: int) -> None:
        gradient, total = self._gradients[index], self._sums[index]
        if self._one_call:
            self._store.pushpull(index, gradient, out=total, priority=-index)
        else:
            self._store.push(index, gradient, priority=-index)
            self._store.pull(index, out=total, priority=-index)

    def wait(self, index: int) -> None:
        self._sums[index].wait_to_read()

    def flat(self, index: int) -> Tuple[Any, Any]:
        return self._gradients[index].reshape(-1), self._sums[index].reshape(-1)

    def close(self) -> None:
        """Stores leave when the interpreter ends."""


class NumpyGradients:
    """In AutoByte's NumPy API: what remains when MXNet is left out."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        from ps.operation import Handle
        from ps.worker import Worker

        self._worker = Worker()
        self.rank = self._worker.rank
        self._names = [tensor.name for tensor in tensors]
        self._gradients = [np.zeros(tensor.shape, np.float32) for tensor in tensors]
        self._sums = [np.zeros(tensor.shape, np.float32) for tensor in tensors]
        self._handles: Dict[int, Handle] = {}
        self._worker.init(dict(zip(self._names, self._sums)))

    def issue(self, index: int) -> None:
        self._handles[index] = self._worker.push_pull(
            self._names[index], self._gradients[index], out=self._sums[index], priority=-index
        )

    def wait(self, index: int) -> None:
        self._handles.pop(index).wait()

    def flat(self, index: int) -> Tuple[Any, Any]:
        return self._gradients[index].reshape(-1), self._sums[index].reshape(-1)

    def close(self) -> None:
        self._worker.close()


def pattern(index: int, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a chunk of what rank 0 pushes for tensor ``index`` in round ``number``; rank r pushes r + 1 times that."""
    one = (np.arange(PERIOD) * 31 + index * 7 + number * 13) % PERIOD
    return np.resize(one.astype(np.float32), CHUNK)


def checked_round(gradients: Gradients, tensors: Sequence[Tensor], num_workers: int, number: int) -> Optional[str]:
    """Sum pattern ``number`` and return what is wrong with the results, if anything is."""
    for index, tensor in enumerate(tensors):
        own = pattern(index, number) * (gradients.rank + 1)
        gradient, _ = gradients.flat(index)
        for start in range(0, tensor.size, CHUNK):
            stop = min(start + CHUNK, tensor.size)
            gradient[start:stop] = own[: stop - start]
    step(gradients, tensors)
    for index, tensor in enumerate(tensors):
        expected = pattern(index, number) * (num_workers * (num_workers + 1) // 2)
        _, total = gradients.flat(index)
        for start in range(0, tensor.size, CHUNK):
            part = total[start : min(start + CHUNK, tensor.size)]
            found = np.asarray(part if isinstance(part, np.ndarray) else part.asnumpy())
            wrong = np.flatnonzero(found != expected[: found.size])
            if wrong.size:
                at = int(wrong[0])
                return (
                    f"rank {gradients.rank}, round {number}, {tensor.name}: element {start + at} is {found[at]}, "
                    f"expected {expected[at]}; {wrong.size} of the {found.size} elements from {start} on are wrong"
                )
    return None


def step(gradients: Gradients, tensors: Sequence[Tensor]) -> Dict[str, float]:
    """Issue all tensors from the last to the first, wait for them from the first to the last; return the times."""
    start = time.monotonic()
    for index in reversed(range(len(tensors))):
        gradients.issue(index)
    gradients.wait(0)
    first = time.monotonic()
    for index in range(1, len(tensors)):
        gradients.wait(index)
    return {"start": start, "first": first, "end": time.monotonic()}


def main() -> None:
    """Open the store, obey the orders, leave."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    store, tensors = STORES[sys.argv[1]], profile(sys.argv[2])
    num_workers = int(os.environ["DMLC_NUM_WORKER"])
    gradients: Gradients = MXNetGradients(store, tensors) if store.kvstore else NumpyGradients(tensors)
    print(json.dumps({"rank": gradients.rank}), file=answers)
    for line in sys.stdin:
        order, *numbers = line.split()
        if order == "end":
            break
        if order == "round":
            answer: Any = {"wrong": checked_round(gradients, tensors, num_workers, int(numbers[0]))}
        else:
            answer = step(gradients, tensors)
        print(json.dumps(answer), file=answers)
    gradients.close()


if __name__ == "__main__":
    main()
