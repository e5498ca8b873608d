#!/usr/bin/env python3
"""Builds ``tuner/data/profiles.json``: the models that the simulator knows, from MXNet's Gluon zoo, and BERT-base.

    build_profiles.py [FILE]

Shapes are the zoo's, which needs MXNet. Times are those of a nominal accelerator, an operation after the other: each
takes the longer of what its arithmetic and what its traffic to memory take. Backward takes twice the time of forward,
since it computes the gradients of inputs and of weights; the first layer needs only the latter, and an operation
without weights only the former. ResNet-50 so takes 105 ms for a step of 32 images, about as long as a V100 with
float32. A simulation scales it to any other accelerator.

The time of a layer belongs to the last of its tensors, since it can begin only when all of them are there; an operation
without tensors counts with the layer before it.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import msgspec
from msgspec.structs import replace

from tuner.profiles import DATA_FILE, ModelProfile, TensorProfile

BATCH = 32
FLOPS_PER_SECOND = 10e12
MEMORY_BYTES_PER_SECOND = 600e9
LAUNCH_SECONDS = 5e-6
FLOAT_BYTES = 4
#: Width and height of the images that a model is made for, where that is not 224.
IMAGE_SIZES = {"inceptionv3": 299}

MODELS = (
    *("alexnet", "inceptionv3", "squeezenet1.0", "squeezenet1.1"),
    *(f"vgg{layers}{norm}" for layers in (11, 13, 16, 19) for norm in ("", "_bn")),
    *(f"resnet{layers}_v{version}" for layers in (18, 34, 50, 101, 152) for version in (1, 2)),
    *(f"densenet{layers}" for layers in (121, 161, 169, 201)),
    *(f"mobilenet{'v2_' if version == 2 else ''}{width}" for width in (0.25, 0.5, 0.75, 1.0) for version in (1, 2)),
)

SEQUENCE = 128  # tokens per sample of BERT, and predicted ones among them
PREDICTED = 20


class Layer:
    """Tensors that are needed and ready together, and the time that their forward pass takes."""

    def __init__(self, tensors: Sequence[Tuple[str, int]], seconds: float, first: bool = False) -> None:
        self.tensors = tensors
        self.forward_seconds = seconds
        self.backward_seconds = seconds if first else 2 * seconds

    def profiles(self) -> List[TensorProfile]:
        """Return the tensors; the last one has the time."""
        *others, (name, elements) = self.tensors
        profiles = [TensorProfile(other, size * FLOAT_BYTES, 0.0, 0.0) for other, size in others]
        seconds = (float(f"{self.forward_seconds:.4g}"), float(f"{self.backward_seconds:.4g}"))
        return [*profiles, TensorProfile(name, elements * FLOAT_BYTES, *seconds)]


def operation_seconds(flops: float, elements: float) -> float:
    """Return the time of one operation that moves so many floats from or to memory."""
    return LAUNCH_SECONDS + max(flops / FLOPS_PER_SECOND, elements * FLOAT_BYTES / MEMORY_BYTES_PER_SECOND)


def zoo_model(name: str) -> ModelProfile:
    """Return a model of the Gluon zoo, its tensors in the order in which a trainer gives them priorities."""
    import mxnet as mx

    net = mx.gluon.model_zoo.vision.get_model(name, prefix="")
    image = IMAGE_SIZES.get(name, 224)
    symbol = net(mx.sym.var("data"))
    _, output_shapes, _ = symbol.get_internals().infer_shape(data=(BATCH, 3, image, image))
    shapes = dict(zip(symbol.get_internals().list_outputs(), output_shapes))
    order = [key for key, parameter in net.collect_params().items() if parameter.grad_req != "null"]
    layers: List[Layer] = []
    graph = json.loads(symbol.tojson())["nodes"]
    for node in graph:
        if node["op"] == "null":
            continue
        inputs = [graph[index[0]] for index in node["inputs"]]
        tensors = [(each["name"], math.prod(shapes[each["name"]])) for each in inputs if each["name"] in order]
        data = [shape for each in inputs if (shape := _output_shape(each, shapes)) is not None]
        output = _output_shape(node, shapes)
        assert output is not None
        moved = math.prod(output) + sum(math.prod(shape) for shape in data) + sum(size for _, size in tensors)
        seconds = operation_seconds(_flops(node, shapes, inputs, output), moved)
        if tensors:
            layers.append(Layer(tensors, seconds, first=not layers))
        elif layers:
            layers[-1].forward_seconds += seconds
            layers[-1].backward_seconds += seconds
    profiles = {profile.name: profile for layer in layers for profile in layer.profiles()}
    return ModelProfile(name, tuple(profiles[key] for key in order))


def _output_shape(node: Dict[str, Any], shapes: Dict[str, Tuple[int, ...]]) -> Optional[Tuple[int, ...]]:
    """Return the shape of a node's (first) output; None for parameters."""
    if node["op"] == "null":
        return shapes["data"] if node["name"] == "data" else None
    return shapes.get(f"{node['name']}_output") or shapes.get(f"{node['name']}_output0")


