"""What jobs on a trace have shown, for readers: tables of steps and of gains, the tuners' switches, plots."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from rich.table import Table

from bench.report import QUIET_CORES
from bench.traces import Progress, Rounds, Trace, gain_in_steps, gain_in_time, hindsight, oracle

__all__ = ["Outcome", "gain_table", "phase_table", "plot", "switch_lines"]

STATIC, KEPT = "static:", "-kept"


class Outcome:
    """The jobs of all rivals on one trace.

    Parameters
    ----------
    trace
        The trace.
    jobs
        Of each rival, its jobs, one per round; the first rival is the one in question.
    """

    def __init__(self, trace: Trace, jobs: Mapping[str, Sequence[Dict[str, Any]]]) -> None:
        self.trace, self.jobs = trace, jobs
        self.progress: Dict[str, List[Progress]] = {
            rival: [Progress(job["ends"], trace.phases) for job in played] for rival, played in jobs.items()
        }

    @property
    def statics(self) -> Dict[str, List[Progress]]:
        """Progress of the jobs that kept one configuration."""
        return {name: each for name, each in self.progress.items() if name.startswith(STATIC) or name.endswith(KEPT)}

    def gains(self, in_time: bool) -> Dict[str, float]:
        """Return the first rival's gain over each other, and over what only hindsight knows."""
        ours, *rest = self.progress
        others: Dict[str, Rounds] = {rival: self.progress[rival] for rival in rest}
        if self.statics:
            others["hindsight static"] = self.statics[hindsight(self.statics)]
            others["phase oracle"] = oracle(self.statics)[1]
        gain = gain_in_time if in_time else gain_in_steps
        return {name: gain(self.progress[ours], theirs) for name, theirs in others.items()}

    def step_seconds(self, rival: str, phase: int, settled: bool = False) -> Optional[float]:
        """Return the median step of a phase; with ``settled``, of its second half: the mean over the rounds."""
        found = [progress.step_seconds(phase, settled) for progress in self.progress[rival]]
        known = [seconds for seconds in found if seconds is not None]
        return statistics.mean(known) if known else None


def phase_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of step times, a row for each phase."""
    table = Table(title="median step, ms: whole phase / second half; * the most steps of all static ones",
                  title_justify="left", caption_justify="left")  # fmt: skip
    for heading in ("trace", "phase", "from, s"):
        table.add_column(heading)
    rivals = list(outcomes[0].jobs)
    for rival in rivals:
        table.add_column(rival.replace(STATIC, "static\n"), justify="right")
    for outcome in outcomes:
        best = oracle(outcome.statics)[0] if outcome.statics else []
        for number, phase in enumerate(outcome.trace.phases):
            cells = []
            for rival in rivals:
                both = (outcome.step_seconds(rival, number, settled) for settled in (False, True))
                text = " / ".join("-" if seconds is None else f"{1e3 * seconds:.0f}" for seconds in both)
                cells.append(text + ("*" if best and best[number] == rival else ""))
            table.add_row("" if number else outcome.trace.name, phase.label, f"{phase.begin:.1f}", *cells)
        steps = (sum(sum(each.steps) for each in outcome.progress[rival]) for rival in rivals)
        table.add_row("", "steps made", "", *(f"{each:.1f}" for each in steps), end_section=True)
    busy = [
        f"{outcome.trace.name}, {rival}: {job['others_cores']:.2f}"
        for outcome in outcomes
        for rival, played in outcome.jobs.items()
        for job in played
        if job["others_cores"] > QUIET_CORES
    ]
    if busy:
        table.caption = f"(!) others used more than {QUIET_CORES} core, not worth quoting: {'; '.join(busy)}"
    return table


def gain_table(outcomes: Sequence[Outcome], in_time: bool = False) -> Table:
    """Return the first rival's gains, a row per trace: in equal steps, or in equal wall time."""
    ours = next(iter(outcomes[0].jobs))
    what = "more steps in equal wall time" if in_time else "less time for equal steps (theirs / ours - 1)"
    table = Table(title=f"gain of {ours} over ...: {what}", title_justify="left")
    table.add_column("trace")
    rows = [outcome.gains(in_time) for outcome in outcomes]
    for name in rows[0]:
        table.add_column(name.replace(STATIC, "static\n"), justify="right")
    for outcome, gains in zip(outcomes, rows):
        table.add_row(outcome.trace.name, *(f"{gain:+.1%}" for gain in gains.values()))
    return table


def switch_lines(outcomes: Sequence[Outcome]) -> List[str]:
    """Return a line for each switch: when, to what, why, and what it brought."""
    lines = []
    for outcome in outcomes:
        for rival, played in outcome.jobs.items():
            for number, job in enumerate(played, start=1):
                measured = {event["epoch"]: event["speedup"] for event in job["events"] if event["event"] == "measured"}
                switches = (event for event in job["events"] if event["event"] == "decided" and event["epoch"])
                for event in switches:
                    config, epoch = event["config"], event["epoch"]
                    sizes = "/".join(f"{config[name] / 1024:.0f}K" for name in ("partition_bytes", "credit_bytes"))
                    brought = f"; speedup {measured[epoch]:.2f} measured" if epoch in measured else ""
                    lines.append(
                        f"{outcome.trace.name}, {rival}, round {number}, {event['time']:.1f} s: epoch {epoch}, "
                        f"{sizes}: {event['reason']}{brought}"
                    )
    return lines


def plot(outcome: Outcome, path: Path) -> None:
    """Draw the step times of the first round over time, with the changes of the links and the tuners' epochs."""
    from matplotlib.figure import Figure  # for this option only

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    for rival, played in outcome.jobs.items():
        ends = [0.0, *played[0]["ends"]]
        (line,) = axes.plot(ends[1:], [1e3 * (end - begin) for begin, end in zip(ends, ends[1:])], label=rival,
                            linewidth=0.9 if rival.startswith(STATIC) else 1.6)  # fmt: skip
        for event in played[0]["events"]:
            if event["event"] == "decided" and event["epoch"] and event["time"] <= ends[-1]:
                axes.axvline(event["time"], color=line.get_color(), linewidth=0.6, linestyle=":")
                axes.text(event["time"], 1.0, str(event["epoch"]), transform=axes.get_xaxis_transform(), fontsize=7,
                          color=line.get_color())  # fmt: skip
    for phase in outcome.trace.phases[1:]:
        axes.axvline(phase.begin, color="grey", linewidth=1.5)
        axes.text(phase.begin, 0.01, f" {phase.label} Mbit/s", transform=axes.get_xaxis_transform(), fontsize=8)
    axes.set(xlabel="time, s (dotted: configuration epochs)", ylabel="step, ms", yscale="log", title=outcome.trace.name)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
