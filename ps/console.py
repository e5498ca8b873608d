"""What the commands have in common: the version, and how the process of a role ends."""

from __future__ import annotations

import logging
import sys
from typing import Any, Callable

import click

from ps.errors import AutoByteError, SettingsError

__all__ = ["run_process", "version_option"]


def version_option() -> Callable[..., Any]:
    """Return the option ``--version``."""
    return click.option(
        "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
    )


def _show_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    import importlib.metadata  # here: a fifth of the time that a server takes to start

    try:
        version = importlib.metadata.version("autobyte")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    click.echo(f"{context.find_root().info_name} {version}")
    context.exit()


def run_process(command: str, run: Callable[[], int]) -> None:
    """Set up the log, call ``run`` and exit with what it returns: 2 for wrong settings, 1 for any other known error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        code = run()
    except AutoByteError as error:
        print(f"{command}: {error}", file=sys.stderr)
        code = 2 if isinstance(error, SettingsError) else 1
    sys.exit(code)
