"""Optimizers on the server: MXNet's own updater on ranges of a tensor, with the bits of an update in one piece.

Imported by a server only when a worker sets an optimizer, since it imports MXNet. A shard has an optimizer object of
its own, which is told before each range how often this tensor has been updated and what worker 0 had set when it
called ``push``. The state (momentum, second moments, a float32 copy of float16 weights ...) is kept in one array per
slot, as long as the shard; a range is updated with slices of them.

Invariants:

* All ranges of one round are updated with the same count, settings and numbers of the optimizer's own, however the
  round was cut. So results are those of ``mx.optimizer.Updater`` fed with the sums, bit for bit.
* The state of an element is made when the element is first updated, from the weight that it has then, as MXNet does.
* An optimizer that looks at more than one element at a time gets whole tensors, in their shape.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

import msgspec
import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from ps.errors import SettingsError
from ps.messages import Mode, Shard, Storage, Tensor
from ps.mxnet.description import (
    EVOLVING,
    Description,
    KeySettings,
    build,
    needs_whole_tensors,
    set_parameters,
    state_leaves,
)
from ps.mxnet.rows import row_sparse

__all__ = ["Chosen", "ShardUpdater"]

Array = NDArray[Any]

#: Optimizers of MXNet's that write into the gradient that they are given, or keep it.
_OWNS_GRADIENT = frozenset(["adadelta", "lbsgd"])
#: Optimizers of MXNet's that update only the rows of a row-sparse gradient.
_LAZY = frozenset(["sgd", "ccsgd", "adam", "adagrad", "ftrl", "groupadagrad"])
#: Of these, those that do so in a dense weight and state, with the same bits as in row-sparse ones.
_IN_PLACE = _LAZY - {"ftrl"}
#: Parameters that change no state's shape or number.
_ALWAYS_ALIKE = frozenset(["lr", "wd", "rescale_grad", "clip_gradient"])

#: A book has a value and one or two accumulators.
MAX_BUFFERS = 4

_settings_decoder = msgspec.msgpack.Decoder(KeySettings)


class Chosen:
    """What is set for one store: its updaters look here when they are used, however many there are."""

    __slots__ = ("description",)

    def __init__(self, description: Description) -> None:
        self.description = description


class ShardUpdater:
    """The updater (:class:`ps.updater.Updater`) of one shard.

    Parameters
    ----------
    chosen
        The optimizer and the parameters that were set with it; other parameters count from the next use on, with the
        state and the count that there are.

    Attributes
    ----------
    description
        What of ``chosen`` was last taken.
    count
        How many updates the shard has had.
    start, stop
        The shard's elements.
    whole
        Whether the optimizer looks at more than one element at a time.
    """

    def __init__(self, tensor: Tensor, shard: Shard, chosen: Chosen) -> None:
        self.chosen = chosen
        self.description = description = chosen.description
        self.count = 0
        self._tensor = tensor
        self.start = shard.start
        self.stop = shard.stop
        self._index: Any = tensor.spec.name
        self._optimizer = build(description)
        self._updater = mx.optimizer.Updater(self._optimizer)
        self.whole = needs_whole_tensors(self._optimizer)
        foreign = not type(self._optimizer).__module__.startswith("mxnet.")
        self._copies_gradient = foreign or description.name in _OWNS_GRADIENT
        self._keeps_numbers = foreign
        self._numbers: dict[str, Any] = {}  # of the optimizer's own, before the newest version
        self._evolving: dict[str, Any] = {}
        self._version: Optional[int] = None
        self._template: Any = None  # a state, for its structure
        self._slots: list[Any] = []  # of MXNet's, over the memory
        self._memory: list[Array] = []
        self._buffers: dict[int, tuple[Array, Any]] = {}  # of the book, by id, and MXNet's arrays over them
        self._filled = shard.start  # up to here elements have a state
        self._offset = 0
        self._seen = 0
        self._absent_next = False  # worker 0 has no gradient in the version that comes next
        self._absent = False

    def settings(self, body: bytes) -> None:
        """Take what worker 0 had set when it called the push that comes next.

        Raises
        ------
        SettingsError
            A parameter that this optimizer does not have.
        """
        try:
            settings = _settings_decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"malformed settings of {self._tensor.spec.name!r}: {error}") from None
        optimizer = self._optimizer
        self._follow()
        self._set(settings.parameters)
        if settings.count is not None and self.count == 0:
            self.count = settings.count
            self._version = None
        if settings.key is not None:
            self._index = settings.key
            self._resume_sums()
        if settings.name is not None:
            optimizer.idx2name = {self._index: settings.name}
        if settings.lr_mult is not None:
            optimizer.lr_mult = {self._index: settings.lr_mult}
        if settings.wd_mult is not None:
            optimizer.wd_mult = {self._index: settings.wd_mult}
        allowed = EVOLVING.get(self.description.name, ())
        self._absent_next = settings.absent
        self._evolving.update((name, value) for name, value in settings.evolving.items() if name in allowed)

    def update(self, version: int, start: int, stop: int, gradient: Array, weight: Array) -> None:
        """Apply a gradient to a range of the weight, in place."""
        if start == stop:
            return
        self._follow()
        if version > self._seen:
            self._seen = version
            self._absent, self._absent_next = self._absent_next, False
        if self._absent and _from_nobody(gradient):
            return
        if self.whole and not self._tensor.spec.whole:
            raise SettingsError(
                f"optimizer {self.description.name!r} looks at whole tensors, but {self._tensor.spec.name!r} is spread:"
                " set it before the keys are initialised"
            )
        self._begin(version)
        gradient_array = mx.nd.array(gradient, dtype=gradient.dtype) if self._copies_gradient else self._view(gradient)
        weight_array = self._view(weight)
        if self.whole:
            shape = self._tensor.spec.shape
            gradient_array, weight_array = gradient_array.reshape(shape), weight_array.reshape(shape)
        self._apply(gradient_array, weight_array, self._state(start, stop, weight_array))

    def update_rows(self, version: int, ids: NDArray[np.int64], gradient: Array, weight: Array) -> bool:
        """Apply a gradient that is zero but for some rows, as MXNet does: to these rows alone where it is lazy."""
        self._follow()
        self._begin(version)
        if weight.size == 0:
            return True
        flat = weight.reshape(-1)
        weight_array = _wrap(flat)
        if self.whole:
            weight_array = weight_array.reshape(self._tensor.spec.shape)
        state = self._state(self.start, self.stop, weight_array)
        dense_weight = self._tensor.spec.stype is Storage.DEFAULT
        if not self.whole and (dense_weight or self.description.name in _IN_PLACE):
            sparse = row_sparse(ids, gradient, weight.shape)
            slots = (slot.reshape(weight.shape) for slot in self._slots)
            self._apply(sparse, weight_array.reshape(weight.shape), _rebuild(self._template, slots))
        elif not self._lazy:
            dense = np.zeros_like(weight)
            dense[ids] = gradient
            self._apply(_wrap(dense.reshape(-1)).reshape(weight_array.shape), weight_array, state)
        elif ids.size:
            tables = [memory.reshape(weight.shape[0], -1) for memory in self._memory]
            rows = [_some_rows(table, ids) for table in tables]
            updated = _some_rows(weight, ids)
            self._apply(_row_sparse(gradient), updated, _rebuild(self._template, iter(rows)))
            weight[ids] = updated.data.asnumpy()
            for table, row in zip(tables, rows):
                table[ids] = row.data.asnumpy()
        return self._lazy

    @property
    def _lazy(self) -> bool:
        """Whether MXNet leaves rows alone that have no gradient."""
        name, spec = self.description.name, self._tensor.spec
        if spec.dtype == "float16":
            return False
        if name == "nag":  # without momentum MXNet calls sgd's update
            return not self._optimizer.momentum
        if name == "ftrl" and spec.stype is Storage.DEFAULT:
            return False
        return name in _LAZY and bool(getattr(self._optimizer, "lazy_update", True))

    # ------------------------------------------------------------------------------------------ states

    def slots(self) -> int:
        """Return how many arrays of state there are; 0 before the first update."""
        self._follow()
        return len(self._slots) if self._filled == self.stop else 0

    def array(self, slot: int) -> Array:
        """Return array number ``slot``, from 1, of the state, one-dimensional; not a copy."""
        return self._memory[slot - 1]

    def put(self, slot: int, start: int, values: Array) -> None:
        """Set elements of array number ``slot``."""
        self._follow()
        if self._filled < self.stop:
            self._allocate(self._new_state(mx.nd.zeros(self._shape(), dtype=self._tensor.spec.dtype)))
            self._filled = self.stop
        if not 1 <= slot <= len(self._slots):
            raise SettingsError(
                f"optimizer {self.description.name!r} has {len(self._slots)} arrays of state for"
                f" {self._tensor.spec.name!r}, not {slot}"
            )
        target = self.array(slot)
        begin = start - self.start
        if not 0 <= begin <= begin + values.size <= target.size or values.dtype != target.dtype:
            raise SettingsError(
                f"state {slot} of {self._tensor.spec.name!r}: {values.size} elements of {values.dtype} from {start} on;"
                f" expected {target.size} of {target.dtype}"
            )
        target[begin : begin + values.size] = values

    def restart(self, count: int) -> None:
        """Forget the state, and go on as after ``count`` updates."""
        self._follow()
        self._template = None
        self._slots = []
        self._memory = []
        self._filled = self.start
        self.count = count
        self._version = None
        self._resume_sums()

    # ----------------------------------------------------------------------------------------- details

    def _follow(self) -> None:
        """Take what has been chosen since."""
        if self.description is not self.chosen.description:
            self.description = self.chosen.description
            self._set(self.description.parameters)

    def _set(self, parameters: dict[str, Any]) -> None:
        set_parameters(self._optimizer, parameters)
        if self._template is not None and not _ALWAYS_ALIKE.issuperset(parameters):
            like = self._new_state(mx.nd.zeros(self._shape(), dtype=self._tensor.spec.dtype))
            if _outline(like) != _outline(self._template):
                self.restart(self.count)

    def _resume_sums(self) -> None:
        if self.description.name == "lbsgd":  # it counts for itself, to warm up
            sums = {"cum_grad": 0, "num_cums": self._optimizer.init_updates + self.count}
            self._optimizer.cumgrads = {self._index: sums} if self.count else {}

    def _begin(self, version: int) -> None:
        """Put the optimizer into the condition in which every range of ``version`` is to be updated."""
        optimizer = self._optimizer
        if self._version is None:
            self._offset = self.count + 1 - version
            self._version = version - 1
        newer = version > self._version
        if newer:
            if self._tensor.spec.mode is Mode.SYNC:
                self._offset -= version - self._version - 1  # rounds without a gradient are no updates
            self._version = version
            self.count = version + self._offset
        before = version + self._offset - 1
        optimizer._all_index_update_counts = {0: {self._index: before}}
        optimizer._index_update_count = optimizer._all_index_update_counts[0]
        optimizer.num_update = before
        for name, value in self._evolving.items():
            setattr(optimizer, name, value)
        if self._keeps_numbers:
            if newer:
                self._numbers = {
                    name: value for name, value in vars(optimizer).items() if isinstance(value, (bool, int, float))
                }
            else:
                vars(optimizer).update(self._numbers)

    def _apply(self, gradient: Any, weight: Any, state: Any) -> None:
        self._updater.states[self._index] = state
        self._updater.states_synced[self._index] = True
        self._updater(self._index, gradient, weight)
        mx.nd.waitall()  # nothing is left to wait for under the server's NaiveEngine

    def _view(self, values: Array) -> Any:
        """Return an MXNet array over the memory of ``values``: where that is a part of a book's buffer, a slice."""
        root = values
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.ndim != 1 or root.size != self.stop - self.start or root.dtype != values.dtype:
            return _wrap(values)
        known = self._buffers.get(id(root))
        if known is None:
            if len(self._buffers) >= MAX_BUFFERS:
                self._buffers.clear()
            known = self._buffers[id(root)] = (root, _wrap(root))
        offset = (_address(values) - _address(root)) // values.itemsize
        return known[1]._slice(offset, offset + values.size)

    def _shape(self) -> tuple[int, ...]:
        return self._tensor.spec.shape if self.whole else (self.stop - self.start,)

    def _new_state(self, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(self._index, weight)

    def _allocate(self, template: Any) -> None:
        """Make the arrays for the whole shard that a state of ``template``'s structure needs."""
        self._template = template
        leaves = list(state_leaves(template))
        shapes = [leaf.shape if self.whole else (self.stop - self.start,) for leaf in leaves]
        arrays = [np.zeros(shape, leaf.dtype) for shape, leaf in zip(shapes, leaves)]
        self._slots = [_wrap(array) for array in arrays]
        self._memory = [array.reshape(-1) for array in arrays]

    def _state(self, start: int, stop: int, weight: Any) -> Any:
        """Return the state of a range, as slices of the arrays; ``weight`` is the range's."""
        if self._filled < stop:
            begin = max(self._filled, start)
            part = self._new_state(weight if begin == start else weight[begin - start :])
            if self._template is None:
                self._allocate(part)
            for slot, leaf in zip(self._memory, state_leaves(part)):
                piece = leaf.asnumpy().reshape(-1)
                slot[begin - self.start : begin - self.start + piece.size] = piece
            self._filled = stop
        if self.whole:
            return _rebuild(self._template, iter(self._slots))
        slices = (slot._slice(start - self.start, stop - self.start) for slot in self._slots)
        return _rebuild(self._template, slices)


def _from_nobody(gradient: Array) -> bool:
    """Return whether no worker had a gradient: all then push -0.0 (:mod:`ps.mxnet.trainer`)."""
    if gradient.dtype.kind != "f" or gradient[0] != 0 or not np.signbit(gradient[0]):
        return False
    return not gradient.any() and bool(np.signbit(gradient).all())


def _wrap(values: Array) -> Any:
    """Return an MXNet array over the memory of ``values``."""
    return mx.nd.from_numpy(values[:], zero_copy=True)


def _row_sparse(rows: Array) -> Any:
    """Return a row-sparse array in which every row is there."""
    return row_sparse(np.arange(rows.shape[0]), rows, rows.shape)


def _some_rows(table: Array, ids: NDArray[np.int64]) -> Any:
    return _row_sparse(table[ids])


def _address(values: Array) -> int:
    return int(values.__array_interface__["data"][0])


def _rebuild(template: Any, arrays: Iterator[Any]) -> Any:
    """Return a state like ``template`` made of ``arrays``."""
    if isinstance(template, (tuple, list)):
        return type(template)(_rebuild(item, arrays) for item in template)
    return None if template is None else next(arrays)


def _outline(state: Any) -> Any:
    """Return the structure of a state, to be compared."""
    if isinstance(state, (tuple, list)):
        return [_outline(item) for item in state]
    return None if state is None else np.dtype(state.dtype).name
