"""Kafka's primitive types, for control records and the tier's metadata records.

Big-endian integers, zigzag varints, and the flexible encodings of KIP-482 (compact strings, compact
arrays, tagged fields). A reader checks every bound, skips unknown tagged fields, and raises
CorruptMessageError.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

from tidemark.errors import CorruptMessageError

_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def zigzag(value: int) -> int:
    """Maps a signed 64-bit integer to an unsigned one: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF


def unzigzag(value: int) -> int:
    """Reverses `zigzag`."""
    return (value >> 1) ^ -(value & 1)


def append_uvarint(out: bytearray, value: int) -> None:
    """Appends an unsigned varint, low seven bits first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def append_varint(out: bytearray, value: int) -> None:
    """Appends a signed (zigzag) varint or varlong."""
    append_uvarint(out, zigzag(value))


def read_uvarint(
    data: bytes | memoryview, position: int, end: int, max_bytes: int = MAX_VARINT_BYTES
) -> tuple[int, int]:
    """Reads the unsigned varint of data[position:end] and returns it with its end. It has 32 bits,
    or 64 with MAX_VARLONG_BYTES. Raises CorruptMessageError if it is cut off or too long.
    """
    begin = position
    value = shift = 0
    while position < end and shift < 7 * max_bytes:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if max_bytes == MAX_VARINT_BYTES else 64):
                break
            return value, position
        shift += 7
    raise CorruptMessageError(f"malformed varint at {begin}")


class Writer:
    """A buffer of values in Kafka's encoding; `getvalue()` returns the bytes."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def getvalue(self) -> bytes:
        return bytes(self._out)

    def boolean(self, value: bool) -> None:
        self._out.append(1 if value else 0)

    def int8(self, value: int) -> None:
        self._out += value.to_bytes(1, "big", signed=True)

    def int16(self, value: int) -> None:
        self._out += _INT16.pack(value)

    def uint16(self, value: int) -> None:
        self._out += _UINT16.pack(value)

    def int32(self, value: int) -> None:
        self._out += _INT32.pack(value)

    def uint32(self, value: int) -> None:
        self._out += _UINT32.pack(value)

    def int64(self, value: int) -> None:
        self._out += _INT64.pack(value)

    def uuid(self, value: UUID) -> None:
        self._out += value.bytes

    def raw(self, value: bytes) -> None:
        self._out += value

    def unsigned_varint(self, value: int) -> None:
        append_uvarint(self._out, value)

    def varint(self, value: int) -> None:
        append_varint(self._out, value)

    varlong = varint

    def compact_array_length(self, count: int | None) -> None:
        """Begins a compact array; None is null."""
        append_uvarint(self._out, 0 if count is None else count + 1)

    def compact_bytes(self, value: bytes | None) -> None:
        if value is None:
            self._out.append(0)
            return
        append_uvarint(self._out, len(value) + 1)
        self._out += value

    def compact_string(self, value: str | None) -> None:
        self.compact_bytes(None if value is None else value.encode())

    def string(self, value: str | None) -> None:
        """Appends a string of the older encoding: int16 length, -1 for null."""
        if value is None:
            self.int16(-1)
            return
        raw = value.encode()
        self.int16(len(raw))
        self._out += raw

    def tagged_fields(self, fields: Mapping[int, bytes] | None = None) -> None:
        """Ends a flexible structure; tags must ascend."""
        fields = fields or {}
        append_uvarint(self._out, len(fields))
        for number in sorted(fields):
            append_uvarint(self._out, number)
            append_uvarint(self._out, len(fields[number]))
            self._out += fields[number]


class Reader:
    """A reader of Kafka's encoding over `data[position:end]`. Raises CorruptMessageError beyond its
    end.
    """

    __slots__ = ("_data", "_end", "position")

    def __init__(
        self, data: bytes | bytearray | memoryview, position: int = 0, end: int | None = None
    ) -> None:
        self._data = memoryview(data)
        self.position = position
        self._end = len(self._data) if end is None else end
        if not 0 <= position <= self._end <= len(self._data):
            raise CorruptMessageError("a structure reaches beyond its buffer")

    @property
    def remaining(self) -> int:
        return self._end - self.position

    def raw(self, size: int) -> bytes:
        """Reads the next `size` bytes."""
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        """Reads the next `size` bytes without a copy."""
        begin = self.position
        if size < 0 or size > self._end - begin:
            raise CorruptMessageError(
                f"a field of {size} bytes at {begin} where {self._end - begin} are left"
            )
        self.position = begin + size
        return self._data[begin : begin + size]

    def boolean(self) -> bool:
        return self.view(1)[0] != 0

    def int8(self) -> int:
        value = self.view(1)[0]
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        return int(_INT16.unpack(self.view(2))[0])

    def uint16(self) -> int:
        return int(_UINT16.unpack(self.view(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.view(4))[0])

    def uint32(self) -> int:
        return int(_UINT32.unpack(self.view(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.view(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=self.raw(16))

    def unsigned_varint(self, max_bytes: int = MAX_VARINT_BYTES) -> int:
        value, self.position = read_uvarint(self._data, self.position, self._end, max_bytes)
        return value

    def varint(self) -> int:
        return unzigzag(self.unsigned_varint())

    def varlong(self) -> int:
        return unzigzag(self.unsigned_varint(MAX_VARLONG_BYTES))

    def compact_array_length(self) -> int | None:
        """Reads the number of elements of a compact array, None for null. Refuses more than bytes
        are left.
        """
        count = self.unsigned_varint() - 1
        if count > self.remaining:
            raise CorruptMessageError(f"an array of {count} elements in {self.remaining} bytes")
        return None if count < 0 else count

    def compact_bytes(self) -> bytes | None:
        size = self.unsigned_varint() - 1
        return None if size < 0 else self.raw(size)

    def compact_string(self) -> str | None:
        return self._text(self.compact_bytes())

    def string(self) -> str | None:
        """Reads a string of the older encoding: int16 length, negative for null."""
        size = self.int16()
        return None if size < 0 else self._text(self.raw(size))

    def tagged_fields(self) -> dict[int, bytes]:
        """Ends a flexible structure; returns the raw tagged fields, which a caller may ignore."""
        count = self.unsigned_varint()
        fields = {}
        for _ in range(count):
            number = self.unsigned_varint()
            fields[number] = self.raw(self.unsigned_varint())
        return fields

    def non_null_string(self) -> str:
        """Reads a compact string that must not be null."""
        value = self.compact_string()
        if value is None:
            raise CorruptMessageError(f"a string before {self.position} is null")
        return value

    def non_null_array_length(self) -> int:
        """Reads the number of elements of a compact array that must not be null."""
        count = self.compact_array_length()
        if count is None:
            raise CorruptMessageError(f"an array before {self.position} is null")
        return count

    def _text(self, raw: bytes | None) -> str | None:
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CorruptMessageError(f"a string before {self.position} is not UTF-8") from error
