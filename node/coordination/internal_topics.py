"""Makes an internal topic at its first use, as Kafka's AutoTopicCreationManager does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coordinator.runtime.hashing import partition_for
from node.membership.controller_calls import ControllerCaller
from node.runtime.tasks import OnFatal, cancel_all, spawn
from quorum.image import BrokerRegistration
from quorum.services.admin_service import ImageSource
from tidemark.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    TidemarkError,
    raise_for,
)
from tidemark.v1 import admin_pb2

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 15_000
_PAUSE_S = 1.0  # after a failure


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic as it is made."""

    name: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]


class InternalTopics:
    """Makes topics that requests need; one try at a time for each."""

    def __init__(
        self, client: ControllerCaller, exists: Callable[[str], bool], on_fatal: OnFatal
    ) -> None:
        self._client = client
        self._exists = exists
        self._on_fatal = on_fatal
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.problems: dict[str, str] = {}

    def need(self, topic: InternalTopic) -> None:
        """Has the topic made, unless that is under way."""
        if topic.name in self._tasks or self._exists(topic.name):
            return
        task = spawn(f"make {topic.name}", self._make(topic), self._on_fatal)
        self._tasks[topic.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(topic.name, None))

    async def _make(self, topic: InternalTopic) -> None:
        request = admin_pb2.CreateTopicsRequest(
            topics=[
                admin_pb2.CreateTopicsRequest.CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partition_count,
                    replication_factor=topic.replication_factor,
                    configs=dict(topic.configs),
                )
            ],
            timeout_ms=_TIMEOUT_MS,
        )
        try:
            answer = await self._client.call("CreateTopics", request, _TIMEOUT_MS)
            raise_for(answer.error_code, answer.error_message)
            for result in answer.topics:
                if result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise_for(result.error_code, result.error_message)
        except TidemarkError as error:
            self.problems[topic.name] = str(error)
            logger.warning("%s could not be made: %s", topic.name, error)
            await asyncio.sleep(_PAUSE_S)
            return
        self.problems.pop(topic.name, None)
        logger.info("made %s with %d partitions", topic.name, topic.partition_count)

    async def stop(self) -> None:
        await cancel_all(*self._tasks.values())


class CoordinatorTopic:
    """Finds coordinators of one kind: the leaders of an internal topic's partitions."""

    def __init__(self, topic: InternalTopic, topics: InternalTopics, images: ImageSource) -> None:
        self._topic = topic
        self._topics = topics
        self._images = images

    def partition_of(self, key: str) -> int:
        """The partition of a group or a transactional id. Raises CoordinatorNotAvailableError, and
        then has the topic made."""
        name = self._topic.name
        found = self._images.image.topics.get(name)
        if found is None:
            self._topics.need(self._topic)
            problem = self._topics.problems.get(name, "it is being made")
            raise CoordinatorNotAvailableError(f"{name} is not there yet: {problem}")
        return partition_for(key, len(found.partitions))

    def coordinator_of(self, key: str) -> BrokerRegistration:
        """The broker that coordinates. Raises CoordinatorNotAvailableError."""
        number, image = self.partition_of(key), self._images.image
        topic = image.topics.get(self._topic.name)
        led = None if topic is None else topic.partitions.get(number)
        broker = None if led is None or led.leader is None else image.brokers.get(led.leader)
        if broker is None:
            raise CoordinatorNotAvailableError(f"{self._topic.name}-{number} has no leader")
        return broker
