"""The files of the tree, and an index of its own modules and classes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "tidemark",
    "commitlog",
    "snapshot",
    "quorum",
    "tiering",
    "coordinator",
    "node",
    "pyspark_tidemark",
)

_SKIPPED = {"__pycache__", "build", "dist", "spark-warehouse", "metastore_db", "golden"}
_GENERATED = ROOT / "tidemark" / "v1"
_TEXT = {".py", ".proto", ".md", ".toml", ".txt", ".yaml", ".yml", ".tpl", ".json", ".sh", ""}


def tree_files() -> list[Path]:
    """Every text file of the tree that people write, sorted by path."""
    found: list[Path] = []
    pending = [ROOT]
    while pending:
        for entry in pending.pop().iterdir():
            hidden = entry.name.startswith(".") and entry.name != ".ci"
            hidden = hidden or entry == _GENERATED
            if hidden or entry.name in _SKIPPED or entry.name.endswith(".egg-info"):
                continue
            if entry.is_dir():
                pending.append(entry)
            elif entry.suffix in _TEXT:
                found.append(entry)
    return sorted(found)


@functools.cache
def texts() -> dict[str, str]:
    """Text of every file of the tree by its path relative to the root, with slashes."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in tree_files()
    }


@functools.cache
def parsed(text: str) -> ast.Module:
    """The syntax tree of a Python text."""
    return ast.parse(text)


@functools.cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a Python text."""
    return tuple(ast.walk(parsed(text)))


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those of attributes and constants included."""
    for node in nodes(text):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    yield statement.lineno, value


@dataclass
class ClassInfo:
    """Shape of one class: the names of its methods and attributes, and its bases as written."""

    module: str
    name: str
    line: int
    bases: list[str]
    methods: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)

    @property
    def public_methods(self) -> list[str]:
        return sorted(name for name in self.methods if not name.startswith("_"))

    @property
    def members(self) -> set[str]:
        return self.methods | self.attributes | self.constants


def _describe(module: str, node: ast.ClassDef) -> ClassInfo:
    info = ClassInfo(module, node.name, node.lineno, [ast.unparse(base) for base in node.bases])
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            info.methods.add(statement.name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            info.attributes.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            names = [
                n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)
            ]
            slots = "__slots__" in names and isinstance(statement.value, ast.Tuple | ast.List)
            info.constants.update(names)
            if slots:
                texts = [e.value for e in statement.value.elts if isinstance(e, ast.Constant)]  # type: ignore[attr-defined]
                info.attributes.update(str(text) for text in texts)
        elif isinstance(statement, ast.ClassDef):
            info.constants.add(statement.name)
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            info.attributes.add(inner.attr)
    return info


def classes_of(module: str, text: str) -> list[ClassInfo]:
    """Classes of a Python file, nested ones included."""
    return [_describe(module, node) for node in nodes(text) if isinstance(node, ast.ClassDef)]


def is_own(name: str) -> bool:
    """Whether a path is a Python file of one of the rooms, not of tests or scripts."""
    return name.endswith(".py") and name.split("/")[0] in ROOMS


@functools.cache
def own_sources() -> dict[str, str]:
    """Python files of the rooms by path."""
    return {name: text for name, text in texts().items() if is_own(name)}


@functools.cache
def own_classes() -> list[ClassInfo]:
    """All classes of the rooms."""
    return [info for name, text in own_sources().items() for info in classes_of(name, text)]


@functools.cache
def all_classes() -> dict[str, list[ClassInfo]]:
    """Classes of the whole tree, tests and scripts included, by name."""
    found: dict[str, list[ClassInfo]] = {}
    for name, text in texts().items():
        if name.endswith(".py"):
            for info in classes_of(name, text):
                found.setdefault(info.name, []).append(info)
    return found
