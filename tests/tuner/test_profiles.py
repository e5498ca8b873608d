"""The models: sizes as published, times that add up, random ones that are seeded."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.profiles import ModelProfile, TensorProfile, from_observation, load, synthetic, zoo

pytestmark = pytest.mark.timeout(60)

#: Trainable parameters: of the papers' models as the Gluon zoo builds them, and of BERT-base with both of its heads.
PARAMETERS = {
    "alexnet": 61_100_840,
    "bert_base": 110_106_428,
    "densenet121": 7_978_856,
    "mobilenet1_0": 4_231_976,
    "resnet18_v1": 11_689_512,
    "resnet50_v1": 25_575_912,
    "squeezenet1_0": 1_248_424,
    "vgg16": 138_357_544,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_has_its_published_number_of_parameters(name: str) -> None:
    assert load(name).model_bytes == 4 * PARAMETERS[name]


def test_every_model_of_the_zoo_takes_time_and_bytes() -> None:
    assert len(zoo()) == 35
    for name in zoo():
        model = load(name)
        assert model.name == name
        assert len({tensor.name for tensor in model.tensors}) == len(model.tensors)
        assert all(tensor.size_bytes > 0 and tensor.size_bytes % 4 == 0 for tensor in model.tensors)
        assert model.forward_seconds < model.backward_seconds <= 2 * model.forward_seconds * (1 + 1e-3)
    with pytest.raises(KeyError, match="no model 'resnet51': expected one of alexnet"):
        load("resnet51")


def test_tensors_come_in_forward_order_and_the_last_of_a_layer_has_its_time() -> None:
    tensors = load("vgg16").tensors
    assert [tensor.size_bytes for tensor in tensors[:4]] == [6912, 256, 147456, 256]
    assert tensors[-1].size_bytes == 4000
    assert tensors[0].forward_seconds == 0
    assert tensors[1].forward_seconds == pytest.approx(tensors[1].backward_seconds, rel=0.3)  # no gradient of the input
    assert tensors[-1].backward_seconds == pytest.approx(2 * tensors[-1].forward_seconds, rel=1e-3)


def test_another_accelerator_takes_another_time() -> None:
    model = ModelProfile("one", (TensorProfile("t", 4, 1.0, 2.0),))
    assert model.scaled(0.5) == ModelProfile("one", (TensorProfile("t", 4, 0.5, 1.0),))


def test_a_job_that_is_known_by_its_sizes_and_passes() -> None:
    observed = from_observation([400, 40_000, 4], forward_seconds=0.3, backward_seconds=0.5)
    assert [tensor.size_bytes for tensor in observed.tensors] == [400, 40_000, 4]
    assert observed.forward_seconds == pytest.approx(0.3)
    assert observed.backward_seconds == pytest.approx(0.5)
    assert observed.tensors[1].backward_seconds > observed.tensors[0].backward_seconds > 0.05


def test_random_models_are_seeded_and_differ() -> None:
    models = [synthetic(np.random.default_rng(seed)) for seed in range(40)]
    assert models[7] == synthetic(np.random.default_rng(7))
    assert {model.name for model in models} == {
        f"synthetic {kind}" for kind in ("any", "blocks", "convolutions", "dense end")
    }
    for model in models:
        assert all(tensor.size_bytes >= 4 and tensor.size_bytes % 4 == 0 for tensor in model.tensors)
        assert 1e5 < model.model_bytes < 601e6
        communication_seconds = model.model_bytes / 1.25e9
        assert 0.09 < (model.forward_seconds + model.backward_seconds) / communication_seconds < 11
