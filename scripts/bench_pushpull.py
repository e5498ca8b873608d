#!/usr/bin/env python3
"""Compare stores at summing a model's gradients: seconds, first tensor, CPU, memory, and the wire's ideal.

::

    bench_pushpull.py --profile resnet50 --stores autobyte,dist_sync,p3 --net loopback
    bench_pushpull.py --profile vgg16 --net lab --rate 1000 --json vgg16.json      # needs root, see lab.py

In every round each store runs one block: its own job is started, its sums are checked, its iterations timed, and
it ends, so that slow changes of the machine meet all stores alike. All gradients are issued at once, from the
model's output to its input, with the priorities of ``gluon.Trainer``; nothing is computed. Settings of AutoByte
come from the ``AUTOBYTE_*`` variables, as in a real job, and are recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import sys
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Optional, Sequence

import psutil
from rich.console import Console

from bench.job import BenchError, Job, Loopback, Network, run_block
from bench.profiles import PROFILES, profile, total_bytes
from bench.report import QUIET_CORES, Block, ideal_seconds, store_table, summary
from bench.stores import STORES
from emulation import Lab, LabError, orderly_endings
from stream import congestion_control


def _machine() -> Dict[str, Any]:
    versions = {}
    for name in ("mxnet", "numpy", "pyzmq"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
    }


def _network_facts(network: Network, arguments: argparse.Namespace) -> Dict[str, Any]:
    if isinstance(network, Lab):
        stream = network.measure()
        return {"rate_mbit": arguments.rate, "delay_ms": arguments.delay, **stream._asdict()}
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connection,
    ):
        return {"congestion": congestion_control(connection)}


def _stores(text: str) -> List[str]:
    names = text.split(",")
    for name in names:
        if name not in STORES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(STORES)}")
    return names


def _parse(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_pushpull.py", description="Compare stores at summing gradients.")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="resnet50")
    parser.add_argument("--stores", type=_stores, default="autobyte,dist_sync,p3", metavar="A,B,...",
                        help=f"of {', '.join(STORES)} (default: autobyte,dist_sync,p3)")  # fmt: skip
    parser.add_argument("--net", choices=("loopback", "lab"), default="loopback")
    parser.add_argument("--rate", type=float, default=1000.0, help="lab: Mbit/s of each link (default 1000)")
    parser.add_argument("--delay", type=float, default=0.0, help="lab: one-way delay in ms")
    parser.add_argument("--congestion", default="cubic", help="lab: TCP congestion control (default cubic)")
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("-s", "--servers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=10, help="timed iterations of a block (default 10)")
    parser.add_argument("--rounds", type=int, default=2, help="blocks of each store (default 2)")
    parser.add_argument("--retries", type=int, default=0,
                        help="repeat a block up to so often while others are busy (default 0)")  # fmt: skip
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for any answer (default 120)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    return parser.parse_args(arguments)


def measure(arguments: argparse.Namespace, console: Console) -> Dict[str, Any]:
    """Run all rounds and return the whole record."""
    num_workers, num_servers = arguments.workers, arguments.servers
    model_bytes = total_bytes(profile(arguments.profile))
    in_lab = arguments.net == "lab"
    place: ContextManager[Network] = contextlib.nullcontext(Loopback())
    if in_lab:
        place = Lab(num_workers + num_servers, arguments.rate, arguments.delay, arguments.congestion)
    ideal = ideal_seconds(model_bytes, num_workers, num_servers, arguments.rate) if in_lab else None
    blocks: Dict[str, List[Block]] = {store: [] for store in arguments.stores}
    with place as network:
        facts = _network_facts(network, arguments)
        console.print(f"network: {arguments.net}, " + ", ".join(f"{name} {value}" for name, value in facts.items()))
        for number in range(arguments.rounds):
            for store in arguments.stores:
                for _ in range(arguments.retries + 1):
                    job = Job(store, arguments.profile, network, num_workers, num_servers, arguments.patience)
                    block = run_block(job, arguments.iterations)
                    times = " ".join(f"{seconds:.3f}" for seconds in block["seconds"])
                    console.print(f"round {number + 1}, {store}: {times} s, others {block['others_cores']:.2f} cores")
                    if block["others_cores"] <= QUIET_CORES:
                        break
                blocks[store].append(block)
    return {
        "profile": arguments.profile,
        "model_bytes": model_bytes,
        "workers": num_workers,
        "servers": num_servers,
        "net": arguments.net,
        "network": facts,
        "machine": _machine(),
        "settings": {name: value for name, value in os.environ.items() if name.startswith(("AUTOBYTE_", "MXNET_"))},
        "ideal_seconds": ideal,
        "stores": {store: summary(done, model_bytes, num_workers, ideal) for store, done in blocks.items()},
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code: 1 where a store failed, 2 where the lab cannot be had."""
    parsed = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    try:
        with orderly_endings():
            record = measure(parsed, console)
    except LabError as error:
        print(f"bench_pushpull.py: {error}", file=sys.stderr)
        return 2
    except BenchError as error:
        print(f"bench_pushpull.py: {error}", file=sys.stderr)
        return 1
    ideal = f", the wire's ideal {record['ideal_seconds']:.3f} s" if record["ideal_seconds"] else ""
    console.print(
        store_table(
            f"{parsed.profile}: {record['model_bytes'] / 1e6:.1f} MB, {parsed.workers} workers, "
            f"{parsed.servers} servers, {parsed.net} ({record['network']['congestion']}){ideal}",
            record["stores"],
        )
    )
    if parsed.json:
        with open(parsed.json, "w") as file:
            json.dump({"command": sys.argv[1:], **record}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
