"""The emulated cluster: links have the rate that was asked for, and nothing is left behind."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

import pytest

import emulation
import lab as lab_command
from emulation import Lab, LabError, payload_share, why_not
from lab import places

COMMAND = [sys.executable, str(Path(lab_command.__file__).resolve())]

needs_lab = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def namespaces_of(name: str) -> List[str]:
    known = Path("/run/netns")
    return sorted(entry.name for entry in known.iterdir() if name in entry.name) if known.exists() else []


def is_gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line of output that contains ``text``; the test's own time limit ends a vain wait."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}")


@pytest.mark.lab
@needs_lab
@pytest.mark.timeout(30)
def test_a_stream_gets_the_rate_and_a_change_takes_effect_at_once() -> None:
    with Lab(hosts=2, rate_mbit=200) as lab:
        before = lab.measure(seconds=0.6)
        lab.set_rate(1, 50)
        after = lab.measure(seconds=0.6)
    assert before.congestion == after.congestion == "cubic"
    assert before.goodput_mbit == pytest.approx(200 * payload_share(), rel=0.05)
    assert after.goodput_mbit == pytest.approx(50 * payload_share(), rel=0.05)


@pytest.mark.lab
@needs_lab
@pytest.mark.timeout(30)
def test_an_exception_ends_the_processes_and_removes_the_namespaces() -> None:
    lab = Lab(hosts=1)
    with pytest.raises(KeyError), lab:
        sleeper = lab.popen(0, ["sleep", "60"])
        assert len(namespaces_of(lab.name)) == 2
        raise KeyError
    assert is_gone(sleeper.pid)
    assert namespaces_of(lab.name) == []


@pytest.mark.lab
@needs_lab
@pytest.mark.timeout(30)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_job_and_removes_the_namespaces(number: signal.Signals, code: int) -> None:
    command = [*COMMAND, "run", "--hosts", "1", "--", "sh", "-c", "echo job $$; exec sleep 60"]
    heeded = functools.partial(signal.signal, number, signal.SIG_DFL)  # tests in the background would pass on SIG_IGN
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heeded)
    pid = int(wait_for_line(process, "job").split()[-1])
    process.send_signal(number)
    assert process.wait(timeout=15) == code
    assert is_gone(pid)
    assert namespaces_of(f"autobyte-{process.pid}-") == []


@pytest.mark.lab
@needs_lab
@pytest.mark.timeout(30)
def test_clean_removes_what_a_killed_lab_left_and_no_living_one() -> None:
    command = [*COMMAND, "run", "--hosts", "1", "--", "sh", "-c", "echo job $$; exec sleep 60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(wait_for_line(process, "job").split()[-1])
    process.kill()
    process.wait(timeout=5)
    left = namespaces_of(f"autobyte-{process.pid}-")
    assert len(left) == 2
    with Lab(hosts=1) as living:
        removed = subprocess.run([*COMMAND, "clean"], capture_output=True, text=True, timeout=15, check=True).stdout
        assert len(namespaces_of(living.name)) == 2
    for name in left:
        assert f"removed {name}" in removed
    assert namespaces_of(f"autobyte-{process.pid}-") == []
    deadline = time.monotonic() + 5
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_gone(pid)


@pytest.mark.lab
@needs_lab
@pytest.mark.timeout(30)
def test_run_starts_the_command_on_every_host_and_returns_the_first_failure() -> None:
    script = 'echo "$LAB_HOST at $LAB_ADDRESS of $LAB_ADDRESSES"; sleep $LAB_HOST; exit $((LAB_HOST * 3))'
    done = subprocess.run(
        [*COMMAND, "run", "--hosts", "2", "--", "sh", "-c", script], capture_output=True, text=True, timeout=20
    )
    assert "[host 0] 0 at 10.99.0.1 of 10.99.0.1,10.99.0.2" in done.stdout
    assert "[host 1] 1 at 10.99.0.2 of 10.99.0.1,10.99.0.2" in done.stdout
    assert done.returncode == 3


@pytest.mark.lab
@needs_lab
def test_what_iproute2_refuses_is_told_in_its_words_and_leaves_nothing() -> None:
    lab = Lab(hosts=1, congestion="nosuch")
    with pytest.raises(LabError, match="congctl nosuch"), lab:
        pass
    assert namespaces_of(lab.name) == []


def test_where_iproute2_is_missing_the_lab_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(LabError, match=r"the lab needs 'ip' of iproute2 \(Debian: apt-get install iproute2\)"):
        Lab(hosts=1).__enter__()


def test_without_the_right_to_make_namespaces_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(emulation, "_capabilities", set)
    assert lab_command.main(["measure"]) == 2
    assert capsys.readouterr().err == (
        "lab.py: the lab needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) to make network namespaces\n"
    )


@pytest.mark.lab
@needs_lab
@pytest.mark.timeout(40)
def test_launch_runs_a_job_whose_rates_change_meanwhile(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import time, numpy, ps\n"
        "with ps.Worker() as worker:\n"
        "    worker.init('a', numpy.zeros(1000, numpy.float32))\n"
        "    time.sleep(1)\n"
        "    ones = numpy.ones(1000, numpy.float32)\n"
        "    print('rank', worker.rank, 'has', worker.push_pull('a', ones).wait().sum())\n"
    )
    done = subprocess.run(
        [*COMMAND, "launch", "-n", "2", "-s", "1", "--change", "0.1:all:300", "--", sys.executable, str(train)],
        capture_output=True, text=True, timeout=35,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "[worker 0] rank 0 has 2000.0" in done.stdout
    assert "[worker 1] rank 1 has 2000.0" in done.stdout
    assert "[lab] 0.1 s: host all at 300 Mbit/s" in done.stdout


def test_names_carry_the_pid_and_a_number() -> None:
    first, second = Lab(hosts=1), Lab(hosts=1)
    assert first.name.startswith(f"autobyte-{os.getpid()}-")
    assert first.name != second.name


def test_each_worker_and_server_has_a_host_and_the_scheduler_is_with_the_first_server() -> None:
    placed = places("10.99.0.{}".format, 9091, 2, 2)
    assert [(process.name, process.host) for process in placed] == [
        ("scheduler", 2), ("server 0", 2), ("server 1", 3), ("worker 0", 0), ("worker 1", 1),
    ]  # fmt: skip


def test_a_process_learns_its_place_from_the_variables_of_ps_lite() -> None:
    assert places("10.99.0.{}".format, 9091, 2, 2)[2].variables == {
        "DMLC_ROLE": "server",
        "DMLC_SERVER_ID": "1",
        "DMLC_PS_ROOT_URI": "10.99.0.2",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
        "DMLC_NODE_HOST": "10.99.0.3",
    }
