"""The metadata log of one replica: `__cluster_metadata-0/` with its segments, checkpoints and
quorum-state.

The replica gets a read-only view (`quorum.raft.log_view.LogView`); the edge gets the methods that
carry out effects. Offsets and epochs are exactly the leader's. A log start above 0 always has a
complete checkpoint. A checkpoint above the log end restarts the log there. Source: KIP-595,
KIP-630; Kafka's KafkaRaftLog.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, parse_epochs
from commitlog.disk.files import Directory
from commitlog.log.expiration import delete_expired
from commitlog.log.flushing import PendingFlush
from commitlog.log.opening import open_log
from commitlog.segment.names import LOG_SUFFIX
from quorum.raft.effects import LeaderChange
from quorum.raft.voter_history import VoterHistory
from quorum.raft.voters import CONTROLLER_LISTENER, ReplicaKey, VoterSet
from quorum.replica.appends import MAX_BATCH_BYTES, Appends
from quorum.replica.client import CommittedBatch
from quorum.replica.damaged_start import begin_behind_damage, segment_bases
from quorum.replica.log_bounds import LogBoundsStore
from quorum.replica.log_checks import RestCheck, check_continuation
from quorum.replica.quorum_state import QUORUM_STATE_FILE, QuorumStateStore
from quorum.replica.voters_record import KRAFT_VERSION_MAX, note, quorum_records
from snapshot.cleaning import (
    DAMAGED_SUFFIX,
    SnapshotInfo,
    delete_snapshot,
    first_to_keep,
    remove_leftovers,
    remove_old_damaged,
    set_aside,
)
from snapshot.framing import (
    decode_batches,
    encode_leader_change,
    encode_quorum,
)
from snapshot.names import SnapshotId
from snapshot.reader import FileSnapshotReader, file_name, list_snapshots
from snapshot.transfer import install_part, read_piece
from snapshot.writer import SnapshotWriter
from tidemark.config import TopicConfig
from tidemark.errors import (
    CorruptMessageError,
    FatalError,
    InvalidRequestError,
    StorageError,
)
from tidemark.records import decode_control_records, iter_batches
from tidemark.types import METADATA_TOPIC, ONE_UUID, ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
BOOTSTRAP_SNAPSHOT = SnapshotId(0, 0)
"""The first voters, written by `storage format`. It is local, and never replicated."""
HISTORY_READ_BYTES = 4 << 20


@dataclass(slots=True, frozen=True)
class MetadataLogConfig:
    """metadata.log.* and metadata.max.retention.*. Sizes in bytes, times in ms; -1 disables a
    limit.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    retention_bytes: int = 100 << 20
    retention_ms: int = 604_800_000
    listener_names: tuple[str, ...] = (CONTROLLER_LISTENER,)

    def topic_config(self) -> TopicConfig:
        return TopicConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            max_message_bytes=MAX_BATCH_BYTES,
            retention_ms=-1,  # a later checkpoint makes segments deletable, never their age
            retention_bytes=-1,
            file_delete_delay_ms=0,
        )


