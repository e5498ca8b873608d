"""The keys of one store: what was agreed about each, and where its values are staged."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from ps.errors import AutoByteError
from ps.messages import Mode, Storage, TensorSpec
from ps.mxnet.arguments import Key, pairs
from ps.mxnet.arrays import has, has_shape, paused
from ps.mxnet.errors import TensorError, for_mxnet
from ps.mxnet.stage import Stage

__all__ = ["Entry", "Entries"]


class Entry:
    """A key of one store, initialised or about to be.

    Attributes
    ----------
    current
        Whether the stage will hold, when the engine comes to what is put into its order next, what a pull would bring:
        this worker has neither pushed without pulling since, nor can others change a synchronous key's value meanwhile.
    """

    __slots__ = ("spec", "stage", "current", "error")

    def __init__(self, spec: TensorSpec, stage: Stage) -> None:
        self.spec = spec
        self.stage = stage
        self.current = False
        self.error: Optional[AutoByteError] = None  #: why it could not be initialised

    @property
    def keeps_values(self) -> bool:
        """Whether a value that was pulled once stays the key's until this worker pushes: a pull is exact then."""
        return self.spec.mode is Mode.SYNC and self.spec.stype is Storage.DEFAULT and self.spec.codec is None


class Entries:
    """The entries of a store, by key.

    Parameters
    ----------
    rank
        This worker's, for error messages.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._by_key: dict[Key, Entry] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def new(self, verb: str, key: Any, value: Any, make: Callable[[str, Key, Any], Entry]) -> dict[Key, Entry]:
        """Return an entry with its first value on its way to the stage, for each key; :meth:`add` them later.

        Parameters
        ----------
        verb, key, value
            What the user called, with what.
        make
            Returns the entry for a verb, a key and an array such as its values are.
        """
        if isinstance(key, (list, tuple)) and len(set(key)) < len(key):
            raise TensorError(f"{verb}: a key is given twice in {key!r}")
        first_values = pairs(verb, key, value)
        entries = {}
        for name, values in first_values:
            present = self._by_key.get(name)
            if present is not None and present.error is None:
                hint = "; another Trainer or Module needs a store of its own" if verb == "broadcast" else ""
                raise TensorError(
                    f"{verb}({name!r}): worker {self._rank} has initialised this key before; its value is"
                    f" unchanged{hint}"
                )
            entries[name] = make(verb, name, values[0])
        with paused():
            for name, values in first_values:
                entries[name].stage.fill(values[:1])
        return entries

    def add(self, entries: dict[Key, Entry]) -> None:
        """Let the keys be used."""
        self._by_key.update(entries)

    def find(self, verb: str, name: Key, arrays: Sequence[Any], any_dtype: bool = False) -> Entry:
        """Return the entry of a key.

        Raises
        ------
        TensorError
            There is none, or ``arrays`` do not fit it.
        """
        entry = self._by_key.get(name)
        if entry is None:
            known = ", ".join(map(repr, list(self._by_key)[:8])) or "none"
            raise TensorError(
                f"{verb}({name!r}): worker {self._rank} has not initialised this key (it has: {known});"
                " call init or broadcast on every rank first"
            )
        if entry.error is not None:
            raise for_mxnet(entry.error)
        spec, dtype = entry.spec, entry.stage.memory.dtype
        for array in arrays:
            if not (has_shape(array, spec.shape) if any_dtype else has(array, spec.shape, dtype)):
                raise TensorError(
                    f"{verb}({name!r}): worker {self._rank} gave shape {array.shape} and dtype {np.dtype(array.dtype)};"
                    f" the key was initialised with shape {spec.shape} and dtype {spec.dtype}"
                )
        return entry

    def specs(self) -> dict[Key, TensorSpec]:
        """Return what was agreed about the keys that can be used."""
        return {key: entry.spec for key, entry in self._by_key.items() if entry.error is None}
