"""The errors that users see, one class per thing that they would do about it.

Every message names what is concerned (key, rank, variable), the value found, what was expected, and
what to do. Errors that cross the wire travel as an :class:`ErrorCode` with the finished text, so the
process that knows the facts writes the sentence and every rank shows the same one.
"""

from __future__ import annotations

import enum
from typing import Type

__all__ = [
    "AutoByteError",
    "SettingsError",
    "RegistrationRefused",
    "TensorError",
    "PeerLost",
    "DeadlineExceeded",
    "Closed",
    "ErrorCode",
    "error_from_code",
]


class AutoByteError(RuntimeError):
    """Base of everything that AutoByte raises on purpose."""


class SettingsError(AutoByteError, ValueError):
    """An environment variable or a configuration value is missing, malformed or out of range."""


class RegistrationRefused(AutoByteError):
    """The scheduler refused this node: another job, another protocol version, contradicting counts."""


class TensorError(AutoByteError, ValueError):
    """A key, shape, dtype or range that the ranks did not agree on. The store stays usable."""


class PeerLost(AutoByteError, ConnectionError):
    """A node that this operation needs has died, gone silent, or finished its part of the job."""


class DeadlineExceeded(AutoByteError, TimeoutError):
    """Something did not happen within the job's deadline; the text says who was waited for."""


class Closed(AutoByteError):
    """The store was closed while, or before, the operation was asked for."""


class ErrorCode(enum.IntEnum):
    """The class of an error on the wire."""

    INTERNAL = 0
    SETTINGS = 1
    REFUSED = 2
    TENSOR = 3
    PEER_LOST = 4
    DEADLINE = 5
    CLOSED = 6


_CLASSES: dict[ErrorCode, Type[AutoByteError]] = {
    ErrorCode.INTERNAL: AutoByteError,
    ErrorCode.SETTINGS: SettingsError,
    ErrorCode.REFUSED: RegistrationRefused,
    ErrorCode.TENSOR: TensorError,
    ErrorCode.PEER_LOST: PeerLost,
    ErrorCode.DEADLINE: DeadlineExceeded,
    ErrorCode.CLOSED: Closed,
}


def error_from_code(code: ErrorCode, text: str) -> AutoByteError:
    """Return the exception that a ``(code, text)`` pair from another process stands for."""
    return _CLASSES[code](text)
