"""The sidecar: the object beside a remote segment's log, which describes and checks both (pure).

It begins with a table and continues with the parts that the table lists:

    magic 4, version 2, reserved 2, length of the table 8
    topic id, topic, partition, segment id, offsets, timestamps, broker, size, leader epochs
    chunk size, CRC-32C of each chunk of the log
    parts: kind, position in the object, length, CRC-32C
    CRC-32C of the table

Integers are big-endian. The pin, twelve bytes with the table's length and CRC, is the custom
metadata of the segment's COPY_SEGMENT_FINISHED record. So a reader that trusts the metadata topic
can trust every byte of both objects. The table alone is enough to make the record again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c

from tidemark.types import TopicIdPartition
from tiering.errors import (
    CorruptRemoteObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiering.store.manager import ByteSource, IndexType, LogSegmentData

CHUNK_BYTES = 256 << 10
"""Size of a chunk of the log; the last one may be shorter."""
HEAD_BYTES = 16
"""Size of the table's head, whose `table_bytes` is the length of the whole table."""

_MAGIC = b"TMsc"
_VERSION = 1
_HEAD = struct.Struct(">4sHHQ")
_PIN = struct.Struct(">4sII")
_IDS = struct.Struct(">16s16siH")
_SEGMENT = struct.Struct(">qqqqiq?I")
_ENTRY = struct.Struct(">Iq")
_CHUNKS = struct.Struct(">II")
_PART = struct.Struct(">BQQI")
_CRC = struct.Struct(">I")
_KEEPS_LOCK = 0
_KINDS = (
    IndexType.OFFSET,
    IndexType.TIMESTAMP,
    IndexType.TRANSACTION,
    IndexType.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH,
)
"""Kinds of parts in their order; a kind's number in the table is its place here."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Length and CRC-32C of a sidecar's table."""

    table_bytes: int
    crc: int

    def encode(self) -> bytes:
        return _PIN.pack(_MAGIC, self.table_bytes, self.crc)


