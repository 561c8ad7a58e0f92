"""A node of the simulated cluster: the production servers over a memory disk, and the views that
the checks need.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commitlog.disk.memory_files import MemoryDirectory
from node.membership.identity import BrokerIdentity
from node.membership.lifecycle import BrokerLifecycle
from quorum.controller.core import ControllerCore
from quorum.controller.quorum_controller import QuorumController
from quorum.image import MetadataDelta, MetadataImage, PartitionRegistration
from quorum.raft.effects import Effects
from quorum.raft.replica import Replica
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.bootstrap import write_bootstrap_checkpoint
from quorum.replica.client import LeaderAndEpoch
from quorum.replica.metadata_log import ReplicatedLog
from quorum.replica.server import RaftServer
from tests.sim.disk_faults import copy_disk
from tests.sim.node import note_transitions
from tests.sim.servers.loop import Life
from tests.sim.servers.network import SimTransport
from tidemark.config import ServerConfig, parse_server_config
from tidemark.errors import ApiError, ErrorCode, NetworkError, RequestTimedOutError
from tidemark.types import Endpoint
from tidemark.v1 import controller_pb2

if TYPE_CHECKING:
    from tests.sim.servers.world import ServerWorld

CLUSTER_ID = "simulated-cluster-ids-"
FIRST_BROKER = 11
SETTINGS = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "400",
    "controller.quorum.election.backoff.max.ms": "300",
    "controller.quorum.append.linger.ms": "5",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.max.retention.bytes": "6000",
    "metadata.max.idle.interval.ms": "500",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "min.insync.replicas": "1",
}


def endpoint_of(node_id: int) -> Endpoint:
    return Endpoint("sim", node_id)


def config_of(node_id: int, voters: list[int], *, dynamic: bool) -> ServerConfig:
    values = {**SETTINGS, "node.id": str(node_id), "controller.listener.names": "CONTROLLER"}
    if node_id >= FIRST_BROKER:
        values |= {"process.roles": "broker", "listeners": f"PLAINTEXT://sim:{node_id}"}
    else:
        values |= {"process.roles": "controller", "listeners": f"CONTROLLER://sim:{node_id}"}
    if dynamic:
        values["controller.quorum.bootstrap.servers"] = ",".join(f"sim:{v}" for v in voters)
    else:
        values["controller.quorum.voters"] = ",".join(f"{v}@sim:{v}" for v in voters)
    return parse_server_config(values)


class WatchedRaftServer(RaftServer):
    """The real server; reports to the checks before and after it carries out effects."""

    def __init__(self, node: ServerNode, **options: Any) -> None:
        super().__init__(node.config, **options)
        self._node = node
        note_transitions(self._replica.state, node.world.seen)

    async def _carry_out(self, effects: Effects) -> None:
        node, checks = self._node, self._node.world.checks
        state = effects.election_state
        with node.world.watch():
            if state is not None:
                checks.before_persist(node, state)
            if effects.truncate_to is not None:
                checks.on_truncate(node, effects.truncate_to)
            if effects.append_voters is not None:
                checks.on_voters(node, effects.append_voters)
        node.writes_state = state is not None
        await super()._carry_out(effects)
        node.writes_state = False
        with node.world.watch():
            if state is not None:
                checks.on_persist(node, state)
            self._replica.validate()
            checks.after_event(node)
        node.world.trace(node)

    async def create_snapshot(self, end_offset: int, values: Iterable[bytes]) -> None:
        await super().create_snapshot(end_offset, values)
        latest = self._log.latest_snapshot
        if self._node.life is not None and self._node.raft is self and latest is not None:
            self._node.world.seen["checkpoint made"] += 1
            with self._node.world.watch():
                self._node.world.checks.on_snapshot_frozen(self._node, latest)


class ServerNode:
    """One node; `start` and `crash` any number of times."""

    def __init__(
        self, world: ServerWorld, node_id: int, voters: list[int], *, dynamic: bool
    ) -> None:
        self.world = world
        self.node_id = node_id
        self.config = config_of(node_id, voters, dynamic=dynamic)
        self.key = ReplicaKey(node_id, UUID(int=node_id + 1))
        self.keys: set[ReplicaKey] = set()  # these voters keep their disks
        self.disk = MemoryDirectory(seed=world.seed * 1000 + node_id)
        self.life: Life | None = None
        self.incarnation = 0
        self.disk_max_ms = world.rng.choice([4, 4, 15, 80])
        self.wall_skew_ms = world.rng.choice([0, 0, -86_400_000, 86_400_000])
        self.is_mere_broker = node_id >= FIRST_BROKER
        self.durable_when_down = 0
        self.directories = self._new_directories(2)
        self.clean_epoch = -1
        self.writes_state = False
        self.is_shutting_down = False
        self.syncs_fail: str | None = None
        self.writes_fail = False
        if dynamic and node_id in voters:
            keys = [ReplicaKey(v, UUID(int=v + 1)) for v in voters]
            voter_set = VoterSet(Voter(k, endpoint_of(k.replica_id)) for k in keys)
            write_bootstrap_checkpoint(self.disk, voter_set)

    # --- views for the checks ---------------------------------------------------------------------

    @property
    def replica(self) -> Replica:
        return self.raft._replica

    @property
    def log(self) -> ReplicatedLog:
        return self.raft._log

    @property
    def durable_offset(self) -> int:
        if self.life is None:
            return self.durable_when_down
        latest = self.log.latest_snapshot
        return max(self.log.durable_offset, latest.end_offset if latest is not None else 0)

    @property
    def acknowledged_offset(self) -> int:
        return self.durable_offset

    @property
    def wrong_until(self) -> int:
        return 0  # these disks keep what they hold

    @property
    def image(self) -> MetadataImage:
        return self.loader.image

    # --- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the node. Raises StorageError and FatalError like the real process."""
        rng = self.world.rng
        self.incarnation += 1
        life = Life(lambda: rng.randrange(1, self.disk_max_ms) / 1000)
        await life.spawn(self._start(life))

    async def _start(self, life: Life) -> None:
        world = self.world
        self.raft = WatchedRaftServer(
            self,
            cluster_id=CLUSTER_ID,
            directory=self.disk,
            directory_id=self.key.directory_id,
            rng=random.Random(world.rng.randrange(1 << 30)),
            now_ms=lambda: world.now_ms() + self.wall_skew_ms,
            transport=SimTransport(world, self.node_id),
        )
        self.writes_state = self.is_shutting_down = False
        self.life = life
        with world.watch():
            world.checks.on_start(self)
        self.loader = world.servers.loader(self.raft, self.config, world.now_ms)
        self.controller: QuorumController | None = None
        if self.is_mere_broker:
            self._start_broker(life)
        else:
            rng = random.Random(world.rng.random())
            core = ControllerCore(self.config, CLUSTER_ID, rng)
            self.controller = world.servers.controller(self.raft, self.loader, core, world.now_ms)
        self.loader.add_publisher(self)
        self.loader.add_leader_listener(self._leader_changed)
        self.raft.register(self.loader)
        await self.raft.start()
        life.spawn(self._watch_fatal(life))

    async def _watch_fatal(self, life: Life) -> None:
        try:
            await self.raft.fatal
        except Exception as error:
            if life.alive:
                self.world.process_ended(self, error)

    def crash(self) -> None:
        """Loses power. Leftover work of the old process gets a disk that is no longer used."""
        life = self.life
        if life is None:
            return
        self.durable_when_down = self.durable_offset
        self.life = None
        self.syncs_fail = None
        before = self.disk.disk.lost_changes, self.disk.disk.torn_appends
        self.disk.crash()
        seen = self.world.seen
        seen["crash"] += 1
        seen["un-synced writes lost"] += self.disk.disk.lost_changes - before[0]
        seen["write torn"] += self.disk.disk.torn_appends - before[1]
        self.disk = copy_disk(self.disk, self.world.seed * 1000 + self.node_id)
        life.end()
        if hasattr(self, "controller") and self.controller is not None:
            self.controller.stop()

    def shut_down(self) -> asyncio.Task[None]:
        """Stops in order: voters are notified first; a broker requests a controlled shutdown."""
        assert self.life is not None
        self.is_shutting_down = True
        return self.life.spawn(self._shut_down())

    async def _shut_down(self) -> None:
        raft = self.raft
        if self.is_mere_broker:
            await self.lifecycle.begin_controlled_shutdown()
            self.clean_epoch = self.identity.epoch
        if self.controller is not None:
            self.controller.stop()
        await self.loader.close()
        await raft.shutdown()

    def make_room(self) -> None:
        self.writes_fail = False
        self.disk.set_capacity(1 << 40)

    # --- broker -----------------------------------------------------------------------------------

    def _new_directories(self, count: int) -> list[UUID]:
        return [UUID(int=self.world.rng.getrandbits(120)) for _ in range(count)]

    def lose_disk(self) -> None:
        """Gives a stopped broker empty disks, without its metadata."""
        assert self.is_mere_broker and self.life is None
        self.disk = MemoryDirectory(seed=self.world.rng.randrange(1 << 30))
        self.directories = self._new_directories(2)
        self.durable_when_down = 0
        self.clean_epoch = -1
        self.world.checks.on_disk_lost(self)

    def replace_directory(self) -> None:
        """Puts an empty directory in the place of one of a stopped broker."""
        assert self.is_mere_broker and self.life is None
        self.directories = [self.directories[1], *self._new_directories(1)]

    def fail_directory(self) -> None:
        """Fails one of two log directories; the next start has a new one in its place. (If both
        failed, the process would end.)"""
        if self.lifecycle.offline_directories:
            return
        self.world.seen["directory failed"] += 1
        self.lifecycle.directory_failed(self.directories[0])
        self.directories = [self.directories[1], *self._new_directories(1)]

    def _start_broker(self, life: Life) -> None:
        """Starts the broker. Only a broker that stopped in order knows its epoch (KIP-966)."""
        epoch, self.clean_epoch = self.clean_epoch, -1
        self.started_with = self.directories
        caller = LeaderCaller(self.world, self.node_id, lambda: self.raft.leader_and_epoch)
        self.identity = BrokerIdentity(self.node_id)
        self.lifecycle = BrokerLifecycle(
            self.config, self.identity, CLUSTER_ID, self.directories, epoch, caller, self.loader
        )
        self.lifecycle.incarnation_id = UUID(int=self.world.rng.getrandbits(128))
        life.spawn(self.lifecycle.run())
        life.spawn(self._serve(caller))

    async def _serve(self, caller: LeaderCaller) -> None:
        """Recovers, then keeps changing the ISRs of the partitions it leads."""
        await self.lifecycle.registered.wait()
        await self.loader.wait_for_offset(self.identity.epoch)
        self.lifecycle.set_ready()
        rng = self.world.rng
        while True:
            await asyncio.sleep(rng.randrange(100, 600) / 1000)
            try:
                request = self._isr_change(rng)
                if request is not None:
                    answer = await caller.call("AlterPartition", request, 500)
                    self.world.seen["ISR changed"] += answer.error_code == ErrorCode.NONE
                assigned = self._assignment()
                if assigned is not None:
                    answer = await caller.call("AssignReplicasToDirs", assigned, 500)
                    self.world.seen["directories told"] += answer.error_code == ErrorCode.NONE
            except ApiError:
                continue

    def _isr_change(self, rng: random.Random) -> controller_pb2.AlterPartitionRequest | None:
        image = self.image
        led = [
            (topic.topic_id, index, partition)
            for topic in image.topics
            for index, partition in sorted(topic.partitions.items())
            if partition.leader == self.node_id
        ]
        if not led:
            return None
        topic_id, index, partition = led[rng.randrange(len(led))]
        request = controller_pb2.AlterPartitionRequest(
            broker_id=self.node_id, broker_epoch=self.identity.epoch
        )
        data = request.partitions.add(
            topic_id=topic_id.bytes,
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
        )
        for replica in partition.replicas:
            broker = image.brokers.get(replica)
            if replica == self.node_id or (broker is not None and rng.random() < 0.6):
                data.new_isr.add(
                    broker_id=replica, broker_epoch=broker.epoch if broker is not None else -1
                )
        return request

    def _assignment(self) -> controller_pb2.AssignReplicasToDirsRequest | None:
        """The directories of replicas that the controller does not know or has elsewhere. A replica
        that the metadata counts on is not made anew in another one."""
        gone = self.lifecycle.offline_directories
        mine = [d for d in self.started_with if d not in gone]
        homeless = [
            (topic.topic_id, index)
            for topic in self.image.topics
            for index, partition in sorted(topic.partitions.items())
            if self.node_id in partition.replicas and self._is_homeless(partition, mine)
        ]
        if not homeless or not mine:
            return None
        request = controller_pb2.AssignReplicasToDirsRequest(
            broker_id=self.node_id, broker_epoch=self.identity.epoch
        )
        directory = request.directories.add(id=self.world.rng.choice(mine).bytes)
        for topic_id, index in homeless:
            directory.partitions.add(topic_id=topic_id.bytes, partition_index=index)
        return request

    def _is_homeless(self, partition: PartitionRegistration, mine: list[UUID]) -> bool:
        known = partition.directory_of(self.node_id)
        return known is None or (known not in mine and not partition.counts_on(self.node_id))

    # --- listening --------------------------------------------------------------------------------

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        with self.world.watch():
            self.world.image_published(self, image)
            if self.controller is not None:
                self.controller.core.validate()

    def _leader_changed(self, leader: LeaderAndEpoch) -> None:
        if leader.is_leader(self.node_id):
            self.world.seen["controller took over"] += 1


