"""What a server may do with gradients other than adding them up: the hook for an optimizer.

A book (:mod:`ps.book`) with an updater keeps a value that the updater changes by each gradient, and answers with that
value; one without keeps sums. Whoever sets an updater implements this protocol; nothing here knows an optimizer.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from ps.messages import Shard, Tensor

__all__ = ["Updater", "MakeUpdater"]


class Updater(Protocol):
    """Changes the value of one shard."""

    def update(self, version: int, start: int, stop: int, gradient: NDArray[Any], weight: NDArray[Any]) -> None:
        """Apply a gradient to elements ``start`` to ``stop`` (of the tensor).

        Parameters
        ----------
        version
            Synchronous: the round, from 1. Asynchronous: how many pushes have begun at this shard, this one included;
            all ranges of one push have the same number.
        gradient
            Of the tensor's dtype, 1-D; only to be read, and not to be kept. Synchronous: the sum of all workers. A
            whole tensor comes in one piece; of another, each element comes once per version (asynchronous: once per
            push), in ascending ranges that need not be the same from one version to the next.
        weight
            The same elements of the value, to be changed in place. Write each element once, since answers of an
            asynchronous tensor may be sent from it while this runs.
        """

    def update_rows(self, version: int, ids: NDArray[np.int64], gradient: NDArray[Any], weight: NDArray[Any]) -> bool:
        """Apply a gradient that is zero but for some rows, to the whole shard.

        Parameters
        ----------
        version
            As in :meth:`update`.
        ids
            Rows, counted from the shard's first; ascending, each once. There may be none: the push counts all the same.
        gradient
            These rows, shape ``(ids.size, width)``; only to be read, and not to be kept.
        weight
            All rows of the shard, shape ``(rows, width)``, to be changed in place.

        Returns
        -------
        Whether all other rows of the weight are as they were.
        """

    def settings(self, body: bytes) -> None:
        """Take the settings that came with a push of worker 0, for this push and those after it."""


#: Returns the updater of a shard: a new one, or one that it returned before; None where the shard keeps sums.
MakeUpdater = Callable[[Tensor, Shard], Optional[Updater]]
