"""Fetches while the metadata changes: none is cancelled, and a request names what changed. Fetches
of a follower that hears of an election before its leader, and of one whose log takes no records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from commitlog.log.log import Log
from commitlog.types import UnexpectedAppendOffsetError
from node.replication.replica_fetcher import FAILED_PARTITIONS_COUNT, ReplicaFetcher
from tests.node.cluster import TOPIC, Cluster, Link
from tests.node.fakes import broker_config, loop_clock
from tests.node.replication.test_replication import scenario
from tests.node.serving.test_fetch_session import noted
from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition
from tidemark.v1 import metadata_pb2 as records_pb

MANY = 1_000


def add(cluster: Cluster, *indexes: int, leader: int = 1) -> None:
    """Adds partitions of two replicas to the topic."""
    cluster.publish(
        *(
            records_pb.MetadataRecord(
                partition=records_pb.PartitionRecord(
                    partition_id=index,
                    topic_id=cluster.topic_id.bytes,
                    replicas=(1, 2),
                    isr=(1, 2),
                    leader=leader,
                )
            )
            for index in indexes
        )
    )


def raise_epoch(cluster: Cluster, index: int) -> None:
    """Elects the leader of a partition again, in a new epoch."""
    cluster.publish(
        records_pb.MetadataRecord(
            partition_change=records_pb.PartitionChangeRecord(
                partition_id=index, topic_id=cluster.topic_id.bytes, leader=1
            )
        )
    )


def cancelled_fetches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the fetches of followers that are cancelled from now on."""
    cancelled: list[Any] = []
    fetch = Link.fetch

    async def watched(link: Link, request: Any, timeout_ms: int) -> Any:
        try:
            return await fetch(link, request, timeout_ms)
        except asyncio.CancelledError:
            cancelled.append(request)
            raise

    monkeypatch.setattr(Link, "fetch", watched)
    return cancelled


def test_changes_of_the_metadata_name_what_changed_and_cancel_no_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled = cancelled_fetches(monkeypatch)

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        add(cluster, *range(1, MANY))
        await asyncio.sleep(2)
        seen = noted(cluster, 1)
        waiting = []
        for step in range(
            200
        ):  # a change each 5 ms; one full fetch took 0.1 s of the leader's loop
            if step % 2:
                add(cluster, MANY + step)
            else:
                raise_epoch(cluster, step + 1)
            if step % 20 == 0:
                waiting.append(asyncio.ensure_future(cluster.nodes[1].produce(f"v{step}")))
            await asyncio.sleep(0.005)
        results = await asyncio.gather(*waiting)
        assert {result.error_code for result in results} == {ErrorCode.NONE}
        assert sum(len(request.partitions) for request in seen) < 200 + 4 * len(results)
        assert all(request.session_id for request in seen), "one session goes on"
        assert cancelled == []
        for index in (0, 1, MANY + 199):
            assert cluster.nodes[2].hosted(index).core.leader == 1
        await asyncio.sleep(1)
        assert cluster.nodes[2].hosted().log.log_end_offset == len(results)
        told = {p.partition for request in seen for p in request.partitions}
        assert {1, 199, MANY + 1, MANY + 199} <= told

    scenario(test, nodes=(1, 2))
    assert len(cancelled) <= 1, "the stop of the node cancels the last one"


def test_a_new_partition_waits_for_no_long_poll() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await asyncio.sleep(2.25)
        add(cluster, 1)
        await asyncio.sleep(0.02)
        state = cluster.nodes[1].hosted(1).core.remotes[2]
        assert state.log_end_offset == 0

    scenario(test, nodes=(1, 2))


