"""The data set: random jobs, and how long a step takes in each under every candidate configuration.

``python -m tuner.dataset --rows 100000 --seed 1 --output FILE`` makes one with the compiled simulator (extra
``tune``). It is made in parts beside the file; a command that was stopped goes on where it was, and ends with the same
arrays. A *row* is one step time: a scenario (conditions and model) under one candidate. What nodes would have reported
under four configurations that may be in force is kept as well, so each row serves as "from here to there" four times.
See docs/dataset.md for the arrays.

Small partitions of a large model take long to simulate, and another job teaches more than another candidate.
So a part for training leaves candidates out by chance, the more the longer they take, and their step time is not a
number; a part for tests (``--part test``: models or sizes of clusters on which nothing is trained) has all candidates.

Errors of estimates are not stored: :meth:`DataSet.situation` draws them from a seed, so training sees many.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence

import click
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ps.config import CommConfig
from tuner.conditions import Conditions, Host
from tuner.observed import situation_of
from tuner.profiles import ModelProfile
from tuner.scenarios import Scenario, draw, model_is_held_out, size_is_held_out
from tuner.simulator import Simulated
from tuner.situation import Situation
from tuner.space import candidates

__all__ = ["MEASURED", "SIMULATED", "DataSet", "generate", "simulated"]

#: Where a step time is from.
SIMULATED, MEASURED = 0, 1
FORMAT = 1
#: Scenarios per part.
PART = 16
#: A candidate with n times more partitions than this, of all simulated workers and per step, is kept once in n times.
MANY_PARTITIONS = 800
#: So many workers are simulated at most where hosts are alike.
MOST_WORKERS = 8
STEPS = 3
#: The same of a quick simulation.
QUICK_WORKERS, QUICK_STEPS = 4, 2
#: Of a :class:`~tuner.simulator.Simulated`, what is kept of the configurations in force.
COUNTERS = (
    "step_seconds",
    "first_tensor_seconds",
    "forward_seconds",
    "backward_seconds",
    "queue_wait_seconds",
    "credit_stall_seconds",
    "ack_seconds",
    "messages",
    "partitions",
    "thread_seconds",
)
#: Parts of the jobs that do not know the sizes of tensors, their computation, or the cost per byte; and the passes.
UNKNOWN = (0.1, 0.2, 0.2)
UNKNOWN_PASSES = 0.1
HOST = ("send_bytes_per_second", "receive_bytes_per_second", "overhead_seconds", "byte_seconds", "speed")
#: Decides the errors of the estimates beside the scenario.
SITUATION_SEED = 7

Any = npt.NDArray[np.generic]
Simulate = Callable[[ModelProfile, Conditions, Sequence[CommConfig]], "list[Simulated]"]


class DataSet(NamedTuple):
    """Scenarios and their step times; arrays have one entry per scenario, but for hosts and candidates."""

    seed: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    source: npt.NDArray[np.int8]  #: :data:`SIMULATED` or :data:`MEASURED`
    model: npt.NDArray[np.str_]
    compute_factor: npt.NDArray[np.float64]
    workers: npt.NDArray[np.int16]
    servers: npt.NDArray[np.int16]
    hosts: npt.NDArray[np.float32]  #: of all scenarios, workers before servers, shape ``(hosts, len(HOST))``
    latency_seconds: npt.NDArray[np.float32]
    sum_bytes_per_second: npt.NDArray[np.float32]
    estimate_spread: npt.NDArray[np.float32]
    partition_bytes: npt.NDArray[np.int64]  #: of the candidates
    credit_bytes: npt.NDArray[np.int64]
    step_seconds: npt.NDArray[np.float32]  #: shape ``(scenarios, candidates)``, not a number where not simulated
    presents: npt.NDArray[np.int16]  #: candidates in force, shape ``(scenarios, PRESENTS)``
    counters: npt.NDArray[np.float32]  #: shape ``(scenarios, PRESENTS, len(COUNTERS))``

    @property
    def scenarios(self) -> int:
        return len(self.seed)

    @property
    def rows(self) -> int:
        return int(np.isfinite(self.step_seconds).sum())

    def candidates(self) -> list[CommConfig]:
        return [
            CommConfig(partition_bytes=int(partition), credit_bytes=int(credit))
            for partition, credit in zip(self.partition_bytes, self.credit_bytes)
        ]

    def scenario(self, index: int) -> Scenario:
        """Return what was simulated."""
        first = int(self.workers[:index].sum(dtype=int) + self.servers[:index].sum(dtype=int))
        workers, servers = int(self.workers[index]), int(self.servers[index])
        hosts = tuple(Host(**dict(zip(HOST, map(float, row)))) for row in self.hosts[first : first + workers + servers])
        conditions = Conditions(
            workers=hosts[:workers],
            servers=hosts[workers:],
            latency_seconds=float(self.latency_seconds[index]),
            sum_bytes_per_second=float(self.sum_bytes_per_second[index]),
        )
        return Scenario(
            int(self.seed[index]),
            int(self.number[index]),
            str(self.model[index]),
            float(self.compute_factor[index]),
            conditions,
            tuple(map(int, self.presents[index])),
            float(self.estimate_spread[index]),
        )

    def situation(self, index: int, present: int, scenario: Scenario, profile: ModelProfile) -> Situation:
        """Return what is known of a scenario while its ``present``-th configuration is in force.

        ``scenario`` and its ``profile`` are passed in, since making them takes longer. Some jobs do not know the
        sizes of their tensors, others cannot tell forward and backward passes.
        """
        numbers = dict(zip(COUNTERS, map(float, self.counters[index, present])))
        seen = Simulated(worker_step_seconds=(), events=0, **numbers)
        rng = np.random.default_rng([SITUATION_SEED, scenario.seed, scenario.number, present])
        config = self.candidates()[scenario.presents[present]]
        situation = situation_of(profile, scenario.conditions, config, seen, rng, scenario.estimate_spread)
        unknown = rng.random(3) < UNKNOWN
        situation = replace(
            situation,
            tensor_bytes=() if unknown[0] else situation.tensor_bytes,
            tensor_seconds=() if unknown[:2].any() else situation.tensor_seconds,
            byte_seconds=None if unknown[2] else situation.byte_seconds,
        )
        if rng.random() < UNKNOWN_PASSES:
            situation = replace(situation, forward_seconds=None, backward_seconds=None)
        return situation

    def save(self, path: Path) -> None:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with temporary.open("wb") as file:
            np.savez_compressed(file, format=np.array(FORMAT), **self._asdict())
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> DataSet:
        """Return the data set of a file.

        Raises
        ------
        ValueError
            It is none of this format.
        """
        with np.load(path, allow_pickle=False) as arrays:
            missing = {"format", *cls._fields} - set(arrays.files)
            if missing or int(arrays["format"]) != FORMAT:
                raise ValueError(f"{path}: no data set of format {FORMAT}; missing: {', '.join(sorted(missing))}")
            return cls(**{name: arrays[name] for name in cls._fields})

    @classmethod
    def join(cls, parts: Sequence[DataSet]) -> DataSet:
        """Return the scenarios of all parts, which have the same candidates."""
        shared = ("partition_bytes", "credit_bytes")
        first = parts[0]
        for part in parts:
            if not all(np.array_equal(getattr(part, name), getattr(first, name)) for name in shared):
                raise ValueError("data sets with different candidates cannot be joined")
        return cls(
            **{
                name: getattr(first, name) if name in shared else np.concatenate([getattr(p, name) for p in parts])
                for name in cls._fields
            }
        )


def simulated(scenarios: Iterable[Scenario], simulate: Simulate) -> DataSet:
    """Return the step times of ``scenarios`` under all candidates that are worth it."""
    configs = candidates(CommConfig())
    rows: list[DataSet] = []
    for scenario in scenarios:
        profile = scenario.profile
        kept = _kept(scenario, profile.model_bytes, configs)
        results = dict(zip(kept, simulate(profile, scenario.conditions, [configs[c] for c in kept])))
        seconds = [results[c].step_seconds if c in results else np.nan for c in range(len(configs))]
        counters = [[getattr(results[c], name) for name in COUNTERS] for c in scenario.presents]
        hosts = (*scenario.conditions.workers, *scenario.conditions.servers)
        rows.append(
            DataSet(
                seed=np.array([scenario.seed]),
                number=np.array([scenario.number]),
                source=np.array([SIMULATED], np.int8),
                model=np.array([scenario.model]),
                compute_factor=np.array([scenario.compute_factor]),
                workers=np.array([scenario.conditions.num_workers], np.int16),
                servers=np.array([scenario.conditions.num_servers], np.int16),
                hosts=np.array([[getattr(host, name) for name in HOST] for host in hosts], np.float32),
                latency_seconds=np.array([scenario.conditions.latency_seconds], np.float32),
                sum_bytes_per_second=np.array([scenario.conditions.sum_bytes_per_second], np.float32),
                estimate_spread=np.array([scenario.estimate_spread], np.float32),
                partition_bytes=np.array([config.partition_bytes for config in configs]),
                credit_bytes=np.array([config.credit_bytes for config in configs]),
                step_seconds=np.array([seconds], np.float32),
                presents=np.array([scenario.presents], np.int16),
                counters=np.array([counters], np.float32),
            )
        )
    return DataSet.join(rows)


def _kept(scenario: Scenario, model_bytes: int, configs: Sequence[CommConfig]) -> list[int]:
    """Return the candidates that are simulated: those in force, all of a test, and of others some of the dear ones."""
    if is_held_out(scenario):
        return list(range(len(configs)))
    rng = np.random.default_rng([scenario.seed, scenario.number, 1])
    moved_bytes = model_bytes * min(scenario.conditions.num_workers, MOST_WORKERS)
    return [
        number
        for number, (config, chance) in enumerate(zip(configs, rng.random(len(configs))))
        if chance * moved_bytes / config.partition_bytes < MANY_PARTITIONS or number in scenario.presents
    ]


def is_held_out(scenario: Scenario) -> bool:
    return model_is_held_out(scenario.model) or size_is_held_out(scenario.conditions.num_workers)


def generate(
    rows: int, seed: int, test: bool, output: Path, simulate: Simulate, progress: Callable[[int], None]
) -> DataSet:
    """Make a data set of at least ``rows`` rows, in parts that are kept in ``output`` + ``.parts`` until it is whole.

    ``test`` chooses the scenarios that are held out, or all others. ``progress`` is told the rows that have been added.
    """
    folder = output.with_name(output.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    configs = candidates(CommConfig())
    parts: list[DataSet] = []
    while sum(part.rows for part in parts) < rows:
        first = len(parts) * PART
        chosen = (draw(seed, number, configs) for number in range(first, first + PART))
        path = folder / f"{seed}-{len(parts):05}.npz"
        if path.exists():
            part = DataSet.load(path)
        else:
            part = simulated([scenario for scenario in chosen if is_held_out(scenario) is test], simulate)
            part.save(path)
        parts.append(part)
        progress(part.rows)
    whole = DataSet.join(parts)
    whole.save(output)
    for path in folder.glob(f"{seed}-*.npz"):
        path.unlink()
    folder.rmdir()
    return whole


@click.command()
@click.option("--rows", default=100_000, show_default=True, help="Step times, at least.")
@click.option("--seed", default=1, show_default=True, help="Decides the scenarios.")
@click.option("--quick", is_flag=True, help="A third of the time; each step time is wrong by a per cent.")
@click.option("--part", type=click.Choice(["train", "test"]), default="train", show_default=True)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where to write it (npz)."
)
def main(rows: int, seed: int, part: str, quick: bool, output: Path) -> None:
    """Simulate random jobs under all configurations. A command that was stopped goes on where it was."""
    from tuner.compiled import simulate_compiled  # the import of numba takes a second

    steps, workers = (QUICK_STEPS, QUICK_WORKERS) if quick else (STEPS, MOST_WORKERS)

    def simulate(profile: ModelProfile, conditions: Conditions, configs: Sequence[CommConfig]) -> list[Simulated]:
        return [simulate_compiled(profile, conditions, config, steps, workers) for config in configs]

    began = time.monotonic()
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("rows", total=rows)
        whole = generate(rows, seed, part == "test", output, simulate, lambda added: bar.advance(task, added))
    size_kb = output.stat().st_size / 1024
    click.echo(f"{whole.rows} rows of {whole.scenarios} scenarios, {size_kb:.0f} KB, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
