"""Administration: topics, the cluster, its quorum and its disks.

A request goes to any node, which forwards changes of the metadata to the active controller. While
the error is retriable, the request is repeated on another node.

`create_topics` returns when every live broker has the topics and their leaders, so that they can be
produced to at once. `delete_topics` returns when no live broker has them any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemark.client import decoding
from tidemark.client.admin_calls import Final
from tidemark.client.admin_cluster import ClusterAdmin
from tidemark.client.admin_logs import LogAdmin
from tidemark.client.admin_quorum import QuorumAdmin
from tidemark.client.metadata import METADATA
from tidemark.client.models import (
    ClusterDescription,
    LogDirDescription,
    NewTopic,
    QuorumDescription,
    TopicDescription,
    TopicListing,
)
from tidemark.errors import (
    ApiError,
    ErrorCode,
    NetworkError,
    RequestTimedOutError,
    error_for,
    raise_for,
)
from tidemark.v1 import admin_pb2, log_pb2, raft_pb2


class AsyncAdmin(ClusterAdmin, LogAdmin, QuorumAdmin):
    """Administers a cluster; safe for concurrent use on one event loop.

    `bootstrap_servers` is host:port of brokers or controllers. Every method raises the typed errors
    of `tidemark.errors`; retriable ones only after `default_api_timeout_ms`.
    """

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> list[TopicListing]:
        """Creates topics and waits until every live broker can serve them, but those of a rebuild.

        Raises the first topic's error, e.g. TopicAlreadyExistsError, InvalidReplicationFactorError.
        A topic that an earlier attempt of the same call created (its answer was lost) is no error.
        """
        request = admin_pb2.CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics],
            timeout_ms=timeout_ms or self._retry.timeout_ms,
            validate_only=validate_only,
        )
        unknown_outcome = False

        async def attempt(address: str) -> list[TopicListing]:
            nonlocal unknown_outcome
            try:
                answer = await self._send(address, request, admin_pb2.CreateTopicsResponse)
            except (NetworkError, RequestTimedOutError):
                unknown_outcome = True
                raise
            for topic in answer.topics:
                if int(topic.error_code) == ErrorCode.TOPIC_ALREADY_EXISTS and unknown_outcome:
                    continue
                raise_for(topic.error_code, topic.error_message)
            return [decoding.listing(topic) for topic in answer.topics]

        created = await self._with_retries(attempt, timeout_ms)
        if not validate_only:
            led = [topic.name for topic in topics if topic.rebuild is None]
            await self.wait_until_topics_known(led, timeout_ms)
        return created

    async def delete_topics(self, names: Sequence[str], *, timeout_ms: int | None = None) -> None:
        """Deletes topics and waits until no live broker has them any more.

        Raises UnknownTopicOrPartitionError.
        """
        request = admin_pb2.DeleteTopicsRequest(
            topic_names=names, timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        unknown_outcome = False

        async def attempt(address: str) -> None:
            nonlocal unknown_outcome
            try:
                answer = await self._send(address, request, admin_pb2.DeleteTopicsResponse)
            except (NetworkError, RequestTimedOutError):
                unknown_outcome = True
                raise
            for topic in answer.topics:
                if int(topic.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    if unknown_outcome:
                        continue
                    raise Final(error_for(topic.error_code, f"topic {topic.name!r} is unknown"))
                raise_for(topic.error_code, topic.error_message)

        await self._with_retries(attempt, timeout_ms)
        await self._wait_on_all_brokers(list(names), _all_gone, timeout_ms)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """All topics by name; internal ones begin with "__"."""
        request = admin_pb2.ListTopicsRequest(include_internal=include_internal)
        answer = await self._ask(request, admin_pb2.ListTopicsResponse)
        return sorted(map(decoding.listing, answer.topics), key=lambda topic: topic.name)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Partitions, replicas and settings by topic name; raises UnknownTopicOrPartitionError."""
        request = admin_pb2.DescribeTopicsRequest(topic_names=names)

        async def attempt(address: str) -> dict[str, TopicDescription]:
            answer = await self._send(address, request, admin_pb2.DescribeTopicsResponse)
            for topic in answer.topics:
                if int(topic.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise Final(error_for(topic.error_code, f"topic {topic.name!r} is unknown"))
                raise_for(topic.error_code, topic.error_message)
            return {topic.name: decoding.topic(topic) for topic in answer.topics}

        return await self._with_retries(attempt)

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, active controller and brokers, fenced ones included."""
        request = admin_pb2.DescribeClusterRequest()
        return decoding.cluster(await self._ask(request, admin_pb2.DescribeClusterResponse))

    async def describe_quorum(self) -> QuorumDescription:
        """The metadata quorum as its leader sees it."""
        request = raft_pb2.DescribeQuorumRequest()
        return decoding.quorum(await self._ask(request, raft_pb2.DescribeQuorumResponse))

    async def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, topics: Sequence[str] = ()
    ) -> dict[int, list[LogDirDescription]]:
        """Log directories and their replicas by broker.

        Covers all live brokers and all topics by default.
        """
        await self._refresh_metadata()
        ids = sorted(self._metadata.brokers) if brokers is None else list(brokers)
        request = admin_pb2.DescribeLogDirsRequest(topics=topics)

        async def of_broker(broker_id: int) -> list[LogDirDescription]:
            async def attempt(_: str) -> list[LogDirDescription]:
                address = self._metadata.address(broker_id)
                if address is None and brokers is None:
                    return []  # it stopped meanwhile
                if address is None:
                    await self._metadata.refresh()
                    raise NetworkError(f"broker {broker_id} is not alive")
                try:
                    answer = await self._send(address, request, admin_pb2.DescribeLogDirsResponse)
                except (NetworkError, RequestTimedOutError):
                    await self._metadata.refresh()
                    raise
                return [decoding.log_dir(broker_id, result) for result in answer.results]

            return await self._with_retries(attempt)

        answers = await asyncio.gather(*(of_broker(broker_id) for broker_id in ids))
        return dict(zip(ids, answers, strict=True))

    async def wait_until_topics_known(
        self, names: Sequence[str], timeout_ms: int | None = None
    ) -> None:
        """Waits until every live broker has each topic and a leader of each of its partitions."""
        await self._wait_on_all_brokers(list(names), _all_led, timeout_ms)

    async def describe_cluster_everywhere(self) -> dict[int, frozenset[int]]:
        """Each live broker's own view of the live brokers.

        A broker that does not answer is left out.
        """
        await self._refresh_metadata()

        async def of_broker(address: str) -> frozenset[int]:
            decode = log_pb2.MetadataResponse.FromString
            try:
                answer = await self._connections.call(
                    address, METADATA, log_pb2.MetadataRequest(), decode
                )
            except ApiError:
                return frozenset()
            return frozenset(broker.node_id for broker in answer.brokers)

        brokers = dict(self._metadata.brokers)
        views = await asyncio.gather(*(of_broker(e.address) for e in brokers.values()))
        return {broker: view for broker, view in zip(brokers, views, strict=True) if view}


def _all_led(answer: log_pb2.MetadataResponse, names: list[str]) -> bool:
    led = {
        topic.name
        for topic in answer.topics
        if not topic.error_code
        and topic.partitions
        and all(p.leader_id >= 0 and not p.error_code for p in topic.partitions)
    }
    return led.issuperset(names)


def _all_gone(answer: log_pb2.MetadataResponse, names: list[str]) -> bool:
    known = {topic.name for topic in answer.topics if not topic.error_code}
    return known.isdisjoint(names)


def _creatable(topic: NewTopic) -> admin_pb2.CreateTopicsRequest.CreatableTopic:
    return admin_pb2.CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.num_partitions is None else topic.num_partitions,
        replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
        assignments=[
            admin_pb2.CreateTopicsRequest.ReplicaAssignment(
                partition_index=partition, broker_ids=brokers
            )
            for partition, brokers in sorted(topic.assignments.items())
        ],
        configs=dict(topic.configs),
        rebuild=None
        if topic.rebuild is None
        else admin_pb2.CreateTopicsRequest.TierRebuild(
            topic_id=topic.rebuild.topic_id.bytes, leader_epochs=topic.rebuild.leader_epochs
        ),
    )
