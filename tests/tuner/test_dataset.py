"""The data set: random jobs from a seed, made in parts, read back as situations."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import numpy as np
import pytest

from ps.config import CommConfig
from tuner.conditions import Conditions
from tuner.dataset import SIMULATED, DataSet, generate, is_held_out
from tuner.examples import examples_of, groups_of, rank_correlation, regret
from tuner.profiles import ModelProfile
from tuner.scenarios import PRESENTS, draw, model_is_held_out, nearest, size_is_held_out
from tuner.simulator import Simulated
from tuner.space import candidates

CANDIDATES = candidates(CommConfig())


class Simulator:
    """Counts; a step takes as long as the model's computation, and longer with small partitions."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, profile: ModelProfile, conditions: Conditions, configs: Sequence[CommConfig]) -> list[Simulated]:
        self.calls += 1
        compute = profile.forward_seconds + profile.backward_seconds
        return [
            Simulated(
                step_seconds=compute * (1 + (1 << 16) / config.partition_bytes),
                worker_step_seconds=(),
                first_tensor_seconds=0.01,
                forward_seconds=profile.forward_seconds,
                backward_seconds=profile.backward_seconds,
                queue_wait_seconds=0.002,
                credit_stall_seconds=0.001,
                ack_seconds=0.0005,
                messages=100.0,
                partitions=120.0,
                thread_seconds=0.05,
                events=1000,
            )
            for config in configs
        ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    path = tmp_path_factory.mktemp("data") / "data.npz"
    return generate(400, 1, False, path, Simulator(), lambda rows: None)


# ------------------------------------------------------------------------------------------ scenarios


def test_a_scenario_is_a_function_of_seed_and_number() -> None:
    assert draw(1, 7, CANDIDATES) == draw(1, 7, CANDIDATES)
    assert draw(1, 7, CANDIDATES) != draw(1, 8, CANDIDATES)
    assert draw(1, 7, CANDIDATES) != draw(2, 7, CANDIDATES)


def test_scenarios_stay_in_their_ranges() -> None:
    for number in range(40):
        scenario = draw(3, number, CANDIDATES)
        conditions = scenario.conditions
        assert 2 <= conditions.num_workers <= 64
        assert 1 <= conditions.num_servers <= conditions.num_workers
        assert 20e-6 <= conditions.latency_seconds <= 1e-3
        assert len(scenario.presents) == PRESENTS
        assert scenario.presents[0] == CANDIDATES.index(CommConfig())
        assert scenario.profile.model_bytes <= 600e6


def test_what_is_held_out() -> None:
    assert model_is_held_out("vgg16")
    assert not model_is_held_out("resnet50_v1")
    assert model_is_held_out("synthetic-10")
    assert not model_is_held_out("synthetic-11")
    assert size_is_held_out(3)
    assert not size_is_held_out(4)


def test_nearest_is_by_factors() -> None:
    config = CommConfig(partition_bytes=700_000, credit_bytes=5_000_000)
    assert CANDIDATES[nearest(config, CANDIDATES)] == CommConfig(partition_bytes=512 << 10, credit_bytes=4 << 20)


# ----------------------------------------------------------------------------------------------- file


def test_rows_are_step_times(data: DataSet) -> None:
    assert data.rows >= 400
    assert data.rows == np.isfinite(data.step_seconds).sum()
    assert set(data.source) == {SIMULATED}
    assert not any(is_held_out(data.scenario(index)) for index in range(data.scenarios))


def test_a_file_gives_back_what_was_simulated(data: DataSet, tmp_path: Path) -> None:
    data.save(tmp_path / "data.npz")
    loaded = DataSet.load(tmp_path / "data.npz")
    for index in (0, data.scenarios - 1):
        found, drawn = loaded.scenario(index), draw(1, int(loaded.number[index]), CANDIDATES)
        assert found.model == drawn.model
        assert found.presents == drawn.presents
        assert found.conditions.num_workers == drawn.conditions.num_workers
        assert found.conditions.workers[0].send_bytes_per_second == pytest.approx(
            drawn.conditions.workers[0].send_bytes_per_second
        )


def test_what_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(rows: int) -> None:
        raise Stopped

    first, second, whole = Simulator(), Simulator(), Simulator()
    with pytest.raises(Stopped):
        generate(600, 5, False, tmp_path / "a.npz", first, stop)
    resumed = generate(600, 5, False, tmp_path / "a.npz", second, lambda rows: None)
    at_once = generate(600, 5, False, tmp_path / "b.npz", whole, lambda rows: None)
    assert first.calls + second.calls == whole.calls
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(resumed, at_once))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_a_test_part_is_held_out_and_has_all_candidates(tmp_path: Path) -> None:
    test = generate(100, 1, True, tmp_path / "test.npz", Simulator(), lambda rows: None)
    assert np.isfinite(test.step_seconds).all()
    assert all(is_held_out(test.scenario(index)) for index in range(test.scenarios))


def test_another_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", format=np.array(1), seed=np.zeros(3))
    with pytest.raises(ValueError, match="missing: .*step_seconds"):
        DataSet.load(tmp_path / "data.npz")


# ------------------------------------------------------------------------------------------- examples


def test_a_situation_is_what_nodes_would_report(data: DataSet) -> None:
    scenario = data.scenario(0)
    situation = data.situation(0, 0, scenario, scenario.profile)
    assert situation == data.situation(0, 0, scenario, scenario.profile)
    assert situation.config == CommConfig()
    assert situation.num_workers == scenario.conditions.num_workers
    assert situation.step_seconds == pytest.approx(float(data.counters[0, 0, 0]))


def test_examples_have_features_and_the_truth(data: DataSet) -> None:
    examples = examples_of(data)
    assert examples.columns.shape[:2] == (data.scenarios * PRESENTS, len(CANDIDATES))
    assert np.isfinite(examples.columns).all()
    assert np.array_equal(examples.log_seconds[0], np.log(data.step_seconds[0]), equal_nan=True)
    assert examples.present[0] == CANDIDATES.index(CommConfig())


def test_regret_is_against_the_fastest_candidate() -> None:
    log_seconds = np.log(np.array([[1.0, 1.1, np.nan, 2.0]], np.float32))
    assert regret(log_seconds, np.array([1])) == pytest.approx([0.1])
    assert regret(log_seconds, np.array([0])) == pytest.approx([0.0])
    assert np.isnan(regret(log_seconds, np.array([2])))[0]


def test_rank_correlation() -> None:
    log_seconds = np.array([[0.1, 0.2, 0.3, np.nan]], np.float32)
    assert rank_correlation(log_seconds, np.array([[1, 2, 3, 0]])) == pytest.approx([1.0])
    assert rank_correlation(log_seconds, np.array([[3, 2, 1, 0]])) == pytest.approx([-1.0])


def test_groups_name_the_conditions(data: DataSet) -> None:
    groups = groups_of(data.scenario(0))
    assert groups["held out"] == "nothing"
    assert set(groups) >= {"bandwidth", "overhead", "latency", "workers", "links", "hosts", "model"}
