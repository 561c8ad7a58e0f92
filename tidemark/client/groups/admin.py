"""Administration of consumer groups: list, describe, offsets, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from tidemark.client.connections import Connections
from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.groups.requests import commit_request, committed_in, of_commit, of_fetch
from tidemark.client.metadata import MetadataCache
from tidemark.client.models import (
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    OffsetAndMetadata,
)
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ApiError, ErrorCode, raise_for
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2 as pb

_LIST = "/tidemark.v1.Groups/ListGroups"


class AsyncGroupAdmin:
    """The groups of a cluster; `AsyncAdmin.groups`. Retriable errors are raised only after the
    default timeout."""

    def __init__(
        self, connections: Connections, metadata: MetadataCache, retry: RetryPolicy, rng: Random
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._retry = retry
        self._rng = rng

    def _calls(self, group_id: str) -> CoordinatorCalls:
        return CoordinatorCalls(
            group_id, pb.GROUP, self._connections, self._metadata, self._retry, self._rng
        )

    async def list(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """The groups of all brokers, by id, in these states and of these types (default: all)."""
        request = pb.ListGroupsRequest(states_filter=states, types_filter=types)
        await self._metadata.refresh()
        answers = await asyncio.gather(
            *(self._list_of(broker_id, request) for broker_id in self._metadata.brokers)
        )
        found = {
            group.group_id: GroupListing(group.group_id, group.group_state, group.group_type)
            for answer in answers
            for group in answer.groups
        }
        return [found[group_id] for group_id in sorted(found)]

    async def _list_of(
        self, broker_id: int, request: pb.ListGroupsRequest
    ) -> pb.ListGroupsResponse:
        tries = 0
        while True:
            tries += 1
            address = self._metadata.address(broker_id)
            if address is None:
                return pb.ListGroupsResponse()  # it stopped: others coordinate its groups by now
            try:
                answer = await self._connections.call(
                    address, _LIST, request, pb.ListGroupsResponse.FromString
                )
                raise_for(answer.error_code, answer.error_message)
                return answer
            except ApiError as error:
                wait_ms = self._retry.next_wait_ms(error, tries, tries * 1_000, self._rng)
                if wait_ms is None:
                    raise
                await asyncio.sleep(wait_ms / 1000)
                await self._metadata.refresh()

    async def describe(self, group_ids: Sequence[str]) -> dict[str, GroupDescription]:
        """Groups with their members. Raises GroupIdNotFoundError."""
        answers = await asyncio.gather(*(self._describe(each) for each in group_ids))
        return {found.group_id: found for found in answers}

    async def _describe(self, group_id: str) -> GroupDescription:
        request = pb.ConsumerGroupDescribeRequest(group_ids=[group_id])
        answer = await self._calls(group_id).call(
            lambda: request,
            pb.ConsumerGroupDescribeResponse,
            lambda found: ((group.error_code, group.error_message) for group in found.groups),
        )
        return _described(answer.groups[0])

    async def offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of a group; none of a group that does not exist."""
        request = pb.OffsetFetchRequest(require_stable=True)
        request.groups.add(group_id=group_id, all_topics=True)
        answer = await self._calls(group_id).call(lambda: request, pb.OffsetFetchResponse, of_fetch)
        return committed_in(answer)

    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commits offsets for a group without members. Raises UnknownMemberIdError if it has
        some."""
        await self._calls(group_id).call(
            lambda: commit_request(group_id, offsets), pb.OffsetCommitResponse, of_commit
        )

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ApiError | None]:
        """Deletes offsets; the outcome of each, which is GroupSubscribedToTopicError for a topic in
        use. Raises GroupIdNotFoundError."""
        request = pb.OffsetDeleteRequest(group_id=group_id)
        for topic, numbers in _by_topic(partitions).items():
            request.topics.add(name=topic, partition_indexes=numbers)
        answer = await self._calls(group_id).call(
            lambda: request,
            pb.OffsetDeleteResponse,
            lambda found: ((found.error_code, found.error_message),),
        )
        return {
            TopicPartition(topic.name, item.partition_index): _error(item.error_code, "")
            for topic in answer.topics
            for item in topic.partitions
        }

    async def delete(self, group_ids: Sequence[str]) -> dict[str, ApiError | None]:
        """Deletes groups without members, with their offsets; the outcome of each."""
        outcomes = await asyncio.gather(*(self._delete(each) for each in group_ids))
        return dict(zip(group_ids, outcomes, strict=True))

    async def _delete(self, group_id: str) -> ApiError | None:
        request = pb.DeleteGroupsRequest(group_ids=[group_id])
        try:
            await self._calls(group_id).call(
                lambda: request,
                pb.DeleteGroupsResponse,
                lambda found: ((each.error_code, each.error_message) for each in found.results),
            )
        except ApiError as error:
            return error
        return None


def _described(group: pb.ConsumerGroupDescribeResponse.DescribedGroup) -> GroupDescription:
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name,
        tuple(_member(member) for member in group.members),
    )


def _member(member: pb.ConsumerGroupDescribeResponse.Member) -> GroupMemberDescription:
    return GroupMemberDescription(
        member.member_id,
        member.instance_id if member.HasField("instance_id") else None,
        member.rack_id if member.HasField("rack_id") else None,
        member.client_id,
        member.client_host,
        member.member_epoch,
        tuple(member.subscribed_topic_names),
        member.subscribed_topic_regex if member.HasField("subscribed_topic_regex") else None,
        _partitions(member.assignment),
        _partitions(member.target_assignment),
    )


def _partitions(assignment: pb.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition.partition)
    return found


def _error(code: Any, message: str) -> ApiError | None:
    from tidemark.errors import error_for

    return None if int(code) == ErrorCode.NONE else error_for(int(code), message)
