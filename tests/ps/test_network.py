"""Which address is bound and connected to, on a host with known interfaces."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from ps import network
from ps.config import Role, Settings
from ps.errors import SettingsError

INTERFACES = {"lo": ["127.0.0.1"], "eth0": ["192.0.2.2", "192.0.2.3"], "eth1": ["198.51.100.7"]}
NAMES = {"localhost": "127.0.0.1", "me": "127.0.1.1", "host-a": "192.0.2.2", "service": "203.0.113.1"}


@pytest.fixture(autouse=True)
def known_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object) -> list[tuple[Any, ...]]:
        address = NAMES.get(host, host)
        if not address[0].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(network, "_interfaces", lambda: INTERFACES)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def settings(root_host: str, interface: str = "", node_host: str = "") -> Settings:
    return Settings(
        role=Role.SERVER,
        root_host=root_host,
        root_port=9091,
        num_workers=1,
        num_servers=1,
        interface=interface,
        node_host=node_host,
        start_seconds=0.6,
    )


@pytest.mark.parametrize(
    ("told", "hosts"),
    [
        (settings("localhost"), ["127.0.0.1"]),
        (settings("127.0.0.1", interface="lo"), ["127.0.0.1"]),
        (settings("127.0.0.2", interface="lo"), ["127.0.0.2"]),
        (settings("192.0.2.2"), ["192.0.2.2"]),
        (settings("192.0.2.3", interface="eth0"), ["192.0.2.3"]),
        (settings("192.0.2.3", node_host="192.0.2.3"), ["192.0.2.3"]),
        (settings("service", interface="eth1"), ["198.51.100.7"]),
        (settings("me", interface="eth0"), ["127.0.1.1", "192.0.2.2"]),
        (settings("me", node_host="host-a"), ["127.0.1.1", "192.0.2.2"]),
    ],
)
def test_the_scheduler_binds_where_the_nodes_look_for_it(told: Settings, hosts: list[str]) -> None:
    assert network.scheduler_hosts(told) == hosts


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            settings("service"),
            "DMLC_PS_ROOT_URI='service' (203.0.113.1) is not an address of this host, which has"
            " eth0 (192.0.2.2), eth1 (198.51.100.7), lo (127.0.0.1): start the scheduler there, or set DMLC_INTERFACE"
            " to where it shall listen",
        ),
        (
            settings("192.0.2.2", interface="lo"),
            "DMLC_INTERFACE='lo' means 127.0.0.1, but DMLC_PS_ROOT_URI='192.0.2.2' means 192.0.2.2: nodes would look"
            " for the scheduler where it does not listen",
        ),
        (
            settings("192.0.2.2", node_host="198.51.100.7"),
            "DMLC_NODE_HOST='198.51.100.7' means 198.51.100.7, but DMLC_PS_ROOT_URI='192.0.2.2' means 192.0.2.2: nodes"
            " would look for the scheduler where it does not listen",
        ),
        (
            settings("localhost", interface="nosuch0"),
            "DMLC_INTERFACE='nosuch0': no such interface with an IPv4 address; this host has eth0 (192.0.2.2),"
            " eth1 (198.51.100.7), lo (127.0.0.1)",
        ),
        (
            settings("localhost", node_host="service"),
            "DMLC_NODE_HOST='service' (203.0.113.1) is not an address of this host, which has eth0 (192.0.2.2),"
            " eth1 (198.51.100.7), lo (127.0.0.1)",
        ),
        (
            settings("localhost", interface="eth0", node_host="198.51.100.7"),
            "DMLC_NODE_HOST='198.51.100.7' (198.51.100.7) is not an address of DMLC_INTERFACE='eth0', which has"
            " 192.0.2.2, 192.0.2.3",
        ),
        (
            settings("localhost", node_host="nowhere"),
            "DMLC_NODE_HOST='nowhere' does not resolve to an IPv4 address: Name or service not known",
        ),
    ],
)
def test_a_contradiction_names_the_variables_and_what_they_mean(told: Settings, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        network.scheduler_hosts(told)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("told", "host"),
    [
        (settings("service", interface="eth1"), "198.51.100.7"),
        (settings("service", node_host="host-a"), "192.0.2.2"),
        (settings("service", interface="eth0", node_host="192.0.2.3"), "192.0.2.3"),
        (settings("localhost"), "127.0.0.1"),
    ],
)
def test_a_server_binds_what_it_was_told_or_the_way_to_the_scheduler(told: Settings, host: str) -> None:
    assert network.bind_host(told) == host


def test_a_name_that_appears_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: NAMES.update(late="192.0.2.9"))
    assert network.root_address(settings("late")) == "192.0.2.9"
    del NAMES["late"]


def test_a_name_that_does_not_appear_is_an_error() -> None:
    with pytest.raises(SettingsError, match="DMLC_PS_ROOT_URI='nowhere' does not resolve"):
        network.root_address(settings("nowhere"))
