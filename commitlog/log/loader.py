"""Opens the segments of a log, and repairs the damage of an unclean stop (Kafka's LogLoader).

1. Leftovers are removed: `.deleted`, `.cleaned` and `.tmp` files, and their indexes. A finished
   `.swap` takes its place. Any other index without a log tells that a segment is gone.
2. After an unclean stop every segment from the recovery point on is checked batch by batch: shape,
   CRC, rising offsets. Its indexes are rebuilt. The log ends at the first bad byte: the file is
   truncated there, and all later segments are removed. It also ends at a gap that is a loss
(below).
3. Even after a clean stop the end of the last segment is checked, and a torn tail is truncated.

Leader epochs above the recovery point are rebuilt from the batches.

Gaps between segments. A disk that loses power may keep a later segment and lose the unsynced end of
the one before it, even at a batch boundary. The log must end there. Otherwise the replica would
serve a hole in place of acknowledged records that its peers have. (Kafka does not check, and serves
it.) But compaction leaves gaps as well, and to truncate at those loses acknowledged records. The
present cleanup.policy does not help, because the topic may have been compacted before. The writes
of a log guarantee three things that do:

- A segment begins where the one before it ends. So does a cleaned segment: a cleaned range keeps
  its
  last batch. If it fills several segments, each begins where the one before it ends.
- If an offset is too far from its segment's base for an index entry (2^31), the new segment begins
  at the batch. Everything before it is then synced, and the recovery point is moved there and
  checkpointed, before the segment is created (`Log.roll`).
- A log has an entry in the checkpoint of recovery points before it has a second segment.

So a gap is a loss if it begins at or above a known recovery point. Below, everything was durable,
and nothing is missing. Without a recovery point in the checkpoint, everything is checked, and gaps
are kept, as in Kafka. The checkpoint may be lost, or another program wrote the files, such as a
Kafka broker, whose followers and cleaner leave gaps. Reads believe these gaps from then on
(`commitlog.log.continuity`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory
from commitlog.log.claims import check_end, check_indexes
from commitlog.log.continuity import (
    Gap,
    Tail,
    contradicts,
    doubted,
    has_gaps,
    may_have_gaps,
    note_gaps,
    pretends,
)
from commitlog.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swaps
from commitlog.segment.cutting import find_cut
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
from tidemark.records.header import MAX_OFFSET

if TYPE_CHECKING:
    from commitlog.segment.batch_table import BatchTable

logger = logging.getLogger(__name__)
_LEFTOVERS = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX, ".tmp")
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The segments of a log, oldest first (none for a new log), and counts of what recovery did."""

    segments: list[Segment]
    cut_bytes: int
    removed_segments: int
    recovered_segments: int


def remove_leftovers(directory: Directory, clean: bool, recovery_point: int | None) -> list[str]:
    """Removes temporary files of the last run, and finishes swaps; returns the remaining names.

    Raises RecordsMissingError if an index lost its segment. A segment that leaves the log takes its
    indexes along: they go first, or its `.deleted` file is there until they are gone.
    """
    names = directory.list()
    if any(name.endswith(_LEFTOVERS) for name in names):  # rarely: one listing is enough otherwise
        finish_swaps(directory)
        names = directory.list()
    known = set(names)
    logs = [name for name in names if is_log_file(name)]
    alone = {
        name
        for name in names
        if name.endswith(_INDEXES) and name[:20].isdigit() and name[:20] + LOG_SUFFIX not in known
    }
    lost = {name for name in alone if name[:20] + LOG_SUFFIX + DELETED_SUFFIX not in known}
    if not clean:
        lost = {name for name in lost if _was_durable(int(name[:20]), logs, recovery_point)}
    check_indexes(directory.path, lost)
    for name in alone:
        directory.remove(name)
    if alone:
        directory.fsync()  # before their `.deleted` files, which explain them
    for name in names:
        if name.endswith((DELETED_SUFFIX, ".tmp")):
            directory.remove(name)
            alone.add(name)
    return [name for name in names if name not in alone]


def is_log_file(name: str) -> bool:
    """Whether this is the name of a segment's `.log` file."""
    return name.endswith(LOG_SUFFIX) and name[:20].isdigit() and len(name) == 24


def _was_durable(base_offset: int, logs: list[str], recovery_point: int | None) -> bool:
    """Whether a segment was there before an unclean stop. Without a recovery point nobody knows:
    other programs remove indexes after their segment.
    """
    if recovery_point is None:
        return False
    return base_offset < recovery_point or (bool(logs) and base_offset < int(logs[0][:20]))


def load_segments(
    directory: Directory,
    config: TopicConfig,
    epochs: LeaderEpochCache,
    *,
    recovery_point: int | None,
    clean: bool,
    now_ms: int,
) -> Loaded:
    """Performs steps 1 to 3, and updates `epochs` from the recovered batches. `recovery_point`:
    None if unknown. Raises RecordsMissingError if the log would end below it, or lacks a segment.
    """
    names = remove_leftovers(directory, clean, recovery_point)
    segments = [
        Segment(
            directory,
            int(name[:20]),
            config,
            size_bytes=directory.size_of(name),
            created_ms=now_ms,
        )
        for name in names
        if is_log_file(name)
    ]
    for segment in segments[:-1]:
        segment.is_rolled = True
    if not segments:
        return Loaded([], 0, 0, 0)
    if clean and segments[-1].fault is None and not pretends(segments[-1], recovery_point):
        check_end(directory.path, segments[-1].next_offset, recovery_point)
        if contradicts(epochs, segments):
            logger.warning("%s: its leader epochs are found anew", directory.path)
            epochs.clear()
        _find_epochs(epochs, segments)
        if recovery_point is None and has_gaps(segments):
            note_gaps(directory)
        return Loaded(segments, 0, 0, 0)
    first = len(segments) - 1
    if not clean:
        first = _first_to_recover(segments, recovery_point)
    return _recover(directory, segments, first, epochs, recovery_point, trusts_gaps=not clean)


