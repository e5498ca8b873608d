"""A job of one of the compared stores: its scheduler, servers and workers, on loopback or in the lab.

A job lives for one block of iterations. :class:`Job` starts its processes, tells the workers when to go (so that
all stores share one notion of a step, whatever their barriers cost) and reads what the processes used.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, Optional, Protocol, Sequence, Type

from bench.report import Block
from bench.stores import STORES
from bench.usage import CpuSeconds, OthersWatch, cpu_seconds, peak_bytes, reset_peak
from lab import places
from ps.network import free_port

__all__ = ["BenchError", "Job", "Loopback", "Network", "run_block"]

SCRIPTS = Path(__file__).resolve().parent.parent


class BenchError(RuntimeError):
    """A job failed, answered too late, or summed wrongly."""


class Network(Protocol):
    """Where a job's processes run; ``emulation.Lab`` is one."""

    def address(self, host: int) -> str:
        """Return the address of a host."""

    def popen(
        self, host: int, command: Sequence[str], env: Optional[Mapping[str, str]] = None,
        stdin: Optional[int] = None, stdout: Optional[int] = None, stderr: Optional[int] = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start a process on a host."""


class Loopback:
    """This machine without any emulation: every host is 127.0.0.1."""

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def popen(
        self, host: int, command: Sequence[str], env: Optional[Mapping[str, str]] = None,
        stdin: Optional[int] = subprocess.DEVNULL, stdout: Optional[int] = None, stderr: Optional[int] = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        return subprocess.Popen(
            list(command), env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True, bufsize=1,
            start_new_session=True,
        )  # fmt: skip


class _Process:
    """One process of the job: its role, and the answers of a worker."""

    def __init__(self, name: str, role: str, popen: subprocess.Popen[str], errors: IO[str]) -> None:
        self.name, self.role, self.popen, self.errors = name, role, popen, errors
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        if popen.stdout is not None:
            threading.Thread(target=self._listen, args=(popen.stdout,), daemon=True).start()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put("")

    def tell(self, order: str) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            self.popen.stdin.write(order + "\n")
            self.popen.stdin.flush()

    def answer(self, timeout_seconds: float) -> Any:
        """Return the next answer, or None if there is none within the time."""
        with contextlib.suppress(queue.Empty):
            line = self._answers.get(timeout=timeout_seconds)
            if not line:
                raise BenchError(f"{self.name} ended{self.last_words()}")
            return json.loads(line)
        return None

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().splitlines()[-15:]
        return "".join(f"\n  [{self.name}] {line}" for line in lines)


class Job:
    """The processes of one job.

    Parameters
    ----------
    store, profile
        What to run, by their names in ``bench.stores`` and ``bench.profiles``.
    network
        Where; worker i on host i, server j on host ``num_workers + j``, the scheduler with server 0.
    patience_seconds
        Longest time to wait for any answer.
    module
        What a worker runs, with store and profile as arguments.
    """

    def __init__(
        self,
        store: str,
        profile: str,
        network: Network,
        num_workers: int,
        num_servers: int,
        patience_seconds: float,
        module: str = "bench.worker",
    ) -> None:
        self._module = module
        self._store, self._profile, self._network = store, profile, network
        self._num_workers, self._num_servers = num_workers, num_servers
        self._patience_seconds = patience_seconds
        self._processes: List[_Process] = []

    def __enter__(self) -> Job:
        try:
            self._start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        try:
            if kind is None:
                self._end()
        finally:
            self._kill()

    def answers(self, order: Optional[str] = None) -> List[Any]:
        """Give all workers an order, if any, and return the answer of each."""
        for worker in self._workers:
            if order is not None:
                worker.tell(order)
        deadline = time.monotonic() + self._patience_seconds
        return [self._answer(worker, deadline) for worker in self._workers]

    def checked_round(self, number: int) -> None:
        """Let the workers sum pattern ``number``; raise :class:`BenchError` where a result is wrong."""
        for answer in self.answers(f"round {number}"):
            if answer["wrong"]:
                raise BenchError(answer["wrong"])

    def by_role(self) -> Dict[str, List[int]]:
        """Return the process ids of each role."""
        roles: Dict[str, List[int]] = {}
        for process in self._processes:
            roles.setdefault(process.role, []).append(process.popen.pid)
        return roles

    @property
    def _workers(self) -> List[_Process]:
        return [process for process in self._processes if process.role == "worker"]

    def _answer(self, worker: _Process, deadline: float) -> Any:
        while time.monotonic() < deadline:
            answer = worker.answer(timeout_seconds=0.5)
            if answer is not None:
                return answer
            for process in self._processes:
                if process.popen.poll():
                    raise BenchError(f"{process.name} failed{process.last_words()}")
        raise BenchError(f"{worker.name} did not answer in time{worker.last_words()}")

    def _start(self) -> None:
        store, network = STORES[self._store], self._network
        commands = {**store.processes, "worker": [sys.executable, "-m", self._module, self._store, self._profile]}
        paths = [str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **store.variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        for placed in places(network.address, free_port(), self._num_workers, self._num_servers):
            pipe = subprocess.PIPE if placed.role == "worker" else subprocess.DEVNULL
            errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (closed by _kill)
            popen = network.popen(
                placed.host, commands[placed.role], {**environment, **placed.variables},
                stdin=pipe, stdout=pipe, stderr=errors.fileno(),
            )  # fmt: skip
            self._processes.append(_Process(f"{self._store} {placed.name}", placed.role, popen, errors))

    def _end(self) -> None:
        """Let the job end by itself."""
        for worker in self._workers:
            worker.tell("end")
        deadline = time.monotonic() + min(20.0, self._patience_seconds)
        for process in self._processes:
            try:
                code = process.popen.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise BenchError(f"{process.name} did not end{process.last_words()}") from None
            if code:
                raise BenchError(f"{process.name} ended with exit code {code}{process.last_words()}")

    def _kill(self) -> None:
        """End what still runs."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()
            process.errors.close()


def _used(roles: Dict[str, List[int]]) -> Dict[str, CpuSeconds]:
    return {role: _total([cpu_seconds(pid) for pid in pids]) for role, pids in roles.items()}


def _total(parts: Sequence[CpuSeconds]) -> CpuSeconds:
    total = CpuSeconds(0.0, 0.0)
    for part in parts:
        total = total.plus(part)
    return total


def run_block(job: Job, iterations: int) -> Block:
    """Run one job from its start to its end and return what its iterations took and cost.

    Two checked rounds and one step warm it up and a checked round follows. An iteration lasts from the first worker's
    start to the last worker's end.
    """
    with job:
        job.answers()
        job.checked_round(0)
        job.checked_round(1)
        job.answers("step")
        roles = job.by_role()
        for pid in sum(roles.values(), []):
            reset_peak(pid)
        others, before = OthersWatch(), _used(roles)
        steps = [job.answers("step") for _ in range(iterations)]
        after, others_cores = _used(roles), others.cores()
        peaks = {role: max(peak_bytes(pid) for pid in pids) for role, pids in roles.items()}
        job.checked_round(2)
    starts = [min(worker["start"] for worker in step) for step in steps]
    return {
        "seconds": [max(w["end"] for w in step) - start for step, start in zip(steps, starts)],
        "first_tensor_seconds": [max(w["first"] for w in step) - start for step, start in zip(steps, starts)],
        "cpu_seconds": {role: after[role].minus(before[role])._asdict() for role in roles},
        "peak_bytes": peaks,
        "others_cores": others_cores,
    }
