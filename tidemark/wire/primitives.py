"""Protobuf's wire format by hand: the few primitives that the bulk messages need.

Source of the format: the Protocol Buffers encoding specification (varints, tags, length-delimited
fields). Input from outside is bound-checked. Malformed input raises InvalidRequestError, never an
IndexError.
"""

from __future__ import annotations

from tidemark.errors import InvalidRequestError

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
FIXED32 = 5

_MASK_64 = (1 << 64) - 1
_MAX_FIELD_NUMBER = (1 << 29) - 1


def varint(value: int) -> bytes:
    """The varint of an int32, int64, enum or length; a negative one takes ten bytes."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= _MASK_64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def tag(field: int, wire_type: int) -> bytes:
    """The tag that opens a field."""
    return varint(field << 3 | wire_type)


# Tags of the field numbers in use, computed once.
_VARINT_TAGS = [tag(field, VARINT) for field in range(16)]
_BYTES_TAGS = [tag(field, LENGTH_DELIMITED) for field in range(16)]


def int_field(field: int, value: int) -> bytes:
    """A varint field; nothing for proto3's default of 0."""
    return _VARINT_TAGS[field] + varint(value) if value else b""


def bytes_field(field: int, value: bytes) -> bytes:
    """A small length-delimited field; nothing when it is empty."""
    return _BYTES_TAGS[field] + varint(len(value)) + value if value else b""


def string_field(field: int, value: str) -> bytes:
    """A string field; nothing when it is empty."""
    return bytes_field(field, value.encode()) if value else b""


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The unsigned 64-bit varint at `position`, and its end. Raises InvalidRequestError."""
    if position < end and (byte := data[position]) < 0x80:  # by far the most frequent case
        return byte, position + 1
    result = 0
    shift = 0
    while position < end:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & _MASK_64, position
        shift += 7
        if shift > 63:
            raise InvalidRequestError("malformed message: a varint is longer than ten bytes")
    raise InvalidRequestError("malformed message: it ends within a varint")


def read_tag(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Field number, wire type, and the position behind the tag."""
    if position < end and 8 <= (byte := data[position]) < 0x80:
        return byte >> 3, byte & 7, position + 1
    value, position = read_varint(data, position, end)
    field = value >> 3
    if not 0 < field <= _MAX_FIELD_NUMBER:
        raise InvalidRequestError(f"malformed message: {field} is no field number")
    return field, value & 7, position


def read_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Begin and end of the payload of a length-delimited field."""
    length, position = read_varint(data, position, end)
    if length > end - position:
        raise InvalidRequestError(
            f"malformed message: a field of {length} bytes where {end - position} are left"
        )
    return position, position + length


def skip(data: bytes, position: int, end: int, wire_type: int) -> int:
    """The position behind an unknown field's value. Groups are refused: no message here has any."""
    if wire_type == VARINT:
        return read_varint(data, position, end)[1]
    if wire_type == LENGTH_DELIMITED:
        return read_length(data, position, end)[1]
    width = {FIXED64: 8, FIXED32: 4}.get(wire_type)
    if width is None:
        raise InvalidRequestError(f"malformed message: wire type {wire_type}")
    if width > end - position:
        raise InvalidRequestError("malformed message: it ends within a fixed-width field")
    return position + width


def text(data: bytes, begin: int, end: int) -> str:
    """A string field's value. Raises InvalidRequestError if it is not UTF-8."""
    try:
        return data[begin:end].decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("malformed message: a string is not UTF-8") from error


def int32(value: int) -> int:
    """A varint's value as protobuf reads an int32: the low 32 bits, signed."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def int64(value: int) -> int:
    """A varint's value as a signed 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value