class LeaderCaller:
    """`ControllerCaller` over the simulated network: calls the leader known to `leader`."""

    def __init__(self, world: ServerWorld, source: int, leader: Any) -> None:
        self._world = world
        self._source = source
        self._leader = leader

    async def call(self, method: str, request: Any, timeout_ms: int) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while (left_s := deadline_s - loop.time()) > 0:
            leader_id = self._leader().leader_id
            if leader_id is not None:
                try:
                    return await self.once(leader_id, method, request, int(left_s * 1000) + 1)
                except (NetworkError, ApiError) as error:
                    if isinstance(error, ApiError) and not error.retriable:
                        raise
            await asyncio.sleep(0.05)
        raise RequestTimedOutError(f"{method}: no answer within {timeout_ms} ms")

    async def once(self, leader_id: int, method: str, request: Any, timeout_ms: int) -> Any:
        """Makes one attempt: returns the answer, or raises ApiError from the controller or
        NetworkError.
        """

        async def ask(target: ServerNode) -> Any:
            controller = target.controller
            assert controller is not None
            answer = await controller.handle(request)
            if method == "BrokerHeartbeat" and answer.should_shut_down:
                self._world.broker_may_go(target, request)
            return answer

        return await self._world.network.call(self._source, leader_id, ask, timeout_ms)
