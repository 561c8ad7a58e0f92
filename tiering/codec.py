"""Records of `__remote_log_metadata` in Kafka's own encoding, byte for byte (golden files hold it).

A record's value is: frame version 1, api key, version 0 (all unsigned varints), then the message in
Kafka's flexible encoding: big-endian integers, compact strings and arrays (length + 1 as an
unsigned varint), a block of tagged fields after each structure. Sources: KIP-405 "Message Format",
KIP-482 (flexible versions), and Kafka's schemas RemoteLogSegmentMetadataRecord (api key 0),
RemoteLogSegmentMetadataUpdateRecord (1) and RemotePartitionDeleteMetadataRecord (2). Unknown tagged
fields are skipped.
"""

from __future__ import annotations

import struct
from uuid import UUID

from tidemark.types import TopicIdPartition, uuid_to_text
from tiering.errors import RemoteStorageError
from tiering.metadata import (
    EpochEntry,
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)

_FRAME_VERSION = 1
_SEGMENT, _UPDATE, _PARTITION_DELETE = 0, 1, 2
_TAG_TXN_INDEX_EMPTY = 0


def encode(metadata: RemoteLogMetadata) -> bytes:
    """The value of the record that says `metadata`."""
    out = bytearray()
    _put_varint(out, _FRAME_VERSION)
    if isinstance(metadata, RemoteLogSegmentMetadata):
        _begin(out, _SEGMENT)
        _put_segment(out, metadata)
    elif isinstance(metadata, RemoteLogSegmentMetadataUpdate):
        _begin(out, _UPDATE)
        _put_segment_id(out, metadata.remote_log_segment_id)
        out += struct.pack(">iq", metadata.broker_id, metadata.event_timestamp_ms)
        _put_bytes(out, metadata.custom_metadata)
        out += struct.pack(">b", metadata.state)
        _put_varint(out, 0)
    else:
        _begin(out, _PARTITION_DELETE)
        _put_partition(out, metadata.topic_id_partition)
        out += struct.pack(">iqb", metadata.broker_id, metadata.event_timestamp_ms, metadata.state)
        _put_varint(out, 0)
    return bytes(out)


def decode(value: bytes) -> RemoteLogMetadata:
    """The metadata in a record's value; RemoteStorageError for bytes that are none, or of a later
    version.
    """
    reader = _Reader(value)
    try:
        frame, api_key, version = reader.varint(), reader.varint(), reader.varint()
        if frame != _FRAME_VERSION or version != 0:
            raise RemoteStorageError(
                f"a remote log metadata record has frame {frame}, version {version}: "
                "it was written by a later release"
            )
        metadata = _decode_message(api_key, reader)
    except (struct.error, IndexError, ValueError) as error:
        raise RemoteStorageError(f"a remote log metadata record is malformed: {error}") from error
    if reader.position != len(value):
        raise RemoteStorageError("a remote log metadata record has bytes behind its end")
    return metadata


def format_metadata(metadata: RemoteLogMetadata) -> str:
    """The text that Kafka's dump tool (--remote-log-metadata-decoder) prints for the record."""
    if isinstance(metadata, RemotePartitionDeleteMetadata):
        return (
            f"RemotePartitionDeleteMetadata{{topicPartition={metadata.topic_id_partition}, "
            f"state={metadata.state.name}, eventTimestampMs={metadata.event_timestamp_ms}, "
            f"brokerId={metadata.broker_id}}}"
        )
    segment_id = (
        f"remoteLogSegmentId=RemoteLogSegmentId{{topicIdPartition={metadata.topic_id_partition}, "
        f"id={uuid_to_text(metadata.remote_log_segment_id.id)}}}"
    )
    custom = metadata.custom_metadata
    custom_text = "customMetadata=" + (
        "Optional.empty" if custom is None else f"Optional[CustomMetadata{{{len(custom)} bytes}}]"
    )
    if isinstance(metadata, RemoteLogSegmentMetadataUpdate):
        return (
            f"RemoteLogSegmentMetadataUpdate{{{segment_id}, {custom_text}, "
            f"state={metadata.state.name}, eventTimestampMs={metadata.event_timestamp_ms}, "
            f"brokerId={metadata.broker_id}}}"
        )
    epochs = ", ".join(f"{e.epoch}={e.start_offset}" for e in metadata.segment_leader_epochs)
    return (
        f"RemoteLogSegmentMetadata{{{segment_id}, startOffset={metadata.start_offset}, "
        f"endOffset={metadata.end_offset}, brokerId={metadata.broker_id}, "
        f"maxTimestampMs={metadata.max_timestamp_ms}, "
        f"eventTimestampMs={metadata.event_timestamp_ms}, segmentLeaderEpochs={{{epochs}}}, "
        f"segmentSizeInBytes={metadata.segment_size_bytes}, {custom_text}, "
        f"state={metadata.state.name}, txnIdxEmpty={str(metadata.txn_index_empty).lower()}}}"
    )


