"""A damaged replica of three is found and copied anew without a person, and no wrong record is
read.

Cases are chosen by seeds (`tests.node.damage`). TIDEMARK_DAMAGE_SEEDS is their number, 40 by
default; the soak takes 200.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.types import CorruptLogError
from node.partition.core import IsrMember, IsrProposal
from node.replication.fetcher_core import Command
from tests.node.cluster import TOPIC
from tests.node.damage import Case
from tests.node.jbod import JbodCluster, jbod
from tidemark.errors import ErrorCode
from tidemark.v1 import metadata_pb2 as pb
from tidemark.wire import FetchPartitionData

SEEDS = int(os.environ.get("TIDEMARK_DAMAGE_SEEDS", "40"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_replica_heals_by_itself_and_no_wrong_record_is_read(seed: int) -> None:
    async def case(cluster: JbodCluster) -> None:
        await Case(seed, cluster).run()

    jbod(case, directories=("a",))


VARIANTS = ("idempotent", "two directories", "all stopped", "two victims")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(SEEDS // 10))
def test_damage_heals_in_other_settings_as_well(seed: int, variant: str) -> None:
    """While one whole copy is in sync, nothing acknowledged is lost."""

    async def case(cluster: JbodCluster) -> None:
        await Case(seed, cluster, variant).run()

    jbod(case, directories=("a", "b") if variant == "two directories" else ("a",))


def test_a_replica_that_lost_its_tail_in_an_unclean_stop_does_not_lead_before_a_clean_one() -> None:
    """All three stop within one session; the replica that recovery cut is the last of the ISR."""

    async def case(cluster: JbodCluster) -> None:
        await Case(7, cluster, "all stopped").run()

    jbod(case, directories=("a",))


@pytest.mark.parametrize("seed", [86, 92])
def test_damage_in_an_active_segment_heals_once_the_segment_is_rolled(seed: int) -> None:
    async def case(cluster: JbodCluster) -> None:
        await Case(seed, cluster).run()

    jbod(case, directories=("a",))


def flip_in_second_segment(cluster: JbodCluster, node_id: int) -> int:
    """Flips a bit of the first base offset of a rolled segment; returns that offset."""
    segment = cluster.nodes[node_id].hosted(0).log.segments[1]
    log = cluster.disk(node_id, "a").subdirectory(f"{TOPIC}-0")
    assert isinstance(log, MemoryDirectory)
    log.flip_bit(segment.log_file, 7)
    return segment.base_offset


def test_a_leader_that_reads_damage_hands_over_and_the_consumer_sees_a_retriable_error() -> None:
    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3), segment_bytes="1400")
        await cluster.load(0, 60)
        offset = flip_in_second_segment(cluster, 1)
        assert cluster.of(0).leader == 1
        answer = await cluster.fetch_from(1, 0, offset)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until(lambda: cluster.of(0).leader not in (None, 1))
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2, 3})
        await cluster.nothing_acknowledged_is_lost(0)

    jbod(case, directories=("a",))


def test_a_follower_that_can_not_truncate_for_damage_is_copied_anew() -> None:
    """The base offset of a batch before the cut is damaged: the log would end there."""

    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3))
        await cluster.load(0, 60)
        hosted = cluster.nodes[2].hosted(0)
        (segment,) = hosted.log.segments
        positions = [header.position for header in segment.headers()]
        log = cluster.disk(2, "a").subdirectory(f"{TOPIC}-0")
        assert isinstance(log, MemoryDirectory)
        log.flip_bit(segment.log_file, positions[5] + 1, 1)
        segment._forget_positions()
        ((_, fetcher),) = cluster.nodes[2].hosting._fetchers._peers.values()
        (item,) = fetcher._core._followed.values()
        answer = FetchPartitionData(TOPIC, 0, diverging_epoch=(item.epoch, 40))
        fetcher._take(item, Command.TRUNCATE, answer)
        await asyncio.gather(*fetcher._side_tasks)
        assert hosted.offline and hosted.log.log_end_offset == 60
        await copied_anew(cluster, 2)

    jbod(case, directories=("a",))


@pytest.mark.parametrize("bit", [0, 9, 31])
def test_a_follower_with_a_batch_of_an_epoch_that_has_not_begun_is_copied_anew(bit: int) -> None:
    """Recovery takes the epoch of the last batch from its header, which no CRC covers."""

    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3))
        await cluster.load(0, 60)
        log = cluster.nodes[2].hosted(0).log
        log.flush()
        (segment,) = log.segments
        position = list(segment.headers())[-1].position
        await cluster.stop_node(2, clean=False)
        disk = cluster.disk(2, "a").subdirectory(f"{TOPIC}-0")
        assert isinstance(disk, MemoryDirectory)
        disk.flip_bit(segment.log_file, position + 12 + bit // 8, bit % 8)
        await cluster.boot(2)
        await copied_anew(cluster, 2)
        assert any(name.endswith("-stray") for name in names(cluster, 2))

    jbod(case, directories=("a",))


def test_the_only_replica_in_sync_serves_all_but_the_damage() -> None:
    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), segment_bytes="1400", min_insync_replicas="1")
        await cluster.stop_node(2)
        await cluster.load(0, 60)
        assert cluster.of(0).isr == (1,)
        offset = flip_in_second_segment(cluster, 1)
        for _ in range(2):
            answer = await cluster.fetch_from(1, 0, offset)
            assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
            assert f"{offset:020d}.log" in answer.error_message
        behind = cluster.nodes[1].hosted(0).log.segments[2].base_offset
        for sound in (0, behind):
            answer = await cluster.fetch_from(1, 0, sound)
            assert answer.error_code == ErrorCode.NONE and len(answer.payload)
        await cluster.load(0, 10)
        assert cluster.of(0).leader == 1

    jbod(case, directories=("a",))


async def give_up(cluster: JbodCluster, node_id: int) -> None:
    """Finds damage in a node's replica; returns before the controller knows of it."""
    node = cluster.nodes[node_id]
    node.hosted(0).found_damage(CorruptLogError("00000000000000000000.log", 0, "test"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert node.partitions.find(cluster.name(0)) is None


async def copied_anew(cluster: JbodCluster, node_id: int) -> None:
    """Waits until the replica was made anew, and is back in the ISR."""
    await cluster.until(lambda: cluster.nodes[node_id].partitions.find(cluster.name(0)) is not None)
    await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2, 3})
    await cluster.nothing_acknowledged_is_lost(0)


