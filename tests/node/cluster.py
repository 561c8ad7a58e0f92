"""Several brokers in one process on virtual time: real hosting and logs, memory disks, calls by
reference.

`Cluster` plays the controller. It holds the metadata image, passes (delta, image) to every broker,
and answers AlterPartition with the checks of the real one, in the same order. Links between nodes
can be cut. Everything runs on `tests.virtual_time`.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.manager.manager import LogManager
from node.membership.directory_assignments import DirectoryAssignments
from node.membership.identity import BrokerIdentity
from node.partition.cluster_view import ClusterView
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.quotas.replication import FOLLOWER, LEADER, ReplicationThrottle
from node.replication.hosting import Hosting
from node.replication.isr import IsrKeeper
from node.replication.replica_fetcher import ReplicaFetcher, ReplicaFetchers
from node.replication.tier_bootstrap import TierBootstrap
from node.runtime.tasks import spawn
from node.serving.answer_memory import AnswerMemory
from node.serving.fetch_session import (
    FetchingReplica,
    FetchPartition,
    FetchSession,
    SessionlessFetch,
)
from node.serving.fetching import FetchHandler, FetchParams
from node.serving.log_service import LogService, RequestHandlers
from node.serving.offsets import OffsetFinder
from node.serving.produce import ProduceHandler, ProduceResult
from node.serving.producer_ids import ProducerIdManager
from node.serving.read_plans import ReadPlans
from node.serving.record_deletion import RecordDeleter
from node.serving.request_memory import RequestMemory
from node.serving.tier_reads import TierReads
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from tests.node.fakes import CLUSTER_ID, FakeController, broker_config, loop_clock
from tidemark.errors import ErrorCode, FatalError, NetworkError, raise_for
from tidemark.records import Record, decode_batch, encode_batch, iter_batches
from tidemark.types import Endpoint, TopicPartition, random_uuid
from tidemark.v1 import controller_pb2, log_pb2
from tidemark.v1 import metadata_pb2 as records_pb
from tidemark.wire import (
    FetchPartitionData,
    FetchResponse,
    PartitionProduceData,
    decode_fetch_response,
)

TOPIC = "flights"


def batch(*values: str, timestamp_ms: int = 1_400_000_000_000, **options: Any) -> bytes:
    """One record batch of these values."""
    found = [
        Record(offset=i, timestamp_ms=timestamp_ms, key=None, value=v.encode())
        for i, v in enumerate(values)
    ]
    return encode_batch(found, **options)


def values_of(payload: bytes | memoryview) -> list[str]:
    """The values of all whole batches, in order."""
    return [
        record.value.decode()
        for position, _ in iter_batches(payload)
        for record in decode_batch(payload, position)
        if record.value is not None
    ]


class Node:
    """The replicas and handlers of one broker."""

    def __init__(self, cluster: Cluster, node_id: int, **settings: str) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.identity = BrokerIdentity(node_id, cluster.next_broker_epoch())
        self.directory = cluster.disks.setdefault(node_id, MemoryDirectory(f"node-{node_id}"))
        self.fatal: list[FatalError] = []
        self.config = broker_config(node_id, **settings)
        self.clock = loop_clock()
        self.tier = tier = cluster.tier_of(self)
        self.logs = self.make_logs()
        self.logs.open()
        self.view = ClusterView(self.config)
        self.partitions = PartitionRegistry(node_id, self.view, self.fatal.append)
        self.isr = IsrKeeper(self.identity, self.partitions, cluster.controller, self.clock)
        self.assignments = DirectoryAssignments(self.identity, cluster.controller)
        self.reads = TierReads(tier, 500, 30_000)
        self.follower_throttle = self._throttle(FOLLOWER)
        self.hosting = Hosting(
            self.config,
            self.view,
            self.logs,
            self.partitions,
            self.isr,
            ReplicaFetchers(self._fetcher),
            self.assignments,
            tier,
            self.clock,
            cluster.pool,
        )
        self.handlers = RequestHandlers(
            ProduceHandler(self.partitions, self.clock, cluster.pool),
            FetchHandler(
                self.partitions,
                self.isr,
                self.reads,
                self.clock,
                selects_closest=self.config.selects_closest_replica,
                throttle=self._throttle(LEADER),
                cold_reads=cluster.pool,
            ),
            OffsetFinder(self.partitions, tier),
            RecordDeleter(self.partitions),
            ProducerIdManager(self.identity, cluster.controller),
            is_opening=self.partitions.is_opening,
            plans=ReadPlans(self.partitions, tier),
        )
        self.service = LogService(
            self.handlers,
            self.view,
            RequestMemory(1 << 20),
            AnswerMemory(128 << 20),
            CLUSTER_ID,
            lambda: None,
            "PLAINTEXT",
            30_000,
            1 << 20,
        )
        self.tasks = [spawn("isr", self.isr.run(), self.fatal.append)]

    def make_logs(self) -> LogManager:
        return LogManager([self.directory], self.config, now_ms=self.clock.wall_ms)

    def _fetcher(self, endpoint: Endpoint) -> ReplicaFetcher:
        tier = self.tier
        return ReplicaFetcher(
            self.config,
            self.identity,
            CLUSTER_ID,
            Link(self.cluster, self.node_id, endpoint.port - 19090),
            None if tier is None else TierBootstrap(tier, 1000, self._last_tiered_offset),
            self.fatal.append,
            self.clock,
            self.follower_throttle,
            self.cluster.pool,
        )

    def _throttle(self, side: str) -> ReplicationThrottle:
        throttle = ReplicationThrottle(side, self.config)
        self.view.subscribe(throttle.reconfigure)
        return throttle

    def _last_tiered_offset(self) -> bool:
        return self.view.settings.follower_fetch_last_tiered_offset_enable

    @property
    def broker_epoch(self) -> int:
        return self.identity.epoch

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Updates the publishers in the order of a broker."""
        self.view.on_metadata_update(delta, image)
        self.hosting.on_metadata_update(delta, image)

    def hosted(self, partition: int = 0) -> HostedPartition:
        found = self.partitions.find(TopicPartition(TOPIC, partition))
        assert found is not None, f"node {self.node_id} hosts no {TOPIC}-{partition}"
        return found

    async def produce(
        self, *values: str, acks: int = -1, timeout_ms: int = 5_000, raw: bytes | None = None
    ) -> ProduceResult:
        data = PartitionProduceData(TOPIC, 0, batch(*values) if raw is None else raw)
        (result,) = await self.handlers.produce.produce(acks, timeout_ms, [data])
        return result

    async def fetch(
        self,
        offset: int,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        replica: FetchingReplica | None = None,
        rack: str = "",
        **fields: Any,
    ) -> FetchPartitionData:
        params = FetchParams(max_wait_ms, min_bytes, max_bytes, replica, rack=rack)
        wanted = FetchPartition(fields.pop("topic", TOPIC), 0, offset, max_bytes, **fields)
        (answer,) = await self.handlers.fetch.fetch(
            params, SessionlessFetch([wanted], from_replica=replica is not None)
        )
        return answer

    async def read_all(self) -> list[str]:
        """Returns all values visible to a consumer, from the log start."""
        log = self.hosted().log
        found: list[str] = []
        offset = log.log_start_offset
        while offset < self.hosted().core.high_watermark:
            answer = await self.fetch(offset, max_wait_ms=500)
            raise_for(answer.error_code, answer.error_message)
            for position, header in iter_batches(answer.payload):
                found += [
                    r.value.decode() for r in decode_batch(answer.payload, position) if r.value
                ]
                offset = header.next_offset
        return found

    async def stop(self, clean: bool = True) -> None:
        await self.hosting.stop()
        await self.reads.close()
        for task in self.tasks:
            task.cancel()
        if clean:
            self.logs.close(True, self.broker_epoch)


