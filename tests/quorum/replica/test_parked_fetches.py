"""The end of a parked fetch: records answer it at once. A mere step of the high watermark answers
it a moment later, together with the next records if changes follow each other closely.
"""

from __future__ import annotations

from quorum.raft import messages as m
from quorum.raft.effects import LogAppended, LogFlushed, RequestReceived, Tick
from quorum.raft.leading import HIGH_WATERMARK_LINGER_MS
from quorum.raft.replica import Replica
from quorum.raft.voters import ReplicaKey
from tests.quorum.raft.test_rules import FakeLog, replica

NOW_MS = 1000
LATER_MS = NOW_MS + HIGH_WATERMARK_LINGER_MS
OBSERVER = ReplicaKey(10, None)


class LoneLeader:
    """A leader without followers: its own fsync commits."""

    def __init__(self) -> None:
        self.log = FakeLog([(1, 0)])
        self.replica: Replica = replica(log=self.log, voters=(1,))
        self.log.entries = [(self.replica.epoch, 0)]
        self.append()
        self.commit()

    def append(self, now_ms: int = NOW_MS) -> list[m.Response]:
        self.log.end_offset += 1
        return self._answers(LogAppended(), now_ms)

    def commit(self, now_ms: int = NOW_MS) -> list[m.Response]:
        return self._answers(LogFlushed(self.log.end_offset), now_ms)

    def tick(self, now_ms: int) -> list[m.Response]:
        return self._answers(Tick(), now_ms)

    def fetch(self, offset: int, high_watermark: int | None) -> list[m.Response]:
        epoch = self.replica.epoch
        request = m.FetchRequest("c", OBSERVER, epoch, offset, epoch, high_watermark, 500, 1000)
        return self._answers(RequestReceived(7, request), NOW_MS)

    def _answers(self, event, now_ms: int) -> list[m.Response]:
        effects = self.replica.step(event, now_ms)
        self.replica.validate()
        return [reply.response for reply in effects.replies]


def test_records_are_sent_at_once():
    leader = LoneLeader()
    assert leader.fetch(1, 1) == []
    [answer] = leader.append()
    assert answer.high_watermark == 1


def test_a_new_high_watermark_waits_a_moment_for_records():
    leader = LoneLeader()
    leader.append()
    assert leader.fetch(2, 1) == []
    assert leader.commit() == []
    assert leader.replica.next_deadline_ms() == LATER_MS
    assert leader.tick(LATER_MS - 1) == []
    [answer] = leader.tick(LATER_MS)
    assert answer.high_watermark == 2


def test_records_take_the_high_watermark_with_them():
    leader = LoneLeader()
    leader.append()
    leader.fetch(2, 1)
    leader.commit()
    [answer] = leader.append(LATER_MS - 1)
    assert answer.high_watermark == 2


def test_who_knows_no_high_watermark_is_told_at_once():
    assert [answer.high_watermark for answer in LoneLeader().fetch(1, None)] == [1]


def test_who_knows_more_than_a_new_leader_waits_for_records():
    leader = LoneLeader()
    assert leader.fetch(1, 9) == []
    assert leader.tick(LATER_MS) == []