def names(cluster: JbodCluster, node_id: int) -> list[str]:
    return [n for d in cluster.directories for n in cluster.disk(node_id, d).list()]


def test_a_damaged_replica_is_not_made_anew_before_the_controller_counts_it_as_lost() -> None:
    """An image without it in the ISR may be older than the change that added it."""

    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3), segment_bytes="1400")
        await cluster.load(0, 60)
        await give_up(cluster, 2)
        older = pb.PartitionChangeRecord(partition_id=0, topic_id=cluster.topic_id.bytes)
        older.isr.ids.extend((1, 3))
        cluster.publish(pb.MetadataRecord(partition_change=older))
        assert cluster.nodes[2].partitions.find(cluster.name(0)) is None
        await cluster.until(lambda: cluster.nodes[2].partitions.find(cluster.name(0)) is not None)

    jbod(case, directories=("a",))


def test_a_replica_that_is_moved_and_given_up_is_copied_anew_to_the_destination() -> None:
    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3), segment_bytes="1400")
        await cluster.load(0, 60)
        node = cluster.nodes[2]
        home = node.logs.directory_of(cluster.name(0))
        other = next(d for d in node.logs.directories if d is not home)
        node.logs.moves.begin(node.hosted(0).log, other)
        await give_up(cluster, 2)
        assert node.logs.moves.all() == []
        await copied_anew(cluster, 2)
        assert node.logs.directory_of(cluster.name(0)) is other
        await cluster.until(lambda: cluster.of(0).directory_of(2) == other.directory_id)
        assert not [n for n in names(cluster, 2) if n.endswith("-future")]

    jbod(case)


def test_a_topic_that_is_deleted_after_a_replica_was_given_up_leaves_no_log_behind() -> None:
    """A log that counts as not opened would make the next stop of the broker an unclean one."""

    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3), segment_bytes="1400")
        await cluster.load(0, 60)
        await give_up(cluster, 2)
        cluster.delete()
        assert f"{TOPIC}-0" not in names(cluster, 2)
        logs = cluster.nodes[2].logs
        assert not any(map(logs._registry.has_unopened, logs.directories))
        await asyncio.sleep(1)

    jbod(case, directories=("a",))


@pytest.mark.parametrize("answered", [True, False])
def test_a_leader_that_may_be_alone_in_the_isr_keeps_its_log(answered: bool) -> None:
    """The controller's answer, or the proposal under way, is newer than the image."""

    async def case(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), segment_bytes="1400", min_insync_replicas="1")
        await cluster.load(0, 60)
        assert cluster.of(0).isr == (1, 2)
        core = cluster.nodes[1].hosted(0).core
        if answered:
            core.isr = frozenset((1,))
        else:
            me = (IsrMember(1, cluster.nodes[1].broker_epoch),)
            core.pending = IsrProposal(core.identity, core.leader_epoch, core.partition_epoch, me)
        offset = flip_in_second_segment(cluster, 1)
        answer = await cluster.fetch_from(1, 0, offset)
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE

    jbod(case, directories=("a",))
