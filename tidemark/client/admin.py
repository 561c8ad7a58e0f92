"""Administration: topics, the cluster, its quorum and its disks.

A request goes to any node (each forwards what changes metadata to the active controller) and is
repeated on another one while the error is retriable. `create_topics` returns when every live broker
knows the topics and their leaders, so a caller can produce straight away; `delete_topics` when
every live broker has forgotten them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from tidemark.client import decoding
from tidemark.client.connections import Connections, parse_bootstrap_servers
from tidemark.client.metadata import METADATA, MetadataCache, monotonic_ms
from tidemark.client.models import (
    ClusterDescription,
    LogDirDescription,
    NewTopic,
    QuorumDescription,
    TopicDescription,
    TopicListing,
)
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.errors import (
    ApiError,
    ErrorCode,
    NetworkError,
    RequestTimedOutError,
    error_for,
    raise_for,
)
from tidemark.v1 import admin_pb2, log_pb2

T = TypeVar("T")

_SERVICE = "/tidemark.v1.Admin/"


class AsyncAdmin:
    """Administers a cluster; safe for concurrent use on one event loop.

    `bootstrap_servers`: host:port of brokers or controllers. Every method raises the typed errors
    of `tidemark.errors`; retriable ones only after `default_api_timeout_ms`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        random_seed: int | None = None,
    ) -> None:
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._connections = Connections(request_timeout_ms=request_timeout_ms)
        self._retry = RetryPolicy(default_api_timeout_ms, retry_backoff_ms, retry_backoff_max_ms)
        self._rng = Random(random_seed)
        self._metadata = MetadataCache(
            self._connections, self._bootstrap, retry=self._retry, rng=self._rng
        )

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.close()

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> list[TopicListing]:
        """Creates topics and waits until every live broker can serve them.

        Raises the first topic's error, e.g. TopicAlreadyExistsError, InvalidReplicationFactorError.
        A topic that an earlier try of this very call created (its answer was lost) is no error.
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
                answer = await self._send(
                    address, "CreateTopics", request, admin_pb2.CreateTopicsResponse
                )
            except (NetworkError, RequestTimedOutError):
                unknown_outcome = True
                raise
            for topic in answer.topics:
                if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and unknown_outcome:
                    continue
                raise_for(topic.error_code, topic.error_message)
            return [decoding.listing(topic) for topic in answer.topics]

        created = await self._with_retries(attempt, timeout_ms)
        if not validate_only:
            await self.wait_until_topics_known([topic.name for topic in topics], timeout_ms)
        return created

    async def delete_topics(self, names: Sequence[str], *, timeout_ms: int | None = None) -> None:
        """Deletes topics and waits until every live broker has forgotten them;
        UnknownTopicOrPartitionError.
        """
        request = admin_pb2.DeleteTopicsRequest(
            topic_names=names, timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        unknown_outcome = False

        async def attempt(address: str) -> None:
            nonlocal unknown_outcome
            try:
                answer = await self._send(
                    address, "DeleteTopics", request, admin_pb2.DeleteTopicsResponse
                )
            except (NetworkError, RequestTimedOutError):
                unknown_outcome = True
                raise
            for topic in answer.topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    if unknown_outcome:
                        continue
                    raise _Final(error_for(topic.error_code, f"topic {topic.name!r} is unknown"))
                raise_for(topic.error_code, topic.error_message)

        await self._with_retries(attempt, timeout_ms)
        await self._wait_on_all_brokers(list(names), _all_gone, timeout_ms)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """All topics by name; internal ones begin with "__"."""
        request = admin_pb2.ListTopicsRequest(include_internal=include_internal)

        async def attempt(address: str) -> list[TopicListing]:
            answer = await self._send(address, "ListTopics", request, admin_pb2.ListTopicsResponse)
            return sorted(map(decoding.listing, answer.topics), key=lambda topic: topic.name)

        return await self._with_retries(attempt)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Partitions, replicas and settings by topic name; UnknownTopicOrPartitionError."""
        request = admin_pb2.DescribeTopicsRequest(topic_names=names)

        async def attempt(address: str) -> dict[str, TopicDescription]:
            answer = await self._send(
                address, "DescribeTopics", request, admin_pb2.DescribeTopicsResponse
            )
            for topic in answer.topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _Final(error_for(topic.error_code, f"topic {topic.name!r} is unknown"))
                raise_for(topic.error_code, topic.error_message)
            return {topic.name: decoding.topic(topic) for topic in answer.topics}

        return await self._with_retries(attempt)

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, active controller and brokers, fenced ones included."""

        async def attempt(address: str) -> ClusterDescription:
            request = admin_pb2.DescribeClusterRequest()
            return decoding.cluster(
                await self._send(
                    address, "DescribeCluster", request, admin_pb2.DescribeClusterResponse
                )
            )

        return await self._with_retries(attempt)

    async def describe_quorum(self) -> QuorumDescription:
        """The metadata quorum as its leader sees it."""
        from tidemark.v1 import raft_pb2

        async def attempt(address: str) -> QuorumDescription:
            request = raft_pb2.DescribeQuorumRequest()
            return decoding.quorum(
                await self._send(
                    address, "DescribeMetadataQuorum", request, raft_pb2.DescribeQuorumResponse
                )
            )

        return await self._with_retries(attempt)

    async def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, topics: Sequence[str] = ()
    ) -> dict[int, list[LogDirDescription]]:
        """Log directories and their replicas by broker; of all live brokers by default, of all
        topics by default.
        """
        await self._refresh_metadata()
        ids = sorted(self._metadata.brokers) if brokers is None else list(brokers)
        request = admin_pb2.DescribeLogDirsRequest(topics=topics)

        async def of_broker(broker_id: int) -> list[LogDirDescription]:
            async def attempt(_: str) -> list[LogDirDescription]:
                address = self._metadata.address(broker_id)
                if address is None and brokers is None:
                    return []  # it died meanwhile
                if address is None:
                    await self._metadata.refresh()
                    raise NetworkError(f"broker {broker_id} is not alive")
                try:
                    answer = await self._send(
                        address, "DescribeLogDirs", request, admin_pb2.DescribeLogDirsResponse
                    )
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
        """Returns when every live broker knows each topic and a leader of each partition."""
        await self._wait_on_all_brokers(list(names), _all_led, timeout_ms)

    async def describe_cluster_everywhere(self) -> dict[int, frozenset[int]]:
        """For each live broker the live brokers that it knows itself; one that does not answer is
        left out.
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

    # How requests are sent.

    async def _send(self, address: str, method: str, request: Any, answer_type: Any) -> Any:
        answer = await self._connections.call(
            address, _SERVICE + method, request, answer_type.FromString
        )
        raise_for(answer.error_code, answer.error_message)
        return answer

    async def _with_retries(
        self, attempt: Callable[[str], Awaitable[T]], timeout_ms: int | None = None
    ) -> T:
        """Tries node after node until one answers well, the error is final, or time is up (then the
        last error is raised).
        """
        policy = self._retry
        if timeout_ms is not None:
            policy = RetryPolicy(timeout_ms, policy.backoff_ms, policy.backoff_max_ms)
        started_ms, tries = monotonic_ms(), 0
        while True:
            address = self._metadata.candidates()[0]
            tries += 1
            try:
                return await attempt(address)
            except _Final as final:
                raise final.error from None
            except ApiError as error:
                elapsed_ms = monotonic_ms() - started_ms
                wait_ms = policy.next_wait_ms(error, tries, elapsed_ms, self._rng)
                if wait_ms is None:
                    raise
                await asyncio.sleep(wait_ms / 1000)

    async def _refresh_metadata(self) -> None:
        async def attempt(_: str) -> None:
            await self._metadata.refresh()

        await self._with_retries(attempt)

    async def _wait_on_all_brokers(
        self,
        names: list[str],
        reached: Callable[[log_pb2.MetadataResponse, list[str]], bool],
        timeout_ms: int | None,
    ) -> None:
        """Asks each live broker: one that has applied the change says nothing of the others."""
        await self._refresh_metadata()
        request = log_pb2.MetadataRequest(topics=names)
        decode = log_pb2.MetadataResponse.FromString

        async def of_broker(broker_id: int) -> None:
            async def attempt(_: str) -> None:
                address = self._metadata.address(broker_id)
                if address is None:
                    return  # it died meanwhile: nobody will be sent there
                try:
                    answer = await self._connections.call(address, METADATA, request, decode)
                except ApiError as error:
                    if is_retriable(error):
                        await self._metadata.refresh()
                    raise
                if not reached(answer, names):
                    raise RequestTimedOutError(
                        f"broker {broker_id} has not caught up with the change of {names}"
                    )

            await self._with_retries(attempt, timeout_ms)

        await asyncio.gather(*(of_broker(broker_id) for broker_id in self._metadata.brokers))


class _Final(Exception):
    """Carries an error that is retriable by the table, but an answer here: the topic just does not
    exist.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


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
    )
