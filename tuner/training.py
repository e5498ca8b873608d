"""Trains the meta-network and says how good it is, beside everything else that could choose.

``python -m tuner.training DATA... --output tuner/data/metanet.npz`` fits the ensemble to all scenarios that are not
held out, and writes it with its hash. On the held-out ones (models or sizes of clusters that it has not seen, with all
candidates) it measures the *regret*: by how much of the fastest candidate's step time the chosen one is slower.
``--report`` writes all figures as JSON, ``--document`` the tables into a document, between the lines
``<!-- figures -->`` and ``<!-- end -->``. ``--judge`` does this for a network that is there, after a change of what
goes with it.

One scenario in ten is left out of the fit and says how far the network's spread is to be trusted.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Optional, Sequence

import click
import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from ps.config import CommConfig
from tuner.dataset import DataSet
from tuner.examples import Examples, examples_of, groups_of, rank_correlation, regret
from tuner.features import GROUPS, NAMES
from tuner.fitting import Recipe, Sample, fit
from tuner.metanet import LEAST_SPREAD, MetaNetwork, Scaling, hash_path
from tuner.network import Ensemble
from tuner.rivals import beside_twin, best_static, boosted_trees, gaussian_process
from tuner.scenarios import nearest
from tuner.space import describe

__all__ = ["Figures", "calibrated", "figures", "held_out", "predicted", "scaling_of", "train"]

#: One in so many scenarios of the training part is for calibration.
CALIBRATION = 10
#: The rule errs in a group of conditions where its mean regret is above this.
RULE_ERRS = 0.02
#: Rows that are evaluated at once.
BLOCK = 256
#: Candidates slower than the best by more than this logarithm say nothing about how well spreads are calibrated.
CALIBRATED = 0.3
#: Of these the regret is told by groups of conditions.
BY_GROUP = ("meta-network and twin", "meta-network", "rule", "fluid")
#: Between these lines of the document stand the tables.
BEGIN, END = "<!-- figures -->", "<!-- end -->"

Scores = npt.NDArray[Any]
Figures = dict[str, float]


# -------------------------------------------------------------------------------------------- training


def scaling_of(examples: Examples) -> Scaling:
    """Return the mean and deviation of each column; a column that never changes keeps its scale."""
    rows = examples.columns.reshape(-1, len(NAMES))
    deviation = rows.std(axis=0, dtype=float)
    mean = rows.mean(axis=0, dtype=float)
    return Scaling(mean.astype(np.float32), np.where(deviation > 1e-3, deviation, 1.0).astype(np.float32))


def sample_of(examples: Examples, scaling: Scaling, without: Optional[str] = None) -> Sample:
    """Return what is fitted to; the columns of the group ``without`` are replaced by their mean, or the prior by 0."""
    inputs = (examples.columns - scaling.mean) / scaling.deviation
    if without is not None:
        inputs[..., [NAMES.index(name) for name in GROUPS[without]]] = 0
    prior = 0 * examples.prior if without == "flow" else -examples.prior
    return Sample(inputs, prior, examples.log_seconds)


def predicted(ensemble: Ensemble, sample: Sample) -> tuple[Scores, Scores]:
    """Return each member's log seconds up to a constant, ``(members, examples, candidates)``, and hidden units."""
    outputs, hidden = [], []
    for first in range(0, len(sample.inputs), BLOCK):
        block = sample.inputs[first : first + BLOCK]
        units = ensemble.hidden(block.reshape(-1, block.shape[-1]))
        outputs.append(ensemble.outputs(units).reshape(-1, *block.shape[:2]))
        hidden.append(units.reshape(ensemble.members, *block.shape[:2], -1).astype(np.float16))
    return sample.prior + np.concatenate(outputs, axis=1), np.concatenate(hidden, axis=1)


def calibrated(ensemble: Ensemble, scaling: Scaling, examples: Examples) -> Scaling:
    """Return ``scaling`` with the trust in the spread that makes the errors on ``examples`` most likely."""
    logs, hidden = predicted(ensemble, sample_of(examples, scaling))
    rows = np.arange(len(examples.present))
    true = examples.log_seconds[rows, examples.present][:, None] - examples.log_seconds
    gains = logs[:, rows, examples.present][..., None] - logs
    change = (hidden - hidden[:, rows, examples.present][:, :, None]).astype(np.float32)
    shared = (change**2).sum(axis=-1).mean(axis=0)
    near = examples.log_seconds - np.nanmin(examples.log_seconds, axis=1, keepdims=True) < CALIBRATED
    counted = near & (np.arange(true.shape[1]) != examples.present[:, None])  # NaN is not near
    error = (gains.mean(axis=0) - true)[counted] ** 2
    spread, shared = gains.var(axis=0)[counted], shared[counted]

    def unlikely(disagreement: float, slack: float) -> float:
        variance = disagreement**2 * spread + slack**2 * shared + LEAST_SPREAD**2
        return float(np.mean(np.log(variance) + error / variance))

    trials = [(d, s) for d in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0) for s in np.geomspace(1e-3, 1.0, 25)]
    disagreement, slack = min(trials, key=lambda trial: unlikely(*trial))
    return scaling._replace(disagreement=disagreement, slack=float(slack))


