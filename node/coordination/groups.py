"""The group coordinator of a broker: the service Groups, on the partitions that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import UUID

import grpc.aio
from google.protobuf.message import Message

from coordinator.groups.commits import Commit
from coordinator.groups.description import fill_assignment
from coordinator.groups.heartbeat import Heartbeat
from coordinator.groups.members import Assignment
from coordinator.groups.shard import GroupSettings, GroupShard, check_group_id
from coordinator.records.groups import GROUP_RECORDS
from coordinator.runtime.batches import TransactionalProducer
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult
from coordinator.runtime.runtime import CoordinatorRuntime
from node.coordination.internal_topics import CoordinatorTopic, InternalTopic
from node.coordination.serving import check_key_count, failed, serve_methods
from node.coordination.verification import TransactionVerifier
from node.runtime.clock import Clock
from node.runtime.tasks import cancel_all
from node.serving.callers import caller_of
from node.serving.throttling import Throttling
from quorum.image import MetadataDelta, MetadataImage
from quorum.services.admin_answers import node_of
from quorum.services.admin_service import ImageSource
from quorum.services.serving import Context
from tidemark.config import ServerConfig
from tidemark.errors import (
    ApiError,
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidCommitOffsetSizeError,
    InvalidRequestError,
    MessageTooLargeError,
    RecordListTooLargeError,
    StaleMemberEpochError,
)
from tidemark.types import GROUP_TOPIC, TopicPartition
from tidemark.v1 import group_pb2 as pb

A = TypeVar("A")

GROUPS = pb.DESCRIPTOR.services_by_name["Groups"]


def settings_of(config: ServerConfig) -> GroupSettings:
    """The group coordinator's part of the broker's settings."""
    return GroupSettings(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        max_size=config.group_consumer_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def group_topic(config: ServerConfig) -> InternalTopic:
    """The topic as it is made at its first use."""
    return InternalTopic(
        GROUP_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


class GroupCoordinator:
    """One per broker; a metadata publisher."""

    def __init__(
        self,
        config: ServerConfig,
        images: ImageSource,
        topic: CoordinatorTopic,
        transactions: CoordinatorTopic,
        verifier: TransactionVerifier,
        clock: Clock,
        throttling: Throttling,
    ) -> None:
        """`transactions` finds the coordinators of transactional ids, for FindCoordinator."""
        self._topics = {pb.GROUP: topic, pb.TRANSACTION: transactions}
        self._topic = topic
        self._verifier = verifier
        self._images = images
        self._clock = clock
        self._throttling = throttling
        self._interval_ms = config.group_consumer_heartbeat_interval_ms
        settings = settings_of(config)
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUP_TOPIC,
            GROUP_RECORDS,
            lambda: GroupShard(settings, lambda: images.image),
            self._now,
            config.offsets_commit_timeout_ms,
        )
        self._cleanings: set[asyncio.Task[None]] = set()
        self._methods: dict[str, Callable[[Any, Context, str], Awaitable[Message]]] = {
            "FindCoordinator": self._find_coordinator,
            "ConsumerGroupHeartbeat": self._heartbeat,
            "ConsumerGroupDescribe": self._describe,
            "OffsetCommit": self._commit,
            "TxnOffsetCommit": self._commit_in_transaction,
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete_offsets,
            "ListGroups": self._list,
            "DeleteGroups": self._delete,
        }

    def add_to(self, server: grpc.aio.Server, listener: str) -> None:
        """Serves Groups on a listener."""
        serve_methods(server, listener, GROUPS, self._methods, self._throttling)

    async def stop(self) -> None:
        """Drops all partitions."""
        self.runtime.stop()
        await cancel_all(*self._cleanings)

    # --- metadata

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Has groups look at changed topics, and forgets the offsets of deleted ones."""
        deleted = {topic_id: topic.name for topic_id, topic in delta.topics_deleted.items()}
        names = {topic.name for topic in delta.topics_changed.values()} | set(deleted.values())
        has_new_racks = bool(delta.brokers_changed)
        if not names and not has_new_racks:
            return
        for partition, shard in self.runtime.shards():
            shard.topics_changed(names, everything=has_new_racks)
            if deleted and shard.has_offsets_of(deleted):
                task = asyncio.ensure_future(self._forget(partition, deleted))
                self._cleanings.add(task)
                task.add_done_callback(self._cleanings.discard)

    async def _forget(self, partition: int, deleted: dict[UUID, str]) -> None:
        try:
            while not await self.runtime.write(
                partition, lambda shard: shard.forget_topics(deleted)
            ):
                continue
        except ApiError:
            return  # they do not count: their topic id is not that of any topic

    # --- requests

    def _partition(self, group_id: str) -> int:
        """The partition of a group. Raises InvalidGroupIdError, CoordinatorNotAvailableError."""
        check_group_id(group_id)
        return self._topic.partition_of(group_id)

    async def _find_coordinator(
        self, request: pb.FindCoordinatorRequest, context: Context, listener: str
    ) -> pb.FindCoordinatorResponse:
        check_key_count(request.coordinator_keys, "keys")
        answer = pb.FindCoordinatorResponse()
        for key in request.coordinator_keys:
            found = answer.coordinators.add(key=key, node_id=-1)
            try:
                topic = self._topics.get(request.key_type)
                if topic is None:
                    raise InvalidRequestError(f"there are no coordinators {request.key_type}")
                if not key:
                    raise InvalidRequestError("the coordinator key is empty")
                node = node_of(topic.coordinator_of(key), listener)
                found.node_id, found.host, found.port = node.node_id, node.host, node.port
            except ApiError as error:
                failed(found, error)
        return answer

    async def _write(
        self,
        group_id: str,
        decide: Callable[[GroupShard, Now], CoordinatorResult[A]],
        producer: TransactionalProducer | None = None,
    ) -> A:
        partition = self._partition(group_id)
        return await self.runtime.write(
            partition, lambda shard: decide(shard, self._now()), producer
        )

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.mono_ms())

    async def _heartbeat(
        self, request: pb.ConsumerGroupHeartbeatRequest, context: Context, listener: str
    ) -> pb.ConsumerGroupHeartbeatResponse:
        heartbeat = decoded(request, caller_of(context).client_id, _host_of(context))
        answer = await self._write(
            request.group_id, lambda shard, now: shard.heartbeat(heartbeat, now)
        )
        response = pb.ConsumerGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=self._interval_ms,
        )
        if answer.assignment is not None:
            response.assignment.SetInParent()
            fill_assignment(response.assignment, answer.assignment, self._images.image)
        return response

    async def _describe(
        self, request: pb.ConsumerGroupDescribeRequest, context: Context, listener: str
    ) -> pb.ConsumerGroupDescribeResponse:
        check_key_count(request.group_ids, "keys")
        answer = pb.ConsumerGroupDescribeResponse()
        for group_id in request.group_ids:
            try:
                look = partial(GroupShard.describe, group_id=group_id)
                found = await self.runtime.read(self._partition(group_id), look)
            except ApiError as error:
                missing = pb.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id)
                found = failed(missing, error)
            answer.groups.append(found)
        return answer

    async def _commit(
        self, request: pb.OffsetCommitRequest, context: Context, listener: str
    ) -> pb.OffsetCommitResponse:
        return await self._store(request)

    async def _commit_in_transaction(
        self, request: pb.TxnOffsetCommitRequest, context: Context, listener: str
    ) -> pb.OffsetCommitResponse:
        """Stores offsets in a transaction, to which the group's partition is added first."""
        if not request.transactional_id:
            raise InvalidRequestError("the transactional id is empty")
        producer = TransactionalProducer(request.producer_id, request.producer_epoch)
        group_id = request.offsets.group_id
        number = self._partition(group_id)
        self.runtime.shard_of(number)  # only the coordinator adds the partition
        await self._verifier.ensure(
            request.transactional_id, producer, TopicPartition(GROUP_TOPIC, number)
        )
        try:
            return await self._store(request.offsets, producer)
        except (StaleMemberEpochError, GroupIdNotFoundError) as error:
            raise IllegalGenerationError(str(error)) from error

    async def _store(
        self, request: pb.OffsetCommitRequest, producer: TransactionalProducer | None = None
    ) -> pb.OffsetCommitResponse:
        epoch = request.member_epoch if request.HasField("member_epoch") else -1
        commit = Commit(request.group_id, request.member_id, epoch, request.topics)
        try:
            return await self._write(
                request.group_id, lambda shard, now: shard.commit(commit, now), producer
            )
        except (MessageTooLargeError, RecordListTooLargeError) as error:
            raise InvalidCommitOffsetSizeError(str(error)) from error

    async def _fetch(
        self, request: pb.OffsetFetchRequest, context: Context, listener: str
    ) -> pb.OffsetFetchResponse:
        check_key_count(request.groups, "keys")
        answer = pb.OffsetFetchResponse()
        for group in request.groups:
            try:
                stable = request.require_stable
                look = partial(GroupShard.fetch, request=group, require_stable=stable)
                found = await self.runtime.read(self._partition(group.group_id), look)
            except ApiError as error:
                missing = pb.OffsetFetchResponse.Group(group_id=group.group_id)
                found = failed(missing, error)
            answer.groups.append(found)
        return answer

    async def _delete_offsets(
        self, request: pb.OffsetDeleteRequest, context: Context, listener: str
    ) -> pb.OffsetDeleteResponse:
        return await self._write(request.group_id, lambda shard, _: shard.delete_offsets(request))

    async def _list(
        self, request: pb.ListGroupsRequest, context: Context, listener: str
    ) -> pb.ListGroupsResponse:
        if self.runtime.is_loading:
            raise CoordinatorLoadInProgressError()
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        answer = pb.ListGroupsResponse()
        for _, shard in self.runtime.shards():
            answer.groups.extend(
                found
                for found in shard.list_groups()
                if (not states or found.group_state.lower() in states)
                and (not types or found.group_type in types)
            )
        return answer

    async def _delete(
        self, request: pb.DeleteGroupsRequest, context: Context, listener: str
    ) -> pb.DeleteGroupsResponse:
        check_key_count(request.group_ids, "keys")
        answer = pb.DeleteGroupsResponse()
        for group_id in request.group_ids:
            result = answer.results.add(group_id=group_id)
            try:
                await self._delete_group(group_id)
            except ApiError as error:
                failed(result, error)
        return answer

    async def _delete_group(self, group_id: str) -> None:
        await self._write(group_id, lambda shard, _: shard.delete_group(group_id))


