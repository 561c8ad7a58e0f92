"""Records of `__remote_log_metadata` in Kafka's own encoding, byte for byte (golden files hold it).

A record's value is frame version 1, api key, version 0 (unsigned varints), then the message in
Kafka's flexible encoding. Sources: KIP-405 "Message Format", and Kafka's schemas
RemoteLogSegmentMetadataRecord (api key 0), RemoteLogSegmentMetadataRecordUpdate (1) and
RemotePartitionDeleteMetadataRecord (2).
"""

from __future__ import annotations

from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_codec import Reader, Writer
from tidemark.types import TopicIdPartition, uuid_to_text
from tiering.errors import RemoteStorageError
from tiering.metadata.segments import (
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
    """Encodes `metadata` as the value of a record."""
    out = Writer()
    out.unsigned_varint(_FRAME_VERSION)
    if isinstance(metadata, RemoteLogSegmentMetadata):
        _begin(out, _SEGMENT)
        _put_segment(out, metadata)
    elif isinstance(metadata, RemoteLogSegmentMetadataUpdate):
        _begin(out, _UPDATE)
        _put_segment_id(out, metadata.remote_log_segment_id)
        out.int32(metadata.broker_id)
        out.int64(metadata.event_timestamp_ms)
        out.compact_bytes(metadata.custom_metadata)
        out.int8(metadata.state)
        out.tagged_fields()
    else:
        _begin(out, _PARTITION_DELETE)
        _put_partition(out, metadata.topic_id_partition)
        out.int32(metadata.broker_id)
        out.int64(metadata.event_timestamp_ms)
        out.int8(metadata.state)
        out.tagged_fields()
    return out.getvalue()


def decode(value: bytes | memoryview) -> RemoteLogMetadata:
    """Decodes the metadata in a record's value.

    Raises RemoteStorageError for malformed bytes, and for those of a later version.
    """
    reader = Reader(value)
    try:
        frame = reader.unsigned_varint()
        api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
        if frame != _FRAME_VERSION or version != 0:
            raise RemoteStorageError(
                f"a remote log metadata record has frame {frame}, version {version}: "
                "it was written by a later release"
            )
        metadata = _decode_message(api_key, reader)
    except (CorruptMessageError, ValueError) as error:
        raise RemoteStorageError(f"a remote log metadata record is malformed: {error}") from error
    if reader.remaining:
        raise RemoteStorageError("a remote log metadata record has bytes behind its end")
    return metadata


def format_metadata(metadata: RemoteLogMetadata) -> str:
    """Formats the record as Kafka's dump tool does (--remote-log-metadata-decoder)."""
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


def _begin(out: Writer, api_key: int) -> None:
    out.unsigned_varint(api_key)
    out.unsigned_varint(0)


def _put_partition(out: Writer, partition: TopicIdPartition) -> None:
    out.compact_string(partition.topic)
    out.uuid(partition.topic_id)
    out.int32(partition.partition)
    out.tagged_fields()


def _put_segment_id(out: Writer, segment_id: RemoteLogSegmentId) -> None:
    _put_partition(out, segment_id.topic_id_partition)
    out.uuid(segment_id.id)
    out.tagged_fields()


def _put_segment(out: Writer, metadata: RemoteLogSegmentMetadata) -> None:
    _put_segment_id(out, metadata.remote_log_segment_id)
    out.int64(metadata.start_offset)
    out.int64(metadata.end_offset)
    out.int32(metadata.broker_id)
    out.int64(metadata.max_timestamp_ms)
    out.int64(metadata.event_timestamp_ms)
    out.compact_array_length(len(metadata.segment_leader_epochs))
    for entry in metadata.segment_leader_epochs:
        out.int32(entry.epoch)
        out.int64(entry.start_offset)
        out.tagged_fields()
    out.int32(metadata.segment_size_bytes)
    out.compact_bytes(metadata.custom_metadata)
    out.int8(metadata.state)
    # False is the field's default, which Kafka does not write.
    out.tagged_fields({_TAG_TXN_INDEX_EMPTY: b"\1"} if metadata.txn_index_empty else None)


def _decode_message(api_key: int, reader: Reader) -> RemoteLogMetadata:
    if api_key == _SEGMENT:
        return _decode_segment(reader)
    if api_key == _UPDATE:
        return _decode_update(reader)
    if api_key == _PARTITION_DELETE:
        partition = _decode_partition(reader)
        broker_id, event_timestamp_ms = reader.int32(), reader.int64()
        state = RemotePartitionDeleteState(reader.int8())
        reader.tagged_fields()
        return RemotePartitionDeleteMetadata(partition, state, event_timestamp_ms, broker_id)
    raise RemoteStorageError(f"a remote log metadata record has the unknown api key {api_key}")


def _decode_update(reader: Reader) -> RemoteLogSegmentMetadataUpdate:
    segment_id = _decode_segment_id(reader)
    broker_id, event_timestamp_ms = reader.int32(), reader.int64()
    custom = reader.compact_bytes()
    state = RemoteLogSegmentState(reader.int8())
    reader.tagged_fields()
    return RemoteLogSegmentMetadataUpdate(segment_id, event_timestamp_ms, state, broker_id, custom)


def _decode_partition(reader: Reader) -> TopicIdPartition:
    name = reader.non_null_string()
    topic_id = reader.uuid()
    partition = reader.int32()
    reader.tagged_fields()
    return TopicIdPartition(topic_id, name, partition)


def _decode_segment_id(reader: Reader) -> RemoteLogSegmentId:
    partition = _decode_partition(reader)
    identity = reader.uuid()
    reader.tagged_fields()
    return RemoteLogSegmentId(partition, identity)


def _decode_epoch(reader: Reader) -> EpochEntry:
    entry = EpochEntry(reader.int32(), reader.int64())
    reader.tagged_fields()
    return entry


def _decode_segment(reader: Reader) -> RemoteLogSegmentMetadata:
    segment_id = _decode_segment_id(reader)
    start_offset, end_offset = reader.int64(), reader.int64()
    broker_id = reader.int32()
    max_timestamp_ms, event_timestamp_ms = reader.int64(), reader.int64()
    epochs = tuple(_decode_epoch(reader) for _ in range(reader.non_null_array_length()))
    size_bytes = reader.int32()
    custom = reader.compact_bytes()
    state = RemoteLogSegmentState(reader.int8())
    tags = reader.tagged_fields()
    return RemoteLogSegmentMetadata(
        segment_id,
        start_offset,
        end_offset,
        max_timestamp_ms,
        broker_id,
        event_timestamp_ms,
        size_bytes,
        epochs,
        state,
        custom,
        tags.get(_TAG_TXN_INDEX_EMPTY, b"\0") != b"\0",
    )
