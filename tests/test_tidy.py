"""The style of the tree, held by a test: `problems(name, text)` says what is untidy in a file.

Files under 600 lines, functions under 70, lines of at most 100 characters; a docstring in every
module; no bare `except`, no `print` outside the command line, scripts and tests; nothing left to
do; durations named with their unit; no machine's paths and no registry's host anywhere.
Generated stubs are exempt. The checker is itself tested against planted snippets.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_CHARACTERS_MAX = 100

_SKIPPED = {"__pycache__", "build", "dist", "spark-warehouse", "metastore_db", "v1", "golden"}
_TEXT = {".py", ".proto", ".md", ".toml", ".txt", ".yaml", ".yml", ".tpl", ".json", ".sh", ""}
_MAY_PRINT = ("tidemark/cli/", "scripts/", "tests/", "helm/")
_UNITLESS_END = re.compile(r"_(timeout|interval|duration|delay)$")
_PRAGMA = re.compile(r"\s*# (type: ignore|noqa|pragma).*$")
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


def tree_files() -> list[Path]:
    """Every text file of the tree that people write, by path."""
    found: list[Path] = []
    pending = [ROOT]
    while pending:
        for entry in pending.pop().iterdir():
            hidden = entry.name.startswith(".") and entry.name != ".ci"
            if hidden or entry.name in _SKIPPED or entry.name.endswith(".egg-info"):
                continue
            if entry.is_dir():
                pending.append(entry)
            elif entry.suffix in _TEXT:
                found.append(entry)
    return sorted(found)


def text_problems(text: str) -> Iterator[str]:
    """What is wrong with any text of the tree."""
    for number, line in enumerate(text.splitlines(), start=1):
        if _LEFT.search(line):
            yield f"{number}: something is left to do"
        place = _PLACES.search(line)
        if place:
            yield f"{number}: names a place outside the project ({place.group()})"


def _assigned_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that hold values: arguments, attributes and variables where they are bound."""
    for node in ast.walk(tree):
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
    """What is wrong with a Python file called `name` within the tree."""
    lines = text.splitlines()
    if len(lines) >= LINES_MAX:
        yield f"1: {len(lines)} lines, not under {LINES_MAX}"
    for number, line in enumerate(lines, start=1):
        length = len(_PRAGMA.sub("", line))  # as ruff counts
        if length > LINE_CHARACTERS_MAX:
            yield f"{number}: {length} characters, more than {LINE_CHARACTERS_MAX}"
    tree = ast.parse(text)
    if not ast.get_docstring(tree) and (tree.body or not name.startswith("tests/")):
        yield "1: the module has no docstring"
    elif not re.search(r"\w", ast.get_docstring(tree) or "x"):
        yield "1: the module's docstring says nothing"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size >= FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {size} lines, not under {FUNCTION_LINES_MAX}"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{node.lineno}: bare except"
        elif _is_print(node) and not name.startswith(_MAY_PRINT):
            yield f"{node.lineno}: print outside the command line"
    for number, bound in _assigned_names(tree):
        plain = bound.lower().strip("_")
        if _UNITLESS_END.search(plain):
            yield f"{number}: {bound} is a duration without its unit: end it in _ms or _s"


def problems(name: str, text: str) -> list[str]:
    """Everything wrong with the file `name` (relative to the root, with slashes)."""
    found = list(text_problems(text))
    if name.endswith(".py"):
        found += python_problems(name, text)
    return [f"{name}:{problem}" for problem in found]


def test_the_tree_is_tidy() -> None:
    found: list[str] = []
    for path in tree_files():
        name = path.relative_to(ROOT).as_posix()
        found += problems(name, path.read_text(encoding="utf-8"))
    assert not found, f"{len(found)} untidy places:\n" + "\n".join(found)


def _function_of(lines: int) -> str:
    return '"""Says."""\ndef long():\n' + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "no docstring"),
        ('"""."""\n', "says nothing"),
        ('"""Says."""\n' + "x = 1\n" * 599, "600 lines"),
        (_function_of(70), "long has 70 lines"),
        (f'"""Says."""\nx = "{"a" * 95}"\n', "101 characters"),
        ('"""Says."""\ntry:\n    x = 1\nexcept:\n    x = 2\n', "bare except"),
        ('"""Says."""\nprint(1)\n', "print outside"),
        ('"""Says."""\n# TO' + "DO: later\n", "left to do"),
        ('"""Says."""\ndef f(fetch_timeout): ...\n', "without its unit"),
        ('"""Says."""\nclass A:\n    retry_delay: int = 1\n', "without its unit"),
        ('"""Says."""\nx = "/wo' + 'rk/main"\n', "outside the project"),
        ('"""Says."""\nx = "files.pythonho' + 'sted.org"\n', "outside the project"),
    ],
)
def test_a_planted_fault_is_found(text: str, said: str) -> None:
    found = problems("tidemark/planted.py", text)
    assert len(found) == 1 and said in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tidemark/a.py", _function_of(69)),
        ("tidemark/a.py", '"""Says."""\n' + "x = 1\n" * 598),
        ("tidemark/cli/a.py", '"""Says."""\nprint(1)\n'),
        ("tidemark/a.py", '"""Says."""\ndef f(fetch_timeout_ms, timeout=None): ...\n'),
        ("tests/a/__init__.py", ""),
        ("helm/tidemark/values.yaml", "dataDir: /var/lib/tidemark\n"),
    ],
)
def test_what_is_allowed_passes(name: str, text: str) -> None:
    assert problems(name, text) == []
