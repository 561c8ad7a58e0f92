"""Hostile requests: seeded messages of any type with extreme fields, damaged bytes, and garbage."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, -1, 3, 7, 63, 255, 65_536, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_TEXTS = (
    *("", "a", "flights", "__cluster_metadata", "__consumer_offsets", "..", "a/../../b"),
    *("\x00", "\u202e\U0001f600", "%00%ff", "x" * 3_000, "{" * 500, "[[:alpha:]]", "(a+)+$"),
)
_DEPTH_MAX = 4


def hostile(kind: type[Message], random: Random, count: int) -> Iterator[bytes]:
    """`count` requests: garbage, messages of `kind`, and such with damaged bytes."""
    for _ in range(count):
        choice = random.random()
        if choice < 0.15:
            yield random.randbytes(random.choice((0, 1, 10, 1_000, 100_000)))
            continue
        message = kind()
        _fill(message, random, 0)
        payload = bytearray(message.SerializeToString())
        if choice < 0.5 and payload:
            for _ in range(random.randint(1, 4)):
                payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
            del payload[random.randint(len(payload) // 2, len(payload)) :]
        yield bytes(payload)


def _fill(message: Message, random: Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.25:
            continue
        if field.message_type is not None and depth >= _DEPTH_MAX:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            for _ in range(random.choice((0, 1, 1, 2, 5))):
                if field.message_type is not None:
                    _fill(getattr(message, field.name).add(), random, depth + 1)
                else:
                    getattr(message, field.name).append(_value(field, random))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), random, depth + 1)
        else:
            setattr(message, field.name, _value(field, random))


def _value(field: FieldDescriptor, random: Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return random.randbytes(random.choice((0, 1, 16, 16, 61, 500)))
        return random.choice(_TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return random.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return random.choice([value.number for value in field.enum_type.values])
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kind]
    return random.choice([n for n in _INTEGERS if low <= n <= high])