def pin_of(metadata: RemoteLogSegmentMetadata) -> Pin | None:
    """Returns the pin in a segment's custom metadata; None before its copy is finished."""
    custom = metadata.custom_metadata
    if custom is None or len(custom) != _PIN.size or not custom.startswith(_MAGIC):
        return None
    return Pin(*_PIN.unpack(custom)[1:])


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the sidecar: an index of the segment, or another small file."""

    position: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """The table of a sidecar. `metadata` has the state and the time of the copy's begin."""

    metadata: RemoteLogSegmentMetadata
    chunk_bytes: int
    chunk_crcs: bytes
    parts: Mapping[IndexType, Part]

    def part(self, kind: IndexType) -> Part:
        """Returns the place of a part. Raises RemoteResourceNotFoundError if there is none."""
        found = self.parts.get(kind)
        if found is None:
            segment = self.metadata.remote_log_segment_id
            raise RemoteResourceNotFoundError(f"remote segment {segment} has no {kind.value}")
        return found

    def check_part(self, kind: IndexType, content: bytes) -> bytes:
        """Returns `content` if it is the part of this kind. Raises CorruptRemoteObjectError."""
        part = self.part(kind)
        if len(content) != part.length or crc32c(content) != part.crc:
            raise self.corrupt(f"part {kind.value} of the sidecar", part.position)
        return content

    def aligned(self, start: int, end: int) -> tuple[int, int]:
        """Returns the smallest range of whole chunks that holds [start, end) of the log."""
        size, chunk = self.metadata.segment_size_bytes, self.chunk_bytes
        return start // chunk * chunk, min(size, -(-end // chunk) * chunk)

    def check_log(self, position: int, content: bytes | memoryview) -> None:
        """Checks bytes of the log at `position`: whole chunks.

        Raises CorruptRemoteObjectError, which names the first bad chunk, and ValueError for a range
        that `aligned` does not give. Keeps the interpreter's lock: a chunk takes microseconds, and
        a thread that gave the lock away for it may wait milliseconds to have it back.
        """
        end = position + len(content)
        if (position, end) != self.aligned(position, end):
            raise ValueError(f"[{position}, {end}) of the log are no whole chunks")
        view = memoryview(content)
        for at in range(position, end, self.chunk_bytes):
            (expected,) = _CRC.unpack_from(self.chunk_crcs, at // self.chunk_bytes * _CRC.size)
            chunk = view[at - position : at - position + self.chunk_bytes]
            if crc32c(chunk, 0, _KEEPS_LOCK) != expected:
                raise self.corrupt("chunk of the log", at)

    def corrupt(self, what: str, position: int) -> CorruptRemoteObjectError:
        """Returns the error of a part or chunk whose checksum does not agree."""
        return _corrupt(self.metadata, f"the checksum of a {what} does not agree", position)

    def encode(self) -> bytes:
        """Encodes the table; its length does not depend on the values of parts and checksums."""
        segment = self.metadata
        partition = segment.topic_id_partition
        topic = partition.topic.encode()
        body = [
            _IDS.pack(partition.topic_id.bytes, segment.id.bytes, partition.partition, len(topic)),
            topic,
            _SEGMENT.pack(
                segment.start_offset,
                segment.end_offset,
                segment.max_timestamp_ms,
                segment.event_timestamp_ms,
                segment.broker_id,
                segment.segment_size_bytes,
                segment.txn_index_empty,
                len(segment.segment_leader_epochs),
            ),
            *(_ENTRY.pack(*entry) for entry in segment.segment_leader_epochs),
            _CHUNKS.pack(self.chunk_bytes, len(self.chunk_crcs) // _CRC.size),
            self.chunk_crcs,
            bytes([len(self.parts)]),
            *(
                _PART.pack(_KINDS.index(kind), part.position, part.length, part.crc)
                for kind, part in self.parts.items()
            ),
        ]
        content = b"".join(body)
        table_bytes = _HEAD.size + len(content) + _CRC.size
        content = _HEAD.pack(_MAGIC, _VERSION, 0, table_bytes) + content
        return content + _CRC.pack(crc32c(content))


def table_bytes(head: bytes, metadata: RemoteLogSegmentMetadata | None) -> int:
    """Returns the length of the table that begins with `head`. Raises CorruptRemoteObjectError."""
    if len(head) < HEAD_BYTES or not head.startswith(_MAGIC):
        raise _corrupt(metadata, "the sidecar does not begin with a table", 0)
    return int(_HEAD.unpack_from(head)[3])


def decode_table(content: bytes, metadata: RemoteLogSegmentMetadata) -> SegmentTable:
    """Decodes the table that `content` begins with, and checks it against its own CRC, the pin of
    `metadata`, and the segment of `metadata`.

    Raises CorruptRemoteObjectError, and RemoteStorageError for a newer version.
    """
    table = decode_unpinned(content, metadata)
    pin = pin_of(metadata)
    if pin is not None and pin != _pin(content):
        raise _corrupt(metadata, "the table of the sidecar is not the one of the metadata", 0)
    if _identity(table.metadata) != _identity(metadata):
        raise _corrupt(metadata, f"the sidecar is of {table.metadata.remote_log_segment_id}", 0)
    return table


def decode_unpinned(
    content: bytes, metadata: RemoteLogSegmentMetadata | None = None
) -> SegmentTable:
    """Decodes the table that `content` begins with, trusting its own CRC alone: a cluster's
    metadata is recovered by it. `metadata` names the segment in errors.

    Raises CorruptRemoteObjectError, and RemoteStorageError for a newer version.
    """
    end = table_bytes(content, metadata) - _CRC.size
    view = memoryview(content)
    if not _HEAD.size <= end <= len(content) - _CRC.size or (
        crc32c(view[:end]) != _CRC.unpack_from(content, end)[0]
    ):
        raise _corrupt(metadata, "the checksum of the sidecar's table does not agree", 0)
    version = _HEAD.unpack_from(content)[1]
    if version > _VERSION:
        raise RemoteStorageError(
            f"{_name(metadata)} has a sidecar of version {version}: upgrade this node, which reads "
            f"up to version {_VERSION}"
        )
    try:
        return _decode_body(content[:end])
    except (struct.error, ValueError, IndexError) as error:
        raise _corrupt(metadata, f"the sidecar's table is malformed ({error})", 0) from error


class SidecarBuilder:
    """Makes the sidecar of a segment while its log is uploaded.

    `log` is the ByteSource to upload: it computes the checksums of the chunks that are read through
    it, so that the file is read once. A piece that is read again must have the same bytes.
    """

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._metadata = metadata
        self._indexes = data.indexes
        self.log = CheckedLog(data.log_segment, chunk_bytes)

    def finish(self) -> tuple[bytes, bytes]:
        """Returns the sidecar and its encoded pin. Raises RetriableRemoteStorageError if the log
        changed.
        """
        crcs = b"".join(map(_CRC.pack, self.log.finish()))
        kinds = [kind for kind in _KINDS if kind in self._indexes]
        chunk_bytes = self.log.chunk_bytes
        empty = {kind: Part(0, 0, 0) for kind in kinds}
        position = len(SegmentTable(self._metadata, chunk_bytes, crcs, empty).encode())
        parts = {}
        for kind in kinds:
            content = self._indexes[kind]
            parts[kind] = Part(position, len(content), crc32c(content))
            position += len(content)
        table = SegmentTable(self._metadata, chunk_bytes, crcs, parts).encode()
        return b"".join([table, *map(self._indexes.__getitem__, kinds)]), _pin(table).encode()


class CheckedLog:
    """A ByteSource that computes the checksums of the chunks read through it."""

    def __init__(self, source: ByteSource, chunk_bytes: int) -> None:
        self._source = source
        self.chunk_bytes = chunk_bytes
        self._crcs: dict[int, int] = {}

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    def pread(self, position: int, size: int) -> bytes:
        """Reads as the source does. Raises RetriableRemoteStorageError if a chunk has other bytes
        than before.
        """
        content = self._source.pread(position, size)
        view = memoryview(content)
        end = position + len(content)
        first = -(-position // self.chunk_bytes) * self.chunk_bytes
        for at in range(first, end, self.chunk_bytes):
            chunk = view[at - position : at - position + self.chunk_bytes]
            if len(chunk) != min(self.chunk_bytes, self.size_bytes - at):
                break
            crc = crc32c(chunk)
            if self._crcs.setdefault(at, crc) != crc:
                raise RetriableRemoteStorageError(
                    f"the local segment changed at {at} while it was uploaded"
                )
        return content

    def finish(self) -> Iterable[int]:
        """Returns the checksums of all chunks; reads those that were not read whole."""
        starts = range(0, self.size_bytes, self.chunk_bytes)
        for at in starts:
            if at not in self._crcs:
                self.pread(at, min(self.chunk_bytes, self.size_bytes - at))
            if at not in self._crcs:
                raise RetriableRemoteStorageError(f"the local segment ends early, at {at}")
        return [self._crcs[at] for at in starts]


def _decode_body(content: bytes) -> SegmentTable:
    at = _HEAD.size
    topic_id, identity, partition, topic_bytes = _IDS.unpack_from(content, at)
    at += _IDS.size
    topic = content[at : at + topic_bytes].decode()
    at += topic_bytes
    start, end, newest, begun, broker, size, empty, epoch_count = _SEGMENT.unpack_from(content, at)
    at += _SEGMENT.size
    epochs = []
    for _ in range(epoch_count):
        epochs.append(EpochEntry(*_ENTRY.unpack_from(content, at)))
        at += _ENTRY.size
    chunk_bytes, chunk_count = _CHUNKS.unpack_from(content, at)
    at += _CHUNKS.size
    crcs = content[at : at + chunk_count * _CRC.size]
    at += chunk_count * _CRC.size
    if chunk_bytes < 1 or chunk_count != -(-size // chunk_bytes):
        raise ValueError(f"{chunk_count} chunks of {chunk_bytes} bytes are not {size} bytes")
    parts = {}
    (part_count,) = content[at : at + 1]
    at += 1
    for _ in range(part_count):
        kind, *place = _PART.unpack_from(content, at)
        at += _PART.size
        if kind < len(_KINDS):  # a later version may add kinds
            parts[_KINDS[kind]] = Part(*place)
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(
            TopicIdPartition(UUID(bytes=topic_id), topic, partition), UUID(bytes=identity)
        ),
        start,
        end,
        newest,
        broker,
        begun,
        size,
        tuple(epochs),
        txn_index_empty=empty,
    )
    return SegmentTable(metadata, chunk_bytes, crcs, parts)


def pin_of_table(content: bytes) -> bytes:
    """Returns the encoded pin of the table that `content` begins with."""
    return _pin(content).encode()


def _pin(table: bytes) -> Pin:
    length = _HEAD.unpack_from(table)[3]
    return Pin(length, _CRC.unpack_from(table, length - _CRC.size)[0])


def _identity(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    return (
        segment.remote_log_segment_id,
        segment.start_offset,
        segment.end_offset,
        segment.segment_size_bytes,
    )


def _name(metadata: RemoteLogSegmentMetadata | None) -> str:
    return "an object" if metadata is None else f"remote segment {metadata.remote_log_segment_id}"


def _corrupt(
    metadata: RemoteLogSegmentMetadata | None, problem: str, position: int
) -> CorruptRemoteObjectError:
    return CorruptRemoteObjectError(f"{_name(metadata)} is damaged at byte {position}: {problem}")
