"""How long each layer of a model computes, from when its gradients were ready and its sums had arrived.

A worker sees a step as a few kinds of instants (:class:`StepTimes`): the forward pass ended, gradients became ready
one after the other, sums of the step before had arrived. :class:`LayerTimes` makes of the last steps:

* **backward**: a tensor's share is the time between its gradient and the one that was ready before it, each the median
  over steps, counted from the end of the forward pass. Where MXNet executes several layers in one go, their gradients
  are ready at once, and the first of them has the time of all: that is when they can be sent;
* **forward**: layers cannot be told apart from outside. They are assumed to take the same parts of the pass as
  backward. A layer could not start before its sum had arrived, and the pass ended at a known instant; so each sum
  bounds its duration from above, and the smallest bound is taken for it: computation, without the waiting that the
  communication causes. Layers near the end, whose part is too small to say much, are left out. Where all sums are late
  for steps on end, no bound is near. But forward is the same part of backward in all steps of a model, so the least
  part that was ever seen is right.

For the wire, neighbouring tensors are joined into at most ``MAX_LAYERS`` groups, of which none holds much more than
its part of the bytes, the time and the tensors.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, NamedTuple, Optional

import msgspec
import numpy as np
from numpy.typing import NDArray

from ps.stats import MAX_LAYERS, LayerGroup

__all__ = ["LayerTimes", "Profile", "StepTimes"]

#: The profile is the median of so many steps: a change has won after four.
STEPS = 7
#: A sum bounds the forward pass if at least this part of the computation comes after it.
LEAST_PART = 0.25


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One step of training; the sequences have an entry per gradient, in the order in which they were pushed.

    Attributes
    ----------
    priorities, sizes_bytes
        Of the gradients. The order of the priorities is that of the forward pass, most urgent first; equal ones are in
        the order of the pushes.
    ready_seconds
        From the end of the forward pass to the gradient.
    arrived_seconds
        From the arrival of the tensor's last sum to the end of the forward pass; empty where that is not known.
    recorded_seconds
        From the user's ``autograd.record()`` to the end of the forward pass; None where that is not known.
    """

    priorities: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    ready_seconds: tuple[float, ...]
    arrived_seconds: tuple[float, ...] = ()
    recorded_seconds: Optional[float] = None

    @property
    def backward_seconds(self) -> float:
        return max(self.ready_seconds)


class Profile(NamedTuple):
    """What the last steps tell: medians, in seconds; ``forward_seconds`` is None where it cannot be told."""

    layers: tuple[LayerGroup, ...]
    forward_seconds: Optional[float]
    backward_seconds: float


class LayerTimes:
    """The profile of a model, from its last steps; see the module."""

    def __init__(self) -> None:
        self._steps: deque[StepTimes] = deque(maxlen=STEPS)
        self._forward_part = math.inf  # of backward, at most

    def add(self, step: StepTimes) -> None:
        """Take a step. One that pushes other tensors than those before is of another model, which replaces theirs."""
        steps = self._steps
        if steps and (steps[-1].priorities, steps[-1].sizes_bytes) != (step.priorities, step.sizes_bytes):
            steps.clear()
            self._forward_part = math.inf
        steps.append(step)

    def profile(self) -> Optional[Profile]:
        """Return what the last steps tell; None before the first. It takes about half a millisecond."""
        if not self._steps:
            return None
        forward_order = np.argsort(-np.array(self._steps[-1].priorities), kind="stable")
        sizes = np.array(self._steps[-1].sizes_bytes)[forward_order]
        backward = self._backward_of_each()[forward_order]
        total = backward.sum()
        parts = backward / total if total > 0 else np.full(len(sizes), 1 / len(sizes))
        following = np.cumsum(parts[::-1])[::-1]  # part of the forward pass that waits for each sum
        bounds = [_forward_seconds(step, forward_order, following) for step in self._steps]
        known = [bound for bound in bounds if bound is not None]
        forward_seconds = statistics.median(known) if known else None
        backward_seconds = statistics.median([step.backward_seconds for step in self._steps])
        if forward_seconds is not None and backward_seconds > 0:
            if len(known) == STEPS:
                self._forward_part = min(self._forward_part, forward_seconds / backward_seconds)
            forward_seconds = min(forward_seconds, self._forward_part * backward_seconds)
        return Profile(
            _groups(sizes, parts, parts * (forward_seconds or 0.0), backward), forward_seconds, backward_seconds
        )

    def _backward_of_each(self) -> NDArray[Any]:
        """Return seconds per gradient, in the order of the pushes."""
        ready = np.median([step.ready_seconds for step in self._steps], axis=0)
        order = np.argsort(ready, kind="stable")
        seconds = np.empty(len(order))
        seconds[order] = np.diff(ready[order], prepend=0.0)
        return seconds


def _forward_seconds(step: StepTimes, forward_order: NDArray[Any], following: NDArray[Any]) -> Optional[float]:
    """Return how long a step's forward pass computed: the smallest bound."""
    bounds = [] if step.recorded_seconds is None else [step.recorded_seconds]
    if step.arrived_seconds:
        arrived = np.array(step.arrived_seconds)[forward_order]
        telling = (following >= LEAST_PART) & (arrived > 0)
        bounds += (arrived[telling] / following[telling]).tolist()
    return min(bounds, default=None)


def _groups(
    sizes: NDArray[Any], parts: NDArray[Any], forward: NDArray[Any], backward: NDArray[Any]
) -> tuple[LayerGroup, ...]:
    """Join neighbours to at most ``MAX_LAYERS`` groups; all in forward order, times in seconds."""
    starts = _starts(sizes, parts)
    columns = (np.ones(len(sizes)), sizes, forward * 1e6, backward * 1e6)
    sums = (np.rint(np.add.reduceat(column, starts)).astype(int).tolist() for column in columns)
    return tuple(LayerGroup(*row) for row in zip(*sums))


def _starts(sizes: NDArray[Any], parts: NDArray[Any]) -> NDArray[Any]:
    """Return the tensors at which groups begin."""
    count = len(sizes)
    if count <= MAX_LAYERS:
        return np.arange(count)
    weights = sizes / max(1, sizes.sum()) + parts + 1 / count
    middles = np.cumsum(weights) - weights / 2
    groups = np.floor(middles / weights.sum() * MAX_LAYERS)
    starts: NDArray[Any] = np.flatnonzero(np.diff(groups, prepend=-1.0))
    return starts
