#!/usr/bin/env python3
"""What the statistics cost, and what they tell of a real network; docs/estimates.md has the results.

::

    bench_estimates.py cost                                   # microseconds and bytes, in this process alone
    lab.py launch -n 2 -s 2 --rate 1000 --change 12:all:300 -- python scripts/bench_estimates.py watch 24

``watch`` is a worker: it sums 64 MiB per step and prints every window's estimates.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

import ps
from ps.config import CommConfig, Role, Settings
from ps.layers import StepTimes
from ps.messages import Report, SpanKind, decode_control, encode
from ps.stats import Observation
from ps.traffic import Traffic
from ps.transfer import Transfer
from scheduler.tuning import Tuning
from tuner.static import StaticTuner

MESSAGE_BYTES = 512 << 10
REPEATS = 7


def cpu_microseconds(action: Callable[[], Any], times: int) -> float:
    """Return the CPU time of one ``action``, the least of several runs of ``times``."""
    best = float("inf")
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(times):
            action()
        best = min(best, time.thread_time() - began)
    return best / times * 1e6


class Node:
    """A worker's traffic without a network: messages are acknowledged and arrive as told."""

    def __init__(self, num_servers: int, tensors: int) -> None:
        settings = Settings(
            role=Role.WORKER, root_host="", root_port=1, num_workers=num_servers, num_servers=num_servers
        )
        self.now = 1.0
        self.num_servers = num_servers
        self.traffic = Traffic(settings, range(num_servers), bounded_skew=True, now=self.now)
        self.traffic.configure(CommConfig(partition_bytes=MESSAGE_BYTES, credit_bytes=64 << 20, fusion_bytes=0))
        self.traffic.counters.rank = 0
        self._payload = memoryview(bytes(64 * MESSAGE_BYTES))
        generator = random.Random(1)
        sizes = tuple(generator.randrange(256, 1 << 22) for _ in range(tensors))
        ready = sorted((generator.random() for _ in range(tensors)), reverse=True)
        self._step = StepTimes(
            priorities=tuple(range(0, -tensors, -1)),
            sizes_bytes=sizes,
            ready_seconds=tuple(ready),
            arrived_seconds=tuple(generator.random() + 0.5 for _ in range(tensors)),
        )

    def send(self) -> None:
        """Send 64 messages, and have them acknowledged one by one."""
        messages: List[Tuple[int, int]] = []
        for peer in range(min(2, self.num_servers)):
            ranges = ((start * MESSAGE_BYTES, MESSAGE_BYTES) for start in range(32))
            self.traffic.put(peer, Transfer(SpanKind.PUSH, 0, 1, 0, 1, 0, self._payload, iter(ranges)), self.now)
        while (popped := self.traffic.pop(self.now)) is not None:
            messages.append((popped[0], popped[1].seq))
        for peer, seq in messages:
            self.now += 0.004
            self.traffic.acknowledged(peer, seq, self.now)

    def receive(self) -> None:
        self.now += 0.004
        self.traffic.received(int(self.now * 250) % self.num_servers, MESSAGE_BYTES, True, self.now)

    def train(self) -> None:
        self.traffic.counters.note_training(self._step)

    def window(self) -> Observation:
        """Let a window end in which steps were trained."""
        self.train()
        self.now += 1.1
        observation = self.traffic.report(self.now)
        assert observation is not None
        return observation


