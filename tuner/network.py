"""An ensemble of small neural networks, evaluated in plain NumPy: all members and all rows in a few products.

The members have the same shape and differ in their weights; where they disagree, nobody knows. Weights are stacked
along a first axis, so that one batched product serves all members. The last layer has no bias: what is asked of the
network are differences between two rows, in which a bias cancels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Ensemble"]

Array = npt.NDArray[np.float32]


class Ensemble(NamedTuple):
    """Weights of all members.

    Attributes
    ----------
    weights
        One array per layer, shape ``(members, inputs, outputs)``; the last one has one output.
    biases
        One array per hidden layer, shape ``(members, 1, outputs)``.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]

    @property
    def members(self) -> int:
        return int(self.weights[0].shape[0])

    @property
    def inputs(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def width(self) -> int:
        """Units of the last hidden layer."""
        return int(self.weights[-1].shape[1])

    def hidden(self, rows: Array) -> Array:
        """Return what the last hidden layer makes of ``rows``, shape ``(members, rows, width)``.

        ``rows`` has the shape ``(rows, inputs)`` where all members see the same, or ``(members, rows, inputs)``.
        """
        for weight, bias in zip(self.weights, self.biases):
            rows = np.matmul(rows, weight)
            rows += bias
            np.maximum(rows, 0, out=rows)
        return rows

    def outputs(self, hidden: Array) -> Array:
        """Return the outputs for what :meth:`hidden` returned, shape ``(members, rows)``."""
        product: Array = np.matmul(hidden, self.weights[-1])
        return product[..., 0]

    def check(self) -> None:
        """Raise ``ValueError`` unless all shapes fit together and all numbers are finite."""
        if len(self.weights) != len(self.biases) + 1 or not self.biases:
            raise ValueError(f"{len(self.weights)} layers of weights and {len(self.biases)} of biases")
        width = self.inputs
        for number, weight in enumerate(self.weights):
            if weight.ndim != 3 or weight.shape[:2] != (self.members, width):
                raise ValueError(f"weights {number} have the shape {weight.shape}, not ({self.members}, {width}, ...)")
            width = weight.shape[2]
            if number < len(self.biases) and self.biases[number].shape != (self.members, 1, width):
                raise ValueError(f"biases {number} have the shape {self.biases[number].shape}")
        if width != 1:
            raise ValueError(f"the last layer has {width} outputs instead of one")
        if not all(np.isfinite(array).all() for array in (*self.weights, *self.biases)):
            raise ValueError("weights that are no finite numbers")
