"""Offsets in requests and answers of a coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.client.models import OffsetAndMetadata
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2 as pb

Codes = Iterable[tuple[int, str]]


def checked_partition(partition: TopicPartition | tuple[str, int]) -> TopicPartition:
    """Raises ValueError for what no request can name: it would fail for all that it asks."""
    topic, number = partition
    if not isinstance(topic, str) or not isinstance(number, int) or not 0 <= number < 1 << 31:
        raise ValueError(f"{partition!r} is no partition: (topic, number) is")
    try:
        is_named = bool(topic.encode())
    except UnicodeEncodeError:
        is_named = False
    if not is_named:
        raise ValueError(f"{partition!r} is no partition: its topic has no name")
    return TopicPartition(topic, number)


def offsets_of(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets as a caller may give them. Raises ValueError for a negative or too large one, and
    TypeError for what is none."""
    found = {
        checked_partition(partition): (
            OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        )
        for partition, offset in offsets.items()
    }
    for partition, committed in found.items():
        if not isinstance(committed, OffsetAndMetadata) or isinstance(committed.offset, bool):
            raise TypeError(f"{partition}: an int or OffsetAndMetadata, not {committed!r}")
        if not 0 <= committed.offset < 1 << 63:
            raise ValueError(f"{partition}: an offset is not negative: {committed.offset}")
    return found


def commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: Mapping[TopicPartition, bytes] | None = None,
) -> pb.OffsetCommitRequest:
    """A commit; `ids` are the topic ids, where they are known."""
    request = pb.OffsetCommitRequest(group_id=group_id)
    topics: dict[str, pb.OffsetCommitRequest.Topic] = {}
    for partition, committed in offsets.items():
        if partition.topic not in topics:
            topics[partition.topic] = request.topics.add(
                name=partition.topic, topic_id=(ids or {}).get(partition, b"")
            )
        item = topics[partition.topic].partitions.add(
            partition_index=partition.partition,
            committed_offset=committed.offset,
            committed_metadata=committed.metadata,
        )
        if committed.leader_epoch is not None:
            item.committed_leader_epoch = committed.leader_epoch
    return request


def committed_in(answer: pb.OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets of an answer, of the partitions that have one."""
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for group in answer.groups:
        for topic in group.topics:
            for item in topic.partitions:
                if item.committed_offset >= 0:
                    epoch = item.committed_leader_epoch
                    found[TopicPartition(topic.name, item.partition_index)] = OffsetAndMetadata(
                        item.committed_offset, None if epoch < 0 else epoch, item.metadata
                    )
    return found


def of_commit(answer: pb.OffsetCommitResponse) -> Codes:
    """The errors of an answer, with what they are about."""
    yield answer.error_code, answer.error_message
    for topic in answer.topics:
        for item in topic.partitions:
            yield item.error_code, f"{topic.name}-{item.partition_index}"


def of_fetch(answer: pb.OffsetFetchResponse) -> Codes:
    """The errors of an answer, with what they are about."""
    for group in answer.groups:
        yield group.error_code, group.error_message
        for topic in group.topics:
            for item in topic.partitions:
                yield item.error_code, f"{topic.name}-{item.partition_index}"