def cost() -> None:
    node = Node(num_servers=2, tensors=160)
    estimator = node.traffic._estimator  # what the link itself costs is no statistic
    sent: List[Any] = []
    node.traffic.put(
        0, Transfer(SpanKind.PUSH, 0, 1, 0, 1, 0, node._payload, iter([(0, MESSAGE_BYTES)] * 64)), node.now
    )
    while (popped := node.traffic.pop(node.now)) is not None:
        sent.append(popped[1])

    def acknowledged() -> None:
        node.now += 0.004
        sent[1].sent_at = node.now - 0.01
        estimator.acknowledged(0, sent[1:2], node.now)
        node.traffic.counters.acknowledged(0.01)

    print(f"an acknowledged message  {cpu_microseconds(acknowledged, 4000):7.2f} us")
    print(f"a message that arrives   {cpu_microseconds(node.receive, 4000):7.2f} us")
    print(f"a step of 160 gradients  {cpu_microseconds(node.train, 4000):7.2f} us on the communication thread")
    print("a window:")
    for tensors, servers in ((16, 2), (160, 2), (400, 16), (400, 64)):
        node = Node(servers, tensors)
        for _ in range(20):
            node.send()
            for _ in range(64 * servers):
                node.receive()
            node.train()
        observation = node.window()
        worker = cpu_microseconds(lambda node=node: encode(Report(node.window())), 50)  # type: ignore[misc]
        frame = encode(Report(observation))
        tuning = Tuning(StaticTuner(), CommConfig(), servers, servers, lambda event: None)

        def take(frame: bytes = frame, tuning: Tuning = tuning) -> None:
            message = decode_control(frame)
            assert isinstance(message, Report)
            tuning.observe(message.observation, 1.0)

        scheduler = cpu_microseconds(take, 200)
        assert not tuning.dropped
        print(
            f"  {tensors:3} tensors, {servers:2} links: {worker:6.0f} us at the worker, {scheduler:5.0f} us at the "
            f"scheduler, {len(frame):5} bytes ({len(observation.layers)} groups, {len(observation.links)} links)"
        )


def shown(estimate: Sequence[float], scale: float, digits: int) -> str:
    return "-" if not estimate else f"{estimate[0] * scale:.{digits}f} ({100 * estimate[1]:.0f} %)"


def watch(seconds: float) -> None:
    """Sum 64 MiB per step and print what is observed, once per window."""
    with ps.Worker() as worker:
        names = [f"layer {number}" for number in range(16)]
        values: Dict[str, Any] = {name: np.ones(1 << 20, np.float32) for name in names}
        values["small"] = np.ones(500, np.float32)
        values["end"] = np.zeros(1, np.float32)
        worker.init(values)
        began = time.monotonic()
        seen, over = None, False
        if worker.rank == 0:
            print("      s   step s   sending MB/s   receiving MB/s   latency us   overhead us   links, sending MB/s")
        while not over:
            step_began = time.monotonic()
            worker.push_pull("small", values["small"]).wait()
            handles = [worker.push_pull(name, values[name], priority=-number) for number, name in enumerate(names)]
            for handle in handles:
                handle.wait()
            now = time.monotonic()
            values["end"][0] = worker.rank == 0 and now - began > seconds
            over = bool(worker.push_pull("end", values["end"]).wait()[0])
            observed = worker.statistics()["observed"]
            if observed != seen and worker.rank == 0:
                seen = observed
                links = ", ".join(f"{link[0]}: {shown(link[1], 1e-6, 1)}" for link in seen.get("links", ()))
                print(
                    f"{now - began:7.1f}  {now - step_began:7.3f}"
                    f"   {shown(seen.get('bandwidth_bytes_per_second'), 1e-6, 1):>12}"
                    f"   {shown(seen.get('receive_bandwidth_bytes_per_second'), 1e-6, 1):>14}"
                    f"   {shown(seen.get('latency_seconds'), 1e6, 0):>10}"
                    f"   {shown(seen.get('overhead_seconds'), 1e6, 0):>11}   {links}",
                    flush=True,
                )
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("cost", help="microseconds and bytes of the statistics")
    watching = commands.add_parser("watch", help="as a worker of a job: print what is observed")
    watching.add_argument("seconds", type=float)
    arguments = parser.parse_args()
    if arguments.command == "cost":
        cost()
    else:
        watch(arguments.seconds)


if __name__ == "__main__":
    main()
