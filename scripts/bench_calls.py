#!/usr/bin/env python3
"""Compare how long single calls of stores take, each waited for, on loopback.

::

    bench_calls.py                                  # AutoByte's store beside MXNet's dist_sync
    bench_calls.py --stores autobyte,dist_sync --rounds 5 --json FILE

All stores' jobs run at the same time and only one of them works: each call is timed in turn in each store, for several
rounds, so that what disturbs the machine disturbs all of them. The table has medians, and ratios to the last store.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from typing import Dict, List, Optional, Sequence

from rich.console import Console
from rich.table import Table

from bench.calls import CALLS
from bench.job import BenchError, Job, Loopback
from bench.stores import STORES


def measure(stores: Sequence[str], rounds: int, count: int, console: Console) -> Dict[str, Dict[str, List[float]]]:
    """Return the seconds of each call by call and store; that of the slower worker, since both are waited for."""
    seconds: Dict[str, Dict[str, List[float]]] = {name: {store: [] for store in stores} for name in CALLS}
    with contextlib.ExitStack() as running:
        jobs = {
            store: running.enter_context(Job(store, "-", Loopback(), 2, 2, 60.0, module="bench.calls"))
            for store in stores
        }
        for job in jobs.values():
            job.answers()
        for name in CALLS:
            for job in jobs.values():
                job.answers(f"{name} 3")
            for _ in range(rounds):
                for store, job in jobs.items():
                    seconds[name][store] += map(max, zip(*job.answers(f"{name} {count}")))
            console.print(f"{name}: done")
    return seconds


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="bench_calls.py", description="Compare how long single calls take.")
    parser.add_argument("--stores", default="autobyte,dist_sync", metavar="A,B", help=f"of {', '.join(STORES)}")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each call and store (default 5)")
    parser.add_argument("--count", type=int, default=20, help="calls of a block (default 20)")
    parser.add_argument("--json", metavar="FILE", help="write all medians there")
    parsed = parser.parse_args(arguments)
    stores = parsed.stores.split(",")
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    try:
        seconds = measure(stores, parsed.rounds, parsed.count, console)
    except BenchError as error:
        print(f"bench_calls.py: {error}", file=sys.stderr)
        return 1
    medians = {name: {store: statistics.median(of[store]) for store in stores} for name, of in seconds.items()}
    table = Table(title="2 workers, 2 servers, loopback: median of a call, in ms")
    table.add_column("call")
    for store in stores:
        table.add_column(store, justify="right")
    table.add_column(f"of {stores[-1]}'s", justify="right")
    for name, by_store in medians.items():
        ratio = by_store[stores[0]] / by_store[stores[-1]]
        table.add_row(name, *(f"{1e3 * by_store[store]:.2f}" for store in stores), f"{ratio:.2f}")
    console.print(table)
    if parsed.json:
        with open(parsed.json, "w") as file:
            json.dump({"command": sys.argv[1:], "seconds": medians}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
