"""Bugs planted on purpose: the simulator must catch each of them, or its checks are worth
nothing (reliability layer 6).
"""

from __future__ import annotations

from quorum.quorum_state import QuorumStateStore
from quorum.raft.effects import ElectionState
from quorum.raft.high_watermark import next_high_watermark
from quorum.raft.messages import VoteRequest
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader


class Canary:
    """No bug: the real thing. Subclasses break one rule each."""

    skips_fsync = False
    replica: type[Replica] = Replica

    @staticmethod
    def write_state(store: QuorumStateStore, state: ElectionState) -> None:
        store.write(state)


class SkipsFsync(Canary):
    """Acknowledges by its next fetch what was never synced (rule 1)."""

    skips_fsync = True


class _VotesTwice(Replica):
    def _grants_vote(self, request: VoteRequest) -> bool:
        self.role.voted = None
        return super()._grants_vote(request)


class VotesTwice(Canary):
    """Grants a second candidate of the same epoch its vote."""

    replica = _VotesTwice


class ForgetsItsVote(Canary):
    """Answers votes without a durable quorum-state (rule 2)."""

    @staticmethod
    def write_state(store: QuorumStateStore, state: ElectionState) -> None:
        return None


class _CommitsOldEpochs(Replica):
    def _advance_high_watermark(self, role: Leader) -> None:
        role.voters[self.node_id].end_offset = self.flushed_offset
        offsets = [-1 if p.end_offset is None else p.end_offset for p in role.voters.values()]
        self._raise_high_watermark(next_high_watermark(self.high_watermark, offsets, -1))


class CommitsOldEpochs(Canary):
    """Moves the high watermark over records of older epochs alone (rule 3)."""

    replica = _CommitsOldEpochs


class _CountsItselfUnsynced(Replica):
    def _advance_high_watermark(self, role: Leader) -> None:
        self.flushed_offset = self.log.end_offset
        super()._advance_high_watermark(role)


class CountsItselfUnsynced(Canary):
    """A leader counts itself beyond its own fsync (rule 1)."""

    replica = _CountsItselfUnsynced


CANARIES: dict[str, type[Canary]] = {
    "skips-fsync": SkipsFsync,
    "votes-twice": VotesTwice,
    "forgets-its-vote": ForgetsItsVote,
    "commits-old-epochs": CommitsOldEpochs,
    "counts-itself-unsynced": CountsItselfUnsynced,
}
