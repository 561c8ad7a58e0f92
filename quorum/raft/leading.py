"""Leading an epoch: answering and parking fetches, the high watermark, check-quorum,
BeginQuorumEpoch.

Source: KIP-595 "Fetch", KIP-630, KIP-1166 (a fetcher that lags the high watermark is answered at
once), Raft §6.2 (check-quorum).
"""

from __future__ import annotations

from quorum.raft.config import FOREVER_MS
from quorum.raft.effects import ReadRecords, ReadSnapshot, Reply
from quorum.raft.high_watermark import next_high_watermark
from quorum.raft.log_view import Diverging, NeedsSnapshot, validate_offset_and_epoch
from quorum.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from quorum.raft.requests import Pending
from quorum.raft.roles import Leader, ParkedFetch, ReplicaProgress
from quorum.raft.state import RaftState
from quorum.raft.voters import ReplicaKey
from tidemark.errors import ErrorCode

MAX_PARKED_FETCHES = 1024
"""Fetches that may be parked at the leader. Any more are answered empty at once."""
MAX_OBSERVERS = 4096
"""Observers whose progress is tracked. Beyond that, the one that fetched longest ago is dropped."""
HIGH_WATERMARK_LINGER_MS = 2
"""Time a new high watermark waits to be sent along with records, in ms. When changes follow each
other closely, each costs a follower one fetch and not two."""


