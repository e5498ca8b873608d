"""What Gluon's Trainer does otherwise with a store of ours: stale gradients, a changed batch size, AMP's loss scaler.

Trainer pushes every gradient in every step, whether ``backward`` has written it since the last step or not. On one
machine it then skips the update of a parameter whose gradient is stale; with a distributed store the stale gradient has
been added to the others by that time, or applied by the servers, again. So a stale gradient is not pushed here: its
worker contributes -0.0, which changes no bit of a sum. What is -0.0 in every element has come from nobody; then nothing
is updated, on the servers or on the workers. Where another worker had a gradient, all workers apply it, so their
parameters stay the same.

Trainer refuses another batch size while a distributed store updates: MXNet's servers would not hear of it. Ours do.

AMP skips a step whose gradients have overflown. Only who sees the sum before the update can do so, on all ranks alike:
with a loss scaler the workers update, unless Trainer was told otherwise.

The methods are wrapped once, and do with other stores what they always did.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Iterator

import numpy as np
from mxnet.gluon import Trainer

from ps.mxnet.kvstore import AutoByteKVStore

__all__ = ["install"]

log = logging.getLogger("autobyte.mxnet")


def install() -> None:
    """Wrap Trainer's methods."""
    for wrapper in (_init_kvstore, _check_and_rescale_grad, _allreduce_grads, _update):
        _wrap(wrapper.__name__, wrapper)


def _wrap(name: str, wrapper: Callable[..., None]) -> None:
    original = getattr(Trainer, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> None:
        wrapper(self, functools.partial(original, self), *args, **options)

    setattr(Trainer, name, method)


def _init_kvstore(trainer: Any, original: Callable[..., None]) -> None:
    scales = getattr(trainer, "_amp_loss_scaler", None) is not None
    config = trainer._kvstore_params
    dense = not (trainer._contains_sparse_weight or trainer._contains_sparse_grad)
    if scales and dense and config["update_on_kvstore"] is None and _is_ours(config["kvstore"]):
        config["update_on_kvstore"] = False
    original()
    if scales and isinstance(trainer._kvstore, AutoByteKVStore) and trainer._update_on_kvstore:
        log.warning("AMP: the servers update, and cannot skip a step whose gradients have overflown")


def _is_ours(store: Any) -> bool:
    """Return whether ``store``, or what has this name, is a synchronous store of ours."""
    name = store.lower() if isinstance(store, str) else getattr(store, "type", "")
    return "autobyte" in name and "async" not in name


def _check_and_rescale_grad(trainer: Any, original: Callable[..., None], scale: float) -> None:
    if isinstance(trainer._kvstore, AutoByteKVStore):
        trainer._optimizer.rescale_grad = scale
    else:
        original(scale)


def _allreduce_grads(trainer: Any, original: Callable[..., None]) -> None:
    store = trainer._kvstore
    if not isinstance(store, AutoByteKVStore):
        original()
        return
    stale = [grad for data, grad in _gradients(trainer) if not data._fresh_grad]
    with store.leaving_out(stale):
        original()


def _update(trainer: Any, original: Callable[..., None], ignore_stale_grad: bool = False) -> None:
    if not isinstance(trainer._kvstore, AutoByteKVStore):
        original(ignore_stale_grad)
    elif trainer._update_on_kvstore:
        try:
            original(ignore_stale_grad)
        finally:
            for data, _ in _gradients(trainer):
                data._fresh_grad = False  # MXNet forgets this, and would not know a stale gradient the next time
    else:
        if ignore_stale_grad:
            for data, grad in _gradients(trainer):
                data._fresh_grad = data._fresh_grad or not _from_nobody(grad)
        original(ignore_stale_grad)


def _gradients(trainer: Any) -> Iterator[tuple[Any, Any]]:
    """Return the arrays of all parameters that have gradients, with these, for each device."""
    for param in trainer._params:
        if param.grad_req != "null":
            yield from zip(param._check_and_get(param._data, list), param.list_grad())


def _from_nobody(gradient: Any) -> bool:
    """Return whether no worker contributed to a sum."""
    values = gradient.asnumpy()
    return values.dtype.kind == "f" and not values.any() and bool(np.signbit(values).all())
