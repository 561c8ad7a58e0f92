"""The state shared by all parts of a replica: fields, views, role transitions, replies and sends.

Only this module changes the role. Safety kept here: the epoch never goes back, and an illegal
transition raises. Each transition puts its vote, epoch or leader into `Effects.election_state`,
which is durable before anything is sent.
"""

from __future__ import annotations

from quorum.raft.config import FOREVER_MS, Randomness, ReplicaConfig
from quorum.raft.effects import Effects, ElectionState, LeaderAndEpoch, LeaderChange, Reply, Send
from quorum.raft.log_view import NO_BOUNDS, KnownBounds, LogView
from quorum.raft.messages import AnyRequest, Header, Request, Response, error_response
from quorum.raft.metrics import RaftMetrics
from quorum.raft.requests import RequestManager
from quorum.raft.roles import (
    OBSERVER_ROLES,
    TRANSITIONS,
    Candidate,
    Follower,
    Leader,
    Prospective,
    ReplicaProgress,
    Resigned,
    Role,
    Unattached,
)
from quorum.raft.voter_history import BOOTSTRAP_OFFSET
from quorum.raft.voters import ReplicaKey
from tidemark.errors import ErrorCode, FatalError
from tidemark.types import Endpoint, OwnDamage


class RaftInvariantError(FatalError):
    """A state that must never occur (two leaders in an epoch, truncation below the high watermark
    ...).
    """


