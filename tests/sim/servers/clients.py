"""Administrators of the simulated cluster. They use topics as shared compare-and-set registers,
move partitions of topics, and count up settings, each client its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quorum.image import MetadataImage
from quorum.image.image import ELR_VERSION
from tests.quorum.linearizability import Operation
from tests.sim.checks import Violation
from tests.sim.servers.network import CLIENT
from tests.sim.servers.node import LeaderCaller
from tidemark.errors import ApiError, ErrorCode, NetworkError
from tidemark.types import ConfigResource, ConfigResourceType
from tidemark.v1 import admin_pb2

if TYPE_CHECKING:
    from tests.sim.servers.world import ServerWorld

TIMEOUT_MS = 800
OPERATIONS_PER_TOPIC = 14
REFUSED = {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
COUNTED = "log.retention.ms"
MIN_ISR = "min.insync.replicas"
PROBE = "written-after-the-healing"


class Clients:
    """`run` is the task of one client; `topics` and the settings' values record its answers."""

    def __init__(self, world: ServerWorld) -> None:
        self._world = world
        self.answers: Counter[str] = Counter()
        self.topics: dict[str, list[Operation]] = {}
        self.acknowledged: dict[str, int] = {}
        self.attempted: dict[str, int] = {}
        self.stopped = False
        self._started = 0
        self._probed = False

    async def run(self, number: int) -> None:
        rng = self._world.rng
        while not self.stopped:
            await asyncio.sleep(rng.randrange(1, 60) / 1000)
            leader_id = self._some_leader()
            if leader_id is None:
                continue
            kind = rng.random()
            if kind < 0.5:
                await self._topic(leader_id)
            elif kind < 0.65:
                await self._move(leader_id)
            elif kind < 0.7:
                await self._change_min_isr(leader_id)
            elif kind < 0.72:
                await self._switch_elr(leader_id)
            else:
                await self._count_up(leader_id, str(11 + number))

    def _some_leader(self) -> int | None:
        """Returns the leader known to a random node; it may be an old one."""
        nodes = [n for n in self._world.nodes.values() if n.life is not None]
        if not nodes:
            return None
        return self._world.rng.choice(nodes).raft.leader_and_epoch.leader_id

    async def _ask(self, leader_id: int, method: str, request: Any) -> Any:
        """Returns the answer; None if the outcome is unknown."""
        request.timeout_ms = TIMEOUT_MS
        caller = LeaderCaller(self._world, CLIENT, lambda: None)
        try:
            return await caller.once(leader_id, method, request, TIMEOUT_MS)
        except (NetworkError, ApiError) as error:
            self.answers[type(error).__name__] += 1
            return None

    async def _topic(self, leader_id: int) -> None:
        rng = self._world.rng
        key = f"register-{self._started // OPERATIONS_PER_TOPIC}"
        self._started += 1
        name = rng.choice(["create", "delete"])
        called = asyncio.get_running_loop().time()
        if name == "create":
            create = admin_pb2.CreateTopicsRequest()
            create.topics.add(name=key, num_partitions=rng.choice([1, 3]), replication_factor=-1)
            answer = await self._ask(leader_id, "CreateTopics", create)
        else:
            delete = admin_pb2.DeleteTopicsRequest(topic_names=[key])
            answer = await self._ask(leader_id, "DeleteTopics", delete)
        outcome = self._outcome(answer)
        if outcome == "no effect":
            return
        history = self.topics.setdefault(key, [])
        if outcome is None:
            history.append(Operation(name, None, called))
        else:
            returned = asyncio.get_running_loop().time()
            history.append(Operation(name, outcome, called, returned))

    async def _move(self, leader_id: int) -> None:
        """Moves a partition to other brokers, cancels a move, or adds partitions to a topic. These
        topics are also deleted, at any point of a move."""
        rng = self._world.rng
        topics = list(self._world.nodes[leader_id].image.topics)
        if not topics:
            return
        topic = rng.choice(topics)
        if rng.random() < 0.1:
            grow = admin_pb2.CreatePartitionsRequest()
            grow.topics.add(name=topic.name, count=len(topic.partitions) + 1)
            answer = await self._ask(leader_id, "CreatePartitions", grow)
            self._count("more partitions", answer.results if answer is not None else ())
            return
        request = admin_pb2.AlterPartitionReassignmentsRequest()
        index = rng.choice(sorted(topic.partitions))
        asked = request.partitions.add(topic=topic.name, partition_index=index)
        if rng.random() < 0.8:
            brokers = sorted(n for n, node in self._world.nodes.items() if node.is_mere_broker)
            asked.replicas.broker_ids.extend(rng.sample(brokers, rng.randrange(1, 4)))
        answer = await self._ask(leader_id, "AlterPartitionReassignments", request)
        self._count("move", answer.responses if answer is not None else ())

    async def _change_min_isr(self, leader_id: int) -> None:
        """Sets or deletes min.insync.replicas of a topic or of the cluster, also while partitions
        are degraded."""
        world = self._world
        image, rng = world.nodes[leader_id].image, world.rng
        topics = list(image.topics)
        request = admin_pb2.IncrementalAlterConfigsRequest()
        asked = request.resources.add()
        if topics and rng.random() < 0.6:
            asked.resource.resource_type = ConfigResourceType.TOPIC
            asked.resource.resource_name = rng.choice(topics).name
        else:
            asked.resource.resource_type = ConfigResourceType.BROKER
        if rng.random() < 0.25:
            asked.ops.add(name=MIN_ISR, type=admin_pb2.IncrementalAlterConfigsRequest.DELETE)
        else:
            asked.ops.add(name=MIN_ISR, value=rng.choice("1223"))
        degraded = any(len(p.isr) < len(p.replicas) for t in topics for p in t.partitions.values())
        answer = await self._ask(leader_id, "IncrementalAlterConfigs", request)
        if answer is not None and answer.error_code == ErrorCode.NONE:
            changed = answer.responses[0].error_code == ErrorCode.NONE
            world.seen["min.insync.replicas changed"] += changed
            world.seen["min.insync.replicas changed while degraded"] += changed and degraded

    async def _switch_elr(self, leader_id: int) -> None:
        """Switches eligible leader replicas on or off."""
        world = self._world
        image = world.nodes[leader_id].image
        level = 1 - image.features.get(ELR_VERSION, 0)
        request = admin_pb2.UpdateFeaturesRequest()
        kinds = admin_pb2.UpdateFeaturesRequest
        kind = kinds.UPGRADE if level else kinds.SAFE_DOWNGRADE
        request.updates.add(feature=ELR_VERSION, level=level, type=kind)
        answer = await self._ask(leader_id, "UpdateFeatures", request)
        if answer is not None and answer.error_code == ErrorCode.NONE:
            world.seen[f"ELR switched {'on' if level else 'off'}"] += 1

    def _count(self, what: str, answers: Iterable[Any]) -> None:
        for answer in answers:
            self.answers[f"{what}: {ErrorCode(answer.error_code).name}"] += 1

    def _outcome(self, answer: Any) -> str | None:
        if answer is None or answer.error_code != ErrorCode.NONE or not answer.topics:
            return None
        error = answer.topics[0].error_code
        self.answers[ErrorCode(error).name] += 1
        if error == ErrorCode.NONE:
            return "done"
        if error in REFUSED:
            return "refused"
        return "no effect" if error == ErrorCode.INVALID_REPLICATION_FACTOR else None

    async def _count_up(self, leader_id: int, broker: str) -> None:
        """Sets the next number as a broker's setting; each client has its own broker."""
        value = self.attempted.get(broker, 0) + 1
        self.attempted[broker] = value
        request = admin_pb2.IncrementalAlterConfigsRequest()
        resource = request.resources.add()
        resource.resource.resource_type = ConfigResourceType.BROKER
        resource.resource.resource_name = broker
        resource.ops.add(name=COUNTED, value=str(value))
        answer = await self._ask(leader_id, "IncrementalAlterConfigs", request)
        if answer is None or answer.error_code != ErrorCode.NONE:
            return
        error = answer.responses[0].error_code
        self.answers[f"setting: {ErrorCode(error).name}"] += 1
        if error == ErrorCode.NONE:
            self.acknowledged[broker] = value

    def require_settings(self, image: MetadataImage) -> None:
        """Requires that a setting is the last acknowledged number, or a later one without an
        answer.
        """
        for broker, attempted in self.attempted.items():
            resource = ConfigResource(ConfigResourceType.BROKER, broker)
            value = int(image.configs.get(resource, {}).get(COUNTED, "0"))
            acknowledged = self.acknowledged.get(broker, 0)
            if not acknowledged <= value <= attempted:
                raise Violation(
                    f"clients: setting of broker {broker} is {value}, acknowledged {acknowledged}, "
                    f"attempted {attempted}"
                )

    async def probe(self) -> bool:
        """Returns whether a change made now is acknowledged."""
        leader_id = self._some_leader()
        if leader_id is None:
            return False
        create = admin_pb2.CreateTopicsRequest()
        create.topics.add(name=PROBE, num_partitions=1, replication_factor=3)
        answer = await self._ask(leader_id, "CreateTopics", create)
        if answer is None or not answer.topics:
            return False
        return answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
