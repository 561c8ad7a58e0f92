"""Messages that Apache Kafka describes by schemas: read and written byte for byte.

Kafka's internal topics hold them. A schema is a tuple of fields in Kafka's order. Flexible versions
have compact lengths (KIP-482) and end with tagged fields. A tagged field with its default value is
not in the bytes. A reader makes either Kafka's JSON (`SchemaReader`), or the classes that the
schema names (`ObjectReader`); `write` takes objects of those.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Union
from uuid import UUID

from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_codec import append_uvarint
from tidemark.types import ZERO_UUID, uuid_to_text

# A primitive's name, the fields of a struct, or a list of one of them: an array.
Kind = Union[str, "tuple[Field, ...]", "Struct", "list[Kind]"]
Schema = tuple["Field", ...]

_NUMBERS = {
    name: struct.Struct(code)
    for name, code in (
        ("i8", ">b"),
        ("i16", ">h"),
        ("i32", ">i"),
        ("i64", ">q"),
        ("u16", ">H"),
        ("bool", ">?"),
    )
}
_I16, _I32 = _NUMBERS["i16"], _NUMBERS["i32"]
_DEFAULTS: dict[str, Any] = {"str": "", "bytes": b"", "uuid": ZERO_UUID, "bool": False}
_MISSING: Any = object()


@cache
def _in_python(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `since`, `until` and `tag` are versions and tag numbers of Kafka's schema.

    `default` is the value of a field that a version does not have: by default 0, or empty. `unit`
    ends its name in Python.
    """

    name: str
    kind: Kind
    since: int = 0
    tag: int | None = None
    until: int = 32767
    default: Any = _MISSING
    unit: str = ""

    @property
    def attribute(self) -> str:
        """The field's name in Python."""
        return _in_python(self.name) + self.unit

    @property
    def default_value(self) -> Any:
        if self.default is not _MISSING:
            return self.default
        if isinstance(self.kind, list):
            return ()
        return _DEFAULTS.get(self.kind, 0) if isinstance(self.kind, str) else None

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until


@dataclass(frozen=True, slots=True)
class Struct:
    """The fields of a struct, and the class of its objects: one argument for each field, by name.
    Arrays become tuples. One that is `nullable` is of a tagged field, and begins with 0 or 1."""

    make: Callable[..., Any]
    fields: Schema
    nullable: bool = False


class SchemaReader:
    """Reads one message as Kafka's JSON shows it. Raises CorruptMessageError if it ends early or
    has an impossible length.
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
        present = [field for field in schema if field.is_in(version)]
        for field in present:
            if field.tag is None:
                found[field.name] = self.value(field.kind, version, flexible)
        if flexible:
            tagged = {field.tag: field for field in present if field.tag is not None}
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                data = self.take(size)
                if tag in tagged:
                    inner = type(self)(data)
                    found[tagged[tag].name] = inner.value(tagged[tag].kind, version, True)
        return {field.name: found[field.name] for field in present if field.name in found}

    def value(self, kind: Kind, version: int, flexible: bool) -> Any:
        """Returns one value as a type of JSON."""
        if isinstance(kind, Struct):
            if kind.nullable and not self.varint():
                return None
            kind = kind.fields
        if isinstance(kind, tuple):
            return self.struct(kind, version, flexible)
        if isinstance(kind, list):
            count = self.length(flexible, ">i")
            if count > self.left:
                raise CorruptMessageError(f"an array of {count} where {self.left} bytes are left")
            return None if count < 0 else self.array(kind[0], count, version, flexible)
        return self._primitive(kind, flexible)

    def array(self, kind: Kind, count: int, version: int, flexible: bool) -> Any:
        return [self.value(kind, version, flexible) for _ in range(count)]

    def _primitive(self, kind: str, flexible: bool) -> Any:
        if kind == "uuid":
            return self.uuid(self.take(16))
        if kind in ("str", "bytes"):
            size = self.length(flexible, ">h" if kind == "str" else ">i")
            if size < 0:
                return None
            return self.text(self.take(size)) if kind == "str" else self.bytes(self.take(size))
        return self.number(_NUMBERS[kind].format)

    def uuid(self, data: bytes) -> Any:
        return uuid_to_text(UUID(bytes=data))

    def text(self, data: bytes) -> str:
        return data.decode("utf-8", "replace")

    def bytes(self, data: bytes) -> Any:
        """Kafka's JSON has bytes in base64."""
        from base64 import b64encode

        return b64encode(data).decode()


