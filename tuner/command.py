"""``autobyte-tune``: what is done with tuners outside of a job."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Optional, Sequence

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from ps.config import CommConfig
from ps.console import version_option
from tuner import predictor
from tuner.autobyte import AutoByteTuner
from tuner.evaluation import Case, Row, evaluate
from tuner.predictor import RulePredictor
from tuner.profiles import zoo
from tuner.refinement import Refinement
from tuner.report import plot_speedups, plot_steps, summary, table
from tuner.suite import SUITE
from tuner.thinking import Thinking
from tuner.trace import WINDOW_SECONDS

__all__ = ["main"]

#: What is evaluated where nothing is chosen: models with few large and with many small tensors, up to 64 workers.
MODELS = ("resnet50_v1", "vgg16", "bert_base", "mobilenet1_0")
SIZES = ("2x2", "4x2", "8x8", "64x16")


@click.group()
@version_option()
def tune() -> None:
    """Evaluate AutoByte's tuners in simulation; needs the extra ``tune``."""


def _size(context: click.Context, option: click.Parameter, values: Sequence[str]) -> list[tuple[int, int]]:
    sizes = []
    for value in values:
        workers, _, servers = value.partition("x")
        if not (workers.isdigit() and servers.isdigit() and int(workers) and int(servers)):
            raise click.BadParameter(f"{value!r}: expected workers x servers, such as 4x2")
        sizes.append((int(workers), int(servers)))
    return sizes


@tune.command("evaluate")
@click.option("--trace", "traces", multiple=True, type=click.Choice(sorted(SUITE)), help="One of the suite; all.")
@click.option("--model", "models", multiple=True, default=MODELS, show_default=True, help="Of the Gluon zoo, or BERT.")
@click.option(
    "--size", "sizes", multiple=True, default=SIZES, show_default=True, callback=_size, help="Of the cluster."
)
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True, help="Of noise and traces.")
@click.option("--window", default=WINDOW_SECONDS, show_default=True, help="Seconds between reports of a node.")
@click.option("--closed-form", is_flag=True, help="Without the meta-network.")
@click.option(
    "--json",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one JSON object per case; cases that are there already are not played again.",
)
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Draw step times and speedups here.")
def evaluate_command(
    traces: Sequence[str],
    models: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    seeds: Sequence[int],
    window: float,
    closed_form: bool,
    path: Optional[Path],
    plots: Optional[Path],
) -> None:
    """Play a suite of traces to AutoByte and to what it has to beat; see docs/tuning.md."""
    for name in set(models) - set(zoo()):
        raise click.BadParameter(f"there is no model {name!r}; there are {', '.join(zoo())}")
    wanted = [
        Case(trace, model, *size, seed)
        for trace, model, size, seed in itertools.product(traces or SUITE, models, sizes, seeds)
    ]
    known = {row.case: row for row in _read(path)}
    with Progress(transient=True) as progress:
        bar = progress.add_task("cases", total=len(wanted))
        for case in wanted:
            if case not in known:
                known[case] = _play(case, window, closed_form, plots)
                _append(path, known[case])
            progress.advance(bar)
    rows = [known[case] for case in wanted]
    console = Console()
    console.print(table(rows))
    console.print(table(rows, in_time=True))
    for line in summary(rows):
        console.print(line, highlight=False)
    if plots is not None:
        plot_speedups(rows, plots / "speedups.png")


def _play(case: Case, window_seconds: float, closed_form: bool, plots: Optional[Path]) -> Row:
    thinking = Thinking()

    def autobyte(config: CommConfig) -> AutoByteTuner:
        if closed_form:
            return AutoByteTuner(config, RulePredictor())
        return AutoByteTuner(config, predictor(), Refinement(thinking.simulate))

    evaluated = evaluate(case, autobyte, window_seconds, thinking)
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        name = f"{case.trace}-{case.model}-{case.num_workers}x{case.num_servers}-{case.seed}.png"
        plot_steps(evaluated, plots / name.replace(" ", "-"))
    return evaluated.row


def _read(path: Optional[Path]) -> list[Row]:
    if path is None or not path.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"{path} was not written by this command: {error}") from None


def _append(path: Optional[Path], row: Row) -> None:
    if path is not None:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")


def main() -> None:
    """Run the command; the entry point of ``autobyte-tune``."""
    tune(prog_name="autobyte-tune")


if __name__ == "__main__":
    main()
