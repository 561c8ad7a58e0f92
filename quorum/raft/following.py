"""Fetching: from the leader (records, divergence, snapshots), or from anybody who may know the
leader.

At most one fetch is under way. A voter fetches only when its whole log is durable, since its fetch
offset acknowledges everything below it (RULES.md rule 1). Source: KIP-595 "Fetch", KIP-630
"FetchSnapshot".
"""

from __future__ import annotations

from quorum.raft.core import RaftInvariantError
from quorum.raft.effects import SnapshotPiece
from quorum.raft.elections import Elections
from quorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from quorum.raft.requests import BOOTSTRAP_ID_FIRST, Pending
from quorum.raft.roles import Follower, SnapshotDownload, Unattached
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint


class Following(Elections):
    """Handlers and timers of Follower, and of Unattached as long as it looks for a leader."""

    # --- timers and sending -----------------------------------------------------------------------

    def _poll_unattached(self, role: Unattached, now_ms: int) -> None:
        if self.may_elect and now_ms >= role.election_deadline_ms and not self.shutting_down:
            self._become_prospective(now_ms)
        elif not self.requests.has_pending():
            self._look_for_leader(now_ms)

    def _poll_follower(self, role: Follower, now_ms: int) -> None:
        if self.may_elect and now_ms >= role.fetch_deadline_ms and not self.shutting_down:
            self._become_prospective(now_ms)
            return
        if self._awaiting_log or (role.download is not None and role.download.installing):
            return
        if self.syncs_before_fetch and self.flushed_offset < self.log.end_offset:
            self._request_flush()
            return
        if self.requests.has_pending():
            return
        if self.requests.is_backing_off(role.leader_id, now_ms):
            self._look_for_leader(now_ms)
        elif role.download is not None:
            request = self._snapshot_request(role.download)
            self._send(role.leader_id, role.leader_endpoint, request, now_ms)
        else:
            self._send(role.leader_id, role.leader_endpoint, self._fetch_request(), now_ms)

    def _fetch_request(self) -> FetchRequest:
        return FetchRequest(
            self.config.cluster_id,
            self.key,
            self.epoch,
            self.log.end_offset,
            self.log.last_epoch,
            self.told_high_watermark,
            self.config.fetch_wait_ms,
            self.config.fetch_max_bytes,
        )

    def _snapshot_request(self, download: SnapshotDownload) -> FetchSnapshotRequest:
        return FetchSnapshotRequest(
            self.config.cluster_id,
            self.key,
            self.epoch,
            download.snapshot_id,
            download.position,
            self.config.fetch_snapshot_max_bytes,
        )

    def _servers_to_ask(self) -> list[tuple[int, Endpoint]]:
        """Who may know the leader: the bootstrap servers but this replica, and the voters that the
        log names (the static ones only where there are no bootstrap servers).
        """
        bootstrap = self.config.bootstrap
        ids = range(BOOTSTRAP_ID_FIRST, BOOTSTRAP_ID_FIRST - len(bootstrap), -1)
        servers = list(zip(ids, bootstrap, strict=True))
        if not bootstrap or self.log.kraft_version > 0:  # addresses may be older than the voters
            endpoints = self.voters.endpoints()
            others = self.voters.others(self.node_id)
            servers += [(n, endpoints[n]) for n in others if endpoints[n] not in bootstrap]
        return [(node, endpoint) for node, endpoint in servers if endpoint != self.config.endpoint]

    def _look_for_leader(self, now_ms: int) -> None:
        ready = [
            (node, endpoint)
            for node, endpoint in self._servers_to_ask()
            if self.requests.is_ready(node, now_ms)
        ]
        if not ready:
            return
        node, endpoint = ready[self.rng.randrange(len(ready))]
        self._send(node, endpoint, self._fetch_request(), now_ms)

    def _discovery_pause_ms(self) -> int:
        """How long a server that could not help is left alone."""
        return max(self.config.retry_backoff_ms, self.config.election_timeout_ms // 10)

    # --- responses --------------------------------------------------------------------------------

    def _is_from_leader(self, pending: Pending, request: FetchSnapshotRequest) -> bool:
        """Whether the answer came from the leader that we follow in the epoch we asked in."""
        role = self.role
        if not isinstance(role, Follower) or request.epoch != role.epoch:
            return False
        return pending.node_id == role.leader_id

    def _on_fetch_response(self, pending: Pending, response: FetchResponse, now_ms: int) -> None:
        request = pending.request
        if not self._is_of_interest(pending, response.header, now_ms):
            self._pause_server(pending, now_ms)
            return
        role = self.role
        if not isinstance(request, FetchRequest) or not isinstance(role, Follower):
            return
        answers_leader = response.header.leader_id == role.leader_id
        if request.epoch != role.epoch or not answers_leader:
            return
        told = response.header.leader_endpoint
        if told is not None:  # by the leader itself, perhaps through a bootstrap server: it moved
            role.leader_endpoint = self._where(role.leader_id, told) or told
        if request.fetch_offset != self.log.end_offset:
            return  # the answer to a question that is no longer ours
        self._heard_from_leader(role, now_ms)
        if response.diverging_epoch is not None:
            self._truncate_diverging(*response.diverging_epoch)
        elif response.snapshot_id is not None:
            self._begin_download(role, response.snapshot_id)
        else:
            if response.records:
                self._effects.append_records = response.records
                self._awaiting_log = True
            role.leader_high_watermark = response.high_watermark
            self._follow_high_watermark(role)

    def _pause_server(self, pending: Pending, now_ms: int) -> None:
        """An answer that did not help from somebody who is not our leader: ask others first."""
        role = self.role
        if isinstance(role, Follower) and role.leader_id == pending.node_id:
            return
        self.requests.back_off(pending.node_id, now_ms, self._discovery_pause_ms())

    def _heard_from_leader(self, role: Follower, now_ms: int) -> None:
        role.has_fetched = True
        role.fetch_deadline_ms = now_ms + self.config.fetch_timeout_ms

    def _truncate_diverging(self, epoch: int, end_offset: int) -> None:
        """Cuts what the leader does not have (KIP-595; the local look-up handles epochs
        between).
        """
        own_epoch, own_end_offset = self.log.end_offset_for_epoch(epoch)
        target = min(own_end_offset, end_offset) if own_epoch == epoch else own_end_offset
        if target < (self.high_watermark or 0):
            raise RaftInvariantError(
                f"the leader's log diverges at ({epoch}, {end_offset}), below the high watermark "
                f"{self.high_watermark}: acknowledged records would be lost"
            )
        self._effects.truncate_to = target
        self._awaiting_log = True
        self.flushed_offset = min(self.flushed_offset, target)
        self.flush_requested_offset = min(self.flush_requested_offset, target)

    def _begin_download(self, role: Follower, snapshot_id: SnapshotId) -> None:
        latest = self.log.latest_snapshot
        if latest is not None and snapshot_id.end_offset <= latest.end_offset:
            known = self.log.end_offset
            raise RaftInvariantError(
                f"the leader sends snapshot {snapshot_id}, but {latest} is here (log end {known})"
            )
        role.download = SnapshotDownload(snapshot_id)

    def _on_fetch_snapshot_response(
        self, pending: Pending, response: FetchSnapshotResponse, now_ms: int
    ) -> None:
        request = pending.request
        if not self._is_of_interest(pending, response.header, now_ms):
            return
        role = self.role
        if not isinstance(request, FetchSnapshotRequest) or not isinstance(role, Follower):
            return
        download = role.download
        if not self._is_from_leader(pending, request) or download is None:
            return
        asked = (request.snapshot_id, request.position)
        if download.installing or asked != (download.snapshot_id, download.position):
            return
        self._heard_from_leader(role, now_ms)
        if response.header.error != ErrorCode.NONE:
            role.download = None  # cleaned meanwhile, or another file: the next fetch tells more
            return
        if response.position != download.position or response.snapshot_id != download.snapshot_id:
            role.download = None
            return
        self._effects.snapshot_piece = SnapshotPiece(
            download.snapshot_id, download.position, response.data
        )
        download.position += len(response.data)
        if download.position >= response.size:
            download.installing = True
            self._effects.install_snapshot = download.snapshot_id

    # --- what the edge reports --------------------------------------------------------------------

    def _on_snapshot_installed(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        """The log now begins behind the checkpoint, which is committed and durable."""
        self._refresh_voters(now_ms)
        self.flushed_offset = self.flush_requested_offset = self.log.end_offset
        self._raise_high_watermark(snapshot_id.end_offset)
        self._on_snapshot_gone(snapshot_id)

    def _on_snapshot_gone(self, snapshot_id: SnapshotId) -> None:
        role = self.role
        if isinstance(role, Follower) and role.download is not None and role.download.installing:
            role.download = None

    def _follow_high_watermark(self, role: Follower) -> None:
        """min(own log end, the leader's): called again when the records of the answer are
        appended.
        """
        if role.leader_high_watermark is not None:
            self._raise_high_watermark(min(role.leader_high_watermark, self.log.end_offset))
