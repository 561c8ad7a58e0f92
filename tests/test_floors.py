"""A rule that the import contracts of pyproject.toml can not express. A client installs
`tidemark/`, so importing any module of it loads no server room.

The commands of the command line reach the server rooms by imports inside functions, which run when
the command runs. Imports for type checking alone do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVER_ROOMS = {"commitlog", "snapshot", "quorum", "tiering", "coordinator", "node"}


def server_imports(text: str) -> list[str]:
    """Server rooms that a module of this text loads when it is imported."""
    found = []
    for name in _loaded_on_import(ast.parse(text).body):
        if name.partition(".")[0] in SERVER_ROOMS:
            found.append(name)
    return found


def _loaded_on_import(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                yield from _loaded_on_import(orelse)
            case _:
                for part in ("body", "orelse", "finalbody", "handlers"):
                    for inner in getattr(statement, part, []):
                        yield from _loaded_on_import(
                            inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                        )


def test_no_module_of_tidemark_loads_a_server_room() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in sorted((ROOT / "tidemark").rglob("*.py"))
        if (names := server_imports(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        ("import node.server\n", ["node.server"]),
        ("from quorum.image import MetadataImage\n", ["quorum.image"]),
        (
            "try:\n    import snapshot\nexcept ImportError:\n    import tiering\n",
            ["snapshot", "tiering"],
        ),
        ("class A:\n    from commitlog import log\n", ["commitlog"]),
        ("def f():\n    import node.server\n", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import node.server\n", []),
        ("import nodes\nfrom tidemark.types import node\n", []),
    ],
)
def test_what_counts_as_loading_a_server_room(text: str, loaded: list[str]) -> None:
    assert server_imports(text) == loaded
