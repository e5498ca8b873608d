#!/usr/bin/env python3
"""Holds the simulator against real processes: records of ``bench_pushpull.py`` in, a table of both step times out.

    check_simulator.py FILE.json...

The files are ``--json`` records of the store ``autobyte`` under various ``AUTOBYTE_PARTITION_BYTES`` and
``AUTOBYTE_CREDIT_BYTES``, all of the same network. Those of the first file's cluster are fitted; all others, with other
numbers of workers and servers, are predicted with what was found. The fastest iteration of each counts: what else the
machine does only adds to it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

from bench.profiles import FLOAT32_BYTES, profile
from ps.config import CommConfig
from tuner.calibration import Measurement, Parameters, calibrate
from tuner.compiled import simulate_compiled
from tuner.conditions import SUM_BYTES_PER_SECOND
from tuner.profiles import ModelProfile, TensorProfile

#: Nothing is computed, and the rate of the wire is known.
SPREADS = Parameters(1e-3, 0.02, 1.0, 1.0, 1.0)


class Run(NamedTuple):
    """One record."""

    model: ModelProfile
    num_workers: int
    num_servers: int
    bytes_per_second: float
    measurement: Measurement


def read(path: Path) -> Run:
    record: Dict[str, Any] = json.loads(path.read_text())
    settings, blocks = record["settings"], record["stores"]["autobyte"]["blocks"]
    tensors = (TensorProfile(each.name, each.size * FLOAT32_BYTES, 0.0, 0.0) for each in profile(record["profile"]))
    default = CommConfig()
    fusion = settings.get("AUTOBYTE_FUSION_BYTES")
    config = CommConfig(
        fusion_bytes=None if fusion is None else int(fusion),
        partition_bytes=int(settings.get("AUTOBYTE_PARTITION_BYTES", default.partition_bytes)),
        credit_bytes=int(settings.get("AUTOBYTE_CREDIT_BYTES", default.credit_bytes)),
    )
    return Run(
        ModelProfile(record["profile"], tuple(tensors)),
        record["workers"],
        record["servers"],
        record["network"]["goodput_mbit"] * 1e6 / 8,
        Measurement(config=config, step_seconds=min(second for block in blocks for second in block["seconds"])),
    )


def main() -> None:
    runs: List[Run] = [read(Path(name)) for name in sys.argv[1:]]
    if not runs:
        sys.exit("check_simulator.py: name at least one record of bench_pushpull.py --json")
    first = runs[0]
    fitted = [run for run in runs if run[:3] == first[:3]]
    start = Parameters(1.0, first.bytes_per_second, 100e-6, 200e-6, 2e-10)
    found = calibrate(
        first.model, first.num_workers, first.num_servers, [run.measurement for run in fitted], start, SPREADS
    ).parameters
    print(f"bandwidth {found.bandwidth_bytes_per_second / 1e6:.1f} MB/s, latency {found.latency_seconds * 1e6:.0f} us, "
          f"overhead {found.overhead_seconds * 1e6:.0f} us, {found.byte_seconds * 1e9:.3f} s/GB")  # fmt: skip
    print("workers servers   P KiB   C KiB  measured s  simulated s    error")
    for run in runs:
        conditions = found.conditions(run.num_workers, run.num_servers, SUM_BYTES_PER_SECOND)
        config, measured = run.measurement.config, run.measurement.step_seconds
        simulated = simulate_compiled(run.model, conditions, config).step_seconds
        print(f"{run.num_workers:>7} {run.num_servers:>7} {config.partition_bytes // 1024:>7} "
              f"{config.credit_bytes // 1024:>7} {measured:>11.3f} {simulated:>12.3f} {simulated / measured - 1:>8.1%}"
              f"{'' if run in fitted else '  predicted'}")  # fmt: skip


if __name__ == "__main__":
    main()
