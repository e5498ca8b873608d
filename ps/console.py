"""What the options of all commands have in common."""

from __future__ import annotations

import importlib.metadata
from typing import Any, Callable

import click

__all__ = ["version_option"]


def version_option() -> Callable[..., Any]:
    """Return the option ``--version``."""
    try:
        version = importlib.metadata.version("autobyte")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    return click.version_option(version, message="%(prog)s %(version)s")
