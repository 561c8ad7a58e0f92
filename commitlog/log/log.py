"""A partition's log: its segments, and the state derived from them (Kafka's UnifiedLog).

The node's event loop owns a log. Only `flush` and `deleted_files` may be used in other threads;
`flush` holds the lock for a moment and syncs without it. Offsets: log_start_offset <=
local_log_start_offset <= recovery_point <= log_end_offset. The first two differ if older segments
are only in the tier. The high watermark lies between log start and log end.

An append validates, rolls, writes with one writev, then updates indexes, epochs and producers in
memory; a failed write changes nothing. After `flush` returns, its records are durable. After an
unclean stop everything from the recovery point on is checked (`commitlog.log.loader`).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from commitlog.disk.files import Directory
from commitlog.log import continuity, lookup
from commitlog.log.events import UNTRACKED, ChangedLogs, LogEvents
from commitlog.log.flushing import Durability, PendingFlush
from commitlog.log.loader import replay_producers
from commitlog.log.producer_checks import check_producers, find_duplicate
from commitlog.log.restart import Restart
from commitlog.log.validation import Prepared, prepare_follower, prepare_leader, split_by_segment
from commitlog.segment.indexes import MAX_RELATIVE_OFFSET
from commitlog.segment.page_cache import uncached
from commitlog.segment.producer_replay import NO_PRODUCERS
from commitlog.segment.segment import Segment
from commitlog.types import (
    AbortedTransaction,
    AppendInfo,
    AppendOrigin,
    FetchResult,
    NotCachedError,
    RecordsList,
    TimestampOffset,
)
from tidemark.config import TopicConfig
from tidemark.errors import OffsetOutOfRangeError
from tidemark.records.control import end_transaction

Work = Iterator[Callable[[], None]]


class Log:
    """One partition's log; made by `commitlog.log.opening.open_log`."""

    def __init__(
        self, durability: Durability, topic_id: UUID | None, start: int, events: LogEvents[Log]
    ) -> None:
        self.durability = durability
        self.epochs, self.producers = durability.epochs, durability.producers
        self._segments = durability.segments
        self.deleted_files = self._segments.deleted_files
        self.topic_partition, self.topic_id = self._segments.topic_partition, topic_id
        self._config = self._segments.config
        self._log_start_offset = self._high_watermark = start
        self._log_end_offset = self._segments.active.next_offset
        self.recovered_bytes_cut = 0
        self.highest_remote_offset = -1
        self._lock = threading.RLock()  # of appends (the loop) and flushes (any thread)
        self._events = events
        self.changed: ChangedLogs[Log] = UNTRACKED  # `events.unread` once it is open

    # --- views

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; new ones take effect with the next append."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self._segments.configure(config)
        self.changed.add(self)

    @property
    def directory(self) -> Directory:
        """The directory that holds the files."""
        return self._segments.directory

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All local segments, oldest first; the last one is active."""
        return tuple(self._segments.all)

    @property
    def active_segment(self) -> Segment:
        return self._segments.active

    @property
    def log_start_offset(self) -> int:
        """The first offset of the partition, local or in the tier."""
        return self._log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """The first offset on this disk."""
        return max(self._segments.bases[0], self._log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log_end_offset

    @property
    def recovery_point(self) -> int:
        """Records below this offset are durable."""
        return self.durability.recovery_point

    @property
    def high_watermark(self) -> int:
        """Records below this offset are replicated, and visible to consumers."""
        return self._high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose end is not replicated yet."""
        unstable = self.producers.first_unstable_offset
        return None if unstable is None else max(unstable, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Records below this offset are visible to read_committed consumers."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    @property
    def size_bytes(self) -> int:
        """Bytes of records on this disk."""
        return self._segments.size_bytes

    # --- append

    def append_as_leader(
        self,
        records: RecordsList,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verified: bool = False,
    ) -> AppendInfo:
        """Appends whole batches, all or none, to one segment; assigns offsets and the leader epoch.

        A client's transactional batch needs `verified`: its coordinator knows the transaction
        (KIP-890). A batch that an idempotent producer sends again is not written: the result has
        the offsets of the first time, and `duplicate`. Raises the errors of
        `validation.prepare_leader` and `producer_checks.check_producers`, and StorageError.
        """
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
            check_producers(prepared, self.producers, origin, verified=verified)
        with self._lock:
            return self._append(prepared, now_ms)

    def append_as_follower(
        self,
        records: RecordsList,
        now_ms: int,
        *,
        gaps_allowed: bool = False,
        epoch_max: int | None = None,
        end_offset: int | None = None,
    ) -> AppendInfo:
        """Appends the leader's batches unchanged; `gaps_allowed` for those that compaction leaves.
        With `epoch_max` the append ends before a later epoch, or an incomplete batch. `end_offset`
        is where the batches end by the leader's word: no CRC covers the offset of the last one.

        May fill several segments; an error keeps those filled before it. Raises
        CorruptMessageError, UnexpectedAppendOffsetError, StorageError.
        """
        prepared = prepare_follower(
            records,
            self._log_end_offset,
            gaps_allowed=gaps_allowed,
            epoch_max=epoch_max,
            end_offset=end_offset,
        )
        used_bytes = self.active_segment.size_bytes
        pieces = split_by_segment(prepared, used_bytes, self._config.segment_bytes)
        with self._lock:
            infos = [self._append(piece, now_ms) for piece in pieces]
        return AppendInfo.of_all(infos, self._log_end_offset, self._log_start_offset)

    def _append(self, prepared: Prepared, now_ms: int) -> AppendInfo:
        if self.durability.restart is not None:
            self._finish_restart()
        headers, last_offset = prepared.headers, prepared.last_offset
        size_bytes, newest_ms = prepared.size_bytes, prepared.max_timestamp_ms
        segments = self._segments
        segment = segments.all[-1]
        if segment.should_roll(size_bytes, newest_ms, last_offset, now_ms, segments.jitter_ms):
            base = self._log_end_offset  # contiguous even if a compacted leader has a gap
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
        first, stamp_ms = headers[0].base_offset, prepared.log_append_time_ms
        start, count = self._log_start_offset, len(headers)
        return AppendInfo(first, last_offset, newest_ms, stamp_ms, start, False, size_bytes, count)

    def _update_producers(self, prepared: Prepared) -> None:
        for header, source in zip(prepared.headers, prepared.sources, strict=True):
            ended = end_transaction(source, header.position) if header.is_control else None
            aborted = self.producers.update(header, ended)
            if aborted is not None:
                self.active_segment.txn_index.append(aborted)

    # --- read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        max_offset: int | None = None,
        min_one: bool = True,
        waits: bool = True,
    ) -> FetchResult:
        """Returns whole batches of one segment, from the one that holds `offset` on: at most
        `max_bytes` (with `min_one` at least one batch), all below `max_offset`. Raises
        CorruptLogError, and OffsetOutOfRangeError if `offset` is not on this disk. Unless it
        `waits` for the disk, raises NotCachedError where it would.
        """
        segments, bases, end = self._segments.all, self._segments.bases, self._log_end_offset
        if offset > end or offset < self._log_start_offset or offset < bases[0]:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topic_partition} is not within"
                f" {self.local_log_start_offset} to {end}"
            )
        index = bisect_right(bases, offset) - 1
        if offset == end or (max_offset is not None and offset >= max_offset):
            return FetchResult(b"", offset, offset, bases[index], 0)
        while True:
            segment, index = segments[index], index + 1
            if not waits:
                load = uncached(segment, offset, max_bytes, index == len(bases))
                if load is not None:
                    raise NotCachedError(load)
            following = end if index == len(bases) else bases[index]
            result = segment.read(offset, max_bytes, max_offset, min_one, following)
            if result.records:
                if not self.epochs.agrees_with(result):
                    continuity.check_epochs(segments, index - 1, result, self.epochs)
                return result
            if result.position < segment.size_bytes:
                return result
            if index == len(bases):
                return result
            continuity.check_end(segment, segments[index])

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Returns (epoch, end offset) as in OffsetForLeaderEpoch; None if unknown (KIP-101)."""
        return self.epochs.end_offset_for(epoch, self._log_end_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Returns the first local record at or after a timestamp (KIP-33), or None."""
        start, end = self.local_log_start_offset, self._log_end_offset
        return lookup.offset_for_timestamp(self._segments, self.epochs, start, end, timestamp_ms)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Returns the first local record with the greatest timestamp (ListOffsets -3)."""
        return lookup.offset_of_max_timestamp(self._segments, self._log_end_offset)

    def aborted_transactions(
        self, start_offset: int, end_offset: int, *, paced: bool = False
    ) -> list[AbortedTransaction]:
        """Returns the aborted transactions with records in [start, end), for read_committed. A loop
        asks `paced`, and again after each TransactionsUncheckedError: an index of before the
        restart is checked first.
        """
        return lookup.aborted_transactions(self._segments, start_offset, end_offset, paced=paced)

    # --- offsets that move

    def update_high_watermark(self, offset: int) -> int:
        """Advances the high watermark to `offset`, at most to the log end; returns it."""
        offset = min(offset, self._log_end_offset)
        if offset > self._high_watermark:
            self._high_watermark = offset
            self.changed.add(self)
            self.producers.on_high_watermark(offset)
        return self._high_watermark

    def increment_log_start_offset(self, offset: int) -> bool:
        """Advances the log start to `offset` (DeleteRecords, retention, expiration of the tier).

        False if it is there already. Raises OffsetOutOfRangeError above the high watermark.
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

    # --- segments and truncation

    def roll(self, now_ms: int) -> Segment:
        """Creates an active segment at the log end, unless the present one is empty."""
        with self._lock:
            is_empty = self.active_segment.size_bytes == 0
            return self.active_segment if is_empty else self._roll(self._log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Calls `rolling` first: its checkpoint tells recovery a gap from a loss."""
        active = self.active_segment
        if is_gap := base_offset > active.next_offset:
            self.flush()
            self._log_end_offset = self.durability.recovery_point = base_offset
        self._events.rolling(self, is_gap)
        if active.size_bytes == 0:  # too far from its base for a 32-bit relative offset
            segment = self._segments.begin_in_place_of_newest(base_offset, now_ms)
        else:
            self.producers.end_offset = base_offset
            self.producers.take_snapshot()
            active.on_rolled()
            segment = self._segments.begin(base_offset, now_ms)
        self.changed.add(self)
        return segment

    def drop_oldest(self, count: int, now_ms: int) -> None:
        """Deletes the `count` oldest segments; for `commitlog.log.expiration`."""
        with self._lock:
            self._segments.delete_oldest(count, now_ms)
            self.changed.add(self)

    def replace_segments(self, old: list[Segment], new_bases: list[int], now_ms: int) -> None:
        """Replaces `old` by the cleaned segments of `new_bases`; for `commitlog.cleaner`."""
        with self._lock:
            self._segments.swap_in(old, new_bases, now_ms)
            self.changed.add(self)

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Durably removes the records from `offset` on, and the batch that holds it.

        Newest segments go first, in case of a crash. False if the log ends at or below `offset`.
        Raises CorruptLogError, and changes nothing, if damage hides where `offset` is.
        """
        end = self._log_end_offset
        _do(truncation(self, offset, now_ms))
        return self._log_end_offset < end

    def _truncation(self, offset: int, now_ms: int) -> Work:
        if offset < 0:
            raise OffsetOutOfRangeError(f"offset {offset} is negative")
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(self._log_end_offset)
            return
        if offset < self._segments.bases[0]:
            start, lineage = min(offset, self._log_start_offset), self.epochs.entries()
            yield from self._restart(
                offset, now_ms, Restart.of(offset, start, lineage, NO_PRODUCERS)
            )
            return
        cut = self._segments.find_cut(offset)
        self._finish_restart()
        yield from self._lowering(cut.next_offset)
        with self._lock:
            crosses = self._is_within(offset) and self._segments.drop_behind(cut)
            if crosses:
                self._after_truncation(self.active_segment.next_offset, now_ms)
        if crosses:
            yield self.directory.fsync  # else a crash could leave a gap
            yield from self._lowering(cut.next_offset)
        with self._lock:
            if not self._is_within(offset):
                return
            self._segments.cut(self._segments.find_cut(offset))
            self._after_truncation(self.active_segment.next_offset, now_ms)
            names = [self.active_segment.log_file]
        yield partial(self.durability.sync, names)

    def _is_within(self, offset: int) -> bool:
        """Whether a truncation that waited still has records to remove, and some to keep."""
        return self._segments.bases[0] <= offset < self._log_end_offset

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int, restart: Restart | None = None
    ) -> None:
        """Removes all local records; the next one gets `offset`, which is the log start as well.

        With `restart` log start, epochs and producers are those of its state, after a crash at any
        point, too (`commitlog.log.restart`).
        """
        _do(restarting(self, offset, now_ms, restart))

    def _restart(self, offset: int, now_ms: int, restart: Restart | None) -> Work:
        yield from self._lowering(0)  # a crash may leave no segment at all
        if restart is not None:
            yield partial(self.durability.begin_restart, restart)
        else:
            self._finish_restart()
        yield from self._lowering(0)
        with self._lock:
            try:
                self._segments.restart_at(offset, now_ms)
            except BaseException:
                self._after_restart(offset, now_ms, restart)
                self.durability.sync(())
                raise
            self._after_restart(offset, now_ms, restart)
        yield partial(self.durability.sync, ())
        yield self._finish_restart

    def _after_restart(self, offset: int, now_ms: int, restart: Restart | None) -> None:
        """Takes over the new state; without a file, too: the old records are gone."""
        self._log_start_offset = restart.log_start_offset if restart else offset
        self.epochs.replace(restart.epochs if restart else ())
        self.epochs.truncate_from_start(self._log_start_offset)
        self.producers.drop_snapshots()
        self._after_truncation(offset, now_ms)

    def _finish_restart(self) -> None:
        """Ends a restart, before the next change of the log's files."""
        with self._lock:
            if self.durability.restart is not None:
                self.durability.write_restart()
                self._events.restarted(self)
                self.durability.end_restart()

    def _after_truncation(self, end_offset: int, now_ms: int) -> None:
        self._log_end_offset = end_offset
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self._high_watermark = max(min(self._high_watermark, end_offset), self._log_start_offset)
        self.durability.lower(end_offset)
        self.changed.add(self)
        self.epochs.truncate_from_end(end_offset)
        if self.durability.restart is not None:
            self.producers.install(self.durability.restart.producer_snapshot, end_offset)
        else:
            self.producers.reload(self._log_start_offset, end_offset, now_ms)
            replay_producers(self.producers, self._segments.all, end_offset)
        self.producers.on_high_watermark(self._high_watermark)

    def _lowering(self, offset: int) -> Work:
        """Precedes a truncation: later records there must be checked after a crash."""
        while self.durability.lower(offset):
            yield partial(self._events.truncating, self)
            self._events.cut(self)

    # --- durability

    def move_to(self, place: Callable[[], tuple[Directory, list[Segment]]]) -> None:
        """Continues with a durable copy of the files, made by `place`; for `commitlog.moves`."""
        with self._lock:
            self._finish_restart()
            self.durability.move_to(*place(), self._log_end_offset)
            self.changed.add(self)

    def flush(self, offset: int | None = None) -> None:
        """Makes records below `offset` (default: all) durable. Raises FatalError if that fails."""
        pending = self.prepare_flush(offset)
        if pending is not None:
            self.durability.run(pending)
            self.complete_flush(pending)

    def prepare_flush(self, offset: int | None = None) -> PendingFlush | None:
        """Returns what to sync, or None; its `run` may be called in another thread."""
        with self._lock:
            end = self._log_end_offset if offset is None else min(offset, self._log_end_offset)
            return self.durability.prepare(end)

    def complete_flush(self, pending: PendingFlush) -> None:
        """Advances the recovery point after `pending.run`, but not past a truncation."""
        with self._lock:
            self.durability.complete(pending)
        self.changed.add(self)

    def close(self, clean: bool = True) -> None:
        """Closes the files; a clean close also writes and syncs changes since the log opened."""
        same = self.durability.is_as_opened(self._log_end_offset)
        if clean:
            is_new = [self.active_segment.finish_indexes(), self.producers.take_snapshot()]
            self._segments.name_changes += any(is_new) or not same
            self.flush()
        self.epochs.close()
        for segment in self._segments.all:
            segment.close()

    def validate(self) -> None:
        """Asserts the invariants of the log."""
        self._segments.validate()
        assert self._log_start_offset <= self._log_end_offset or not self.size_bytes
        for offset in (self.recovery_point, self._high_watermark, self.active_segment.next_offset):
            assert offset <= self._log_end_offset
        self.epochs.validate()
        self.producers.validate()


def truncation(log: Log, offset: int, now_ms: int) -> Work:
    """The steps of `Log.truncate_to`. The caller does each work that it yields, in any thread,
    before it takes the next step. Meanwhile the log may be used, or the truncation given up.
    """
    return log._truncation(offset, now_ms)


def restarting(log: Log, offset: int, now_ms: int, restart: Restart | None = None) -> Work:
    """The steps of `Log.truncate_fully_and_start_at`, as `truncation` has them."""
    return log._restart(offset, now_ms, restart)


def _do(steps: Work) -> None:
    for work in steps:
        work()
