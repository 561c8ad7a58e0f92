"""message.timestamp.type=LogAppendTime from the request to the answer and the lookup."""

from __future__ import annotations

from tests.commitlog.builders import records_of
from tests.node.cluster import Cluster, batch
from tests.node.replication.test_replication import scenario


def test_a_producer_is_told_the_time_that_the_broker_gave() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,), message_timestamp_type="LogAppendTime")
        node = cluster.nodes[1]
        before = node.clock.wall_ms()
        result = await node.produce(raw=batch("a", "b", timestamp_ms=5))
        assert result.error_code == 0
        assert before <= result.log_append_time_ms <= node.clock.wall_ms()
        stored = records_of(node.hosted().log)
        assert {r.timestamp_ms for r in stored} == {result.log_append_time_ms}
        found = await node.handlers.offsets.list_offset("flights", 0, 6)
        assert (found.offset, found.timestamp_ms) == (0, result.log_append_time_ms)

    scenario(test, nodes=(1,))


def test_a_producer_that_gives_the_time_is_told_none() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        result = await cluster.nodes[1].produce(raw=batch("a", timestamp_ms=5))
        assert (result.error_code, result.log_append_time_ms) == (0, -1)

    scenario(test, nodes=(1,))
