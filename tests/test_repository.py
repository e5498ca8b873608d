"""What the files around the code promise: settings, commands, layers, links."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import subprocess
from pathlib import Path
from typing import Iterator, Optional

import pytest

from ps.config import Role, Settings

ROOT = Path(__file__).resolve().parent.parent
PLACE = {
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
}


class Recorder(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(PLACE)
        self.asked: set[str] = set()

    def get(self, name: str, default: Optional[str] = None) -> Optional[str]:  # type: ignore[override]
        self.asked.add(name)
        return super().get(name, default)


def known_variables() -> set[str]:
    recorder = Recorder()
    for role in Role:
        Settings.from_env(role, recorder)
    return recorder.asked


def documented_variables() -> dict[str, str]:
    """Return the variables in the table of the docs, and what it calls their defaults."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    return {name: default.strip("`") for name, default in rows}


def console_scripts() -> dict[str, str]:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    return dict(re.split(r"\s*=\s*", line) for line in lines)


def imports(path: Path) -> Iterator[str]:
    """Return the top-level packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


# ----------------------------------------------------------------------------------------------------- settings


def test_every_variable_that_is_read_is_documented_and_the_other_way_round() -> None:
    assert set(documented_variables()) == known_variables()


def test_the_documented_defaults_are_the_real_ones() -> None:
    without = Settings.from_env(Role.WORKER, PLACE)
    words = re.compile(r"required|none|the .*")
    for name, default in documented_variables().items():
        if not words.fullmatch(default):
            assert Settings.from_env(Role.WORKER, {**PLACE, name: default}) == without, name


@pytest.mark.parametrize("name", sorted(PLACE))
def test_what_is_called_required_is(name: str) -> None:
    assert documented_variables()[name] == "required"
    with pytest.raises(ValueError, match=f"{name} is not set"):
        Settings.from_env(Role.WORKER, {key: value for key, value in PLACE.items() if key != name})


# ----------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("command", sorted(console_scripts()))
def test_every_command_leads_to_a_function(command: str) -> None:
    module, function = console_scripts()[command].split(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "scripts").glob("*.sh")))
def test_shell_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / "scripts" / script], check=True, timeout=10)


# ------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [("ps", {"tuner", "scheduler", "mxnet"}), ("tuner", {"scheduler", "mxnet"}), ("scheduler", {"mxnet"})],
)
def test_imports_point_one_way(package: str, forbidden: set[str]) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        allowed = {"mxnet"} if (ROOT / "ps" / "mxnet") in path.parents else set()
        assert not (forbidden - allowed) & set(imports(path)), path


@pytest.mark.parametrize("package", ["ps", "tuner", "scheduler"])
def test_nothing_unpickles(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(imports(path)), path


# -------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target


def test_the_changelog_knows_the_version() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    assert f"\n## {setup['metadata']['version']} " in (ROOT / "CHANGELOG.md").read_text()
