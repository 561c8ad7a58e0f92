"""The bytes of committed offsets, which are nearly all records of `__consumer_offsets`.

They are those that the schemas give, ten times faster; anything unusual is left to the schemas.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from tidemark.types import ZERO_UUID

_VERSION = 4
_LENGTH = struct.Struct(">h")
_KEY = struct.Struct(">hh")  # type and length of the group
_PARTITION = struct.Struct(">i")
_HEAD = struct.Struct(">hqi")  # version, offset, leader epoch
_TIME = struct.Struct(">q")
_NO_TAGS = b"\x00"
_TOPIC_ID = b"\x01\x00\x10"  # one tagged field: tag 0, 16 bytes
_METADATA_MAX = 126  # its length is one byte of a uvarint then
_TEXT_MAX = 32_767


class OffsetCodec:
    """Writes and reads version 4 of OffsetCommitValue. `key` and `value` make the objects."""

    number = 1

    def __init__(self, key: type, value: type) -> None:
        self._key = key
        self._value = value

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes] | None:
        """The bytes of both; None for what the schemas have to write."""
        group, topic, metadata = key.group.encode(), key.topic.encode(), value.metadata.encode()
        if len(metadata) > _METADATA_MAX or max(len(group), len(topic)) > _TEXT_MAX:
            return None
        if value.expire_timestamp != -1:
            return None
        where = b"".join(
            (
                _KEY.pack(1, len(group)),
                group,
                _LENGTH.pack(len(topic)),
                topic,
                _PARTITION.pack(key.partition),
            )
        )
        what = b"".join(
            (
                _HEAD.pack(_VERSION, value.offset, value.leader_epoch),
                bytes((len(metadata) + 1,)),
                metadata,
                _TIME.pack(value.commit_timestamp),
                _NO_TAGS if value.topic_id == ZERO_UUID else _TOPIC_ID + value.topic_id.bytes,
            )
        )
        return where, what

    def decode(self, key: bytes, value: bytes) -> tuple[Any, Any] | None:
        """Both objects; None for what the schemas have to read, or to refuse."""
        try:
            kind, size = _KEY.unpack_from(key)
            end = 4 + size
            group = key[4:end].decode()
            (length,) = _LENGTH.unpack_from(key, end)
            topic = key[end + 2 : end + 2 + length].decode()
            (partition,) = _PARTITION.unpack_from(key, end + 2 + length)
            version, offset, epoch = _HEAD.unpack_from(value)
            after = 15 + value[14] - 1
            metadata = value[15:after].decode()
            (time_ms,) = _TIME.unpack_from(value, after)
        except (struct.error, IndexError, UnicodeDecodeError):
            return None
        is_plain = kind == 1 and version == _VERSION and 1 <= value[14] <= _METADATA_MAX + 1
        is_plain = is_plain and min(size, length) >= 0 and len(key) == end + length + 6
        tags = value[after + 8 :]
        if not is_plain or not (tags == _NO_TAGS or (len(tags) == 19 and tags[:3] == _TOPIC_ID)):
            return None
        topic_id = ZERO_UUID if tags == _NO_TAGS else UUID(bytes=tags[3:])
        return (
            self._key(group, topic, partition),
            self._value(offset, epoch, metadata, time_ms, -1, topic_id),
        )
