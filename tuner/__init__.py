"""Decides the communication configuration from observations. Imports :mod:`ps`, never :mod:`scheduler`.

=============================  =========================================================================
:mod:`tuner.interface`         what a tuner is
:mod:`tuner.space`             the configurations that are searched
:mod:`tuner.steps`             how long steps take, and whether a difference is more than noise
:mod:`tuner.static`            keeps the configuration it was given
:mod:`tuner.rule`              a formula from bandwidth, latency and overhead, verified
:mod:`tuner.oneshot`           a search in the first steps, then frozen: what the next three have in common
:mod:`tuner.bayesian`          with a Gaussian process
:mod:`tuner.random_search`     at random
:mod:`tuner.grid`              over a coarse grid
:mod:`tuner.autobyte`          predicts, verifies, and follows changes
:mod:`tuner.conditions`        the cluster that a simulation runs on
:mod:`tuner.profiles`          the models of the Gluon zoo, and random ones
:mod:`tuner.simulator`         training steps on a virtual clock, with the project's own links and ledgers
:mod:`tuner.compiled`          the same in machine code
:mod:`tuner.calibration`       fits the simulator to a real job
:mod:`tuner.twin`              a running job as something to simulate
=============================  =========================================================================

Each tuner is a file with a class that :func:`create` makes by name; a further one is one more file and one more line.
"""

from __future__ import annotations

import logging
from typing import Callable, Mapping

from ps.config import Settings
from ps.errors import SettingsError
from tuner.autobyte import AutoByteTuner
from tuner.bayesian import BayesianTuner
from tuner.grid import GridTuner
from tuner.interface import Proposal, Tuner
from tuner.metanet import MetaNetwork
from tuner.predictor import BlendedPredictor, Predictor, RulePredictor
from tuner.random_search import RandomTuner
from tuner.refinement import Refinement
from tuner.rule import RuleTuner
from tuner.static import StaticTuner

__all__ = ["Proposal", "TUNERS", "Tuner", "create", "predictor"]

log = logging.getLogger("autobyte.tuning")


def predictor() -> Predictor:
    """Return the meta-network beside the closed form; the latter alone where no network can be read."""
    try:
        return BlendedPredictor(MetaNetwork.load(), RulePredictor())
    except (OSError, ValueError) as error:
        log.warning("no meta-network, the closed form predicts instead: %s", error)
        return RulePredictor()


#: The tuners by the names that ``AUTOBYTE_TUNER`` takes.
TUNERS: Mapping[str, Callable[[Settings], Tuner]] = {
    "autobyte": lambda settings: AutoByteTuner(settings.config, predictor(), Refinement()),
    "bayesian": lambda settings: BayesianTuner(settings.config),
    "grid": lambda settings: GridTuner(settings.config),
    "random": lambda settings: RandomTuner(settings.config),
    "rule": lambda settings: RuleTuner(settings.config),
    "static": lambda settings: StaticTuner(),
}


def create(name: str, settings: Settings) -> Tuner:
    """Return the tuner called ``name`` for a job that starts with ``settings.config``.

    Raises
    ------
    SettingsError
        There is none of that name.
    """
    if name not in TUNERS:
        raise SettingsError(f"AUTOBYTE_TUNER={name!r}: expected one of {', '.join(sorted(TUNERS))}")
    return TUNERS[name](settings)
