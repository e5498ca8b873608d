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


def worker_in_steps() -> Traffic:
    """Return a worker after twenty steps of 30 ms."""
    settings = Settings(role=Role.WORKER, root_host="127.0.0.1", root_port=9000, num_workers=2, num_servers=1)
    traffic = Traffic(settings, range(1), True, 0.0)
    for step in range(21):
        traffic.counters.step_began(0.03 * step)
    return traffic


def test_a_step_that_waits_for_the_network_for_too_long_is_told_before_it_ends() -> None:
    traffic = worker_in_steps()
    traffic.report(0.6)
    assert not traffic.due(0.659)
    for _ in range(16):
        assert not traffic.due(0.662)
        traffic.received(0, 1000, 1, True, 0.662)
    assert traffic.due(0.663)
    observation = traffic.report(0.663)
    assert observation is not None and observation.overdue_seconds == pytest.approx(0.063)
    assert not traffic.due(0.67)  # once is enough


def test_a_step_during_which_nothing_is_sent_has_other_reasons() -> None:
    traffic = worker_in_steps()
    traffic.report(0.6)
    assert not any(traffic.due(0.6 + 0.01 * turn) for turn in range(10))


def test_the_processor_is_looked_at_ten_times_a_second_and_once_a_step_while_windows_are_short() -> None:
    traffic = worker_in_steps()
    traffic.report(0.6)
    assert traffic.counters.attention.close
    traffic.counters.step_began(0.63)
    assert traffic.due(0.631)
    traffic.report(0.631)
    assert (traffic.due(0.64), traffic.due(0.74)) == (False, True)
