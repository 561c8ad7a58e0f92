"""DeleteRecords: the start moves on every live replica before the answer; segments below are
deleted.
"""

from __future__ import annotations

from typing import Any

from commitlog.log.expiration import delete_expired
from tests.node.cluster import TOPIC, Cluster
from tests.node.replication.test_replication import scenario
from tidemark.errors import ErrorCode
from tidemark.v1 import log_pb2


async def delete(cluster: Cluster, offset: int, node: int = 1, timeout_ms: int = 5_000) -> Any:
    request = log_pb2.DeleteRecordsRequest(timeout_ms=timeout_ms)
    request.partitions.add(topic=TOPIC, partition_index=0, offset=offset)
    answer = await cluster.nodes[node].service.delete_records(request, None)
    return answer.partitions[0]


def test_the_start_moves_on_the_leader_and_its_followers() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        for value in ("a", "b", "c", "d"):
            await cluster.nodes[1].produce(value)
        result = await delete(cluster, 3)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 3)
        assert [n.hosted().log.log_start_offset for n in cluster.nodes.values()] == [3, 3, 3]
        assert await cluster.nodes[1].read_all() == ["d"]
        again = await delete(cluster, 1)  # it never moves back
        assert again.low_watermark == 3
        everything = await delete(cluster, -1)
        assert everything.low_watermark == 4
        hosted = cluster.nodes[1].hosted()
        hosted.log.roll(cluster.nodes[1].clock.wall_ms())
        delete_expired(hosted.log, 0)
        assert hosted.log.segments[0].base_offset == 4

    scenario(test)


def test_a_silent_follower_on_a_live_broker_is_waited_for_a_dead_one_is_not() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        cluster.cut |= {(3, 1)}
        result = await delete(cluster, 1, timeout_ms=700)
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert cluster.nodes[1].hosted().log.log_start_offset == 1
        cluster.fence(3)
        result = await delete(cluster, 1)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 1)

    scenario(test)


def test_an_empty_follower_follows_a_leader_whose_start_is_within_a_batch() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        cluster.cut |= {(3, 1)}
        cluster.fence(3)
        cluster.change(isr=(1, 2))
        await cluster.nodes[1].produce("a", "b", "c", "d")
        assert (await delete(cluster, 2)).low_watermark == 2
        cluster.fence(3, fenced=False)
        cluster.cut.clear()
        await cluster.settle()
        follower = cluster.nodes[3].hosted().log
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 4)
        await cluster.nodes[1].produce("e")
        await cluster.settle()
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 5)

    scenario(test)


def test_what_can_not_be_deleted_is_refused() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        assert (await delete(cluster, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(cluster, -2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(cluster, 0, node=2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        hosted = cluster.nodes[1].hosted()
        object.__setattr__(hosted.config, "cleanup_policy", ("compact",))
        assert (await delete(cluster, 1)).error_code == ErrorCode.POLICY_VIOLATION
        assert hosted.log.log_start_offset == 0

    scenario(test)
