"""Real processes on loopback for tests: a scheduler, servers, and workers that run a given piece of Python.

    with Cluster(workers=2, servers=1) as cluster:
        first, second = cluster.run('''
            import numpy as np, ps
            with ps.Worker() as worker:
                worker.init({"a": np.zeros(3, np.float32)})
                print(worker.push_pull("a", np.ones(3, np.float32)).wait())
        ''', timeout=20)
        assert first.stdout == second.stdout == "[2. 2. 2.]\\n"
        assert cluster.finish() == [0, 0]

Workers are numbered, and ask for the rank of that number. Every wait has a limit, and what goes wrong shows the output
of all processes. At the end of the block whatever is still running is killed, and reported if nothing else was wrong:
processes have to end by themselves. Each process leads a process group of its own, so its children are found too.
"""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import TracebackType
from typing import Callable, Mapping, Optional, Sequence, Type, Union

from ps.network import free_port

__all__ = ["Cluster", "Process"]

ROOT = Path(__file__).resolve().parents[2]
#: A job has to be gone this long after its last worker.
END_SECONDS = 5.0

Source = Union[str, Callable[[], object]]


class Process:
    """A child process and what it wrote."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self._stdout = directory / f"{name}.out"
        self._stderr = directory / f"{name}.err"
        with open(self._stdout, "wb") as out, open(self._stderr, "wb") as err:
            self._popen = subprocess.Popen(
                command,
                env=dict(env),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def stdout(self) -> str:
        """What it has written to its standard output so far."""
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has written to its standard error so far."""
        return self._stderr.read_text(errors="replace")

    @property
    def returncode(self) -> Optional[int]:
        """Its exit code, negative for a signal; None while it runs."""
        return self._popen.poll()

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self._popen.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout:.1f} s\n{self.output()}") from None

    def wait_for(self, text: str, timeout: float = 20.0) -> None:
        """Wait until ``text`` is in what it wrote."""
        give_up_at = time.monotonic() + timeout
        while text not in self.stdout and text not in self.stderr:
            if time.monotonic() > give_up_at or self.returncode is not None:
                raise AssertionError(f"{self.name} has not written {text!r} within {timeout:g} s\n{self.output()}")
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal to this process alone, such as ``signal.SIGSTOP``."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and its children, at once."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    @property
    def running(self) -> bool:
        """Whether it, or a child that it left behind, still runs."""
        if self._popen.poll() is None:
            return True
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def output(self) -> str:
        """Return its end, if any, and what it wrote, to be shown to a reader."""
        state = "running" if self.returncode is None else f"exit code {self.returncode}"
        return f"---- {self.name} (pid {self.pid}, {state})\n{self.stdout[-4000:]}{self.stderr[-4000:]}"


