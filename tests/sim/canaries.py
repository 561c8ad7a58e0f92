"""Planted bugs, each of which the simulator must catch: otherwise its checks are worthless. Rules
are those of RULES.md.
"""

from __future__ import annotations

from commitlog.disk.files import Directory, DiskError
from quorum.raft.effects import ElectionState
from quorum.raft.elections import Elections
from quorum.raft.following import Following
from quorum.raft.high_watermark import next_high_watermark
from quorum.raft.leading import Leading
from quorum.raft.log_view import KnownBounds
from quorum.raft.messages import VoteRequest
from quorum.raft.replica import Parts
from quorum.raft.roles import Candidate, Leader, ReplicaProgress
from quorum.raft.state import RaftState
from quorum.raft.voter_changes import VoterChanges
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from quorum.replica.quorum_state import QuorumStateStore
from snapshot.names import SnapshotId
from snapshot.writer import SnapshotWriter


class Canary:
    """The correct implementation. Each subclass breaks one rule."""

    skips_fsync = False
    retries_fsync = False
    snapshots_uncommitted = False
    trusts_answers = False
    verifies_served = True
    parts = Parts()
    log: type[ReplicatedLog] = ReplicatedLog

    @staticmethod
    def write_state(store: QuorumStateStore, state: ElectionState) -> None:
        store.write(state)


class SkipsFsync(Canary):
    """Acknowledges by its next fetch what was never synced (rule 1)."""

    skips_fsync = True


class RetriesFsync(Canary):
    """Takes a failed fsync for done, as a second one would say: its pages are clean, and lost."""

    retries_fsync = True


class _VotesTwice(Elections):
    def _grants_vote(self, request: VoteRequest) -> bool:
        self._state.role.voted = None
        return super()._grants_vote(request)


class VotesTwice(Canary):
    """Grants a second candidate of the same epoch its vote."""

    parts = Parts(elections=_VotesTwice)


class ForgetsItsVote(Canary):
    """Answers votes without a durable quorum-state (rule 2)."""

    @staticmethod
    def write_state(store: QuorumStateStore, state: ElectionState) -> None:
        return None


class _CommitsOldEpochs(Leading):
    def _advance_high_watermark(self, role: Leader) -> None:
        state = self._state
        role.voters[state.node_id].end_offset = state.flushed_offset
        offsets = [-1 if p.end_offset is None else p.end_offset for p in role.voters.values()]
        state.raise_high_watermark(next_high_watermark(state.high_watermark, offsets, -1))


class CommitsOldEpochs(Canary):
    """Moves the high watermark over records of older epochs alone (rule 3)."""

    parts = Parts(leading=_CommitsOldEpochs)


class _CountsItselfUnsynced(Leading):
    def _advance_high_watermark(self, role: Leader) -> None:
        self._state.flushed_offset = self._state.log.end_offset
        super()._advance_high_watermark(role)


class CountsItselfUnsynced(Canary):
    """A leader counts itself beyond its own fsync (rule 1)."""

    parts = Parts(leading=_CountsItselfUnsynced)


class _CutsTooMuch(Following):
    def _truncate_diverging(self, epoch: int, end_offset: int) -> None:
        state = self._state
        before, own_end_offset = state.log.end_offset_for_epoch(epoch - 1)
        cut = max(state.log.start_offset, own_end_offset if before else 0)
        state.effects.truncate_to = cut
        state.awaiting_log = True
        state.flushed_offset = min(state.flushed_offset, cut)
        state.flush_requested_offset = min(state.flush_requested_offset, cut)


class CutsTooMuch(Canary):
    """A diverging follower cuts the whole epoch, below its high watermark."""

    parts = Parts(following=_CutsTooMuch)


class _ResumesLeadership(RaftState):
    def restore_role(self, now_ms: int) -> None:
        state = self.election_state
        if state.leader_id != self.node_id or not self.is_voter:
            super().restore_role(now_ms)
            return
        self.role = Candidate(state.epoch, self.key, now_ms + 1000, set(self.voters.ids))
        self.become_leader(now_ms)


