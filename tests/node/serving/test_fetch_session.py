"""Sessions of followers' fetches: a request names changes, an answer contains news."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node.serving.fetch_session import FetchingReplica, FetchPartition, FetchSession
from node.serving.fetching import FetchParams
from tests.node.cluster import TOPIC, Cluster, batch, values_of
from tests.node.replication.test_replication import scenario
from tidemark.errors import InvalidFetchSessionEpochError
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

KEY = TopicPartition(TOPIC, 0)


def noted(cluster: Cluster, node_id: int) -> list[log_pb2.ReplicaFetchRequest]:
    """Records every request that a node gets from followers from now on."""
    seen: list[log_pb2.ReplicaFetchRequest] = []
    service = cluster.nodes[node_id].service
    fetch = service.replica_fetch

    async def counted(request: Any, context: Any, session: Any = None) -> bytes:
        seen.append(request)
        return await fetch(request, context, session)

    service.replica_fetch = counted  # type: ignore[method-assign]
    return seen


def test_idle_partitions_are_not_named_again_and_busy_ones_are() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        await asyncio.sleep(2)
        seen = noted(cluster, 1)
        await asyncio.sleep(20)
        assert len(seen) > 20, "both followers go on fetching"
        idle = [request for request in seen if request.session_id and not request.partitions]
        assert len(idle) == len(seen)
        seen.clear()
        for value in ("a", "b", "c"):
            await cluster.nodes[1].produce(value)
        assert sum(len(request.partitions) for request in seen) >= 6
        await asyncio.sleep(2)
        assert [n.hosted().core.high_watermark for n in cluster.nodes.values()] == [3, 3, 3]
        seen.clear()
        await asyncio.sleep(20)
        assert not any(request.partitions for request in seen)

    scenario(test)


def test_a_leader_that_comes_back_is_told_everything_again() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        cluster.cut |= {(2, 1), (3, 1)}
        await asyncio.sleep(3)
        await cluster.nodes[1].produce("b", acks=1)
        seen = noted(cluster, 1)
        cluster.cut.clear()
        await asyncio.sleep(3)
        assert [len(r.partitions) for r in seen if not r.session_id] == [1, 1]
        assert cluster.nodes[2].hosted().log.log_end_offset == 2

    scenario(test)


def test_an_idle_follower_outside_of_the_isr_comes_back() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await asyncio.sleep(2)
        cluster.change(isr=(1, 2))
        await asyncio.sleep(10)
        assert set(cluster.partition.isr) == {1, 2, 3}

    scenario(test)


async def told(cluster: Cluster, session: FetchSession, limit: int = 1 << 20) -> list[Any]:
    params = FetchParams(100, 1, limit, FetchingReplica(2, cluster.nodes[2].broker_epoch))
    return await cluster.nodes[1].handlers.fetch.fetch(params, session)


def test_an_answer_tells_what_is_new_and_what_had_no_room_comes_with_the_next() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        leader = cluster.nodes[1]
        await leader.produce("a")
        cluster.cut |= {(2, 1)}
        replica, session = FetchingReplica(2, cluster.nodes[2].broker_epoch), FetchSession()
        size = len(batch("a"))
        session.begin(replica, 0, [FetchPartition(TOPIC, 0, 0, size)], [])
        (answer,) = await told(cluster, session)
        assert values_of(answer.payload) == ["a"]
        session.begin(replica, session.id, [FetchPartition(TOPIC, 0, 1, size)], [])
        await told(cluster, session)
        assert await told(cluster, session) == [], "nothing is new"
        await leader.produce("b", acks=1)
        (answer,) = await told(cluster, session)
        assert values_of(answer.payload) == ["b"], "though no request named it again"
        with pytest.raises(InvalidFetchSessionEpochError):
            session.begin(replica, session.id + 1, [], [])
        with pytest.raises(InvalidFetchSessionEpochError):
            session.begin(FetchingReplica(2, 77), session.id, [], [])
        session.begin(replica, session.id, [], [KEY])
        await leader.produce("c", acks=1)
        assert await told(cluster, session) == [], "it is forgotten"
        session.close()
        hosted = leader.hosted()
        assert not any(type(w).__name__ == "_Watch" for w in hosted.commit_waiters)

    scenario(test, nodes=(1, 2))


def test_what_was_answered_is_not_read_again_before_it_is_named() -> None:
    """A request may be on its way before the follower has the answer to the one before."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        leader = cluster.nodes[1]
        await leader.produce("a")
        cluster.cut |= {(2, 1)}
        replica, session = FetchingReplica(2, cluster.nodes[2].broker_epoch), FetchSession()
        session.begin(replica, 0, [FetchPartition(TOPIC, 0, 0, 1 << 20)], [])
        (answer,) = await told(cluster, session)
        assert values_of(answer.payload) == ["a"]
        await leader.produce("b", acks=1)
        session.begin(replica, session.id, [], [])
        assert await told(cluster, session) == [], "it would be read at the offset of before"
        cluster.change(isr=(1,))
        leader.hosted().core.maybe_advance_high_watermark(leader.clock.mono_ms())
        leader.hosted().committed()
        session.begin(replica, session.id, [], [])
        assert await told(cluster, session) == [], "nor is its high watermark"
        session.begin(replica, session.id, [FetchPartition(TOPIC, 0, 1, 1 << 20)], [])
        (answer,) = await told(cluster, session)
        assert (values_of(answer.payload), answer.high_watermark) == (["b"], 2)

    scenario(test, nodes=(1, 2))


