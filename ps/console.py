"""What the commands have in common: the version, and how the process of a role ends."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from typing import Any, Callable

import click

from ps.errors import AutoByteError, SettingsError

__all__ = ["run_process", "version_option"]


def version_option() -> Callable[..., Any]:
    """Return the option ``--version``."""
    try:
        version = importlib.metadata.version("autobyte")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    return click.version_option(version, message="%(prog)s %(version)s")


def run_process(command: str, run: Callable[[], int]) -> None:
    """Set up the log, call ``run`` and exit with what it returns: 2 for wrong settings, 1 for any other known error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        code = run()
    except AutoByteError as error:
        print(f"{command}: {error}", file=sys.stderr)
        code = 2 if isinstance(error, SettingsError) else 1
    sys.exit(code)
