"""Whole jobs through ``autobyte-launch``: one scheduler, two servers and two workers, all real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Iterator

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, sys, time
import numpy as np, ps

rank = int(os.environ["DMLC_WORKER_ID"])
print("pid", os.getpid(), flush=True)
with ps.Worker() as worker:
    worker.init("x", np.zeros(3, "float32"))
    for step in range(STEPS):
        x = worker.push_pull("x", np.full(3, rank + 1, "float32")).wait()
        print("step", step, x, flush=True)
        time.sleep(0.01)
        if sys.argv[1:] == ["fail"] and rank == 1:
            os._exit(3)
"""


class Job:
    """A launcher that runs ``SCRIPT`` and whose processes can be told from all others."""

    def __init__(self, directory: Path, steps: int, *arguments: str) -> None:
        self.name = f"test-{uuid.uuid4().hex}"
        script = directory / "train.py"
        script.write_text(textwrap.dedent(SCRIPT).replace("STEPS", str(steps)))
        launcher = [
            sys.executable,
            "-m",
            "scheduler.launch",
            "-n",
            "2",
            "-s",
            "2",
            "--env",
            f"AUTOBYTE_JOB={self.name}",
        ]
        self.launcher = subprocess.Popen(
            [*launcher, sys.executable, str(script), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[psutil.Process]:
        """Return the job's nodes; not the launcher, which has no such variable."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("AUTOBYTE_JOB") == self.name:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                pass
        return found

    def node(self, role: str, rank: int = 0) -> psutil.Process:
        for process in self.processes():
            environment = process.environ()
            number = environment.get("DMLC_SERVER_ID", environment.get("DMLC_WORKER_ID", "0"))
            if (environment["DMLC_ROLE"], number) == (role, str(rank)):
                return process
        raise LookupError(f"{role} {rank}")

    def running(self) -> None:
        """Wait until the workers are in the middle of their steps."""
        assert self.launcher.stdout
        for line in self.launcher.stdout:
            if " step 3 " in line:
                return
        raise AssertionError("the job ended before step 3")

    def result(self) -> tuple[int, str, str]:
        stdout, stderr = self.launcher.communicate(timeout=30)
        assert self.processes() == []
        return self.launcher.returncode, stdout, stderr

    def kill(self) -> None:
        self.launcher.kill()
        self.launcher.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Job]]:
    jobs = []

    def job(*arguments: str, steps: int = 1000) -> Job:
        jobs.append(Job(tmp_path, steps, *arguments))
        return jobs[-1]

    yield job
    for each in jobs:
        each.kill()


def test_a_job_that_ends_well(start) -> None:
    code, stdout, stderr = start(steps=3).result()
    assert code == 0
    assert re.findall(r"\[worker 1\] step .*", stdout) == [
        "[worker 1] step 0 [3. 3. 3.]",
        "[worker 1] step 1 [3. 3. 3.]",
        "[worker 1] step 2 [3. 3. 3.]",
    ]
    assert "[launcher]" not in stderr


def test_the_code_of_the_worker_that_failed_is_the_jobs(start) -> None:
    code, _, stderr = start("fail").result()
    assert code == 3
    assert "[launcher] worker 1 failed with exit code 3" in stderr
    assert re.search(r"\[worker 0\] .*PeerLost: .*worker 1", stderr)


def test_a_killed_worker_ends_the_job(start) -> None:
    job = start()
    job.running()
    job.node("worker", 1).kill()
    code, _, stderr = job.result()
    assert code == 137
    assert "[launcher] worker 1 was killed by SIGKILL" in stderr
    assert re.search(r"\[worker 0\] .*PeerLost: .*worker 1", stderr)


@pytest.mark.parametrize("role", ["server", pytest.param("scheduler", marks=pytest.mark.slow)])
def test_a_killed_server_or_scheduler_ends_the_job(start, role: str) -> None:
    job = start()
    job.running()
    job.node(role).kill()
    code, _, stderr = job.result()
    assert code in (1, 137)  # of the worker that noticed, or else of the one that was killed
    assert re.search(rf"\[launcher\] {role}( 0)? was killed by SIGKILL", stderr)


def test_an_interrupted_job_leaves_nothing_behind(start) -> None:
    job = start()
    job.running()
    job.launcher.terminate()
    code, _, stderr = job.result()
    assert code == 143
    assert "[launcher] SIGTERM: ending the job" in stderr


def test_a_job_whose_launcher_is_killed_leaves_nothing_behind(start) -> None:
    job = start()
    job.running()
    job.launcher.kill()
    deadline = time.monotonic() + 15
    while job.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.processes() == []
