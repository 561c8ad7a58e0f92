"""The bytes of transactions, which are all records of `__transaction_state`.

They are those that the schemas give, several times faster; anything unusual is left to the schemas.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

_VERSION = 1
_KEY = struct.Struct(">hh")  # type and length of the id
_HEAD = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, status
_TIMES = struct.Struct(">qq")  # last update, start
_LENGTH_MAX = 126  # that of a topic or an array is one byte of a uvarint then
_TEXT_MAX = 32_767
# The tagged fields: attribute, default, and the bytes of tag, size and value.
_TAGGED = (
    ("previous_producer_id", -1, struct.Struct(">BBq")),
    ("next_producer_id", -1, struct.Struct(">BBq")),
    ("client_transaction_version", 0, struct.Struct(">BBh")),
    ("next_producer_epoch", -1, struct.Struct(">BBh")),
)


class _UnusualError(Exception):
    """Left to the schemas."""


class TransactionCodec:
    """Writes and reads version 1 of TransactionLogValue. The arguments make the objects."""

    number = 0

    def __init__(
        self, key: Callable[..., Any], value: Callable[..., Any], partitions: Callable[..., Any]
    ) -> None:
        self._key = key
        self._value = value
        self._partitions = partitions

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes] | None:
        """The bytes of both; None for what the schemas have to write."""
        name = key.transactional_id.encode()
        try:
            topics = _topics_written(value.transaction_partitions)
        except _UnusualError:
            return None
        if len(name) > _TEXT_MAX:
            return None
        tags = [
            form.pack(tag, form.size - 2, found)
            for tag, (attribute, default, form) in enumerate(_TAGGED)
            if (found := getattr(value, attribute)) != default
        ]
        what = b"".join(
            (
                _HEAD.pack(
                    _VERSION,
                    value.producer_id,
                    value.producer_epoch,
                    value.transaction_timeout_ms,
                    value.transaction_status,
                ),
                topics,
                _TIMES.pack(
                    value.transaction_last_update_timestamp_ms,
                    value.transaction_start_timestamp_ms,
                ),
                bytes((len(tags),)),
                *tags,
            )
        )
        return _KEY.pack(self.number, len(name)) + name, what

    def decode(self, key: bytes, value: bytes) -> tuple[Any, Any] | None:
        """Both objects; None for what the schemas have to read, or to refuse."""
        try:
            kind, size = _KEY.unpack_from(key)
            name = key[4:].decode()
            version, producer_id, epoch, timeout_ms, status = _HEAD.unpack_from(value)
            topics, at = self._topics(value, _HEAD.size)
            update_ms, start_ms = _TIMES.unpack_from(value, at)
            tagged, at = _tagged(value, at + _TIMES.size)
        except (struct.error, IndexError, UnicodeDecodeError, _UnusualError):
            return None
        if kind != self.number or size != len(key) - 4:
            return None
        if version != _VERSION or at != len(value):
            return None
        found = self._value(
            producer_id, epoch, timeout_ms, status, topics, update_ms, start_ms, *tagged
        )
        return self._key(name), found

    def _topics(self, data: bytes, at: int) -> tuple[tuple[Any, ...] | None, int]:
        """The partitions, and the place behind them."""
        count = _length(data, at)
        at += 1
        if count < 0:
            return None, at
        found = []
        for _ in range(count):
            size = _length(data, at)
            name, at = data[at + 1 : at + 1 + size].decode(), at + 1 + size
            numbers = _length(data, at)
            if min(size, numbers) < 0:
                raise _UnusualError
            ids = struct.unpack_from(f">{numbers}i", data, at + 1)
            at += 1 + 4 * numbers
            if data[at]:
                raise _UnusualError
            at += 1
            found.append(self._partitions(name, ids))
        return tuple(found), at


def _length(data: bytes, at: int) -> int:
    """A length of one byte; -1 for null."""
    if data[at] > _LENGTH_MAX + 1:
        raise _UnusualError
    return data[at] - 1


def _topics_written(topics: Iterable[Any] | None) -> bytes:
    if topics is None:
        return b"\x00"
    found = [
        (topic.topic.encode(), topic.partition_ids, len(topic.partition_ids)) for topic in topics
    ]
    sizes = [len(found), *(len(name) for name, _, _ in found), *(count for _, _, count in found)]
    if max(sizes) > _LENGTH_MAX:
        raise _UnusualError
    parts = [bytes((len(found) + 1,))]
    for name, ids, count in found:
        parts += (
            bytes((len(name) + 1,)),
            name,
            bytes((count + 1,)),
            struct.pack(f">{count}i", *ids),
            b"\x00",
        )
    return b"".join(parts)


def _tagged(data: bytes, at: int) -> tuple[list[int], int]:
    """The last four arguments of a value, and the place behind them."""
    found = {attribute: default for attribute, default, _ in _TAGGED}
    before = -1
    for _ in range(data[at]):
        tag = data[at + 1]
        if not before < tag < len(_TAGGED):
            raise _UnusualError
        before = tag
        attribute, _, form = _TAGGED[tag]
        _, size, found[attribute] = form.unpack_from(data, at + 1)
        if size != form.size - 2:
            raise _UnusualError
        at += form.size
    return list(found.values()), at + 1
