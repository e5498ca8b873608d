"""What a node makes of the configuration for its links."""

from __future__ import annotations

import pytest

from ps.config import MIB, CommConfig, Role, Settings
from ps.traffic import Traffic


def link_credit_bytes(role: Role, num_workers: int, num_servers: int, credit_bytes: int = 4 * MIB) -> set[int]:
    settings = Settings(
        role=role,
        root_host="127.0.0.1",
        root_port=9000,
        num_workers=num_workers,
        num_servers=num_servers,
        config=CommConfig(credit_bytes=credit_bytes),
    )
    peers = range(num_workers if role is Role.SERVER else num_servers)
    return {link.credit_bytes for link in Traffic(settings, peers, True, 0.0)._links.links.values()}


@pytest.mark.parametrize(
    ("num_workers", "num_servers", "worker", "server"),
    [
        (2, 2, 2 * MIB, 2 * MIB),
        (8, 2, 2 * MIB, 2 * MIB),  # a server answers four workers, with a worker's credit for each
        (2, 4, 1 * MIB, 2 * MIB),
    ],
)
def test_a_host_shares_its_credit_and_a_server_has_more_where_it_answers_more(
    num_workers: int, num_servers: int, worker: int, server: int
) -> None:
    assert link_credit_bytes(Role.WORKER, num_workers, num_servers) == {worker}
    assert link_credit_bytes(Role.SERVER, num_workers, num_servers) == {server}


def test_unlimited_credit_stays_within_its_bound() -> None:
    assert link_credit_bytes(Role.SERVER, 4, 1, 64 << 30) == {16 << 30}
