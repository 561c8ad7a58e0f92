"""A damaged replica of three is found and copied anew without a person, and no wrong record is
read.

Cases are chosen by seeds (`tests.node.damage`). TIDEMARK_DAMAGE_SEEDS is their number, 40 by
default; the soak takes 200.
"""

from __future__ import annotations

import os

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from tests.node.cluster import TOPIC
from tests.node.damage import Case
from tests.node.jbod import JbodCluster, jbod
from tidemark.errors import ErrorCode

SEEDS = int(os.environ.get("TIDEMARK_DAMAGE_SEEDS", "40"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_replica_heals_by_itself_and_no_wrong_record_is_read(seed: int) -> None:
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
