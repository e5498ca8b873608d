#!/usr/bin/env python3
"""Compare tuners in the emulated cluster, on real jobs whose links change while they train.

::

    bench_traces.py --traces drop,rise,straggler,cross --json lab.json --plots plots         # needs root, see lab.py
    bench_traces.py --traces mine=5:0:100+9:all:50 --rivals autobyte,rule,static:1M/8M

Every (trace, rival) is a job of its own: scheduler, servers and workers on hosts of the lab, the store
``dist_sync_autobyte`` under MXNet, computation by timed operations of MXNet's engine (``bench/emulated.py``). In every
round each rival plays each trace once, so slow changes of the machine meet all alike. ``--json`` keeps each job as
soon as it has ended; what the file has already is not run again. docs/lab-evaluation.md explains the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from rich.console import Console

from bench.emulated import tensors
from bench.job import BenchError, Job
from bench.outcome import Outcome, gain_table, phase_table, plot, switch_lines
from bench.profiles import total_bytes
from bench.report import ideal_seconds
from bench.traces import NAMED, Trace, parse
from bench.usage import OthersWatch, cpu_seconds
from emulation import Lab, LabError, orderly_endings
from tuner.profiles import load, zoo

RIVALS = "autobyte,bayesian-kept,rule,static:128K/1M,static:512K/4M,static:4M/16M,static:whole"
TUNERS = ("autobyte", "bayesian", "grid", "random", "rule")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: One partition per shard of a tensor, unlimited credit, no fusion: layer by layer, first come first served.
WHOLE = {"AUTOBYTE_PARTITION_BYTES": 1 << 30, "AUTOBYTE_CREDIT_BYTES": 64 << 30, "AUTOBYTE_FUSION_BYTES": 0}
WARMING_STEPS = 3

Record = Dict[str, Any]


class Setup(NamedTuple):
    """What all jobs have in common; a record is of one."""

    profile: str
    scale: float
    compute_seconds: float
    rate_mbit: float
    window_seconds: float
    workers: int
    servers: int


class Emulation:
    """The lab as :class:`bench.job.Job` sees it, with other workers, and variables for all processes."""

    def __init__(self, lab: Lab, setup: Setup, variables: Dict[str, str]) -> None:
        self._lab = lab
        compute = [setup.profile, str(setup.scale), str(setup.compute_seconds)]
        self._worker = [sys.executable, "-m", "bench.emulated", *compute]
        self._variables = {**variables, "AUTOBYTE_WINDOW_SECONDS": str(setup.window_seconds)}

    def address(self, host: int) -> str:
        return self._lab.address(host)

    def popen(
        self, host: int, command: Sequence[str], env: Optional[Mapping[str, str]] = None,
        stdin: Optional[int] = None, stdout: Optional[int] = None, stderr: Optional[int] = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        variables = {**(env or {}), **self._variables}
        command = self._worker if variables["DMLC_ROLE"] == "worker" else command
        return self._lab.popen(host, command, variables, stdin, stdout, stderr)


def rival_variables(text: str) -> Dict[str, str]:
    """Return the variables that make a rival of its name.

    Examples
    --------
    >>> rival_variables("static:512K/4M")["AUTOBYTE_CREDIT_BYTES"]
    '4194304'
    """
    name, _, sizes = text.partition(":")
    if name == "static" and sizes:
        found = re.fullmatch(r"(\d+)([KMG]?)/(\d+)([KMG]?)", sizes)
        if sizes == "whole":
            variables = WHOLE
        elif found:
            partition, credit = int(found[1]) * UNITS[found[2]], int(found[3]) * UNITS[found[4]]
            variables = {"AUTOBYTE_PARTITION_BYTES": partition, "AUTOBYTE_CREDIT_BYTES": credit}
        else:
            raise ValueError(f"rival {text!r}: expected static:whole, or P/C such as static:512K/4M")
        return {"AUTOBYTE_TUNER": "static", **{key: str(value) for key, value in variables.items()}}
    if text.removesuffix("-kept") not in TUNERS:
        raise ValueError(f"rival {text!r}: expected static:P/C, static:whole, or one of {', '.join(TUNERS)}, also as "
                         "NAME-kept: what it finds before the trace, then kept")  # fmt: skip
    return {"AUTOBYTE_TUNER": text.removesuffix("-kept")}


class Running:
    """A job that has warmed up, and its events."""

    def __init__(self, job: Job, event_file: Path) -> None:
        self.job = job
        self._event_file = event_file

    def step(self) -> float:
        """Let all workers make a step; return when the last one had ended it (monotonic)."""
        return max(float(answer["end"]) for answer in self.job.answers("step"))

    def events(self, since: float = 0.0) -> List[Dict[str, Any]]:
        """Return the tuner's events so far, their times in seconds after ``since`` (seconds since 1970)."""
        lines = self._event_file.read_text().splitlines() if self._event_file.exists() else []
        return [{**event, "time": event["time"] - since} for event in map(json.loads, lines)]

    def cpu_seconds(self) -> Dict[str, float]:
        """Return what the processes of each role have used."""
        return {role: sum(cpu_seconds(pid).total for pid in pids) for role, pids in self.job.by_role().items()}