def _host_of(context: Context) -> str:
    """The host of a client, as Kafka writes it, without the port."""
    kind, _, address = context.peer().partition(":")
    host = address.rpartition(":")[0] if kind in ("ipv4", "ipv6") else kind
    return "/" + unquote(host).strip("[]")


def decoded(
    request: pb.ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> Heartbeat:
    """The heartbeat of a request. Raises InvalidRequestError."""

    def text(field: str) -> str | None:
        return getattr(request, field) if request.HasField(field) else None  # type: ignore[arg-type]

    names = None
    if request.HasField("subscribed_topic_names"):
        names = tuple(request.subscribed_topic_names.names)
    timeout_ms = request.rebalance_timeout_ms if request.HasField("rebalance_timeout_ms") else -1
    return Heartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        instance_id=text("instance_id"),
        rack_id=text("rack_id"),
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_names=names,
        subscribed_topic_regex=text("subscribed_topic_regex"),
        server_assignor=text("server_assignor"),
        owned=_assignment(request.owned) if request.HasField("owned") else None,
        client_id=client_id,
        client_host=client_host,
    )


def _assignment(found: pb.Assignment) -> Assignment:
    try:
        return {
            UUID(bytes=topic.topic_id): frozenset(topic.partitions)
            for topic in found.topic_partitions
        }
    except ValueError:
        raise InvalidRequestError("a topic_id has 16 bytes") from None
