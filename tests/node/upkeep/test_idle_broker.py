"""The periodic passes of a broker do nothing for partitions that are not used."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.disk.checkpoints import OffsetCheckpoint
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.deleted_files import DeletedFiles
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from node.membership.identity import BrokerIdentity
from node.partition.cluster_view import ClusterView
from node.partition.core import Partition, Registration
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.replication.isr import IsrKeeper
from node.runtime.clock import Clock
from node.upkeep import background
from node.upkeep.background import BackgroundWork
from tests.commitlog.builders import NOW, batch, config
from tests.node.fakes import FakeController, broker_config
from tidemark.errors import FatalError
from tidemark.types import TopicIdPartition, random_uuid

COUNT = 20
MINUTE_MS = 60_000
TOPIC_ID = random_uuid()


def fail(error: FatalError) -> None:
    pytest.fail(str(error))


class Broker:
    """Hosted partitions, led here with two followers each, and the periodic passes."""

    def __init__(self, **topic: Any) -> None:
        self.now = NOW
        settings = broker_config(1)
        clock = Clock(lambda: self.now, lambda: self.now)
        self.logs = LogManager([MemoryDirectory()], settings, now_ms=lambda: self.now)
        self.partitions = PartitionRegistry(1, ClusterView(settings), fail)
        self.isr = IsrKeeper(BrokerIdentity(1), self.partitions, FakeController(), clock)
        self.work = BackgroundWork(
            settings,
            self.logs,
            self.partitions,
            self.isr,
            clock,
            lambda error: pytest.fail(str(error)),
        )
        self.logs.open()
        for number in range(COUNT):
            self._host(TopicIdPartition(TOPIC_ID, "idle", number), **topic)

    def _host(self, identity: TopicIdPartition, **topic: Any) -> None:
        log = self.logs.get_or_create(identity.topic_partition, TOPIC_ID, config(**topic))
        core = Partition(identity, 1, dict)
        core.apply(Registration((1, 2, 3), (1, 2, 3), 1, 0, 0), 0, self.now)
        hosted = HostedPartition(core, log, log.config, watched=self.isr.watched)
        self.partitions.add(hosted)
        self.isr.watched.add(hosted)
        self.fetched(hosted)

    def fetched(self, hosted: HostedPartition) -> None:
        for replica in (2, 3):
            name = SimpleNamespace(node_id=replica, broker_epoch=replica)
            end = hosted.log.log_end_offset
            self.isr.on_follower_fetch(hosted, name, end, 0, self.now)

    def hosted(self, number: int) -> HostedPartition:
        (found,) = (h for h in self.partitions if h.topic_partition.partition == number)
        return found

    def append(self, number: int, *, fetched: bool = True) -> None:
        hosted = self.hosted(number)
        hosted.log.append_as_leader(batch(3, timestamp=self.now), 0, self.now)
        hosted.appended(self.now)
        if fetched:
            self.fetched(hosted)

    async def everything(self) -> None:
        """Runs each pass once."""
        work = self.work
        for each in (
            work.retention,
            work.purge,
            work.checkpoint_high_watermarks,
            work.checkpoint_recovery_points,
            work.flush_due,
            work.checkpoint_log_starts,
            work.expire_producers,
            work.report_log_starts,
            work.shrink,
        ):
            await each()


def test_an_idle_hour_of_a_broker_looks_at_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[object] = []

    async def scenario() -> None:
        broker = Broker(retention_ms=7 * 24 * 60 * MINUTE_MS)
        for number in range(0, COUNT, 2):
            broker.append(number)
        for _ in range(3):
            await broker.everything()
        for owner, name in (
            (background, "delete_expired"),
            (Log, "flush"),
            (DeletedFiles, "purge"),
            (OffsetCheckpoint, "write"),
            (Partition, "maybe_shrink_isr"),
            (HostedPartition, "start_moved"),
        ):
            monkeypatch.setattr(owner, name, lambda self, *_, name=name: touched.append(name))
        for _ in range(60):
            broker.now += MINUTE_MS
            await broker.everything()
            assert not broker.work.cleaner.has_work
        await broker.work.stop()

    asyncio.run(scenario())
    assert touched == []


def test_a_partition_whose_followers_lag_is_looked_at_until_they_are_back() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.work.shrink()
        assert list(broker.isr.watched) == []
        broker.append(3, fetched=False)
        hosted = broker.hosted(3)
        await broker.work.shrink()
        assert list(broker.isr.watched) == [hosted]
        broker.now += 31_000
        await broker.work.shrink()
        assert hosted.core.pending is not None, "both followers are to leave the ISR"
        hosted.core.pending = None
        broker.fetched(hosted)
        await broker.work.shrink()
        assert list(broker.isr.watched) == []
        name = SimpleNamespace(node_id=2, broker_epoch=2)
        broker.isr.on_follower_fetch(hosted, name, 0, 0, broker.now)  # it lost its disk
        assert list(broker.isr.watched) == [hosted]
        await broker.work.stop()

    asyncio.run(scenario())


def test_followers_hear_of_a_log_start_that_retention_moved() -> None:
    async def scenario() -> None:
        broker = Broker(retention_ms=MINUTE_MS)
        broker.append(5)
        hosted, heard = broker.hosted(5), asyncio.get_running_loop().create_future()
        hosted.commit_waiters.add(heard)
        await broker.work.report_log_starts()
        assert not heard.done()
        broker.now += 10 * MINUTE_MS
        for _ in range(2):
            await broker.work.retention()
        assert hosted.log.log_start_offset == 3
        await broker.work.report_log_starts()
        assert heard.done()
        await broker.work.stop()

    asyncio.run(scenario())