@contextlib.contextmanager
def started(lab: Lab, setup: Setup, variables: Dict[str, str], patience_seconds: float) -> Iterator[Running]:
    """Start a job on links at their first rate and let it warm up; check its sums then, and at the end."""
    for host in range(lab.hosts):
        lab.set_rate(host, setup.rate_mbit)
    with tempfile.TemporaryDirectory() as directory:
        event_file = Path(directory, "events.jsonl")
        network = Emulation(lab, setup, {**variables, "AUTOBYTE_EVENT_FILE": str(event_file)})
        job = Job("autobyte", setup.profile, network, setup.workers, setup.servers, patience_seconds)
        with job:
            job.answers()
            job.checked_round(0)
            running = Running(job, event_file)
            for _ in range(WARMING_STEPS):
                running.step()
            yield running
            job.checked_round(1)


@contextlib.contextmanager
def changing(lab: Lab, trace: Trace) -> Iterator[None]:
    """Change the links as the trace says while the body runs."""
    over, failures = threading.Event(), []
    start = time.monotonic()

    def carry_out() -> None:
        try:
            for change in trace.changes:
                if over.wait(max(0.0, start + change.at_seconds - time.monotonic())):
                    return
                for host in range(lab.hosts) if change.host is None else [change.host]:
                    lab.set_rate(host, change.rate_mbit)
        except LabError as error:
            failures.append(error)

    thread = threading.Thread(target=carry_out, name="rates", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)
    if failures:
        raise failures[0]


def play(lab: Lab, setup: Setup, trace: Trace, variables: Dict[str, str], patience_seconds: float) -> Record:
    """Run one job through a trace."""
    with started(lab, setup, variables, patience_seconds) as running:
        others, used = OthersWatch(), running.cpu_seconds()
        running.step()  # which makes up for the time that this look has taken
        ends: List[float] = []
        with changing(lab, trace):
            start, since = time.monotonic(), time.time()
            while not ends or ends[-1] < trace.seconds:
                ends.append(round(running.step() - start, 6))
        cores = {role: (value - used[role]) / ends[-1] for role, value in running.cpu_seconds().items()}
        return {
            "ends": ends,
            "events": running.events(since),
            "cores": cores,
            "others_cores": others.cores(),
        }


def search(lab: Lab, setup: Setup, tuner: str, steps: int, patience_seconds: float) -> Record:
    """Let a one-shot tuner search on unchanging links; return what it keeps."""
    with started(lab, setup, {"AUTOBYTE_TUNER": tuner}, patience_seconds) as running:
        start = time.monotonic()
        for number in range(steps):
            running.step()
            events = running.events()
            if any(", frozen: " in event.get("reason", "") for event in events):
                config = [event["config"] for event in events if event["event"] == "decided"][-1]
                return {"config": config, "steps": number + 1, "seconds": time.monotonic() - start}
    raise BenchError(f"{tuner} had not ended its search after {steps} steps: raise --search-steps")


def kept_variables(found: Record) -> Dict[str, str]:
    """Return the variables that pin what a search has found."""
    config = found["config"]
    names = [name for name in ("partition_bytes", "credit_bytes", "fusion_bytes") if config[name] is not None]
    return {"AUTOBYTE_TUNER": "static", **{f"AUTOBYTE_{name.upper()}": str(config[name]) for name in names}}


def opened(path: Optional[Path], setup: Setup) -> Record:
    """Return the record that ``path`` holds, or an empty one."""
    fresh: Record = {"setup": setup._asdict(), "searches": {}, "jobs": []}
    if path is None or not path.exists():
        return fresh
    record: Record = json.loads(path.read_text())
    if record["setup"] != fresh["setup"]:
        raise ValueError(f"{path} is of another setup, {record['setup']}: name another file")
    return record


def save(path: Optional[Path], record: Record) -> None:
    """Replace the file by the record as it is now."""
    if path is not None:
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(record, indent=1))
        os.replace(new, path)


def evaluate(arguments: argparse.Namespace, setup: Setup, traces: Sequence[Trace], console: Console) -> Record:
    """Run what the record lacks."""
    record = opened(arguments.json, setup)
    known = {(job["trace"], job["changes"], job["seconds"], job["rival"], job["round"]): job for job in record["jobs"]}
    wanted = [
        (trace, rival, number)
        for number in range(arguments.rounds) for trace in traces for rival in arguments.rivals
    ]  # fmt: skip
    with Lab(setup.workers + setup.servers, setup.rate_mbit) as lab:
        stream = lab.measure(seconds=0.3)
        record["network"] = stream._asdict()
        console.print(f"a TCP stream ({stream.congestion}) carries {stream.goodput_mbit:.0f} Mbit/s")
        for trace, rival, number in wanted:
            key = trace.name, json.dumps(trace.changes), trace.seconds, rival, number
            if key in known:
                continue
            variables = rival_variables(rival)
            if rival.endswith("-kept"):
                if rival not in record["searches"]:
                    tuner = variables["AUTOBYTE_TUNER"]
                    found = search(lab, setup, tuner, arguments.search_steps, arguments.patience)
                    record["searches"][rival] = found
                    save(arguments.json, record)
                    console.print(f"{tuner} searched for {found['seconds']:.0f} s: {found['config']}")
                variables = kept_variables(record["searches"][rival])
            job = play(lab, setup, trace, variables, arguments.patience)
            names = ("trace", "changes", "seconds", "rival", "round")
            record["jobs"].append({**dict(zip(names, key)), **job})
            save(arguments.json, record)
            epochs = sum(event["event"] == "decided" and event["epoch"] > 0 for event in job["events"])
            console.print(
                f"round {number + 1}, {trace.name}, {rival}: {len(job['ends'])} steps in {job['ends'][-1]:.1f} s, "
                f"{epochs} switches, others {job['others_cores']:.2f} cores"
            )
    return record