class Leading:
    """Handlers and timers of Leader."""

    def __init__(self, state: RaftState) -> None:
        self._state = state

    # --- fetch ------------------------------------------------------------------------------------

    def _leader_for(
        self, token: int, request: FetchRequest | FetchSnapshotRequest
    ) -> Leader | None:
        """Returns the leader role if this replica leads in the request's epoch; otherwise replies
        with the error and returns None.
        """
        state = self._state
        role = state.role
        if request.epoch < state.epoch:
            state.fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
        elif request.epoch > state.epoch:
            state.fail(token, request, ErrorCode.UNKNOWN_LEADER_EPOCH)
        elif not isinstance(role, Leader):
            state.fail(token, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            return role
        return None

    def on_fetch_request(self, token: int, request: FetchRequest, now_ms: int) -> None:
        state = self._state
        role = self._leader_for(token, request)
        if role is None:
            return
        position = validate_offset_and_epoch(
            state.log, request.fetch_offset, request.last_fetched_epoch
        )
        progress = self._progress_of(role, request.replica)
        before_ms = None
        if progress is not None:
            before_ms, progress.last_fetch_ms = progress.last_fetch_ms, now_ms
            progress.own_damage = request.own_damage
            progress.acknowledged = True
        if isinstance(position, Diverging | NeedsSnapshot):
            state.reply(token, self._misplaced(position))
            return
        if progress is not None:
            self._note_fetch_position(progress, request.fetch_offset, before_ms, now_ms)
            self._advance_high_watermark(role)
        self._answer_or_park(role, ParkedFetch(token, request, now_ms, progress), now_ms)

    def _misplaced(self, position: Diverging | NeedsSnapshot) -> FetchResponse:
        state = self._state
        start = state.log.start_offset
        if isinstance(position, Diverging):
            diverging = (position.epoch, position.end_offset)
            return FetchResponse(state.header(), state.advertised_high_watermark, start, diverging)
        snapshot = position.snapshot
        return FetchResponse(
            state.header(), state.advertised_high_watermark, start, snapshot_id=snapshot
        )

    def _progress_of(self, role: Leader, key: ReplicaKey) -> ReplicaProgress | None:
        """Returns the tracked progress of a fetcher; None for a non-replica (id below 0) and for
        this replica.

        A static voter stays one with a new disk. What its earlier disk had no longer counts.
        """
        if key.replica_id < 0 or key.replica_id == self._state.node_id:
            return None
        voter = role.voters.get(key.replica_id)
        if voter is not None and self._state.voters.is_voter(key):
            if not voter.key.matches(key):
                voter = role.voters[key.replica_id] = ReplicaProgress(key)
            voter.key = key  # with static voters only the fetch names the directory
            return voter
        known = role.observers.pop(key, None) or ReplicaProgress(key)
        role.observers[key] = known  # the latest to fetch comes last
        if len(role.observers) > MAX_OBSERVERS:
            del role.observers[next(iter(role.observers))]
        return known

    def _note_fetch_position(
        self, progress: ReplicaProgress, fetch_offset: int, before_ms: int | None, now_ms: int
    ) -> None:
        """Notes the position. A replica that has what was the log end at its previous fetch, at
        `before_ms`, was caught up then.
        """
        end_offset = self._state.log.end_offset
        if fetch_offset >= end_offset:
            progress.last_caught_up_ms = now_ms
        elif fetch_offset >= progress.leader_end_offset_at_last_fetch >= 0:
            progress.last_caught_up_ms = before_ms
        progress.leader_end_offset_at_last_fetch = end_offset
        progress.end_offset = fetch_offset

    def _news_due_ms(self, request: FetchRequest, now_ms: int) -> int:
        """When a fetcher must be answered: at once for records and the first high watermark. A mere
        step of the high watermark may wait a moment."""
        if request.fetch_offset < self._state.log.end_offset:
            return now_ms
        high_watermark = self._state.advertised_high_watermark
        if high_watermark is None:
            return FOREVER_MS
        if request.high_watermark is None:
            return now_ms
        lags = request.high_watermark < high_watermark
        return now_ms + HIGH_WATERMARK_LINGER_MS if lags else FOREVER_MS

    def _answer_or_park(self, role: Leader, fetch: ParkedFetch, now_ms: int) -> None:
        request = fetch.request
        if request.replica.replica_id >= 0:  # readers that are no replicas share the id -1
            for parked in [p for p in role.parked.values() if p.request.replica == request.replica]:
                self._answer_fetch(role.parked.pop(parked.token))  # the fetcher abandoned that one
        wait_ms = min(request.max_wait_ms, self._state.config.fetch_wait_ms)
        fetch.deadline_ms = min(now_ms + wait_ms, self._news_due_ms(request, now_ms))
        if fetch.deadline_ms <= now_ms or len(role.parked) >= MAX_PARKED_FETCHES:
            self._answer_fetch(fetch)
        else:
            role.parked[fetch.token] = fetch

    def _answer_fetch(self, fetch: ParkedFetch) -> None:
        state = self._state
        request = fetch.request
        response = FetchResponse(
            state.header(), state.advertised_high_watermark, state.log.start_offset
        )
        read = None
        if request.fetch_offset < state.log.end_offset:
            limit = min(request.max_bytes, state.config.fetch_max_bytes)
            doubted, progress = False, fetch.progress
            if progress is not None:
                doubted = progress.sent_offset == request.fetch_offset
                progress.sent_offset = request.fetch_offset
            read = ReadRecords(request.fetch_offset, limit, doubted)
        state.effects.replies.append(Reply(fetch.token, response, read))

    def _answer_parked(self, role: Leader, now_ms: int) -> None:
        """Answers parked fetches that have something new, or whose wait is over."""
        for parked in role.parked.values():
            due_ms = self._news_due_ms(parked.request, now_ms)
            parked.deadline_ms = min(parked.deadline_ms, due_ms)
        for token in [t for t, p in role.parked.items() if p.deadline_ms <= now_ms]:
            self._answer_fetch(role.parked.pop(token))

    # --- snapshots --------------------------------------------------------------------------------

    def on_fetch_snapshot_request(
        self, token: int, request: FetchSnapshotRequest, now_ms: int
    ) -> None:
        state = self._state
        role = self._leader_for(token, request)
        if role is None:
            return
        size = state.log.snapshot_size_bytes(request.snapshot_id)
        if size is None:
            state.fail(token, request, ErrorCode.SNAPSHOT_NOT_FOUND)
            return
        if not 0 <= request.position < size:
            state.fail(token, request, ErrorCode.POSITION_OUT_OF_RANGE)
            return
        progress = self._progress_of(role, request.replica)
        if progress is not None:  # the fetch counts for check-quorum
            progress.last_fetch_ms = now_ms
            progress.acknowledged = True
        doubted = False
        if progress is not None and request.position == 0:
            doubted = progress.sent_snapshot == request.snapshot_id
            progress.sent_snapshot = request.snapshot_id
        limit = max(1, min(request.max_bytes, state.config.fetch_snapshot_max_bytes))
        response = FetchSnapshotResponse(
            state.header(), request.snapshot_id, size, request.position
        )
        read = ReadSnapshot(request.snapshot_id, request.position, limit, doubted)
        state.effects.replies.append(Reply(token, response, read))

    # --- commit -----------------------------------------------------------------------------------

    def _advance_high_watermark(self, role: Leader) -> None:
        state = self._state
        own = role.voters.get(state.node_id)
        if own is not None:
            own.end_offset = state.flushed_offset  # the leader counts only up to its own fsync
        offsets = [-1 if p.end_offset is None else p.end_offset for p in role.voters.values()]
        state.raise_high_watermark(
            next_high_watermark(state.high_watermark, offsets, role.epoch_start_offset)
        )

    def on_begin_quorum_epoch_response(self, pending: Pending) -> None:
        state = self._state
        if isinstance(state.role, Leader) and pending.epoch == state.role.epoch:
            progress = state.role.voters.get(pending.node_id)
            if progress is not None:
                progress.acknowledged = True

    # --- timers and sending -----------------------------------------------------------------------

    def poll(self, role: Leader, now_ms: int) -> None:
        """Runs the timers of the leader, answers parked fetches and sends what is due."""
        state = self._state
        if now_ms >= self._check_quorum_deadline_ms(role):
            state.become_resigned(now_ms)
            return
        if state.awaiting_log:
            return
        state.request_flush()
        self._advance_high_watermark(role)
        self._answer_parked(role, now_ms)
        for node in state.voters.others(state.node_id):
            if now_ms >= self._begin_due_ms(role, node) and state.requests.is_ready(node, now_ms):
                role.voters[node].last_begin_ms = now_ms
                request = BeginQuorumEpochRequest(
                    state.config.cluster_id,
                    role.voters[node].key,
                    state.node_id,
                    role.epoch,
                    state.config.endpoint,
                )
                state.send_to_voter(node, request, now_ms)

    def deadline_ms(self, role: Leader) -> int:
        """When `poll` is due at the latest."""
        state = self._state
        due_ms = self._check_quorum_deadline_ms(role)
        for parked in role.parked.values():
            due_ms = min(due_ms, parked.deadline_ms)
        for node in state.voters.others(state.node_id):
            ready_ms = state.requests.ready_at_ms(node)
            due_ms = min(due_ms, max(ready_ms, self._begin_due_ms(role, node)))
        return due_ms

    def _check_quorum_deadline_ms(self, role: Leader) -> int:
        """When the leader resigns because a majority (itself included) has not fetched. Never for a
        sole voter. Voters that are new have a whole timeout for their first fetch.
        """
        state = self._state
        needed = state.voters.majority - (1 if state.node_id in role.voters else 0)
        if needed <= 0:
            return FOREVER_MS
        heard = sorted(
            (
                role.started_ms if p.last_fetch_ms is None else p.last_fetch_ms
                for node, p in role.voters.items()
                if node != state.node_id
            ),
            reverse=True,
        )
        begin_ms = max(heard[needed - 1], role.voters_changed_ms)
        return begin_ms + state.config.check_quorum_timeout_ms

    def _begin_due_ms(self, role: Leader, node: int) -> int:
        """When this voter is due a BeginQuorumEpoch (again): only a voter that does not fetch."""
        progress = role.voters[node]
        if progress.last_begin_ms is None:
            return role.started_ms
        heard = progress.last_begin_ms
        if progress.last_fetch_ms is not None:
            heard = max(heard, progress.last_fetch_ms)
        interval_ms = self._state.config.begin_quorum_epoch_interval_ms
        if not progress.acknowledged:
            interval_ms = max(1, self._state.config.retry_backoff_ms)
        return heard + interval_ms
