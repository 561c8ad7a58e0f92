"""The wheel holds the rooms and nothing else, and declares the imports of their modules."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.wheel.environment import ROOT, Environment
from tidemark import __version__

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = {name.rstrip("*") for name in SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"]}


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_the_rooms_at_its_top_and_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == ROOMS
    assert {"tidemark", "commitlog", "snapshot", "quorum", "tiering", "node"} < ROOMS


def test_every_module_and_every_type_stub_is_in_the_wheel(wheel: Path) -> None:
    suffixes = {".py", ".pyi", ".typed", ".html", ".css", ".js", ".svg"}
    own = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.suffix in suffixes or path.name == "py.typed"
    }
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == own


def test_the_wheel_has_the_version_of_the_package(wheel: Path) -> None:
    assert wheel.name == f"tidemark-{__version__}-py3-none-any.whl"


def test_the_wheel_carries_the_license_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (license_file,) = (name for name in archive.namelist() if name.endswith("LICENSE"))
        assert archive.read(license_file) == (ROOT / "LICENSE").read_bytes()
        (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert b"tidemark = tidemark.cli.main:run" in archive.read(points)


def test_no_other_distribution_owns_a_top_level_name(everything: Environment) -> None:
    script = (
        "import json, importlib.metadata as m; print(json.dumps(dict(m.packages_distributions())))"
    )
    owners = json.loads(everything.output("python", "-c", script))
    assert {room: owners[room] for room in ROOMS} == {room: ["tidemark"] for room in ROOMS}


def imported(path: Path) -> set[str]:
    """Top-level names of all imports of a module, wherever they stand."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


def declared(*extras: str) -> set[str]:
    """Distributions that a plain install and these extras name."""
    project = SETTINGS["project"]
    texts = [*project["dependencies"]]
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(text).name) for text in texts}


@pytest.mark.parametrize(
    ("rooms", "extras"),
    [
        (["tidemark/client", "tidemark/records", "tidemark/wire", "tidemark/config"], []),
        (["tidemark/spark", "pyspark_tidemark"], ["spark", "typed", "iceberg"]),
        (["tidemark/cli", "commitlog", "snapshot", "quorum", "tiering", "node"], ["server"]),
    ],
)
def test_a_room_imports_only_what_its_extra_declares(rooms: list[str], extras: list[str]) -> None:
    owners = packages_distributions()
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            for name in imported(path) - ROOMS - sys.stdlib_module_names:
                owned_by = {canonicalize_name(owner) for owner in owners[name]}
                assert owned_by & declared(*extras), f"{path} imports {name}"
