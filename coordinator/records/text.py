"""Keys and values of the internal topics as JSON, in the words of Kafka's dump tool.

Those of `--offsets-decoder` and of `--transaction-log-decoder`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from coordinator.records.types import RecordType, RecordTypes
from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_schema import SchemaReader, read_all

NULL_VALUE = "<DELETE>"


def decoder(
    types: RecordTypes,
) -> Callable[[bytes | None, bytes | None], tuple[str | None, str]]:
    """Returns a function from the bytes of key and value to their texts. It raises
    CorruptMessageError."""

    def texts(key: bytes | None, value: bytes | None) -> tuple[str | None, str]:
        if key is None:
            raise CorruptMessageError("the record has no key")
        number = int(SchemaReader(key).number(">h"))
        found = types.by_number.get(number)
        if found is None:
            return _json({"type": str(number), "data": "unknown"}), _unknown(value)
        fields = read_all(key[2:], lambda reader: reader.value(found.key, 0, False))
        return _json({"type": str(number), "data": fields}), _value_text(found, value)

    return texts


def _value_text(found: RecordType, value: bytes | None) -> str:
    if value is None:
        return NULL_VALUE
    version = int(SchemaReader(value).number(">h"))
    if not 0 <= version <= found.highest:
        return _unknown(value)
    is_flexible = version >= found.flexible_since
    fields = read_all(value[2:], lambda reader: reader.value(found.value, version, is_flexible))
    return _json({"version": str(version), "data": fields})


def _unknown(value: bytes | None) -> str:
    if value is None:
        return NULL_VALUE
    return _json({"version": str(SchemaReader(value).number(">h")), "data": "unknown"})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
