"""Fetching from the leader (records, divergence, snapshots), and finding the leader.

At most one fetch is in flight. A voter fetches only when its whole log is durable, since its fetch
offset acknowledges everything below it (RULES.md rule 1). Source: KIP-595 "Fetch", KIP-630
"FetchSnapshot".
"""

from __future__ import annotations

from quorum.raft.config import FOREVER_MS, RECOVERY_EPOCHS
from quorum.raft.effects import SnapshotPiece
from quorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from quorum.raft.requests import BOOTSTRAP_ID_FIRST, Pending
from quorum.raft.roles import Follower, SnapshotDownload, Unattached
from quorum.raft.state import RaftState, own_damage
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint

MAX_PAUSE_DOUBLINGS = 16


class Following:
    """Handlers and timers of Follower and Unattached."""

    def __init__(self, state: RaftState) -> None:
        self._state = state

    # --- timers and sending -----------------------------------------------------------------------

    def poll(self, role: Unattached | Follower, now_ms: int) -> None:
        """Runs the timers of the role and sends the request that is due."""
        if isinstance(role, Follower):
            self._poll_follower(role, now_ms)
        else:
            self._poll_unattached(role, now_ms)

    def _poll_unattached(self, role: Unattached, now_ms: int) -> None:
        state = self._state
        if state.may_elect and now_ms >= role.election_deadline_ms and not state.shutting_down:
            state.become_prospective(now_ms)
        elif not state.requests.has_pending():
            self._find_leader(now_ms)

    def _find_tail(self, role: Follower) -> None:
        """Ends the loss of the log's tail. A leader tells its high watermark when it has committed
        something of its own epoch. Everything committed with an acknowledgement of this replica is
        below it: the leader was elected without this replica's vote, and no later fetch lied.
        """
        state, committed = self._state, role.leader_high_watermark
        if committed is not None and state.flushed_offset >= committed:
            state.lost_tail = False
            state.effects.tail_found = state.effects.save_bounds = True

    def _poll_follower(self, role: Follower, now_ms: int) -> None:
        state = self._state
        if state.lost_tail and not state.awaiting_log:
            self._find_tail(role)
        if state.may_elect and now_ms >= role.fetch_deadline_ms and not state.shutting_down:
            state.become_prospective(now_ms)
            return
        if state.awaiting_log or (role.download is not None and role.download.installing):
            return
        if self._syncs_before_fetch and state.flushed_offset < state.log.end_offset:
            state.request_flush()
            return
        if state.requests.has_pending() or now_ms < role.resume_ms:
            return
        if state.requests.is_backing_off(role.leader_id, now_ms):
            self._find_leader(now_ms)
        elif role.download is not None:
            request = self._snapshot_request(role.download)
            state.send(role.leader_id, role.leader_endpoint, request, now_ms)
        else:
            state.send(role.leader_id, role.leader_endpoint, self._fetch_request(), now_ms)

    @property
    def _syncs_before_fetch(self) -> bool:
        """Whether the fetch offset must be durable: this is a voter, or may already be one for the
        leader.
        """
        return self._state.is_voter or self._state.config.endpoint is not None

    def _waits_before_fetch(self, role: Follower) -> bool:
        state = self._state
        installing = role.download is not None and role.download.installing
        unflushed = self._syncs_before_fetch and state.flushed_offset < state.log.end_offset
        return state.awaiting_log or installing or unflushed or state.requests.has_pending()

    def _fetch_request(self) -> FetchRequest:
        state = self._state
        return FetchRequest(
            state.config.cluster_id,
            state.key,
            state.epoch,
            state.log.end_offset,
            state.log.last_epoch,
            state.advertised_high_watermark,
            state.config.fetch_wait_ms,
            state.config.fetch_max_bytes,
            own_damage(state),
        )

    def _snapshot_request(self, download: SnapshotDownload) -> FetchSnapshotRequest:
        state = self._state
        return FetchSnapshotRequest(
            state.config.cluster_id,
            state.key,
            state.epoch,
            download.snapshot_id,
            download.position,
            state.config.fetch_snapshot_max_bytes,
        )

    def _discovery_servers(self) -> list[tuple[int, Endpoint]]:
        """Servers that may know the leader: the bootstrap servers except this replica, and the
        voters in the log. Static voters are asked only if there are no bootstrap servers.
        """
        state = self._state
        bootstrap = state.config.bootstrap
        ids = range(BOOTSTRAP_ID_FIRST, BOOTSTRAP_ID_FIRST - len(bootstrap), -1)
        servers = list(zip(ids, bootstrap, strict=True))
        # bootstrap addresses may be older than the voters
        if not bootstrap or state.log.kraft_version > 0:
            endpoints = state.voters.endpoints()
            others = state.voters.others(state.node_id)
            servers += [(n, endpoints[n]) for n in others if endpoints[n] not in bootstrap]
        return [(node, endpoint) for node, endpoint in servers if endpoint != state.config.endpoint]

    def _find_leader(self, now_ms: int) -> None:
        state = self._state
        ready = [
            (node, endpoint)
            for node, endpoint in self._discovery_servers()
            if state.requests.is_ready(node, now_ms)
        ]
        if not ready:
            return
        node, endpoint = ready[state.rng.randrange(len(ready))]
        state.send(node, endpoint, self._fetch_request(), now_ms)

    def _discovery_pause_ms(self) -> int:
        """Backoff of a server that did not name a leader, in ms."""
        return max(
            self._state.config.retry_backoff_ms, self._state.config.election_timeout_ms // 10
        )

    def deadline_ms(self, role: Unattached | Follower) -> int:
        """When `poll` is due at the latest."""
        ready_ms = map(self._state.requests.ready_at_ms, self._wanted_peers(role))
        resume_ms = role.resume_ms if isinstance(role, Follower) else 0
        return min(self._timer_ms(role), max(resume_ms, min(ready_ms, default=FOREVER_MS)))

    def _timer_ms(self, role: Unattached | Follower) -> int:
        if self._state.shutting_down or not self._state.may_elect:
            return FOREVER_MS
        return role.fetch_deadline_ms if isinstance(role, Follower) else role.election_deadline_ms

    def _wanted_peers(self, role: Unattached | Follower) -> list[int]:
        """Peers that get a request as soon as their backoff ends."""
        if isinstance(role, Follower):
            if self._waits_before_fetch(role):
                return []
            return [role.leader_id, *(node for node, _ in self._discovery_servers())]
        if self._state.requests.has_pending():
            return []
        return [node for node, _ in self._discovery_servers()]

    # --- responses --------------------------------------------------------------------------------

    def _is_from_leader(self, pending: Pending, request: FetchSnapshotRequest) -> bool:
        """Whether the response came from the current leader, in the epoch of the request."""
        role = self._state.role
        if not isinstance(role, Follower) or request.epoch != role.epoch:
            return False
        return pending.node_id == role.leader_id

    def on_fetch_response(self, pending: Pending, response: FetchResponse, now_ms: int) -> None:
        state = self._state
        request = pending.request
        role = state.role
        if not isinstance(request, FetchRequest) or not isinstance(role, Follower):
            return
        answers_leader = response.header.leader_id == role.leader_id
        if request.epoch != role.epoch or not answers_leader:
            return
        reported = response.header.leader_endpoint
        if reported is not None:  # from the leader, perhaps through a bootstrap server: it moved
            role.leader_endpoint = (
                state.voters.reachable_endpoint(role.leader_id, reported) or reported
            )
        if request.fetch_offset != state.log.end_offset:
            return  # the log changed after this request
        refused = None
        if response.diverging_epoch is not None:
            refused = self._truncate_diverging(*response.diverging_epoch)
        elif response.snapshot_id is not None:
            refused = self._begin_download(role, response.snapshot_id)
        else:
            if response.records:
                state.effects.append_records = response.records
                state.awaiting_log = role.appends = True
                role.sent_high_watermark = response.high_watermark
                return  # on_log_appended or `refuse` follows
            role.leader_high_watermark = response.high_watermark
            self._note_progress(role)
            self.follow_high_watermark(role)
        if refused is not None:
            self.refuse(refused, now_ms)
        else:
            self._note_leader_response(role, now_ms)

    def pause_server(self, pending: Pending, now_ms: int) -> None:
        """Backs off a server other than the leader whose response did not help, so that others are
        asked first.
        """
        role = self._state.role
        if isinstance(role, Follower) and role.leader_id == pending.node_id:
            return
        self._state.requests.back_off(pending.node_id, now_ms, self._discovery_pause_ms())

    def _note_leader_response(self, role: Follower, now_ms: int) -> None:
        role.has_fetched = True
        role.fetch_deadline_ms = now_ms + self._state.config.fetch_timeout_ms

    def _note_progress(self, role: Follower) -> None:
        role.faults = role.resume_ms = 0
        self._state.left_out = False  # the leader has what this log has

    def refuse(self, reason: str, now_ms: int) -> None:
        """Counts a wrong answer of the leader, and pauses before the next fetch: longer each time,
        up to a quarter of the fetch timeout.

        A refused answer does not show that the leader is alive. If all are refused, the fetch
        timeout passes, and another replica may be elected."""
        state, role = self._state, self._state.role
        state.remote_faults += 1
        state.effects.remote_fault = reason
        if not isinstance(role, Follower):
            return
        role.appends = role.has_fetched = False
        role.faults += 1
        pause_ms = state.config.retry_backoff_ms << min(role.faults, MAX_PAUSE_DOUBLINGS)
        role.resume_ms = now_ms + min(pause_ms, state.config.fetch_timeout_ms // 4)

    def _truncate_diverging(self, epoch: int, end_offset: int) -> str | None:
        """Truncates what the leader does not have (KIP-595). The local lookup covers the epochs
        between. Returns why it does not, if the answer cannot be right.
        """
        state = self._state
        own_epoch, own_end_offset = state.log.end_offset_for_epoch(epoch)
        target = min(own_end_offset, end_offset) if own_epoch == epoch else own_end_offset
        where = f"the leader's log diverges at ({epoch}, {end_offset})"
        if target >= state.log.end_offset:
            return f"{where}, but this log ends at {state.log.end_offset} with no later epoch"
        committed = max(state.high_watermark or 0, state.committed_bound, state.log.start_offset)
        if target < committed:
            return f"{where}, {self._loss(committed)}"
        state.effects.truncate_to = target
        if state.damaged_offset is not None and target <= state.damaged_offset:
            state.damaged_offset = None  # the leader sends another batch
        state.awaiting_log = True
        state.flushed_offset = min(state.flushed_offset, target)
        state.flush_requested_offset = min(state.flush_requested_offset, target)
        return None

    def _loss(self, committed: int) -> str:
        """Refuses to lose acknowledged records, and notes whether a recovered quorum asks for it:
        elections alone do not skip that many epochs."""
        state = self._state
        state.effects.save_bounds = True  # a restart must not forget them
        state.left_out = state.epoch - state.log.last_epoch >= RECOVERY_EPOCHS // 2
        advice = "A majority of voters lacks them: restore their disks"
        if state.left_out:
            advice = (
                "A recovery of the quorum gave them up: move this node's __cluster_metadata-0 away "
                "and let it join as a new one. It does not vote meanwhile"
            )
        return (
            f"below the high watermark {committed} of this replica: acknowledged records would be "
            f"lost. {advice}"
        )

    def _begin_download(self, role: Follower, snapshot_id: SnapshotId) -> str | None:
        """Begins to fetch a checkpoint. Returns why it does not, if the answer cannot be right."""
        log = self._state.log
        latest = log.latest_snapshot
        committed = max(self._state.high_watermark or 0, self._state.committed_bound)
        if latest is not None and snapshot_id.end_offset <= latest.end_offset:
            return f"the leader sends {snapshot_id}, but {latest} is here (end {log.end_offset})"
        if snapshot_id.end_offset < min(committed, log.end_offset):
            return f"the leader sends {snapshot_id}, {self._loss(committed)}"
        role.download = SnapshotDownload(snapshot_id)
        return None

    def on_fetch_snapshot_response(
        self, pending: Pending, response: FetchSnapshotResponse, now_ms: int
    ) -> None:
        state = self._state
        request = pending.request
        role = state.role
        if not isinstance(request, FetchSnapshotRequest) or not isinstance(role, Follower):
            return
        download = role.download
        if not self._is_from_leader(pending, request) or download is None:
            return
        asked = (request.snapshot_id, request.position)
        if download.installing or asked != (download.snapshot_id, download.position):
            return
        refused = self._wrong_piece(download, response)
        if refused is not None:
            role.download = None  # the next fetch decides
            self.refuse(refused, now_ms)
            return
        self._note_leader_response(role, now_ms)
        state.effects.snapshot_piece = SnapshotPiece(
            download.snapshot_id, download.position, response.data
        )
        download.position += len(response.data)
        if download.position >= response.size:
            download.installing = True
            state.effects.install_snapshot = download.snapshot_id

    @staticmethod
    def _wrong_piece(download: SnapshotDownload, response: FetchSnapshotResponse) -> str | None:
        """Why this piece cannot be added to the download; None if it can."""
        if response.header.error != ErrorCode.NONE:  # e.g. deleted meanwhile
            return f"checkpoint {download.snapshot_id.name}: {response.header.error.name}"
        received = (response.snapshot_id, response.position)
        end = response.position + len(response.data)
        if received != (download.snapshot_id, download.position) or not response.data:
            return f"checkpoint {download.snapshot_id.name}: not the piece that was requested"
        if end > response.size:
            return f"checkpoint {download.snapshot_id.name}: it reaches beyond its own end"
        return None

    # --- reports of the edge ----------------------------------------------------------------------

    def on_snapshot_installed(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        """Resets the offsets: the log begins at the checkpoint, which is committed and durable."""
        state = self._state
        state.refresh_voters(now_ms)
        state.flushed_offset = state.flush_requested_offset = state.log.end_offset
        state.raise_high_watermark(snapshot_id.end_offset)
        if self._end_download(snapshot_id) and isinstance(state.role, Follower):
            self._note_progress(state.role)

    def on_snapshot_rejected(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        """Ends the download of a file that is damaged."""
        if self._end_download(snapshot_id):
            self.refuse(f"the fetched checkpoint {snapshot_id.name} is damaged", now_ms)

    def _end_download(self, snapshot_id: SnapshotId) -> bool:
        """Ends the download of this checkpoint. A newer one, begun meanwhile, goes on."""
        role = self._state.role
        download = role.download if isinstance(role, Follower) else None
        if download is None or not download.installing or download.snapshot_id != snapshot_id:
            return False
        assert isinstance(role, Follower)
        role.download = None
        return True

    def on_log_appended(self, role: Follower, now_ms: int) -> None:
        """Records of the leader are appended, or the log was truncated."""
        if role.appends:
            role.appends = False
            role.leader_high_watermark = role.sent_high_watermark
            self._note_progress(role)
            self._note_leader_response(role, now_ms)
        self.follow_high_watermark(role)

    def follow_high_watermark(self, role: Follower) -> None:
        """Raises the high watermark to the smaller of the log end and the leader's. Called again
        when the fetched records are appended.
        """
        if role.leader_high_watermark is not None:
            self._state.raise_high_watermark(
                min(role.leader_high_watermark, self._state.log.end_offset)
            )
