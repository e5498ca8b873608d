"""Models as communication sees them: tensors in forward order, their bytes, and the computation between them.

``backward_seconds`` of a tensor is the computation that ends with its gradient; backward runs from the last tensor to the
first. ``forward_seconds`` is the computation that needs it first; forward runs from the first to the last and waits for
each tensor's sum. Layers without parameters count with the layer before them. All times are seconds on a nominal
accelerator; :meth:`ModelProfile.scaled` makes another one of it.
"""

from __future__ import annotations

from typing import Sequence

import msgspec
import numpy as np

__all__ = ["ModelProfile", "TensorProfile", "from_observation", "load", "synthetic", "zoo"]


class TensorProfile(msgspec.Struct, frozen=True):
    """One tensor, in bytes and seconds; see the module."""

    name: str
    size_bytes: int
    forward_seconds: float
    backward_seconds: float


class ModelProfile(msgspec.Struct, frozen=True):
    """A model: its tensors in forward order, which is the order of their priority."""

    name: str
    tensors: tuple[TensorProfile, ...]

    @property
    def model_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def forward_seconds(self) -> float:
        return sum(tensor.forward_seconds for tensor in self.tensors)

    @property
    def backward_seconds(self) -> float:
        return sum(tensor.backward_seconds for tensor in self.tensors)

    def scaled(self, compute_factor: float) -> ModelProfile:
        """Return the model on an accelerator that takes ``compute_factor`` times as long."""
        return ModelProfile(
            self.name,
            tuple(
                TensorProfile(
                    tensor.name,
                    tensor.size_bytes,
                    tensor.forward_seconds * compute_factor,
                    tensor.backward_seconds * compute_factor,
                )
                for tensor in self.tensors
            ),
        )


def zoo() -> tuple[str, ...]:
    """Return the names of the models that :func:`load` has, sorted."""
    raise NotImplementedError


def load(name: str) -> ModelProfile:
    """Return the model called ``name``, at its nominal batch on the nominal accelerator.

    Raises
    ------
    KeyError
        There is none of that name.
    """
    raise NotImplementedError


def synthetic(rng: np.random.Generator) -> ModelProfile:
    """Return a random model; the same state of ``rng`` gives the same one."""
    raise NotImplementedError


def from_observation(sizes_bytes: Sequence[int], forward_seconds: float, backward_seconds: float) -> ModelProfile:
    """Return the model of a job of which only sizes (in forward order) and whole passes are known.

    Half of the computation is spread evenly over the tensors, half by their bytes.
    """
    raise NotImplementedError
