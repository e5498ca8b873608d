"""Models as communication sees them: tensors in forward order, their bytes, and the computation between them.

``backward_seconds`` of a tensor is the computation that ends with its gradient; backward runs from the last tensor to
the first. ``forward_seconds`` is the computation that needs it first; forward runs from the first to the last and waits
for each tensor's sum. Layers without parameters count with the layer before them. All times are seconds on a nominal
accelerator; :meth:`ModelProfile.scaled` makes another one of it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Sequence

import msgspec
import numpy as np

__all__ = ["DATA_FILE", "ModelProfile", "TensorProfile", "from_observation", "load", "synthetic", "zoo"]

#: Built by ``scripts/build_profiles.py``.
DATA_FILE = Path(__file__).parent / "data" / "profiles.json"

#: Random models are not larger than this, which is about the largest of the zoo.
MAX_SYNTHETIC_BYTES = 600e6


class TensorProfile(msgspec.Struct, frozen=True, array_like=True):
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
    return tuple(_models())


def load(name: str) -> ModelProfile:
    """Return the model called ``name``, with a batch of 32 on the nominal accelerator.

    Raises
    ------
    KeyError
        There is none of that name.

    Examples
    --------
    >>> load("resnet50_v1").model_bytes
    102303648
    """
    try:
        return _models()[name]
    except KeyError:
        raise KeyError(f"no model {name!r}: expected one of {', '.join(zoo())}") from None


@functools.lru_cache(maxsize=1)
def _models() -> dict[str, ModelProfile]:
    models = msgspec.json.decode(DATA_FILE.read_bytes(), type=list[ModelProfile])
    return {model.name: model for model in models}


def from_observation(sizes_bytes: Sequence[int], forward_seconds: float, backward_seconds: float) -> ModelProfile:
    """Return the model of a job of which only the sizes (in forward order) and the whole passes are known.

    Half of the computation is spread evenly over the tensors, half by the square root of their bytes: a large tensor
    takes longer than a small one, but by far not in proportion.
    """
    roots = np.sqrt(np.asarray(sizes_bytes, np.float64))
    shares = 0.5 / len(sizes_bytes) + 0.5 * roots / roots.sum()
    return _model("observed", sizes_bytes, shares * forward_seconds, shares * backward_seconds)


def _model(name: str, sizes_bytes: Sequence[int], forward: Sequence[float], backward: Sequence[float]) -> ModelProfile:
    tensors = (
        TensorProfile(f"tensor{number}", int(size_bytes), float(forward_seconds), float(backward_seconds))
        for number, (size_bytes, forward_seconds, backward_seconds) in enumerate(zip(sizes_bytes, forward, backward))
    )
    return ModelProfile(name, tuple(tensors))


def synthetic(rng: np.random.Generator) -> ModelProfile:
    """Return a random model; the same state of ``rng`` gives the same one.

    It is one of four kinds, with random depth, width and computation: convolutions whose tensors grow with depth; the
    same with large dense layers at the end; equal blocks behind a large embedding; tensors of any size in any order.
    Its computation is from a tenth to ten times what its bytes take at 10 Gbit/s, so that either may hide the other.
    """
    kind = ("convolutions", "dense end", "blocks", "any")[int(rng.integers(4))]
    layers = int(2 ** rng.uniform(2.5, 7))
    if kind == "any":
        sizes = list(np.exp(rng.normal(np.log(2.0 ** rng.uniform(14, 21)), rng.uniform(0.5, 3), layers)))
        work = [float(each) for each in np.exp(rng.normal(0, 1, layers))]
    elif kind == "blocks":
        width = 2 ** rng.uniform(7, 10.5)
        block = [width * width * factor for factor in (1, 1, 1, 1, 4, 4)]
        sizes = [width * 10 ** rng.uniform(2.5, 4.7), *block * max(1, layers // 6)]
        work = [0.02 * width * width, *sizes[1:]]
    else:
        growth = rng.uniform(1, 8)
        last = 2 ** rng.uniform(15, 22)
        sizes = [last * 2 ** (-growth * (1 - (layer + 1) / layers)) for layer in range(layers)]
        work = [float(each) for each in np.exp(rng.normal(0, 0.5, layers))]
        if kind == "dense end":
            dense = [last * 2 ** rng.uniform(1, 6), last * 2 ** rng.uniform(0, 4), last]
            sizes, work = [*sizes, *dense], [*work, 0.3, 0.1, 0.05]
    small = [size ** rng.uniform(0.3, 0.6) for size in sizes] if rng.random() < 0.8 else None
    elements, shares = [], []
    for layer, (size, part) in enumerate(zip(sizes, work)):
        if small is None:
            elements.append(size)
            shares.append(part)
        else:  # a bias, or scale and shift, which belong to the layer; the last of its tensors has the time
            few = [small[layer]] * int(rng.integers(1, 3))
            elements += [size, *few]
            shares += [0.0] * len(few) + [part]
    most = min(1.0, MAX_SYNTHETIC_BYTES / 4 / sum(elements))
    sizes_bytes = [4 * max(1, round(each * most)) for each in elements]
    seconds = sum(sizes_bytes) / 1.25e9 * 10 ** rng.uniform(-1, 1)
    forward = np.array(shares) / sum(shares) * seconds / 3
    return _model(f"synthetic {kind}", sizes_bytes, forward.tolist(), (2 * forward).tolist())
