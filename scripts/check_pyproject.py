"""Checks pyproject.toml against the tree and constraints.txt.

Every dependency has a comment with its purpose and a version in constraints.txt. Every top-level
package is built, type-checked and under the import contract. constraints.txt names neither a path
nor a host. Problems are printed; the exit status is 1 if there are any.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT_ONLY = {"pyspark_tidemark"}  # registers a format with Spark; outside the floors


def distribution(requirement: str) -> str:
    """The normalised name of a requirement: `Foo_Bar[x]>=1` -> `foo-bar`."""
    name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(project: dict[str, object]) -> Iterator[str]:
    """Every requirement of the project and its extras, except itself."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]  # type: ignore[attr-defined,misc]
    for group in groups:
        for requirement in group:  # type: ignore[attr-defined]
            if distribution(requirement) != "tidemark":
                yield requirement


def problems() -> Iterator[str]:
    """The problems, a sentence each."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings = tomllib.loads(text)
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, equals, version = line.partition("==")
            if not equals or "/" in line or "@" in line:
                yield f"constraints.txt: {line!r} is not name==version"
            pins[distribution(name)] = version
    for requirement in requirements(settings["project"]):
        if distribution(requirement) not in pins:
            yield f"{requirement!r} has no version in constraints.txt"
        if not re.search(rf'"{re.escape(requirement)}",\s*# \w', text):
            yield f"{requirement!r} has no comment that says what it is for"
    packages = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"tests"}
    for place, named in (
        ("tool.mypy packages", set(settings["tool"]["mypy"]["packages"])),
        (
            "tool.importlinter root_packages",
            set(settings["tool"]["importlinter"]["root_packages"]) | CLIENT_ONLY,
        ),
        (
            "tool.setuptools packages.find include",
            {n.rstrip("*") for n in settings["tool"]["setuptools"]["packages"]["find"]["include"]},
        ),
    ):
        for package in sorted(packages ^ named):
            yield f"{place}: {package!r} is not in both the tree and the list"


def main() -> int:
    """Returns the exit status: 0 without problems."""
    found = list(problems())
    print("\n".join(found) if found else "pyproject.toml and constraints.txt agree with the tree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
