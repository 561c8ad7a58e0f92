"""The face of a room is the docstring of its package.

In 10 to 25 lines it says what the room is, which modules outsiders may import, and what it
promises. A module that is imported from outside its room is named in the room's face.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.tidy.tree import nodes, parsed

FACE_LINES = range(10, 26)
_PACKAGE = "/__init__.py"


def _face(text: str) -> str:
    return ast.get_docstring(parsed(text)) or ""


def faceless(sources: Mapping[str, str]) -> list[str]:
    """Packages whose docstring is no face, by path."""
    return sorted(
        name.removesuffix(_PACKAGE)
        for name, text in sources.items()
        if name.endswith(_PACKAGE) and len(_face(text).splitlines()) not in FACE_LINES
    )


def _imported(text: str) -> Iterator[str]:
    """Dotted names that a module imports, wherever the import stands."""
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def unnamed(sources: Mapping[str, str]) -> list[str]:
    """Imports of a room's module from outside that the room's face does not name."""
    found = set()
    for name, text in sources.items():
        for dotted in _imported(text):
            module = PurePosixPath(dotted.replace(".", "/") + ".py")
            room = module.parent
            if str(module) not in sources or room in PurePosixPath(name).parents:
                continue
            face = _face(sources.get(f"{room}{_PACKAGE}", ""))
            if not re.search(rf"\b{module.stem}\b", face):
                found.add(f"{name} imports {module}, which the face of {room} does not name")
    return sorted(found)
