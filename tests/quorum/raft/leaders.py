"""Verbs for tests of a leader: an elected replica over a fake log, and messages of its peers."""

from __future__ import annotations

import random

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    Effects,
    ElectionState,
    LogAppended,
    LogFlushed,
    RequestReceived,
    ResponseReceived,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader
from quorum.raft.voters import VoterSet
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog
from tidemark.errors import ErrorCode

EPOCH = 4


class ElectedLeader:
    """Replica 1, elected by replica 2 in epoch 4 at time 0; its LeaderChange record is at the end
    of `log`, and durable."""

    def __init__(self, log: FakeLog | None = None) -> None:
        self.log = log or FakeLog([(1, 0)], 5)
        voters = VoterSet.static(ENDPOINTS)
        self.config = ReplicaConfig("c", KEYS[1], voters, ENDPOINTS[1])
        voted = ElectionState(EPOCH, None, KEYS[1])
        self.replica = Replica(self.config, self.log, voted, random.Random(1))
        asked = {send.node_id: send for send in self.replica.start(0).sends}
        granted = m.VoteResponse(m.Header(ErrorCode.NONE, None, EPOCH), vote_granted=True)
        self.elected = self._checked(
            self.replica.step(ResponseReceived(asked[2].correlation_id, granted), 0)
        )
        assert self.elected.append_leader_change is not None
        self.log.entries.append((EPOCH, self.log.end_offset))
        self.announced = self.append(1, now_ms=0)
        self.flush(now_ms=0)

    @property
    def role(self) -> Leader:
        assert isinstance(self.replica.role, Leader)
        return self.replica.role

    def _checked(self, effects: Effects) -> Effects:
        self.replica.validate()
        return effects

    def append(self, count: int, now_ms: int) -> Effects:
        """Appends records, which are not durable yet."""
        self.log.end_offset += count
        return self._checked(self.replica.step(LogAppended(), now_ms))

    def flush(self, now_ms: int) -> Effects:
        return self._checked(self.replica.step(LogFlushed(self.log.end_offset), now_ms))

    def tick(self, now_ms: int) -> Effects:
        return self._checked(self.replica.step(Tick(), now_ms))

    def receive(self, request: m.AnyRequest, now_ms: int, token: int = 7) -> Effects:
        return self._checked(self.replica.step(RequestReceived(token, request), now_ms))

    def fetch(self, node: int, offset: int, now_ms: int, token: int = 7) -> Effects:
        """Has `node` fetch at `offset`, knowing the high watermark and ready to wait."""
        epoch, _ = self.log.end_offset_for_epoch(EPOCH)
        if offset <= self.log.entries[-1][1]:
            epoch = self.log.entries[-2][0]
        known = self.replica.high_watermark
        request = m.FetchRequest("c", KEYS[node], EPOCH, offset, epoch, known, 500, 1 << 20)
        return self.receive(request, now_ms, token)
