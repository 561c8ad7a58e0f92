"""Opens the segments of a log, and repairs what an unclean stop left (Kafka's LogLoader).

1. Leftovers go: `.deleted`, `.cleaned`, `.tmp`; a finished `.swap` takes its place; index files
   without a log go.
2. After an unclean stop every segment from the recovery point on is checked batch by batch (shape,
   CRC, offsets that rise) and its indexes rebuilt; at the first bad byte the log ends: the file is
   cut there and all later segments are removed. So does it at a gap that is a loss (below).
3. Even after a clean stop the last segment's end is looked at: a torn tail is cut.
Leader epochs above the recovery point are taken from the batches again.

Gaps between segments. A disk that loses power may keep a later segment and lose the un-synced end
of the one before it, at a batch's end or whole: there the log must end, or the replica would serve
a hole in place of acknowledged records that its peers have (Kafka does not look, and serves it).
But compaction leaves gaps, too, and to cut there loses what was acknowledged; and the topic's
present cleanup.policy does not tell, for it may have been compacted before. What tells is what the
log's own writes guarantee:

- A segment begins where the one before it ends. So does a cleaned one: a cleaned range keeps its
  last batch, and where it fills several segments, each begins where the one before it ends.
- But where an offset is too far from its segment's base for an index entry (2^31), the new segment
  begins at the batch. What lies before it is synced then, and the recovery point is moved there and
  checkpointed, before the segment is made (`Log.roll`).
- A log has an entry in the checkpoint of recovery points before it has a second segment.

So a gap is a loss where it begins at or above a recovery point that is known; below, all was
durable, and nothing is missing. Where the checkpoint names no recovery point, the files are not of
our writing (copied from a Kafka broker, whose followers and cleaner leave gaps), or the checkpoint
is lost: everything is checked, and gaps are kept, as Kafka does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory
from commitlog.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swaps
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    snapshot_name,
)
from commitlog.segment.producer_state import ProducerStateManager
from commitlog.segment.segment import Segment
from commitlog.segment.txn_recovery import TransactionRecovery
from tidemark.config import TopicConfig
from tidemark.errors import CorruptMessageError
from tidemark.records.control import end_transaction

if TYPE_CHECKING:
    from commitlog.segment.batch_table import BatchTable

logger = logging.getLogger(__name__)
_LEFTOVERS = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX, ".tmp")
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The segments of a log, oldest first (none for a new log), and what recovery did."""

    segments: list[Segment]
    cut_bytes: int
    removed_segments: int
    recovered_segments: int


def remove_leftovers(directory: Directory) -> list[str]:
    """Removes temporary files of the last run, and finishes swaps; the names of what is left."""
    names = directory.list()
    if any(name.endswith(_LEFTOVERS) for name in names):  # mostly not: one look is enough then
        finish_swaps(directory)
        for name in directory.list():
            if name.endswith((DELETED_SUFFIX, ".tmp")):
                directory.remove(name)
        names = directory.list()
    known, left = set(names), []
    for name in names:
        stem = name[:20]
        if name.endswith(_INDEXES) and stem.isdigit() and stem + LOG_SUFFIX not in known:
            directory.remove(name)
        else:
            left.append(name)
    return left


def load_segments(
    directory: Directory,
    config: TopicConfig,
    epochs: LeaderEpochCache,
    *,
    recovery_point: int | None,
    clean: bool,
    now_ms: int,
) -> Loaded:
    """Steps 1 to 3; `epochs` is brought up to date with the recovered batches. `recovery_point`:
    None where it is not known.
    """
    names = remove_leftovers(directory)
    segments = [
        Segment(
            directory,
            int(name[:20]),
            config,
            size_bytes=directory.size_of(name),
            created_ms=now_ms,
        )
        for name in names
        if name.endswith(LOG_SUFFIX) and name[:20].isdigit() and len(name) == 24
    ]
    for segment in segments[:-1]:
        segment.is_rolled = True
    if not segments:
        return Loaded([], 0, 0, 0)
    if clean and segments[-1].is_sound_at_end():
        _find_epochs(epochs, segments)
        return Loaded(segments, 0, 0, 0)
    first = len(segments) - 1
    if not clean:
        first = _first_to_recover(segments, recovery_point)
    loaded = _recover(directory, segments, first, epochs, recovery_point)
    end = loaded.segments[-1].next_offset if loaded.segments else 0
    if clean or not first or recovery_point is None or recovery_point <= end:
        return loaded
    logger.warning("%s ends below its recovery point: all is checked", directory.path)
    again = _recover(directory, loaded.segments, 0, epochs, None)
    return Loaded(
        again.segments,
        loaded.cut_bytes + again.cut_bytes,
        loaded.removed_segments + again.removed_segments,
        again.recovered_segments,
    )


