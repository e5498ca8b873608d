"""A worker of a job that is not there: every other rank pushes the same as this one.

It answers operations from a thread of its own, as the communication thread does, and can be told to hold answers back
or to fail.
"""

from __future__ import annotations

import queue
import threading

import numpy as np

from ps.errors import AutoByteError, TensorError
from ps.messages import Shard, SpanKind, Tensor, TensorSpec
from ps.mxnet import connection
from ps.operation import Handle, Operation


class FakeWorker:
    """Stands for :class:`ps.Worker` of rank ``rank`` among ``num_workers``."""

    deadline_seconds = 5.0

    def __init__(self, rank=0, num_workers=2):
        self.rank = rank
        self.num_workers = num_workers
        self.values = {}
        self.tensors = {}
        self.seen = []  #: (kind, name, priority) of every operation, in the order of their submission
        self.noted = []  #: the times of steps
        self.error = None  #: what operations end with
        self.closed_with = None
        self.held = []  #: operations that are not answered before :meth:`release`
        self._holds = lambda operation: False
        self._queue = queue.Queue()
        threading.Thread(target=self._answer, daemon=True).start()

    # what the plugin calls

    def init(self, values):
        specs = [TensorSpec(name, value.shape, value.dtype.name) for name, value in values.items()]
        self.init_tensors(specs, values)

    def init_tensors(self, specs, values):
        for spec in specs:
            if spec.name in self.tensors:
                raise TensorError(f"init({spec.name!r}): exists")
            self.values[spec.name] = np.array(values[spec.name]).reshape(-1)
            self.tensors[spec.name] = Tensor(len(self.tensors), spec, [Shard(0, 0, self.values[spec.name].size)])

    def begin_init(self, specs, values, done):
        def end():
            if self.error is None:
                self.init_tensors(specs, values)
            done(self.error)

        self._queue.put(end)

    def tensor(self, name):
        return self.tensors[name]

    def allocate(self, size, dtype):
        return np.empty(size, dtype)

    def submit(self, operation):
        self.seen.append((operation.kind, operation.tensor.spec.name, operation.priority))
        self._queue.put(operation)

    def push_pull(self, name, value):
        result = np.empty_like(value)
        handle = Handle(name, 5.0, result)
        send, receive = value.reshape(-1).copy(), result.reshape(-1)
        self.submit(Operation(self.tensors[name], SpanKind.PUSH_PULL, send, receive, 0, handle.complete))
        return handle

    def barrier(self, name):
        self.seen.append(("barrier", name, 0))

    def note_training(self, step):
        self.noted.append(step)

    def close(self, error=""):
        self.closed_with = error

    # what tests call

    def hold(self, holds=lambda operation: True):
        """Do not answer the operations that ``holds`` chooses (default: all) until :meth:`release`."""
        self._holds = holds

    def release(self):
        """Answer what was held, and all that comes."""
        self._holds = lambda operation: False
        while self.held:
            self._queue.put(self.held.pop(0))

    def fail(self, error: AutoByteError):
        """End every operation from now on with ``error``."""
        self.error = error

    def _answer(self):
        while True:
            operation = self._queue.get()
            if not isinstance(operation, Operation):
                operation()
                continue
            if self._holds(operation):
                self.held.append(operation)
                continue
            name = operation.tensor.spec.name
            if self.error is None:
                if operation.kind not in (SpanKind.PULL, SpanKind.PULL_CHANGES):
                    self.values[name] = self.combine(operation.send)
                if operation.kind is not SpanKind.PUSH:
                    operation.receive[:] = self.values[name]
            operation.done(self.error)

    def combine(self, pushed):
        return (pushed * self.num_workers).astype(pushed.dtype)


def join(worker):
    """Make ``worker`` this process's connection."""
    connection._connection = connection.Connection(worker)
    return worker
