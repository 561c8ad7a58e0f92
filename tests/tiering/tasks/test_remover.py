"""The remote partition remover: a deleted topic leaves nothing in the tier, whoever was down."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests import virtual_time
from tests.tiering.builders import FINISHED, PARTITION, STARTED, segment, server_config
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition, TopicPartition
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.failing import REMOVE, FailedTasks
from tiering.metadata.memory import MemoryHistory, MemoryRemoteLogMetadataManager
from tiering.metadata.segments import (
    RemoteLogMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tiering.metrics import RemoteMetrics
from tiering.tasks.deleter import SegmentDeleter
from tiering.tasks.leases import Leases
from tiering.tasks.remover import ABSENCE_GRACE_MS, UPLOAD_GRACE_MS, PartitionRemover
from tiering.tasks.uploads import Uploads

D = RemotePartitionDeleteState
STEPS = [D.DELETE_PARTITION_MARKED, D.DELETE_PARTITION_STARTED, D.DELETE_PARTITION_FINISHED]
NEW = TopicIdPartition(UUID(int=99), PARTITION.topic, PARTITION.partition)
INTERVAL_MS = 60_000


class Killed(BaseException):
    """The process ends here."""


class Inline(Executor):
    """Runs what is submitted at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


class Tier:
    """A store by segment id, a metadata history, and a bomb that counts the steps of both."""

    def __init__(self) -> None:
        self.objects: set[UUID] = set()
        self.history = MemoryHistory()
        self.down = False
        self.fuse = -1
        self.apply, self.history.append = self.history.append, self._append  # type: ignore[method-assign]

    def _append(self, record: RemoteLogMetadata) -> None:
        self._tick()
        self.apply(record)
        self._tick()

    def delete_log_segment_data(self, metadata: Any) -> None:
        if self.down:
            raise RetriableRemoteStorageError("503 SlowDown")
        self._tick()
        self.objects.discard(metadata.id)
        self._tick()

    def _tick(self) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            raise Killed

    def copy(self, *segments: Any) -> None:
        for one in segments:
            self.apply(replace(one, state=STARTED))
            self.objects.add(one.id)
            if one.state is FINISHED:
                self.apply(one.update(FINISHED, 1, 1))

    def steps(self, partition: TopicIdPartition = PARTITION) -> list[D]:
        return [
            record.state
            for record in self.history.records
            if isinstance(record, RemotePartitionDeleteMetadata)
            and record.topic_id_partition == partition
        ]


class Cluster:
    """The cluster's metadata as a node sees it."""

    def __init__(self, *topic_ids: UUID, leader: int = 1) -> None:
        self.topic_ids = set(topic_ids)
        self.leader = leader
        self.metadata_offset = 10

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        assert topic_partition.topic == REMOTE_LOG_METADATA_TOPIC
        return self.leader, 0

    def topic_name(self, topic_id: UUID) -> str | None:
        return "flights" if topic_id in self.topic_ids else None