def test_an_answer_on_its_way_counts_for_the_epoch_that_was_asked_alone() -> None:
    """The leader appends and is elected again while its answer is under way."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await cluster.nodes[1].produce("a")
        await asyncio.sleep(2)
        waiting = [asyncio.ensure_future(cluster.nodes[1].produce("b"))]
        for _ in range(5):
            await asyncio.sleep(0.0005)
            raise_epoch(cluster, 0)
            waiting.append(asyncio.ensure_future(cluster.nodes[1].produce("c")))
        results = await asyncio.gather(*waiting)
        assert {result.error_code for result in results} == {ErrorCode.NONE}
        await asyncio.sleep(1)
        logs = [cluster.nodes[n].hosted().log for n in (1, 2)]
        assert [log.log_end_offset for log in logs] == [7, 7]

    scenario(test, nodes=(1, 2))


def test_acks_all_wait_for_a_leader_that_hears_of_its_election_last_no_longer_than_that() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await cluster.nodes[1].produce("a")
        late = cluster.nodes[2]
        heard = late.on_metadata_update
        updates: list[Any] = []
        late.on_metadata_update = lambda *args: updates.append(args)  # type: ignore[method-assign]
        cluster.change(leader=2)
        await asyncio.sleep(0.05)
        late.on_metadata_update = heard  # type: ignore[method-assign]
        for update in updates:
            heard(*update)
        began = asyncio.get_running_loop().time()
        assert (await late.produce("b")).error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - began < 0.1

    scenario(test, nodes=(1, 2))


def test_a_leader_that_does_not_hear_of_its_election_is_asked_seldom() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await cluster.nodes[1].produce("a")
        late = cluster.nodes.pop(2)
        cluster.change(leader=2)
        cluster.nodes[2] = late
        seen = noted(cluster, 2)
        await asyncio.sleep(10)
        named = [request for request in seen if request.partitions]
        assert 10 <= len(named) <= 17, "seven times in the first second, then once a second"

    scenario(test, nodes=(1, 2))


def test_acks_all_wait_for_a_follower_whose_call_broke_no_longer_than_a_moment() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await cluster.nodes[1].produce("a")
        await asyncio.sleep(2)
        cluster.cut |= {(2, 1)}
        waiting = asyncio.ensure_future(cluster.nodes[1].produce("b"))
        await asyncio.sleep(0.005)  # the answer with the record is lost
        cluster.cut.clear()
        began = asyncio.get_running_loop().time()
        assert (await waiting).error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - began < 0.1

    scenario(test, nodes=(1, 2))


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> set[TopicPartition]:
    """Has followers' appends of these partitions fail."""
    refused = {TopicPartition(TOPIC, 0)}
    append = Log.append_as_follower

    def guarded(log: Log, *args: Any, **how: Any) -> Any:
        if log.topic_partition in refused:
            raise error
        return append(log, *args, **how)

    monkeypatch.setattr(Log, "append_as_follower", guarded)
    return refused


@pytest.mark.parametrize("error", [RuntimeError("a bug"), UnexpectedAppendOffsetError("a hole")])
def test_a_partition_whose_appends_fail_is_failed_alone_until_its_metadata_changes(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        add(cluster, 1)
        await asyncio.sleep(1)
        refused = refuse(monkeypatch, error)
        with caplog.at_level(logging.ERROR):
            await cluster.nodes[1].produce("a", acks=1)
            await asyncio.sleep(5)
        named = [r.getMessage() for r in caplog.records if "is failed" in r.getMessage()]
        assert len(named) == 1
        assert named[0].startswith(f"{TOPIC}-0: ")
        fetchers = cluster.nodes[2].hosting._fetchers
        assert fetchers.metrics() == {FAILED_PARTITIONS_COUNT: 1}
        other = cluster.nodes[1].hosted(1)
        add(cluster, 2)  # a change of another partition
        await asyncio.sleep(2)
        assert cluster.nodes[2].hosted().log.log_end_offset == 0
        assert other.core.remotes[2].is_caught_up(0, cluster.nodes[1].clock.mono_ms(), 1_000)
        refused.clear()
        cluster.change(isr=(1,))
        await asyncio.sleep(1)
        assert cluster.nodes[2].hosted().log.log_end_offset == 1
        assert fetchers.metrics() == {FAILED_PARTITIONS_COUNT: 0}
        assert set(cluster.partition.isr) == {1, 2}

    scenario(test, nodes=(1, 2))


class _Due:
    """A core without requests, with one deadline after the other."""

    def __init__(self, *due: float) -> None:
        self._due = list(due)

    def next_deadline(self) -> float:
        return self._due.pop(0)

    def next_request(self, now: float) -> None:
        return None


def test_on_the_loop_of_a_node_a_deadline_that_has_passed_is_replaced_like_any_other() -> None:
    """uvloop gives no TimerHandle for it."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        config: Any = broker_config(2)
        nothing: Any = None
        fetcher = ReplicaFetcher(
            config, nothing, "cluster", nothing, None, nothing, loop_clock(), None
        )
        now = asyncio.get_running_loop().time()
        core: Any = _Due(now - 1, now - 1, now - 2, now + 60, now + 60, now - 1)
        fetcher._core = core
        for _ in range(6):
            fetcher._arm()
        assert fetcher._timer is not None
        fetcher._timer.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
