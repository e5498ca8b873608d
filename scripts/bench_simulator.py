#!/usr/bin/env python3
"""How fast both simulators are, and how close workers that stand for several come to them; see docs/simulator.md."""

from __future__ import annotations

import time
from typing import Callable, Tuple

from ps.config import CommConfig
from tuner.compiled import simulate_compiled, simulate_many
from tuner.conditions import Conditions
from tuner.profiles import load
from tuner.simulator import Simulated, simulate
from tuner.space import candidates

REPETITIONS = 8


def fastest(call: Callable[[], Simulated]) -> Tuple[float, Simulated]:
    """Return the CPU seconds of the fastest of a few calls, and the result."""
    best = float("inf")
    for _ in range(REPETITIONS):
        began = time.process_time()
        simulated = call()
        best = min(best, time.process_time() - began)
    return best, simulated


def main() -> None:
    print("three steps each   workers servers     events   CPU ms   million events/s")
    for name, workers, servers in (
        ("mobilenet1_0", 2, 2), ("resnet50_v1", 2, 2), ("vgg16", 2, 2), ("bert_base", 2, 2),
        ("resnet50_v1", 8, 8), ("bert_base", 8, 8), ("resnet50_v1", 64, 64), ("bert_base", 64, 64),
    ):  # fmt: skip
        model, conditions = load(name), Conditions.uniform(workers, servers, 1.25e9, 50e-6, 100e-6)
        simulate_compiled(model, conditions, CommConfig(), steps=1)
        seconds, simulated = fastest(lambda: simulate_compiled(model, conditions, CommConfig()))  # noqa: B023
        line = f"{simulated.events:>10} {seconds * 1e3:8.1f} {simulated.events / seconds / 1e6:8.2f}"
        print(f"{name:18} {workers:>7} {servers:>7} {line}")
    model, conditions = load("resnet50_v1"), Conditions.uniform(2, 2, 1.25e9, 50e-6, 100e-6)
    seconds, simulated = fastest(lambda: simulate(model, conditions, CommConfig()))
    print(f"pure: resnet50_v1        2       2 {simulated.events:>10} {seconds * 1e3:8.1f} "
          f"{simulated.events / seconds / 1e6:8.2f}")  # fmt: skip
    configs = candidates(CommConfig())
    began = time.process_time()
    simulate_many(model, conditions, configs)
    print(f"{len(configs)} configurations of resnet50_v1, 2 workers, 2 servers: {time.process_time() - began:.2f} s")


if __name__ == "__main__":
    main()
