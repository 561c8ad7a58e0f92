"""A partition's log: segments on disk, and what is known of them (Kafka's UnifiedLog).

Single-threaded by design: the node's event loop owns a log. Only `flush` (which takes its
lock for a moment and syncs outside of it) and `purge_deleted` may be called in another
thread. Offsets: log_start_offset <= local_log_start_offset <= recovery_point <=
log_end_offset (the first two differ where older segments live only in the tier),
high_watermark between log_start_offset and log_end_offset.

Append order: validate, roll, one writev, indexes and epochs and producers in memory. When the
write fails nothing has changed. What `flush` returned from is durable; after an unclean stop
everything from the recovery point on is checked again (`commitlog.log.loader`).
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from uuid import UUID

from commitlog.disk.checkpoints import check_topic_id
from commitlog.disk.files import Directory
from commitlog.log import invariants, lookup, retention
from commitlog.log.events import UNTRACKED, ChangedLogs, LogEvents
from commitlog.log.flushing import PendingFlush
from commitlog.log.jitter import roll_jitter_ms
from commitlog.log.loader import load_segments, replay_producers
from commitlog.log.producer_checks import check_producers, find_duplicate
from commitlog.log.swap import swap_files, with_cleaned
from commitlog.log.validation import Prepared, prepare_follower, prepare_leader, split_by_segment
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.indexes import MAX_RELATIVE_OFFSET
from commitlog.segment.producer_state import ProducerStateManager
from commitlog.segment.segment import Segment
from commitlog.types import (
    AbortedTransaction,
    AppendInfo,
    AppendOrigin,
    DeletedSegment,
    FetchResult,
    RecordsList,
    TimestampOffset,
)
from tidemark.config import TopicConfig
from tidemark.errors import FatalError, OffsetOutOfRangeError
from tidemark.records.control import end_transaction
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)
_DAY_MS = 86_400_000


class Log:
    """One partition's log; made by `Log.open`."""

    def __init__(
        self,
        directory: Directory,
        topic_partition: TopicPartition,
        config: TopicConfig,
        topic_id: UUID | None,
        producer_expiration_ms: int,
        events: LogEvents[Log],
    ) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._config = config
        self.epochs = LeaderEpochCache(directory)
        self.producers = ProducerStateManager(directory, producer_expiration_ms)
        self.highest_remote_offset = -1
        self._events = events
        self.changed: ChangedLogs[Log] = UNTRACKED  # `events.unread` once it is open
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._fences = lookup.TimestampFences()
        self._log_start_offset = self._log_end_offset = 0
        self._high_watermark = self._recovery_point = 0
        self._opened_end = -1  # all of it was durable when it was opened
        self._names_changed, self._names_synced = 1, 0  # how often, and up to which change
        self._lock = threading.RLock()  # appends (the loop) against flushes (any thread)
        self._failed: FatalError | None = None
        self._unflushed_messages = self.last_flush_ms = self._now_ms = self.recovered_bytes_cut = 0
        self.deleted_files = retention.DeletedFiles(directory)
        self._jitter_ms = self.truncations = 0  # jitter of the active segment

    @classmethod
    def open(
        cls,
        directory: Directory,
        topic_partition: TopicPartition,
        config: TopicConfig,
        *,
        topic_id: UUID | None = None,
        now_ms: int,
        recovery_point: int | None = None,
        log_start_offset: int = 0,
        clean: bool = False,
        producer_expiration_ms: int = _DAY_MS,
        events: LogEvents[Log] = UNTRACKED,
    ) -> Log:
        """Opens the log in `directory`, or begins one there; recovers it unless `clean`.

        `recovery_point` (None: unknown, see `commitlog.log.loader`) and `log_start_offset` are what
        the checkpoints say. StorageError, InconsistentTopicIdError (the files are of another
        topic).
        """
        topic_id = check_topic_id(directory, topic_partition, topic_id)
        log = cls(directory, topic_partition, config, topic_id, producer_expiration_ms, events)
        log._now_ms = log.last_flush_ms = now_ms
        loaded = load_segments(
            directory, config, log.epochs, recovery_point=recovery_point, clean=clean, now_ms=now_ms
        )
        log.recovered_bytes_cut = loaded.cut_bytes
        log._names_synced = int(clean and not loaded.recovered_segments)
        log._begin(loaded.segments, log_start_offset, now_ms)
        log._recovery_point = log.log_end_offset if clean else 0
        if not clean or loaded.recovered_segments:
            log._recovery_point = min(recovery_point or 0, log.log_end_offset)
            log.flush()
        log._opened_end = log.log_end_offset
        log.changed = events.unread
        return log

    def _begin(self, segments: list[Segment], log_start_offset: int, now_ms: int) -> None:
        """Takes the loaded segments; brings epochs and producers in line with them."""
        if segments and segments[-1].next_offset < log_start_offset:
            for segment in reversed(segments):
                self._rename_deleted(segment, now_ms)
            segments = []
        if not segments:
            segments = [self._new_segment(log_start_offset, now_ms)]
        self._set_segments(segments)
        first, self._log_end_offset = segments[0].base_offset, segments[-1].next_offset
        # Below the first local segment only the tier can have records (KIP-405).
        tiered = self._config.remote_storage_enable
        self._log_start_offset = log_start_offset if tiered else max(log_start_offset, first)
        self._high_watermark = self._log_start_offset
        self.epochs.truncate_from_end(self._log_end_offset)
        self.epochs.truncate_from_start(self._log_start_offset)
        self.producers.remove_stray({segment.base_offset for segment in segments})
        self._reload_producers(now_ms)

    def _reload_producers(self, now_ms: int) -> None:
        """The newest snapshot, and what the batches behind it say."""
        self.producers.reload(self._log_start_offset, self._log_end_offset, now_ms)
        replay_producers(self.producers, self._segments, self._log_end_offset)
        self.producers.on_high_watermark(self._high_watermark)

    # --- what it is

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; new ones are in force with the next append."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        for segment in self._segments:
            segment.config = config
        self.changed.add(self)
        self._jitter_ms = roll_jitter_ms(config, self.topic_partition, self._bases[-1])

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All local segments, oldest first; the last one is active."""
        return tuple(self._segments)

    @property
    def active_segment(self) -> Segment:
        return self._segments[-1]

    @property
    def log_start_offset(self) -> int:
        """The first offset of the partition, wherever its record lies."""
        return self._log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """The first offset on this disk."""
        return max(self._bases[0], self._log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is durable."""
        return self._recovery_point

    @property
    def names_are_durable(self) -> bool:
        """Would a crash leave the files that there are now?"""
        return self._names_changed <= self._names_synced

    @property
    def high_watermark(self) -> int:
        """Everything below is replicated, and shown to consumers."""
        return self._high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or not replicated to its end."""
        unstable = self.producers.first_unstable_offset
        return None if unstable is None else max(unstable, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Everything below is shown to read_committed consumers."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    @property
    def size_bytes(self) -> int:
        """Bytes of records on this disk."""
        return sum(segment.size_bytes for segment in self._segments)

    # --- append

    def append_as_leader(
        self,
        records: RecordsList,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Appends whole batches: gives them offsets and the epoch. All or nothing, in one segment.

        What an idempotent client sent before is not written again: the answer has the offsets of
        its first time, and `duplicate`. Errors of `validation.prepare_leader` and
        `producer_checks.check_producers`; StorageError.
        """
        self._now_ms = now_ms
        prepared = prepare_leader(
            records,
            self._config,
            origin,
            leader_epoch=leader_epoch,
            next_offset=self._log_end_offset,
            now_ms=now_ms,
        )
        if prepared.has_producers:
            duplicate = find_duplicate(prepared, self.producers, self._log_start_offset, origin)
            if duplicate is not None:
                return duplicate
            check_producers(prepared, self.producers, origin)
        with self._lock:
            return self._append(prepared, now_ms)

    def append_as_follower(
        self,
        records: RecordsList,
        now_ms: int | None = None,
        *,
        gaps_allowed: bool = False,
        epoch_max: int | None = None,
    ) -> AppendInfo:
        """Appends batches as the leader has them, epochs too; compaction leaves `gaps_allowed`, and
        `epoch_max` leaves out what begins with a later epoch, or a batch that is cut off.

        CorruptMessageError, UnexpectedAppendOffsetError, StorageError. May fill several segments:
        after an error the log ends where the last whole segment's share did.
        """
        now_ms = self._now_ms if now_ms is None else now_ms
        prepared = prepare_follower(
            records, self._log_end_offset, gaps_allowed=gaps_allowed, epoch_max=epoch_max
        )
        if not prepared.headers:
            end = self._log_end_offset
            return AppendInfo(end, end - 1, -1, -1, self._log_start_offset)
        limit = self._config.segment_bytes
        size = self.active_segment.size_bytes
        pieces = split_by_segment(prepared, limit - size if size else limit, limit)
        with self._lock:
            infos = [self._append(piece, now_ms) for piece in pieces]
        if len(infos) == 1:
            return infos[0]
        return infos[-1]._replace(
            first_offset=infos[0].first_offset,
            max_timestamp_ms=prepared.max_timestamp_ms,
            size_bytes=prepared.size_bytes,
            batches=len(prepared.headers),
        )

    def _append(self, prepared: Prepared, now_ms: int) -> AppendInfo:
        headers, last_offset = prepared.headers, prepared.last_offset
        size_bytes, newest_ms = prepared.size_bytes, prepared.max_timestamp_ms
        segment = self._segments[-1]
        if segment.should_roll(size_bytes, newest_ms, last_offset, now_ms, self._jitter_ms):
            base = self._log_end_offset  # contiguous even where a compacted leader has a gap
            if last_offset - base > MAX_RELATIVE_OFFSET:
                base = headers[0].base_offset
            segment = self._roll(base, now_ms)
        segment.append(prepared.buffers, headers)
        self._log_end_offset = last_offset + 1
        for header in headers:
            if header.partition_leader_epoch != self.epochs.latest_epoch:
                self.epochs.on_batch(header.partition_leader_epoch, header.base_offset)
        if prepared.has_producers:
            self._update_producers(prepared)
        self.producers.end_offset = self._log_end_offset
        self.changed.add(self)
        self._unflushed_messages += self._log_end_offset - headers[0].base_offset
        if self._unflushed_messages >= self._config.flush_messages:
            self.flush()
        first, stamped_ms = headers[0].base_offset, prepared.log_append_time_ms
        start, count = self._log_start_offset, len(headers)
        return AppendInfo(
            first, last_offset, newest_ms, stamped_ms, start, False, size_bytes, count
        )

    def _update_producers(self, prepared: Prepared) -> None:
        for header, source in zip(prepared.headers, prepared.sources, strict=True):
            ended = end_transaction(source, header.position) if header.is_control else None
            aborted = self.producers.update(header, ended)
            if aborted is not None:
                self.active_segment.txn_index.append(aborted)

    # --- read

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> FetchResult:
        """Whole batches of one segment from the one that holds `offset` on: up to `max_bytes`
        (with `min_one`: at least one batch), only batches wholly below `max_offset` (e.g. the
        high watermark). OffsetOutOfRangeError below local_log_start_offset and above
        log_end_offset; CorruptMessageError for damaged files.
        """
        bases, end = self._bases, self._log_end_offset
        if offset > end or offset < self._log_start_offset or offset < bases[0]:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topic_partition} is not within"
                f" {self.local_log_start_offset} to {end}"
            )
        index = bisect_right(bases, offset) - 1
        if offset == end or (max_offset is not None and offset >= max_offset):
            return FetchResult(b"", offset, offset, bases[index], 0)
        while True:
            segment = self._segments[index]
            result = segment.read(offset, max_bytes, max_offset, min_one)
            index += 1  # where compaction left nothing at the end of this segment
            if result.records or result.position < segment.size_bytes or index == len(bases):
                return result

    def segment_for(self, offset: int) -> Segment | None:
        """The local segment that holds `offset`; None where it is not on this disk."""
        is_local = self._bases[0] <= offset < self._log_end_offset
        return self._segments[self._index_of(offset)] if is_local else None

    def _index_of(self, offset: int) -> int:
        return max(0, bisect_right(self._bases, offset) - 1)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) as OffsetForLeaderEpoch answers; None where unknown (KIP-101)."""
        return self.epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch of the record at `offset`."""
        return self.epochs.epoch_for_offset(offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first local record at or after a timestamp (KIP-33); None where there is none."""
        return lookup.offset_for_timestamp(self, self._segments, self._fences, timestamp_ms)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first local record with the greatest timestamp (ListOffsets -3)."""
        return lookup.offset_of_max_timestamp(self)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end): what read_committed filters by."""
        return lookup.aborted_transactions(self, start_offset, end_offset)

    # --- watermarks

    def update_high_watermark(self, offset: int) -> int:
        """Moves the high watermark up to `offset`, at most to the log's end; gives where it is."""
        offset = min(offset, self._log_end_offset)
        if offset > self._high_watermark:
            self._high_watermark = offset
            self.changed.add(self)
            self.producers.on_high_watermark(offset)
        return self._high_watermark

    def increment_log_start_offset(self, offset: int) -> bool:
        """Moves the log's start up to `offset` (DeleteRecords, retention, the tier's expiration).

        OffsetOutOfRangeError above the high watermark. False where it is there already.
        """
        if offset > self._high_watermark:
            raise OffsetOutOfRangeError(
                f"log start {offset} of {self.topic_partition} would pass the high watermark"
                f" {self._high_watermark}"
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self.changed.add(self)
        self.epochs.truncate_from_start(offset)
        return True

    # --- segments

    def roll(self, now_ms: int | None = None) -> Segment:
        """Begins a new active segment at the log's end; an empty active segment stays."""
        with self._lock:
            if self.active_segment.size_bytes == 0:
                return self.active_segment
            return self._roll(self._log_end_offset, self._now_ms if now_ms is None else now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """`rolling` comes first: what it checkpoints tells recovery a gap from a loss."""
        if is_gap := base_offset > self.active_segment.next_offset:
            self.flush()
            self._log_end_offset = self._recovery_point = base_offset
        self._events.rolling(self, is_gap)
        active = self.active_segment
        if active.size_bytes == 0:  # too far from its base for a 32-bit relative offset
            self._remove_newest()
        else:
            self.producers.end_offset = base_offset
            self.producers.take_snapshot()
            active.on_rolled()
        segment = self._new_segment(base_offset, now_ms)
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._jitter_ms = roll_jitter_ms(self._config, self.topic_partition, base_offset)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        self._names_changed += 1
        self.changed.add(self)
        return Segment.create(self.directory, base_offset, self._config, now_ms)

    def _set_segments(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.changed.add(self)
        self._jitter_ms = roll_jitter_ms(self._config, self.topic_partition, self._bases[-1])

    def delete_expired(self, now_ms: int) -> list[DeletedSegment]:
        """Retention by time, size and log start; see `commitlog.log.retention`."""
        self._now_ms = now_ms
        return retention.delete_expired(self, now_ms)

    def drop_oldest(self, count: int, now_ms: int) -> None:
        """Takes the `count` oldest segments out of the log; for `commitlog.log.retention`."""
        assert count < len(self._segments), "the active segment is never deleted"
        with self._lock:
            for segment in self._segments[:count]:
                self._rename_deleted(segment, now_ms)
                self.producers.forget_snapshot(segment.base_offset)
            self._set_segments(self._segments[count:])

    def replace_segments(self, old: list[Segment], new_bases: list[int], now_ms: int) -> None:
        """Puts the cleaned segments of `new_bases` in place of `old`; for `commitlog.cleaner`."""
        with self._lock:
            names = swap_files(self.directory, old, new_bases)
            self.deleted_files.add(now_ms + self._config.file_delete_delay_ms, names)
            self._set_segments(with_cleaned(self._segments, old, new_bases, now_ms))
            for segment in old:
                if segment.base_offset not in new_bases:
                    self.producers.forget_snapshot(segment.base_offset)

    def _rename_deleted(self, segment: Segment, now_ms: int) -> None:
        names = retention.rename_deleted(self.directory, segment)
        self.deleted_files.add(now_ms + self._config.file_delete_delay_ms, [names])
        self._names_changed += 1

    def purge_deleted(self, now_ms: int) -> int:
        """Removes the files whose delete delay is over; returns how many segments went."""
        return self.deleted_files.purge(now_ms)

    # --- truncation

    def truncate_to(self, offset: int) -> bool:
        """Removes the records at and above `offset` (and what shares a batch with it), durably.

        False where the log ends at or below it. Newest segments go first, for a crash between.
        """
        if offset < 0:
            raise OffsetOutOfRangeError(f"offset {offset} is negative")
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(self._log_end_offset)
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset, min(offset, self._log_start_offset))
            return True
        with self._lock:
            self._lower_recovery_point(offset)
            while self._bases[-1] > offset:
                self._remove_newest()
            self.directory.fsync()  # a later segment must not come back behind a cut one
            active = self.active_segment
            active.is_rolled = False
            active.truncate_to(offset)
            self._after_truncation(active.next_offset)
        return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Removes all local records; the next one gets `offset`."""
        with self._lock:
            self._lower_recovery_point(min(offset, self._bases[0]))
            while self._segments:
                self._remove_newest()
            self._set_segments([self._new_segment(offset, self._now_ms)])
            self._log_start_offset = offset if log_start_offset is None else log_start_offset
            self.epochs.clear()
            self.producers.drop_snapshots()
            self._after_truncation(offset)

    def _after_truncation(self, end_offset: int) -> None:
        self._log_end_offset = end_offset
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self._high_watermark = max(min(self._high_watermark, end_offset), self._log_start_offset)
        self._lower_recovery_point(end_offset)  # again: the cut batch may begin below what was said
        self.changed.add(self)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.flush()
        self._reload_producers(self._now_ms)
        self.directory.fsync()

    def _lower_recovery_point(self, offset: int) -> None:
        """Before anything is cut: what is written there again must be checked after a crash."""
        self.truncations += 1
        if offset < self._recovery_point:
            self._recovery_point = offset
            self._events.truncating(self)

    def _remove_newest(self) -> None:
        segment = self._segments.pop()
        self._bases.pop()
        segment.close()
        for name in segment.file_names:
            self.directory.remove(name)
        self._names_changed += 1

    # --- durability

    def move_to(self, place: Callable[[], tuple[Directory, list[Segment]]]) -> None:
        """Goes on where `place` put the same files, durably; for `commitlog.moves`."""
        with self._lock:
            directory, segments = place()
            self.directory = self.epochs.directory = self.producers.directory = directory
            self._set_segments(segments)
            self.deleted_files = retention.DeletedFiles(directory)
            self._recovery_point, self._names_synced = self._log_end_offset, self._names_changed

    def flush(self, offset: int | None = None) -> None:
        """Makes everything below `offset` (default: all) durable. FatalError where that fails."""
        pending = self.prepare_flush(offset)
        if pending is None:
            return
        try:
            pending.run()
        except FatalError as error:
            self._failed = error
            raise
        self.complete_flush(pending)

    def prepare_flush(self, offset: int | None = None) -> PendingFlush | None:
        """What must be synced; None where nothing must. Its `run` may be called in a thread."""
        if self._failed is not None:
            raise self._failed
        with self._lock:
            end = self._log_end_offset if offset is None else min(offset, self._log_end_offset)
            names = self._names_changed if self._names_changed > self._names_synced else 0
            if end <= self._recovery_point and not names:
                return None
            first = self._index_of(self._recovery_point)
            dirty = [segment for segment in self._segments[first:] if segment.base_offset < end]
            return PendingFlush.of(self, dirty, end, names)

    def complete_flush(self, pending: PendingFlush) -> None:
        """Moves the recovery point, after `pending.run`; a truncation meanwhile wins."""
        with self._lock:
            if pending.truncations == self.truncations:
                self._recovery_point = max(self._recovery_point, pending.end_offset)
            self._names_synced = max(self._names_synced, pending.names)
            if pending.end_offset >= self._log_end_offset:
                self._unflushed_messages = 0
        self.changed.add(self)

    def close(self, clean: bool = True) -> None:
        """Gives the files back; a clean close writes and syncs what is new since the log opened."""
        same = self._recovery_point == self._log_end_offset == self._opened_end
        if clean:
            is_new = [self.active_segment.finish_indexes(), self.producers.take_snapshot()]
            self._names_changed += any(is_new) or not same or self.truncations > 0
            self.flush()
        for segment in self._segments:
            segment.close()

    def validate(self) -> None:
        """Asserts what must always hold."""
        invariants.validate(self)
