"""Decides the communication configuration from observations. Imports :mod:`ps`, never :mod:`scheduler`.

=============================  =========================================================================
:mod:`tuner.interface`         what a tuner is
:mod:`tuner.space`             the configurations that are searched
:mod:`tuner.steps`             how long steps take, and whether a difference is more than noise
:mod:`tuner.static`            keeps the configuration it was given
:mod:`tuner.rule`              a formula from bandwidth, latency and overhead, verified
:mod:`tuner.bayesian`          a search with a Gaussian process in the first steps, then frozen
=============================  =========================================================================

Each is a file with a class that :func:`create` makes by name; a further tuner is one more file and one more line.
"""

from __future__ import annotations

from typing import Callable, Mapping

from ps.config import Settings
from ps.errors import SettingsError
from tuner.bayesian import BayesianTuner
from tuner.interface import Proposal, Tuner
from tuner.rule import RuleTuner
from tuner.static import StaticTuner

__all__ = ["Proposal", "TUNERS", "Tuner", "create"]

#: The tuners by the names that ``AUTOBYTE_TUNER`` takes.
TUNERS: Mapping[str, Callable[[Settings], Tuner]] = {
    "bayesian": lambda settings: BayesianTuner(settings.config),
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
