"""What can be configured: the communication configuration, and the settings of one process.

Two things with different lives:

* :class:`CommConfig` is what a tuner may change while the job runs. It is frozen, validated wherever it
  is built or decoded, and carries an *epoch* that orders the broadcasts of one job.
* :class:`Settings` is read from the environment once, at the start of a process, and never changes. This
  module is the only place that reads ``DMLC_*`` and ``AUTOBYTE_*`` variables.

Sources: the ``DMLC_*`` names are those of ps-lite, as MXNet users know them. Partition and credit are
ByteScheduler's (SOSP 2019, sections 3 and 4).
"""

from __future__ import annotations

import difflib
import enum
import logging
import os
from typing import Callable, Mapping, Optional, TypeVar

import msgspec

from ps.errors import SettingsError

__all__ = ["CommConfig", "Role", "Settings", "server_config", "COUNT_VARIABLES", "RANK_VARIABLES", "KIB", "MIB", "GIB"]

log = logging.getLogger("autobyte.settings")

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

#: A partition is one ZeroMQ message; a larger one would only make the receiver allocate more at once.
MAX_PARTITION_BYTES = GIB
#: More credit than this is "unlimited": no host holds as much in its send queue.
MAX_CREDIT_BYTES = 64 * GIB
#: More is not packed into a message unless that is asked for: by then its overhead is nothing beside its bytes.
MAX_FUSED_BYTES = 4 * MIB
#: Three years; what the system waits with overflows at some hundreds.
MAX_SECONDS = 1e8


class CommConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the communication that may change while a job runs.

    Attributes
    ----------
    partition_bytes
        Upper bound of one partition in bytes, at least 1. Partitions hold whole elements, so what is cut is
        the largest multiple of the element size up to this (and never less than one element).
    credit_bytes
        Bytes that this host may have sent and not yet seen acknowledged, per direction, split evenly over
        its links. At least 1. A server has as many times more as there are workers to each server.
    fusion_bytes
        Queued partitions for the same peer are packed into one message up to this many bytes; 0 turns
        fusion off. None: half a partition (:attr:`fused_bytes`), so that it follows the partition when that is tuned.
    epoch
        Number of this configuration within the job; the scheduler counts it up with every broadcast.

    Raises
    ------
    ValueError
        From the constructor (``msgspec.ValidationError`` from decoding) when a value is not an integer or is out of
        range. ``msgspec.structs.replace`` checks only in new versions of msgspec.
    """

    partition_bytes: int = 512 * KIB
    credit_bytes: int = 4 * MIB
    fusion_bytes: Optional[int] = None
    epoch: int = 0

    @property
    def fused_bytes(self) -> int:
        """Up to so many bytes a message holds several partitions."""
        if self.fusion_bytes is None:
            return min(self.partition_bytes // 2, MAX_FUSED_BYTES)
        return self.fusion_bytes

    def __post_init__(self) -> None:
        for name, low, high in (
            ("partition_bytes", 1, MAX_PARTITION_BYTES),
            ("credit_bytes", 1, MAX_CREDIT_BYTES),
            ("fusion_bytes", 0, MAX_PARTITION_BYTES),
            ("epoch", 0, 1 << 53),
        ):
            value = getattr(self, name)
            if value is None and name == "fusion_bytes":
                continue
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name} must be an integer from {low} to {high}, not {value!r}")


def server_config(config: CommConfig, num_workers: int, num_servers: int) -> CommConfig:
    """Return what a server makes of ``config``: as much more credit as it answers more than a worker pushes.

    With the credit of one worker its answers, whose acknowledgements wait behind pushes, would fall behind: a step took
    1.5 times the wire's ideal with twice as many workers as servers.
    """
    credit_bytes = config.credit_bytes * max(num_workers, num_servers) // num_servers
    return msgspec.structs.replace(config, credit_bytes=min(credit_bytes, MAX_CREDIT_BYTES))


class Role(str, enum.Enum):
    """What a process is in the job."""

    SCHEDULER = "scheduler"
    SERVER = "server"
    WORKER = "worker"


#: How many nodes of a role the job has.
COUNT_VARIABLES = {Role.WORKER: "DMLC_NUM_WORKER", Role.SERVER: "DMLC_NUM_SERVER"}
#: Launchers number their processes with these; a node without gets the lowest free rank of its role.
RANK_VARIABLES = {Role.WORKER: "DMLC_WORKER_ID", Role.SERVER: "DMLC_SERVER_ID"}

_T = TypeVar("_T")


class _Environment:
    """Typed look-ups in a mapping of environment variables; every error names variable and value."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._known: set[str] = set()

    def unknown(self) -> list[str]:
        """Return a line for each variable that begins like ours and was not looked up."""
        lines = []
        for name in sorted(self._variables):
            if name.startswith("AUTOBYTE_") and name not in self._known:
                near = difflib.get_close_matches(name, sorted(self._known), n=2, cutoff=0.75)
                hint = f"did you mean {' or '.join(near)}?" if near else "docs/settings.md has those that there are"
                lines.append(f"{name} is no setting and has no effect: {hint}")
        return lines

    def get_if_set(self, name: str, convert: Callable[[str], _T], expected: str) -> Optional[_T]:
        self._known.add(name)
        return self.get(name, convert, None, expected) if self._variables.get(name, "").strip() else None

    def get(self, name: str, convert: Callable[[str], _T], default: Optional[_T], expected: str) -> _T:
        self._known.add(name)
        text = self._variables.get(name, "").strip()
        if not text:
            if default is None:
                raise SettingsError(f"{name} is not set: expected {expected}")
            return default
        try:
            return convert(text)
        except ValueError:
            raise SettingsError(f"{name}={text!r}: expected {expected}") from None


