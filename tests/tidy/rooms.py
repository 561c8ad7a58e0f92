"""The face of a room is the docstring of its package. In 10 to 25 lines it says what the room is,
which modules outsiders may import, and what it promises.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tests.tidy.tree import parsed

FACE_LINES = range(10, 26)


def faceless(sources: Mapping[str, str]) -> list[str]:
    """Packages whose docstring is no face, by path."""
    found = []
    for name, text in sources.items():
        if name.endswith("/__init__.py"):
            docstring = ast.get_docstring(parsed(text)) or ""
            if len(docstring.splitlines()) not in FACE_LINES:
                found.append(name.removesuffix("/__init__.py"))
    return sorted(found)
