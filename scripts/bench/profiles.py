"""The parameter shapes of known models: what a step of training them puts on the wire.

A profile lists the trainable tensors from the model's input to its output, as MXNet's Gluon zoo creates
them (``tests/scripts/test_profiles.py`` holds them against the zoo). A backward pass yields gradients from the last
to the first, and the next forward pass needs the first one first: hence ``priority=-index``.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Tuple

__all__ = ["PROFILES", "Tensor", "Shape", "profile", "total_bytes"]

Shape = Tuple[int, ...]
FLOAT32_BYTES = 4


class Tensor(NamedTuple):
    """A parameter: its name and shape. All are float32."""

    name: str
    shape: Shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def _dense(name: str, outputs: int, inputs: int) -> List[Tensor]:
    return [Tensor(f"{name}_weight", (outputs, inputs)), Tensor(f"{name}_bias", (outputs,))]


def _convolution(name: str, outputs: int, inputs: int, kernel: int, bias: bool = True) -> List[Tensor]:
    weight = Tensor(f"{name}_weight", (outputs, inputs, kernel, kernel))
    return [weight, Tensor(f"{name}_bias", (outputs,))] if bias else [weight]


def _norm(name: str, channels: int) -> List[Tensor]:
    return [Tensor(f"{name}_gamma", (channels,)), Tensor(f"{name}_beta", (channels,))]


def _resnet50() -> List[Tensor]:
    """``resnet50_v1``: the zoo's 1x1 convolutions inside a block carry a bias."""
    tensors = _convolution("conv0", 64, 3, 7, bias=False) + _norm("batchnorm0", 64)
    inputs = 64
    for stage, (blocks, outputs) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048)), start=1):
        middle = outputs // 4
        for block in range(blocks):
            at = f"stage{stage}_block{block}"
            tensors += _convolution(f"{at}_conv0", middle, inputs, 1) + _norm(f"{at}_batchnorm0", middle)
            tensors += _convolution(f"{at}_conv1", middle, middle, 3, bias=False) + _norm(f"{at}_batchnorm1", middle)
            tensors += _convolution(f"{at}_conv2", outputs, middle, 1) + _norm(f"{at}_batchnorm2", outputs)
            if block == 0:
                tensors += _convolution(f"{at}_shortcut", outputs, inputs, 1, bias=False)
                tensors += _norm(f"{at}_shortcut_batchnorm", outputs)
            inputs = outputs
    return tensors + _dense("dense0", 1000, 2048)


def _vgg16() -> List[Tensor]:
    tensors: List[Tensor] = []
    inputs = 3
    for stage, (layers, outputs) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for layer in range(layers):
            tensors += _convolution(f"stage{stage}_conv{layer}", outputs, inputs, 3)
            inputs = outputs
    return tensors + _dense("dense0", 4096, 512 * 7 * 7) + _dense("dense1", 4096, 4096) + _dense("dense2", 1000, 4096)


def _alexnet() -> List[Tensor]:
    tensors: List[Tensor] = []
    for layer, (outputs, inputs, kernel) in enumerate(
        ((64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3))
    ):
        tensors += _convolution(f"conv{layer}", outputs, inputs, kernel)
    return tensors + _dense("dense0", 4096, 256 * 6 * 6) + _dense("dense1", 4096, 4096) + _dense("dense2", 1000, 4096)


def _bert() -> List[Tensor]:
    """BERT-base, uncased: 12 layers, 768 wide, 30,522 words, with its pooler."""
    width, inner = 768, 3072
    tensors = [
        Tensor("word_embedding", (30522, width)),
        Tensor("position_embedding", (512, width)),
        Tensor("token_type_embedding", (2, width)),
        *_norm("embedding_layernorm", width),
    ]
    for layer in range(12):
        at = f"layer{layer}"
        for part in ("query", "key", "value", "proj"):
            tensors += _dense(f"{at}_{part}", width, width)
        tensors += _norm(f"{at}_layernorm0", width)
        tensors += _dense(f"{at}_ffn0", inner, width) + _dense(f"{at}_ffn1", width, inner)
        tensors += _norm(f"{at}_layernorm1", width)
    return tensors + _dense("pooler", width, width)


def _uniform16() -> List[Tensor]:
    """16 tensors of 4 MB."""
    return [Tensor(f"tensor{index}", (1000, 1000)) for index in range(16)]


def _small400() -> List[Tensor]:
    """400 tensors of 4 kB, where messages cost and bytes do not."""
    return [Tensor(f"tensor{index}", (1000,)) for index in range(400)]


def _tiny() -> List[Tensor]:
    """For a quick look whether everything works: a scalar, a vector, a matrix in one piece and a large one."""
    return [Tensor("scalar", (1,)), Tensor("vector", (1001,)), Tensor("small", (64, 33)), Tensor("large", (1024, 1025))]


PROFILES: Dict[str, Callable[[], List[Tensor]]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "alexnet": _alexnet,
    "bert": _bert,
    "uniform16": _uniform16,
    "small400": _small400,
    "tiny": _tiny,
}


def profile(name: str) -> List[Tensor]:
    """Return the tensors of a profile, from the model's input to its output."""
    return PROFILES[name]()


def total_bytes(tensors: List[Tensor]) -> int:
    """Return what one worker pushes in one step, in bytes."""
    return FLOAT32_BYTES * sum(tensor.size for tensor in tensors)