def train(examples: Examples, calibration: Examples, recipe: Recipe, seed: int, progress: Any = None) -> MetaNetwork:
    """Return a network fitted to ``examples``, whose spread is calibrated by ``calibration``."""
    scaling = scaling_of(examples)
    ensemble = fit(sample_of(examples, scaling), recipe, seed, progress)
    return MetaNetwork(ensemble, calibrated(ensemble, scaling, calibration))


# ------------------------------------------------------------------------------------------ evaluation


def held_out(examples: Examples, data: DataSet) -> npt.NDArray[np.str_]:
    """Return for each example what of it no network is trained on: nothing, model, cluster, or both."""
    kinds = np.array([groups_of(data.scenario(index))["held out"] for index in range(data.scenarios)])
    result: npt.NDArray[np.str_] = kinds[examples.scenario]
    return result


def figures(examples: Examples, choices: npt.NDArray[np.int64], scores: Optional[Scores] = None) -> Figures:
    """Return how good ``choices`` are, and how well ``scores`` rank the candidates."""
    found = regret(examples.log_seconds, choices)
    result = {
        "mean": float(found.mean()),
        "median": float(np.median(found)),
        "p90": float(np.quantile(found, 0.9)),
        "p99": float(np.quantile(found, 0.99)),
        "worst": float(found.max()),
    }
    if scores is not None:
        result["rank_correlation"] = float(np.nanmean(rank_correlation(examples.log_seconds, scores)))
    return result


def chosen(examples: Examples, scores: Scores) -> npt.NDArray[np.int64]:
    """Return the candidate with the lowest score of those that were simulated."""
    best: npt.NDArray[np.int64] = np.where(np.isfinite(examples.log_seconds), scores, np.inf).argmin(axis=1)
    return best


def by_group(data: DataSet, test: Examples, choices: dict[str, npt.NDArray[np.int64]]) -> list[dict[str, Any]]:
    """Return the mean regret of each of ``choices`` in every group of conditions."""
    members = [groups_of(data.scenario(index)) for index in range(data.scenarios)]
    rows = []
    for way in members[0]:
        labels = np.array([groups[way] for groups in members])[test.scenario]
        for label in sorted(set(labels)):
            inside = labels == label
            means = {
                name: float(regret(test.log_seconds[inside], choice[inside]).mean()) for name, choice in choices.items()
            }
            rows.append({"way": way, "group": str(label), "examples": int(inside.sum()), **means})
    return rows


def report_of(
    data: DataSet, train_on: Examples, test: Examples, network: MetaNetwork, seed: int, progress: Any = None
) -> dict[str, Any]:
    """Return all figures of ``network``, alone and beside a twin, and of its rivals on the held-out ``test``."""
    with_twin, told = beside_twin(network, data, test, progress)
    scores = {
        "meta-network and twin": with_twin,
        "meta-network": predicted(network.ensemble, sample_of(test, network.scaling))[0].mean(axis=0),
        "boosted trees": boosted_trees(train_on, test, seed),
        "Gaussian process": gaussian_process(train_on, test, seed),
        "fluid": -test.prior,
    }
    choices = {name: chosen(test, score) for name, score in scores.items()}
    configs = data.candidates()
    fixed = {"best single static": best_static(train_on), "default": nearest(CommConfig(), configs)}
    choices["rule"] = test.rule
    choices.update((name, np.full_like(test.rule, choice)) for name, choice in fixed.items())
    choices["keep what is in force"] = test.present
    kinds = held_out(test, data)
    inside_of = {
        "all": np.ones(len(kinds), bool),
        "known": told,
        **{kind: kinds == kind for kind in sorted(set(kinds))},
    }
    groups = by_group(data, test, {name: choices[name] for name in BY_GROUP})
    erring = [row for row in groups if row["rule"] > RULE_ERRS]
    return {
        "scenarios": {"train": len(set(train_on.scenario)), "test": len(set(test.scenario))},
        "figures": {
            kind: {
                name: figures(test.take(inside), choice[inside], scores[name][inside] if name in scores else None)
                for name, choice in choices.items()
            }
            for kind, inside in inside_of.items()
        },
        "best_static": describe(configs[fixed["best single static"]]),
        "groups": groups,
        "groups_in_which_the_rule_errs": len(erring),
        "of_these_better": sum(row["meta-network and twin"] < row["rule"] for row in erring),
        "calibration": {"disagreement": network.scaling.disagreement, "slack": network.scaling.slack},
    }