class ResumesLeadership(Canary):
    """A restarted leader leads on in its epoch instead of being Resigned (rule 5)."""

    parts = Parts(state=_ResumesLeadership)


class _KeepsOldVoters(RaftState):
    old_voters: dict[int, ReplicaProgress] | None = None

    def _refresh_progress(self, role: Leader) -> None:
        self.old_voters = dict(role.voters)
        super()._refresh_progress(role)


class _CountsOldVoters(Leading):
    def _advance_high_watermark(self, role: Leader) -> None:
        state = self._state
        assert isinstance(state, _KeepsOldVoters)
        changed_at = state.log.voters_offset
        if changed_at is None or changed_at < (state.high_watermark or 0):
            state.old_voters = None
        if state.old_voters is None:
            super()._advance_high_watermark(role)
            return
        new, role.voters = role.voters, state.old_voters
        super()._advance_high_watermark(role)
        role.voters = new


class CountsOldVoters(Canary):
    """A change of the voters is committed by a majority of the voters before it (KIP-853)."""

    parts = Parts(state=_KeepsOldVoters, leading=_CountsOldVoters)


class _ChangesBeforeLastCommitted(VoterChanges):
    def _is_last_committed(self) -> bool:
        return True


class ChangesBeforeLastCommitted(Canary):
    """A change begins before the last one is committed."""

    parts = Parts(voter_changes=_ChangesBeforeLastCommitted)


class _ChangesBeforeOwnCommit(VoterChanges):
    def _has_committed(self, role: Leader) -> bool:
        return True


class ChangesBeforeOwnCommit(Canary):
    """A change begins before anything of the leader's own epoch is committed (Ongaro 2015)."""

    parts = Parts(voter_changes=_ChangesBeforeOwnCommit)


class _ForgetsVotersAtStart(ReplicatedLog):
    def clean(self, now_ms: int, begin_at: SnapshotId | None = None) -> bool:
        cleaned = super().clean(now_ms, begin_at)
        entries = self.history._voters._entries
        entries[:] = [entry for entry in entries if entry[0] >= self.start_offset]
        return cleaned


class ForgetsVotersAtStart(Canary):
    """Cleaning forgets the voters that are in force where the log begins (KIP-853)."""

    log = _ForgetsVotersAtStart


class _CountsRemovedLeader(Leading):
    def _advance_high_watermark(self, role: Leader) -> None:
        state, counted = self._state, role.voters
        if state.node_id not in counted:
            own = ReplicaProgress(state.key, end_offset=state.flushed_offset)
            role.voters = {**counted, state.node_id: own}
        super()._advance_high_watermark(role)
        role.voters = counted


class CountsRemovedLeader(Canary):
    """A leader that removes itself still counts itself for the majority (KIP-853)."""

    parts = Parts(leading=_CountsRemovedLeader)


class _KeepsTruncatedVoters(ReplicatedLog):
    def truncate_to(self, offset: int, now_ms: int) -> None:
        kept = self.voters
        super().truncate_to(offset, now_ms)
        if kept is not None and kept != self.voters:
            self.history._voters._entries[-1:] = [(self.history.voters_offset or -1, kept)]


class KeepsTruncatedVoters(Canary):
    """A voter set stays in force after its record was truncated (KIP-853)."""

    log = _KeepsTruncatedVoters


class _SnapshotsWithoutVoters(ReplicatedLog):
    def snapshot_writer(self, snapshot_id: SnapshotId, timestamp_ms: int) -> SnapshotWriter:
        return SnapshotWriter(self.directory, snapshot_id, timestamp_ms)


class SnapshotsWithoutVoters(Canary):
    """A checkpoint does not say who the voters are (KIP-853)."""

    log = _SnapshotsWithoutVoters


class SnapshotsUncommitted(Canary):
    """A checkpoint is made at the log's end, above the high watermark."""

    snapshots_uncommitted = True


