"""Keys and values of the internal topics as JSON, in the words of Kafka's dump tool.

Those of `--offsets-decoder` and of `--transaction-log-decoder`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from coordinator.records.groups import GroupMetadataKey
from coordinator.records.types import RecordType, RecordTypes
from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_schema import Field, Schema, SchemaReader, read_all

NULL_VALUE = "<DELETE>"
_ESCAPE = re.compile(r"\\u00[0-9a-f]{2}|\\.")  # an escaped backslash begins no other escape

# ConsumerProtocolSubscription and ConsumerProtocolAssignment.
_CONSUMER_PROTOCOL = 3
_PARTITIONS: Schema = (Field("topic", "str"), Field("partitions", ["i32"]))
_SUBSCRIPTION: Schema = (
    Field("topics", ["str"]),
    Field("userData", "bytes"),
    Field("ownedPartitions", [_PARTITIONS], since=1),
    Field("generationId", "i32", since=2),
    Field("rackId", "str", since=3),
)
_ASSIGNMENT: Schema = (Field("assignedPartitions", [_PARTITIONS]), Field("userData", "bytes"))


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
    if found.key.make is GroupMetadataKey:
        fields = _with_classic_members(fields)
    return _json({"version": str(version), "data": fields})


def _with_classic_members(group: dict[str, Any]) -> dict[str, Any]:
    """A classic group with its members' subscriptions and assignments, which are messages of the
    consumers' own protocol."""
    if group["protocolType"] != "consumer":
        return group
    for member in group["members"]:
        for name, schema in (("subscription", _SUBSCRIPTION), ("assignment", _ASSIGNMENT)):
            member[name] = _of_consumers(member[name], schema)
    return group


def _of_consumers(encoded: str, schema: Schema) -> Any:
    """The fields of a message, or the base64 that it is not."""

    def read(reader: SchemaReader) -> dict[str, Any]:
        version = min(int(reader.number(">h")), _CONSUMER_PROTOCOL)
        return reader.struct(schema, version, False)

    try:
        return read_all(b64decode(encoded), read)
    except CorruptMessageError:
        return encoded


def _unknown(value: bytes | None) -> str:
    if value is None:
        return NULL_VALUE
    return _json({"version": str(SchemaReader(value).number(">h")), "data": "unknown"})


def _json(value: dict[str, Any]) -> str:
    """JSON with the digits of escapes as Kafka's tool has them: \\u001F."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), text)
