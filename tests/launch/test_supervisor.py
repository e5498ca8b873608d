"""The launcher's processes, with small shell commands in the place of scheduler, servers and workers."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, Sequence

import msgspec
import psutil
import pytest

from ps.config import Role
from scheduler.launch.output import Output
from scheduler.launch.plan import Node
from scheduler.launch.supervisor import supervise

FOR_EVER = "while :; do sleep 0.05; done"
LAUNCHER = """
import msgspec, sys
from scheduler.launch.output import Output
from scheduler.launch.plan import Node
from scheduler.launch.supervisor import supervise
sys.exit(supervise(msgspec.json.decode(sys.argv[1], type=list[Node]), Output(), grace_seconds=1.0))
"""


def nodes(*workers: str, server: str = "true", scheduler: str = "true") -> list[Node]:
    scripts = [(Role.SCHEDULER, 0, scheduler), (Role.SERVER, 0, server)]
    scripts += [(Role.WORKER, rank, script) for rank, script in enumerate(workers)]
    return [
        Node(role=role, rank=rank, command=("sh", "-c", script), environment=dict(os.environ))
        for role, rank, script in scripts
    ]


def run(job: Sequence[Node], grace_seconds: float = 5.0) -> tuple[int, list[str], list[str]]:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = supervise(job, Output(stdout, stderr), grace_seconds)
    return code, stdout.getvalue().splitlines(), stderr.getvalue().splitlines()


@pytest.fixture
def launch() -> Iterator[Callable[[Sequence[Node]], subprocess.Popen[str]]]:
    """Starts a launcher as a process of its own."""
    launchers = []

    def start(job: Sequence[Node]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LAUNCHER, msgspec.json.encode(job).decode()]
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        launchers.append(launcher)
        return launcher

    yield start
    for launcher in launchers:
        launcher.kill()
        launcher.communicate()


def announced(launcher: subprocess.Popen[str], count: int) -> list[int]:
    """Wait for ``count`` lines that tell a process id."""
    assert launcher.stdout
    return [int(re.findall(r"\d+", launcher.stdout.readline())[-1]) for _ in range(count)]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone_within(seconds: float, pids: Sequence[int]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(map(gone, pids)):
            return True
        time.sleep(0.02)
    return False


def test_what_the_nodes_write_is_passed_on_line_by_line() -> None:
    code, stdout, stderr = run(nodes("echo one; echo two; echo three >&2", "printf 'no end'", server="echo 'I serve'"))
    assert code == 0
    assert sorted(stdout) == ["[server 0] I serve", "[worker 0] one", "[worker 0] two", "[worker 1] no end"]
    assert stderr == ["[worker 0] three"]


def test_nothing_that_a_node_wrote_before_its_end_is_lost() -> None:
    code, stdout, _ = run(nodes("seq 20000", "seq 20000"))
    assert code == 0
    assert [line for line in stdout if line.startswith("[worker 1]")] == [f"[worker 1] {i}" for i in range(1, 20001)]


def test_the_first_failing_workers_code_is_returned_after_its_last_words() -> None:
    code, _, stderr = run(nodes("echo 'it hurts' >&2; exit 3", "sleep 0.5; exit 4"))
    assert code == 3
    assert stderr[:2] == ["[worker 0] it hurts", "[launcher] worker 0 failed with exit code 3"]
    assert stderr[-1] == "[launcher] job failed: worker 0 failed with exit code 3: it hurts"


def test_a_dead_server_ends_the_job() -> None:
    code, _, stderr = run(nodes(FOR_EVER, server="kill -9 $$", scheduler=FOR_EVER), grace_seconds=0.3)
    assert code == 137
    assert stderr == [
        "[launcher] server 0 was killed by SIGKILL",
        "[launcher] ending scheduler, worker 0: the job has failed",
        "[launcher] job failed: server 0 was killed by SIGKILL",
    ]


def test_who_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    until_deaf = f"until [ -e {deaf} ]; do sleep 0.02; done"
    code, _, stderr = run(nodes(f"{until_deaf}; exit 7", f"trap '' TERM; touch {deaf}; {FOR_EVER}"), grace_seconds=0.3)
    assert code == 7
    assert stderr[-2] == "[launcher] killing worker 1: still there 0.3 s after being told to end"


def test_each_survivor_says_in_one_line_what_it_failed_of() -> None:
    survivor = "sleep 0.3; printf 'Traceback\\n  at line 1\\nPeerLost: worker 0 was lost\\n' >&2; exit 1"
    code, _, stderr = run(nodes("kill -9 $$", survivor))
    assert code == 137
    assert [line for line in stderr if line.startswith("[launcher]")] == [
        "[launcher] worker 0 was killed by SIGKILL",
        "[launcher] worker 1 failed with exit code 1: PeerLost: worker 0 was lost",
        "[launcher] job failed: worker 0 was killed by SIGKILL",
    ]


def test_nobody_waits_for_a_process_that_was_called_wrongly() -> None:
    began = time.monotonic()
    wrongly = "echo 'no such option' >&2; exit 2"
    code, _, stderr = run(nodes(wrongly, FOR_EVER, server=FOR_EVER, scheduler=FOR_EVER), grace_seconds=20.0)
    assert code == 2 and time.monotonic() - began < 10.0
    assert stderr[1:] == [
        "[launcher] worker 0 failed with exit code 2",
        "[launcher] ending scheduler, server 0, worker 1: the job has failed",
        "[launcher] job failed: worker 0 failed with exit code 2: no such option",
    ]


def test_what_a_worker_leaves_behind_is_ended() -> None:
    code, stdout, _ = run(nodes(f"sh -c '{FOR_EVER}' & echo $!"))
    assert code == 0
    assert all_gone_within(1.0, [int(stdout[0].split()[-1])])


def test_a_command_that_cannot_be_started_ends_what_was_started() -> None:
    job = nodes(FOR_EVER, scheduler=f"echo $$; {FOR_EVER}")
    job.append(Node(role=Role.WORKER, rank=1, command=("/nowhere/python",), environment={}))
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        run(job, grace_seconds=1.0)
    assert not psutil.Process().children()


def test_the_callers_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    run(nodes("true"))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_launcher_leaves_nothing_behind(
    launch: Callable[[Sequence[Node]], subprocess.Popen[str]], signum: int, code: int
) -> None:
    worker = f"sh -c 'echo $$; {FOR_EVER}'; echo never"
    launcher = launch(nodes(worker, worker, server=FOR_EVER, scheduler=FOR_EVER))
    pids = announced(launcher, 2)
    launcher.send_signal(signum)
    stdout, stderr = launcher.communicate(timeout=10)
    assert launcher.returncode == code
    assert stdout == ""
    assert stderr == f"[launcher] {signal.Signals(signum).name}: ending the job\n"
    assert all(map(gone, pids))


def test_a_second_interrupt_kills_at_once(launch: Callable[[Sequence[Node]], subprocess.Popen[str]]) -> None:
    launcher = launch(nodes(f"trap '' TERM; echo $$; {FOR_EVER}"))
    pids = announced(launcher, 1)
    launcher.send_signal(signal.SIGINT)
    assert launcher.stderr
    assert launcher.stderr.readline() == "[launcher] SIGINT: ending the job\n"
    launcher.send_signal(signal.SIGINT)
    _, stderr = launcher.communicate(timeout=10)
    assert stderr == "[launcher] SIGINT: killing worker 0\n"
    assert launcher.returncode == 130
    assert all(map(gone, pids))


def test_a_killed_launcher_leaves_nothing_behind(launch: Callable[[Sequence[Node]], subprocess.Popen[str]]) -> None:
    launcher = launch(nodes(f"sh -c 'echo $$; {FOR_EVER}'; true", server=f"trap '' TERM; echo $$; {FOR_EVER}"))
    pids = announced(launcher, 2)
    launcher.kill()
    assert all_gone_within(10.0, pids)


def test_a_reader_that_goes_away_ends_the_job(launch: Callable[[Sequence[Node]], subprocess.Popen[str]]) -> None:
    launcher = launch(nodes("echo $$; while echo more; do sleep 0.01; done"))
    pids = announced(launcher, 1)
    assert launcher.stdout
    launcher.stdout.close()
    assert launcher.wait(timeout=10) != 0
    assert all(map(gone, pids))
