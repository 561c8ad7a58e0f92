"""Directed faults: sequences that random storms hardly ever make.

Each plan moves leaders by a reassignment of the same replicas in another order and a preferred
election. It stalls single connections, and waits for a state of the real brokers before its next
step. A plan gives up where a step does not come in its time. What it reached is counted.

    an old watermark leads       a leader's end is committed, the next leader does not know it yet
    a quick restart              power is lost while the proposal to join an ISR is on its way
    a late divergence            an answer that truncates arrives after its leader epoch is over
    an unclean election          a log loses records that a consumer has read
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from node.partition.core import Partition
from node.partition.hosted import HostedPartition
from tests.sim.cluster.programs import TruncatedLog
from tidemark.errors import TidemarkError
from tidemark.testing.network import answers_of
from tidemark.testing.node import SimNode
from tidemark.types import TopicPartition
from tidemark.wire import REPLICA_FETCH_STREAM

if TYPE_CHECKING:
    from tests.sim.cluster.faults import Faults
    from tests.sim.cluster.world import ClusterWorld

ALTER_PARTITION = "/tidemark.v1.Controller/AlterPartition"
_FETCH_ANSWERS = answers_of(REPLICA_FETCH_STREAM)
_PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("plain", 0))
Link = tuple[int, int]


class NotReached(Exception):
    """A plan gives up: a step did not come in its time."""


class Plans:
    """The plans of one world, one after another in random order."""

    def __init__(self, world: ClusterWorld, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._rng = world.rng
        self._network = world.cluster.network
        self._condition: Callable[[], bool] | None = None
        self._met: asyncio.Future[None] | None = None
        self._cuts: list[tuple[Link, str]] = []

    async def run(self) -> None:
        """Runs plans until it is cancelled."""
        plans = {
            "an old watermark leads": self._old_watermark_leads,
            "a quick restart": self._quick_restart,
            "a late divergence": self._late_divergence,
        }
        if self._world.topics_change:
            plans["an unclean election"] = self._unclean_election
        names = list(plans)
        self._rng.shuffle(names)
        while True:
            for name in names:
                await self._run(name, plans[name])

    async def _run(self, name: str, plan: Callable[[], object]) -> None:
        world = self._world
        with world.watch():
            try:
                await self._when(world.is_in_sync, 10_000)
                world.seen[f"plan: {name}"] += 1
                world.note(f"plan: {name}")
                await plan()  # type: ignore[misc]
            except NotReached:
                world.note(f"plan given up: {name}")
            else:
                world.seen[f"plan reached: {name}"] += 1
            finally:
                self._uncut_all()
        await asyncio.sleep(self._rng.randrange(10, 400) / 1000)

    # --- steps ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Checks the awaited condition; the world calls it whenever time moves on."""
        met, condition = self._met, self._condition
        if met is not None and condition is not None and not met.done() and condition():
            met.set_result(None)

    async def _when(self, condition: Callable[[], bool], limit_ms: int) -> None:
        """Waits for the first instant at which the condition holds. Raises NotReached."""
        if condition():
            return
        self._condition = condition
        self._met = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._met
        except TimeoutError:
            raise NotReached from None
        finally:
            self._condition = self._met = None

    def _cut(self, source: int, target: int, path: str) -> None:
        self._network.cut([(source, target)], path)
        self._cuts.append(((source, target), path))

    def _uncut(self, source: int, target: int, path: str) -> None:
        if ((source, target), path) in self._cuts:
            self._cuts.remove(((source, target), path))
            self._network.uncut([(source, target)], path)

    def _uncut_all(self) -> None:
        while self._cuts:
            link, path = self._cuts.pop()
            if not self._faults.is_over:
                self._network.uncut([link], path)

    def _stall_fetches(self, leader: int, follower: int) -> None:
        """Holds the leader's answers to fetches of the follower; its requests arrive."""
        self._cut(leader, follower, _FETCH_ANSWERS)

    def _release_fetches(self, leader: int, follower: int) -> None:
        self._uncut(leader, follower, _FETCH_ANSWERS)

    async def _lead(self, partition: TopicPartition, leader: int) -> None:
        """Makes a broker the leader, and returns when it knows. Raises NotReached."""
        others = [n for n in self._brokers if n != leader]
        self._rng.shuffle(others)

        async def run() -> None:
            async with self._world.cluster.asyncio.admin() as admin:
                await admin.alter_partition_reassignments({partition: [leader, *others]})
                await admin.elect_leaders("PREFERRED", [partition])

        await self._by_client(run(), 1_500)
        await self._when(lambda: self._leads(partition, leader), 1_000)

    # --- state ------------------------------------------------------------------------------------

    @property
    def _brokers(self) -> list[int]:
        return [node.node_id for node in self._world.cluster.brokers]

    def _node(self, node_id: int) -> SimNode:
        return self._world.cluster.nodes[node_id]

    def _hosted(self, node_id: int, partition: TopicPartition) -> HostedPartition | None:
        server = self._node(node_id).server
        broker = None if server is None else server.broker
        return None if broker is None else broker.partitions.find(partition)

    def _core(self, node_id: int, partition: TopicPartition) -> Partition:
        """The core of a hosted partition. Raises NotReached where there is none."""
        hosted = self._hosted(node_id, partition)
        if hosted is None:
            raise NotReached
        return hosted.core

    def _leads(self, partition: TopicPartition, node_id: int) -> bool:
        hosted = self._hosted(node_id, partition)
        return hosted is not None and hosted.is_leader

    def _known_end(self, leader: int, follower: int, partition: TopicPartition) -> int:
        """The follower's end as the leader knows it; -1: not at all."""
        state = self._core(leader, partition).remotes.get(follower)
        return -1 if state is None or state.log_end_offset is None else state.log_end_offset

    def _cast(self) -> tuple[TopicPartition, int, int, int]:
        """A partition, its leader, and its two followers in random order."""
        partition = self._rng.choice(_PARTITIONS)
        leader = self._world.cluster.leader(*partition)
        if leader is None:
            raise NotReached
        first, second = self._rng.sample([n for n in self._brokers if n != leader], 2)
        return partition, leader, first, second

    # --- plans ------------------------------------------------------------------------------------

    async def _old_watermark_leads(self) -> None:
        """A leader commits without a replica that is behind. The next leader does not know that
        yet, and its fetches are all the one behind gets answered late.
        """
        partition, old, new, behind = self._cast()
        first, second = self._core(old, partition), self._core(new, partition)
        self._stall_fetches(old, behind)
        self._cut(behind, old, REPLICA_FETCH_STREAM)
        await self._when(lambda: first.pending is not None and behind not in _members(first), 4_000)
        self._stall_fetches(old, new)
        await self._when(
            lambda: first.high_watermark > second.high_watermark and behind not in first.isr, 1_500
        )
        self._stall_fetches(new, behind)
        await self._lead(partition, new)
        await self._when(lambda: self._known_end(new, behind, partition) >= 0, 1_000)
        self._release_fetches(old, new)
        await asyncio.sleep(0.3)

    async def _quick_restart(self) -> None:
        """A replica about to join an ISR loses power and what it acknowledged, and registers anew.
        The proposal with its old broker epoch arrives late.
        """
        world = self._world
        partition, leader, behind, _ = self._cast()
        core, node = self._core(leader, partition), self._node(behind)
        controller = world.cluster.active_controller()
        if controller is None or controller == behind:
            raise NotReached
        self._cut(behind, leader, REPLICA_FETCH_STREAM)
        await self._when(lambda: behind not in core.maximal_isr, 4_000)
        self._cut(leader, controller, ALTER_PARTITION)
        self._uncut(behind, leader, REPLICA_FETCH_STREAM)
        await self._when(lambda: core.pending is not None and behind in _members(core), 1_500)
        hosted = self._hosted(behind, partition)
        if hosted is None:
            raise NotReached
        log = hosted.log
        await self._when(
            lambda: (
                core.high_watermark > log.recovery_point
                and self._known_end(leader, behind, partition) >= core.high_watermark
            ),
            500,
        )
        if not self._may_lose(behind):
            raise NotReached
        self._stall_fetches(leader, behind)
        epoch = self._faults.lose_power(node, keep="nothing")
        await self._faults.start(node)
        await self._when(lambda: self._registered_after(behind, epoch), 2_500)
        await asyncio.sleep(0.1)
        self._uncut(leader, controller, ALTER_PARTITION)
        await asyncio.sleep(0.5)

    def _may_lose(self, broker_id: int) -> bool:
        """Whether the other brokers run and have all that is committed."""
        image = self._world.newest_image()
        others = [n for n in self._brokers if n != broker_id]
        return (
            image is not None
            and all(self._node(n).life is not None for n in others)
            and all(
                set(others) <= set(partition.isr)
                for topic in image.topics
                for partition in topic.partitions.values()
            )
        )

    def _registered_after(self, broker_id: int, epoch: int) -> bool:
        image = self._world.newest_image()
        broker = None if image is None else image.brokers.get(broker_id)
        return broker is not None and broker.epoch > epoch and not broker.fenced

    async def _late_divergence(self) -> None:
        """A deposed leader has records that nobody else has. The answer that has it truncate them
        arrives when the next leader but one has long filled the place. In the end it leads again,
        while produces of its first leadership may still wait.
        """
        partition, old, deposed, third = self._cast()
        core = self._core(deposed, partition)
        for other in _PARTITIONS:  # so that fetches from `old` go on when it leads this one no more
            if other != partition and not self._leads(other, old):
                await self._lead(other, old)
                break
        for follower in (old, third):
            self._stall_fetches(deposed, follower)
        begin = core.log_end_offset
        await self._lead(partition, deposed)
        begin = max(begin, core.leader_epoch_start_offset or 0)
        await self._when(lambda: core.log_end_offset > begin, 1_200)
        self._stall_fetches(old, deposed)
        await self._lead(partition, old)
        await self._when(lambda: core.leader == old, 500)
        await asyncio.sleep(0.02 + self._network.delay_ms_max * 3 / 1000)
        for follower in (old, third):
            self._release_fetches(deposed, follower)
        await self._lead(partition, third)
        await self._when(lambda: core.high_watermark > begin, 1_500)
        self._release_fetches(old, deposed)
        await asyncio.sleep(0.05)
        await self._lead(partition, deposed)
        await asyncio.sleep(0.2)

    async def _unclean_election(self) -> None:
        """A leader alone has what a consumer has read. It ends, and another one is elected."""
        world = self._world
        topic = next(iter(world.partitions.lossy_topics))
        partition = TopicPartition(topic, 0)
        leader = world.cluster.leader(topic)
        if leader is None or not self._faults.may_kill():
            raise NotReached
        core, node = self._core(leader, partition), self._node(leader)
        for other in self._brokers:
            if other != leader:
                self._cut(other, leader, REPLICA_FETCH_STREAM)
        reader = TruncatedLog(world.cluster.asyncio, partition)
        try:
            await self._by_client(reader.send(5), 1_000)
            await self._when(lambda: core.isr == {leader} and core.high_watermark > 0, 4_500)
            await self._when(lambda: core.high_watermark == core.log_end_offset, 500)
            await self._by_client(reader.read_to(core.high_watermark), 1_000)
            node.kill()
            await self._when(lambda: world.cluster.leader(topic) is None, 5_000)
            await self._by_client(self._elect_uncleanly(partition), 2_000)
            await self._by_client(reader.send(10), 3_000)
            await self._by_client(reader.is_told(), 10_000)
        finally:
            if not self._faults.is_over:
                await self._faults.start(node)
            await self._by_client(reader.close(), 1_000)

    async def _elect_uncleanly(self, partition: TopicPartition) -> None:
        async with self._world.cluster.asyncio.admin() as admin:
            await admin.elect_leaders("UNCLEAN", [partition])

    async def _by_client(self, work: Coroutine[Any, Any, None], limit_ms: int) -> None:
        """Runs a program of a client. Raises NotReached if it fails or takes too long."""
        life = self._world.cluster.clients.life
        assert life is not None
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await life.spawn(work)
        except (TidemarkError, TimeoutError):
            raise NotReached from None


def _members(core: Partition) -> set[int]:
    """Members of the ISR that a leader proposes."""
    return set() if core.pending is None else {member.broker_id for member in core.pending.new_isr}
