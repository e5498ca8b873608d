"""The options of ``autobyte-launch``."""

from __future__ import annotations

from typing import Sequence

import click
import pytest
from click.testing import CliRunner, Result

from ps.server import serve
from scheduler.launch import command
from scheduler.launch.output import Output
from scheduler.launch.plan import Node
from scheduler.process import schedule


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """The nodes that the command would have started; their job ends with code 7."""
    nodes: list[Node] = []

    def supervise(job: Sequence[Node], output: Output) -> int:
        nodes.extend(job)
        return 7

    monkeypatch.setattr(command, "supervise", supervise)
    return nodes


def launch(*arguments: str) -> Result:
    return CliRunner().invoke(command.launch, arguments)


def test_options_end_at_the_command(started: list[Node]) -> None:
    assert launch("-n", "2", "-s", "1", "sh", "train.sh", "-n", "9", "--help").exit_code == 7
    assert [str(node) for node in started] == ["scheduler", "server 0", "worker 0", "worker 1"]
    assert started[-1].command == ("sh", "train.sh", "-n", "9", "--help")


def test_there_are_as_many_servers_as_workers_unless_told_otherwise(started: list[Node]) -> None:
    launch("-n", "3", "true")
    assert [str(node) for node in started].count("server 2") == 1
    assert len(started) == 7


def test_settings_reach_every_process(started: list[Node]) -> None:
    options = ["--tuner", "static", "--partition-bytes", "4096", "--credit-bytes", "8192", "--deadline", "30"]
    launch("-n", "1", *options, "--interface", "lo", "--port", "9191", "--env", "MXNET_X=a=b", "--env", "Y=", "true")
    expected = {
        "AUTOBYTE_TUNER": "static",
        "AUTOBYTE_PARTITION_BYTES": "4096",
        "AUTOBYTE_CREDIT_BYTES": "8192",
        "AUTOBYTE_DEADLINE_SECONDS": "30",
        "DMLC_INTERFACE": "lo",
        "DMLC_PS_ROOT_PORT": "9191",
        "MXNET_X": "a=b",
        "Y": "",
    }
    for node in started:
        assert {name: node.environment[name] for name in expected} == expected


def test_two_jobs_have_neither_port_nor_name_in_common(started: list[Node]) -> None:
    launch("-n", "1", "true")
    launch("-n", "1", "true")
    for name in ("DMLC_PS_ROOT_PORT", "AUTOBYTE_JOB"):
        assert started[0].environment[name] != started[-1].environment[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["true"], "Missing option '-n'"),
        (["-n", "0", "true"], "0 is not in the range x>=1"),
        (["-n", "1"], "Missing argument 'COMMAND...'"),
        (["-n", "1", "no-such.py"], "'no-such.py' cannot be run (a script needs its interpreter before it)"),
        (["-n", "1", "--credit-bytes", "lots", "true"], "AUTOBYTE_CREDIT_BYTES='lots': expected bytes, a whole number"),
        (["-n", "1", "--partition-bytes", "0", "true"], "AUTOBYTE_PARTITION_BYTES must be an integer from 1"),
        (
            ["-n", "1", "--tuner", "magic", "true"],
            "AUTOBYTE_TUNER='magic': expected one of autobyte, bayesian, grid, random, rule, static",
        ),
        (["-n", "1", "--env", "NAME", "true"], "'NAME' is not NAME=VALUE"),
        (["-n", "1", "--env", "DMLC_ROLE=worker", "true"], "DMLC_ROLE is the launcher's to set"),
    ],
)
def test_wrong_usage_starts_nothing(started: list[Node], arguments: list[str], message: str) -> None:
    result = launch(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not started


@pytest.mark.parametrize("options", [command.launch, schedule, serve])
def test_every_command_explains_itself_and_tells_its_version(options: click.Command) -> None:
    usage = CliRunner().invoke(options, ["--help"])
    assert usage.exit_code == 0 and usage.output.startswith("Usage: ")
    version = CliRunner().invoke(options, ["--version"])
    assert version.exit_code == 0 and version.output.startswith(str(options.name))
