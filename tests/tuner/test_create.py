"""Tuners by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ps.config import CommConfig, Role, Settings
from ps.errors import SettingsError
from tests.tuner.cluster import Cluster, play
from tuner import create
from tuner.autobyte import AutoByteTuner
from tuner.bayesian import BayesianTuner
from tuner.grid import GridTuner
from tuner.random_search import RandomTuner
from tuner.rule import Network, RuleTuner
from tuner.static import StaticTuner

pytestmark = pytest.mark.timeout(20)

SETTINGS = Settings(role=Role.SCHEDULER, root_host="127.0.0.1", root_port=9000, num_workers=2, num_servers=1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("static", StaticTuner),
        ("rule", RuleTuner),
        ("bayesian", BayesianTuner),
        ("random", RandomTuner),
        ("grid", GridTuner),
        ("autobyte", AutoByteTuner),
    ],
)
def test_a_tuner_by_its_name(name: str, kind: type) -> None:
    assert type(create(name, SETTINGS)) is kind


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(SettingsError) as raised:
        create("bayes", SETTINGS)
    expected = "autobyte, bayesian, grid, random, rule, static"
    assert str(raised.value) == f"AUTOBYTE_TUNER='bayes': expected one of {expected}"


def test_static_changes_nothing() -> None:
    start = CommConfig(partition_bytes=1, credit_bytes=1)
    cluster = Cluster(Network(125e6, 1e-4, 1e-4))
    assert set(play(StaticTuner(), cluster, start, windows=5)) == {start}


def test_no_tuner_imports_numba_and_only_the_search_scikit_learn() -> None:
    """Importing either takes a second and 60 MB, which no other shall pay."""
    code = "import sys, tuner; sys.exit('sklearn' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=15).returncode == 0
