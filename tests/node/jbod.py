"""Brokers with several log directories on virtual time, with the real controller core.

Lifecycle, assignments, hosting and logs of every broker are real; disks are in memory.
`JbodCluster` is `tests.node.cluster.Cluster` with `tests.quorum.controller.scenario.Scenario` as
its controller. Each broker has the directories `a` and `b`, or those named to `jbod`. Each is on a
disk of its own, so a fault of one leaves the other alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.manager.manager import LogManager
from node.membership.lifecycle import BrokerLifecycle
from node.partition.cluster_view import ClusterView
from node.runtime.tasks import spawn
from node.serving.fetch_session import FetchPartition, SessionlessFetch
from node.serving.fetching import FetchParams
from node.upkeep.scrubber import Scrubber, damage_reporter
from quorum.image import EMPTY_IMAGE, MetadataDelta, PartitionRegistration
from tests import virtual_time
from tests.inline import Inline
from tests.node.cluster import TOPIC, Cluster, Node, batch, values_of
from tests.quorum.controller.scenario import CLUSTER_ID, Scenario, controller_config
from tidemark.config import ServerConfig, TopicConfig
from tidemark.errors import ApiError, ErrorCode, code_of
from tidemark.records import iter_batches
from tidemark.types import TopicPartition, random_uuid
from tidemark.v1 import admin_pb2
from tidemark.wire import FetchPartitionData, PartitionProduceData
from tidemark.wire.rpcs import CONTROLLER, rpcs_of

DIRECTORIES = ("a", "b")


class JbodNode(Node):
    """A broker with two directories and a real lifecycle."""

    cluster: JbodCluster

    def __init__(self, cluster: JbodCluster, node_id: int, **settings: str) -> None:
        super().__init__(cluster, node_id, **settings)
        self.life = BrokerLifecycle(
            self.config,
            self.identity,
            CLUSTER_ID,
            [d.directory_id for d in self.logs.online_directories if d.directory_id],
            cluster.clean_stops.pop(node_id, -1),
            cluster.controller,
            self.view,
        )
        self.scrubber = Scrubber(self.config, self.logs, damage_reporter(self.partitions), Inline())
        self.tasks += [
            spawn("life", self.life.run(), self.fatal.append),
            spawn("assignments", self.assignments.run(), self.fatal.append),
        ]

    def make_logs(self) -> LogManager:
        directories = []
        for name in self.cluster.directories:
            key = (self.node_id, name)
            reason = self.cluster.unusable.get(key, "")
            disk = self.cluster.disk(*key)
            directory_id = self.cluster.directory_ids[key]
            directories.append(LogDirectory(disk, directory_id, failure=reason))
        loop = asyncio.get_running_loop()

        def on_failure(directory: LogDirectory) -> None:
            loop.call_soon(self._directory_failed, directory)

        return LogManager(
            directories,
            self.config,
            now_ms=self.clock.wall_ms,
            topic_config=self.cluster.config_of(self.config),
            known_replica=self.cluster.replica_of(self.node_id),
            directory_failed=on_failure,
        )

    def _directory_failed(self, directory: LogDirectory) -> None:
        self.hosting.directories_failed()
        assert directory.directory_id is not None
        self.life.directory_failed(directory.directory_id)

    def home_of(self, partition: int) -> str | None:
        """The directory of a partition's log: a or b."""
        home = self.logs.directory_of(self.cluster.name(partition))
        return None if home is None else home.path[-1]