def test_a_request_behind_a_parked_one_ends_its_wait_and_no_later_one() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await cluster.settle()
        cluster.cut |= {(2, 1)}
        loop = asyncio.get_running_loop()
        replica, session = FetchingReplica(2, cluster.nodes[2].broker_epoch), FetchSession()
        session.begin(replica, 0, [FetchPartition(TOPIC, 0, 0, 1 << 20)], [])
        await told(cluster, session)
        session.behind = loop.create_future()
        began = loop.time()
        loop.call_later(0.03, session.behind.set_result, None)
        session.begin(replica, session.id, [], [])
        assert await told(cluster, session) == []
        assert round(loop.time() - began, 3) == 0.03
        assert await told(cluster, session) == [], "one that has another behind it waits not at all"
        assert round(loop.time() - began, 3) == 0.03
        session.behind = loop.create_future()
        session.begin(replica, session.id, [], [])
        await told(cluster, session)
        assert round(loop.time() - began, 3) == 0.13

    scenario(test, nodes=(1, 2))


def test_a_record_after_a_long_idle_time_takes_nobody_out_of_the_isr() -> None:
    """The followers' calls continue all the time, although they no longer name an idle
    partition."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        leader = cluster.nodes[1]
        await leader.produce("a")
        await asyncio.sleep(2 * leader.config.replica_lag_time_max_ms / 1000)
        first = asyncio.ensure_future(leader.produce("b"))
        await asyncio.sleep(0)  # appended, and no follower has asked since
        assert leader.hosted().log.log_end_offset == 2
        leader.isr.shrink()
        assert leader.hosted().core.pending is None
        await first
        assert set(cluster.partition.isr) == {1, 2, 3}

    scenario(test)


def test_a_follower_that_asks_no_more_leaves_the_isr_however_idle_the_partition_was() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        leader = cluster.nodes[1]
        await leader.produce("a")
        cluster.cut |= {(2, 1)}
        await asyncio.sleep(2 * leader.config.replica_lag_time_max_ms / 1000)
        first = asyncio.ensure_future(leader.produce("b"))
        await asyncio.sleep(0)
        leader.isr.shrink()
        await first
        assert set(cluster.partition.isr) == {1, 3}

    scenario(test)