def _first_to_recover(segments: list[Segment], recovery_point: int | None) -> int:
    """Returns the index of the segment that holds the recovery point, at most the last one."""
    for index in range(len(segments) - 1, 0, -1):
        if recovery_point is not None and segments[index].base_offset <= recovery_point:
            return index
    return 0


def _find_epochs(epochs: LeaderEpochCache, segments: list[Segment]) -> None:
    """Rebuilds the epochs from the batches if the checkpoint is lost or damaged."""
    if epochs.latest_epoch is not None:
        return
    for segment in segments:
        try:
            for header in segment.headers():
                epochs.on_batch(header.partition_leader_epoch, header.base_offset)
        except CorruptMessageError as error:  # nothing behind it can be read either
            logger.error("%s/%s: %s", segment.directory.path, segment.log_file, error)


def _is_loss(begin: int, recovery_point: int | None) -> bool:
    """Whether a gap between segments that begins here is a loss; see the module docstring."""
    return recovery_point is not None and begin >= recovery_point


def _recover(
    directory: Directory,
    segments: list[Segment],
    first: int,
    epochs: LeaderEpochCache,
    recovery_point: int | None,
    *,
    trusts_gaps: bool,
) -> Loaded:
    noted = dict(epochs.entries())
    epochs.truncate_from_end(segments[first].base_offset)
    _find_epochs(epochs, segments[:first])
    seen = base = segments[first].base_offset
    transactions = TransactionRecovery(directory, segments[:first], seen, replay_producers)
    tail = Tail()

    def on_batches(table: BatchTable) -> None:
        nonlocal seen
        transactions.on_batches(table)
        tail.add(table, seen, base)
        for row in table.rows_of_new_epochs(epochs.latest_epoch):
            header = table.header(row)
            before = table.header(row - 1).next_offset if row else seen
            # The epoch's first batches may have been compacted away; its known start is still
            # valid.
            start = noted.get(header.partition_leader_epoch, header.base_offset)
            if not before <= start < header.base_offset:
                start = header.base_offset
            epochs.assign(header.partition_leader_epoch, start)
        seen = table.next_offset

    cut = cut_bytes = recovered = 0
    expected = segments[first].base_offset  # everything before is durable
    keep = first
    ends = [segment.base_offset for segment in segments[first + 1 :]] + [MAX_OFFSET]
    for segment, end in zip(segments[first:], ends, strict=True):
        if segment.base_offset < expected:
            break
        if segment.base_offset > expected and _is_loss(expected, recovery_point):
            logger.warning(
                "%s: offsets %d to %d are lost", directory.path, expected, segment.base_offset - 1
            )
            break
        transactions.begin(segment)
        base, latest = segment.base_offset, epochs.latest_epoch
        cut = segment.recover(on_batches, end, -1 if latest is None else latest)
        cut_bytes += cut
        recovered += 1
        keep += 1
        expected = segment.next_offset
        if cut:
            told = "%s/%s: cut %d bytes behind the last sound batch (offset %d)"
            logger.warning(told, directory.path, segment.log_file, cut, expected - 1)
            break
    if recovery_point is None and tail.gaps:
        note_gaps(directory)
    kept, removed = segments[:keep], segments[keep:]
    believes = recovery_point is None or (trusts_gaps and may_have_gaps(directory, segments))
    pretended = (doubted(kept[-1]) if cut else None) or (None if believes else tail.pretended)
    # Before anything is removed.
    check_end(directory.path, pretended.before if pretended else expected, recovery_point)
    cut_bytes += _remove_behind(directory, kept, removed)
    if cut:
        kept[-1].cut_tail()
    if pretended is not None:
        cut_bytes += _cut_pretended(kept[-1], pretended)
    return Loaded(kept, cut_bytes, len(removed), recovered)


def _remove_behind(directory: Directory, kept: list[Segment], removed: list[Segment]) -> int:
    """Removes the segments behind the end; returns their size in bytes.

    Newest first, and before the file is truncated. A crash then leaves the beginning of the log,
    still damaged at the same place. In another order the next start would take a gap for an old
    one.
    """
    for segment in reversed(removed):
        logger.warning("%s: removing %s behind the end", directory.path, segment.log_file)
        remove_segment(directory, segment)
    if kept:
        kept[-1].is_rolled = False
    directory.fsync()
    return sum(segment.size_bytes for segment in removed)


def _cut_pretended(segment: Segment, gap: Gap) -> int:
    """Cuts the last batch, whose base offset is damaged; returns the number of bytes."""
    logger.warning(
        "%s/%s: no neighbour confirms the last batch, at offset %d: cut",
        segment.directory.path,
        segment.log_file,
        gap.base,
    )
    return segment.truncate_to(find_cut(segment, gap.base))


def remove_segment(directory: Directory, segment: Segment) -> None:
    """Removes a segment's files, the log last: an index without its log tells of damage."""
    segment.close()
    for name in (snapshot_name(segment.base_offset), *reversed(segment.file_names)):
        directory.remove(name)


def replay_producers(
    producers: ProducerStateManager, segments: list[Segment], end_offset: int
) -> None:
    """Applies the batches between the producers' `end_offset` and the log's."""
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
