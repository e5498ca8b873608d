"""First values: every rank begins with rank 0's parameters.

Trainer broadcasts in its first ``step``, after the first forward and backward pass; until then each worker computes
with its own initial values, and its first gradient belongs to them. :func:`broadcast_parameters` does it before.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from ps.errors import AutoByteError
from ps.mxnet.connection import connect
from ps.mxnet.rows import row_sparse

__all__ = ["broadcast_parameters"]

#: The tensors that exist at the servers already: a later broadcast uses them again.
_declared: set[str] = set()


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Overwrite parameters, in place and on all devices, by the values that they have on ``root_rank``.

    Collective: every rank calls it with the same parameters. It may be called again, for example after a checkpoint
    was loaded.

    Parameters
    ----------
    params
        A Gluon block, its ``collect_params()``, or a dict of Parameters or NDArrays.
    root_rank
        Whose values everybody gets.

    Raises
    ------
    AutoByteError
        A parameter is not initialised, or its shape is not known yet.
    TensorError
        The ranks disagree about a shape or dtype.

    Notes
    -----
    The values travel as a sum to which all but one rank contribute -0.0, which changes no bit of the other addend
    (+0.0 would turn -0.0 into +0.0).

    Parameters that no step pushes (``grad_req='null'``, such as the running means of a batch normalisation) are each
    rank's own from then on: Trainer's broadcast in its first step does not overwrite them.

    Examples
    --------
    >>> net.initialize(mx.init.Xavier())                                 # doctest: +SKIP
    >>> ps.mxnet.broadcast_parameters(net.collect_params())
    """
    connection = connect()
    connection.check()
    worker = connection.worker
    if not 0 <= root_rank < worker.num_workers:
        raise ValueError(f"root_rank must be 0 to {worker.num_workers - 1}, not {root_rank!r}")
    if isinstance(params, mx.gluon.Block):
        params = params.collect_params()
    arrays = {f"parameters[{name!r}]": _arrays(param) for name, param in params.items()}
    values = {name: copies[0].asnumpy() for name, copies in arrays.items()}
    new = {name: value for name, value in values.items() if name not in _declared}
    worker.init(new)
    _declared.update(new)
    handles = {
        name: worker.push_pull(name, value if worker.rank == root_rank else np.full_like(value, -0.0))
        for name, value in values.items()
    }
    with mx.autograd.pause():
        for name, handle in handles.items():
            value: Any = handle.wait()
            for copy in arrays[name]:
                if copy.stype == "row_sparse":  # all rows, those of zeros too
                    source = row_sparse(np.arange(len(value)), value, value.shape)
                else:
                    source = mx.nd.array(value, dtype=copy.dtype)
                source.copyto(copy.as_nd_ndarray())  # copy[:] fails on a layout of oneDNN
    for param in params.values():
        if getattr(param, "grad_req", "") == "null":
            connection.keep_own(_arrays(param))


def _arrays(param: Any) -> list[Any]:
    """Return the arrays of a parameter, one per device."""
    if isinstance(param, mx.nd.NDArray):
        return [param]
    try:
        return list(param._check_and_get(param._data, list))  # list_data() refuses row-sparse parameters
    except mx.gluon.parameter.DeferredInitializationError:
        raise AutoByteError(
            f"broadcast_parameters: the shape of {param.name!r} is not known yet ({param.shape}): run one forward"
            " pass first, net(data), or give the layer its number of inputs (in_units, in_channels)"
        ) from None
    except RuntimeError:
        raise AutoByteError(
            f"broadcast_parameters: {param.name!r} is not initialised: call net.initialize() first"
        ) from None
