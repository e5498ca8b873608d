"""One worker that trains a model whose computation is emulated, and whose communication is real.

Started by ``bench_traces.py`` as ``python -m bench.emulated MODEL SCALE COMPUTE_SECONDS`` with the job's variables; it
obeys the orders of :mod:`bench.job`. Each ``step`` does what a step of a Gluon script does, on the same store:

* forward: one engine operation per layer, in order; each needs the sums of its layer's tensors of the step before;
* the loss, recorded by autograd, and its backward: by them the store tells forward from backward passes;
* backward: one operation per layer in reverse order, after which the layer's gradients are ready;
* ``pushpull(index, ..., priority=-index)`` for all tensors, in the order of ``gluon.Trainer``;
* then it waits for the loss, while the engine goes on with the backward pass: that is the end of the step.

A layer's operation takes its time without using the CPU, as on an accelerator: hosts of the lab share the machine's
cores, on which real layers would compute in turn. Times and sizes are those of ``tuner.profiles``; the sizes times
SCALE, the times such that both passes together take COMPUTE_SECONDS.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from bench.profiles import FLOAT32_BYTES, Tensor
from bench.stores import STORES
from bench.worker import MXNetGradients, checked_round
from tuner.profiles import ModelProfile, load

__all__ = ["Device", "Layer", "layers", "tensors"]

#: An operation that could begin at most so long after the one before it has followed it without a gap. It is above what
#: the engine and Python take from one operation to the next, which an accelerator's queue would not show.
NO_GAP_SECONDS = 0.002
#: A layer takes at least this part of both passes: each operation costs the hosts' shared cores about 0.1 ms.
LEAST_SHARE = 0.005


class Layer(NamedTuple):
    """Tensors, by index, that are needed together, and whose gradients are ready together; the time of both passes."""

    first: int
    stop: int
    forward_seconds: float
    backward_seconds: float


def layers(model: ModelProfile) -> List[Layer]:
    """Return the layers of a model, in order, those that take next to nothing with the ones after them."""
    least_seconds = LEAST_SHARE * (model.forward_seconds + model.backward_seconds)
    found: List[Layer] = []
    first, forward_seconds, backward_seconds = 0, 0.0, 0.0
    for stop, tensor in enumerate(model.tensors, start=1):
        forward_seconds += tensor.forward_seconds
        backward_seconds += tensor.backward_seconds
        if forward_seconds + backward_seconds > least_seconds or stop == len(model.tensors):
            found.append(Layer(first, stop, forward_seconds, backward_seconds))
            first, forward_seconds, backward_seconds = stop, 0.0, 0.0
    return found


def tensors(model: ModelProfile, scale: float) -> List[Tensor]:
    """Return the tensors of a model, made smaller by ``scale``, of one dimension."""
    return [Tensor(each.name, (max(1, round(each.size_bytes * scale / FLOAT32_BYTES)),)) for each in model.tensors]


class Device:
    """An accelerator that computes nothing, one operation after the other, each for a given time.

    Its clock is the end of the last operation, not the moment in which that end was noticed, so delays of Python do
    not add up.
    """

    def __init__(self) -> None:
        self._operations: queue.SimpleQueue[Tuple[float, Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="device", daemon=True).start()

    def begin(self, seconds: float, end: Callable[[], None]) -> None:
        """Call ``end`` on the device's thread when an operation that can begin now has taken ``seconds``."""
        self._operations.put((seconds, end))

    def _run(self) -> None:
        clock = 0.0
        while True:
            seconds, end = self._operations.get()
            now = time.monotonic()
            clock = (clock if now - clock < NO_GAP_SECONDS else now) + seconds
            if clock > now:
                time.sleep(clock - now)
            end()


class Training:
    """A model's training loop, a step at a time."""

    def __init__(self, model: ModelProfile, arrays: Sequence[Tuple[Any, Any]], issue: Callable[[int], None]) -> None:
        import mxnet

        from ps.mxnet import engine

        self._mxnet, self._engine = mxnet, engine
        self._layers = layers(model)
        self._gradients, self._sums = [gradient for gradient, _ in arrays], [total for _, total in arrays]
        self._issue = issue
        self._device = Device()
        self._activation = mxnet.nd.zeros(1)  # which every operation writes: they come one after the other
        self._parameter = mxnet.nd.zeros(1)
        self._parameter.attach_grad()

    def step(self) -> None:
        """Train one step, up to its loss."""
        for layer in self._layers:
            self._compute(layer.forward_seconds, self._sums[layer.first : layer.stop], [])
        with self._mxnet.autograd.record():
            loss = self._parameter + self._activation
        loss.backward()
        for layer in reversed(self._layers):
            self._compute(layer.backward_seconds, [], self._gradients[layer.first : layer.stop])
        for index in range(len(self._gradients)):
            self._issue(index)
        loss.wait_to_read()

    def _compute(self, seconds: float, needs: Sequence[Any], yields: Sequence[Any]) -> None:
        def start(completion: Callable[[], None]) -> None:
            self._device.begin(seconds, completion)

        self._engine.push(start, const=needs, mutable=[self._activation, *yields])


def main() -> None:
    """Open the store, obey the orders, leave."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    model, scale, compute_seconds = load(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    model = model.scaled(compute_seconds / (model.forward_seconds + model.backward_seconds))
    shapes = tensors(model, scale)
    store = MXNetGradients(STORES["autobyte"], shapes)
    training = Training(model, [store.flat(index) for index in range(len(shapes))], store.issue)
    num_workers = int(os.environ["DMLC_NUM_WORKER"])
    print(json.dumps({"rank": store.rank}), file=answers)
    for line in sys.stdin:
        order, *numbers = line.split()
        if order == "end":
            break
        if order == "round":
            answer: Any = {"wrong": checked_round(store, shapes, num_workers, int(numbers[0]))}
        else:
            training.step()
            answer = {"end": time.monotonic()}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
