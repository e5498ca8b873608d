"""Features have no units, and say what is not known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import CommConfig
from tuner.features import GROUPS, NAMES, features
from tuner.situation import Across, HostView, Situation
from tuner.space import UNSLICED, candidates

CANDIDATES = candidates(CommConfig())


def situation(seconds: float = 1.0) -> Situation:
    """A job in which everything takes ``seconds`` times as long."""
    return Situation(
        config=CommConfig(),
        num_workers=4,
        num_servers=2,
        tensors=4,
        model_bytes=100_000_000,
        tensor_bytes=(10_000_000, 20_000_000, 30_000_000, 40_000_000),
        step_seconds=0.3 * seconds,
        forward_seconds=0.1 * seconds,
        backward_seconds=0.1 * seconds,
        workers=(HostView(1e9 / seconds),) * 4,
        servers=(HostView(2e9 / seconds), HostView()),
        bandwidth_bytes_per_second=Across(1e9 / seconds, 1e9 / seconds, 2e9 / seconds, 0.02),
        latency_seconds=Across(5e-5 * seconds, 5e-5 * seconds, 5e-5 * seconds, 0.1),
        overhead_seconds=Across(1e-4 * seconds, 1e-4 * seconds, 2e-4 * seconds, 0.1),
        sum_bytes_per_second=4e9 / seconds,
        queue_wait_seconds=0.01 * seconds,
        credit_stall=0.2,
        ack_seconds=0.002 * seconds,
        worker_use=0.4,
        server_use=0.6,
    )


def column(of: Situation, name: str) -> np.ndarray:
    return features(of, CANDIDATES).columns[:, NAMES.index(name)]


def test_the_unit_of_time_does_not_matter() -> None:
    assert features(situation(), CANDIDATES).columns == pytest.approx(features(situation(8.0), CANDIDATES).columns)


def test_a_row_for_each_candidate_and_a_column_for_each_name() -> None:
    columns, prior = features(situation(), CANDIDATES)
    assert columns.shape == (len(CANDIDATES), len(NAMES))
    assert prior.shape == (len(CANDIDATES),)
    assert len(set(NAMES)) == len(NAMES) == sum(map(len, GROUPS.values()))


def test_what_is_in_force_gains_nothing() -> None:
    columns, prior = features(situation(), [CommConfig()])
    assert prior.tolist() == [0]
    assert columns[0, NAMES.index("partition_change")] == 0


def test_a_partition_beyond_the_largest_shard_is_that_shard() -> None:
    of = situation()  # the largest tensor is cut into two shards of 20 MB
    one, other = features(
        of, [CommConfig(partition_bytes=size, credit_bytes=1 << 30) for size in (30 << 20, 90 << 20)]
    ).columns
    differing = {name for name, a, b in zip(NAMES, one, other) if a != b}
    assert differing == {"skew_in_credit", "skew_in_model", "skew_wait_in_step", "skew_change"}


def test_what_is_not_known_is_said() -> None:
    assert column(situation(), "no_latency").tolist() == [0] * len(CANDIDATES)
    for field, name in (
        ("latency_seconds", "no_latency"),
        ("forward_seconds", "no_compute"),
        ("ack_seconds", "no_counters"),
    ):
        assert column(replace(situation(), **{field: None}), name).tolist() == [1] * len(CANDIDATES)
    assert column(replace(situation(), tensor_bytes=()), "no_tensors").tolist() == [1] * len(CANDIDATES)


@pytest.mark.parametrize("field", ["step_seconds", "bandwidth_bytes_per_second", "overhead_seconds"])
def test_too_little_is_an_error(field: str) -> None:
    with pytest.raises(ValueError, match="features need"):
        features(replace(situation(), **{field: None}), CANDIDATES)


@pytest.mark.parametrize("tensor_bytes", [(), (4,), (1 << 30,) * 600])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_extremes_give_finite_numbers(tensor_bytes: tuple[int, ...], scale: float) -> None:
    of = replace(
        situation(),
        config=UNSLICED,
        tensor_bytes=tensor_bytes,
        model_bytes=sum(tensor_bytes) or 4,
        tensors=len(tensor_bytes),
        bandwidth_bytes_per_second=Across(scale * 1e9, scale * 1e9, scale * 1e9),
        workers=(),
        step_seconds=1 / scale,
        backward_seconds=0.0,
    )
    columns, prior = features(of, CANDIDATES)
    assert np.isfinite(columns).all()
    assert np.isfinite(prior).all()
