"""The benchmark itself: it notices wrong sums, and runs MXNet's own store end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import pytest

import bench_pushpull
from bench.job import BenchError, Job, Loopback
from bench.profiles import profile
from bench.usage import peak_bytes, reset_peak
from bench.worker import checked_round, step


class Echo:
    """Pretends to be rank 0 of 2: the sum is three times the own gradient, plus an error where it is asked for."""

    rank = 0

    def __init__(self, wrong: Tuple[int, int] = (0, -1)) -> None:
        self.gradients = [np.zeros(tensor.size, np.float32) for tensor in profile("tiny")]
        self.sums = [np.zeros(tensor.size, np.float32) for tensor in profile("tiny")]
        self.calls: List[Tuple[str, int]] = []
        self._wrong = wrong

    def issue(self, index: int) -> None:
        self.calls.append(("issue", index))
        self.sums[index][:] = 3 * self.gradients[index]
        tensor, element = self._wrong
        if tensor == index and element >= 0:
            self.sums[index][element] += 1

    def wait(self, index: int) -> None:
        self.calls.append(("wait", index))

    def flat(self, index: int) -> Tuple[Any, Any]:
        return self.gradients[index], self.sums[index]

    def close(self) -> None:
        pass


def test_a_step_issues_from_the_last_tensor_to_the_first_and_waits_for_the_first_first() -> None:
    store = Echo()
    step(store, profile("tiny"))
    assert store.calls == [
        ("issue", 3), ("issue", 2), ("issue", 1), ("issue", 0), ("wait", 0), ("wait", 1), ("wait", 2), ("wait", 3),
    ]  # fmt: skip


def test_right_sums_pass_in_every_round() -> None:
    store = Echo()
    assert checked_round(store, profile("tiny"), 2, 0) is None
    assert checked_round(store, profile("tiny"), 2, 1) is None


def test_one_wrong_element_is_named() -> None:
    wrong = checked_round(Echo(wrong=(3, 1_049_000)), profile("tiny"), 2, 0)
    assert wrong is not None
    assert wrong.startswith("rank 0, round 0, large: element 1049000 is ")


def test_peak_memory_starts_anew_when_reset() -> None:
    peak = np.ones(25_000_000, np.float32)
    assert peak_bytes(os.getpid()) > 100_000_000
    del peak
    reset_peak(os.getpid())
    after = peak_bytes(os.getpid())
    block = np.ones(10_000_000, np.float32)
    assert 35_000_000 < peak_bytes(os.getpid()) - after < 60_000_000
    del block


class Failing(Loopback):
    """Every server fails at once; all others sleep."""

    def popen(
        self, host: int, command: Sequence[str], env: Optional[Mapping[str, str]] = None, **streams: Any
    ) -> subprocess.Popen[str]:
        fails = (env or {})["DMLC_ROLE"] == "server"
        script = "echo no luck today >&2; exit 3" if fails else "sleep 30"
        return super().popen(host, ["sh", "-c", script], env, **streams)


def test_a_process_that_fails_ends_the_wait_with_its_last_words() -> None:
    started = time.monotonic()
    job = Job("dist_sync", "tiny", Failing(), 2, 1, patience_seconds=20)
    with pytest.raises(BenchError, match=r"dist_sync server 0 failed\n  \[dist_sync server 0\] no luck today"), job:
        job.answers()
    assert time.monotonic() - started < 10


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="needs mxnet")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="MXNet imports only after ps.mxnet, which its servers have not")
def test_dist_sync_on_loopback_fills_the_record(tmp_path: Path) -> None:
    record_file = tmp_path / "record.json"
    code = bench_pushpull.main(
        ["--profile", "tiny", "--stores", "dist_sync", "--iterations", "2", "--rounds", "1", "--patience", "50",
         "--json", str(record_file)]
    )  # fmt: skip
    assert code == 0
    record = json.loads(record_file.read_text())
    figures = record["stores"]["dist_sync"]
    assert record["model_bytes"] == 4_210_856
    assert record["network"]["congestion"]
    assert len(figures["blocks"][0]["seconds"]) == 2
    assert 0 < figures["first_tensor_seconds"]["median"] <= figures["seconds"]["median"] < 5
    assert figures["peak_bytes"]["server"] > 10_000_000
    assert figures["ratio_to_ideal"] is None


def test_an_unknown_store_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench_pushpull.main(["--stores", "autobyte,p4"])
    assert end.value.code == 2
    assert "'p4' is none of autobyte, worker, dist_sync, dist_sync_2calls, p3" in capsys.readouterr().err