class RaftState:
    """Fields, views and transitions of one replica. The role modules add the behaviour."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LogView,
        election_state: ElectionState,
        rng: Randomness,
        bounds: KnownBounds = NO_BOUNDS,
    ) -> None:
        self.config = config
        self.log = log
        self.voters = log.voters or config.voters
        self.rng = rng
        self.requests = RequestManager(config.retry_backoff_ms)
        self.election_state = election_state
        self.role: Role = Unattached(election_state.epoch, election_state.voted, FOREVER_MS)
        self.flushed_offset = log.end_offset  # the content of the disk at a restart is durable
        self.flush_requested_offset = log.end_offset
        snapshot = log.latest_snapshot
        self.high_watermark: int | None = snapshot.end_offset if snapshot is not None else None
        self.committed_bound = bounds.high_watermark  # of earlier lives
        self.lost_tail = log.end_offset < bounds.end_offset
        """Whether the disk lost records that this replica acknowledged. It neither votes nor stands
        for election until it has everything that a leader committed."""
        self.damaged_offset: int | None = None
        """A batch of the own log that cannot be read. The replica does not stand for election while
        the log holds it. It votes: where its log ends is known, and so its vote is right."""
        self.checkpoint_damaged = False
        """Whether the checkpoint where the log begins is damaged, and none has taken its place."""
        self.left_out = False
        """Whether a recovery of the quorum left this replica out. It neither votes nor stands for
        election: such voters together would depose the recovered leader again and again."""
        self.shutting_down = False
        self.awaiting_log = False  # set by a step that changes the log, cleared by LogAppended
        self.remote_faults = 0  # answers refused because they cannot be right
        self.effects = Effects()
        self.metrics = RaftMetrics()

    # --- views ------------------------------------------------------------------------------------

    @property
    def key(self) -> ReplicaKey:
        return self.config.key

    @property
    def node_id(self) -> int:
        return self.config.key.replica_id

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def is_voter(self) -> bool:
        return self.voters.is_voter(self.key)

    @property
    def may_elect(self) -> bool:
        """True if this replica may stand for election: a voter, or one whose removal is not known
        to be committed. Not while the log lacks its tail or is damaged, or a recovery left it out.

        A removed voter counts itself in no majority. But if only it holds the Voters record that
        removes it, no other replica can be elected (Ongaro 2014, §4.2.2).
        """
        if self.lost_tail or self.left_out or self.damaged_offset is not None:
            return False
        if self.is_voter:
            return True
        if self.config.endpoint is None or self.log.voters is None:
            return False
        known = self.log.start_offset if self.high_watermark is None else self.high_watermark
        return self.log.was_voter_since(self.key, known)

    @property
    def leader_id(self) -> int | None:
        """The known leader of this epoch, even after it resigned."""
        match self.role:
            case Leader() | Resigned():
                return self.node_id
            case Follower() | Prospective():
                return self.role.leader_id
            case _:
                return None

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The current leader; None for one that resigned or cannot be reached."""
        match self.role:
            case Leader():
                return LeaderAndEpoch(self.node_id, self.epoch)
            case Follower():
                return LeaderAndEpoch(self.role.leader_id, self.epoch)
            case _:
                return LeaderAndEpoch(None, self.epoch)

    @property
    def leader_endpoint(self) -> Endpoint | None:
        match self.role:
            case Leader():
                return self.config.endpoint
            case Follower() | Prospective():
                return self.role.leader_endpoint
            case _:
                return None

    @property
    def advertised_high_watermark(self) -> int | None:
        """The high watermark this replica reports to others; None if it is not confirmed in this
        epoch.

        A leader reports it once a record of its own epoch is committed. A follower reports it once
        the leader of this epoch has sent one: without it the leader answers the fetch at once.
        """
        role, known = self.role, self.high_watermark
        if isinstance(role, Leader) and known is not None and known > role.epoch_start_offset:
            return known
        if isinstance(role, Follower) and role.leader_high_watermark is not None:
            return known
        return None

    # --- transitions ------------------------------------------------------------------------------

    def restore_role(self, now_ms: int) -> None:
        """Sets the role after a (re)start, from quorum-state and log."""
        state = self.election_state
        log_epoch = self.log.last_epoch
        deadline_ms = self._election_deadline_ms(now_ms)
        if state.epoch < log_epoch:
            self.role = Unattached(log_epoch, None, deadline_ms)
            self._persist(None, None)
        elif state.leader_id == self.node_id and self.may_elect:
            # An (offset, epoch) pair must never be written twice: no second leadership in this
            # epoch.
            others = set(self.voters.others(self.node_id))
            self.role = Resigned(state.epoch, state.voted, deadline_ms, (), others)
        elif state.leader_id is not None and state.leader_id != self.node_id:
            self._restore_follower(state.leader_id, now_ms)
        elif state.voted == self.key and self.may_elect:
            self.role = Candidate(state.epoch, self.key, deadline_ms, {self.node_id})
        else:
            self.role = Unattached(state.epoch, state.voted, deadline_ms)

    def _restore_follower(self, leader_id: int, now_ms: int) -> None:
        state = self.election_state
        endpoint = self.voters.endpoint(leader_id)
        if endpoint is None:
            self.role = Unattached(state.epoch, state.voted, self._election_deadline_ms(now_ms))
            return
        deadline_ms = now_ms + self.config.fetch_timeout_ms
        self.role = Follower(state.epoch, state.voted, leader_id, endpoint, deadline_ms)

    def _become(self, role: Role, now_ms: int) -> None:
        old = self.role
        if type(role) not in TRANSITIONS[type(old)]:
            raise RaftInvariantError(f"illegal transition {old} -> {role}")
        removed = isinstance(old, Leader) and isinstance(role, Resigned)
        if type(role) not in OBSERVER_ROLES and not removed and not self.may_elect:
            raise RaftInvariantError(f"an observer can not become {role}")
        if role.epoch < old.epoch:
            raise RaftInvariantError(f"the epoch would go back: {old} -> {role}")
        self.role = role
        if role.epoch != old.epoch or isinstance(role, Candidate | Leader | Follower | Resigned):
            self.requests.reset()
        if isinstance(old, Leader):
            for parked in old.parked.values():
                self.fail(parked.token, parked.request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if old.change is not None and old.change.token >= 0:  # the outcome is not known
                change, error = old.change, ErrorCode.NOT_LEADER_OR_FOLLOWER
                self.fail(change.token, change.request, error)

    def _persist(self, leader_id: int | None, voted: ReplicaKey | None) -> None:
        """Requests a durable quorum-state. Only transitions call it."""
        state = ElectionState(self.epoch, leader_id, voted)
        if state != self.election_state:
            self.election_state = state
            self.effects.election_state = state

    def _random_election_timeout_ms(self) -> int:
        base = self.config.election_timeout_ms
        return base + self.rng.randrange(base)

    def _election_deadline_ms(self, now_ms: int) -> int:
        if not self.may_elect:
            return FOREVER_MS
        if self.voters.is_only_voter(self.key):
            return now_ms
        return now_ms + self._random_election_timeout_ms()

    def become_unattached(self, epoch: int, now_ms: int, voted: ReplicaKey | None = None) -> None:
        """Moves to a higher epoch without a known leader, or records a vote in this one.

        If only the epoch rises, the election timer keeps its deadline: a stream of candidates must
        not starve this replica."""
        kept = self.role.voted if epoch == self.epoch else None
        if kept is not None and (voted is None or not kept.matches(voted)):
            raise RaftInvariantError(f"the vote of epoch {epoch} would change: {kept} -> {voted}")
        deadline_ms = self._election_deadline_ms(now_ms)
        if voted is None and isinstance(self.role, Unattached) and self.role.epoch < epoch:
            deadline_ms = min(deadline_ms, self.role.election_deadline_ms)
        self._become(Unattached(epoch, voted, deadline_ms), now_ms)
        self._persist(None, voted)

    def become_prospective(self, now_ms: int) -> None:
        """Begins pre-votes; a known leader is kept in case they fail."""
        role = self.role
        leader_id, endpoint = None, None
        if isinstance(role, Follower):
            leader_id, endpoint = role.leader_id, role.leader_endpoint
        deadline_ms = now_ms + self._random_election_timeout_ms()
        prospective = Prospective(
            role.epoch, role.voted, leader_id, endpoint, deadline_ms, {self.node_id}
        )
        self._become(prospective, now_ms)
        self.requests.reset()
        self.metrics.election_begins(now_ms)

    def give_up_pre_vote(self, role: Prospective, now_ms: int) -> None:
        """Ends lost pre-votes: follows the known leader again, or has none."""
        if role.leader_id is not None and role.leader_endpoint is not None:
            self.become_follower(role.epoch, role.leader_id, role.leader_endpoint, now_ms)
        else:
            self.become_unattached(role.epoch, now_ms, voted=role.voted)

    def become_candidate(self, now_ms: int) -> None:
        """Starts an election in the next epoch with a vote for itself."""
        deadline_ms = now_ms + self._random_election_timeout_ms()
        epoch = self.epoch + 1
        self._become(Candidate(epoch, self.key, deadline_ms, {self.node_id}), now_ms)
        self._persist(None, self.key)
        self.metrics.elections_started += 1

    def become_follower(self, epoch: int, leader_id: int, endpoint: Endpoint, now_ms: int) -> None:
        """Follows a leader. Raises RaftInvariantError if the epoch has another one."""
        if leader_id == self.node_id:
            raise RaftInvariantError(f"replica {leader_id} can not follow itself in epoch {epoch}")
        known = self.leader_id
        if epoch == self.epoch and known is not None and known != leader_id:
            raise RaftInvariantError(f"two leaders in epoch {epoch}: {known} and {leader_id}")
        voted = self.role.voted if epoch == self.epoch else None
        deadline_ms = now_ms + self.config.fetch_timeout_ms
        self._become(Follower(epoch, voted, leader_id, endpoint, deadline_ms), now_ms)
        self._persist(leader_id, voted)
        self.metrics.election_ends(now_ms)

    def become_leader(self, now_ms: int) -> None:
        """Leads the epoch of a won election; its first record is a LeaderChange."""
        candidate = self.role
        if not isinstance(candidate, Candidate):
            raise RaftInvariantError(f"illegal transition {candidate} -> Leader")
        granting = tuple(sorted(candidate.granted))
        progress = {node: ReplicaProgress(self.voters.key(node)) for node in self.voters.ids}
        if self.node_id in progress:
            progress[self.node_id].end_offset = self.flushed_offset
        leader = Leader(
            epoch=candidate.epoch,
            voted=candidate.voted,
            epoch_start_offset=self.log.end_offset,
            started_ms=now_ms,
            granting_voters=granting,
            voters=progress,
        )
        self._become(leader, now_ms)
        self._persist(self.node_id, candidate.voted)
        self.metrics.elections_won += 1
        self.metrics.election_ends(now_ms)
        first = self.log.kraft_version > 0 and self.log.voters_offset == BOOTSTRAP_OFFSET
        self.effects.append_leader_change = LeaderChange(
            self.node_id,
            candidate.epoch,
            self.voters.ids,
            granting,
            self.log.voters if first else None,
        )
        self.effects.flush = True
        self.awaiting_log = True
        self.flush_requested_offset = leader.epoch_start_offset + (3 if first else 1)

    def become_resigned(self, now_ms: int) -> None:
        """Ends the leadership; the voters furthest ahead are the preferred successors."""
        leader = self.role
        if not isinstance(leader, Leader):
            raise RaftInvariantError(f"illegal transition {leader} -> Resigned")
        others = [p for node, p in leader.voters.items() if node != self.node_id]
        best_first = sorted(others, key=lambda p: -1 if p.end_offset is None else p.end_offset)
        candidates = tuple(p.key for p in reversed(best_first))
        unacknowledged = set(self.voters.others(self.node_id))
        deadline_ms = self._election_deadline_ms(now_ms)
        if not self.may_elect:  # removed or damaged: looks for the next leader after a while
            deadline_ms = now_ms + self._random_election_timeout_ms()
        self._become(
            Resigned(leader.epoch, leader.voted, deadline_ms, candidates, unacknowledged), now_ms
        )

    # --- the voters -------------------------------------------------------------------------------

    def refresh_voters(self, now_ms: int) -> None:
        """Adopts the voters of the log after an append, a truncation or a checkpoint."""
        voters = self.log.voters or self.config.voters
        if voters == self.voters:
            return
        could_elect = self.may_elect
        self.voters = voters
        match self.role:
            case Leader() as role:
                self._refresh_progress(role)
                role.voters_changed_ms = now_ms
            case Resigned() as role:
                role.unacknowledged &= set(voters.ids)
        self._follow_right_to_elect(could_elect, now_ms)

    def _follow_right_to_elect(self, could_elect: bool, now_ms: int) -> None:
        """Adjusts role and timers to `may_elect`. A leader resigns by itself."""
        role, changed = self.role, could_elect != self.may_elect
        match role:
            case Follower() if changed:
                role.fetch_deadline_ms = now_ms + self.config.fetch_timeout_ms
            case Unattached() if changed:
                role.election_deadline_ms = self._election_deadline_ms(now_ms)
            case Prospective() if not self.may_elect:
                self.give_up_pre_vote(role, now_ms)
            case Candidate() if not self.may_elect:
                self.become_unattached(role.epoch, now_ms, voted=role.voted)

    def _refresh_progress(self, role: Leader) -> None:
        """Rebuilds the progress of voters and observers. The known progress of a replica is kept
        when it changes from one to the other.
        """
        before = role.voters
        role.voters = {}
        for voter in self.voters:
            node, key = voter.key.replica_id, voter.key
            known = before.get(node)
            if known is None or not known.key.matches(key):
                known = role.observers.pop(key, None) or ReplicaProgress(key)
            role.voters[node] = known
        for node, progress in before.items():
            kept = role.voters.get(node) is progress
            if not kept and node != self.node_id:
                role.observers[progress.key] = progress

    # --- replies and requests ---------------------------------------------------------------------

    def header(self, error: ErrorCode = ErrorCode.NONE) -> Header:
        """The header of a response of this replica."""
        known = self.leader_and_epoch.leader_id
        return Header(error, known, self.epoch, self.leader_endpoint if known is not None else None)

    def reply(self, token: int, response: Response) -> None:
        self.effects.replies.append(Reply(token, response))

    def fail(self, token: int, request: AnyRequest, error: ErrorCode) -> None:
        """Replies to a request with an error."""
        self.reply(token, error_response(request, self.header(error)))

    def send(self, node_id: int, endpoint: Endpoint, request: Request, now_ms: int) -> None:
        """Sends a request, and expects its response within the request timeout."""
        timeout_ms = self.config.request_timeout_ms
        correlation_id = self.requests.register(node_id, request, self.epoch, now_ms, timeout_ms)
        self.effects.sends.append(Send(correlation_id, node_id, endpoint, request, timeout_ms))

    def send_to_voter(self, node_id: int, request: Request, now_ms: int) -> None:
        endpoint = self.voters.endpoint(node_id)
        if endpoint is None:
            raise RaftInvariantError(f"{node_id} is no voter: {self.voters.ids}")
        self.send(node_id, endpoint, request, now_ms)

    def raise_high_watermark(self, offset: int | None) -> bool:
        """Raises the high watermark; it never goes back. Returns False if `offset` does not raise
        it.
        """
        if offset is None or (self.high_watermark is not None and offset <= self.high_watermark):
            return False
        if offset > self.log.end_offset:
            raise RaftInvariantError(
                f"high watermark {offset} is beyond the log end {self.log.end_offset}"
            )
        self.high_watermark = offset
        self.effects.high_watermark = offset
        return True

    def request_flush(self) -> None:
        """Requests one fsync of everything in the log now."""
        if self.log.end_offset > self.flush_requested_offset:
            self.flush_requested_offset = self.log.end_offset
            self.effects.flush = True


def note_damage(state: RaftState, offset: int | None, now_ms: int) -> None:
    """Notes that the own log is damaged at `offset`, or healed (None). A leader resigns."""
    could_elect = state.may_elect
    state.damaged_offset = offset
    if offset is not None and isinstance(state.role, Leader):
        state.become_resigned(now_ms)
    state._follow_right_to_elect(could_elect, now_ms)


def own_damage(state: RaftState) -> OwnDamage:
    """The gravest damage on the own disk. Each fetch reports it to the leader."""
    if state.damaged_offset is not None:
        return OwnDamage.LOG
    if state.lost_tail:
        return OwnDamage.LOG_TAIL
    return OwnDamage.CHECKPOINT if state.checkpoint_damaged else OwnDamage.NONE