class ObjectReader(SchemaReader):
    """Reads one message as objects of the classes that its schema names."""

    def value(self, kind: Kind, version: int, flexible: bool) -> Any:
        if not isinstance(kind, Struct):
            return super().value(kind, version, flexible)
        if kind.nullable and not self.varint():
            return None
        found = self.struct(kind.fields, version, flexible)
        return kind.make(
            **{field.attribute: found.get(field.name, field.default_value) for field in kind.fields}
        )

    def array(self, kind: Kind, count: int, version: int, flexible: bool) -> Any:
        return tuple(super().array(kind, count, version, flexible))

    def uuid(self, data: bytes) -> UUID:
        return UUID(bytes=data)

    def text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CorruptMessageError(f"a string is no UTF-8: {error}") from None

    def bytes(self, data: bytes) -> bytes:
        return data


def read_all(data: bytes, read: Callable[[SchemaReader], Any]) -> Any:
    """Returns the result of `read` for a message. Raises CorruptMessageError if bytes are left
    after it.
    """
    return _whole(SchemaReader(data), read)


def read_object(data: bytes, read: Callable[[ObjectReader], Any]) -> Any:
    """As `read_all`, with objects."""
    return _whole(ObjectReader(data), read)


def _whole(reader: Any, read: Callable[[Any], Any]) -> Any:
    found = read(reader)
    if reader.left:
        raise CorruptMessageError(f"{reader.left} bytes are left behind the message")
    return found


def write(out: bytearray, kind: Kind, value: Any, version: int, flexible: bool) -> None:
    """Appends a value. Raises ValueError for a field with a value that `version` can not keep."""
    if isinstance(kind, Struct):
        if kind.nullable:
            out.append(0 if value is None else 1)
        if value is not None or not kind.nullable:
            _write_struct(out, kind.fields, value, version, flexible)
    elif isinstance(kind, list):
        _write_length(out, None if value is None else len(value), flexible, _I32)
        for item in value or ():
            write(out, kind[0], item, version, flexible)
    elif kind == "uuid":
        out += value.bytes
    elif kind in ("str", "bytes"):
        data = value.encode() if isinstance(value, str) else value
        size = None if data is None else len(data)
        _write_length(out, size, flexible, _I16 if kind == "str" else _I32)
        out += data or b""
    else:
        assert isinstance(kind, str), "structs of objects have a class"
        out += _NUMBERS[kind].pack(value)


def _write_struct(out: bytearray, fields: Schema, value: Any, version: int, flexible: bool) -> None:
    tagged: list[tuple[int, bytes]] = []
    for field in fields:
        found = getattr(value, field.attribute)
        if not field.is_in(version):
            if found != field.default_value:
                raise ValueError(f"version {version} has no {field.name}, which is {found!r}")
        elif field.tag is None:
            write(out, field.kind, found, version, flexible)
        elif found != field.default_value:
            inner = bytearray()
            write(inner, field.kind, found, version, True)
            tagged.append((field.tag, bytes(inner)))
    if not flexible:
        return
    append_uvarint(out, len(tagged))
    for tag, data in sorted(tagged):
        append_uvarint(out, tag)
        append_uvarint(out, len(data))
        out += data


def _write_length(out: bytearray, size: int | None, flexible: bool, number: struct.Struct) -> None:
    if flexible:
        append_uvarint(out, 0 if size is None else size + 1)
    else:
        out += number.pack(-1 if size is None else size)
