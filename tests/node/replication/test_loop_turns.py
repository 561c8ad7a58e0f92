"""The event loop does not wait for a disk, however slow its fsyncs are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from commitlog.cleaner.manager import CLEANER_CHECKPOINT, LogCleaner
from commitlog.log.log import Log
from node.partition.core import Partition
from node.replication.reconciling import SLICE
from node.serving import fetching
from node.serving.fetch_session import FetchPartition, SessionlessFetch
from node.serving.fetching import FetchParams
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, Node, batch, values_of
from tests.node.slow_disk import FSYNC_S, POOL, SlowDiskLoop
from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition, random_uuid
from tidemark.v1 import log_pb2
from tidemark.v1 import metadata_pb2 as records_pb
from tidemark.wire import PartitionProduceData

PARTITIONS = 100


def slow(test: Callable[[Cluster, SlowDiskLoop], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = Cluster(pool=POOL)
        cluster.start(1, 2)
        await asyncio.sleep(1)
        for disk in cluster.disks.values():
            loop.slow_down(disk.disk)
        loop.longest_turn_s = 0.0
        await test(cluster, loop)
        await asyncio.sleep(1)  # the last turn counts, too
        assert loop.longest_turn_s < FSYNC_S
        running = list(cluster.nodes.values())
        await cluster.stop(clean=False)
        assert [node.fatal for node in running] == [[] for _ in running]

    loop = SlowDiskLoop()
    virtual_time.run(main(), loop)


def create(cluster: Cluster, count: int = PARTITIONS, **settings: str) -> None:
    records = [
        records_pb.MetadataRecord(
            topic=records_pb.TopicRecord(name=TOPIC, topic_id=cluster.topic_id.bytes)
        )
    ]
    for name, value in settings.items():
        config = records_pb.ConfigRecord(
            resource_type=2, resource_name=TOPIC, name=name.replace("_", "."), value=value
        )
        records.append(records_pb.MetadataRecord(config=config))
    for index in range(count):
        partition = records_pb.PartitionRecord(
            partition_id=index,
            topic_id=cluster.topic_id.bytes,
            replicas=(1, 2),
            isr=(1, 2),
            leader=1,
        )
        records.append(records_pb.MetadataRecord(partition=partition))
    cluster.publish(*records)


def lead(cluster: Cluster, partitions: Iterable[int], leader: int) -> None:
    changes = [
        records_pb.PartitionChangeRecord(
            partition_id=index, topic_id=cluster.topic_id.bytes, leader=leader
        )
        for index in partitions
    ]
    cluster.publish(*(records_pb.MetadataRecord(partition_change=each) for each in changes))


async def hosted_everywhere(cluster: Cluster, count: int) -> None:
    for _ in range(10_000):
        if all(len(node.partitions) == count for node in cluster.nodes.values()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not all partitions are hosted")


def test_no_turn_waits_for_the_fsyncs_of_a_hundred_new_partitions() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster)
        await hosted_everywhere(cluster, PARTITIONS)
        assert (await cluster.nodes[1].produce("a")).base_offset == 0

    slow(test)


def test_no_turn_waits_for_the_fsyncs_of_a_hundred_deleted_partitions() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster)
        await hosted_everywhere(cluster, PARTITIONS)
        cluster.delete_topic()
        await hosted_everywhere(cluster, 0)
        assert not cluster.nodes[1].logs.logs()

    slow(test)


def test_no_turn_waits_for_the_cleaners_checkpoint_of_deleted_partitions() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        node = cluster.nodes[1]
        cleaner = LogCleaner(node.logs, node.config, now_ms=lambda: 0)
        create(cluster, 3, cleanup_policy="compact")
        await hosted_everywhere(cluster, 3)
        for index in range(3):
            cleaner._checkpoints[TopicPartition(TOPIC, index)] = 0
        cleaner._changed_in(node.logs.directories[0])
        await loop.run_in_executor(POOL, cleaner.save)
        assert cluster.disks[1].read(CLEANER_CHECKPOINT).startswith(b"0\n3\n")
        cluster.delete_topic()
        await node.hosting.settled()
        assert cluster.disks[1].read(CLEANER_CHECKPOINT) == b"0\n0\n"

    slow(test)


def test_a_new_log_takes_no_record_before_a_checkpoint_names_it() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1)
        name, node = TopicPartition(TOPIC, 0), cluster.nodes[1]
        for _ in range(1_000):
            if node.logs.get(name) is not None:
                break
            await asyncio.sleep(0.001)
        assert node.logs.get(name) is not None
        assert node.partitions.find(name) is None
        await hosted_everywhere(cluster, 1)
        for file in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
            assert cluster.disks[1].read(file) == f"0\n1\n{TOPIC} 0 0\n".encode()

    slow(test)


def test_metadata_names_no_leader_and_produces_are_refused_while_the_log_is_made() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        async def answered(node_id: int) -> tuple[int, int]:
            request = log_pb2.MetadataRequest(topics=[TOPIC])
            answer = await cluster.nodes[node_id].service.metadata(request, None)
            found = answer.topics[0].partitions[0]
            return found.error_code, found.leader_id

        create(cluster, 1)
        assert await answered(1) == (ErrorCode.LEADER_NOT_AVAILABLE, 1)
        assert await answered(2) == (ErrorCode.NONE, 1)
        refused = await cluster.nodes[1].produce("a")
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused.error_message == f"node 1 opens {TOPIC}-0: try it again"
        await hosted_everywhere(cluster, 1)
        assert await answered(1) == (ErrorCode.NONE, 1)

    slow(test)


def test_a_change_of_very_many_partitions_is_applied_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_turn: Counter[int] = Counter()
    apply = Partition.apply

    def counted(core: Partition, *args: Any) -> bool:
        in_turn[loop_of.turn] += 1
        return apply(core, *args)

    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        nonlocal loop_of
        loop_of = loop
        create(cluster, 3 * SLICE)
        await hosted_everywhere(cluster, 3 * SLICE)
        in_turn.clear()
        lead(cluster, range(3 * SLICE), leader=2)
        assert in_turn.total() == 2 * SLICE, "each of two nodes begins at once"
        for node in cluster.nodes.values():
            await node.hosting.settled()
        assert in_turn.total() == 6 * SLICE
        assert max(in_turn.values()) == 2 * SLICE
        assert all(not hosted.is_leader for hosted in cluster.nodes[1].partitions)
        assert all(hosted.is_leader for hosted in cluster.nodes[2].partitions)

    loop_of: SlowDiskLoop
    monkeypatch.setattr(Partition, "apply", counted)
    slow(test)


def test_replicas_that_change_again_before_their_turn_take_the_newest_state_alone() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 4 * SLICE)
        await hosted_everywhere(cluster, 4 * SLICE)
        last = TopicPartition(TOPIC, 4 * SLICE - 1)
        for leader in (2, 1, 2):
            lead(cluster, range(4 * SLICE), leader)
        hosted = cluster.nodes[2].partitions.find(last)
        assert hosted is not None
        assert (hosted.is_leader, hosted.core.leader_epoch) == (False, 0)
        await cluster.nodes[2].hosting.settled()
        assert (hosted.is_leader, hosted.core.leader_epoch) == (True, 3)
        assert hosted.log.epochs.entries() == ((3, 0),), "epochs 1 and 2 were never led"

    slow(test)


def test_a_directory_that_fails_while_logs_are_made_in_it_takes_them_offline() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        cluster.disks[1].disk.failing_fsyncs.append("*")
        create(cluster, 2)
        await cluster.nodes[1].hosting.settled()
        node = cluster.nodes[1]
        assert len(node.partitions) == 0
        assert set(node.partitions.offline) == {TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)}
        assert (await node.produce("a")).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    slow(test)


def test_a_stop_while_logs_are_made_leaves_logs_that_the_next_start_takes() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 2)
        await asyncio.sleep(FSYNC_S)
        assert len(cluster.nodes[1].partitions) == 0
        await cluster.stop(1)
        cluster.start(1)
        await asyncio.sleep(0)
        loop.longest_turn_s = 0.0  # a broker closes and opens logs in threads
        await hosted_everywhere(cluster, 2)
        assert (await cluster.nodes[1].produce("a")).base_offset == 0

    slow(test)


def test_a_topic_deleted_and_made_anew_while_its_log_is_made_durable_has_the_new_log() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 2)
        await asyncio.sleep(FSYNC_S)
        cluster.delete_topic()
        cluster.topic_id = random_uuid()
        create(cluster, 1)
        await hosted_everywhere(cluster, 1)
        for node in cluster.nodes.values():
            assert [log.topic_id for log in node.logs.logs()] == [cluster.topic_id]
        assert (await cluster.nodes[1].produce("a")).base_offset == 0

    slow(test)


def test_a_topic_deleted_while_its_log_is_made_durable_leaves_no_log() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 2)
        await asyncio.sleep(FSYNC_S)
        cluster.delete_topic()
        await asyncio.sleep(5)
        for node in cluster.nodes.values():
            assert node.logs.logs() == []
            assert len(node.partitions) == 0

    slow(test)


async def append(node: Node, partition: int, *values: str) -> None:
    """Appends a batch for each value, acknowledged by the leader alone."""
    for value in values:
        data = PartitionProduceData(TOPIC, partition, batch(value))
        (result,) = await node.handlers.produce.produce(1, 5_000, [data])
        assert result.error_code == ErrorCode.NONE


async def diverge(cluster: Cluster, count: int, **settings: str) -> None:
    """Node 1 leads and appends what node 2 lacks; then node 2 leads and appends something else."""
    create(cluster, count, **settings)
    await hosted_everywhere(cluster, count)
    for index in range(count):
        await append(cluster.nodes[1], index, "kept")
    await asyncio.sleep(5)
    cluster.cut |= {(1, 2), (2, 1)}
    for index in range(count):
        await append(cluster.nodes[1], index, "lost 1", "lost 2", "lost 3")
    lead(cluster, range(count), leader=2)
    for node in cluster.nodes.values():
        await node.hosting.settled()
    for index in range(count):
        await append(cluster.nodes[2], index, "instead")


def tail_of(cluster: Cluster, node_id: int, partition: int) -> list[str]:
    hosted = cluster.nodes[node_id].partitions.find(TopicPartition(TOPIC, partition))
    assert hosted is not None
    log, found = hosted.log, []
    while (offset := len(found)) < log.log_end_offset:
        found += values_of(log.read(offset, 1 << 20).records)
    return found


@pytest.mark.parametrize("settings", [{}, {"segment_bytes": "80"}], ids=["one", "several"])
def test_no_turn_waits_for_the_fsyncs_of_fifty_truncations(settings: dict[str, str]) -> None:
    count = 50

    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        await diverge(cluster, count, **settings)
        cluster.cut.clear()
        for _ in range(400):
            await asyncio.sleep(0.5)
            tails = [tail_of(cluster, 1, index) for index in range(count)]
            if all(tail == ["kept", "instead"] for tail in tails):
                break
        assert tails == [["kept", "instead"]] * count
        for hosted in cluster.nodes[1].partitions:
            hosted.log.validate()
            assert hosted.core.log_end_offset == 2

    slow(test)


def test_a_replica_that_leads_again_amid_its_truncation_keeps_a_sound_log() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        await diverge(cluster, 1, segment_bytes="80")
        (hosted,) = cluster.nodes[1].partitions
        cluster.cut.clear()
        whole = hosted.log.log_end_offset
        for _ in range(10_000):
            if hosted.log.log_end_offset != whole:
                break
            await asyncio.sleep(0.001)
        assert 1 < hosted.log.log_end_offset < whole, "between its segments"
        lead(cluster, range(1), leader=1)
        assert hosted.is_leader
        await append(cluster.nodes[1], 0, "again")
        await asyncio.sleep(10)
        hosted.log.validate()
        assert tail_of(cluster, 1, 0) == tail_of(cluster, 2, 0)
        assert tail_of(cluster, 1, 0)[-1] == "again"

    slow(test)


def test_no_append_waits_while_a_flush_writes_the_leader_epochs() -> None:
    """The flush of another thread holds the log's lock for a moment only."""

    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1)
        await hosted_everywhere(cluster, 1)
        await append(cluster.nodes[1], 0, "a")
        (hosted,) = cluster.nodes[1].partitions
        pending = hosted.log.prepare_flush()
        assert pending is not None
        hosted.log.epochs.assign(7, hosted.log.log_end_offset)
        await asyncio.sleep(0)
        assert loop.longest_turn_s == 0.0, "nothing was synced yet"
        await loop.run_in_executor(POOL, pending.run)
        hosted.log.complete_flush(pending)
        assert b"7 1\n" in hosted.log.directory.read("leader-epoch-checkpoint")

    slow(test)


