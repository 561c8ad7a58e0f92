"""The flat file of a user partition's remote log metadata, in the format of KIP-405.

    magic (unsigned varint), topic name (string), topic id (uuid), metadata topic offset (varlong),
    entries: length, type, version (unsigned varints), data

The types are RemoteLogSegmentMetadataRecordStored (0) and DeletePartitionStateRecord (1), whose
LeaderEpoch and Epoch are broker ids, as in Kafka's records. Version 0 of a stored segment is the
KIP's. Version 1 adds the later fields of Kafka's records, CustomMetadata (nullable bytes) and
TxnIndexEmpty (boolean). It is written where they have a value. A later entry of a segment replaces
an earlier one, and state DELETE_SEGMENT_FINISHED removes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from uuid import UUID

from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_codec import MAX_VARLONG_BYTES, Reader, Writer, append_uvarint
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)

MAGIC = 0
_SEGMENT, _DELETION = 0, 1
_BEGIN = struct.Struct(">16sqqiqqi")  # id, start, end, broker, greatest and event time, epochs
_DELETE = struct.Struct(">iqb")
_REMOVED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

Entry = RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata | UUID
"""A segment, a step of the partition's deletion, or the id of a segment that was removed."""


def encode_header(partition: TopicIdPartition, metadata_offset: int) -> bytes:
    """Encodes the begin of a file with all that the metadata topic has below `metadata_offset`."""
    out = Writer()
    out.unsigned_varint(MAGIC)
    out.string(partition.topic)
    out.uuid(partition.topic_id)
    out.varlong(metadata_offset)
    return out.getvalue()


def encode_entry(entry: Entry) -> bytes:
    """Encodes an entry with its length, type and version."""
    kind, version = _SEGMENT, 0
    if isinstance(entry, RemoteLogSegmentMetadata):
        parts = [
            _BEGIN.pack(
                entry.id.bytes,
                entry.start_offset,
                entry.end_offset,
                entry.broker_id,
                entry.max_timestamp_ms,
                entry.event_timestamp_ms,
                len(entry.segment_leader_epochs),
            ),
            *(struct.pack(">iq", *epoch) for epoch in entry.segment_leader_epochs),
            struct.pack(">ib", entry.segment_size_bytes, entry.state),
        ]
        custom = entry.custom_metadata
        if custom is not None or entry.txn_index_empty:
            version = 1
            parts.append(struct.pack(">i", -1 if custom is None else len(custom)))
            parts.append((custom or b"") + bytes((entry.txn_index_empty,)))
        data = b"".join(parts)
    elif isinstance(entry, UUID):
        data = _BEGIN.pack(entry.bytes, 0, 0, 0, 0, 0, 0) + struct.pack(">ib", 0, _REMOVED)
    else:
        kind = _DELETION
        data = _DELETE.pack(entry.broker_id, entry.event_timestamp_ms, entry.state)
    out = bytearray()
    append_uvarint(out, len(data) + 2)
    append_uvarint(out, kind)
    append_uvarint(out, version)
    return bytes(out) + data


class FlatFileReader:
    """Decodes a file: its header at once, its entries one by one. Raises CorruptMessageError."""

    def __init__(self, data: bytes, partition: int) -> None:
        self._reader = reader = Reader(data)
        magic = reader.unsigned_varint()
        if magic != MAGIC:
            raise CorruptMessageError(f"a flat file of remote log metadata has magic {magic}")
        topic = reader.string()
        if topic is None:
            raise CorruptMessageError("a flat file of remote log metadata names no topic")
        self.partition = TopicIdPartition(reader.uuid(), topic, partition)
        raw = reader.unsigned_varint(MAX_VARLONG_BYTES)
        self.metadata_offset = (raw >> 1) ^ -(raw & 1)

    def entries(self) -> Iterator[Entry]:
        """Yields the entries in their order."""
        reader = self._reader
        while reader.remaining:
            size = reader.unsigned_varint()
            entry = Reader(reader.view(size))
            kind, version = entry.unsigned_varint(), entry.unsigned_varint()
            try:
                yield self._decode(kind, version, entry)
            except (ValueError, struct.error) as error:
                raise CorruptMessageError(f"an entry of remote log metadata: {error}") from error
            if entry.remaining:
                raise CorruptMessageError("an entry of remote log metadata is too long")

    def _decode(self, kind: int, version: int, entry: Reader) -> Entry:
        if kind == _DELETION and version == 0:
            broker_id, event_timestamp_ms, step = _DELETE.unpack(entry.view(_DELETE.size))
            return RemotePartitionDeleteMetadata(
                self.partition, RemotePartitionDeleteState(step), event_timestamp_ms, broker_id
            )
        if kind != _SEGMENT or version > 1:
            raise CorruptMessageError(
                f"an entry of remote log metadata has type {kind}, version {version}: "
                "it was written by a later release"
            )
        identity, start, end, broker_id, max_timestamp_ms, event_timestamp_ms, count = (
            _BEGIN.unpack(entry.view(_BEGIN.size))
        )
        epochs = tuple(EpochEntry(entry.int32(), entry.int64()) for _ in range(count))
        size_bytes, state = entry.int32(), entry.int8()
        custom, txn_index_empty = None, False
        if version == 1:
            custom_size = entry.int32()
            custom = entry.raw(custom_size) if custom_size >= 0 else None
            txn_index_empty = entry.boolean()
        if state == _REMOVED:
            return UUID(bytes=identity)
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(self.partition, UUID(bytes=identity)),
            start,
            end,
            max_timestamp_ms,
            broker_id,
            event_timestamp_ms,
            size_bytes,
            epochs,
            RemoteLogSegmentState(state),
            custom,
            txn_index_empty,
        )
