"""The image: replay, snapshots, deltas, damaged logs."""

from __future__ import annotations

import random
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.image import (
    EMPTY_IMAGE,
    InconsistentMetadataError,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    diff,
)
from quorum.image import records as r
from quorum.image.delta import _REPLAY
from tests.quorum.image.strategies import History
from tidemark.v1 import metadata_pb2 as pb

TOPIC_ID = UUID(int=77)


def replayed(records: list[pb.MetadataRecord], image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay_value(r.encode_record(record))
    return delta.apply(image.offset + len(records), 1)


def in_batches(
    records: list[pb.MetadataRecord], rng: random.Random
) -> tuple[MetadataImage, list[MetadataDelta]]:
    image, deltas, start = EMPTY_IMAGE, [], 0
    while start < len(records):
        end = min(len(records), start + rng.randint(1, 7))
        delta = MetadataDelta(image)
        for record in records[start:end]:
            delta.replay(record)
        image = delta.apply(end - 1, 1)
        deltas.append(delta)
        start = end
    return image, deltas


def new_topic(name: str = "t", topic_id: UUID = TOPIC_ID) -> list[pb.MetadataRecord]:
    partition = PartitionRegistration((1, 2, 3), (1, 2, 3), 1)
    return [r.topic_record(name, topic_id), r.partition_record(topic_id, 0, partition)]


def test_every_kind_of_record_has_a_replay() -> None:
    fields = pb.MetadataRecord.DESCRIPTOR.oneofs_by_name["record"].fields
    assert set(_REPLAY) == {field.name for field in fields}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_a_snapshot_says_byte_for_byte_what_the_full_replay_says(seed: int, count: int) -> None:
    records = History(random.Random(seed)).records(count)
    full = replayed(records)
    restored = replayed(list(full.records()))
    assert list(restored.values()) == list(full.values())
    assert restored.topics == full.topics
    assert restored.brokers == full.brokers
    assert (restored.configs, restored.features) == (full.configs, full.features)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_batches_of_any_size_lead_to_the_same_image(seed: int, count: int) -> None:
    rng = random.Random(seed)
    records = History(rng).records(count)
    batched, _ = in_batches(records, rng)
    whole = replayed(records)
    assert list(batched.values()) == list(whole.values())
    if records:
        assert batched.offset == whole.offset


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 80))
def test_the_difference_of_two_images_leads_from_one_to_the_other(
    seed: int, first: int, second: int
) -> None:
    history = History(random.Random(seed))
    before = replayed(history.records(first))
    after = replayed(history.records(second), before)
    delta = diff(before, after)
    assert delta.apply(after.offset, after.epoch) == after
    assert diff(after, after).is_empty


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 100))
def test_an_old_image_never_changes(seed: int, count: int) -> None:
    history = History(random.Random(seed))
    before = replayed(history.records(count))
    written = list(before.values())
    replayed(history.records(count), before)
    assert list(before.values()) == written