def chill(cluster: Cluster, node_id: int, partition: int = 0) -> int:
    """Has the page cache of a node lose the partition's rolled segments; returns their number."""
    hosted = cluster.nodes[node_id].partitions.find(TopicPartition(TOPIC, partition))
    assert hosted is not None
    names = [segment.file.name for segment in hosted.log.segments[:-1]]
    cluster.disks[node_id].disk.cold.update(names)
    return len(names)


def test_no_turn_waits_for_records_that_the_page_cache_lacks() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, segment_bytes="80")
        await hosted_everywhere(cluster, 1)
        values = [f"value {number}" for number in range(6)]
        await append(cluster.nodes[1], 0, *values)
        await asyncio.sleep(2)
        assert chill(cluster, 1) == 5
        begun_s = loop.time()
        assert await cluster.nodes[1].read_all() == values
        assert loop.time() - begun_s >= 5 * FSYNC_S, "each of them was read by the disk"
        assert not cluster.disks[1].disk.cold

    slow(test)


def test_fetches_that_lack_the_same_records_have_them_read_once() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, segment_bytes="80")
        await hosted_everywhere(cluster, 1)
        await append(cluster.nodes[1], 0, "a", "b")
        await asyncio.sleep(2)
        chill(cluster, 1)
        node = cluster.nodes[1]
        both = [asyncio.ensure_future(node.fetch(0, max_wait_ms=0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert len(node.handlers.fetch._loads) == 1
        for answer in await asyncio.gather(*both):
            assert values_of(answer.payload) == ["a"]
        assert not node.handlers.fetch._loads

    slow(test)


def test_a_follower_that_is_behind_reads_what_the_page_cache_of_its_leader_lacks() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, segment_bytes="80")
        await hosted_everywhere(cluster, 1)
        cluster.cut |= {(1, 2), (2, 1)}
        values = [f"value {number}" for number in range(6)]
        await append(cluster.nodes[1], 0, *values)
        chill(cluster, 1)
        cluster.cut.clear()
        for _ in range(100):
            await asyncio.sleep(0.1)
            if tail_of(cluster, 2, 0) == values:
                break
        assert tail_of(cluster, 2, 0) == values
        assert not cluster.disks[1].disk.cold

    slow(test)


def test_a_large_answer_is_read_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    read = Log.read

    def noted(log: Log, *args: Any, **options: Any) -> Any:
        turns.append(loop_of[0].turn)
        return read(log, *args, **options)

    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        loop_of.append(loop)
        create(cluster, 4)
        await hosted_everywhere(cluster, 4)
        for index in range(4):
            await append(cluster.nodes[1], index, "x" * 400, "y" * 400)
        await asyncio.sleep(2)
        wanted = [FetchPartition(TOPIC, index, 0, 1 << 20) for index in range(4)]
        monkeypatch.setattr(fetching, "TURN_BYTES", 1000)
        monkeypatch.setattr(Log, "read", noted)
        answers = await cluster.nodes[1].handlers.fetch.fetch(
            FetchParams(0, 1, 1 << 20), SessionlessFetch(wanted)
        )
        assert [values_of(answer.payload) for answer in answers] == [["x" * 400, "y" * 400]] * 4
        assert [turns.count(turn) for turn in sorted(set(turns))] == [2, 2]

    loop_of: list[SlowDiskLoop] = []
    slow(test)