class Cluster:
    """The processes of one job.

    Parameters
    ----------
    workers, servers
        How many.
    env
        Environment variables for all processes, above those of the job itself.
    scheduler
        A program to run in place of ``python -m scheduler``.
    start
        Whether entering the block starts the scheduler and the servers.
    """

    def __init__(
        self,
        workers: int = 2,
        servers: int = 1,
        env: Optional[Mapping[str, str]] = None,
        scheduler: str = "",
        start: bool = True,
    ) -> None:
        self.port = free_port()
        self.scheduler: Optional[Process] = None
        self.servers: list[Process] = []
        self.workers: list[Process] = []
        self._num_workers = workers
        self._num_servers = servers
        self._scheduler_source = textwrap.dedent(scheduler)
        self._start = start
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "AUTOBYTE_"))}
        self.env = {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "AUTOBYTE_TUNER": "static",
            "AUTOBYTE_START_SECONDS": "20",
            "AUTOBYTE_DEADLINE_SECONDS": "20",
            **(env or {}),
        }
        self._directory = tempfile.TemporaryDirectory(prefix="autobyte-test-")

    @property
    def directory(self) -> Path:
        """The working directory of all processes; gone after the block."""
        return Path(self._directory.name)

    @property
    def processes(self) -> list[Process]:
        """All that were started."""
        return [*([self.scheduler] if self.scheduler else []), *self.servers, *self.workers]

    # -------------------------------------------------------------------------------------- starting

    def start_scheduler(self, env: Optional[Mapping[str, str]] = None) -> Process:
        """Start the scheduler, with ``env`` on top of the cluster's."""
        program = ["-c", self._scheduler_source] if self._scheduler_source else ["-m", "scheduler"]
        command = [sys.executable, *program]
        self.scheduler = self._spawn("scheduler", command, {"DMLC_ROLE": "scheduler", **(env or {})})
        return self.scheduler

    def start_server(self, env: Optional[Mapping[str, str]] = None) -> Process:
        """Start the next server."""
        number = len(self.servers)
        own = {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(number), **(env or {})}
        self.servers.append(self._spawn(f"server-{number}", [sys.executable, "-m", "ps.server"], own))
        return self.servers[-1]

    def start_worker(self, source: Source, env: Optional[Mapping[str, str]] = None) -> Process:
        """Start the next worker. ``source`` is a program, or a function that is self-contained and takes nothing."""
        number = len(self.workers)
        if not isinstance(source, str):
            source = f"{textwrap.dedent(inspect.getsource(source))}\n{source.__name__}()\n"
        script = self.directory / f"worker-{number}.py"
        script.write_text(textwrap.dedent(source))
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(number), **(env or {})}
        self.workers.append(self._spawn(f"worker-{number}", [sys.executable, str(script)], own))
        return self.workers[-1]

    def start_workers(
        self, source: Union[Source, Sequence[Source]], env: Optional[Sequence[Mapping[str, str]]] = None
    ) -> list[Process]:
        """Start all workers, with one source for all or one each, and an environment each."""
        sources = [source] * self._num_workers if isinstance(source, str) or callable(source) else list(source)
        for number in range(self._num_workers):
            self.start_worker(sources[number], env[number] if env else None)
        return self.workers

    def _spawn(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> Process:
        return Process(name, command, {**self.env, **env}, self.directory)

    # --------------------------------------------------------------------------------------- waiting

    def run(
        self,
        source: Union[Source, Sequence[Source]],
        timeout: float = 20.0,
        env: Optional[Sequence[Mapping[str, str]]] = None,
        check: bool = True,
    ) -> list[Process]:
        """Start all workers, wait for their end and return them; with ``check``, all have to end with 0."""
        self.start_workers(source, env)
        return self.wait(timeout, check)

    def wait(self, timeout: float = 20.0, check: bool = True) -> list[Process]:
        """Wait for the end of all workers."""
        give_up_at = time.monotonic() + timeout
        for worker in self.workers:
            try:
                code = worker.wait(give_up_at - time.monotonic())
            except AssertionError:
                raise AssertionError(f"{worker.name} still runs after {timeout:g} s\n{self.output()}") from None
            if check and code != 0:
                raise AssertionError(f"{worker.name} ended with {code}\n{self.output()}")
        return self.workers

    def finish(self, timeout: float = END_SECONDS) -> list[int]:
        """Wait for the end of the scheduler and the servers and return their exit codes, in this order."""
        give_up_at = time.monotonic() + timeout
        rest = [process for process in self.processes if process not in self.workers]
        return [process.wait(give_up_at - time.monotonic()) for process in rest]

    def output(self) -> str:
        """Return what all processes wrote, to be shown to a reader."""
        return "\n".join(process.output() for process in self.processes)

    # ----------------------------------------------------------------------------------------- block

    def __enter__(self) -> Cluster:
        if self._start:
            self.start_scheduler()
            for _ in range(self._num_servers):
                self.start_server()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        give_up_at = time.monotonic() + (END_SECONDS if kind is None else 0.0)
        while any(process.running for process in self.processes) and time.monotonic() < give_up_at:
            time.sleep(0.02)
        left = [process for process in self.processes if process.running]
        report = "\n".join(process.output() for process in left)
        for process in left:
            process.kill()
        self._directory.cleanup()
        if left and kind is None:
            raise AssertionError(f"still running {END_SECONDS:g} s after the end\n{report}")
