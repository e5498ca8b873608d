"""The data plane of AutoByte: moves and sums tensors between workers and servers.

:class:`ps.Worker` is the NumPy interface; ``import ps.mxnet`` registers the MXNet stores. Imports nothing of the
scheduler and the tuner, and never MXNet (whose import in a server process would not return).
"""

from ps.config import CommConfig, Settings
from ps.errors import AutoByteError, Closed, DeadlineExceeded, PeerLost, RegistrationRefused, SettingsError, TensorError
from ps.operation import Handle
from ps.worker import Worker

__all__ = [
    "AutoByteError",
    "Closed",
    "CommConfig",
    "DeadlineExceeded",
    "Handle",
    "PeerLost",
    "RegistrationRefused",
    "Settings",
    "SettingsError",
    "TensorError",
    "Worker",
]
