"""The worker's half of the server-side optimizer of one store.

The user's optimizer object stays the truth: Trainer's ``set_learning_rate``, a schedule, ``lr_mult`` of a parameter, a
changed batch size all act on it as they do on one machine. At every push this module counts the update, as MXNet's
updater would, reads from the object what holds for it, and gives what has changed since the key's last push to the
push itself, which brings it along. So a change counts from exactly the step before which it was made, on every server,
and neither momentum nor counts are lost. The object of rank 0 is the one that counts; the other ranks do the same with
theirs, so that ``trainer.learning_rate`` is right everywhere.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Union

import msgspec

from ps.errors import DeadlineExceeded, SettingsError
from ps.messages import TensorSpec
from ps.mxnet import optimizer_file
from ps.mxnet.description import EVOLVING, KeySettings, describe, needs_whole_tensors, parameters
from ps.mxnet.wire import OTHER_CLASS, SetOptimizer
from ps.worker import Worker

__all__ = ["StoreOptimizer", "wait_for_import"]

Key = Union[int, str]

#: MXNet is imported within this, on a busy machine and from a slow disk too.
IMPORT_SECONDS = 120.0
#: Optimizers of MXNet's that read the learning rate before they count the update.
_READS_BEFORE_COUNTING = frozenset(["lbsgd"])


def wait_for_import(worker: Worker) -> None:
    """Wait until the servers have imported MXNet, which may take longer than the deadline allows a command."""
    give_up_at = time.monotonic() + IMPORT_SECONDS
    while True:
        try:
            worker.command("optimizer/import", collective=False)
            return
        except DeadlineExceeded:
            if time.monotonic() > give_up_at:
                raise


class StoreOptimizer:
    """The optimizer that a store has on the servers, if any.

    Parameters
    ----------
    worker
        The process's connection.
    store
        What the names of the store's tensors begin with, before the bracket.

    Attributes
    ----------
    optimizer
        The user's object; None before :meth:`set`. MXNet's Trainer looks for it here.
    """

    def __init__(self, worker: Worker, store: str) -> None:
        self.optimizer: Any = None
        self._worker = worker
        self._store = store
        self._name = ""
        self._imported = False
        self._baseline: dict[str, Any] = {}  # what every key has from ``set``
        self._sent: dict[Key, dict[str, Any]] = {}  # what a key has from its own settings

    @property
    def whole(self) -> bool:
        """Whether tensors that are initialised from now on must live on one server."""
        return self.optimizer is not None and needs_whole_tensors(self.optimizer)

    def set(self, optimizer: Any, specs: Callable[[], Mapping[Key, TensorSpec]]) -> None:
        """Have the servers update the store's tensors. Collective; nothing of the store is under way.

        The same class again keeps states and counts; another one starts anew.

        Parameters
        ----------
        optimizer
            An ``mx.optimizer.Optimizer``; of the same class on all ranks. The parameters of rank 0 count.
        specs
            Returns the keys that the store has already.

        Raises
        ------
        SettingsError
            The servers do not know the class, the ranks differ, or the optimizer needs whole tensors and the keys are
            spread over servers. Nothing has changed then.
        """
        description = describe(optimizer)
        if needs_whole_tensors(optimizer):
            spread = [key for key, spec in specs().items() if not spec.whole]
            if spread:
                raise SettingsError(
                    f"set_optimizer: {description.name!r} looks at whole tensors, but key {spread[0]!r} was initialised"
                    " before and is spread over the servers; set the optimizer first, then initialise the keys"
                )
        if not self._imported:
            wait_for_import(self._worker)
            self._imported = True
        body = msgspec.msgpack.encode(SetOptimizer(self._store, description))
        if OTHER_CLASS in self._worker.command("optimizer/set", body, agreed=description.name):
            self._worker.command("optimizer/begin", body, agreed=description.name)
        if self.optimizer is not None and self.optimizer is not optimizer and self._name == description.name:
            _carry_over(self.optimizer, optimizer, self._name)
        self.optimizer = optimizer
        self._name = description.name
        self._baseline = {f"parameters.{name}": value for name, value in description.parameters.items()}
        self._sent = {}

    def remove(self) -> None:
        """Have the servers keep sums again, where they do not. Collective then; nothing of the store is under way."""
        if self.optimizer is not None:
            self._worker.command("optimizer/remove", self._store.encode())
            self.optimizer, self._name = None, ""

    def settings(self, key: Key) -> bytes:
        """Count an update of ``key`` and return what its push has to bring along; empty where nothing changed."""
        optimizer = self.optimizer
        if optimizer is None:
            return b""
        counts = optimizer._index_update_count
        count = counts.get(key, optimizer.begin_num_update)
        if self._name in _READS_BEFORE_COUNTING:
            rate = _learning_rate(optimizer)
            optimizer._update_count(key)
        else:
            optimizer._update_count(key)
            rate = _learning_rate(optimizer)
        evolving = _evolve(optimizer, self._name, rate, count + 1)
        if self._worker.rank != 0:
            return b""
        current = {f"parameters.{name}": value for name, value in parameters(optimizer).items()}
        current["parameters.lr"] = rate
        current["lr_mult"] = _multiplier(optimizer, key, "lr_mult")
        current["wd_mult"] = _multiplier(optimizer, key, "wd_mult")
        current.update((f"evolving.{name}", value) for name, value in evolving.items())
        sent = self._sent.get(key)
        if sent is None:
            sent = self._sent[key] = dict(self._baseline)
            current["key"] = key
            current["name"] = str(optimizer.idx2name.get(key, key))
            current["count"] = count
        changed = {name: value for name, value in current.items() if name not in sent or sent[name] != value}
        if not changed:
            return b""
        sent.update(changed)
        return _encode(changed)

    @staticmethod
    def absent() -> bytes:
        """Return what a push brings along instead where this worker has no gradient; it counts no update."""
        return msgspec.msgpack.encode(KeySettings(absent=True))

    def save(self, path: str, specs: Mapping[Key, TensorSpec], dump_optimizer: bool) -> None:
        """Write states and counts, and with ``dump_optimizer`` the parameters, to a file. Any rank may, alone."""
        self._check_set("save_optimizer_states")
        optimizer_file.save(path, self._worker, self._store, self.optimizer, specs, dump_optimizer)

    def load(self, path: str, specs: Mapping[Key, TensorSpec]) -> None:
        """Restore what :meth:`save` wrote. Collective: every rank has the same file.

        Raises
        ------
        SettingsError
            Not such a file, of another optimizer, or of other keys: it names the first that is wrong. Nothing has
            changed then.
        """
        self._check_set("load_optimizer_states")
        optimizer_file.load(path, self._worker, self._store, self.optimizer, specs)
        self._sent = {}

    def _check_set(self, verb: str) -> None:
        if self.optimizer is None:
            raise SettingsError(f"{verb}: no optimizer is set: call set_optimizer first (Trainer: in its first step)")


def _encode(changed: Mapping[str, Any]) -> bytes:
    groups: dict[str, Any] = {}
    for name, value in changed.items():
        group, dot, inner = name.partition(".")
        if dot:
            groups.setdefault(group, {})[inner] = value
        else:
            groups[group] = value
    return msgspec.msgpack.encode(KeySettings(**groups))


def _learning_rate(optimizer: Any) -> float:
    schedule = optimizer.lr_scheduler
    return float(optimizer.lr if schedule is None else schedule(optimizer.num_update))


def _multiplier(optimizer: Any, key: Key, which: str) -> float:
    """Return ``lr_mult`` or ``wd_mult`` of a key, looked up as ``Optimizer._get_lrs`` does."""
    if key in optimizer.param_dict:
        return float(getattr(optimizer.param_dict[key], which))
    table = getattr(optimizer, which)
    if key in table:
        return float(table[key])
    return float(table.get(optimizer.idx2name.get(key), 1.0))


def _evolve(optimizer: Any, name: str, rate: float, count: int) -> dict[str, Any]:
    """Do to the object's own numbers what an update does; return those that the update starts from."""
    before = {attribute: getattr(optimizer, attribute) for attribute in EVOLVING.get(name, ())}
    if name == "nadam":
        momentum = optimizer.beta1 * (1.0 - 0.5 * (pow(0.96, count * optimizer.schedule_decay)))
        optimizer.m_schedule = optimizer.m_schedule * momentum
    elif name == "lars":
        optimizer.last_lr = rate if optimizer.cur_lr is None else optimizer.cur_lr
        optimizer.cur_lr = rate
    return before


def _carry_over(old: Any, new: Any, name: str) -> None:
    """Let a new object of the same class go on where the old one was, as the servers do."""
    counts = new._index_update_count
    for key, count in old._index_update_count.items():
        counts[key] = max(count, counts.get(key, 0))
    new.num_update = max(new.num_update, old.num_update)
    for attribute in EVOLVING.get(name, ()):
        setattr(new, attribute, getattr(old, attribute))
