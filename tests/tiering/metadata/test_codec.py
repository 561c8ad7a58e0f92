"""Records of __remote_log_metadata are Kafka's, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.records import decode_batch, iter_batches
from tidemark.types import TopicIdPartition, uuid_from_text, uuid_to_text
from tiering.errors import RemoteStorageError
from tiering.metadata.codec import decode, encode, format_metadata
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0" / "tier"
LOGS = sorted(GOLDEN.glob("__remote_log_metadata-*/*.log"))


def golden_values() -> list[tuple[bytes, str]]:
    """Returns every value in the golden logs with the text that Kafka's decoder printed for it."""
    found = []
    for path in LOGS:
        buffer = path.read_bytes()
        values = [
            record.value
            for position, _ in iter_batches(buffer)
            for record in decode_batch(buffer, position)
        ]
        texts = re.findall(r"payload: (.*)", path.with_name(path.name + ".dump.txt").read_text())
        assert len(values) == len(texts)
        found += [(bytes(value or b""), text) for value, text in zip(values, texts, strict=True)]
    return found


def test_every_golden_record_is_decoded_as_kafkas_own_tool_does() -> None:
    assert len(golden_values()) == 16
    for value, text in golden_values():
        assert format_metadata(decode(value)) == text


def test_every_golden_record_is_written_again_byte_for_byte() -> None:
    for value, _ in golden_values():
        assert encode(decode(value)) == value


def test_all_four_segment_states_are_in_the_golden_records() -> None:
    states = {decode(value).state for value, _ in golden_values()}
    assert states == set(RemoteLogSegmentState)


topic_id_partitions = st.builds(
    TopicIdPartition,
    st.uuids(),
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    st.integers(0, 2**31 - 1),
)
segment_ids = st.builds(RemoteLogSegmentId, topic_id_partitions, st.uuids())
offsets = st.integers(0, 2**63 - 1)
times = st.integers(-1, 2**63 - 1)
brokers = st.integers(-1, 2**31 - 1)
customs = st.none() | st.binary(max_size=200)
segments = st.builds(
    lambda low, more, **rest: RemoteLogSegmentMetadata(
        start_offset=low, end_offset=min(low + more, 2**63 - 1), **rest
    ),
    offsets,
    offsets,
    remote_log_segment_id=segment_ids,
    max_timestamp_ms=times,
    broker_id=brokers,
    event_timestamp_ms=times,
    segment_size_bytes=st.integers(0, 2**31 - 1),
    segment_leader_epochs=st.lists(
        st.builds(EpochEntry, st.integers(0, 2**31 - 1), offsets), min_size=1, max_size=5
    ).map(tuple),
    state=st.sampled_from(RemoteLogSegmentState),
    custom_metadata=customs,
    txn_index_empty=st.booleans(),
)
updates = st.builds(
    RemoteLogSegmentMetadataUpdate,
    segment_ids,
    times,
    st.sampled_from(RemoteLogSegmentState),
    brokers,
    customs,
)
deletes = st.builds(
    RemotePartitionDeleteMetadata,
    topic_id_partitions,
    st.sampled_from(RemotePartitionDeleteState),
    times,
    brokers,
)


@settings(max_examples=200, deadline=None)
@given(segments | updates | deletes)
def test_what_is_encoded_decodes_to_itself(
    metadata: RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDeleteMetadata,
) -> None:
    assert decode(encode(metadata)) == metadata


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_damaged_records_raise_and_never_hang(garbage: bytes, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from([value for value, _ in golden_values()]))
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(RemoteStorageError):
        decode(value[:cut])
    try:
        decode(garbage)
    except RemoteStorageError:
        return


def test_a_partition_deletion_reads_as_kafkas_decoder_prints_it() -> None:
    partition = TopicIdPartition(uuid_from_text("JYZJfjPISGmfuDHyZE0c6w"), "gone", 0)
    record = RemotePartitionDeleteMetadata(
        partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 17, 1
    )
    assert format_metadata(record) == (
        "RemotePartitionDeleteMetadata{topicPartition=JYZJfjPISGmfuDHyZE0c6w:gone-0, "
        "state=DELETE_PARTITION_MARKED, eventTimestampMs=17, brokerId=1}"
    )


def test_custom_metadata_is_told_by_its_size() -> None:
    update = RemoteLogSegmentMetadataUpdate(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=7), "t", 0), UUID(int=8)),
        1,
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        2,
        b"abc",
    )
    assert "customMetadata=Optional[CustomMetadata{3 bytes}]" in format_metadata(update)
    assert uuid_to_text(UUID(int=8)) in format_metadata(update)
