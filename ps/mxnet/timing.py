"""When a step's passes and gradients begin and end, without any change to user code.

The host runs ahead of MXNet's engine, so the engine itself is asked, by operations of ours in its order:

* **end of forward = start of backward**: a marker that reads the loss, pushed when ``backward`` is called;
* **backward of a layer**: its gradient has reached its stage;
* **start of forward**: not before the user entered ``autograd.record()``, and of a layer not before its sum of the step
  before had arrived. :mod:`ps.layers` makes durations of all that.

A step begins with the first ``backward`` after a push. It is reported once the next one has begun, since only then
the number of its gradients is known. The first step has none before it and is never reported, which drops the warm-up
as well.

:class:`StepTimer` is pure: it takes events and their times. :class:`StepMarkers` makes MXNet tell them.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Callable, Optional

import mxnet as mx

from ps.layers import StepTimes
from ps.mxnet import engine

__all__ = ["Gradient", "Step", "StepTimer", "StepMarkers"]


class Gradient:
    """What is known of one gradient of a step; a time is None where it was not seen (yet)."""

    __slots__ = ("step", "priority", "size_bytes", "ready_at", "answered_at")

    def __init__(self, step: Step, priority: int, size_bytes: int) -> None:
        self.step = step
        self.priority = priority
        self.size_bytes = size_bytes
        self.ready_at: Optional[float] = None
        self.answered_at: Optional[float] = None


class Step:
    """What is known of one step. Times are seconds of a monotonic clock, None where not seen (yet)."""

    __slots__ = ("before", "recorded_at", "forward_ended_at", "gradients", "ready")

    def __init__(self, before: Optional[Step], recorded_at: Optional[float]) -> None:
        self.before = before
        self.recorded_at = recorded_at
        self.forward_ended_at: Optional[float] = None
        self.gradients: list[Gradient] = []
        self.ready = 0  # how many of them are


class StepTimer:
    """Turns events of a training loop into the times of its steps.

    Parameters
    ----------
    report
        Called with every complete step but the first.
    """

    def __init__(self, report: Callable[[StepTimes], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._step: Optional[Step] = None
        self._recorded_at: Optional[float] = None

    def recorded(self, now: float) -> None:
        """The user began to record a forward pass."""
        with self._lock:
            if self._recorded_at is None:
                self._recorded_at = now

    def backward(self) -> Step:
        """The user called ``backward``; returns the step that it belongs to."""
        with self._lock:
            step = self._step
            if step is not None and not step.gradients:
                return step
            self._step = Step(step, self._recorded_at)
            self._recorded_at = None
            if step is not None and step.ready == len(step.gradients):
                self._finish(step)
            return self._step

    def forward_ended(self, step: Step, now: float) -> None:
        """The loss of one device is there."""
        with self._lock:
            step.forward_ended_at = now

    def pushed(self, priority: int, size_bytes: int) -> Optional[Gradient]:
        """A gradient was pushed; returns it, None where no ``backward`` was seen."""
        with self._lock:
            step = self._step
            if step is None:
                return None
            gradient = Gradient(step, priority, size_bytes)
            step.gradients.append(gradient)
            return gradient

    def ready(self, gradient: Gradient, now: float) -> None:
        """The engine has computed a gradient."""
        with self._lock:
            gradient.ready_at = now
            step = gradient.step
            step.ready += 1
            if step.ready == len(step.gradients) and step is not self._step:
                self._finish(step)

    def answered(self, gradient: Gradient, now: float) -> None:
        """The sum of a gradient has arrived."""
        gradient.answered_at = now

    def _finish(self, step: Step) -> None:
        before, step.before = step.before, None
        ended_at = step.forward_ended_at
        if before is None or ended_at is None:
            return
        gradients = step.gradients
        answered_at = [gradient.answered_at for gradient in before.gradients if gradient.answered_at is not None]
        self._report(
            StepTimes(
                priorities=tuple([gradient.priority for gradient in gradients]),
                sizes_bytes=tuple([gradient.size_bytes for gradient in gradients]),
                ready_seconds=tuple([max(0.0, (gradient.ready_at or ended_at) - ended_at) for gradient in gradients]),
                arrived_seconds=tuple([ended_at - answered for answered in answered_at])
                if len(answered_at) == len(gradients)
                else (),
                recorded_seconds=None if step.recorded_at is None else max(0.0, ended_at - step.recorded_at),
            )
        )


class StepMarkers:
    """Makes ``autograd.record`` and ``backward`` tell a timer, from :meth:`install` to :meth:`remove`."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._replaced: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Wrap MXNet's functions."""
        self._wrap(mx.autograd, "record", lambda *_, **__: self._timer.recorded(time.monotonic()))
        self._wrap(mx.autograd, "backward", lambda heads, *_, **__: self._mark(heads))
        self._wrap(mx.nd.NDArray, "backward", lambda head, *_, **__: self._mark(head))

    def remove(self) -> None:
        """Put MXNet's functions back."""
        while self._replaced:
            setattr(*self._replaced.pop())

    def _wrap(self, owner: Any, name: str, tell: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tell(*args, **kwargs)
            return original(*args, **kwargs)

        self._replaced.append((owner, name, original))
        setattr(owner, name, wrapper)

    def _mark(self, heads: Any) -> None:
        step = self._timer.backward()

        def start(completion: engine.Completion) -> None:
            self._timer.forward_ended(step, time.monotonic())
            completion()

        engine.push(start, const=[heads[0] if isinstance(heads, (list, tuple)) else heads])
