"""Training from the command line, on a small data set whose step times follow a simple law."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.tuner.test_dataset import Simulator
from tuner import training
from tuner.dataset import DataSet, generate
from tuner.features import NAMES
from tuner.fitting import Recipe, initial
from tuner.metanet import MetaNetwork, Scaling
from tuner.rehearsal import regret_by_trials


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    for name, test in (("train", False), ("test", True)):
        generate(500, 1, test, folder / f"{name}.npz", Simulator(), lambda rows: None)
    return [str(folder / "train.npz"), str(folder / "test.npz")]


def test_trains_reports_and_writes_the_tables(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.rivals.PROCESS_ROWS", 60)
    monkeypatch.setattr("tuner.rivals.TREES", 3)
    monkeypatch.setattr("tuner.refinement.MOST_PARTITIONS", 100)  # of what is simulated here, the cheapest
    document = tmp_path / "figures.md"
    document.write_text("before\n<!-- figures -->\nwhat was here\n<!-- end -->\nafter\n")
    arguments = [*files, "--output", str(tmp_path / "network.npz"), "--members", "2", "--epochs", "8"]
    arguments += ["--report", str(tmp_path / "report.json"), "--document", str(document)]
    result = CliRunner().invoke(training.main, arguments)
    assert result.exit_code == 0, result.output

    MetaNetwork.load(tmp_path / "network.npz")
    report = json.loads((tmp_path / "report.json").read_text())
    figures = report["figures"]["all"]
    assert set(figures) >= {
        "meta-network and twin",
        "meta-network",
        "rule",
        "Gaussian process",
        "boosted trees",
        "best single static",
    }
    # The largest partition is always the fastest here: easy to learn, and the rule does not know.
    assert figures["meta-network"]["mean"] < 0.2 * figures["rule"]["mean"]
    assert figures["best single static"]["mean"] == pytest.approx(0)
    assert {"model", "cluster"} & set(report["figures"]) and "known" in report["figures"]
    assert report["sha256"]
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "what was here" not in text and "| meta-network |" in text


def test_trials_find_better_configurations(files: list[str]) -> None:
    ensemble = initial(len(NAMES), Recipe(members=2, widths=(8,)), np.random.default_rng(0))
    ones = np.ones(len(NAMES), np.float32)
    network = MetaNetwork(ensemble, Scaling(0 * ones, ones, slack=0.05))
    regrets = regret_by_trials(network, DataSet.load(Path(files[1])), trials=3, seed=0)
    assert regrets.shape[1] == 4
    assert (np.diff(regrets, axis=1) <= 0).all()  # the fastest so far only gets faster
    assert regrets[:, 3].mean() < regrets[:, 0].mean()
