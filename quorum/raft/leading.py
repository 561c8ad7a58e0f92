"""Leading an epoch: fetches answered, parked and acknowledged; the high watermark; check-quorum;
BeginQuorumEpoch.

Source: KIP-595 "Fetch", KIP-630, KIP-1166 (a fetcher that lags the high watermark is answered at
once), Raft §6.2 (check-quorum).
"""

from __future__ import annotations

from quorum.raft.core import FOREVER_MS
from quorum.raft.effects import ReadRecords, ReadSnapshot, Reply
from quorum.raft.following import Following
from quorum.raft.high_watermark import next_high_watermark
from quorum.raft.log_view import Diverging, NeedsSnapshot, validate_offset_and_epoch
from quorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from quorum.raft.requests import Pending
from quorum.raft.roles import Leader, ParkedFetch, ReplicaProgress
from quorum.raft.voters import ReplicaKey
from tidemark.errors import ErrorCode

MAX_PARKED_FETCHES = 1024
"""Fetches that may wait at the leader; one more is answered empty at once."""
MAX_OBSERVERS = 4096
"""Observers whose progress is remembered; the one silent for the longest goes first."""
HIGH_WATERMARK_LINGER_MS = 2
"""How long a new high watermark waits for records that go the same way: while changes follow each
other closely each costs a follower one fetch, not two."""
OBSERVER_SESSION_MS = 300_000
"""An observer silent for so long is no longer described (Kafka's constant)."""