def ablations(train_on: Examples, test: Examples, recipe: Recipe, seed: int, progress: Any) -> dict[str, Figures]:
    """Return the figures of networks that lack one group of features each, fitted by a cheaper recipe."""
    scaling = scaling_of(train_on)
    result = {}
    for group in (None, *GROUPS):
        ensemble = fit(sample_of(train_on, scaling, group), recipe, seed, progress)
        scores = predicted(ensemble, sample_of(test, scaling, group))[0].mean(axis=0)
        result["all features" if group is None else f"without {group}"] = figures(test, chosen(test, scores), scores)
    return result


# ---------------------------------------------------------------------------------------------- report


def table(rows: dict[str, Figures]) -> str:
    """Return figures as a table in Markdown."""
    lines = ["| | mean | median | p90 | p99 | worst | rank correlation |", "|---|---|---|---|---|---|---|"]
    for name, row in rows.items():
        percent = " | ".join(f"{100 * row[key]:.2f} %" for key in ("mean", "median", "p90", "p99", "worst"))
        correlation = f"{row['rank_correlation']:.3f}" if "rank_correlation" in row else ""
        lines.append(f"| {name} | {percent} | {correlation} |")
    return "\n".join(lines)


def document_of(report: dict[str, Any]) -> str:
    """Return the tables of a report for the document."""
    parts = [f"Regret on {report['scenarios']['test']} held-out scenarios, four configurations in force in each:", ""]
    titles = {
        "known": "Jobs whose nodes have told all they can, as Gluon's do",
        "model": "Models that were not seen",
        "cluster": "Clusters of sizes that were not seen",
    }
    for kind, rows in report["figures"].items():
        parts += [f"**{titles.get(kind, kind.capitalize())}**", "", table(rows), ""]
    parts += [f"The best single static configuration is {report['best_static']}.", ""]
    if "ablations" in report:
        parts += [
            "**Without a group of features** (half of the jobs, two members, a third of the epochs)",
            "",
            table(report["ablations"]),
            "",
        ]
    parts += ["**Mean regret by groups of conditions**", ""]
    parts += [f"| | | examples | {' | '.join(BY_GROUP)} |", "|---" * (3 + len(BY_GROUP)) + "|"]
    for row in report["groups"]:
        means = " | ".join(f"{100 * row[name]:.2f} %" for name in BY_GROUP)
        parts.append(f"| {row['way']} | {row['group']} | {row['examples']} | {means} |")
    return "\n".join(parts)


def insert(document: Path, text: str) -> None:
    """Replace what stands between the two marks of ``document``."""
    before, rest = document.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The network (npz).")
@click.option("--judge", is_flag=True, help="Judge the network in OUTPUT instead of training one.")
@click.option("--seed", default=1, show_default=True)
@click.option("--members", default=Recipe().members, show_default=True, help="Networks in the ensemble.")
@click.option("--epochs", default=Recipe().epochs, show_default=True)
@click.option("--ablate", is_flag=True, help="Also fit networks that lack a group of features.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures here (JSON).")
@click.option("--document", type=click.Path(path_type=Path, exists=True), help="Write the tables into this document.")
def main(
    data: Sequence[Path],
    output: Path,
    judge: bool,
    seed: int,
    members: int,
    epochs: int,
    ablate: bool,
    report: Optional[Path],
    document: Optional[Path],
) -> None:
    """Train the meta-network on data sets, and compare it with its rivals on what is held out."""
    began = time.monotonic()
    whole = DataSet.join([DataSet.load(path) for path in data])
    recipe = Recipe(members=members, epochs=epochs)
    with Progress() as bar:
        reading = bar.add_task("features", total=whole.scenarios)
        examples = examples_of(whole, lambda _: bar.advance(reading))
        kinds = held_out(examples, whole)
        test = examples.take(kinds != "nothing")
        left_out = examples.scenario % CALIBRATION == 0
        train_on = examples.take((kinds == "nothing") & ~left_out)
        calibration = examples.take((kinds == "nothing") & left_out)
        if judge:
            network, digest = MetaNetwork.load(output), hash_path(output).read_text(encoding="utf-8").split()[0]
        else:
            fitting = bar.add_task("fitting", total=epochs)
            network = train(train_on, calibration, recipe, seed, lambda epoch, loss: bar.advance(fitting))
            digest = network.save(output)
        judging = bar.add_task("twins", total=len(test.present))
        result = report_of(whole, train_on, test, network, seed, lambda: bar.advance(judging))
        if ablate:
            cheap = recipe._replace(members=2, epochs=max(1, epochs // 3))
            half = train_on.take(train_on.scenario % 2 == 0)
            ablating = bar.add_task("ablations", total=cheap.epochs * (1 + len(GROUPS)))
            result["ablations"] = ablations(half, test, cheap, seed, lambda *_: bar.advance(ablating))
    result.update(sha256=digest, seconds=round(time.monotonic() - began), recipe=recipe._asdict(), seed=seed)
    if report is not None:
        report.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if document is not None:
        insert(document, document_of(result))
    click.echo(table(result["figures"]["all"]))


if __name__ == "__main__":
    main()
