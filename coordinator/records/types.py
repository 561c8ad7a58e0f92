"""A type of coordinator records, and the bytes of its keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_schema import ObjectReader, SchemaReader, Struct, read_object, write


class FastCodec(Protocol):
    """A faster way for the records of one type, `number`; None for what the schemas have to do."""

    number: int

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes] | None: ...

    def decode(self, key: bytes, value: bytes) -> tuple[Any, Any] | None: ...


class UnknownRecordError(CorruptMessageError):
    """The record is of a type or version that a newer release wrote."""


@dataclass(frozen=True, slots=True)
class RecordType:
    """A type: its number, its schemas, and the versions of its value.

    `written` is the version that Kafka 4.3 writes; versions from `flexible_since` on are flexible.
    Keys are never flexible.
    """

    number: int
    key: Struct
    value: Struct
    highest: int = 0
    written: int = 0
    flexible_since: int = 0

    def encode_key(self, key: Any) -> bytes:
        out = bytearray(self.number.to_bytes(2, "big"))
        write(out, self.key, key, 0, False)
        return bytes(out)

    def encode_value(self, value: Any, version: int | None = None) -> bytes:
        """Raises ValueError if the version has no place for what the value has."""
        chosen = self.written if version is None else version
        out = bytearray(chosen.to_bytes(2, "big"))
        write(out, self.value, value, chosen, chosen >= self.flexible_since)
        return bytes(out)

    def decode_value(self, data: bytes) -> Any:
        """Raises UnknownRecordError for a newer version, CorruptMessageError for wrong bytes."""

        def read(reader: ObjectReader) -> Any:
            version = reader.number(">h")
            if not 0 <= version <= self.highest:
                raise UnknownRecordError(
                    f"{self.value.make.__name__} has version {version}; {self.highest} is known"
                )
            return reader.value(self.value, version, version >= self.flexible_since)

        return read_object(data, read)


class RecordTypes:
    """The types of one topic, by number and by the class of their keys."""

    def __init__(self, types: Iterable[RecordType], fast: FastCodec | None = None) -> None:
        self._fast = fast
        self._fast_type = b"" if fast is None else fast.number.to_bytes(2, "big")
        self.by_number = {found.number: found for found in types}
        self._by_key = {found.key.make: found for found in self.by_number.values()}

    def encode(self, key: Any, value: Any | None) -> tuple[bytes, bytes | None]:
        """The bytes of a record; those of a value that is None, too, are null."""
        found = self._by_key[type(key)]
        if self._fast is not None and found.number == self._fast.number and value is not None:
            fast = self._fast.encode(key, value)
            if fast is not None:
                return fast
        return found.encode_key(key), None if value is None else found.encode_value(value)

    def decode(self, key: bytes, value: bytes | None) -> tuple[Any, Any | None]:
        """Raises UnknownRecordError for a newer type or version, CorruptMessageError for wrong
        bytes."""
        if self._fast is not None and key[:2] == self._fast_type and value is not None:
            fast = self._fast.decode(key, value)
            if fast is not None:
                return fast
        found = self.type_of(key)
        decoded = read_object(key[2:], lambda reader: reader.value(found.key, 0, False))
        return decoded, None if value is None else found.decode_value(value)

    def type_of(self, key: bytes) -> RecordType:
        """The type of a key's bytes. Raises as `decode`."""
        number = int(SchemaReader(key).number(">h"))
        found = self.by_number.get(number)
        if found is None:
            raise UnknownRecordError(f"records of type {number} are not known")
        return found