class TrustsAnswers(Canary):
    """A follower takes a fetch answer that does not agree with its checksum."""

    trusts_answers = True


class _TellsOldHighWatermarks(RaftState):
    @property
    def advertised_high_watermark(self) -> int | None:
        return self.high_watermark


class TellsOldHighWatermarks(Canary):
    """A leader tells the high watermark it knew before it led (Kafka's LeaderState tells none)."""

    parts = Parts(state=_TellsOldHighWatermarks)


class _MakesRoomOfItsLog(ReplicatedLog):
    def __init__(self, directory: Directory, config: MetadataLogConfig, now_ms: int) -> None:
        try:
            super().__init__(directory, config, now_ms)
        except DiskError as error:
            if not error.is_full:
                raise
            directory.remove(max(n for n in directory.list() if n.endswith(".log")))
            super().__init__(directory, config, now_ms)


class MakesRoomOfItsLog(Canary):
    """A start on a full disk removes the newest segment, in place of being refused."""

    log = _MakesRoomOfItsLog


class _ForgetsTheWatermark(ReplicatedLog):
    def __init__(self, directory: Directory, config: MetadataLogConfig, now_ms: int) -> None:
        super().__init__(directory, config, now_ms)
        self.bounds._now = KnownBounds(self.bounds.now.end_offset, 0)


class ForgetsTheWatermark(Canary):
    """A restart forgets what was committed, and may truncate it (I6)."""

    log = _ForgetsTheWatermark


class ServesUnchecked(Canary):
    """A leader serves a batch or a checkpoint that rots, and never compares a checksum (I13)."""

    verifies_served = False


class _CutsSilently(ReplicatedLog):
    def __init__(self, directory: Directory, config: MetadataLogConfig, now_ms: int) -> None:
        super().__init__(directory, config, now_ms)
        self.bounds._now = KnownBounds(self.end_offset, self.bounds.now.high_watermark)
        self.bounds.lost = False


class CutsSilently(Canary):
    """A start cuts a damaged log, and does not notice that durable records are gone (I4)."""

    log = _CutsSilently


class _OlderDiskVotes(Elections):
    def _is_up_to_date(self, request: VoteRequest) -> bool:
        theirs = (request.last_offset_epoch, request.last_offset)
        return theirs >= (self._state.log.last_epoch, self._state.log.end_offset)


class OlderDiskVotes(Canary):
    """A voter whose log is older than its bounds votes by what is left of it (I4)."""

    parts = Parts(elections=_OlderDiskVotes)


CANARIES: dict[str, type[Canary]] = {
    "skips-fsync": SkipsFsync,
    "retries-fsync": RetriesFsync,
    "votes-twice": VotesTwice,
    "forgets-its-vote": ForgetsItsVote,
    "commits-old-epochs": CommitsOldEpochs,
    "counts-itself-unsynced": CountsItselfUnsynced,
    "cuts-too-much": CutsTooMuch,
    "resumes-leadership": ResumesLeadership,
    "counts-old-voters": CountsOldVoters,
    "changes-before-last-committed": ChangesBeforeLastCommitted,
    "changes-before-own-commit": ChangesBeforeOwnCommit,
    "forgets-voters-at-start": ForgetsVotersAtStart,
    "counts-removed-leader": CountsRemovedLeader,
    "keeps-truncated-voters": KeepsTruncatedVoters,
    "snapshots-without-voters": SnapshotsWithoutVoters,
    "snapshots-uncommitted": SnapshotsUncommitted,
    "trusts-answers": TrustsAnswers,
    "tells-old-high-watermarks": TellsOldHighWatermarks,
    "makes-room-of-its-log": MakesRoomOfItsLog,
    "forgets-the-watermark": ForgetsTheWatermark,
    "serves-unchecked": ServesUnchecked,
    "cuts-silently": CutsSilently,
    "older-disk-votes": OlderDiskVotes,
}
