"""``docker-compose.yml``: its commands and variables make a job that trains. No container engine is needed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ps.config import Role, Settings
from ps.network import free_port
from tests.test_repository import ROOT, console_scripts, known_variables

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def command(service: str) -> list[str]:
    """Return what the service's container runs, with this interpreter."""
    name, *arguments = shlex.split(SERVICES[service]["command"])
    if name == "python":
        return [sys.executable, *arguments]
    module, function = console_scripts()[name].split(":")
    return [sys.executable, "-c", f"import {module}; {module}.{function}()", *arguments]


def test_the_services_are_one_job() -> None:
    assert list(SERVICES) == ["scheduler", "server-0", "server-1", "worker-0", "worker-1"]
    environments = [service["environment"] for service in SERVICES.values()]
    settings = [Settings.from_env(Role(environment["DMLC_ROLE"]), environment) for environment in environments]
    assert [each.preferred_rank for each in settings] == [-1, 0, 1, 0, 1]
    assert {(each.root_host, each.root_port, each.num_workers, each.num_servers) for each in settings} == {
        ("scheduler", 9091, 2, 2)
    }


def test_the_services_set_only_variables_that_are_known() -> None:
    assert {name for service in SERVICES.values() for name in service["environment"]} <= known_variables()


def test_a_worker_ends_with_its_own_exit_code_when_the_others_are_stopped() -> None:
    signals = {name: service.get("stop_signal") for name, service in SERVICES.items()}
    assert signals == {
        "scheduler": None,
        "server-0": None,
        "server-1": None,
        "worker-0": "SIGCONT",
        "worker-1": "SIGCONT",
    }


def test_the_containers_user_can_write_at_home_and_in_the_working_directory() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    created = lines.index("RUN useradd --create-home autobyte && chown autobyte .")
    assert lines.index("WORKDIR /autobyte") < created < lines.index("USER autobyte")


def test_a_service_that_listens_is_healthy() -> None:
    tests = {tuple(service["healthcheck"]["test"]) for service in SERVICES.values()}
    assert len(tests) == 1
    _, python, *arguments = tests.pop()
    assert python == "python"
    with socket.create_server(("127.0.0.1", 0)):
        subprocess.run([sys.executable, *arguments], check=True, timeout=20)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_accepts_the_file() -> None:
    subprocess.run(["docker-compose", "config", "--quiet"], cwd=ROOT, check=True, timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_services_train_a_digit_classifier(tmp_path: Path) -> None:
    here = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = {}
    try:
        for name, service in SERVICES.items():
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **service["environment"], **here}
            with open(tmp_path / name, "wb") as log:
                processes[name] = subprocess.Popen(command(name), cwd=ROOT, env=environment, stdout=log, stderr=log)
        codes = {name: process.wait(timeout=200) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    said = (tmp_path / "worker-0").read_text()
    assert codes == dict.fromkeys(SERVICES, 0), said
    accuracy = re.search(r"^accuracy: (\S+) on 360 held-out digits$", said, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.97
    assert re.search(r"^seconds per step: 0\.\d+ \(660 steps, 2 workers\)$", said, re.MULTILINE)
    assert re.search(r"^bytes moved by this worker: [\d,]{9,} sent, [\d,]{9,} received$", said, re.MULTILINE)