def _first_to_recover(segments: list[Segment], recovery_point: int | None) -> int:
    """The segment that holds the recovery point, at most the last one."""
    for index in range(len(segments) - 1, 0, -1):
        if recovery_point is not None and segments[index].base_offset <= recovery_point:
            return index
    return 0


def _find_epochs(epochs: LeaderEpochCache, segments: list[Segment]) -> None:
    """Takes the epochs from the batches where the checkpoint is lost, or damaged."""
    if epochs.latest_epoch is not None:
        return
    for segment in segments:
        try:
            for header in segment.headers():
                epochs.on_batch(header.partition_leader_epoch, header.base_offset)
        except CorruptMessageError as error:  # what is behind it can not be read, either
            logger.error("%s/%s: %s", segment.directory.path, segment.log_file, error)


def _is_loss(begin: int, recovery_point: int | None) -> bool:
    """Is a gap between segments that begins here a loss? The reasons are at the file's head."""
    return recovery_point is not None and begin >= recovery_point


def _recover(
    directory: Directory,
    segments: list[Segment],
    first: int,
    epochs: LeaderEpochCache,
    recovery_point: int | None,
) -> Loaded:
    noted = dict(epochs.entries())
    epochs.truncate_from_end(segments[first].base_offset)
    _find_epochs(epochs, segments[:first])
    seen = segments[first].base_offset
    transactions = TransactionRecovery(directory, segments[:first], seen, replay_producers)

    def on_batches(table: BatchTable) -> None:
        nonlocal seen
        transactions.on_batches(table)
        for row in table.rows_of_new_epochs(epochs.latest_epoch):
            header = table.header(row)
            before = table.header(row - 1).next_offset if row else seen
            # the epoch's first batches may have been compacted away: the note of it still holds
            start = noted.get(header.partition_leader_epoch, header.base_offset)
            if not before <= start < header.base_offset:
                start = header.base_offset
            epochs.assign(header.partition_leader_epoch, start)
        seen = table.next_offset

    cut = cut_bytes = recovered = 0
    expected = segments[first].base_offset  # what is before is durable, and none of our business
    keep = first
    for segment in segments[first:]:
        if segment.base_offset < expected:
            break
        if segment.base_offset > expected and _is_loss(expected, recovery_point):
            logger.warning(
                "%s: offsets %d to %d are lost", directory.path, expected, segment.base_offset - 1
            )
            break
        transactions.begin(segment)
        cut = segment.recover(on_batches)
        cut_bytes += cut
        recovered += 1
        keep += 1
        expected = segment.next_offset
        if cut:
            logger.warning(
                "%s/%s: cut %d bytes behind the last sound batch (offset %d)",
                directory.path,
                segment.log_file,
                cut,
                expected - 1,
            )
            break
    removed = segments[keep:]
    # Newest first, and before the cut: what a crash leaves is the log's beginning, still damaged
    # where it was, or the next start would take a gap for one that was there before.
    for segment in reversed(removed):
        logger.warning("%s: removing %s behind the end", directory.path, segment.log_file)
        cut_bytes += segment.size_bytes
        remove_segment(directory, segment)
    kept = segments[:keep]
    if kept:
        kept[-1].is_rolled = False
    directory.fsync()
    if cut:
        kept[-1].cut_tail()
    return Loaded(kept, cut_bytes, len(removed), recovered)


def remove_segment(directory: Directory, segment: Segment) -> None:
    """Removes a segment's files at once, the log first: indexes alone are leftovers."""
    segment.close()
    for name in (*segment.file_names, snapshot_name(segment.base_offset)):
        directory.remove(name)


def replay_producers(
    producers: ProducerStateManager, segments: list[Segment], end_offset: int
) -> None:
    """Takes in the batches between the producers' `end_offset` and the log's."""
    start = max(producers.end_offset, segments[0].base_offset)
    if start < end_offset:
        for index, segment in enumerate(segments):
            last = index == len(segments) - 1
            if not segment.has_producers:
                continue
            if not last and segments[index + 1].base_offset <= start:
                continue
            for header in segment.headers(max(start, segment.base_offset)):
                ended = None
                if header.is_control and header.producer_id >= 0:
                    ended = end_transaction(segment.read_batch(header), 0)
                producers.update(header, ended)
    producers.end_offset = end_offset
