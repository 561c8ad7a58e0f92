"""flush.messages: records count once they are flushed, and no turn of the loop waits for that."""

from __future__ import annotations

import asyncio

import pytest

from node.partition.hosted import HostedPartition
from tests.node.cluster import TOPIC, Cluster, batch
from tests.node.replication.test_loop_turns import (
    create,
    hosted_everywhere,
    lead,
    slow,
    tail_of,
)
from tests.node.slow_disk import FSYNC_S, SlowDiskLoop
from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition
from tidemark.wire import PartitionProduceData

SETTINGS = {"flush_messages": "1"}


def replica(cluster: Cluster, node_id: int) -> HostedPartition:
    hosted = cluster.nodes[node_id].partitions.find(TopicPartition(TOPIC, 0))
    assert hosted is not None
    return hosted


def send(cluster: Cluster, acks: int, value: str) -> asyncio.Future[ErrorCode]:
    async def produce() -> ErrorCode:
        data = [PartitionProduceData(TOPIC, 0, batch(value))]
        (result,) = await cluster.nodes[1].handlers.produce.produce(acks, 5_000, data)
        return result.error_code

    return asyncio.ensure_future(produce())


@pytest.mark.parametrize("acks", [1, -1])
def test_an_answered_record_is_flushed_by_each_replica_that_acknowledges_it(acks: int) -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        for number in range(5):
            answer = send(cluster, acks, f"value {number}")
            await asyncio.sleep(FSYNC_S / 2)
            assert not answer.done()
            assert await answer == ErrorCode.NONE
            assert replica(cluster, 1).log.recovery_point == number + 1
            if acks == -1:
                assert replica(cluster, 2).log.recovery_point == number + 1

    slow(test)


def test_produces_that_come_during_a_flush_share_the_next_one() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        await asyncio.sleep(1)
        await send(cluster, 1, "before")  # the first flush of new files takes several fsyncs
        begun = loop.time()
        first = send(cluster, 1, "first")
        await asyncio.sleep(0)
        others = [send(cluster, 1, f"other {number}") for number in range(20)]
        assert await first == ErrorCode.NONE
        one_flush_s = loop.time() - begun
        assert not any(other.done() for other in others)
        assert set(await asyncio.gather(*others)) == {ErrorCode.NONE}
        assert loop.time() - begun == pytest.approx(2 * one_flush_s)

    slow(test)


def test_a_record_that_waits_for_its_flush_is_sent_to_no_follower_and_not_committed() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        await asyncio.sleep(1)
        answer = send(cluster, -1, "a")
        while not answer.done():
            leader, follower = replica(cluster, 1), replica(cluster, 2)
            if leader.log.recovery_point == 0:
                assert follower.log.log_end_offset == 0
            if follower.log.recovery_point == 0:
                assert leader.core.high_watermark == 0
            await asyncio.sleep(0.001)
        assert await answer == ErrorCode.NONE

    slow(test)


def test_an_append_with_acks_0_counts_after_its_flush_as_well() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        assert await send(cluster, 0, "a") == ErrorCode.NONE
        assert replica(cluster, 1).core.log_end_offset == 0
        await asyncio.sleep(5)
        assert replica(cluster, 1).core.high_watermark == 1
        assert tail_of(cluster, 2, 0) == ["a"]

    slow(test)


def test_the_leadership_that_ends_during_a_flush_fails_what_waits_for_it() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        answers = [send(cluster, acks, f"acks={acks}") for acks in (1, -1)]
        await asyncio.sleep(FSYNC_S / 2)
        lead(cluster, [0], leader=2)
        assert set(await asyncio.gather(*answers)) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        await asyncio.sleep(5)
        assert not replica(cluster, 1).is_flushing
        assert tail_of(cluster, 1, 0) == tail_of(cluster, 2, 0) == []

    slow(test)


def test_a_new_epoch_of_the_leader_during_a_flush_commits_nothing_before_its_end() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        answer = send(cluster, -1, "a")
        await asyncio.sleep(FSYNC_S / 2)
        leader = replica(cluster, 1)
        lead(cluster, [0], leader=1)
        assert leader.core.leader_epoch == 1
        assert (leader.core.log_end_offset, leader.core.leader_epoch_start_offset) == (0, 1)
        assert await answer == ErrorCode.NONE
        assert leader.log.recovery_point == 1

    slow(test)


