"""The command ``autobyte-launch``: from options to a :class:`~scheduler.launch.plan.Job` to an exit code."""

from __future__ import annotations

import os
import secrets
import shutil
from typing import Any, Callable, Optional

import click

from ps.config import Settings
from ps.console import version_option
from ps.errors import SettingsError
from ps.network import free_port
from scheduler.launch.output import Output
from scheduler.launch.plan import PLACE_VARIABLES, Job, plan
from scheduler.launch.supervisor import supervise
from tuner import create

__all__ = ["main"]


def _setting(option: str, variable: str, metavar: str, text: str) -> Callable[..., Any]:
    """Return an option that sets ``variable`` in every process; :class:`~ps.config.Settings` checks its value."""

    def remember(context: click.Context, _: click.Parameter, value: Optional[str]) -> None:
        if value is not None:
            context.ensure_object(dict)[variable] = value

    return click.option(option, metavar=metavar, help=f"{text}  [{variable}]", callback=remember, expose_value=False)


def _remember_variables(context: click.Context, _: click.Parameter, assignments: tuple[str, ...]) -> None:
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{assignment!r} is not NAME=VALUE")
        if name in PLACE_VARIABLES:
            raise click.BadParameter(f"{name} is the launcher's to set")
        context.ensure_object(dict)[name] = value


@click.command(context_settings={"allow_interspersed_args": False})
@version_option()
@click.option("-n", "--workers", type=click.IntRange(1), metavar="N", required=True, help="Number of workers.")
@click.option("-s", "--servers", type=click.IntRange(1), metavar="N", help="Number of servers; default: as workers.")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="PORT", help="The scheduler's port; default: a free one."
)
@_setting("--interface", "DMLC_INTERFACE", "NAME", "Network interface to listen on; default: loopback.")
@_setting("--tuner", "AUTOBYTE_TUNER", "NAME", "What chooses the communication configuration.")
@_setting("--partition-bytes", "AUTOBYTE_PARTITION_BYTES", "BYTES", "Partition size at the start.")
@_setting("--credit-bytes", "AUTOBYTE_CREDIT_BYTES", "BYTES", "Credit of each host at the start.")
@_setting("--deadline", "AUTOBYTE_DEADLINE_SECONDS", "SECONDS", "The longest that an operation may take.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_remember_variables,
    expose_value=False,
    help="A variable for every process; may be repeated.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def launch(
    context: click.Context, workers: int, servers: Optional[int], port: Optional[int], command: tuple[str, ...]
) -> None:
    """Run COMMAND as the workers of a job on this machine, with the scheduler and the servers that it needs.

    All that follows COMMAND is COMMAND's. The output of each process is shown behind its role and rank. The exit code
    is that of the first worker that failed, 0 if none did.

    Example: autobyte-launch -n 2 -s 2 python train.py --epochs 3
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"{command[0]!r} cannot be run (a script needs its interpreter before it)")
    job = Job(
        command=command,
        num_workers=workers,
        num_servers=servers or workers,
        port=port or free_port(),
        name=f"launch-{secrets.token_hex(4)}",
        threads=max(1, (os.cpu_count() or 1) // workers),
        variables=context.ensure_object(dict),
    )
    nodes = plan(job, os.environ)
    try:
        for node in nodes:
            settings = Settings.from_env(node.role, node.environment)
            create(settings.tuner, settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    context.exit(supervise(nodes, Output()))


def main() -> None:
    """Run the command; the entry point of ``autobyte-launch``."""
    launch(prog_name="autobyte-launch")
