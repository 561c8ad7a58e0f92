"""The settings value.format and value.schema of a topic: what its values are, for who reads them.

Nodes never look into values. They refuse a schema of which no reader can make columns. They check
JSON Schema and Protobuf wholly, and an Avro schema by its outer shape.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from tidemark.errors import InvalidConfigError

FORMATS = ("json", "avro", "protobuf")
SCHEMA_CHARS_MAX = 65_536  # it is in the metadata log, and in each image of it
_DEPTH_MAX = 32
_PLAIN = ("string", "integer", "number", "boolean")
_TIME = "date-time"

JsonKind = str | list["JsonKind"] | dict[str, "JsonKind"]  # type: ignore[misc]
"""A name of a type, a list with the kind of its items, or an object's properties."""


def check_value_schema(value_format: str, schema: str, message: str) -> None:
    """Raises InvalidConfigError unless the three settings have a meaning together."""
    if len(schema) > SCHEMA_CHARS_MAX:
        raise InvalidConfigError(
            f"value.schema has {len(schema)} characters; {SCHEMA_CHARS_MAX} are allowed"
        )
    if bool(value_format) != bool(schema):
        raise InvalidConfigError("value.format and value.schema belong together: set both, or none")
    if (value_format == "protobuf") != bool(message):
        raise InvalidConfigError(
            "value.schema.message names the message of value.format=protobuf, and of no other"
        )
    if value_format == "json":
        json_kind(schema)
    elif value_format == "avro":
        _check_avro(schema)
    elif value_format == "protobuf":
        check_descriptors(descriptors_of(schema), message)


def json_kind(schema: str) -> JsonKind:
    """The kind of an object by a JSON Schema. Raises InvalidConfigError for another one."""
    kind = _kind(_parsed(schema), "", 0)
    if not isinstance(kind, dict):
        raise InvalidConfigError('value.schema: a value is an object: {"type":"object", ...}')
    return kind


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"value.schema is no JSON: {error}") from None


def _kind(schema: Any, where: str, depth: int) -> JsonKind:
    """The kind of a part of a JSON Schema: type, properties, items, and the format of times."""
    shown = where or "the schema"
    if depth > _DEPTH_MAX:
        raise InvalidConfigError(f"value.schema: {shown} is nested more than {_DEPTH_MAX} deep")
    if not isinstance(schema, dict):
        raise InvalidConfigError(f"value.schema: {shown} is not an object of JSON Schema")
    named = schema.get("type")
    names = [name for name in (named if isinstance(named, list) else [named]) if name != "null"]
    name = names[0] if len(names) == 1 else None
    if name in _PLAIN:
        form = schema.get("format")
        return _TIME if name == "string" and form == _TIME else name
    if name == "array":
        return [_kind(schema.get("items"), f"{where}[]", depth + 1)]
    fields = schema.get("properties")
    if name == "object" and isinstance(fields, dict) and fields:
        return {key: _kind(each, f"{where}.{key}", depth + 1) for key, each in fields.items()}
    raise InvalidConfigError(
        f"value.schema: {shown} has no column: its type is one of {', '.join(_PLAIN)}, an array"
        " with items, or an object with properties; also null"
    )


def _check_avro(schema: str) -> None:
    found = _parsed(schema)
    is_record = isinstance(found, dict) and found.get("type") == "record" and found.get("name")
    fields = found.get("fields") if is_record else None
    if not isinstance(fields, list) or not all(
        isinstance(each, dict) and "name" in each and "type" in each for each in fields
    ):
        raise InvalidConfigError(
            'value.schema: an Avro value is {"type":"record","name":...,"fields":[...]}, each field'
            " with name and type"
        )


def descriptors_of(schema: str) -> bytes:
    """The FileDescriptorSet in base64. Raises InvalidConfigError."""
    try:
        return base64.b64decode(schema, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidConfigError(
            f"value.schema of protobuf is a FileDescriptorSet in base64: {error}"
        ) from None


def check_descriptors(descriptors: bytes, message: str) -> None:
    """Raises InvalidConfigError unless they are whole, and have the message."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    try:
        for each in FileDescriptorSet.FromString(descriptors).file:
            pool.Add(each)
        pool.FindMessageTypeByName(message)
    except (DecodeError, TypeError) as error:
        raise InvalidConfigError(
            f"value.schema is no FileDescriptorSet with all imports: {error}"
        ) from None
    except KeyError:
        raise InvalidConfigError(f"value.schema has no message {message!r}") from None