def outcomes(record: Record, arguments: argparse.Namespace, traces: Sequence[Trace]) -> List[Outcome]:
    """Return what the record says of the wanted traces and rivals."""
    found = []
    for trace in traces:
        changes = json.dumps(trace.changes)
        jobs = {
            rival: [job for job in record["jobs"] if job["rival"] == rival and job["round"] < arguments.rounds
                    and (job["trace"], job["changes"], job["seconds"]) == (trace.name, changes, trace.seconds)]
            for rival in arguments.rivals
        }  # fmt: skip
        found.append(Outcome(trace, jobs))
    return found


def _rivals(text: str) -> List[str]:
    names = text.split(",")
    for name in names:
        try:
            rival_variables(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _parse(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_traces.py", description="Compare tuners on links that change.")
    parser.add_argument("--profile", choices=zoo(), default="resnet50_v1")
    parser.add_argument("--scale", type=float, default=0.15, help="of the tensors' sizes (default 0.15)")
    parser.add_argument("--rate", type=float, default=400.0, help="Mbit/s of each link at the start (default 400)")
    parser.add_argument("--compute", type=float, default=1.0,
                        help="computation, as a multiple of the communication at the start (default 1)")  # fmt: skip
    parser.add_argument("--traces", default="drop,rise,straggler,cross", metavar="A,B,...",
                        help=f"of {', '.join(NAMED)}, or NAME=SECONDS:HOST:MBIT+...")  # fmt: skip
    parser.add_argument("--rivals", type=_rivals, default=RIVALS, metavar="A,B,...",
                        help=f"the first is compared with the others (default {RIVALS})")  # fmt: skip
    parser.add_argument("--steps", type=int, default=36,
                        help="a trace lasts as long as so many ideal steps at the start (default 36)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--search-steps", type=int, default=300, help="most steps of a search before the traces")
    parser.add_argument("--window", type=float, default=0.5, help="AUTOBYTE_WINDOW_SECONDS (default 0.5)")
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("-s", "--servers", type=int, default=2)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for any answer (default 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what is measured there, and continue from it")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="draw the step times of each trace there")
    return parser.parse_args(arguments)


def _setup(arguments: argparse.Namespace, console: Console) -> Tuple[Setup, List[Trace]]:
    model_bytes = total_bytes(tensors(load(arguments.profile), arguments.scale))
    wire = ideal_seconds(model_bytes, arguments.workers, arguments.servers, arguments.rate)
    compute = round(arguments.compute * wire, 4)
    setup = Setup(arguments.profile, arguments.scale, compute, arguments.rate, arguments.window, arguments.workers,
                  arguments.servers)  # fmt: skip
    seconds = round(arguments.steps * max(compute, wire), 3)
    traces = [parse(text, seconds, arguments.rate, arguments.workers, arguments.servers)
              for text in arguments.traces.split(",")]  # fmt: skip
    console.print(
        f"{arguments.profile} x {arguments.scale:g}: {model_bytes / 1e6:.1f} MB, {wire:.3f} s on the wire at least at "
        f"{arguments.rate:g} Mbit/s; computation is emulated and takes {compute:.3f} s; a trace lasts {seconds:.1f} s"
    )
    return setup, traces


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code: 1 where a job failed, 2 where something is missing or wrong."""
    parsed = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    try:
        if parsed.plots and importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--plots needs matplotlib: pip install 'autobyte[tune]'")
        setup, traces = _setup(parsed, console)
        with orderly_endings():
            record = evaluate(parsed, setup, traces, console)
    except (LabError, ValueError) as error:
        print(f"bench_traces.py: {error}", file=sys.stderr)
        return 2
    except BenchError as error:
        print(f"bench_traces.py: {error}", file=sys.stderr)
        return 1
    found = outcomes(record, parsed, traces)
    console.print(phase_table(found))
    console.print(gain_table(found))
    console.print(gain_table(found, in_time=True))
    for line in switch_lines(found):
        console.print(line)
    if parsed.plots:
        parsed.plots.mkdir(parents=True, exist_ok=True)
        for outcome in found:
            plot(outcome, parsed.plots / f"{outcome.trace.name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
