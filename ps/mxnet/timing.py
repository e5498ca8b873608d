"""How long a step's forward and backward passes take, without any change to user code.

The host runs ahead of MXNet's engine, so the engine itself is asked, by operations of ours in its order:

* **end of forward = start of backward**: a marker that reads the loss, pushed when ``backward`` is called;
* **end of backward**: the last gradient of the step has reached its stage;
* **start of forward**: an estimate, the later of two: the user entered ``autograd.record()``, and the first layer's
  sum (the most urgent one of the step before) had arrived.

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

from ps.mxnet import engine

__all__ = ["Step", "StepTimer", "StepMarkers"]


class Step:
    """What is known of one step. Times are seconds of a monotonic clock, None where not seen (yet)."""

    __slots__ = (
        "before",
        "recorded_at",
        "forward_ended_at",
        "backward_ended_at",
        "pushed",
        "ready",
        "top_priority",
        "first_answer_at",
    )

    def __init__(self, before: Optional[Step], recorded_at: Optional[float]) -> None:
        self.before = before
        self.recorded_at = recorded_at
        self.forward_ended_at: Optional[float] = None
        self.backward_ended_at: Optional[float] = None
        self.pushed = 0
        self.ready = 0
        self.top_priority: Optional[int] = None
        self.first_answer_at: Optional[float] = None


class StepTimer:
    """Turns events of a training loop into the durations of forward and backward passes.

    Parameters
    ----------
    report
        Called with ``(forward_seconds, backward_seconds)`` of every complete step but the first.
    """

    def __init__(self, report: Callable[[float, float], None]) -> None:
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
            if step is not None and not step.pushed:
                return step
            self._step = Step(step, self._recorded_at)
            self._recorded_at = None
            if step is not None and step.ready == step.pushed:
                self._finish(step)
            return self._step

    def forward_ended(self, step: Step, now: float) -> None:
        """The loss of one device is there."""
        with self._lock:
            step.forward_ended_at = now

    def pushed(self, priority: int) -> Optional[Step]:
        """A gradient was pushed; returns its step, None where no ``backward`` was seen."""
        with self._lock:
            step = self._step
            if step is not None:
                step.pushed += 1
                if step.top_priority is None or priority > step.top_priority:
                    step.top_priority = priority
            return step

    def ready(self, step: Step, now: float) -> None:
        """The engine has computed a gradient of ``step``."""
        with self._lock:
            step.ready += 1
            step.backward_ended_at = now
            if step.ready == step.pushed and step is not self._step:
                self._finish(step)

    def answered(self, step: Step, priority: int, now: float) -> None:
        """The sum of a gradient of ``step`` has arrived."""
        with self._lock:
            if priority == step.top_priority:
                step.first_answer_at = now

    def _finish(self, step: Step) -> None:
        before, step.before = step.before, None
        if before is None or step.forward_ended_at is None or step.backward_ended_at is None:
            return
        started_at = max(before.first_answer_at or 0.0, step.recorded_at or 0.0)
        if started_at:
            self._report(
                max(0.0, step.forward_ended_at - started_at), max(0.0, step.backward_ended_at - step.forward_ended_at)
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
