"""Reads messages that Apache Kafka serialised by its schemas, as Kafka's JSON shows them.

Only for the dump of Kafka's own internal topics; Tidemark's records are protobuf. A schema is a
tuple of fields in Kafka's order. Flexible versions have compact lengths (KIP-482) and end with
tagged fields. A tagged field with its default value is in neither the bytes nor the JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union
from uuid import UUID

from tidemark.errors import CorruptMessageError
from tidemark.types import uuid_to_text

# A primitive's name, the fields of a struct, or a list of one of them: an array.
Kind = Union[str, "tuple[Field, ...]", "list[Kind]"]
Schema = tuple["Field", ...]

_NUMBERS = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q", "u16": ">H", "bool": ">?"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `since` and `tag` are versions and tag numbers of Kafka's schema."""

    name: str
    kind: Kind
    since: int = 0
    tag: int | None = None


class SchemaReader:
    """Reads one message. Raises CorruptMessageError if it ends early or has an impossible
    length.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """Returns the next `size` bytes."""
        if not 0 <= size <= self.left:
            raise CorruptMessageError(f"a field of {size} bytes where {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def varint(self) -> int:
        """Returns an unsigned variable-length number of 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptMessageError("a variable-length number does not end")

    def length(self, flexible: bool, code: str) -> int:
        """Returns the length of a string, bytes or an array; -1 for null."""
        return self.varint() - 1 if flexible else int(self.number(code))

    def struct(self, schema: Schema, version: int, flexible: bool) -> dict[str, Any]:
        """Returns the fields of one struct in `version`, in the schema's order."""
        found: dict[str, Any] = {}
        present = [field for field in schema if field.since <= version]
        for field in present:
            if field.tag is None:
                found[field.name] = self.value(field.kind, version, flexible)
        if flexible:
            tagged = {field.tag: field for field in present if field.tag is not None}
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                data = self.take(size)
                if tag in tagged:
                    inner = SchemaReader(data)
                    found[tagged[tag].name] = inner.value(tagged[tag].kind, version, True)
        return {field.name: found[field.name] for field in present if field.name in found}

    def value(self, kind: Kind, version: int, flexible: bool) -> Any:
        """Returns one value as a type of JSON."""
        if isinstance(kind, tuple):
            return self.struct(kind, version, flexible)
        if isinstance(kind, list):
            count = self.length(flexible, ">i")
            if count > self.left:
                raise CorruptMessageError(f"an array of {count} where {self.left} bytes are left")
            return (
                None
                if count < 0
                else [self.value(kind[0], version, flexible) for _ in range(count)]
            )
        return self._primitive(kind, flexible)

    def _primitive(self, kind: str, flexible: bool) -> Any:
        if kind == "uuid":
            return uuid_to_text(UUID(bytes=self.take(16)))
        if kind == "str":
            size = self.length(flexible, ">h")
            return None if size < 0 else self.take(size).decode("utf-8", "replace")
        return self.number(_NUMBERS[kind])


def read_all(data: bytes, read: Callable[[SchemaReader], Any]) -> Any:
    """Returns the result of `read` for a message. Raises CorruptMessageError if bytes are left
    after it.
    """
    reader = SchemaReader(data)
    found = read(reader)
    if reader.left:
        raise CorruptMessageError(f"{reader.left} bytes are left behind the message")
    return found
