"""The meta-network: what it predicts, what it learns in a job, and what it refuses to load."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import CommConfig
from tuner.features import NAMES
from tuner.fitting import Recipe, initial
from tuner.metanet import PACKAGED, MetaNetwork, Scaling, hash_path
from tuner.predictor import RulePredictor, Sample
from tuner.situation import Across, HostView, Situation
from tuner.space import candidates

CANDIDATES = candidates(CommConfig())
PRESENT = CANDIDATES.index(CommConfig())
SITUATION = Situation(
    config=CommConfig(),
    num_workers=4,
    num_servers=4,
    tensors=160,
    model_bytes=104_857_600,
    tensor_bytes=(655_360,) * 160,
    step_seconds=0.3,
    forward_seconds=0.05,
    backward_seconds=0.1,
    workers=(HostView(1e9),) * 4,
    servers=(HostView(1e9),) * 4,
    bandwidth_bytes_per_second=Across(1e9, 1e9, 1e9, 0.02),
    latency_seconds=Across(5e-5, 5e-5, 5e-5, 0.1),
    overhead_seconds=Across(1e-4, 1e-4, 1e-4, 0.1),
)


@pytest.fixture
def network() -> MetaNetwork:
    """A network that was not trained."""
    ensemble = initial(len(NAMES), Recipe(members=3, widths=(16, 8)), np.random.default_rng(0))
    ones = np.ones(len(NAMES), np.float32)
    return MetaNetwork(ensemble, Scaling(0 * ones, ones, disagreement=1.0, slack=0.05))


def gain(network: MetaNetwork, candidate: CommConfig) -> float:
    return float(network.predict(SITUATION, [candidate]).log_speedup[0])


# ---------------------------------------------------------------------------------------- prediction


def test_what_is_in_force_gains_nothing_for_certain(network: MetaNetwork) -> None:
    prediction = network.predict(SITUATION, CANDIDATES)
    assert prediction.log_speedup.shape == prediction.spread.shape == (len(CANDIDATES),)
    assert prediction.log_speedup[PRESENT] == 0
    assert prediction.spread[PRESENT] == 0
    assert prediction.spread[0] > 0


def test_a_candidate_is_predicted_nearly_alike_alone_and_among_others(network: MetaNetwork) -> None:
    together = network.predict(SITUATION, CANDIDATES)
    assert gain(network, CANDIDATES[3]) == pytest.approx(together.log_speedup[3], abs=0.01)


def test_no_candidates(network: MetaNetwork) -> None:
    assert network.predict(SITUATION, []).log_speedup.shape == (0,)


def test_where_too_little_is_known_the_rule_answers(network: MetaNetwork) -> None:
    unknown = replace(SITUATION, step_seconds=None)
    assert network.predict(unknown, CANDIDATES).log_speedup.tolist() == (
        RulePredictor().predict(unknown, CANDIDATES).log_speedup.tolist()
    )


# ---------------------------------------------------------------------------------------- fine-tuning


def sample(candidate: CommConfig, log_speedup: float, noise: float = 0.01) -> Sample:
    return Sample(SITUATION, candidate, log_speedup, noise)


def test_a_sample_moves_the_prediction_to_what_was_measured(network: MetaNetwork) -> None:
    before = network.predict(SITUATION, CANDIDATES)
    network.fine_tune([sample(CANDIDATES[0], float(before.log_speedup[0]) + 0.2)])
    after = network.predict(SITUATION, CANDIDATES)
    assert after.log_speedup[0] == pytest.approx(before.log_speedup[0] + 0.2, abs=0.02)
    assert after.spread[0] < before.spread[0]


def test_likenesses_learn_along_and_what_is_in_force_stays(network: MetaNetwork) -> None:
    before = network.predict(SITUATION, CANDIDATES)
    network.fine_tune([sample(CANDIDATES[0], float(before.log_speedup[0]) + 0.2)])
    after = network.predict(SITUATION, CANDIDATES)
    assert after.log_speedup[1] > before.log_speedup[1]
    assert after.log_speedup[PRESENT] == 0


def test_a_noisy_sample_moves_little(network: MetaNetwork) -> None:
    before = gain(network, CANDIDATES[0])
    network.fine_tune([sample(CANDIDATES[0], before + 0.2, noise=10.0)])
    assert gain(network, CANDIDATES[0]) == pytest.approx(before, abs=0.01)


def test_each_lesson_starts_from_what_was_loaded(network: MetaNetwork) -> None:
    before = gain(network, CANDIDATES[0])
    network.fine_tune([sample(CANDIDATES[0], before + 0.2)])
    network.fine_tune([])
    assert gain(network, CANDIDATES[0]) == before


def test_samples_of_unknown_situations_are_ignored(network: MetaNetwork) -> None:
    before = gain(network, CANDIDATES[0])
    network.fine_tune([Sample(replace(SITUATION, step_seconds=None), CANDIDATES[0], 0.5, 0.01)])
    assert gain(network, CANDIDATES[0]) == before


# ---------------------------------------------------------------------------------------------- files


def test_what_was_learned_is_saved(network: MetaNetwork, tmp_path: Path) -> None:
    network.fine_tune([sample(CANDIDATES[0], gain(network, CANDIDATES[0]) + 0.2)])
    network.save(tmp_path / "network.npz")
    loaded = MetaNetwork.load(tmp_path / "network.npz")
    assert loaded.predict(SITUATION, CANDIDATES).log_speedup == pytest.approx(
        network.predict(SITUATION, CANDIDATES).log_speedup, abs=1e-5
    )


def test_another_content_than_the_hash_says_is_refused(network: MetaNetwork, tmp_path: Path) -> None:
    path = tmp_path / "network.npz"
    network.save(path)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256"):
        MetaNetwork.load(path)


def test_without_a_hash_nothing_is_loaded(network: MetaNetwork, tmp_path: Path) -> None:
    network.save(tmp_path / "network.npz")
    hash_path(tmp_path / "network.npz").unlink()
    with pytest.raises(OSError, match="sha256"):
        MetaNetwork.load(tmp_path / "network.npz")


def forged(network: MetaNetwork, path: Path, **changes: Any) -> None:
    """Write a file that differs in some arrays, with the hash that belongs to it."""
    network.save(path)
    with np.load(path) as arrays:
        content = {**{name: arrays[name] for name in arrays.files}, **changes}
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    path.write_bytes(buffer.getvalue())
    hash_path(path).write_text(f"{hashlib.sha256(buffer.getvalue()).hexdigest()}  {path.name}\n")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("format", np.array(99), "format 99"),
        ("names", np.array(["one", "two"]), "other features"),
        ("weights_1", np.zeros((3, 5, 8)), "weights 1 have the shape"),
        ("biases_0", np.zeros((3, 1, 7)), "biases 0 have the shape"),
        ("weights_0", np.full((3, len(NAMES), 16), np.nan), "no finite numbers"),
        ("deviation", np.zeros(len(NAMES)), "deviation"),
        ("mean", np.zeros(3), "scaling"),
    ],
)
def test_what_does_not_fit_is_refused(
    network: MetaNetwork, tmp_path: Path, name: str, value: np.ndarray, text: str
) -> None:
    forged(network, tmp_path / "network.npz", **{name: value})
    with pytest.raises(ValueError, match=text):
        MetaNetwork.load(tmp_path / "network.npz")


def test_pickled_objects_are_refused(network: MetaNetwork, tmp_path: Path) -> None:
    forged(network, tmp_path / "network.npz", mean=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        MetaNetwork.load(tmp_path / "network.npz")


# ------------------------------------------------------------------------------- the one that is shipped


def test_the_shipped_network_is_small_and_knows_these_features() -> None:
    assert PACKAGED.stat().st_size < 400_000
    prediction = MetaNetwork.load().predict(SITUATION, CANDIDATES)
    assert np.isfinite(prediction.log_speedup).all()
    # 640 KiB tensors on a gigabyte per second: partitions of 64 KiB cost too much overhead, whole tensors are no help.
    best = CANDIDATES[int(prediction.log_speedup.argmax())]
    assert best.partition_bytes > 64 << 10
    assert prediction.log_speedup[0] < -0.1
