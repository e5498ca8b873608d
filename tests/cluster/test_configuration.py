"""A configuration that is decided in the scheduler reaches all nodes, and no tuner can harm a job."""

from __future__ import annotations

import json
import textwrap

import pytest

from ps.config import KIB
from tests.cluster.harness import Cluster

#: A scheduler with a tuner called ``test``, whose ``propose`` is put in.
SCHEDULER = """
import time
import tuner
from ps.config import CommConfig
from scheduler.process import main

class TestTuner(tuner.Tuner):
    def __init__(self):
        self.seen = []
        self.calls = 0

    def observe(self, observations):
        self.seen += observations

    def propose(self, now):
        self.calls += 1
        {propose}

tuner.TUNERS["test"] = lambda settings: TestTuner()
main()
"""

#: Sums for at least ``SECONDS`` and until worker 0 has seen epoch ``EPOCH``; prints the configuration of the end.
SUM = """
import os, time, numpy as np, ps
with ps.Worker() as worker:
    worker.init({"a": np.zeros(100_000, np.float32), "end": np.zeros(1, np.float32)})
    until = time.monotonic() + float(os.environ["SECONDS"])
    done = False
    while not done:
        assert np.array_equal(worker.push_pull("a", np.arange(100_000, dtype=np.float32)).wait(),
                              2 * np.arange(100_000, dtype=np.float32))
        mine = worker.rank == 0 and time.monotonic() > until and worker.config.epoch >= int(os.environ["EPOCH"])
        done = worker.push_pull("end", np.full(1, mine, np.float32)).wait()[0] > 0
    print(worker.config.epoch, worker.config.partition_bytes, worker.config.credit_bytes)
"""


def run(propose: str, seconds: float, epoch: int) -> tuple[list[str], list[dict[str, object]]]:
    """Run a job with that tuner; return what the workers printed and the events."""
    source = SCHEDULER.format(propose=textwrap.indent(textwrap.dedent(propose), " " * 8).strip())
    env = {
        "AUTOBYTE_TUNER": "test",
        "AUTOBYTE_EVENT_FILE": "events.jsonl",
        "AUTOBYTE_WINDOW_SECONDS": "0.2",
        "SECONDS": str(seconds),
        "EPOCH": str(epoch),
    }
    with Cluster(workers=2, servers=2, env=env, scheduler=source) as cluster:
        printed = [worker.stdout for worker in cluster.run(SUM, timeout=30)]
        assert cluster.finish() == [0, 0, 0]
        events = [json.loads(line) for line in (cluster.directory / "events.jsonl").read_text().splitlines()]
    return printed, events


def kinds(events: list[dict[str, object]]) -> list[object]:
    return [event["event"] for event in events]


def test_a_proposal_reaches_every_node_and_is_confirmed_before_the_next() -> None:
    propose = """
        if len(self.seen) < 3 or self.calls > 50:
            return None
        self.seen.clear()
        size = 64 << 10 if self.calls % 2 else 1 << 20
        return tuner.Proposal(config=CommConfig(partition_bytes=size, credit_bytes=8 << 20), reason="a test")
    """
    printed, events = run(propose, seconds=0.0, epoch=2)
    for line in printed:
        epoch, partition_bytes, credit_bytes = map(int, line.split())
        assert epoch >= 2
        assert partition_bytes in (64 * KIB, 1024 * KIB)
        assert credit_bytes == 8192 * KIB
    assert [event["epoch"] for event in events if event["event"] == "decided"][:3] == [0, 1, 2]
    assert "unconfirmed" not in kinds(events)


@pytest.mark.parametrize(
    ("propose", "last_event"),
    [
        ('raise RuntimeError("broken")', "retired"),
        ("while True: pass", "decided"),
        pytest.param("time.sleep(1000)", "decided", marks=pytest.mark.slow),
        ('return tuner.Proposal(config=CommConfig(credit_bytes=10**12), reason="nonsense")', "refused"),
        pytest.param('return "nonsense"', "refused", marks=pytest.mark.slow),
    ],
    ids=["raises", "spins", "sleeps", "out of range", "wrong type"],
)
def test_a_bad_tuner_leaves_the_job_and_its_configuration_alone(propose: str, last_event: str) -> None:
    printed, events = run(propose, seconds=1.5, epoch=0)
    assert printed == [f"0 {512 * KIB} {4096 * KIB}\n"] * 2
    assert kinds(events)[-1] == last_event


def test_an_unknown_tuner_is_an_error_that_lists_the_tuners() -> None:
    with Cluster(env={"AUTOBYTE_TUNER": "best"}, start=False) as cluster:
        scheduler = cluster.start_scheduler()
        assert scheduler.wait(10.0) == 2
        assert scheduler.stderr == (
            "autobyte-scheduler: AUTOBYTE_TUNER='best':"
            " expected one of autobyte, bayesian, grid, random, rule, static\n"
        )
