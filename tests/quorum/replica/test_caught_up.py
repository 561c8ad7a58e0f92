"""When a listener has caught up. The leader's committed offset decides it, for every kind of last
record, and never this replica's own high watermark.
"""

from __future__ import annotations

import asyncio

from quorum.raft import messages as m
from quorum.raft.effects import ElectionState, LogAppended, LogFlushed, RequestReceived
from quorum.raft.replica import Replica
from quorum.raft.roles import Follower, Leader
from quorum.raft.voters import ReplicaKey
from snapshot import SnapshotId
from tests.quorum.raft.test_rules import KEYS, FakeLog, replica
from tests.quorum.replica.servers import RaftNodes


def caught_up_at(nodes: RaftNodes, node_id: int) -> int | None:
    return nodes.recorders[node_id].caught_up_at


def test_a_log_that_ends_in_a_control_record_is_caught_up_with_without_another_one() -> None:
    async def scenario() -> None:
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3, 10)
        await nodes.elected()
        await nodes.until(
            lambda: all(caught_up_at(nodes, n) is not None for n in nodes.servers), "all caught up"
        )
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_checkpoint_at_the_logs_end_is_all_there_is_when_the_leader_says_so() -> None:
    async def scenario() -> None:
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3, 10)
        leader = await nodes.elected()
        written = [b"value-%d" % n for n in range(20)]
        leader.append(leader.epoch, written)
        await nodes.committed(written)
        follower = next(n for n in (1, 2, 3) if n != leader.node_id)
        for node_id in (follower, 10):
            end_offset = nodes.recorders[node_id].next_offset
            await nodes.servers[node_id].create_snapshot(end_offset, written)
            assert end_offset == nodes.servers[node_id].log_end_offset
            await nodes.kill(node_id)
            await nodes.start(node_id)
            recorder = nodes.recorders[node_id]
            await nodes.until(lambda r=recorder: r.caught_up_at is not None, "caught up")
            assert (recorder.caught_up_at, recorder.snapshots_loaded) == (end_offset, 1)
        assert nodes.leader() is leader
        await nodes.stop_all()

    asyncio.run(scenario())


def restarted_log() -> FakeLog:
    """Returns a log of ten records, of which a checkpoint holds the first five: more may be
    committed.
    """
    return FakeLog([(1, 0)], 10, snapshots=[SnapshotId(5, 1)])


def test_a_restarted_follower_knows_of_nothing_before_the_leader_told_it() -> None:
    follower = replica(restarted_log(), ElectionState(1, 2))
    assert isinstance(follower.role, Follower)
    assert (follower.high_watermark, follower.committed_offset) == (5, None)
    assert (
        follower.state.advertised_high_watermark is None
    )  # so that the leader answers its fetch at once


def fetched(leader: Replica) -> list[m.Response]:
    """Returns the answers to an observer that has the whole log and no high watermark."""
    request = m.FetchRequest("c", ReplicaKey(10, None), leader.epoch, 11, leader.epoch, None, 9, 9)
    effects = leader.step(RequestReceived(7, request), 1)
    return [reply.response for reply in effects.replies]


def test_a_new_leader_tells_no_high_watermark_before_a_record_of_its_own_is_committed() -> None:
    log = restarted_log()
    leader = replica(log, ElectionState(1, None, KEYS[1]), voters=(1,))
    assert isinstance(leader.role, Leader)
    log.entries.append((leader.epoch, 10))
    log.end_offset = 11
    leader.step(LogAppended(), 1)
    assert (leader.high_watermark, leader.state.advertised_high_watermark) == (5, None)
    assert leader.committed_offset == 11
    assert fetched(leader) == []
    [reply] = leader.step(LogFlushed(11), 2).replies
    assert reply.response.high_watermark == 11
