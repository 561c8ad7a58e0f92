"""Hand-made partition records equal protobuf's byte for byte; unusual ones go through protobuf."""

from __future__ import annotations

from uuid import UUID

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.image import (
    EMPTY_IMAGE,
    InconsistentMetadataError,
    MetadataDelta,
    PartitionRegistration,
)
from quorum.image import records as r
from quorum.image.partition_codec import (
    partition_encoder,
    partition_from_value,
    topic_field,
)
from quorum.image.types import LeaderRecoveryState
from tidemark.v1 import metadata_pb2 as pb

TOPIC_ID = UUID(int=0x1220_5A10_0803_1A03_2203_3801_4801_5001)
FIELD = topic_field(TOPIC_ID.bytes)

node_ids = st.one_of(
    st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 2**31 - 1), max_size=4)
).map(tuple)
small_ids = st.lists(st.integers(0, 127), min_size=1, max_size=6).map(tuple)
rarely_ids = st.one_of(st.just(()), st.just(()), node_ids)
epochs = st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1))
directories = st.lists(st.binary(min_size=16, max_size=16).map(lambda b: UUID(bytes=b)), max_size=3)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRegistration:
    replicas = draw(st.one_of(small_ids, node_ids))
    return PartitionRegistration(
        replicas=replicas,
        isr=draw(st.one_of(st.just(replicas), small_ids, node_ids)),
        leader=draw(st.one_of(st.none(), st.integers(0, 300))),
        leader_epoch=draw(epochs),
        partition_epoch=draw(epochs),
        leader_recovery_state=draw(st.sampled_from(LeaderRecoveryState)),
        removing=draw(rarely_ids),
        adding=draw(rarely_ids),
        elr=draw(rarely_ids),
        last_known_elr=draw(rarely_ids),
        directories=tuple(draw(st.one_of(st.just([]), directories))),
    )


indexes = st.one_of(st.integers(0, 300), st.integers(0, 2**31 - 1))


def by_protobuf(value: bytes) -> tuple[int, PartitionRegistration]:
    record = r.decode_record(value).partition
    return record.partition_id, r.partition_from_record(record)


@settings(max_examples=200, deadline=None)
@given(indexes, partitions())
def test_the_bytes_are_protobufs_and_are_read_as_protobuf_does(
    index: int, partition: PartitionRegistration
) -> None:
    value = partition_encoder(TOPIC_ID)(index, partition)
    assert value == r.encode_record(r.partition_record(TOPIC_ID, index, partition))
    found = partition_from_value(value, FIELD)
    assert found in (None, (index, partition))
    assert by_protobuf(value) == (index, partition)


def test_what_nearly_every_partition_looks_like_needs_no_protobuf() -> None:
    for index in (0, 1, 127, 128, 9_999):
        for directories in ((), (UUID(int=1), UUID(int=0x5A10), UUID(int=3))):
            partition = PartitionRegistration((3, 1, 2), (1, 2), 1, 7, 9, directories=directories)
            value = partition_encoder(TOPIC_ID)(index, partition)
            assert partition_from_value(value, FIELD) == (index, partition)


@settings(max_examples=250, deadline=None)
@given(
    partitions(),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(0, 100)),
)
def test_damaged_bytes_are_read_as_protobuf_reads_them_or_not_at_all(
    partition: PartitionRegistration, flips: list[tuple[int, int]], cut: int | None
) -> None:
    damaged = bytearray(r.encode_record(r.partition_record(TOPIC_ID, 5, partition)))
    for position, byte in flips:
        damaged[position % len(damaged)] = byte
    value = bytes(damaged[:cut])
    try:
        found = partition_from_value(value, FIELD)
    except ValueError:  # an unknown leader recovery state
        with pytest.raises(ValueError, match="LeaderRecoveryState"):
            by_protobuf(value)
        return
    if found is not None:
        record = r.decode_record(value)
        assert record.WhichOneof("record") == "partition"
        assert record.partition.topic_id == TOPIC_ID.bytes
        assert by_protobuf(value) == found


def test_a_run_of_partitions_ends_with_its_topic() -> None:
    other = UUID(int=7)
    partition = PartitionRegistration((1, 2), (1, 2), 1)
    values = [
        r.encode_record(r.topic_record("a", TOPIC_ID)),
        r.encode_record(r.topic_record("b", other)),
        *(partition_encoder(TOPIC_ID)(index, partition) for index in (0, 1)),
        partition_encoder(other)(0, partition),
        partition_encoder(TOPIC_ID)(2, partition),
    ]
    delta = MetadataDelta(EMPTY_IMAGE)
    for value in values:
        delta.replay_value(value)
    image = delta.apply(5, 1)
    assert {topic.name: sorted(topic.partitions) for topic in image.topics} == {
        "a": [0, 1, 2],
        "b": [0],
    }


def test_a_deleted_topic_takes_no_more_partitions_and_its_name_is_free() -> None:
    value = partition_encoder(TOPIC_ID)(0, PartitionRegistration((1,), (1,), 1))
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(r.topic_record("a", TOPIC_ID))
    delta.replay_value(value)
    delta.replay_value(value)
    delta.replay(pb.MetadataRecord(remove_topic=pb.RemoveTopicRecord(topic_id=TOPIC_ID.bytes)))
    assert not delta.topic_named("a")
    with pytest.raises(InconsistentMetadataError):
        delta.replay_value(value)


@pytest.mark.parametrize("value", [b"\x22", b"\x22\x05", b"\x22\xff\xff\xff", b"\xff"])
def test_a_value_that_is_no_record_is_told(value: bytes) -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(r.topic_record("a", TOPIC_ID))
    delta.replay_value(partition_encoder(TOPIC_ID)(0, PartitionRegistration((1,), (1,), 1)))
    with pytest.raises(DecodeError):
        delta.replay_value(value)
