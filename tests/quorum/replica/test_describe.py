"""DescribeQuorum (KIP-836, KIP-853): every field, from the leader to the client."""

from __future__ import annotations

from uuid import UUID

from quorum.raft.voters import ReplicaKey
from quorum.replica.describe import OBSERVER_SESSION_MS, describe
from quorum.replica.service import describe_to_proto
from tests.quorum.raft.test_voter_change_rules import ENDPOINTS, KEYS, ScriptedLeader, remove
from tidemark.cli.quorum import replication_of, status_of
from tidemark.client.decoding import quorum as decode

WALL_MS = 1_700_000_000_000


def described(leader):
    """The description as a client gets it, ten seconds of wall clock after the epoch 1.7e12."""
    info = describe(leader.replica, leader.log, leader.now_ms, WALL_MS + leader.now_ms)
    return decode(describe_to_proto(info))


def test_every_field_of_voters_and_observers_reaches_the_client():
    leader = ScriptedLeader(1, 2, 3)
    leader.replica.state.raise_high_watermark(2)  # known before it led
    assert described(leader).high_watermark is None, "nothing of its epoch is committed yet"
    leader.fetch(2)
    fetched_ms = leader.now_ms
    leader.pass_ms(40)
    leader.fetch(6, offset=2)
    leader.pass_ms(2)
    found = described(leader)
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 5, 3)
    first, second, third = found.voters
    assert [v.directory_id for v in found.voters] == [UUID(int=n) for n in (1, 2, 3)]
    assert first.last_fetch_timestamp_ms == first.last_caught_up_timestamp_ms
    assert first.last_fetch_timestamp_ms == WALL_MS + leader.now_ms, "the leader is always now"
    assert second.last_fetch_timestamp_ms == WALL_MS + fetched_ms
    assert second.last_caught_up_timestamp_ms == WALL_MS + fetched_ms
    assert (second.log_end_offset, third.log_end_offset) == (3, None)
    assert (third.last_fetch_timestamp_ms, third.last_caught_up_timestamp_ms) == (None, None)
    assert second.listeners == {"CONTROLLER": ENDPOINTS[2]}
    (observer,) = found.observers
    assert (observer.replica_id, observer.directory_id) == (6, KEYS[6].directory_id)
    assert (observer.log_end_offset, observer.last_caught_up_timestamp_ms) == (2, None)
    assert observer.last_fetch_timestamp_ms == WALL_MS + fetched_ms + 40
    assert {node.node_id: node.endpoint for node in found.nodes} == {
        n: ENDPOINTS[n] for n in (1, 2, 3)
    }
    status = status_of(found, "c")
    assert [m["endpoints"] for m in status["CurrentVoters"]] == [
        [f"CONTROLLER://h:{n}"] for n in (1, 2, 3)
    ]
    rows = {row["NodeId"]: row for row in replication_of(found)}
    assert (rows[6]["Status"], rows[6]["Lag"], rows[2]["Lag"]) == ("Observer", 1, 0)


def test_a_follower_that_always_lags_by_what_is_new_was_caught_up_at_its_last_fetch():
    leader = ScriptedLeader(1, 2)
    leader.fetch(2)
    for _ in range(3):
        before_ms, end_offset = leader.now_ms, leader.log.end_offset
        leader.log.end_offset += 5
        leader.pass_ms(30)
        leader.fetch(2, offset=end_offset)
        assert described(leader).voters[1].last_caught_up_timestamp_ms == WALL_MS + before_ms
    leader.log.end_offset += 5
    leader.pass_ms(30)
    leader.fetch(2, offset=end_offset)
    assert described(leader).voters[1].last_caught_up_timestamp_ms == WALL_MS + before_ms


def test_observers_that_fell_silent_are_left_out_and_a_leader_that_is_removed_is_one():
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.fetch(6)
    leader.fetch(2, 3)
    leader.change(remove(1))
    found = described(leader)
    assert [v.replica_id for v in found.voters] == [2, 3]
    assert [(o.replica_id, o.directory_id) for o in found.observers] == [
        (1, KEYS[1].directory_id),
        (6, KEYS[6].directory_id),
    ]
    assert found.observers[0].log_end_offset == leader.log.end_offset
    for _ in range(OBSERVER_SESSION_MS // 2000):
        leader.pass_ms(2000)
        leader.fetch(2, offset=3)
        leader.fetch(3, offset=3)
    assert [o.replica_id for o in described(leader).observers] == [1]


def test_a_follower_describes_the_voters_it_knows():
    leader = ScriptedLeader(1, 2)
    leader.replica.state.become_resigned(leader.now_ms)
    found = described(leader)
    assert found.leader_id is None
    assert [(v.replica_id, v.directory_id) for v in found.voters] == [
        (n, ReplicaKey(n, UUID(int=n)).directory_id) for n in (1, 2)
    ]
    assert {v.log_end_offset for v in found.voters} == {None}
