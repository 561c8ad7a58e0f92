"""Style of single files.

Files have under 600 lines, functions under 70. Lines have at most 100 characters, prose included.
Every module has a docstring. There is no bare `except`, nothing left to do, no path of a machine
and no host of a registry. Only the command line, scripts and tests print. Durations are named with
their unit. Generated stubs are exempt.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.tree import nodes, parsed

LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_CHARACTERS_MAX = 100

GENERATED_PROSE = ("tests/sim/CANARIES.md",)
"""Written by `python -m tests.sim.canary_table`."""

_MAY_PRINT = ("tidemark/cli/", "scripts/", "tests/", "helm/")
_UNITLESS_END = re.compile(r"_(timeout|interval|duration|delay)$")
_PRAGMA = re.compile(r"\s*# (type: ignore|noqa|pragma).*$")
_URL = re.compile(r"https?://\S+")
_LEFT = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
# Written in pieces, so that this file does not name what it forbids.
_PLACES = re.compile(
    "|".join(
        (
            r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot)/",
            r"(?<![\w.])/home/[a-z]",
            r"(?<![\w.])/Use" + r"rs/[A-Za-z]",
            "py" + r"pi\.org",
            "pythonho" + r"sted\.org",
            r"proxy\.go" + r"lang\.org",
            r"registry\.np" + r"mjs\.org",
            r"repo1?\.ma" + r"ven\.(org|apache\.org)",
        )
    )
)


def text_problems(text: str) -> Iterator[str]:
    """Faults of any text of the tree."""
    for number, line in enumerate(text.splitlines(), start=1):
        if _LEFT.search(line):
            yield f"{number}: something is left to do"
        place = _PLACES.search(line)
        if place:
            yield f"{number}: names a place outside the project ({place.group()})"


def prose_problems(text: str) -> Iterator[str]:
    """Lines of a Markdown file that are too long; tables and code count, addresses do not."""
    for number, line in enumerate(text.splitlines(), start=1):
        length = len(_URL.sub("", line))
        if length > LINE_CHARACTERS_MAX:
            yield f"{number}: {length} characters, more than {LINE_CHARACTERS_MAX}"


def _assigned_names(text: str) -> Iterator[tuple[int, str]]:
    """Names that hold values: arguments, attributes and variables where they are bound."""
    for node in nodes(text):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _is_print(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    )


def python_problems(name: str, text: str) -> Iterator[str]:
    """Faults of a Python file called `name` within the tree."""
    lines = text.splitlines()
    if len(lines) >= LINES_MAX:
        yield f"1: {len(lines)} lines, not under {LINES_MAX}"
    for number, line in enumerate(lines, start=1):
        length = len(_PRAGMA.sub("", line))  # as ruff counts
        if length > LINE_CHARACTERS_MAX:
            yield f"{number}: {length} characters, more than {LINE_CHARACTERS_MAX}"
    tree = parsed(text)
    if not ast.get_docstring(tree) and (tree.body or not name.startswith("tests/")):
        yield "1: the module has no docstring"
    elif not re.search(r"\w", ast.get_docstring(tree) or "x"):
        yield "1: the module's docstring says nothing"
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size >= FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {size} lines, not under {FUNCTION_LINES_MAX}"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{node.lineno}: bare except"
        elif _is_print(node) and not name.startswith(_MAY_PRINT):
            yield f"{node.lineno}: print outside the command line"
    for number, bound in _assigned_names(text):
        plain = bound.lower().strip("_")
        if bound.startswith("INVALID_"):  # an error's name
            continue
        if _UNITLESS_END.search(plain):
            yield f"{number}: {bound} is a duration without its unit: end it in _ms or _s"


def problems(name: str, text: str) -> list[str]:
    """Faults of the file `name` (relative to the root, with slashes)."""
    found = list(text_problems(text))
    if name.endswith(".py"):
        found += python_problems(name, text)
    elif name.endswith(".md") and name not in GENERATED_PROSE:
        found += prose_problems(text)
    return [f"{name}:{problem}" for problem in found]