def remover(
    tier: Tier, cluster: Cluster, node_id: int = 1, failed: FailedTasks | None = None
) -> PartitionRemover:
    config = server_config(node_id=node_id, remote_partition_remover_task_interval_ms=INTERVAL_MS)
    metadata = MemoryRemoteLogMetadataManager(tier.history)
    deleter = SegmentDeleter(
        config,
        tier,  # type: ignore[arg-type]
        metadata,
        Uploads(tier, 1),  # type: ignore[arg-type]
        RemoteMetrics(),
        lambda: 5,
        lambda segment: lambda: None,
    )
    deleter._pool = Inline()  # type: ignore[assignment]
    metadata.recorded_partitions(lambda number: True)
    leases = Leases(tier, deleter.run, lambda: 5, 1_000)  # type: ignore[arg-type]
    return PartitionRemover(
        config, metadata, deleter, leases, cluster, lambda: 5, random.Random(1), failed
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    virtual_time.run(main())


async def for_ms(cluster: Cluster, removers: list[PartitionRemover], time_ms: float) -> None:
    """Runs removers for a time in which the cluster's metadata advances."""
    tasks = [asyncio.ensure_future(one.run()) for one in removers]
    for _ in range(10):
        await asyncio.sleep(time_ms / 10_000)
        cluster.metadata_offset += 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_marked_partition_is_removed_in_kafkas_steps_and_a_new_topic_of_its_name_stays() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster(NEW.topic_id)
        tier.copy(segment(0, 9, 1), segment(10, 19, 2))
        tier.copy(segment(0, 9, 7, partition=NEW))
        one = remover(tier, cluster)
        await one.mark(PARTITION)
        await one.mark(PARTITION)  # asked again after a lost answer
        assert tier.steps() == STEPS[:1]
        assert await one.remove_once()
        assert tier.steps() == STEPS
        assert tier.objects == {UUID(int=7)}
        count = len(tier.history.records)
        assert await one.remove_once()
        assert len(tier.history.records) == count

    run(scenario)


def test_killed_at_any_step_the_next_process_completes_the_removal() -> None:
    async def scenario() -> None:
        for fuse in itertools.count(1):
            tier, cluster = Tier(), Cluster()
            tier.copy(segment(0, 9, 1), segment(10, 19, 2))
            tier.fuse = fuse
            try:
                first = remover(tier, cluster)
                await first.mark(PARTITION)
                await first.remove_once()
                completed = True
            except Killed:
                completed = False
            if not tier.steps():  # killed before the mark: the topic is absent from the metadata
                await for_ms(cluster, [remover(tier, cluster)], 3 * ABSENCE_GRACE_MS)
            assert await remover(tier, cluster).remove_once()
            assert not tier.objects, fuse
            assert tier.steps()[-1] is D.DELETE_PARTITION_FINISHED
            assert not tier.history.caches[PARTITION].segments()
            if completed:
                assert fuse > 12
                return

    run(scenario)


def test_a_removal_waits_for_the_store_and_is_tried_again_before_its_interval() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster()
        tier.copy(segment(0, 9, 1))
        tier.down = True
        one = remover(tier, cluster)
        await one.mark(PARTITION)
        await for_ms(cluster, [one], 3_600_000)
        assert tier.steps() == STEPS[:2] and tier.objects
        tier.down = False
        await for_ms(cluster, [one], INTERVAL_MS / 2)
        assert tier.steps() == STEPS and not tier.objects

    run(scenario)


def test_a_topic_deleted_while_its_leader_was_down_is_marked_by_the_owner() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster(NEW.topic_id)
        tier.copy(segment(0, 9, 1))
        tier.copy(segment(0, 9, 7, partition=NEW))
        one = remover(tier, cluster)
        await for_ms(cluster, [one], ABSENCE_GRACE_MS / 2)
        assert tier.steps() == [] and len(tier.objects) == 2
        await for_ms(cluster, [one], 2 * ABSENCE_GRACE_MS)
        assert tier.steps() == STEPS and tier.objects == {UUID(int=7)}

    run(scenario)


def test_metadata_that_stands_still_or_lags_is_no_proof_of_a_deletion() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster()
        tier.copy(segment(0, 9, 1))
        one = remover(tier, cluster)
        for _ in range(5):  # the image does not advance: this node hears of no new topic either
            assert await one.remove_once()
            await asyncio.sleep(ABSENCE_GRACE_MS / 1000)
        cluster.topic_ids.add(PARTITION.topic_id)  # it catches up
        cluster.metadata_offset += 1
        assert await one.remove_once()
        cluster.topic_ids.clear()
        cluster.metadata_offset += 1
        assert await one.remove_once()  # a new absence begins its own grace
        assert tier.steps() == [] and tier.objects

        cluster.metadata_offset = -1  # no metadata at all
        await asyncio.sleep(10 * ABSENCE_GRACE_MS / 1000)
        assert await one.remove_once()
        assert tier.steps() == []

    run(scenario)


def test_only_the_leader_of_the_metadata_partition_removes() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster(leader=2)
        tier.copy(segment(0, 9, 1))
        one, two = remover(tier, cluster, 1), remover(tier, cluster, 2)
        await one.mark(PARTITION)
        assert await one.remove_once()
        assert tier.steps() == STEPS[:1] and tier.objects
        assert await two.remove_once()
        assert tier.steps() == STEPS and not tier.objects

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_two_owners_at_once_remove_everything_once(seed: int) -> None:
    """The deposed owner does not know it yet; both work through the same records."""

    async def scenario() -> None:
        tier, cluster = Tier(), Cluster()
        tier.copy(*(segment(10 * n, 10 * n + 9, n + 1) for n in range(6)))
        order = random.Random(seed)
        both = [remover(tier, cluster), remover(tier, cluster)]
        for one in both:
            delete = one._deleter.delete

            async def paced(found: Any, delete: Any = delete) -> None:
                for _ in range(order.randrange(4)):
                    await asyncio.sleep(0)
                await delete(found)

            one._deleter.delete = paced  # type: ignore[method-assign]
        await both[0].mark(PARTITION)
        await asyncio.gather(*(one.remove_once() for one in both))
        await for_ms(cluster, both, 2 * INTERVAL_MS)
        assert not tier.objects
        assert list(dict.fromkeys(tier.steps())) == STEPS
        assert not tier.history.caches[PARTITION].segments()

    run(scenario)


def test_an_owner_that_another_one_overtook_takes_what_is_gone_as_removed() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster()
        tier.copy(segment(0, 9, 1), segment(10, 19, 2))
        slow, fast = remover(tier, cluster), remover(tier, cluster)
        delete = slow._deleter.delete

        async def overtaken(found: Any) -> None:
            await fast.remove_once()
            await delete(found)

        slow._deleter.delete = overtaken  # type: ignore[method-assign]
        await slow.mark(PARTITION)
        assert await slow.remove_once()
        assert list(dict.fromkeys(tier.steps())) == STEPS and not tier.objects

    run(scenario)


def test_a_copy_that_may_still_upload_is_waited_for_and_no_new_one_begins() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster()
        tier.copy(segment(0, 9, 1), segment(10, 19, 2, state=STARTED))
        one = remover(tier, cluster)
        await one.mark(PARTITION)
        assert await one.remove_once()
        assert tier.objects == {UUID(int=2)} and tier.steps() == STEPS[:2]
        with pytest.raises(RemoteStorageError, match="being deleted"):
            tier.apply(segment(20, 29, 3, state=STARTED))
        await for_ms(cluster, [one], UPLOAD_GRACE_MS + 2 * INTERVAL_MS)
        assert not tier.objects and tier.steps() == STEPS

    run(scenario)


def test_an_upload_that_ends_after_the_mark_is_removed_at_once() -> None:
    async def scenario() -> None:
        tier, cluster = Tier(), Cluster()
        late = segment(0, 9, 1, state=STARTED)
        tier.copy(late)
        one = remover(tier, cluster)
        await one.mark(PARTITION)
        assert await one.remove_once()
        tier.apply(late.update(FINISHED, 2, 1))
        assert await one.remove_once()
        assert not tier.objects and tier.steps() == STEPS

    run(scenario)


def test_removals_that_fail_are_told_until_they_succeed_or_another_node_has_them() -> None:
    async def scenario() -> None:
        tier, cluster, failed = Tier(), Cluster(), FailedTasks()
        tier.copy(segment(0, 9, 1))
        one = remover(tier, cluster, failed=failed)
        await one.mark(PARTITION)
        tier.down = True
        for failures in (1, 2):
            assert not await one.remove_once()
            (told,) = failed.worst(9)
            assert (told.task, told.partition, told.failures) == (REMOVE, PARTITION, failures)
            assert "SlowDown" in told.error
        cluster.leader = 2
        await one.remove_once()
        assert failed.worst(9) == []
        cluster.leader = 1
        assert not await one.remove_once()
        tier.down = False
        assert await one.remove_once()
        assert failed.worst(9) == []

    run(scenario)