class ReplicatedLog:
    """The log and its checkpoints. Owned by one thread, except for methods marked otherwise."""

    def __init__(self, directory: Directory, config: MetadataLogConfig, now_ms: int) -> None:
        """Opens (and recovers) the log in `directory`. Raises StorageError and FatalError."""
        self.directory = directory
        self.config = config
        self.bounds = LogBoundsStore(directory)
        for name in remove_leftovers(directory):
            logger.info("removed the unfinished checkpoint %s/%s", directory.path, name)
        self._snapshots = self._load_snapshots()
        starts = self._noted_epochs()
        latest = self.latest_snapshot
        if latest is not None and (bases := segment_bases(directory)):
            begin_behind_damage(directory, latest, self._rest_check(bases[0], starts))
        self._log = open_log(
            directory,
            METADATA_PARTITION,
            config.topic_config(),
            topic_id=ONE_UUID,
            now_ms=now_ms,
            recovery_point=0,  # the whole log is checked: a gap in it is a loss
        )
        self._cut_at_damage(starts, now_ms)
        self.bounds.opened(max(self.end_offset, latest.end_offset if latest is not None else 0))
        self._align_with_snapshots(now_ms)
        self.bounds.note_durable(self.end_offset)
        self.history = VoterHistory()
        self._rebuild_history()

    # --- opening --------------------------------------------------------------------------------

    def _noted_epochs(self) -> dict[int, int]:
        """Reads leader-epoch-checkpoint before recovery replaces it: epochs by start offset."""
        if not self.directory.exists(LEADER_EPOCH_CHECKPOINT):
            return {}
        try:
            entries = parse_epochs(self.directory.read(LEADER_EPOCH_CHECKPOINT))
        except StorageError:
            return {}
        return {start: epoch for epoch, start in entries}

    def _rest_check(self, begin: int, starts: dict[int, int]) -> RestCheck:
        known = self.directory.exists(QUORUM_STATE_FILE)
        return RestCheck(begin, starts, self.quorum_state.read().epoch if known else None)

    def _cut_at_damage(self, starts: dict[int, int], now_ms: int) -> None:
        """Ends the log before a batch whose offset or epoch cannot be right, which no CRC shows.
        The segments from there on are kept as `.damaged` copies."""
        offset = self._log.segments[0].base_offset
        check, damage = self._rest_check(offset, starts), None
        while damage is None and offset < self._log.log_end_offset:
            records = self._log.read(max(offset, self._log.log_start_offset), HISTORY_READ_BYTES)
            damage, offset = check.damage_in(records.records), records.next_offset
        damage = damage or check.damage_at_end()
        if damage is None:
            return
        end_offset, reason = damage
        logger.error(
            "%s: the batch at offset %d is damaged (%s): the log ends there",
            self.directory.path,
            end_offset,
            reason,
        )
        remove_old_damaged(self.directory, LOG_SUFFIX)
        for segment in self._log.segments:
            if segment.next_offset > end_offset:
                data = self.directory.read(segment.log_file)
                self.directory.write_atomic(f"{segment.log_file}{DAMAGED_SUFFIX}", data)
        self._log.truncate_to(end_offset, now_ms)

    def _load_snapshots(self) -> dict[SnapshotId, SnapshotInfo]:
        """Returns the complete checkpoints, oldest first. A damaged one is set aside."""
        found: dict[SnapshotId, SnapshotInfo] = {}
        for snapshot_id in list_snapshots(self.directory):
            try:
                reader = FileSnapshotReader(self.directory, snapshot_id)
                reader.verify()
            except CorruptMessageError as error:
                logger.error("not used: %s", error)
                if snapshot_id != BOOTSTRAP_SNAPSHOT:  # without that one the voters are unknown
                    set_aside(self.directory, snapshot_id)
                continue
            if snapshot_id.end_offset > 0:  # (0, 0) is the bootstrap checkpoint: never replicated
                found[snapshot_id] = self._info(reader)
        return found

    @staticmethod
    def _info(reader: FileSnapshotReader) -> SnapshotInfo:
        return SnapshotInfo(reader.id, reader.size_bytes, reader.last_contained_log_timestamp_ms)

    def _align_with_snapshots(self, now_ms: int) -> None:
        """Makes log and checkpoints consistent after a crash."""
        latest = self.latest_snapshot
        if latest is not None and self._is_behind(latest):
            self._restart_log_at(latest, now_ms)
            return
        base = max(self._log.segments[0].base_offset, self._log.log_start_offset)
        if base == 0:
            return
        start = next((s for s in self._snapshots if s.end_offset >= base), None)
        if start is None:
            raise FatalError(
                f"{self.directory.path}: the log begins at offset {base}, but no whole checkpoint "
                "covers what came before. Restore a checkpoint from another controller, or empty "
                "this directory and let the node fetch everything anew"
            )
        self._delete_snapshots_before(start)
        self._raise_log_start(start)

    def _is_behind(self, snapshot_id: SnapshotId) -> bool:
        """Whether the log lacks records of the checkpoint, or holds other records there."""
        if self._log.log_end_offset < snapshot_id.end_offset:
            return True
        if self._log.segments[0].base_offset >= snapshot_id.end_offset:
            return False
        epoch = self._log.epochs.epoch_for_offset(snapshot_id.end_offset - 1)
        return epoch is not None and epoch != snapshot_id.epoch

    def _restart_log_at(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        self.bounds.lower_to(snapshot_id.end_offset)
        self._log.truncate_fully_and_start_at(snapshot_id.end_offset, now_ms)
        self._log.update_high_watermark(snapshot_id.end_offset)
        self._delete_snapshots_before(snapshot_id)

    def _delete_snapshots_before(self, snapshot_id: SnapshotId) -> None:
        for older in [s for s in self._snapshots if s < snapshot_id]:
            delete_snapshot(self.directory, older)
            del self._snapshots[older]

    def _rebuild_history(self) -> None:
        """Reads the voters from the checkpoint at the log start and all later records."""
        self.history = VoterHistory()
        start = self.start_offset
        base = self.earliest_snapshot if start > 0 else BOOTSTRAP_SNAPSHOT
        if base is not None and file_name(self.directory, base) is not None:
            for message in FileSnapshotReader(self.directory, base).quorum:
                note(self.history, base.end_offset - 1, message, self.config.listener_names)
        offset = start
        while offset < self.end_offset:
            records = self._log.read(offset, HISTORY_READ_BYTES).records
            offset = self._note_quorum(records, start)

    def _note_quorum(self, records: bytes | memoryview, start_offset: int) -> int:
        """Applies the quorum records of control batches; returns the offset after the last one."""
        following = start_offset
        for position, header in iter_batches(records):
            following = header.next_offset
            if header.is_control:
                for record in decode_control_records(records, position):
                    if record.offset >= start_offset:
                        names = self.config.listener_names
                        note(self.history, record.offset, record.message, names)
        return following

    # --- view -----------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def durable_offset(self) -> int:
        """Everything below is durable."""
        return self._log.recovery_point

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, or of the checkpoint where the log begins; 0 if empty."""
        latest = self.latest_snapshot
        if latest is not None and latest.end_offset == self.end_offset:
            return latest.epoch
        return self._log.epochs.latest_epoch or 0

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and its end offset; the log end if beyond all
        epochs.
        """
        found = self._log.end_offset_for_epoch(epoch)
        earliest = self.earliest_snapshot
        if earliest is not None and self.start_offset == earliest.end_offset:
            first = self._log.epochs.entries()
            if epoch == earliest.epoch and (not first or first[0][0] > epoch):
                return earliest.epoch, earliest.end_offset
        if found is None:
            return self.last_epoch, self.end_offset
        return found

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return next(iter(self._snapshots), None)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return next(reversed(self._snapshots), None)

    @property
    def voters(self) -> VoterSet | None:
        """The voters of the newest record, committed or not; None if the log has none."""
        return self.history.voters

    @property
    def voters_offset(self) -> int | None:
        return self.history.voters_offset

    def was_voter_since(self, key: ReplicaKey, end_offset: int) -> bool:
        return self.history.was_voter_since(key, end_offset)

    @property
    def kraft_version(self) -> int:
        return self.history.kraft_version

    def snapshot_size_bytes(self, snapshot: SnapshotId) -> int | None:
        info = self._snapshots.get(snapshot)
        return None if info is None else info.size_bytes

    @property
    def quorum_state(self) -> QuorumStateStore:
        return QuorumStateStore(self.directory)

    # --- appending ------------------------------------------------------------------------------

    def append_values(self, values: Sequence[bytes], epoch: int, timestamp_ms: int) -> int:
        """Appends one batch as leader and returns its last offset. Raises RecordListTooLargeError
        beyond 8 MiB.
        """
        appends = Appends()
        last_offset = appends.add(values, epoch, self.end_offset, timestamp_ms)
        for batch in appends.take():
            self.append_batch(batch, timestamp_ms)
        return last_offset

    def append_batch(self, batch: bytes, now_ms: int) -> int:
        """Appends a data batch encoded for the log end, as leader; returns its last offset."""
        return self._append(batch, now_ms)

    def append_leader_change(self, change: LeaderChange, timestamp_ms: int) -> int:
        """Appends the control record that opens the leader's epoch."""
        return self._append(
            encode_leader_change(
                self.end_offset,
                change.epoch,
                timestamp_ms,
                leader_id=change.leader_id,
                voters=change.voters,
                granting_voters=change.granting_voters,
                directory_ids=self._directory_ids(),
                quorum=quorum_records(self.kraft_version, change.first_voters),
            ),
            timestamp_ms,
        )

    def _directory_ids(self) -> dict[int, UUID] | None:
        if self.kraft_version == 0 or self.voters is None:
            return None
        return {v.key.replica_id: v.key.directory_id or ZERO_UUID for v in self.voters}

    def append_voters(self, voters: VoterSet, epoch: int, timestamp_ms: int) -> int:
        """Appends a Voters record as leader; the set is in force from now on. In a log with static
        voters the first one comes in one batch with the kraft.version that enables it."""
        messages = quorum_records(KRAFT_VERSION_MAX, voters)
        if self.kraft_version > 0:
            messages = messages[1:]
        batch = encode_quorum(self.end_offset, epoch, timestamp_ms, messages)
        return self._append(batch, timestamp_ms)

    def append_fetched(self, records: bytes, leader_epoch: int, now_ms: int) -> int:
        """Appends the batches of the leader of this epoch unchanged. Raises CorruptMessageError if
        they do not continue the log (`quorum.replica.log_checks`), and appends none of them.
        """
        check_continuation(records, self.end_offset, self.last_epoch, leader_epoch)
        return self._append(records, now_ms)

    def _append(self, records: bytes, now_ms: int) -> int:
        begin = self.end_offset
        last_offset = self._log.append_as_follower(records, now_ms).last_offset
        self._note_quorum(records, begin)
        return last_offset

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncates the log to `offset`; the removed records were never committed. Raises
        CorruptMessageError if those before are damaged: a wrong offset would end the log there."""
        if self.start_offset < offset < self.end_offset:
            self._log.read(offset - 1, 1)
        self.bounds.lower_to(offset)
        self._log.truncate_to(offset, now_ms)
        self.history.truncate_to(offset)

    def prepare_flush(self) -> tuple[int, PendingFlush | None]:
        """Returns the log end, and the fsync to `run` in any thread that makes everything below it
        durable.
        """
        return self.end_offset, self._log.prepare_flush()

    def complete_flush(self, pending: PendingFlush) -> None:
        """Completes a flush after `pending.run()`, on the owner thread."""
        self._log.complete_flush(pending)
        self.bounds.note_durable(self._log.recovery_point)

    def flush(self) -> int:
        """Syncs at once and returns the durable end offset. Raises FatalError."""
        end_offset, pending = self.prepare_flush()
        if pending is not None:
            pending.run()
            self.complete_flush(pending)
        return end_offset

    def update_high_watermark(self, offset: int) -> None:
        self._log.update_high_watermark(offset)
        self.bounds.note_committed(offset)

    # --- reading --------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Returns whole batches from `offset` on, at least one. Raises OffsetOutOfRangeError."""
        return bytes(self._log.read(offset, max_bytes).records)

    def read_committed(
        self, offset: int, end_offset: int, max_bytes: int
    ) -> tuple[list[CommittedBatch], int]:
        """Returns data batches of [offset, end_offset), about `max_bytes`, and the next offset to
        read.
        """
        found: list[CommittedBatch] = []
        following = offset
        for batch in decode_batches(
            self._log.read(offset, max_bytes, max_offset=end_offset).records
        ):
            following = batch.next_offset
            if batch.values is not None and batch.base_offset >= offset:
                found.append(
                    CommittedBatch(
                        batch.base_offset,
                        batch.next_offset - 1,
                        batch.epoch,
                        batch.timestamp_ms,
                        batch.values,
                        batch.size_bytes,
                    )
                )
        return found, following

    # --- checkpoints ----------------------------------------------------------------------------

    def snapshot_id_for(self, end_offset: int, high_watermark: int | None) -> SnapshotId | None:
        """Returns the id of a checkpoint at `end_offset`; None if there is one at or above it. One
        that is set aside is made again.

        Raises InvalidRequestError if the offset is beyond the high watermark, at or below the log
        start, or not a batch boundary.
        """
        latest = self.latest_snapshot
        if latest is not None and latest.end_offset >= end_offset:
            is_lost = file_name(self.directory, latest) is None
            return latest if is_lost and latest.end_offset == end_offset else None
        if not self.start_offset < end_offset <= (high_watermark or 0):
            raise InvalidRequestError(
                f"a checkpoint at {end_offset} is not within ({self.start_offset}, "
                f"{high_watermark}], log start and high watermark"
            )
        if end_offset < self.end_offset:
            batch_start = self._log.read(end_offset, 1).base_offset
            if batch_start != end_offset:
                raise InvalidRequestError(
                    f"a checkpoint at {end_offset} would cut the batch at {batch_start}"
                )
        epoch = self._log.epochs.epoch_for_offset(end_offset - 1)
        return SnapshotId(end_offset, epoch or 0)

    def last_timestamp_ms(self, end_offset: int) -> int:
        """Append time of the last record before `end_offset`."""
        latest = self.latest_snapshot
        if latest is not None and latest.end_offset == end_offset:
            return self._snapshots[latest].timestamp_ms
        return decode_batches(self._log.read(end_offset - 1, 1).records)[0].timestamp_ms

    def snapshot_writer(self, snapshot_id: SnapshotId, timestamp_ms: int) -> SnapshotWriter:
        """Starts a checkpoint. After its `freeze`, `snapshot_frozen` registers it."""
        quorum = quorum_records(*self.history.at(snapshot_id.end_offset))
        return SnapshotWriter(self.directory, snapshot_id, timestamp_ms, quorum=quorum)

    def snapshot_frozen(self, snapshot_id: SnapshotId) -> None:
        """Registers a durable checkpoint of this replica's own state. It is deleted if a fetched
        one has overtaken it: the earliest checkpoint of a log is the one where the log begins."""
        if snapshot_id.end_offset < self.start_offset:
            delete_snapshot(self.directory, snapshot_id)
            return
        self._snapshots[snapshot_id] = self._info(FileSnapshotReader(self.directory, snapshot_id))
        self._snapshots = dict(sorted(self._snapshots.items()))

    def open_snapshot(self, snapshot_id: SnapshotId) -> FileSnapshotReader:
        return FileSnapshotReader(self.directory, snapshot_id)

    def read_snapshot_piece(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
        return read_piece(self.directory, snapshot, position, max_bytes)

    def drop_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Sets a damaged checkpoint aside. Returns False if a new one must take its place: the log
        begins there, and no other one is here. It stays the log's beginning until then."""
        if snapshot_id not in self._snapshots:
            return True
        set_aside(self.directory, snapshot_id)
        if self.start_offset == 0 or snapshot_id != self.earliest_snapshot:
            del self._snapshots[snapshot_id]
            return True
        later = next((s for s in self._snapshots if s > snapshot_id), None)
        if later is not None:
            self._begin_at(later)
        return later is not None

    def freeze_fetched_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Verifies, syncs and renames a fetched checkpoint. May run in any thread. Raises
        CorruptMessageError and FatalError.
        """
        install_part(self.directory, snapshot_id)

    def start_at_fetched_snapshot(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        """Restarts the log at a frozen, fetched checkpoint, unless the log holds all of it."""
        self.snapshot_frozen(snapshot_id)
        if self._is_behind(snapshot_id):
            self._restart_log_at(snapshot_id, now_ms)
            self._rebuild_history()

    # --- cleaning -------------------------------------------------------------------------------

    def clean(self, now_ms: int, begin_at: SnapshotId | None = None) -> bool:
        """Moves the log start to a later checkpoint if the log is too large or too old, or to
        `begin_at`; returns whether it did.

        If a step raises DiskError, the log still begins at its earliest checkpoint, and a later
        call deletes the rest. Steps that need disk space come last.
        """
        keep = begin_at or first_to_keep(
            list(self._snapshots.values()),
            self._log.size_bytes,
            retention_bytes=self.config.retention_bytes,
            retention_ms=self.config.retention_ms,
            now_ms=now_ms,
        )
        moves = keep is not None and keep.end_offset > self.start_offset
        if keep is not None and moves:
            self._begin_at(keep)
        delete_expired(self._log, now_ms)
        self._log.deleted_files.purge(now_ms)
        return moves

    def _begin_at(self, keep: SnapshotId) -> None:
        try:
            self._delete_snapshots_before(keep)
        finally:
            earliest = next(iter(self._snapshots))
            self.history.drop_before(earliest.end_offset)
            self._raise_log_start(earliest)

    def _raise_log_start(self, snapshot_id: SnapshotId) -> None:
        if snapshot_id.end_offset > self._log.log_start_offset:
            self._log.update_high_watermark(max(self._log.high_watermark, snapshot_id.end_offset))
            self._log.increment_log_start_offset(snapshot_id.end_offset)

    def close(self) -> None:
        """Syncs and closes the log. A simulated crash omits this call."""
        self._log.close()
        self.bounds.note_durable(self.end_offset)
        self.bounds.save()
