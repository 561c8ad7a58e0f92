"""The record batch header has one home, `tidemark/records/header.py`: no other module defines its
sizes and positions, or a struct format that reads its fields."""

from __future__ import annotations

import ast
import re
import struct

from tests.tidy.tree import parsed

HOME = "tidemark/records/header.py"
_LAYOUT = ">qiibIhiqqqhii"
_NUMBERS = {61, 12, 17, 21}  # header, base offset and length, position of the CRC, what it covers
OTHER_THINGS = {
    "commitlog/segment/indexes.py:OFFSET_ENTRY": "an entry of the offset index",
    "commitlog/segment/indexes.py:TIME_ENTRY": "an entry of the time index",
    "coordinator/records/transaction_codec.py:_TIMES": "two times of a transaction",
    "snapshot/writer.py:_RECORD_OVERHEAD_BYTES": "bytes that a record adds to its value",
}
"""Definitions that look alike, and what they are."""


def _fields(layout: str) -> list[tuple[int, str]]:
    """(offset, code) of each field of a big-endian struct format; pads have none."""
    found, at = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z?])", layout):
        size = struct.calcsize(">" + code)
        for _ in range(int(count or 1)):
            if code != "x":
                found.append((at, code))
            at += size
    return found


def reads_header(layout: str) -> bool:
    """Whether a format of several fields, or of one behind a pad, lies over fields of the
    header."""
    if not layout.startswith(">"):
        return False
    fields, header = _fields(layout), _fields(_LAYOUT)
    if not fields or (len(fields) == 1 and "x" not in layout):
        return False
    starts = [0] if "x" in layout else [at for at, _ in header]
    return any(all((start + at, code) in header for at, code in fields) for start in starts)


def _is_format(value: ast.expr | None) -> bool:
    """Whether an expression makes a struct of the header's fields."""
    for node in ast.walk(value) if value is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("struct.Struct", "Struct"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and reads_header(str(first.value)):
                return True
    return False


def defined(name: str, text: str) -> list[str]:
    """`path:NAME` of each definition at the top of a module that belongs into the header's home."""
    found = []
    for statement in parsed(text).body if name != HOME else ():
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        value = statement.value
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        number = isinstance(value, ast.Constant) and type(value.value) is int
        if (number and value.value in _NUMBERS) or _is_format(value):  # type: ignore[union-attr]
            found += [f"{name}:{ast.unparse(target)}" for target in targets]
    return [place for place in found if place not in OTHER_THINGS]
