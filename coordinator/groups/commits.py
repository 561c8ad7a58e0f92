"""Decides on offsets: commit, fetch, delete, expire (KIP-211, KIP-447, KIP-848).

A member commits with its epoch. A commit that was under way in a rebalance has an earlier one: it
counts for partitions that the member has had since then. Who is no member may commit for a group
that has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from coordinator.groups.group import ConsumerGroup
from coordinator.groups.offsets import CommittedOffset, OffsetStore
from coordinator.records.groups import OffsetCommitKey, OffsetCommitValue
from coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from quorum.image import MetadataImage
from tidemark.errors import (
    ErrorCode,
    GroupIdNotFoundError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicIdError,
)
from tidemark.types import ZERO_UUID
from tidemark.v1 import group_pb2 as pb


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit. Who is no member has an empty `member_id` and an epoch below 0."""

    group_id: str
    member_id: str
    member_epoch: int
    topics: Iterable[pb.OffsetCommitRequest.Topic]


def commit(
    request: Commit,
    group: ConsumerGroup | None,
    image: MetadataImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> CoordinatorResult[pb.OffsetCommitResponse]:
    """Raises GroupIdNotFoundError, UnknownMemberIdError, StaleMemberEpochError and
    UnknownTopicIdError."""
    held = _check_member(request, group)
    records: list[CoordinatorRecord] = []
    answer = pb.OffsetCommitResponse()
    for topic in request.topics:
        topic_id = _topic_id(topic, image)
        answered = answer.topics.add(name=topic.name)
        for found in topic.partitions:
            number, text = found.partition_index, found.committed_metadata
            if held is not None:
                _check_held(held, request, topic_id, topic.name, number)
            if found.committed_offset < 0:
                code = ErrorCode.INVALID_REQUEST
            elif len(text.encode()) > metadata_max_bytes:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                code = ErrorCode.NONE
                epoch = -1
                if found.HasField("committed_leader_epoch"):
                    epoch = found.committed_leader_epoch
                key = OffsetCommitKey(request.group_id, topic.name, number)
                value = OffsetCommitValue(
                    found.committed_offset, epoch, text, now_ms, topic_id=topic_id
                )
                records.append((key, value))
            answered.partitions.add(partition_index=number, error_code=int(code))
    return CoordinatorResult(answer, tuple(records))


def _check_member(
    request: Commit, group: ConsumerGroup | None
) -> dict[UUID, dict[int, int]] | None:
    """None if the member may commit all; else what it has, with the epochs since when."""
    is_member = request.member_epoch >= 0 or bool(request.member_id)
    if group is None:
        if is_member:
            raise GroupIdNotFoundError(f"there is no group {request.group_id}: join it first")
        return None
    if not is_member and not group.members:
        return None
    member = group.members.get(request.member_id)
    if member is None:
        raise UnknownMemberIdError(
            f"group {group.group_id} has no member {request.member_id!r}: join again"
            if is_member
            else f"group {group.group_id} has members: only they commit its offsets"
        )
    if request.member_epoch == member.member_epoch:
        return None
    if request.member_epoch > member.member_epoch:
        raise StaleMemberEpochError(
            f"member {member.member_id} has epoch {member.member_epoch}, not {request.member_epoch}"
        )
    return {
        topic_id: {**member.revoking.get(topic_id, {}), **member.assigned.get(topic_id, {})}
        for topic_id in {*member.assigned, *member.revoking}
    }


def _check_held(
    held: dict[UUID, dict[int, int]], request: Commit, topic_id: UUID, topic: str, number: int
) -> None:
    since = held.get(topic_id, {}).get(number)
    if since is None or since > request.member_epoch:
        raise StaleMemberEpochError(
            f"member {request.member_id} did not have {topic}-{number} in epoch"
            f" {request.member_epoch}: send a heartbeat, then commit what it still has"
        )


def _topic_id(topic: pb.OffsetCommitRequest.Topic, image: MetadataImage) -> UUID:
    """The id of the topic; of zeros while it is not known."""
    known = image.topics.get(topic.name)
    if topic.topic_id and (known is None or known.topic_id.bytes != topic.topic_id):
        raise UnknownTopicIdError(
            f"topic {topic.name} was deleted or made anew: its offsets are of another topic"
        )
    return ZERO_UUID if known is None else known.topic_id


def check_fetcher(group: ConsumerGroup | None, member_id: str, member_epoch: int) -> None:
    """Raises UnknownMemberIdError or StaleMemberEpochError for a member that was fenced."""
    if member_epoch < 0 and not member_id:
        return
    member = None if group is None else group.members.get(member_id)
    if member is None:
        raise UnknownMemberIdError(f"there is no member {member_id} any more: join again")
    if member_epoch != member.member_epoch:
        raise StaleMemberEpochError(
            f"member {member_id} has epoch {member.member_epoch}, not {member_epoch}"
        )


def fetch(
    request: pb.OffsetFetchRequest.Group,
    offsets: OffsetStore,
    require_stable: bool,
    image: MetadataImage,
) -> pb.OffsetFetchResponse.Group:
    """The offsets that are asked for; -1 where none is committed, or of an earlier topic of the
    same name."""
    group_id = request.group_id
    answer = pb.OffsetFetchResponse.Group(group_id=group_id)
    if request.all_topics:
        wanted: dict[str, Iterable[int]] = {
            topic: sorted(partitions)
            for topic, partitions in sorted(offsets.by_group.get(group_id, {}).items())
        }
    else:
        wanted = {topic.name: topic.partition_indexes for topic in request.topics}
    for name, numbers in wanted.items():
        topic, known = answer.topics.add(name=name), image.topics.get(name)
        for number in numbers:
            found = offsets.get(group_id, name, number)
            if found is not None and known is not None:
                found = found if found.topic_id in (ZERO_UUID, known.topic_id) else None
            if require_stable and offsets.is_pending(group_id, name, number):
                _add(topic, number, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            else:
                _add(topic, number, found, ErrorCode.NONE)
    return answer


def _add(
    topic: pb.OffsetFetchResponse.Topic,
    number: int,
    found: CommittedOffset | None,
    code: ErrorCode,
) -> None:
    topic.partitions.add(
        partition_index=number,
        committed_offset=-1 if found is None else found.offset,
        committed_leader_epoch=-1 if found is None else found.leader_epoch,
        metadata="" if found is None else found.metadata,
        error_code=int(code),
        commit_timestamp_ms=-1 if found is None else found.commit_timestamp_ms,
    )


def delete(
    request: pb.OffsetDeleteRequest, group: ConsumerGroup | None, offsets: OffsetStore
) -> CoordinatorResult[pb.OffsetDeleteResponse]:
    """Deletes offsets of topics without a subscriber."""
    records: list[CoordinatorRecord] = []
    answer = pb.OffsetDeleteResponse()
    for topic in request.topics:
        answered = answer.topics.add(name=topic.name)
        is_in_use = group is not None and group.is_subscribed_to(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_in_use else ErrorCode.NONE
        for number in topic.partition_indexes:
            answered.partitions.add(partition_index=number, error_code=int(code))
            known = offsets.get(request.group_id, topic.name, number)
            pending = offsets.is_pending(request.group_id, topic.name, number)
            if not is_in_use and (known is not None or pending):
                records.append((OffsetCommitKey(request.group_id, topic.name, number), None))
    return CoordinatorResult(answer, tuple(records))


def expired(
    group_id: str,
    group: ConsumerGroup | None,
    offsets: OffsetStore,
    retention_ms: int,
    now_ms: int,
) -> list[CoordinatorRecord]:
    """Tombstones of offsets that are older than their retention, of topics that no member
    subscribes to, and that no open transaction commits."""
    found: list[CoordinatorRecord] = []
    for topic, number, committed in offsets.all_of(group_id):
        if group is not None and group.is_subscribed_to(topic):
            continue
        end_ms = committed.expire_timestamp_ms
        if end_ms < 0:
            end_ms = committed.commit_timestamp_ms + retention_ms
        if now_ms >= end_ms and not offsets.is_pending(group_id, topic, number):
            found.append((OffsetCommitKey(group_id, topic, number), None))
    return found
