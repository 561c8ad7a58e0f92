#!/usr/bin/env python3
"""Plants small bugs in a module, one at a time, and prints those that no test notices.

    .venv/bin/python scripts/mutate.py quorum/raft/leading.py --tests tests/quorum/raft

A mutant changes one comparison, drops one guard or one part of a condition. Each runs the tests in
a process of its own, forked after their collection: those that enter the changed function, the
fastest first. A survivor is a line without a test, or a mutant that behaves the same. Exit status 1
if any survives. Tables outside of functions stay.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SKIPPED_FUNCTIONS = {"validate", "__repr__"}
CPU_FACTOR, CPU_MIN_S = 3, 3
"""A run that takes this many times the processor time of a clean one has caught its bug."""
TIMEOUT_S = 120
"""The same for a run that waits, by the clock."""


class Sites(ast.NodeVisitor):
    """The conditions of a module: (node, field, position within the field, replacement), and the
    function that each is in."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str, int | None, ast.AST | None]] = []
        self.functions: list[str] = []
        self._scope: list[str] = []

    def visit(self, node: ast.AST) -> None:
        super().visit(node)
        new = len(self.found) - len(self.functions)
        self.functions += [_outermost(".".join(self._scope))] * new

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in SKIPPED_FUNCTIONS:
            return
        self._scope += [node.name, "<locals>"]
        self.generic_visit(node)
        del self._scope[-2:]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._scope += [node.name, "<locals>"]
        self.generic_visit(node)
        del self._scope[-2:]

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion is no behaviour."""

    def visit_Compare(self, node: ast.Compare) -> None:
        for position, operator in enumerate(node.ops):
            self.found.append((node, "ops", position, SWAPPED[type(operator)]()))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        neutral = ast.Constant(isinstance(node.op, ast.And))
        for position in range(len(node.values)):
            self.found.append((node, "values", position, neutral))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.found.append((node, "op", None, None))
        self.generic_visit(node)

    def _guard(self, node: ast.If | ast.IfExp | ast.While) -> None:
        self.found.append((node, "test", None, ast.Constant(False)))
        if not isinstance(node.test, ast.Compare):
            self.found.append((node, "test", None, ast.Constant(True)))
        self.generic_visit(node)

    visit_If = visit_IfExp = _guard

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self.found.append((node, "guard", None, None))
        self.generic_visit(node)


def _outermost(qualname: str) -> str:
    """The function of a module or a class that holds a nested one."""
    return qualname.split(".<locals>")[0]


def mutants(source: str) -> Iterator[tuple[int, str, str, str]]:
    """Yields (line, function, change in words, source) of each mutant."""
    tree = ast.parse(source)
    sites = Sites()
    sites.visit(tree)
    for number in range(len(sites.found)):
        changed = deepcopy(tree)
        found = Sites()
        found.visit(changed)
        node, field, position, replacement = found.found[number]
        before = _text(node)
        if field == "op":  # `not x` becomes `not not x`
            assert isinstance(node, ast.UnaryOp)
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        elif position is None:
            setattr(node, field, replacement)
        else:
            getattr(node, field)[position] = replacement
        ast.fix_missing_locations(changed)
        line = getattr(node, "lineno", getattr(getattr(node, "pattern", None), "lineno", 0))
        change = f"{before}  ->  {_text(node)}"
        yield line, sites.functions[number], change, ast.unparse(changed)


def _text(node: ast.AST) -> str:
    shown = node.test if isinstance(node, ast.If) else node
    text = "if " * isinstance(node, ast.If) + ast.unparse(shown)
    return " ".join(text.split("\n")[0].split())[:110]


def plant(module: ModuleType, source: str) -> None:
    """Gives the functions of an imported module the code of changed source."""
    codes: dict[str, CodeType] = {}
    waiting = [compile(source, str(module.__file__), "exec")]
    while waiting:
        code = waiting.pop()
        codes[code.co_qualname] = code
        waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
    for function in _functions(vars(module), module.__name__):
        if function.__qualname__ in codes:
            function.__code__ = codes[function.__qualname__]


def _functions(namespace: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    for value in list(namespace.values()):
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(vars(value), module)
        for found in (value, *(getattr(value, n, None) for n in ("fget", "fset", "__func__"))):
            if isinstance(found, FunctionType) and found.__module__ == module:
                yield found


class Entered:
    """Which functions of the modules each test enters, and for how long it runs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._of_file = {str(path.resolve()): str(path) for path in paths}
        self._seen: set[str] = set()

    def run(self, run_test: Any) -> tuple[float, list[str]]:
        self._seen = set()
        begun_s = time.process_time()
        sys.setprofile(self._note)
        run_test()
        sys.setprofile(None)
        return time.process_time() - begun_s, sorted(self._seen)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in self._of_file:
            self._seen.add(f"{self._of_file[code.co_filename]}::{_outermost(code.co_qualname)}")


class Mutations:
    """A pytest plugin: in place of one run, it runs the collected tests for each mutant, in a
    process that is forked from here."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.survivors = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        modules = [importlib.import_module(".".join(p.with_suffix("").parts)) for p in self._paths]
        runs = self._clean_run(session)
        by_time = sorted(range(len(runs)), key=lambda number: runs[number][0])
        for path, module in zip(self._paths, modules, strict=True):
            total = survived = 0
            for line, function, change, source in mutants(path.read_text(encoding="utf-8")):
                total += 1
                chosen = [n for n in by_time if f"{path}::{function}" in runs[n][1]]
                cpu_s = CPU_MIN_S + CPU_FACTOR * sum(runs[n][0] for n in chosen)
                items = [session.items[n] for n in chosen]
                if not self._is_caught(session, items, module, source, cpu_s):
                    survived += 1
                    word = "" if chosen else "  (never entered)"
                    print(f"{path}:{line}: {change}{word}", flush=True)
            print(f"# {path}: {survived} of {total} survived", flush=True)
            self.survivors += survived
        return True

    def _clean_run(self, session: pytest.Session) -> list[tuple[float, list[str]]]:
        """Runs all tests without a bug; returns what each took and entered."""
        entered = Entered(self._paths)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _silence()
            runs = [
                entered.run(lambda at=number: _run(session.items, at))
                for number in range(len(session.items))
            ]
            with os.fdopen(writing, "w") as pipe:
                json.dump(None if session.testsfailed else runs, pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found = json.load(pipe)
        os.waitpid(child, 0)
        if found is None:
            raise SystemExit("the tests fail without any bug")
        return [(cpu_s, functions) for cpu_s, functions in found]

    def _is_caught(
        self,
        session: pytest.Session,
        items: Sequence[pytest.Item],
        module: ModuleType,
        source: str,
        cpu_s: float,
    ) -> bool:
        """Whether a test fails, or the tests take too long."""
        child = os.fork()
        if child == 0:
            _silence()
            signal.alarm(TIMEOUT_S)
            signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
            plant(module, source)
            for number in range(len(items)):
                _run(items, number)
                if session.testsfailed:
                    os._exit(1)
            os._exit(0)
        return os.waitpid(child, 0)[1] != 0


def _run(items: Sequence[pytest.Item], number: int) -> None:
    item = items[number]
    following = items[number + 1] if number + 1 < len(items) else None
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _silence() -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("modules", nargs="+", type=Path, help="files to plant bugs in")
    parser.add_argument("--tests", nargs="+", required=True, help="arguments for pytest")
    options = parser.parse_args()
    mutations = Mutations(options.modules)
    arguments = ["-q", "-s", "-p", "no:cacheprovider", *options.tests]
    code = pytest.main(arguments, plugins=[mutations])
    return int(code) or int(mutations.survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
