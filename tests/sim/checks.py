"""The invariants RULES.md I1-I9 of the quorum, checked as events happen; each message names its
invariant.

- I1: one leader per epoch, over all time.
- I2: epoch and vote never go back, also over a crash; one vote per epoch.
- I3: the high watermark never goes back, and a majority of voters holds everything below it
  durably.
- I4: a leader has every committed record.
- I5: logs are equal below the high watermark.
- I6: nothing below the high watermark is truncated.
- I7: a checkpoint is at or below the high watermark. A log that begins above 0 has a checkpoint
  there. A leader loads none.
- I8: the image after an offset is the same on every node, by replay and by checkpoint + replay.
  So are the bytes of its checkpoint.
- I9: a listener is notified that it caught up once it has all that earlier epochs committed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from quorum.raft.effects import ElectionState, LeaderAndEpoch
from quorum.raft.roles import Leader
from quorum.raft.voters import ReplicaKey, VoterSet
from snapshot import SnapshotId
from snapshot.framing import decode_batches

if TYPE_CHECKING:
    from tests.sim.node import SimNode


class Violation(AssertionError):
    """Raised when an invariant does not hold."""


class Checks:
    """The observations of one world so far."""

    def __init__(self) -> None:
        self._leaders: dict[int, tuple[int, int]] = {}  # epoch -> (node, incarnation)
        self._persisted: dict[int, ElectionState] = {}
        self._attempted: dict[int, ElectionState] = {}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._granted: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._written: dict[tuple[int, int], bytes] = {}  # (epoch, offset) -> batch
        self._high_watermarks: dict[int, int] = {}
        self._compared: dict[int, int] = {}
        self._bounds: dict[int, int] = {}  # node -> high watermark saved on its disk
        self._committed: dict[int, tuple[int, bytes]] = {}  # base offset -> (epoch, batch)
        self.committed_end = 0
        # epoch of the leader that committed it -> end offset
        self._committed_in: dict[int, int] = {}
        self._committed_epoch = 0
        self._digests: dict[int, str] = {}
        self._snapshots: dict[SnapshotId, str] = {}
        self.elections = 0

    def _require(self, holds: bool, rule: str, node: SimNode, **facts: object) -> None:
        if not holds:
            raise Violation(f"{rule} at node {node.node_id}: {facts}")

    # --- elections (I1, I2) ---------------------------------------------------------------------

    def on_disk_lost(self, node: SimNode) -> None:
        """Drops what was recorded of a lost disk."""
        self._bounds.pop(node.node_id, None)
        self._persisted.pop(node.node_id, None)
        self._attempted.pop(node.node_id, None)

    def on_bounds_lost(self, node: SimNode) -> None:
        """Drops what the node's disk remembered of the high watermark."""
        self._bounds.pop(node.node_id, None)

    def on_start(self, node: SimNode) -> None:
        """Checks that the disk's state is not older than what the node promised."""
        self._high_watermarks.pop(node.node_id, None)
        self._compared.pop(node.node_id, None)
        found = node.replica.state.election_state
        attempted = self._attempted.pop(node.node_id, None)
        if attempted is not None and found == attempted:  # the write failed, but reached the disk
            self.on_persist(node, found)
        before = self._persisted.get(node.node_id)
        if before is not None:
            self._require(
                found == before, "I2 quorum-state survives a crash", node, found=found, was=before
            )
        self._require(
            node.replica.state.committed_bound >= self._bounds.get(node.node_id, 0),
            "I6 a restart remembers what is committed",
            node,
            remembered=node.replica.state.committed_bound,
            saved=self._bounds.get(node.node_id),
        )
        self._require(
            node.is_mere_broker or node.log.end_offset >= node.durable_when_down,
            "what was synced survives a crash",
            node,
            found=node.log.end_offset,
            durable=node.durable_when_down,
        )

    def persisted(self, node: SimNode) -> ElectionState:
        """The newest quorum-state of a node that is durable."""
        return self._persisted.get(node.node_id, ElectionState())

    def before_persist(self, node: SimNode, state: ElectionState) -> None:
        """Records the state as possibly durable from now on, even if the write fails."""
        self._attempted[node.node_id] = state

    def on_persist(self, node: SimNode, state: ElectionState) -> None:
        self._attempted.pop(node.node_id, None)
        before = self._persisted.get(node.node_id, ElectionState())
        self._require(
            state.epoch >= before.epoch, "I2 the epoch never goes back", node, now=state, was=before
        )
        if state.epoch == before.epoch and before.leader_id is not None:
            self._require(
                # a leader without an address is not kept
                state.leader_id in (before.leader_id, None),
                "I1 one leader",
                node,
                now=state,
                was=before,
            )
        self._persisted[node.node_id] = state
        if state.voted is not None:
            self._vote(self._votes, node, state.epoch, state.voted)

    def on_vote_granted(self, node: SimNode, epoch: int, candidate: ReplicaKey) -> None:
        """Checks a granted vote against the state on disk, as it leaves the node."""
        self._vote(self._granted, node, epoch, candidate)

    def _vote(
        self,
        votes: dict[tuple[ReplicaKey, int], ReplicaKey],
        node: SimNode,
        epoch: int,
        voted: ReplicaKey,
    ) -> None:
        known = votes.setdefault((node.key, epoch), voted)
        self._require(
            known == voted, "I2 one vote per epoch", node, epoch=epoch, first=known, then=voted
        )

    def on_leader_told(self, node: SimNode, leader: LeaderAndEpoch) -> None:
        if leader.is_leader(node.node_id):
            role = node.replica.role
            assert isinstance(role, Leader)
            position = node.listeners.next_offset(node.image)
            self._require(
                position > role.epoch_start_offset,
                "a leader is told only when it has applied everything",
                node,
                position=position,
                epoch_start=role.epoch_start_offset,
            )

    def on_caught_up(self, node: SimNode) -> None:
        """Checks that the listener has everything committed in earlier epochs; commits of the
        current epoch may be in progress.
        """
        epoch = node.replica.epoch
        committed = max((end for e, end in self._committed_in.items() if e < epoch), default=0)
        position = node.listeners.next_offset(node.image)
        self._require(
            position >= committed,
            "I9 who is told that it caught up has what earlier epochs committed",
            node,
            position=position,
            committed=committed,
        )

    # --- after every event (I1, I3, I4, I5, I7) ---------------------------------------------------

    def after_event(self, node: SimNode) -> None:
        replica, log = node.replica, node.log
        # otherwise no other node can know of it yet
        if isinstance(replica.role, Leader) and not node.writes_state:
            known = self._leaders.get(replica.epoch)
            own = (node.node_id, node.incarnation)
            if known is None:
                self.elections += 1
                self._leaders[replica.epoch] = own
                self._check_leader_is_complete(node)
            self._require(
                known in (None, own), "I1 one leader per epoch, and one life of it", node, was=known
            )
        self._check_high_watermark(node)
        latest, earliest = log.latest_snapshot, log.earliest_snapshot
        if latest is not None:
            self._require(
                latest.end_offset <= (replica.high_watermark or 0),
                "I7 a checkpoint is at most at the high watermark",
                node,
                snapshot=latest,
                high_watermark=replica.high_watermark,
            )
        if log.start_offset > 0:
            self._require(
                earliest is not None and earliest.end_offset == log.start_offset,
                "I7 the log start has a checkpoint",
                node,
                start=log.start_offset,
                earliest=earliest,
            )

    def _check_leader_is_complete(self, node: SimNode) -> None:
        """Checks that a leader has every record committed in earlier epochs. Votes and quorum-state
        can be slow, so commits of later epochs do not count.
        """
        epoch = node.replica.epoch
        committed = max((end for e, end in self._committed_in.items() if e < epoch), default=0)
        if committed == 0:
            return
        role = node.replica.role
        assert isinstance(role, Leader)
        self._require(
            role.epoch_start_offset >= committed,
            "I4 a leader has every committed record",
            node,
            leader_end=role.epoch_start_offset,
            committed=committed,
        )
        begin = max(node.log.start_offset, self._compared.get(node.node_id, 0))
        self._compare(node, begin, committed)

    def _check_high_watermark(self, node: SimNode) -> None:
        high_watermark = node.replica.high_watermark
        if high_watermark is None:
            return
        before = self._high_watermarks.get(node.node_id, 0)
        self._require(
            high_watermark >= before,
            "I3 the high watermark never goes back",
            node,
            now=high_watermark,
            was=before,
        )
        if high_watermark == before:
            return
        self._high_watermarks[node.node_id] = high_watermark
        role = node.replica.role
        if high_watermark > self.committed_end:
            self._check_commit(node, high_watermark)
        if isinstance(role, Leader) and before > 0:
            self._require(
                high_watermark > role.epoch_start_offset,
                "I3 only over a record of the leader's own epoch",
                node,
                high_watermark=high_watermark,
                epoch_start=role.epoch_start_offset,
            )
        begin = max(before, node.log.start_offset)
        self._compare(node, begin, min(high_watermark, self.committed_end))

    def _check_commit(self, node: SimNode, high_watermark: int) -> None:
        """Checks that a majority durably holds what a node reports as committed."""
        nodes, voters = node.world.nodes, node.replica.voters
        durable = {
            v.key.replica_id: nodes[v.key.replica_id].acknowledged_offset
            if nodes[v.key.replica_id].key.matches(v.key)
            else 0
            for v in voters
        }
        holding = [n for n, offset in durable.items() if offset >= high_watermark]
        self._require(
            2 * len(holding) > len(voters),
            "I3 a majority holds everything below the high watermark durably",
            node,
            high_watermark=high_watermark,
            durable=durable,
        )
        role = node.replica.role
        if isinstance(role, Leader):
            self._require(
                high_watermark > role.epoch_start_offset,
                "I3 only over a record of the leader's own epoch",
                node,
                high_watermark=high_watermark,
                epoch_start=role.epoch_start_offset,
            )
        self._read(node, max(self.committed_end, node.log.start_offset), high_watermark, add=True)
        self.committed_end = high_watermark
        self._committed_in[node.replica.epoch] = high_watermark

    def _compare(self, node: SimNode, begin: int, end: int) -> None:
        """Checks I5: records below a node's high watermark (for a new leader: all) equal the
        committed ones.
        """
        begin = max(begin, node.wrong_until)
        if begin < end:
            self._read(node, begin, end, add=False)
            self._compared[node.node_id] = end

    def _read(self, node: SimNode, begin: int, end: int, *, add: bool) -> None:
        offset = begin
        while offset < end:
            records = node.log.read(offset, 1 << 20)
            position = 0
            for batch in decode_batches(records):
                raw = records[position : position + batch.size_bytes]
                position += batch.size_bytes
                if batch.base_offset >= end:
                    return
                offset = batch.next_offset
                if batch.base_offset < begin:
                    continue
                if add:
                    self._committed[batch.base_offset] = (batch.epoch, raw)
                    self._committed_epoch = batch.epoch
                known = self._committed.get(batch.base_offset)
                if known is not None:
                    self._require(
                        known == (batch.epoch, raw),
                        "I5 logs are equal below the high watermark",
                        node,
                        offset=batch.base_offset,
                        epochs=(known[0], batch.epoch),
                    )

    # --- what leaders write ---------------------------------------------------------------------

    def on_written(self, node: SimNode, offset: int) -> None:
        """Checks that no other batch was ever written at this offset in this epoch."""
        batch = node.log.read(offset, 1)
        known = self._written.setdefault((node.replica.epoch, offset), batch)
        self._require(
            known == batch,
            "an (offset, epoch) is written once",
            node,
            offset=offset,
            epoch=node.replica.epoch,
        )

    def on_voters(self, node: SimNode, voters: VoterSet) -> None:
        """Checks that a new voter set differs by one voter at most from the last one. Static voters
        enter the log unchanged, with their directories."""
        before = {v.key for v in node.replica.voters}
        if node.log.kraft_version == 0:
            node.world.seen["static voters into the log"] += 1
            nodes = node.world.nodes
            # as of their last fetches: a voter may have lost its disk since then
            known = {v.key for v in voters if v.key in nodes[v.key.replica_id].keys}
            named = {key.replica_id for key in known}
            before = known | {nodes[k.replica_id].key for k in before if k.replica_id not in named}
        else:
            node.world.seen["voters changed"] += 1
        allowed = 1 if node.log.kraft_version else 0
        self._require(
            len(before ^ {v.key for v in voters}) <= allowed,
            "voters change one at a time",
            node,
            before=node.replica.voters,
            after=voters,
        )

    # --- log and checkpoints (I6, I7, I8) ---------------------------------------------------------

    def on_bounds_saved(self, node: SimNode) -> None:
        """Records the high watermark that the node's disk remembers."""
        self._bounds[node.node_id] = node.log.bounds.saved.high_watermark

    def on_truncate(self, node: SimNode, offset: int) -> None:
        node.world.seen["log truncated"] += 1
        committed = max(node.replica.high_watermark or 0, self._bounds.get(node.node_id, 0))
        self._require(
            offset >= committed,
            "I6 nothing below the high watermark is cut",
            node,
            cut_at=offset,
            high_watermark=committed,
        )

    def on_install(self, node: SimNode, snapshot_id: SnapshotId) -> None:
        node.world.seen["checkpoint fetched"] += 1
        self._require(
            not isinstance(node.replica.role, Leader),
            "I7 a leader loads no checkpoint",
            node,
            snapshot=snapshot_id,
        )

    def on_applied(self, node: SimNode, offset: int, digest: str) -> None:
        known = self._digests.setdefault(offset, digest)
        self._require(known == digest, "I8 the image is the same everywhere", node, offset=offset)

    def on_snapshot_loaded(self, node: SimNode, snapshot_id: SnapshotId, digest: str) -> None:
        known = self._digests.get(snapshot_id.end_offset)
        self._require(
            known is None or known == digest,
            "I8 a checkpoint holds the image of its offset",
            node,
            snapshot=snapshot_id,
        )

    def on_snapshot_frozen(self, node: SimNode, snapshot_id: SnapshotId) -> None:
        if node.log.snapshot_size_bytes(snapshot_id) is None:
            return  # a fetched one overtook it: it is deleted
        data = node.log.read_snapshot_piece(snapshot_id, 0, 1 << 30)
        digest = hashlib.sha256(data).hexdigest()
        known = self._snapshots.setdefault(snapshot_id, digest)
        self._require(known == digest, "I8 checkpoints are equal", node, snapshot=snapshot_id)
