"""The profiles hold the shapes of MXNet's own models."""

from __future__ import annotations

import pytest

from bench.profiles import FLOAT32_BYTES, profile, total_bytes


@pytest.mark.parametrize(
    ("name", "tensors", "expected_bytes"),
    [
        ("resnet50", 193, 102_303_648),
        ("vgg16", 32, 553_430_176),
        ("alexnet", 16, 244_403_360),
        ("bert", 199, 437_928_960),
        ("uniform16", 16, 64_000_000),
    ],
)
def test_a_profile_has_the_tensors_and_bytes_of_its_model(name: str, tensors: int, expected_bytes: int) -> None:
    assert len(profile(name)) == tensors
    assert total_bytes(profile(name)) == expected_bytes


def test_names_are_unique_and_the_input_side_comes_first() -> None:
    for name in ("resnet50", "vgg16", "alexnet", "bert"):
        tensors = profile(name)
        assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert profile("resnet50")[0].shape == (64, 3, 7, 7)
    assert profile("vgg16")[0].shape == (64, 3, 3, 3)
    assert profile("bert")[0].shape == (30522, 768)
    assert profile("vgg16")[-1].size * FLOAT32_BYTES == 4000


@pytest.mark.parametrize(("name", "model"), [("resnet50", "resnet50_v1"), ("vgg16", "vgg16"), ("alexnet", "alexnet")])
def test_shapes_and_order_are_those_of_the_gluon_zoo(name: str, model: str) -> None:
    mxnet = pytest.importorskip("mxnet")
    network = mxnet.gluon.model_zoo.vision.get_model(model)
    output = network(mxnet.sym.var("data"))
    inferred, _, _ = output.infer_shape(data=(1, 3, 224, 224))
    shapes = dict(zip(output.list_arguments(), inferred))
    trained = [key for key, parameter in network.collect_params().items() if parameter.grad_req != "null"]
    assert [tensor.shape for tensor in profile(name)] == [shapes[key] for key in trained]