def _flops(
    node: Dict[str, Any], shapes: Dict[str, Tuple[int, ...]], inputs: List[Dict[str, Any]], output: Tuple[int, ...]
) -> float:
    if node["op"] not in ("Convolution", "FullyConnected"):
        return float(math.prod(output))
    weight = shapes[inputs[1]["name"]]
    return 2.0 * math.prod(output) * math.prod(weight[1:])


def bert_base() -> ModelProfile:
    """Return BERT-base with both of its heads (Devlin et al. 2018: 12 layers of width 768, inner width 3072)."""
    width, inner, vocabulary, tokens = 768, 3072, 30522, BATCH * SEQUENCE

    def dense(name: str, outputs: int, inputs: int, rows: int = tokens) -> Layer:
        moved = rows * (outputs + inputs) + outputs * inputs
        seconds = operation_seconds(2.0 * rows * outputs * inputs, moved)
        return Layer([(f"{name}_weight", outputs * inputs), (f"{name}_bias", outputs)], seconds)

    def norm(name: str, rows: int = tokens) -> Layer:
        return Layer([(f"{name}_gamma", width), (f"{name}_beta", width)], operation_seconds(0, 4 * rows * width))

    embeddings = [("word_embedding", vocabulary * width), ("position_embedding", 512 * width)]
    layers = [Layer([*embeddings, ("type_embedding", 2 * width)], operation_seconds(0, 4 * tokens * width), first=True)]
    layers.append(norm("embedding_norm"))
    for number in range(12):
        at = f"layer{number}"
        layers += [dense(f"{at}_{part}", width, width) for part in ("query", "key", "value")]
        scores = operation_seconds(4.0 * tokens * SEQUENCE * width, 4 * BATCH * 12 * SEQUENCE**2)
        layers[-1].forward_seconds += scores
        layers[-1].backward_seconds += 2 * scores
        layers += [dense(f"{at}_output", width, width), norm(f"{at}_norm0")]
        layers += [dense(f"{at}_inner", inner, width), dense(f"{at}_outer", width, inner), norm(f"{at}_norm1")]
    predicted = BATCH * PREDICTED
    decoder = operation_seconds(2.0 * predicted * width * vocabulary, predicted * vocabulary + vocabulary * width)
    layers += [dense("pooler", width, width, BATCH), dense("sentence", 2, width, BATCH)]
    layers += [dense("masked", width, width, predicted), norm("masked_norm", predicted)]
    layers.append(Layer([("decoder_bias", vocabulary)], decoder))  # its weight is that of the word embedding
    return ModelProfile("bert_base", tuple(profile for layer in layers for profile in layer.profiles()))


def main() -> None:
    models = sorted([*(zoo_model(name) for name in MODELS), bert_base()], key=lambda model: model.name)
    models = [replace(model, name=model.name.replace(".", "_")) for model in models]
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA_FILE
    lines = ",\n".join(msgspec.json.encode(model).decode() for model in models)
    path.write_text(f"[\n{lines}\n]\n")
    for model in models:
        seconds = f"{model.forward_seconds * 1e3:6.1f} + {model.backward_seconds * 1e3:6.1f} ms"
        print(f"{model.name:18} {len(model.tensors):4} tensors {model.model_bytes / 1e6:7.1f} MB {seconds}")


if __name__ == "__main__":
    main()
