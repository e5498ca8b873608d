"""Words that several messages to the user share."""

from __future__ import annotations

from typing import Iterable

from ps.config import Role

__all__ = ["count_of", "one_line", "ranks_text"]


def count_of(count: int, role: Role) -> str:
    """Return ``1 worker``, ``2 servers``."""
    return f"{count} {role.value}{'' if count == 1 else 's'}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``worker 1``, ``workers 0 and 2``, ``workers 0, 1, 2, 3, 4, 5, 6 and 57 more``."""
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) == 1:
        return f"worker {names[0]}"
    if len(names) > 8:
        names[7:] = [f"{len(names) - 7} more"]
    return f"workers {', '.join(names[:-1])} and {names[-1]}"


def one_line(text: str, max_length: int = 1000) -> str:
    """Return ``text`` from the network so that it may go to a log: one line, printable, bounded."""
    line = "".join(character if character.isprintable() else " " for character in text[: max_length + 1])
    return line if len(line) <= max_length else line[: max_length - 3] + "..."
