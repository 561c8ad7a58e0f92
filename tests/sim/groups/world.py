"""A group under one seed: members read, commit, pause and die while brokers are killed and cut off.

Checked after each poll of a member:

- no partition is owned by two members in one epoch of the group;
- a commit that was answered is never below an earlier one that was;
- what the group tells of its offsets is at least the newest answered commit.

At the end every acknowledged record was processed, and the group is stable.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence

from tests.sim.cluster.planting import ClusterCanary
from tidemark.client import AsyncConsumer
from tidemark.errors import TidemarkError
from tidemark.testing import Cluster
from tidemark.types import TopicPartition

SETTINGS = {
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "min.insync.replicas": "2",
}
_PARTITIONS = 5
_GROUP = "g"
_END_S = 120


class GroupViolation(AssertionError):
    """A promise of groups is broken."""


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(f"groups {seed}")
        self.cluster = Cluster(seed=seed, brokers=3, settings=SETTINGS)
        self.acknowledged: set[bytes] = set()
        self.processed: Counter[bytes] = Counter()
        self.owners: dict[tuple[TopicPartition, int], str] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.events: list[str] = []
        self.is_over = False
        self.counts: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Runs the seed; returns what happened. Raises GroupViolation."""
        with self.cluster as cluster:
            cluster.create_topic("t", _PARTITIONS, min_insync_replicas="2")
            cluster.run(self._main())
        return self.counts

    async def _main(self) -> None:
        members = [self._member(f"m{number}") for number in range(3)]
        work = [asyncio.ensure_future(each) for each in (*members, self._produce())]
        faults = asyncio.ensure_future(self._faults())
        try:
            await faults
            self.is_over = True
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*work)
        except TimeoutError:
            missing = self.acknowledged - set(self.processed)
            raise GroupViolation(f"{len(missing)} records are not processed at the end") from None
        finally:
            for task in (faults, *work):
                task.cancel()
            await asyncio.gather(faults, *work, return_exceptions=True)
        self.counts["records"] = len(self.processed)

    # --- the workload

    async def _produce(self) -> None:
        producer = self.cluster.asyncio.producer(acks="all")
        number = 0
        while not self.is_over:
            value = b"%d" % number
            with contextlib.suppress(TidemarkError):
                await producer.send("t", value, partition=number % _PARTITIONS)
                self.acknowledged.add(value)
            number += 1
            await asyncio.sleep(0.05)
        with contextlib.suppress(TidemarkError):
            await producer.close()

    async def _member(self, name: str) -> None:
        while True:
            lives = self.draw.randrange(20, 400)
            consumer = self.cluster.asyncio.consumer(
                group_id=_GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_interval_ms=8_000,
                default_api_timeout_ms=5_000,
                request_timeout_ms=2_000,
                group_instance_id=name if self.draw.random() < 0.3 else "",
            )
            consumer.subscribe(["t"])
            try:
                await self._live(name, consumer, lives)
            except TidemarkError as error:
                self.counts[type(error).__name__] += 1
            if self.is_over and self.acknowledged <= set(self.processed):
                with contextlib.suppress(TidemarkError):
                    await consumer.close()
                return
            if self.draw.random() < 0.5:
                with contextlib.suppress(TidemarkError):
                    await consumer.close()
            else:
                await abandon(consumer)
            self.counts["lives"] += 1

    async def _live(self, name: str, consumer: AsyncConsumer, polls: int) -> None:
        while polls > 0 or self.is_over:  # at the end nobody else comes to help
            polls -= 1
            records = await consumer.poll(200, max_records=20)
            self._check_owner(name, consumer)
            values = [record.value or b"" for record in records]
            if self.draw.random() < 0.02 and not self.is_over:
                self.counts["pauses"] += 1
                await asyncio.sleep(self.draw.choice([1, 6, 12]))
            self.processed.update(values)
            if values or self.draw.random() < 0.1:
                await self._commit(consumer)
            if self.is_over and self.acknowledged <= set(self.processed):
                return

    async def _commit(self, consumer: AsyncConsumer) -> None:
        assert consumer._member is not None
        positions = {p: found.offset for p, found in consumer._member.positions().items()}
        before = dict(self.committed)
        await consumer.commit()
        self.counts["commits"] += 1
        for partition, offset in positions.items():
            if offset < before.get(partition, 0):
                raise GroupViolation(
                    f"{partition}: a commit of {offset} counts after one of {before[partition]}"
                )
            self.committed[partition] = max(offset, self.committed.get(partition, 0))
        known = dict(self.committed)
        told = await consumer.committed(sorted(known))
        for partition, offset in known.items():
            found = told[partition]
            if found is None or found.offset < offset:
                raise GroupViolation(f"{partition}: {found} is told after a commit of {offset}")

    def _check_owner(self, name: str, consumer: AsyncConsumer) -> None:
        assert consumer._member is not None
        core = consumer._member.core
        if core.target != core.owned:
            return  # on its way
        who = core.settings.instance_id or core.settings.member_id  # its successor has its epoch
        for partition in consumer.assignment():
            other = self.owners.setdefault((partition, core.epoch), who)
            if other != who and core.epoch:
                raise GroupViolation(f"{partition} has two owners in epoch {core.epoch}: {name}")

    # --- faults

    async def _faults(self) -> None:
        for _ in range(self.draw.randrange(3, 7)):
            await asyncio.sleep(self.draw.uniform(1, 6))
            node = self.draw.choice(self.cluster.brokers)
            kind = self.draw.choice(["kill", "power", "pause", "cut", "split", "stop"])
            self.counts[kind] += 1
            await self._break(node.node_id, kind)
            await asyncio.sleep(self.draw.uniform(1, 8))
            self.cluster.heal()
            if node.server is None:
                await node.start()
            await self._ready()

    async def _break(self, node_id: int, kind: str) -> None:
        match kind:
            case "kill" | "power":
                self.cluster.kill(node_id, power=kind == "power")
            case "pause":
                self.cluster.pause(node_id)
            case "cut":
                self.cluster.isolate(node_id)
            case "split":  # its clients still reach it
                for other in self.cluster.nodes:
                    if other != node_id:
                        self.cluster.cut(node_id, other)
            case "stop":
                await self.cluster.nodes[node_id].stop()

    async def _ready(self) -> None:
        for _ in range(1_200):
            if self.cluster.is_ready():
                return
            await asyncio.sleep(0.05)
        raise GroupViolation(f"the brokers are not back: {self.cluster.describe()}")


async def abandon(consumer: AsyncConsumer) -> None:
    """Ends a consumer as a killed process does: it tells nobody."""
    member = consumer._member
    assert member is not None
    member._auto_commit_ms = 0
    if member._beat is not None:
        member._beat.cancel()
        member._beat = None
    member.core.leave()
    with contextlib.suppress(TidemarkError):
        await consumer.close()


def run_groups(seed: int, canary: ClusterCanary | None = None) -> Counter[str]:
    """Runs one seed, with a bug if there is one."""
    with (canary or ClusterCanary()).planted():
        return World(seed).run()


def run_seeds(seeds: Sequence[int]) -> Counter[str]:
    """Runs seeds one after another; returns what happened in all."""
    total: Counter[str] = Counter()
    for seed in seeds:
        try:
            total += run_groups(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return total
