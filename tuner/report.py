"""What an evaluation says, for readers: a table, a summary against the figures to reach, and plots."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence

from rich.table import Table

from tuner.evaluation import Evaluated, Row

__all__ = ["plot_speedups", "plot_steps", "summary", "table"]

#: The columns of the table: policies that AutoByte is compared with.
POLICIES = (
    "bayesian kept",
    "rule",
    "default",
    "4 MB / 16 MB",
    "layer-wise FIFO",
    "hindsight static",
    "phase oracle",
)
#: What AutoByte's paper claims over the best static configuration.
CLAIMED_GAIN = 0.332


def table(rows: Sequence[Row], in_time: bool = False) -> Table:
    """Return AutoByte's gains over all others, one case per line: in equal steps, or in equal wall time."""
    made = Table(title=f"AutoByte's gain over ..., equal {'wall time' if in_time else 'steps'}")
    for name in ("trace", "model", "size"):
        made.add_column(name)
    for name in (*POLICIES, "worst speed", "converged after"):
        made.add_column(name, justify="right")
    for row in sorted(rows, key=lambda row: row.case):
        gain: Callable[[str], float] = row.gain_in_time if in_time else row.gain
        made.add_row(
            row.trace,
            row.model,
            f"{row.num_workers}+{row.num_servers}",
            *(f"{gain(policy):+.1%}" for policy in POLICIES),
            f"{row.worst_speed:.2f}",
            " ".join("-" if steps is None else str(steps) for steps in row.converge_steps),
        )
    return made


class _Line(NamedTuple):
    """One figure of the summary."""

    name: str
    text: str


def summary(rows: Sequence[Row]) -> list[str]:
    """Return one line per figure that the project has set itself."""
    over_kept = [row.gain("bayesian kept") for row in rows]
    over_hindsight = [row.gain("hindsight static") for row in rows]
    over_default = [row.gain("default") for row in rows]
    excess = [value for row in rows for value in row.excess if math.isfinite(value)]
    steps = [value for row in rows for value in row.converge_steps]
    windows = [value for row in rows for value in row.converge_windows if value is not None]
    slowest = [row.worst_speed for row in rows]
    lines = [
        _Line("cases", f"{len(rows)}, {len(steps)} phases"),
        _Line("gain over the one-shot search, kept", _spread(over_kept)),
        _Line(f"cases in which that is above {CLAIMED_GAIN:.1%}", _share(gain > CLAIMED_GAIN for gain in over_kept)),
        _Line("gain over the best static one in hindsight", _spread(over_hindsight)),
        _Line("cases in which that is a loss above 2 %", _share(gain < -0.02 for gain in over_hindsight)),
        _Line("gain over the default", _spread(over_default)),
        _Line("steps longer than the oracle's, 20 steps after a change", _spread(excess)),
        _Line("phases in which that is above 3 %", _share(value > 0.03 for value in excess)),
        _Line("phases converged within 20 steps", _share(value is not None and value <= 20 for value in steps)),
        _Line("windows until convergence", f"median {statistics.median(windows):.1f}" if windows else "never"),
        _Line("lowest speed over 20 steps, the default's being 1", f"{min(slowest):.2f}"),
        _Line("cases in which that is below 0.9", _share(speed < 0.9 for speed in slowest)),
    ]
    return [f"{line.name}: {line.text}" for line in lines]


def _spread(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):+.1%}, {min(values):+.1%} to {max(values):+.1%}"


def _share(hits: Iterable[bool]) -> str:
    found = list(hits)
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.0%})"


def plot_steps(evaluated: Evaluated, path: Path) -> None:
    """Draw the step time over time, with the epochs, the best of each phase and the default."""
    from matplotlib.figure import Figure  # for this command only

    played, row = evaluated.played, evaluated.row
    ends = played.step_seconds.cumsum()
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(ends, 1e3 * played.step_seconds, linewidth=0.8, label="AutoByte")
    axes.plot(ends, 1e3 * evaluated.default, linewidth=1, linestyle="--", label="default")
    axes.plot(ends, 1e3 * evaluated.best, linewidth=1, color="black", label="best of the phase")
    for decision in played.decisions:
        if decision.step >= 0:
            axes.axvline(ends[decision.step], color="grey", linewidth=0.5)
            axes.text(ends[decision.step], 1.0, str(decision.epoch), transform=axes.get_xaxis_transform(), fontsize=7)
    axes.set(
        xlabel="time, s (lines: configuration epochs)",
        ylabel="step, ms",
        yscale="log",
        title=f"{row.trace}: {row.model}, {row.num_workers} workers, {row.num_servers} servers",
    )
    axes.legend()
    figure.savefig(path, dpi=110)


def plot_speedups(rows: Sequence[Row], path: Path) -> None:
    """Draw predicted against measured speedups of all switches, as a heat map."""
    from matplotlib.figure import Figure

    pairs = [pair for row in rows for pair in row.speedups if None not in pair]
    if not pairs:
        return
    predicted, measured = zip(*pairs)
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    low, high = 0.8, 2.0
    drawn = axes.hist2d(
        [min(max(value, low), high) for value in predicted],
        [min(max(value, low), high) for value in measured],
        bins=40,
        range=[[low, high]] * 2,
        cmin=1,
    )
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.set(xlabel="speedup predicted", ylabel="speedup measured", title=f"{len(pairs)} switches")
    figure.colorbar(drawn[3], label="switches")
    figure.savefig(path, dpi=110)