def _begin(out: bytearray, api_key: int) -> None:
    _put_varint(out, api_key)
    _put_varint(out, 0)


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    """Compact nullable bytes: 0 stands for null."""
    _put_varint(out, 0 if value is None else len(value) + 1)
    out += value or b""


def _put_partition(out: bytearray, partition: TopicIdPartition) -> None:
    _put_bytes(out, partition.topic.encode())
    out += partition.topic_id.bytes
    out += struct.pack(">i", partition.partition)
    _put_varint(out, 0)


def _put_segment_id(out: bytearray, segment_id: RemoteLogSegmentId) -> None:
    _put_partition(out, segment_id.topic_id_partition)
    out += segment_id.id.bytes
    _put_varint(out, 0)


def _put_segment(out: bytearray, metadata: RemoteLogSegmentMetadata) -> None:
    _put_segment_id(out, metadata.remote_log_segment_id)
    out += struct.pack(
        ">qqiqq",
        metadata.start_offset,
        metadata.end_offset,
        metadata.broker_id,
        metadata.max_timestamp_ms,
        metadata.event_timestamp_ms,
    )
    _put_varint(out, len(metadata.segment_leader_epochs) + 1)
    for entry in metadata.segment_leader_epochs:
        out += struct.pack(">iq", entry.epoch, entry.start_offset)
        _put_varint(out, 0)
    out += struct.pack(">i", metadata.segment_size_bytes)
    _put_bytes(out, metadata.custom_metadata)
    out += struct.pack(">b", metadata.state)
    if metadata.txn_index_empty:  # the default, false, is not written
        out += bytes((1, _TAG_TXN_INDEX_EMPTY, 1, 1))
    else:
        _put_varint(out, 0)


class _Reader:
    """Reads the primitives in order; struct.error or IndexError where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ValueError("a varint is longer than five bytes")

    def fixed(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self.position)
        self.position += struct.calcsize(layout)
        return values

    def raw(self, size: int) -> bytes:
        piece = self._data[self.position : self.position + size]
        if len(piece) < size:
            raise IndexError("the record ends too early")
        self.position += size
        return piece

    def nullable_bytes(self) -> bytes | None:
        length = self.varint()
        return None if length == 0 else self.raw(length - 1)

    def tags(self) -> dict[int, bytes]:
        return {self.varint(): self.raw(self.varint()) for _ in range(self.varint())}


def _decode_message(api_key: int, reader: _Reader) -> RemoteLogMetadata:
    if api_key == _SEGMENT:
        return _decode_segment(reader)
    if api_key == _UPDATE:
        segment_id = _decode_segment_id(reader)
        broker_id, event_timestamp_ms = reader.fixed(">iq")
        custom = reader.nullable_bytes()
        (state,) = reader.fixed(">b")
        reader.tags()
        return RemoteLogSegmentMetadataUpdate(
            segment_id, event_timestamp_ms, RemoteLogSegmentState(state), broker_id, custom
        )
    if api_key == _PARTITION_DELETE:
        partition = _decode_partition(reader)
        broker_id, event_timestamp_ms, state = reader.fixed(">iqb")
        reader.tags()
        return RemotePartitionDeleteMetadata(
            partition, RemotePartitionDeleteState(state), event_timestamp_ms, broker_id
        )
    raise RemoteStorageError(f"a remote log metadata record has the unknown api key {api_key}")


def _decode_partition(reader: _Reader) -> TopicIdPartition:
    name = reader.nullable_bytes()
    if name is None:
        raise ValueError("the topic has no name")
    topic_id = UUID(bytes=reader.raw(16))
    (partition,) = reader.fixed(">i")
    reader.tags()
    return TopicIdPartition(topic_id, name.decode(), partition)


def _decode_segment_id(reader: _Reader) -> RemoteLogSegmentId:
    partition = _decode_partition(reader)
    identity = UUID(bytes=reader.raw(16))
    reader.tags()
    return RemoteLogSegmentId(partition, identity)


def _decode_segment(reader: _Reader) -> RemoteLogSegmentMetadata:
    segment_id = _decode_segment_id(reader)
    start, end, broker_id, max_timestamp_ms, event_timestamp_ms = reader.fixed(">qqiqq")
    epochs = []
    for _ in range(reader.varint() - 1):
        epoch, offset = reader.fixed(">iq")
        reader.tags()
        epochs.append(EpochEntry(epoch, offset))
    (size_bytes,) = reader.fixed(">i")
    custom = reader.nullable_bytes()
    (state,) = reader.fixed(">b")
    tags = reader.tags()
    return RemoteLogSegmentMetadata(
        segment_id,
        start,
        end,
        max_timestamp_ms,
        broker_id,
        event_timestamp_ms,
        size_bytes,
        tuple(epochs),
        RemoteLogSegmentState(state),
        custom,
        tags.get(_TAG_TXN_INDEX_EMPTY, b"\0") != b"\0",
    )