def _integer(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return convert


def _duration(env: _Environment, name: str, default: float, low: float) -> float:
    """Look up a time of ``low`` seconds or more."""

    def convert(text: str) -> float:
        value = float(text)
        if not low <= value <= MAX_SECONDS:  # nan, too
            raise ValueError
        return value

    return env.get(name, convert, default, f"seconds, {low:g} to {MAX_SECONDS:g}")


def _modules(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError
    return names


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one process was told by its environment. See ``docs/settings.md`` for the table."""

    role: Role
    root_host: str
    root_port: int
    num_workers: int
    num_servers: int
    job: str = "default"
    interface: str = ""
    node_host: str = ""
    preferred_rank: int = -1  #: the rank that this node asks for; -1 leaves it to the scheduler
    config: CommConfig = CommConfig()
    tuner: str = "rule"
    deadline_seconds: float = 600.0
    start_seconds: float = 120.0
    heartbeat_seconds: float = 1.0
    silence_seconds: float = 20.0
    window_seconds: float = 1.0
    switch_interval_seconds: float = 0.0005
    event_file: str = ""
    tuner_state: str = ""
    staleness: int = -1  #: versions by which a worker may be ahead on an asynchronous tensor; -1: any number
    deterministic: bool = False  #: sums in the order of ranks
    optimizer_modules: tuple[str, ...] = ()  #: Python modules that register optimizers of the user's own

    @classmethod
    def from_env(cls, role: Role, variables: Optional[Mapping[str, str]] = None) -> Settings:
        """Read the settings of a process of ``role`` from ``variables`` (default: ``os.environ``).

        Where it is the process's own environment, a variable that seems to be misspelt is warned of.

        Raises
        ------
        SettingsError
            A variable is missing, malformed or out of range; the text names it and its value.
        """
        env = _Environment(os.environ if variables is None else variables)
        count = _integer(1, 65536)
        named = env.get("DMLC_ROLE", str, role.value, f"'{role.value}'")
        if named != role.value:
            raise SettingsError(f"DMLC_ROLE={named!r}: this process is a {role.value}")
        try:
            config = CommConfig(
                partition_bytes=env.get("AUTOBYTE_PARTITION_BYTES", int, 512 * KIB, "bytes, a whole number"),
                credit_bytes=env.get("AUTOBYTE_CREDIT_BYTES", int, 4 * MIB, "bytes, a whole number"),
                fusion_bytes=env.get_if_set("AUTOBYTE_FUSION_BYTES", int, "bytes, a whole number"),
            )
        except SettingsError:
            raise
        except ValueError as error:
            name, rest = str(error).split(" ", 1)
            raise SettingsError(f"AUTOBYTE_{name.upper()} {rest}") from None
        settings = cls(
            role=role,
            root_host=env.get("DMLC_PS_ROOT_URI", str, None, "the scheduler's host name or address"),
            root_port=env.get("DMLC_PS_ROOT_PORT", _integer(1, 65535), None, "the scheduler's port, 1 to 65535"),
            num_workers=env.get("DMLC_NUM_WORKER", count, None, "the number of workers, 1 to 65536"),
            num_servers=env.get("DMLC_NUM_SERVER", count, None, "the number of servers, 1 to 65536"),
            job=env.get("AUTOBYTE_JOB", str, "default", "a name for the job"),
            interface=env.get("DMLC_INTERFACE", str, "", "a network interface"),
            node_host=env.get("DMLC_NODE_HOST", str, "", "this host's address"),
            preferred_rank=env.get(RANK_VARIABLES[role], _integer(0, 65535), -1, "a rank, 0 to 65535")
            if role in RANK_VARIABLES
            else -1,
            config=config,
            tuner=env.get("AUTOBYTE_TUNER", str, "rule", "a tuner's name"),
            deadline_seconds=_duration(env, "AUTOBYTE_DEADLINE_SECONDS", 600.0, 0.1),
            start_seconds=_duration(env, "AUTOBYTE_START_SECONDS", 120.0, 0.1),
            heartbeat_seconds=_duration(env, "AUTOBYTE_HEARTBEAT_SECONDS", 1.0, 0.01),
            silence_seconds=_duration(env, "AUTOBYTE_SILENCE_SECONDS", 20.0, 1),
            window_seconds=_duration(env, "AUTOBYTE_WINDOW_SECONDS", 1.0, 0.01),
            switch_interval_seconds=_duration(env, "AUTOBYTE_SWITCH_INTERVAL_SECONDS", 0.0005, 1e-06),
            event_file=env.get("AUTOBYTE_EVENT_FILE", str, "", "a path for the tuner's decisions, JSON lines"),
            tuner_state=env.get("AUTOBYTE_TUNER_STATE", str, "", "a path for what the tuner has learned"),
            staleness=env.get("AUTOBYTE_STALENESS", _integer(0, 1 << 31), -1, "a number of versions, 0 or more"),
            deterministic=bool(env.get("AUTOBYTE_DETERMINISTIC", _integer(0, 1), 0, "0 or 1")),
            optimizer_modules=env.get(
                "AUTOBYTE_OPTIMIZER_MODULES", _modules, (), "names of Python modules, with commas"
            ),
        )
        silence, heartbeat = settings.silence_seconds, settings.heartbeat_seconds
        if silence < 2 * heartbeat:
            raise SettingsError(
                f"AUTOBYTE_SILENCE_SECONDS={silence:g}: expected at least twice"
                f" AUTOBYTE_HEARTBEAT_SECONDS={heartbeat:g}"
            )
        for line in env.unknown() if variables is None else []:
            log.warning("%s", line)
        return settings
