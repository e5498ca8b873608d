#!/usr/bin/env python3
"""Run jobs on an emulated cluster; ``emulation.py`` tells how it is built.

::

    lab.py launch -n 2 -s 2 --rate 1000 -- python train.py          # a job, a host for each worker and server
    lab.py launch -n 2 -s 2 --change 30:all:200 -- python train.py  # after 30 s all links at 200 Mbit/s
    lab.py run --hosts 2 -- sh -c 'ping -c 3 $LAB_NEXT'             # any command, once on each host
    lab.py rate 1 200                                               # host 1 of the running lab at 200 Mbit/s from now
    lab.py measure --rate 1000                                      # what a plain TCP stream gets
    lab.py clean                                                    # remove what a killed lab has left

From Python::

    with Lab(hosts=4, rate_mbit=1000) as lab:
        worker = lab.popen(0, ["python", "train.py"], environment)
        lab.set_rate(0, 200)

Needs Linux, root and iproute2, and says so where it cannot run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from emulation import Lab, LabError, clean, payload_share, running, set_rate, why_not

__all__ = ["Lab", "LabError", "Placed", "clean", "main", "places", "why_not"]

ROOT = Path(__file__).resolve().parent.parent
SCHEDULER_PORT = 9091


class Placed(NamedTuple):
    """One process of a job, the host that it runs on, and the variables that tell it its place."""

    role: str
    number: int
    host: int
    variables: Dict[str, str]

    @property
    def name(self) -> str:
        """What its output is shown under."""
        return self.role if self.role == "scheduler" else f"{self.role} {self.number}"


def places(address: Callable[[int], str], port: int, num_workers: int, num_servers: int) -> List[Placed]:
    """Return a job's processes in the order in which to start them.

    Worker i is on host i, server j on host ``num_workers + j``, the scheduler on the first server's host.

    Parameters
    ----------
    address
        Returns the address of a host.
    port
        Where the scheduler listens.
    """
    servers = [("server", number, num_workers + number) for number in range(num_servers)]
    workers = [("worker", number, number) for number in range(num_workers)]
    job = {
        "DMLC_PS_ROOT_URI": address(num_workers),
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(num_workers),
        "DMLC_NUM_SERVER": str(num_servers),
    }
    placed = []
    for role, number, host in [("scheduler", 0, num_workers), *servers, *workers]:
        variables = {**job, "DMLC_ROLE": role, "DMLC_NODE_HOST": address(host)}
        if role != "scheduler":
            variables[f"DMLC_{role.upper()}_ID"] = str(number)
        placed.append(Placed(role, number, host, variables))
    return placed


class _Crew:
    """The processes of one command, their output relayed line by line under their names."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._relays: List[threading.Thread] = []

    def start(self, name: str, host: int, command: Sequence[str], variables: Dict[str, str]) -> subprocess.Popen[str]:
        process = self._lab.popen(
            host, command, {**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

        def relay() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                print(f"[{name}] {line}", end="", flush=True)

        self._relays.append(threading.Thread(target=relay, name=name, daemon=True))
        self._relays[-1].start()
        return process

    def finish_output(self) -> None:
        for relay in self._relays:
            relay.join(timeout=1)


@contextlib.contextmanager
def _changes(lab: Lab, planned: Sequence[Tuple[float, str, float]]) -> Iterator[None]:
    """Carry out the planned changes of rates while the body runs."""
    over = threading.Event()
    start = time.monotonic()

    def carry_out() -> None:
        for at_seconds, host, rate_mbit in sorted(planned):
            if over.wait(max(0.0, start + at_seconds - time.monotonic())):
                return
            for number in range(lab.hosts) if host == "all" else [int(host)]:
                lab.set_rate(number, rate_mbit)
            print(f"[lab] {at_seconds:g} s: host {host} at {rate_mbit:g} Mbit/s", flush=True)

    thread = threading.Thread(target=carry_out, name="rates", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _wait(workers: Sequence[subprocess.Popen[str]], others: Sequence[subprocess.Popen[str]]) -> int:
    """Wait until every worker has ended well or some process has failed; return the exit code of the whole."""
    while True:
        codes = [process.poll() for process in [*workers, *others]]
        failed = [code for code in codes if code]
        if failed:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in codes[: len(workers)]:
            return 0
        time.sleep(0.05)


def _open(arguments: argparse.Namespace, hosts: int) -> Lab:
    return Lab(hosts, arguments.rate, arguments.delay, arguments.congestion)


def _announce(lab: Lab) -> None:
    if lab.hosts > 1:
        stream = lab.measure(seconds=0.3)
        print(f"[lab] {lab.name}: {lab.hosts} hosts, {lab.address(0)} up; a TCP stream ({stream.congestion}) "
              f"carries {stream.goodput_mbit:.0f} Mbit/s", flush=True)  # fmt: skip


def _launch(arguments: argparse.Namespace) -> int:
    num_workers, num_servers = arguments.workers, arguments.servers
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    commands = {
        "scheduler": [sys.executable, "-m", "scheduler"],
        "server": [sys.executable, "-m", "ps.server"],
        "worker": arguments.command,
    }
    with _open(arguments, num_workers + num_servers) as lab:
        _announce(lab)
        crew = _Crew(lab)
        workers: List[subprocess.Popen[str]] = []
        others: List[subprocess.Popen[str]] = []
        for placed in places(lab.address, SCHEDULER_PORT, num_workers, num_servers):
            variables = {**placed.variables, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
            process = crew.start(placed.name, placed.host, commands[placed.role], variables)
            (workers if placed.role == "worker" else others).append(process)
        with _changes(lab, arguments.change):
            code = _wait(workers, others)
        if code == 0:  # the job ends by itself, within its 5 s
            with contextlib.suppress(subprocess.TimeoutExpired):
                deadline = time.monotonic() + 5.0
                for process in others:
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
    crew.finish_output()
    return code


def _run(arguments: argparse.Namespace) -> int:
    with _open(arguments, arguments.hosts) as lab:
        _announce(lab)
        crew = _Crew(lab)
        addresses = [lab.address(host) for host in range(lab.hosts)]
        processes = []
        for host, address in enumerate(addresses):
            place = {
                "LAB_HOST": str(host),
                "LAB_ADDRESS": address,
                "LAB_NEXT": addresses[(host + 1) % lab.hosts],
                "LAB_ADDRESSES": ",".join(addresses),
            }
            processes.append(crew.start(f"host {host}", host, arguments.command, place))
        with _changes(lab, arguments.change):
            code = _wait(processes, [])
    crew.finish_output()
    return code


def _rate(arguments: argparse.Namespace) -> int:
    labs = [arguments.lab] if arguments.lab else running()
    if len(labs) != 1:
        raise LabError(f"which lab? --lab NAME, of those that run: {', '.join(labs) or 'none'}")
    set_rate(labs[0], arguments.host, arguments.mbit)
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    with _open(arguments, 2) as lab:
        for _ in range(arguments.repeat):
            stream = lab.measure(seconds=arguments.seconds)
            possible = arguments.rate * payload_share()
            print(f"{stream.goodput_mbit:.1f} Mbit/s of payload under {stream.congestion}: "
                  f"{stream.goodput_mbit / possible:.1%} of the possible {possible:.1f}", flush=True)  # fmt: skip
    return 0


def _clean(_: argparse.Namespace) -> int:
    for name in clean():
        print(f"removed {name}")
    return 0


def _change(text: str) -> Tuple[float, str, float]:
    seconds, host, mbit = text.split(":")
    if host != "all":
        int(host)
    return float(seconds), host, float(mbit)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab.py", description="Run jobs on an emulated cluster.")
    actions = parser.add_subparsers(required=True, metavar="launch|run|rate|measure|clean")

    links = argparse.ArgumentParser(add_help=False)
    links.add_argument("--rate", type=float, default=1000.0, help="Mbit/s of each link, each way (default 1000)")
    links.add_argument("--delay", type=float, default=0.0, help="one-way delay in ms (needs netem in the kernel)")
    links.add_argument("--congestion", default="cubic", help="TCP congestion control (default cubic)")
    job = argparse.ArgumentParser(add_help=False)
    job.add_argument("--change", type=_change, action="append", default=[], metavar="SECONDS:HOST:MBIT",
                     help="change a rate while the job runs; HOST is a number or 'all'; may be repeated")  # fmt: skip
    job.add_argument("command", nargs="+", help="what to run, after --")

    launch = actions.add_parser("launch", parents=[links, job], help="a job of scheduler, servers and workers")
    launch.add_argument("-n", "--workers", type=int, default=2)
    launch.add_argument("-s", "--servers", type=int, default=2)
    launch.set_defaults(action=_launch)

    run = actions.add_parser("run", parents=[links, job], help="a command once on each host; it finds LAB_HOST, "
                             "LAB_ADDRESS, LAB_NEXT (the next host's address) and LAB_ADDRESSES")  # fmt: skip
    run.add_argument("--hosts", type=int, default=2)
    run.set_defaults(action=_run)

    rate = actions.add_parser("rate", help="change the rate of a host of a running lab")
    rate.add_argument("host", type=int)
    rate.add_argument("mbit", type=float)
    rate.add_argument("--lab", help="its name, where several run")
    rate.set_defaults(action=_rate)

    measure = actions.add_parser("measure", parents=[links], help="what a plain TCP stream carries")
    measure.add_argument("--seconds", type=float, default=2.0)
    measure.add_argument("--repeat", type=int, default=3)
    measure.set_defaults(action=_measure)

    actions.add_parser("clean", help="remove the labs of dead processes").set_defaults(action=_clean)
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code: 2 where the lab cannot be had."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.action(parsed))
    except LabError as error:
        print(f"lab.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