def test_a_replica_that_leads_again_during_a_flush_flushes_again() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        lost = send(cluster, 1, "a")
        await asyncio.sleep(FSYNC_S / 2)
        lead(cluster, [0], leader=2)
        lead(cluster, [0], leader=1)
        assert await lost == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await send(cluster, -1, "b") == ErrorCode.NONE
        assert replica(cluster, 1).log.recovery_point == 2
        assert tail_of(cluster, 1, 0) == tail_of(cluster, 2, 0) == ["a", "b"]

    slow(test)


def test_a_failed_fsync_answers_what_waits_for_it_and_ends_the_use_of_the_directory() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        await send(cluster, -1, "a")
        cluster.disks[1].fail_fsync()
        answers = [send(cluster, acks, f"acks={acks}") for acks in (1, -1)]
        assert set(await asyncio.gather(*answers)) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert replica(cluster, 1).core.log_end_offset == 1

    slow(test)


def test_a_flush_that_cannot_write_is_tried_again() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        leader = replica(cluster, 1)
        whole, failures = leader.log.flush, iter([OSError(28, "no space left")])

        def flush() -> None:
            for failure in failures:
                raise failure
            whole()

        leader.log.flush = flush  # type: ignore[method-assign]
        answers = [send(cluster, acks, f"acks={acks}") for acks in (1, -1)]
        assert set(await asyncio.gather(*answers)) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert leader.core.log_end_offset == 0
        await asyncio.sleep(5)
        assert leader.core.high_watermark == 2
        assert leader.log.recovery_point == 2
        assert not leader.is_flushing

    slow(test)


def test_a_record_that_comes_during_a_flush_and_makes_none_due_counts_after_it() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, flush_messages="2")
        await hosted_everywhere(cluster, 1)
        assert await send(cluster, 1, "a") == ErrorCode.NONE
        assert replica(cluster, 1).log.recovery_point == 0
        answers = [send(cluster, 1, "b")]
        await asyncio.sleep(FSYNC_S / 2)
        answers.append(send(cluster, 1, "c"))
        assert set(await asyncio.gather(*answers)) == {ErrorCode.NONE}
        assert replica(cluster, 1).log.recovery_point == 2
        await asyncio.sleep(1)
        assert replica(cluster, 1).core.high_watermark == 3

    slow(test)


def test_a_topic_deleted_during_a_flush_fails_what_waits_for_it() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        answers = [send(cluster, acks, f"acks={acks}") for acks in (1, -1)]
        await asyncio.sleep(FSYNC_S / 2)
        cluster.delete_topic()
        assert set(await asyncio.gather(*answers)) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    slow(test)


def test_a_flush_of_an_earlier_leadership_counts_no_records_of_a_later_one() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1, **SETTINGS)
        await hosted_everywhere(cluster, 1)
        cluster.cut |= {(1, 2), (2, 1)}
        leader = replica(cluster, 1)
        whole, is_slow = leader.log.flush, True

        def flush() -> None:
            whole()
            for _ in range(400 * is_slow):
                loop._fsync()

        leader.log.flush = flush  # type: ignore[method-assign]
        lost = [send(cluster, 1, f"lost {number}") for number in range(4)]
        await asyncio.sleep(0.1)
        is_slow = False
        lead(cluster, [0], leader=2)
        cluster.cut.clear()
        await asyncio.sleep(10)
        assert tail_of(cluster, 1, 0) == []
        lead(cluster, [0], leader=1)
        is_slow = True
        assert leader.is_flushing, "the first flush is still under way"
        later = send(cluster, 1, "later")
        await asyncio.sleep(15)  # the first flush is over
        assert leader.core.log_end_offset == 0
        await asyncio.sleep(20)
        assert leader.core.log_end_offset == leader.log.recovery_point == 1
        assert await later == ErrorCode.REQUEST_TIMED_OUT
        assert set(await asyncio.gather(*lost)) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    slow(test)
