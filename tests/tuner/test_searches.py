"""The simple searches before the work: seeded or ordered, bounded, and kept afterwards."""

from __future__ import annotations

from typing import Callable

import pytest

from ps.config import KIB, MIB, CommConfig
from tests.tuner.cluster import NUM_WORKERS, Cluster, play, worker_window
from tuner.grid import GridTuner, grid
from tuner.oneshot import OneShotTuner
from tuner.random_search import RandomTuner
from tuner.rule import Network
from tuner.space import UNSLICED, candidates

pytestmark = pytest.mark.timeout(20)

START = CommConfig()
FAST_WIRE = Network(3.125e9, 50e-6, 300e-6)

SEARCHES: dict[str, Callable[[], OneShotTuner]] = {
    "random": lambda: RandomTuner(START, seed=3),
    "grid": lambda: GridTuner(START),
}


def trials(tuner: OneShotTuner, cluster: Cluster) -> list[CommConfig]:
    """Return what was tried and kept, without repetitions in a row."""
    history = play(tuner, cluster, START, windows=200)
    return [now for before, now in zip([None, *history], history) if now != before]


@pytest.mark.parametrize("name", SEARCHES)
def test_the_fastest_of_twelve_trials_is_kept(name: str) -> None:
    cluster = Cluster(FAST_WIRE, compute_seconds=0.05)
    *tried, kept = trials(SEARCHES[name](), cluster)
    assert len(tried) == 12
    assert tried[0] == START
    assert cluster.step_seconds(kept) <= 1.02 * min(map(cluster.step_seconds, tried))


@pytest.mark.parametrize("name", SEARCHES)
def test_of_trials_within_2_percent_the_largest_is_kept(name: str) -> None:
    tuner = SEARCHES[name]()
    tried, kept = [START], START
    for window in range(100):
        tuner.observe([worker_window(rank, 0.1, 10) for rank in range(NUM_WORKERS)])
        proposal = tuner.propose(window)
        if proposal is not None:
            kept = proposal.config
            tried.append(kept)
    assert kept == max(tried, key=lambda config: (config.partition_bytes, config.credit_bytes))


def test_random_draws_from_the_whole_space_without_repetition() -> None:
    cluster = Cluster(FAST_WIRE, compute_seconds=0.05)
    *tried, _ = trials(RandomTuner(START, seed=3), cluster)
    assert len(set(tried)) == 12
    assert set(tried) <= set(candidates(START))
    assert [*tried] != [*trials(RandomTuner(START, seed=4), cluster)[:12]]
    assert [*tried] == [*trials(RandomTuner(START, seed=3), cluster)[:12]]


def test_the_grid_is_tried_from_the_largest_to_the_smallest() -> None:
    *tried, _ = trials(GridTuner(START), Cluster(FAST_WIRE, compute_seconds=0.05))
    assert tried == [START, *reversed(grid(START))]
    assert [(config.partition_bytes // KIB, config.credit_bytes // MIB) for config in tried[2:6]] == [
        (8192, 32),
        (2048, 32),
        (2048, 8),
        (512, 32),
    ]
    assert tried[1].partition_bytes == UNSLICED.partition_bytes


def test_every_reason_names_the_search_and_the_trial() -> None:
    cluster = Cluster(FAST_WIRE, compute_seconds=0.05)
    tuner, config, reasons = GridTuner(START), START, []
    for window in range(100):
        tuner.observe(cluster.window(config))
        proposal = tuner.propose(window)
        if proposal is not None:
            config = proposal.config
            reasons.append(proposal.reason)
    assert reasons[0] == "grid, trial 2 of 12: largest first"
    assert reasons[-1].startswith("grid, frozen: 12 trials are done; a step took ")
