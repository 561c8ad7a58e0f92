"""Entries of the small text files of a log directory: checkpoints, properties, and JSON files.

A malformed line is reported with the byte at which it begins, and the lines after it are shown too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from commitlog.disk.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA
from commitlog.dump.index import damage

Entry = dict[str, Any]
PROPERTIES = (META_PROPERTIES, PARTITION_METADATA)
JSON_FILES = (CLEAN_SHUTDOWN, "quorum-state")
_VERSION = b"0"


def checkpoint_entries(name: str, data: bytes) -> Iterator[Entry]:
    """Yields the lines of a checkpoint of offsets or of epochs: version, count, then one line
    each.
    """
    lines = data.splitlines(keepends=True)
    if not lines or lines[0].strip() != _VERSION:
        said = _text(lines[0]) if lines else ""
        yield damage(name, 0, len(data), f"version {said!r}; expected 0")
        return
    position = len(lines[0])
    if len(lines) < 2 or not lines[1].strip().isdigit():
        yield damage(name, position, len(data) - position, "no count of entries")
        return
    announced, found = int(lines[1]), 0
    position += len(lines[1])
    for line in lines[2:]:
        entry = _checkpoint_line(line)
        if entry is None and line.strip():
            yield damage(name, position, len(line), f"{_text(line)!r} is no entry")
        elif not line.endswith(b"\n"):
            yield damage(name, position, len(line), f"{_text(line)!r} is a line without its end")
        elif entry is not None:
            yield entry
        found += bool(line.strip())
        position += len(line)
    if found != announced:
        reason = f"{announced} entries are announced, and {found} are there"
        yield damage(name, len(lines[0]), len(lines[1]), reason)


def _checkpoint_line(line: bytes) -> Entry | None:
    fields = _text(line).split()
    try:
        if len(fields) == 2:
            return {"kind": "epoch", "epoch": int(fields[0]), "start_offset": int(fields[1])}
        topic, partition, offset = fields
        return {
            "kind": "checkpoint",
            "topic": topic,
            "partition": int(partition),
            "offset": int(offset),
        }
    except ValueError:
        return None


def property_entries(name: str, data: bytes) -> Iterator[Entry]:
    """Yields `key=value` lines of meta.properties, `key: value` lines of partition.metadata."""
    separator = b":" if name == PARTITION_METADATA else b"="
    position = 0
    for line in data.splitlines(keepends=True):
        key, found, value = line.partition(separator)
        if found and not key.startswith(b"#"):
            yield {"kind": "property", "key": _text(key), "value": _text(value)}
        elif line.strip() and not line.startswith(b"#"):
            shape = f"key{separator.decode()}value"
            yield damage(name, position, len(line), f"{_text(line)!r} is not {shape}")
        position += len(line)


def json_entries(name: str, data: bytes) -> Iterator[Entry]:
    """Yields the fields of a file that is one JSON object."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        yield damage(name, position, len(data) - position, f"no JSON object: {error}")
        return
    for key, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        yield {"kind": "property", "key": key, "value": text}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()
