"""Every line behind the role and rank of who wrote it."""

from __future__ import annotations

import io

import pytest

from ps.config import Role
from scheduler.launch.output import Lines, Output
from scheduler.launch.plan import Node

WORKER = Node(role=Role.WORKER, rank=1, command=(), environment={})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_joined_across_reads() -> None:
    lines = Lines()
    assert lines.feed(b"epo") == []
    assert lines.feed(b"ch 1\nepoch 2\nep") == [b"epoch 1", b"epoch 2"]
    assert lines.end() == [b"ep"]
    assert lines.end() == []


def test_empty_lines_stay() -> None:
    assert Lines().feed(b"a\n\nb\n") == [b"a", b"", b"b"]


def test_a_progress_bar_is_one_line_as_it_was_in_the_end() -> None:
    assert Lines().feed(b" 10 %\r 50 %\r100 %\n") == [b"100 %"]
    assert Lines().feed(b"written on Windows\r\n") == [b"written on Windows"]


def test_a_line_without_end_is_cut() -> None:
    assert Lines().feed(b"x" * 65537) == [b"x" * 65537]


def test_each_stream_stays_what_it_is() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(stdout, stderr)
    output.line(WORKER, "stdout", b"epoch 1")
    output.line(WORKER, "stderr", "schön".encode())
    output.line(WORKER, "stderr", b"\xff")
    output.note("worker 1 failed")
    output.note("")
    assert stdout.getvalue() == "[worker 1] epoch 1\n"
    assert stderr.getvalue() == "[worker 1] schön\n[worker 1] �\n[launcher] worker 1 failed\n"


def test_the_prefix_is_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stdout = Terminal()
    Output(stdout, io.StringIO()).line(WORKER, "stdout", b"[bold] is no markup here")
    assert stdout.getvalue() == "\x1b[32m[worker 1]\x1b[0m [bold] is no markup here\n"