def test_a_changed_leader_raises_its_epoch_and_any_change_the_partitions() -> None:
    image = replayed(new_topic())
    isr = pb.PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC_ID.bytes, isr=pb.NodeIds(ids=(1, 2))
    )
    leader = pb.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID.bytes, leader=2)
    changes = [pb.MetadataRecord(partition_change=c) for c in (isr, leader)]
    partition = replayed(changes, image).topics.partition(TOPIC_ID, 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (2, 1, 2)
    assert partition.isr == (1, 2)


def test_the_delta_tells_only_the_partitions_that_changed() -> None:
    other = UUID(int=78)
    image = replayed([*new_topic(), *new_topic("u", other)])
    delta = MetadataDelta(image)
    change = pb.PartitionChangeRecord(partition_id=0, topic_id=other.bytes, leader=2)
    delta.replay(pb.MetadataRecord(partition_change=change))
    assert list(delta.topics_changed) == [other]
    after = delta.apply(10, 1)
    assert after.topics.by_id(TOPIC_ID) is image.topics.by_id(TOPIC_ID)


def test_a_name_is_free_again_in_the_batch_that_deletes_its_topic() -> None:
    image = replayed(new_topic())
    remove = pb.MetadataRecord(remove_topic=pb.RemoveTopicRecord(topic_id=TOPIC_ID.bytes))
    after = replayed([remove, *new_topic("t", UUID(int=78))], image)
    topic = after.topics.get("t")
    assert topic is not None and topic.topic_id == UUID(int=78)
    assert len(after.topics) == 1


def test_the_settings_of_a_topic_go_with_it() -> None:
    image = replayed([*new_topic(), r.config_record(2, "t", "retention.ms", "1")])
    assert dict(image.topic_configs("t")) == {"retention.ms": "1"}
    remove = pb.MetadataRecord(remove_topic=pb.RemoveTopicRecord(topic_id=TOPIC_ID.bytes))
    assert not replayed([remove], image).configs


def test_nothing_but_the_offset_changes_with_a_no_op() -> None:
    image = replayed(new_topic())
    delta = MetadataDelta(image)
    delta.replay(pb.MetadataRecord(no_op=pb.NoOpRecord()))
    after = delta.apply(9, 2)
    assert delta.is_empty
    assert (after.offset, after.epoch) == (9, 2)
    assert after.topics is image.topics


@pytest.mark.parametrize(
    "record",
    [
        pb.MetadataRecord(),
        pb.MetadataRecord(remove_topic=pb.RemoveTopicRecord(topic_id=UUID(int=5).bytes)),
        pb.MetadataRecord(
            partition_change=pb.PartitionChangeRecord(partition_id=4, topic_id=TOPIC_ID.bytes)
        ),
        pb.MetadataRecord(unregister_broker=pb.UnregisterBrokerRecord(broker_id=9)),
        r.topic_record("t", UUID(int=6)),
    ],
    ids=["unknown kind", "unknown topic", "unknown partition", "unknown broker", "name taken"],
)
def test_a_record_that_contradicts_the_image_is_refused(record: pb.MetadataRecord) -> None:
    image = replayed(new_topic())
    with pytest.raises(InconsistentMetadataError):
        MetadataDelta(image).replay(record)


def test_a_partition_takes_less_than_300_bytes() -> None:
    rng = random.Random(1)
    records = []
    for topic in range(50):
        topic_id = UUID(int=rng.getrandbits(128), version=4)
        records.append(r.topic_record(f"topic-{topic}", topic_id))
        for index in range(100):
            replicas = tuple(rng.sample(range(20), 3))
            records.append(
                r.partition_record(
                    topic_id, index, PartitionRegistration(replicas, replicas, replicas[0])
                )
            )
    values = [r.encode_record(record) for record in records]
    delta = MetadataDelta(EMPTY_IMAGE)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for value in values:
        delta.replay_value(value)
    image = delta.apply(len(values), 1)
    del delta
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert image.partition_count() == 5_000
    assert used / 5_000 < 300


@pytest.mark.parametrize(
    ("isr", "elr", "last_known", "counts"),
    [
        ((1,), (), (), True),
        ((2,), (1,), (), True),
        ((2,), (), (1,), False),
        ((), (2,), (1,), False),
        ((), (1,), (2,), True),
        ((), (), (1,), True),
        ((), (), (), False),
    ],
)
def test_a_partition_counts_on_replicas_that_can_lead_without_loss(
    isr: tuple[int, ...], elr: tuple[int, ...], last_known: tuple[int, ...], counts: bool
) -> None:
    p = PartitionRegistration((1, 2), isr, None, elr=elr, last_known_elr=last_known)
    assert p.counts_on(1) is counts


def test_a_directory_is_noted_beside_those_of_the_other_replicas() -> None:
    first, second = UUID(int=1000), UUID(int=1001)
    p = PartitionRegistration((1, 2), (1,), 1)
    p = p._replace(directories=p.directories_with(2, second))
    assert (p.directory_of(1), p.directory_of(2)) == (None, second)
    p = p._replace(directories=p.directories_with(1, first))
    assert (p.directory_of(1), p.directory_of(2)) == (first, second)
