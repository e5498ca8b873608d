"""A worker's calls to all: barriers, inits and commands on their way through the scheduler.

Pure: what the user asks for and what the scheduler answers go in, messages go out, ``complete`` is called. An init has
two halves: all ranks declare the same tensors; then rank 0 sends the first values, and the scheduler tells everybody.
A call ends with the scheduler's answer, with the loss of a node, or late.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Mapping, Optional

from numpy.typing import NDArray

from ps import messages
from ps.errors import AutoByteError, DeadlineExceeded, error_from_code
from ps.exchange import Exchange, error_for
from ps.messages import ControlMessage, SpanKind, Tensor
from ps.operation import Operation

__all__ = ["Call", "Calls"]


class Call:
    """One call.

    Parameters
    ----------
    what
        How it is called in messages to the user.
    request
        Makes the message to the scheduler from the call's number.
    complete
        Called once with None or the error.
    values
        Of an init: first values by name, as far as the declaration does not carry them.
    """

    __slots__ = ("what", "request", "complete", "values", "left", "tensors", "bodies", "started_at")

    def __init__(
        self,
        what: str,
        request: Callable[[int], ControlMessage],
        complete: Callable[[Optional[AutoByteError]], None],
        values: Optional[Mapping[str, NDArray[Any]]] = None,
    ) -> None:
        self.what = what
        self.request = request
        self.complete = complete
        self.values = values or {}
        self.left = 0  #: first values yet to arrive at the servers
        self.tensors: list[Tensor] = []
        self.bodies: list[bytes] = []  #: a command's answers, by server
        self.started_at = 0.0


class Calls:
    """The open calls of one worker.

    Parameters
    ----------
    exchange
        Gets the tensors, and sends the first values.
    send
        Takes a message for the scheduler.

    Attributes
    ----------
    tensors
        By name: what may be used, since its init is complete on all ranks.
    """

    def __init__(self, exchange: Exchange, send: Callable[[ControlMessage], None]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._exchange = exchange
        self._send = send
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count(1)

    @property
    def open(self) -> bool:
        """Whether any call waits for its answer."""
        return bool(self._calls)

    def begin(self, call: Call, now: float) -> None:
        """Ask the scheduler, unless it is known that no answer can come."""
        error = self._exchange.unusable or self._exchange.no_rounds
        if error is not None:
            self._exchange.tell(call.what, call.complete, error_for(call.what, error))
            return
        number = next(self._numbers)
        call.started_at = now
        self._calls[number] = call
        self._send(call.request(number))

    def receive(self, message: ControlMessage, rank: int, now: float) -> bool:
        """Take a message of the scheduler to worker ``rank``; False where it is not about calls."""
        if isinstance(message, messages.Declared):
            self._declared(message, rank, now)
        elif isinstance(message, (messages.ValuesReady, messages.BarrierPassed)):
            self._end(message.call, None)
        elif isinstance(message, messages.CommandDone):
            if message.call in self._calls:
                self._calls[message.call].bodies = message.bodies
            self._end(message.call, None)
        elif isinstance(message, messages.CallFailed):
            self._end(message.call, error_from_code(message.code, message.text))
        else:
            return False
        return True

    def _declared(self, message: messages.Declared, rank: int, now: float) -> None:
        call = self._calls.get(message.call)
        if call is None:
            return
        call.tensors = message.tensors
        for tensor in message.tensors:
            self._exchange.add(tensor)
        if rank != 0:
            return
        tensors = [tensor for tensor in message.tensors if tensor.spec.name in call.values]
        call.left = len(tensors)
        for tensor in tensors:
            value = call.values[tensor.spec.name].reshape(-1)
            done = functools.partial(self._value_sent, message.call)
            self._exchange.submit(Operation(tensor, SpanKind.INIT, value, None, 0, done), now)

    def _value_sent(self, number: int, error: Optional[AutoByteError]) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if error is not None:
            self._end(number, error)
            return
        call.left -= 1
        if call.left == 0:
            self._send(messages.Initialized(number))

    def _end(self, number: int, error: Optional[AutoByteError]) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return
        if error is None:
            for tensor in call.tensors:
                self.tensors[tensor.spec.name] = tensor
        self._exchange.tell(call.what, call.complete, error)

    def fail(self, error_of: Callable[[str], AutoByteError]) -> None:
        """End every call with an error."""
        for number, call in list(self._calls.items()):
            self._end(number, error_of(call.what))

    def expire(self, deadline_seconds: float, grace_seconds: float, now: float) -> None:
        """Fail what has been open for longer than deadline and grace: the scheduler should have said why."""
        for number, call in list(self._calls.items()):
            if call.started_at + deadline_seconds + grace_seconds < now:
                text = f"{call.what}: no answer from the scheduler after {deadline_seconds:g} s"
                self._end(number, DeadlineExceeded(text))