class JbodCluster(Cluster):
    """Verbs of a scenario: `boot` nodes, `create` a topic, `load` it, fail a disk, check the
    others."""

    nodes: dict[int, JbodNode]  # type: ignore[assignment]

    def __init__(self, directories: tuple[str, ...] = DIRECTORIES, **controller: str) -> None:
        super().__init__()
        self.directories = directories
        self.log_disks: dict[tuple[int, str], MemoryDirectory] = {}
        self.directory_ids: dict[tuple[int, str], UUID] = {}
        self.unusable: dict[tuple[int, str], str] = {}
        self.clean_stops: dict[int, int] = {}
        self.scenario = Scenario(config=controller_config(**controller))
        self.start_ms = self.scenario.now_ms
        self.delivered = 0
        self.idempotent = False  # whether `load` is an idempotent producer
        self.acked: dict[int, list[str]] = {}
        self.refused: dict[int, list[ErrorCode]] = {}
        self.controller.handlers = {
            rpc.name: self._handler(rpc.response) for rpc in rpcs_of(CONTROLLER)
        }
        self._keeper = asyncio.get_running_loop().create_task(self._keep_time())
        self._deliver()

    def _handler(self, response: Callable[..., Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def handle(request: Any) -> Any:
            await asyncio.sleep(0.002)
            self._catch_up_time()
            try:
                answer = self.scenario.ask(request)
            except ApiError as error:
                return response(error_code=int(code_of(error)), error_message=str(error))
            finally:
                self._deliver()
            await asyncio.sleep(0.002)
            return answer

        return handle

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._catch_up_time()
            self._deliver()

    def _catch_up_time(self) -> None:
        now_ms = self.start_ms + round(asyncio.get_running_loop().time() * 1000)
        self.scenario.advance(max(0, now_ms - self.scenario.now_ms))

    def _deliver(self) -> None:
        records = self.scenario.log[self.delivered :]
        self.delivered = len(self.scenario.log)
        if records:
            self.publish(*records)

    # --- verbs

    def name(self, partition: int) -> TopicPartition:
        return TopicPartition(TOPIC, partition)

    def config_of(self, config: ServerConfig) -> Callable[[str], TopicConfig]:
        """Settings of topics in the present image, by which a node opens its logs."""
        view = ClusterView(config)
        view.on_metadata_update(MetadataDelta(EMPTY_IMAGE), self.image)
        return view.topic_config

    def replica_of(
        self, node_id: int
    ) -> Callable[[TopicPartition], tuple[UUID, UUID | None] | None]:
        def known(partition: TopicPartition) -> tuple[UUID, UUID | None] | None:
            topic = self.image.topics.get(partition.topic)
            if topic is None:
                return None
            return topic.topic_id, topic.partitions[partition.partition].directory_of(node_id)

        return known

    def delete(self) -> None:
        request = admin_pb2.DeleteTopicsRequest(topic_names=[TOPIC])
        self.scenario.ask(request)
        self._deliver()

    def disk(self, node_id: int, directory: str) -> MemoryDirectory:
        """The disk of one directory of a node; a new disk has a new id, as a formatted one."""
        key = (node_id, directory)
        if key not in self.log_disks:
            self.log_disks[key] = MemoryDirectory(f"node-{node_id}/{directory}", seed=node_id)
            self.directory_ids[key] = random_uuid()
        return self.log_disks[key]

    def replace_disk(self, node_id: int, directory: str) -> None:
        """Replaces the disk of a directory by an empty, newly formatted one."""
        del self.log_disks[node_id, directory]

    async def boot(self, *node_ids: int, **settings: str) -> None:
        """Starts nodes and waits until the controller has unfenced them."""
        for node_id in node_ids:
            node = JbodNode(self, node_id, broker_heartbeat_interval_ms="500", **settings)
            self.nodes[node_id] = node
        for node_id in node_ids:
            node = self.nodes[node_id]
            await node.life.registered.wait()
            await self.until(lambda: self.image.offset >= node.broker_epoch)  # noqa: B023
            first = MetadataDelta(EMPTY_IMAGE)
            for known in self.image.records():
                first.replay(known)
            node.on_metadata_update(first, self.image)
            node.life.set_ready()
        for node_id in node_ids:
            await self.nodes[node_id].life.unfenced.wait()

    def publish(self, *records: Any, but: int | None = None) -> None:
        """Publishes to nodes that had their first image."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + len(records), 1)
        for node in list(self.nodes.values()):
            if node.hosting._saw_image:
                node.on_metadata_update(delta, self.image)

    async def stop_node(self, node_id: int, *, clean: bool = True) -> None:
        """Stops a node cleanly, or loses its machine; the session then expires in its time."""
        node = self.nodes.pop(node_id)
        await node.stop(clean)
        if clean and all(d.is_online for d in node.logs.directories):
            self.clean_stops[node_id] = node.broker_epoch
        for name in self.directories:
            if (node_id, name) in self.log_disks:
                node.logs._release()
                if not clean:
                    self.disk(node_id, name).crash()

    async def shut_down(self) -> None:
        await self.stop(clean=False)
        self._keeper.cancel()

    def create(self, *assignment: tuple[int, ...], **configs: str) -> None:
        self.topic_id = self.scenario.create(TOPIC, *assignment, **configs)
        self._deliver()

    def of(self, partition: int) -> PartitionRegistration:
        return self.scenario.partition(TOPIC, partition)

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Advances virtual time until the condition holds."""
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it does not come about")

    async def load(self, partition: int, count: int, *, pause_s: float = 0.01) -> None:
        """Produces with acks=all; retries each record until it is acknowledged."""
        acked = self.acked.setdefault(partition, [])
        refused = self.refused.setdefault(partition, [])
        for number in range(len(acked), len(acked) + count):
            value = f"{partition}:{number}"
            while True:
                code = await self.try_produce(partition, value)
                if code == ErrorCode.NONE:
                    break
                refused.append(code)
                assert len(refused) < 2_000, f"{value} is never taken: {code.name}"
                await asyncio.sleep(0.05)
            acked.append(value)
            await asyncio.sleep(pause_s)

    async def try_produce(self, partition: int, value: str) -> ErrorCode:
        leader = self.of(partition).leader
        node = None if leader is None else self.nodes.get(leader)
        if node is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return await self.produce_to(node.node_id, partition, value)

    async def produce_to(
        self, node_id: int, partition: int, value: str, *, timeout_ms: int = 2_000
    ) -> ErrorCode:
        producer: dict[str, int] = {}
        if self.idempotent:  # the load numbers its values
            number = int(value.rpartition(":")[2])
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
        records = batch(value, **producer)
        data = PartitionProduceData(TOPIC, partition, records)
        handler = self.nodes[node_id].handlers.produce
        (result,) = await handler.produce(-1, timeout_ms, [data])
        return ErrorCode(result.error_code)

    async def fetch_from(
        self, node_id: int, partition: int, offset: int, *, max_wait_ms: int = 0
    ) -> FetchPartitionData:
        wanted = FetchPartition(TOPIC, partition, offset, 1 << 20)
        params = FetchParams(max_wait_ms, 1, 1 << 20, None)
        (answer,) = await self.nodes[node_id].handlers.fetch.fetch(
            params, SessionlessFetch([wanted])
        )
        return answer

    async def consume(self, partition: int) -> list[str]:
        """The leader's records from the log start to its high watermark."""
        leader = self.of(partition).leader
        assert leader is not None, "nobody leads it"
        node = self.nodes[leader]
        hosted = node.hosted(partition)
        found: list[str] = []
        offset = hosted.log.log_start_offset
        while offset < hosted.core.high_watermark:
            answer = await self.fetch_from(leader, partition, offset)
            assert answer.error_code == ErrorCode.NONE, answer
            found += values_of(bytes(answer.payload))
            offset = max(header.next_offset for _, header in iter_batches(answer.payload))
        return found

    async def nothing_acknowledged_is_lost(self, *partitions: int) -> None:
        for partition in partitions:
            there = set(await self.consume(partition))
            missing = [value for value in self.acked[partition] if value not in there]
            assert not missing, f"{TOPIC}-{partition} lost {missing[:5]}"


def jbod(
    test: Callable[[JbodCluster], Coroutine[Any, Any, None]],
    *,
    directories: tuple[str, ...] = DIRECTORIES,
    **controller: str,
) -> None:
    """Runs `test` on virtual time; afterwards no node may have met a fatal error."""

    async def main() -> None:
        cluster = JbodCluster(directories, **controller)
        try:
            await test(cluster)
            assert [(n.node_id, n.fatal) for n in cluster.nodes.values() if n.fatal] == []
        finally:
            await cluster.shut_down()

    virtual_time.run(main())
