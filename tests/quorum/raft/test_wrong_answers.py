"""Answers of a leader that cannot be right: the follower counts them and pauses, and never ends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quorum.raft import messages as m
from quorum.raft.config import RECOVERY_EPOCHS, ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LogAppended,
    RecordsRefused,
    RequestReceived,
    ResponseDamaged,
    ResponseReceived,
    SnapshotInstalled,
    SnapshotRejected,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Follower, Prospective, Unattached
from quorum.raft.voters import VoterSet
from snapshot import SnapshotId
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, vote
from tidemark.errors import ErrorCode

NOW = 10


def header(error=ErrorCode.NONE):
    return m.Header(error, 3, 5, ENDPOINTS[3])


class FollowerOf3:
    """Replica 1, which follows replica 3, in epoch 5 by default; its log ends at 30."""

    def __init__(self, log=None, epoch=5):
        self.log = log or FakeLog([(1, 0), (4, 20)], 30)
        voters = VoterSet.static(ENDPOINTS)
        config = ReplicaConfig("c", KEYS[1], voters, ENDPOINTS[1])
        self.replica = Replica(config, self.log, ElectionState(epoch, 3), random.Random(1))
        self.now_ms = NOW
        self.sends = self.replica.start(NOW).sends

    def step(self, event):
        effects = self.replica.step(event, self.now_ms)
        self.replica.validate()
        return effects

    def answer(self, response):
        [send] = self.sends
        effects = self.step(ResponseReceived(send.correlation_id, response))
        self.sends = effects.sends
        return effects

    def go_on(self):
        """Steps on until the next request is sent; returns the ms that took."""
        began_ms = self.now_ms
        while not self.sends:
            due_ms = self.replica.next_deadline_ms()
            assert due_ms > self.now_ms
            self.now_ms = due_ms
            self.sends = self.step(Tick()).sends
        return self.now_ms - began_ms

    def commit(self, high_watermark):
        self.answer(m.FetchResponse(header(), high_watermark))
        assert self.replica.high_watermark == high_watermark


def diverging(epoch, end_offset):
    return m.FetchResponse(header(), 30, 0, (epoch, end_offset))


@pytest.mark.parametrize(
    "answer",
    [
        diverging(4, 30),
        diverging(4, 99),
        diverging(9, 40),
        diverging(4, 24),
        diverging(1, 3),
        diverging(4, -7),
        m.FetchResponse(header(), 30, snapshot_id=SnapshotId(10, 1)),
        m.FetchResponse(header(), 30, snapshot_id=SnapshotId(15, 1)),
    ],
    ids=[
        "at the own end",
        "beyond the own end",
        "in a later epoch",
        "below the high watermark",
        "far below it",
        "at a negative offset",
        "a checkpoint that is here",
        "a checkpoint below the high watermark",
    ],
)
def test_an_answer_that_would_lose_records_or_lead_nowhere_is_refused_with_a_pause(answer):
    follower = FollowerOf3(FakeLog([(1, 0), (4, 20)], 30, snapshots=[SnapshotId(10, 1)]))
    follower.commit(25)
    for number in range(1, 5):
        effects = follower.answer(answer)
        assert effects.truncate_to is None
        assert effects.remote_fault
        assert follower.replica.remote_faults == number
        assert not effects.sends
        assert follower.go_on() == 20 * 2**number
    assert isinstance(follower.replica.role, Follower)
    assert follower.replica.role.download is None


def test_a_good_answer_ends_the_pauses():
    follower = FollowerOf3()
    for _ in range(3):
        follower.answer(diverging(4, 30))
        follower.go_on()
    follower.answer(m.FetchResponse(header(), 30))
    assert follower.sends, "the next fetch goes out at once"
    follower.answer(diverging(4, 30))
    assert follower.go_on() == 40


def test_what_diverges_above_the_high_watermark_is_truncated():
    follower = FollowerOf3()
    follower.commit(20)
    effects = follower.answer(diverging(4, 24))
    assert effects.truncate_to == 24
    assert effects.remote_fault is None


def test_refused_records_are_counted_and_their_high_watermark_is_not_believed():
    follower = FollowerOf3()
    follower.answer(m.FetchResponse(header(), 28, records=b"wrong"))
    effects = follower.step(RecordsRefused("why"))
    assert effects.remote_fault == "why"
    assert follower.replica.high_watermark is None
    follower.sends = effects.sends
    assert follower.go_on() == 40


def test_an_answer_that_does_not_agree_with_its_checksum_is_refused():
    follower = FollowerOf3()
    [send] = follower.sends
    effects = follower.step(ResponseDamaged(send.correlation_id))
    assert effects.remote_fault
    follower.sends = effects.sends
    assert follower.go_on() == 40
    assert not follower.step(ResponseDamaged(send.correlation_id)).remote_fault, "not expected"


def test_a_leader_whose_answers_are_all_wrong_is_replaced():
    follower = FollowerOf3()
    follower.commit(25)
    assert (
        not follower.replica.step(RequestReceived(1, vote(2, 5, (4, 30), pre_vote=True)), NOW)
        .replies[0]
        .response.vote_granted
    )
    for _ in range(100):
        if not isinstance(follower.replica.role, Follower):
            break
        follower.answer(m.FetchResponse(header(), 28, records=b"wrong"))
        follower.sends = follower.step(RecordsRefused("why")).sends
        answer = follower.step(RequestReceived(2, vote(2, 5, (4, 30), pre_vote=True))).replies[0]
        assert answer.response.vote_granted, "others may be elected as well"
        follower.go_on()
    assert isinstance(follower.replica.role, Prospective)
    assert follower.now_ms == NOW + follower.replica.state.config.fetch_timeout_ms


def test_appended_records_show_that_the_leader_is_alive():
    follower = FollowerOf3()
    follower.now_ms = 1500
    follower.answer(m.FetchResponse(header(), 30, records=b"right"))
    follower.log.end_offset = 31
    follower.step(LogAppended())
    assert follower.replica.high_watermark == 30
    assert follower.replica.role.fetch_deadline_ms == 3500


FETCHED = SnapshotId(50, 4)


def downloading(snapshot=FETCHED):
    follower = FollowerOf3()
    follower.answer(m.FetchResponse(header(), 60, snapshot_id=snapshot))
    return follower


@pytest.mark.parametrize(
    "piece",
    [
        m.FetchSnapshotResponse(header(ErrorCode.SNAPSHOT_NOT_FOUND)),
        m.FetchSnapshotResponse(header(), SnapshotId(51, 4), 100, 0, b"12"),
        m.FetchSnapshotResponse(header(), SnapshotId(50, 4), 100, 7, b"12"),
        m.FetchSnapshotResponse(header(), SnapshotId(50, 4), 100, 0, b""),
        m.FetchSnapshotResponse(header(), SnapshotId(50, 4), 1, 0, b"12"),
    ],
    ids=["not found", "another one", "another position", "no byte", "beyond its end"],
)
def test_a_piece_that_does_not_fit_ends_the_download_with_a_pause(piece):
    follower = downloading()
    for number in range(1, 4):
        effects = follower.answer(piece)
        assert effects.snapshot_piece is None
        assert effects.remote_fault
        assert follower.go_on() == 20 * 2**number
        follower.answer(m.FetchResponse(header(), 60, snapshot_id=SnapshotId(50, 4)))
        follower.go_on()


def installing(follower, snapshot=FETCHED):
    data = m.FetchSnapshotResponse(header(), snapshot, 2, 0, b"12")
    effects = follower.answer(data)
    assert effects.install_snapshot == snapshot
    return follower


def test_a_checkpoint_that_is_always_damaged_is_fetched_with_longer_and_longer_pauses():
    follower = downloading()
    pauses_ms = []
    for _ in range(7):
        installing(follower)
        follower.sends = follower.step(SnapshotRejected(SnapshotId(50, 4))).sends
        pauses_ms.append(follower.go_on())
        follower.answer(m.FetchResponse(header(), 60, snapshot_id=SnapshotId(50, 4)))
        if not follower.sends:
            break
    assert pauses_ms == [40, 80, 160, 320, 500, 500, 500][: len(pauses_ms)]
    assert follower.replica.remote_faults == len(pauses_ms)


@pytest.mark.parametrize("event", [SnapshotRejected, SnapshotInstalled])
def test_a_stale_report_of_an_older_checkpoint_does_not_end_a_newer_download(event):
    follower = installing(downloading(SnapshotId(50, 4)))
    if event is SnapshotInstalled:
        follower.log.snapshots = [SnapshotId(20, 1)]
    follower.step(event(SnapshotId(20, 1)))
    assert follower.replica.role.download.snapshot_id == SnapshotId(50, 4)
    assert not follower.replica.remote_faults


# --- a recovered quorum ---------------------------------------------------------------------------


def left_out(answer, epoch, committed=25):
    """A voter that refuses a leader of this epoch; its own log ends in epoch 4."""
    follower = FollowerOf3(FakeLog([(1, 0), (4, 20)], 30, snapshots=[SnapshotId(10, 1)]), epoch)
    follower.header = m.Header(ErrorCode.NONE, 3, epoch, ENDPOINTS[3])
    follower.answer(m.FetchResponse(follower.header, committed))
    effects = follower.answer(replace(answer, header=follower.header))
    assert "acknowledged records would be lost" in effects.remote_fault
    return follower, effects.remote_fault


ANSWERS = [diverging(4, 24), m.FetchResponse(header(), 30, snapshot_id=SnapshotId(15, 1))]


@pytest.mark.parametrize("answer", ANSWERS, ids=["diverging", "a checkpoint"])
def test_a_voter_that_a_recovery_left_out_neither_votes_nor_stands_for_election(answer):
    epoch = 4 + RECOVERY_EPOCHS // 2
    follower, fault = left_out(answer, epoch)
    assert "let it join as a new one" in fault
    replica = follower.replica
    for _ in range(300):
        follower.go_on()
        follower.sends = []
        assert isinstance(replica.role, Follower)
    assert follower.now_ms > 10 * replica.state.config.fetch_timeout_ms
    for pre_vote in (True, False):
        request = vote(2, epoch + (not pre_vote), (4, 99), pre_vote=pre_vote)
        [reply] = follower.step(RequestReceived(1, request)).replies
        assert not reply.response.vote_granted
    assert isinstance(replica.role, Unattached)
    for _ in range(50):
        follower.go_on()
        follower.sends = []
        assert isinstance(replica.role, Unattached)


@pytest.mark.parametrize("answer", ANSWERS, ids=["diverging", "a checkpoint"])
def test_a_leader_of_an_ordinary_epoch_that_is_refused_is_voted_out(answer):
    follower, fault = left_out(answer, 3 + RECOVERY_EPOCHS // 2)
    assert "restore their disks" in fault
    while not isinstance(follower.replica.role, Prospective):
        follower.go_on()
        follower.sends = []


def test_a_voter_that_was_left_out_counts_again_with_a_leader_that_has_its_log():
    follower, _ = left_out(ANSWERS[0], 4 + RECOVERY_EPOCHS // 2)
    follower.go_on()
    assert not follower.replica.state.may_elect
    follower.answer(m.FetchResponse(follower.header, 30))
    assert follower.replica.state.may_elect
    assert not follower.replica.state.left_out