class Link:
    """A follower's calls to a peer, by reference; they fail while the link or the peer is down."""

    def __init__(self, cluster: Cluster, source: int, target: int) -> None:
        self._cluster = cluster
        self._source = source
        self._target = target
        self._session = FetchSession()
        self._session_of: Node | None = None
        self._last: asyncio.Future[None] | None = None  # done when the last request is answered
        self._behind: asyncio.Future[None] | None = None  # done when one follows that under way

    def _peer(self) -> Node:
        node = self._cluster.nodes.get(self._target)
        if node is None or (self._source, self._target) in self._cluster.cut:
            raise NetworkError(f"{self._source} can not reach {self._target}")
        return node

    async def fetch(self, request: log_pb2.ReplicaFetchRequest, timeout_ms: int) -> FetchResponse:
        ahead, answered = self._last, asyncio.get_running_loop().create_future()
        self._last = answered
        try:
            return await self._in_turn(request, ahead)
        finally:
            answered.set_result(None)

    async def _in_turn(
        self, request: log_pb2.ReplicaFetchRequest, ahead: asyncio.Future[None] | None
    ) -> FetchResponse:
        """Sends one request behind those under way, as over one call that stays open."""
        await asyncio.sleep(0.001)
        if ahead is not None and not ahead.done():
            if self._behind is not None and not self._behind.done():
                self._behind.set_result(None)
            await asyncio.wait((ahead,))
        peer = self._peer()
        if peer is not self._session_of:
            await self.close()
            self._session_of = peer
            self._session.tells_commits = peer.handlers.fetch.selects_closest
        self._session.behind = self._behind = asyncio.get_running_loop().create_future()
        try:
            payload = await peer.service.replica_fetch(request, None, self._session)
            await asyncio.sleep(0.001)
            self._peer()
        except (NetworkError, asyncio.CancelledError):
            await self.close()  # as the end of the open call does
            raise
        return decode_fetch_response(payload)

    async def list_offset(
        self, request: log_pb2.ListOffsetsRequest, timeout_ms: int
    ) -> log_pb2.ListOffsetsResponse.PartitionResponse:
        await asyncio.sleep(0.001)
        answer = (await self._peer().service.list_offsets(request, None)).partitions[0]
        raise_for(answer.error_code, answer.error_message)
        return answer

    async def epoch_end(
        self, request: log_pb2.OffsetForLeaderEpochRequest, timeout_ms: int
    ) -> log_pb2.OffsetForLeaderEpochResponse.Partition:
        await asyncio.sleep(0.001)
        answer = (await self._peer().service.offset_for_leader_epoch(request, None)).partitions[0]
        raise_for(answer.error_code)
        return answer

    async def close(self) -> None:
        self._session.close()
        self._session_of = None


