"""Which processes a job on one machine has, and what each finds in its environment. Pure.

The names are those of MXNet's ps-lite, as its users know them. What the launcher's own environment says about a place
in some job (a role, a rank) is not passed on; everything else is.
"""

from __future__ import annotations

import sys
from typing import Mapping

import msgspec

from ps.config import Role

__all__ = ["PLACE_VARIABLES", "Job", "Node", "plan"]

#: Variables that say which process of which job this is. They are the launcher's to set.
PLACE_VARIABLES = (
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
    "DMLC_WORKER_ID",
    "DMLC_SERVER_ID",
)

_MODULES = {Role.SCHEDULER: "scheduler", Role.SERVER: "ps.server"}
_RANK_VARIABLES = {Role.WORKER: "DMLC_WORKER_ID", Role.SERVER: "DMLC_SERVER_ID"}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for.

    ``name`` keeps nodes of other jobs away; ``threads`` is how many threads each worker computes with. Both give way to
    the environment and to ``variables``, which every node gets.
    """

    command: tuple[str, ...]
    num_workers: int
    num_servers: int
    port: int
    name: str
    threads: int
    variables: dict[str, str] = {}


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the job."""

    role: Role
    rank: int
    command: tuple[str, ...]
    environment: dict[str, str]

    def __str__(self) -> str:
        return "scheduler" if self.role is Role.SCHEDULER else f"{self.role.value} {self.rank}"


def plan(job: Job, inherited: Mapping[str, str]) -> list[Node]:
    """Return the job's nodes in the order in which to start them; ``inherited`` is the launcher's own environment."""
    defaults = {"AUTOBYTE_JOB": job.name, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(job.threads)}
    place = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(job.port),
        "DMLC_NUM_WORKER": str(job.num_workers),
        "DMLC_NUM_SERVER": str(job.num_servers),
    }
    passed_on = {name: value for name, value in inherited.items() if name not in PLACE_VARIABLES}
    nodes = []
    for role, count in ((Role.SCHEDULER, 1), (Role.SERVER, job.num_servers), (Role.WORKER, job.num_workers)):
        command = job.command if role is Role.WORKER else (sys.executable, "-m", _MODULES[role])
        for rank in range(count):
            own = {"DMLC_ROLE": role.value}
            if role in _RANK_VARIABLES:
                own[_RANK_VARIABLES[role]] = str(rank)
            environment = {**defaults, **passed_on, **job.variables, **place, **own}
            nodes.append(Node(role=role, rank=rank, command=command, environment=environment))
    return nodes
