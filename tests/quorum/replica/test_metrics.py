"""Metrics of a replica: Kafka's names, and what they show of a quorum at work."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quorum.raft import messages as m
from quorum.raft.effects import OwnCheckpointChecked, OwnLogDamaged
from quorum.raft.metrics import WINDOW_MS, Latency, Rate
from quorum.raft.voters import ReplicaKey
from quorum.replica.metrics import FAULT_LOG_INTERVAL_MS, RaftMeter
from tests.quorum.raft.test_rules import FakeLog, replica
from tests.quorum.replica.servers import CLUSTER_ID, RaftNodes

KAFKAS = {
    "current-state",
    "current-leader",
    "current-vote",
    "current-epoch",
    "high-watermark",
    "log-end-offset",
    "log-end-epoch",
    "number-unknown-voter-connections",
    "number-of-voters",
    "number-of-observers",
    "uncommitted-voter-change",
    "commit-latency-avg",
    "commit-latency-max",
    "election-latency-avg",
    "election-latency-max",
    "fetch-records-rate",
    "append-records-rate",
    "poll-idle-ratio-avg",
}


def test_a_rate_is_averaged_over_the_window_and_the_one_before():
    rate = Rate()
    rate.add(60, 0)
    assert rate.per_second(30_000 - 1) == pytest.approx(2, rel=0.01)
    assert rate.per_second(WINDOW_MS * 2 - 1) == pytest.approx(1, rel=0.01)
    rate.add(90, WINDOW_MS * 2)
    assert rate.per_second(WINDOW_MS * 3 - 1) == pytest.approx(1.5, rel=0.01)
    assert rate.per_second(WINDOW_MS * 9) == 0
    assert rate.total == 150


def test_a_latency_has_an_average_and_a_maximum():
    latency = Latency()
    assert latency.average_ms == 0
    latency.add(10)
    latency.add(30)
    assert (latency.average_ms, latency.max_ms, latency.count) == (20, 30, 2)


def test_an_election_lasts_from_the_first_pre_vote_until_a_leader_is_known():
    voter = replica()
    due_ms = 2_000
    voter.state.become_prospective(due_ms)
    voter.state.become_unattached(0, due_ms + 100)
    voter.state.become_prospective(due_ms + 500)
    voter.state.become_candidate(due_ms + 600)
    voter.state.become_leader(due_ms + 700)
    counts = voter.state.metrics
    assert (counts.election_latency.count, counts.election_latency.max_ms) == (1, 700)
    assert (counts.elections_started, counts.elections_won) == (1, 1)
    assert RaftMeter(voter, voter.state.log).read(due_ms + 700)["election-latency-avg"] == 700


def test_a_commit_is_timed_from_the_append_of_its_leader():
    log = FakeLog()
    meter = RaftMeter(replica(log), log)
    for end_offset, now_ms in ((1, 0), (3, 10), (4, 20)):
        log.end_offset = end_offset
        meter.appended(1, now_ms)
    meter.committed(3, 40)
    read = meter.read(40)
    assert (read["commit-latency-avg"], read["commit-latency-max"]) == (35, 40)
    meter.leader_changed()
    meter.committed(4, 99)
    assert meter.read(99)["commit-latency-max"] == 40, "an earlier leadership's may be lost"


def test_any_damage_on_the_own_disk_shows():
    voter = replica()
    meter = RaftMeter(voter, voter.state.log)
    assert meter.read(0)["own-damage"] == "NONE"
    voter.step(OwnCheckpointChecked(True), 0)
    assert meter.read(0)["own-damage"] == "CHECKPOINT"
    voter.state.lost_tail = True
    assert meter.read(0)["own-damage"] == "LOG_TAIL"
    voter.step(OwnLogDamaged(0), 0)
    assert meter.read(0)["own-damage"] == "LOG"


def test_the_time_without_work_is_a_share_of_all_time():
    meter = RaftMeter(replica(), FakeLog())
    meter.waited(0, 0)
    meter.waited(750, 1000)
    assert meter.read(1000)["poll-idle-ratio-avg"] == 0.75


def test_the_log_is_told_of_refused_messages_once_in_a_while(caplog):
    meter = RaftMeter(replica(), FakeLog())
    with caplog.at_level(logging.ERROR):
        for now_ms in range(0, FAULT_LOG_INTERVAL_MS + 1, 100):
            meter.remote_fault(f"a wrong message at {now_ms}", now_ms)
    lines = [record.message for record in caplog.records]
    assert lines == [
        "node 1: a wrong message at 0",
        f"node 1: a wrong message at {FAULT_LOG_INTERVAL_MS} (99 more before)",
    ]


def test_a_quorum_at_work_shows_under_kafkas_names():
    async def main():
        nodes = RaftNodes(settings={"controller.quorum.append.linger.ms": "0"})
        await nodes.start_all(1, 2, 3, 11)
        leader = await nodes.elected()
        values = [b"%d" % number for number in range(50)]
        leader.append(leader.epoch, values)
        await nodes.committed(values)

        led = leader.metrics()
        assert set(led) >= KAFKAS
        assert led["current-state"] == "leader"
        assert led["current-leader"] == led["current-vote"] == leader.node_id
        assert led["current-epoch"] == led["log-end-epoch"] == leader.epoch
        assert led["high-watermark"] == led["log-end-offset"] == leader.log_end_offset
        assert (led["number-of-voters"], led["number-of-observers"]) == (3, 1)
        assert led["number-unknown-voter-connections"] == led["uncommitted-voter-change"] == 0
        assert led["append-records-rate"] > 0 == led["fetch-records-rate"]
        assert 0 <= led["election-latency-avg"] <= led["election-latency-max"]
        assert 0 <= led["commit-latency-avg"] <= led["commit-latency-max"]
        assert 0 <= led["poll-idle-ratio-avg"] <= 1
        assert led["elections-started-total"] >= led["elections-won-total"] == 1

        other = next(s for s in nodes.servers.values() if s.node_id in {1, 2, 3} - {leader.node_id})
        followed = other.metrics()
        assert followed["current-state"] == "follower"
        assert followed["current-leader"] == leader.node_id
        assert followed["fetch-records-rate"] > 0 == followed["append-records-rate"]
        assert followed["number-of-observers"] == 0
        granted = sum(s.metrics()["votes-granted-total"] for s in nodes.servers.values())
        assert granted >= 1
        assert nodes.servers[11].metrics()["current-state"] == "observer"

        wrong = m.FetchRequest(CLUSTER_ID, ReplicaKey(-9), leader.epoch, 0, 0, None, 0, 1)
        await leader.handle(wrong)
        assert leader.metrics()["requests-refused-total"] == 1
        await nodes.stop_all()

    asyncio.run(main())