class Cluster:
    """Brokers 1, 2, 3 and their metadata."""

    def __init__(self, tier: Any = None, pool: Any = None) -> None:
        self.tier = tier
        self.pool = pool  # None: new logs are made on the loop
        self.disks: dict[int, MemoryDirectory] = {}
        self.nodes: dict[int, Node] = {}
        self.cut: set[tuple[int, int]] = set()
        self.image: MetadataImage = EMPTY_IMAGE
        self.topic_id: UUID = random_uuid()
        self.controller = FakeController()
        self.controller.handlers["AlterPartition"] = self._alter_partition

    def next_broker_epoch(self) -> int:
        return self.image.offset + 1

    def tier_of(self, node: Node) -> Any:
        """The tier of a node that starts; by default one object for all of them."""
        return self.tier

    def start(self, *node_ids: int, **settings: str) -> None:
        for node_id in node_ids:
            node = Node(self, node_id, **settings)
            self.nodes[node_id] = node
            record = records_pb.RegisterBrokerRecord(
                broker_id=node_id,
                incarnation_id=random_uuid().bytes,
                broker_epoch=node.broker_epoch,
                rack=node.config.broker_rack,
            )
            record.end_points.add(name="PLAINTEXT", host="localhost", port=19090 + node_id)
            first = MetadataDelta(EMPTY_IMAGE)
            for known in self.image.records():
                first.replay(known)
            self.publish(records_pb.MetadataRecord(register_broker=record), but=node_id)
            first.replay(records_pb.MetadataRecord(register_broker=record))
            node.on_metadata_update(first, self.image)

    async def stop(self, *node_ids: int, clean: bool = True) -> None:
        for node_id in node_ids or tuple(self.nodes):
            await self.nodes.pop(node_id).stop(clean)
        if not clean:
            for node_id in node_ids:
                self.disks[node_id].crash()

    def publish(self, *records: records_pb.MetadataRecord, but: int | None = None) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + len(records), 1)
        for node_id, node in list(self.nodes.items()):
            if node_id != but:
                node.on_metadata_update(delta, self.image)

    def create_topic(
        self, replicas: tuple[int, ...] = (1, 2, 3), leader: int = 1, **configs: str
    ) -> None:
        topic = records_pb.TopicRecord(name=TOPIC, topic_id=self.topic_id.bytes)
        partition = records_pb.PartitionRecord(
            partition_id=0,
            topic_id=self.topic_id.bytes,
            replicas=replicas,
            isr=replicas,
            leader=leader,
        )
        settings = [
            records_pb.MetadataRecord(
                config=records_pb.ConfigRecord(
                    resource_type=2, resource_name=TOPIC, name=key.replace("_", "."), value=value
                )
            )
            for key, value in configs.items()
        ]
        self.publish(
            records_pb.MetadataRecord(topic=topic),
            *settings,
            records_pb.MetadataRecord(partition=partition),
        )

    def change(self, leader: int | None = None, isr: tuple[int, ...] | None = None) -> None:
        """Changes the partition as the controller does: a new leader raises the epoch."""
        record = records_pb.PartitionChangeRecord(partition_id=0, topic_id=self.topic_id.bytes)
        if leader is not None:
            record.leader = leader
        if isr is not None:
            record.isr.ids.extend(isr)
        self.publish(records_pb.MetadataRecord(partition_change=record))

    def fence(self, node_id: int, fenced: bool = True) -> None:
        record = records_pb.BrokerRegistrationChangeRecord(
            broker_id=node_id, broker_epoch=self.image.brokers[node_id].epoch, fenced=fenced
        )
        self.publish(records_pb.MetadataRecord(broker_registration_change=record))

    def delete_topic(self) -> None:
        record = records_pb.RemoveTopicRecord(topic_id=self.topic_id.bytes)
        self.publish(records_pb.MetadataRecord(remove_topic=record))
        self.topic_id = random_uuid()

    @property
    def partition(self) -> Any:
        found = self.image.topics.partition(self.topic_id, 0)
        assert found is not None
        return found

    async def _alter_partition(
        self, request: controller_pb2.AlterPartitionRequest
    ) -> controller_pb2.AlterPartitionResponse:
        await asyncio.sleep(0.002)
        response = controller_pb2.AlterPartitionResponse()
        for item in request.partitions:
            code = self._judge(item)
            answer = response.partitions.add(
                topic_id=item.topic_id, partition_index=item.partition_index, error_code=int(code)
            )
            if code == ErrorCode.NONE:
                self.change(isr=tuple(member.broker_id for member in item.new_isr))
                now = self.partition
                answer.leader_id, answer.leader_epoch = now.leader, now.leader_epoch
                answer.isr.extend(now.isr)
                answer.partition_epoch = now.partition_epoch
        return response

    def _judge(self, item: controller_pb2.AlterPartitionRequest.PartitionData) -> ErrorCode:
        known = self.partition
        if item.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if item.partition_epoch != known.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in item.new_isr:
            broker = self.image.brokers.get(member.broker_id)
            if broker is None or not broker.is_active or broker.epoch != member.broker_epoch:
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    async def settle(self, node_ids: tuple[int, ...] = ()) -> None:
        """Waits until every running replica has the leader's log and high watermark."""
        for _ in range(400):
            await asyncio.sleep(0.05)
            leader = self.nodes.get(self.partition.leader)
            if leader is None:
                continue
            core = leader.hosted().core
            others = [self.nodes[n] for n in node_ids or self.partition.replicas if n in self.nodes]
            if (
                all(
                    n.hosted().log.log_end_offset == core.log_end_offset
                    and n.hosted().core.high_watermark == core.high_watermark
                    for n in others
                )
                and core.high_watermark == core.log_end_offset
            ):
                return
        raise AssertionError("replication does not come to rest")