class Leading(Following):
    """Handlers and timers of Leader."""

    # --- fetch ------------------------------------------------------------------------------------

    def _leader_for(
        self, token: int, request: FetchRequest | FetchSnapshotRequest
    ) -> Leader | None:
        """The leader role if this replica leads in the request's epoch; otherwise the answer is
        given.
        """
        role = self.role
        if request.epoch < self.epoch:
            self._fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
        elif request.epoch > self.epoch:
            self._fail(token, request, ErrorCode.UNKNOWN_LEADER_EPOCH)
        elif not isinstance(role, Leader):
            self._fail(token, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            return role
        return None

    def _on_fetch_request(self, token: int, request: FetchRequest, now_ms: int) -> None:
        role = self._leader_for(token, request)
        if role is None:
            return
        if request.fetch_offset < 0 or request.last_fetched_epoch < 0 or request.max_wait_ms < 0:
            self._fail(token, request, ErrorCode.INVALID_REQUEST)
            return
        position = validate_offset_and_epoch(
            self.log, request.fetch_offset, request.last_fetched_epoch
        )
        progress = self._progress_of(role, request.replica)
        if progress is not None:
            progress.last_fetch_ms = now_ms
            progress.acknowledged = True
        if isinstance(position, Diverging | NeedsSnapshot):
            self._reply(token, self._misplaced(position))
            return
        if progress is not None:
            self._note_fetch_position(progress, request.fetch_offset, now_ms)
            self._advance_high_watermark(role)
        self._answer_or_park(role, token, request, now_ms)

    def _misplaced(self, position: Diverging | NeedsSnapshot) -> FetchResponse:
        start = self.log.start_offset
        if isinstance(position, Diverging):
            diverging = (position.epoch, position.end_offset)
            return FetchResponse(self._header(), self.told_high_watermark, start, diverging)
        snapshot = position.snapshot
        return FetchResponse(self._header(), self.told_high_watermark, start, snapshot_id=snapshot)

    def _progress_of(self, role: Leader, key: ReplicaKey) -> ReplicaProgress | None:
        """The state kept of a fetcher; None for one that is no replica (id below 0) or
        ourselves.
        """
        if key.replica_id < 0 or key.replica_id == self.node_id:
            return None
        voter = role.voters.get(key.replica_id)
        if voter is not None and voter.key.matches(key):
            voter.key = key  # with static voters the fetch is what tells the directory
            return voter
        known = role.observers.pop(key, None) or ReplicaProgress(key)
        role.observers[key] = known  # the latest to fetch stands last
        if len(role.observers) > MAX_OBSERVERS:
            del role.observers[next(iter(role.observers))]
        return known

    def _note_fetch_position(
        self, progress: ReplicaProgress, fetch_offset: int, now_ms: int
    ) -> None:
        end_offset = self.log.end_offset
        caught_up_then = fetch_offset >= progress.leader_end_offset_at_last_fetch >= 0
        if fetch_offset >= end_offset or caught_up_then:
            progress.last_caught_up_ms = now_ms
        progress.leader_end_offset_at_last_fetch = end_offset
        progress.end_offset = fetch_offset

    def _news_due_ms(self, request: FetchRequest, now_ms: int) -> int:
        """When a fetcher must hear what it does not know: records and the first high watermark at
        once, a mere step of the high watermark a moment later."""
        if request.fetch_offset < self.log.end_offset:
            return now_ms
        high_watermark = self.told_high_watermark
        if high_watermark is None:
            return FOREVER_MS
        if request.high_watermark is None:
            return now_ms
        lags = request.high_watermark < high_watermark
        return now_ms + HIGH_WATERMARK_LINGER_MS if lags else FOREVER_MS

    def _answer_or_park(self, role: Leader, token: int, request: FetchRequest, now_ms: int) -> None:
        for parked in [p for p in role.parked.values() if p.request.replica == request.replica]:
            self._answer_fetch(role.parked.pop(parked.token))  # it gave that one up
        wait_ms = min(request.max_wait_ms, self.config.fetch_wait_ms)
        deadline_ms = min(now_ms + wait_ms, self._news_due_ms(request, now_ms))
        fetch = ParkedFetch(token, request, deadline_ms)
        if deadline_ms <= now_ms or len(role.parked) >= MAX_PARKED_FETCHES:
            self._answer_fetch(fetch)
        else:
            role.parked[token] = fetch

    def _answer_fetch(self, fetch: ParkedFetch) -> None:
        request = fetch.request
        response = FetchResponse(self._header(), self.told_high_watermark, self.log.start_offset)
        read = None
        if request.fetch_offset < self.log.end_offset:
            limit = min(request.max_bytes, self.config.fetch_max_bytes)
            read = ReadRecords(request.fetch_offset, limit)
        self._effects.replies.append(Reply(fetch.token, response, read))

    def _answer_parked(self, role: Leader, now_ms: int) -> None:
        """Answers what waited for records or the high watermark, or long enough."""
        for parked in role.parked.values():
            due_ms = self._news_due_ms(parked.request, now_ms)
            parked.deadline_ms = min(parked.deadline_ms, due_ms)
        for token in [t for t, p in role.parked.items() if p.deadline_ms <= now_ms]:
            fetch = role.parked.pop(token)
            if fetch.request.fetch_offset < self.log.start_offset:
                fetch = ParkedFetch(token, fetch.request, now_ms)
            self._answer_fetch(fetch)

    # --- snapshots --------------------------------------------------------------------------------

    def _on_fetch_snapshot_request(
        self, token: int, request: FetchSnapshotRequest, now_ms: int
    ) -> None:
        role = self._leader_for(token, request)
        if role is None:
            return
        size = self.log.snapshot_size_bytes(request.snapshot_id)
        if size is None:
            self._fail(token, request, ErrorCode.SNAPSHOT_NOT_FOUND)
            return
        if not 0 <= request.position < size:
            self._fail(token, request, ErrorCode.POSITION_OUT_OF_RANGE)
            return
        progress = self._progress_of(role, request.replica)
        if progress is not None:  # it lives: counts for check-quorum
            progress.last_fetch_ms = now_ms
            progress.acknowledged = True
        limit = max(1, min(request.max_bytes, self.config.fetch_snapshot_max_bytes))
        response = FetchSnapshotResponse(
            self._header(), request.snapshot_id, size, request.position
        )
        read = ReadSnapshot(request.snapshot_id, request.position, limit)
        self._effects.replies.append(Reply(token, response, read))

    # --- commit -----------------------------------------------------------------------------------

    def _advance_high_watermark(self, role: Leader) -> None:
        own = role.voters.get(self.node_id)
        if own is not None:
            own.end_offset = self.flushed_offset  # itself only up to its own fsync
        offsets = [-1 if p.end_offset is None else p.end_offset for p in role.voters.values()]
        self._raise_high_watermark(
            next_high_watermark(self.high_watermark, offsets, role.epoch_start_offset)
        )

    # --- timers and sending -----------------------------------------------------------------------

    def _poll_leader(self, role: Leader, now_ms: int) -> None:
        if now_ms >= self._check_quorum_deadline_ms(role):
            self._become_resigned(now_ms)
            return
        if self._awaiting_log:
            return
        self._request_flush()
        self._advance_high_watermark(role)
        self._answer_parked(role, now_ms)
        for node in self.voters.others(self.node_id):
            if now_ms >= self._begin_due_ms(role, node) and self.requests.is_ready(node, now_ms):
                role.voters[node].last_begin_ms = now_ms
                request = BeginQuorumEpochRequest(
                    self.config.cluster_id,
                    role.voters[node].key,
                    self.node_id,
                    role.epoch,
                    self.config.endpoint,
                )
                self._send_to_voter(node, request, now_ms)

    def _check_quorum_deadline_ms(self, role: Leader) -> int:
        """When a majority (itself included) has been silent too long; never for a sole voter."""
        needed = self.voters.majority - (1 if self.node_id in role.voters else 0)
        if needed <= 0:
            return FOREVER_MS
        heard = sorted(
            (
                role.started_ms if p.last_fetch_ms is None else p.last_fetch_ms
                for node, p in role.voters.items()
                if node != self.node_id
            ),
            reverse=True,
        )
        return heard[needed - 1] + self.config.check_quorum_timeout_ms

    def _begin_due_ms(self, role: Leader, node: int) -> int:
        """When this voter must hear of the leader (again): only one that does not fetch."""
        progress = role.voters[node]
        if progress.last_begin_ms is None:
            return role.started_ms
        heard = progress.last_begin_ms
        if progress.last_fetch_ms is not None:
            heard = max(heard, progress.last_fetch_ms)
        interval_ms = self.config.begin_quorum_epoch_interval_ms
        if not progress.acknowledged:
            interval_ms = max(1, self.config.retry_backoff_ms)
        return heard + interval_ms

    def _on_begin_quorum_epoch_response(
        self, pending: Pending, response: BeginQuorumEpochResponse, now_ms: int
    ) -> None:
        if not self._is_of_interest(pending, response.header, now_ms):
            return
        if isinstance(self.role, Leader) and pending.epoch == self.role.epoch:
            progress = self.role.voters.get(pending.node_id)
            if progress is not None:
                progress.acknowledged = True
