"""The job's tensors: what each rank has declared, whether all agree, and what number and shards a tensor got.

Pure. A name goes through these stages: *declared* by some ranks; *placed*, once all ranks have declared it alike;
*added*, once every server knows it; *ready*, once rank 0 has set its first value. Who waits for a stage is the business
of :mod:`scheduler.collectives`.

Invariant: a number on the wire is never given twice, so what is on its way for a name that was forgotten cannot hit
the tensor that later gets the same name.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence

import numpy as np

from ps.codecs import describe
from ps.messages import MAX_NAME_LENGTH, Mode, Storage, Tensor, TensorSpec
from ps.placement import Placement
from ps.rows import row_width
from scheduler.wording import ranks_text

__all__ = ["Entry", "Tensors"]

#: What servers can sum, as MXNet names it, and bytes per element.
ITEMSIZE = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
#: Bounds of what a declaration may ask for: far above any model, and far below what could exhaust this process.
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 53
#: From so many rows on, shards begin between rows: it costs no balance, and the tensor can be pushed by rows.
MANY_ROWS = 256


@dataclasses.dataclass(eq=False)
class Entry:
    """One name."""

    name: str
    specs: dict[int, TensorSpec]  #: by the rank that declared it
    tensor: Optional[Tensor] = None  #: since it was placed
    first_value: bytes = b""  #: empty: worker 0 sends it to the servers
    added: bool = False
    ready: bool = False


class Tensors:
    """All names of the job.

    Parameters
    ----------
    num_workers
        A tensor is placed when this many ranks have declared it.
    placement
        Chooses the servers.
    """

    def __init__(self, num_workers: int, placement: Placement) -> None:
        self._num_workers = num_workers
        self._placement = placement
        self._entries: dict[str, Entry] = {}
        self._next_id = 0

    def problem(self, rank: int, specs: Sequence[TensorSpec], first_values: Sequence[bytes] = ()) -> str:
        """Return why ``rank`` cannot declare ``specs``, in one line; empty where it can."""
        if len(self._entries) + len(specs) > MAX_TENSORS:
            return f"{len(specs)} more keys: a job has at most {MAX_TENSORS}"
        names = set()
        for spec in specs:
            if spec.name in names:
                return f"{spec.name!r} is given twice"
            names.add(spec.name)
            problem = _malformed(spec) or self._conflict(rank, spec)
            if problem:
                return problem
        for spec, value in zip(specs, first_values):
            if value and len(value) != math.prod(spec.shape) * ITEMSIZE[spec.dtype]:
                return f"{spec.name!r}: a first value of {len(value)} bytes for {_text(spec)}"
        return ""

    def _conflict(self, rank: int, spec: TensorSpec) -> str:
        entry = self._entries.get(spec.name)
        if entry is None:
            return ""
        if rank in entry.specs:
            verb = "has initialised" if entry.ready else "is initialising"
            return f"worker {rank} {verb} {spec.name!r} already; a key is initialised once"
        if entry.tensor is not None and entry.tensor.spec != spec:
            return f"{spec.name!r}: worker {rank} has {_text(spec)}, the tensor is {_text(entry.tensor.spec)}"
        return ""

    def declare(self, rank: int, spec: TensorSpec) -> Entry:
        """Note that ``rank`` declares ``spec``, in which :meth:`problem` found none; return the name's entry."""
        entry = self._entries.setdefault(spec.name, Entry(spec.name, {}))
        entry.specs[rank] = spec
        return entry

    def all_declared(self, entry: Entry) -> bool:
        """Return whether every rank has declared a name."""
        return len(entry.specs) == self._num_workers

    def missing(self, entry: Entry) -> list[int]:
        """Return the ranks that have yet to declare a name before it is placed."""
        if entry.tensor is not None:
            return []
        return [rank for rank in range(self._num_workers) if rank not in entry.specs]

    def disagreement(self, entry: Entry) -> str:
        """Return how the ranks differ about a name; empty where they agree."""
        ranks_by_spec: dict[TensorSpec, list[int]] = {}
        for rank, spec in sorted(entry.specs.items()):
            ranks_by_spec.setdefault(spec, []).append(rank)
        if len(ranks_by_spec) == 1:
            return ""
        versions = ", ".join(f"{_text(spec)} on {ranks_text(ranks)}" for spec, ranks in ranks_by_spec.items())
        forms = {(spec.shape, spec.dtype) for spec in ranks_by_spec}
        same = "shape and dtype" if len(forms) > 1 else "kind of store, storage type, optimizer and compression"
        return f"{entry.name!r} differs between the ranks: {versions}; give all ranks the same {same}"

    def place(self, entry: Entry) -> Tensor:
        """Give the agreed name a number and shards."""
        spec = next(iter(entry.specs.values()))
        size, width = math.prod(spec.shape), row_width(spec.shape)
        by_rows = width > 0 and (spec.stype is Storage.ROW_SPARSE or spec.shape[0] >= MANY_ROWS)
        shards = self._placement.place(size, ITEMSIZE[spec.dtype], spec.whole, width if by_rows else 1)
        entry.tensor = Tensor(self._next_id, spec, shards)
        self._next_id += 1
        return entry.tensor

    def withdraw(self, rank: int, entry: Entry) -> bool:
        """Take back the declaration of ``rank``.

        Returns True where that voids the tensor for the others as well, because rank 0 was to set its first value. The
        name is forgotten then.
        """
        if self._entries.get(entry.name) is not entry:
            return False
        del entry.specs[rank]
        void = entry.tensor is not None and not entry.ready and rank == 0
        if void or (not entry.specs and entry.tensor is None):
            del self._entries[entry.name]
        return void


def _text(spec: TensorSpec) -> str:
    text = f"{spec.shape} {spec.dtype}"
    if spec.mode is not Mode.SYNC:
        text += f" {spec.mode.value}"
    if spec.stype is not Storage.DEFAULT:
        text += f" {spec.stype.value}"
    if spec.codec is not None:
        text += f" {describe(spec.codec)}"
    return f"{text} whole" if spec.whole else text


def _malformed(spec: TensorSpec) -> str:
    if not 0 < len(spec.name) <= MAX_NAME_LENGTH:
        return f"the name {spec.name[:40]!r}... has {len(spec.name)} characters: expected 1 to {MAX_NAME_LENGTH}"
    if spec.dtype not in ITEMSIZE:
        return f"{spec.name!r}: cannot sum dtype {spec.dtype[:40]!r}: expected one of {', '.join(ITEMSIZE)}"
    if spec.codec is not None and not spec.codec.accepts(np.dtype(spec.dtype)):
        return f"{spec.name!r}: {describe(spec.codec)} encodes no {spec.dtype}"
    if len(spec.shape) > MAX_DIMENSIONS or min(spec.shape, default=0) < 0 or math.prod(spec.shape) > MAX_ELEMENTS:
        return f"{spec.name!r}: shape {spec.shape[:MAX_DIMENSIONS]} is no shape of at most {MAX_ELEMENTS} elements"
    if spec.stype is Storage.ROW_SPARSE and not spec.shape:
        return f"{spec.name!r}: a scalar has no rows; a row-sparse tensor has a shape of at least one dimension"
    return ""
