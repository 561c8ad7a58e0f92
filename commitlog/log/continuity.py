"""Whether a log continues where it should: at the ends of its segments, and in its leader epochs.

A read compares batches with their neighbours (`commitlog.segment.reading`). What remains is looked
into here, for the rare read that is in doubt; a sound log costs nothing.

Holes. A rolled segment that ends below the base of the next one has lost batches, or compaction
removed them. Segments of Tidemark have no such gap (`commitlog.log.loader`), except where an offset
is too far for an index. A Kafka broker's cleaner leaves them. So a hole is damage unless something
explains it. The topic may be compacted, or its segment shows traces of an earlier compaction. Or
the log came with gaps, which the file `gaps` notes. A segment whose own index reaches behind its
end is always damaged.

Epochs. A batch's leader epoch must be the one that the log's lineage has for its offset. Neither
has a checksum. A batch that agrees with its neighbours against the lineage is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from commitlog.disk.files import Directory
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.indexes import MAX_RELATIVE_OFFSET
from commitlog.segment.segment import Segment
from commitlog.types import CorruptLogError, FetchResult
from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, crc_is_valid, read_header
from tidemark.records.header import BatchHeader as Header

if TYPE_CHECKING:
    from commitlog.segment.batch_table import BatchTable

GAPS_FILE = "gaps"
"""Its existence notes that segments of another program left gaps in the log."""


def has_gaps(segments: Sequence[Segment]) -> bool:
    """Whether a segment ends before the next one begins."""
    return any(one.next_offset < following.base_offset for one, following in pairwise(segments))


def note_gaps(directory: Directory) -> None:
    """Notes that a log that another program wrote has gaps."""
    if not directory.exists(GAPS_FILE):
        directory.write_atomic(GAPS_FILE, b"")


def pretends(active: Segment, recovery_point: int | None) -> bool:
    """Whether the last batch of a log that was closed cleanly lies behind a gap and beyond the
    recovery point, where the log ended.
    """
    if recovery_point is None or active.next_offset <= recovery_point:
        return False
    end, is_behind_gap = active.base_offset, False
    with suppress(CorruptMessageError):
        for header in active.headers():
            is_behind_gap, end = header.base_offset > end, header.next_offset
    return is_behind_gap


def may_have_gaps(directory: Directory, segments: Sequence[Segment]) -> bool:
    """Whether a gap between batches of the log is no sign of damage."""
    return segments[-1].config.is_compacted or directory.exists(GAPS_FILE)


class Gap(NamedTuple):
    """A gap in a log: the end of the batch before it, and the base offset of the one behind."""

    before: int
    base: int


class Tail:
    """Follows the batches of a recovery, to tell whether the last one only pretends its offset.

    The batch behind confirms where a batch ends, but nothing is behind the last one. If it alone
    follows a gap, its base offset is damaged: a log that was never compacted has no gaps.
    """

    def __init__(self) -> None:
        self.gaps = 0
        """Number of gaps, those between segments included."""
        self._inner = 0
        self._last: Gap | None = None

    @property
    def pretended(self) -> Gap | None:
        """The gap before the last batch, if it is the only one."""
        return self._last if self._inner == 1 else None

    def add(self, table: BatchTable, end_offset: int, base_offset: int) -> None:
        """Adds batches of the segment at `base_offset`, behind others that end at `end_offset`."""
        base = table.column("base_offset")
        ends = base + table.column("last_offset_delta") + 1
        inner = int((base[1:] > ends[:-1]).sum()) + bool(base[0] > max(end_offset, base_offset))
        self._inner += inner
        self.gaps += inner + (base_offset > end_offset)
        before = int(ends[-2]) if len(base) > 1 else max(end_offset, base_offset)
        self._last = Gap(before, int(base[-1])) if base[-1] > before else None


def doubted(segment: Segment) -> Gap | None:
    """Returns the last batch that a recovery left, if the one behind it is undamaged but
    contradicts it: either may be wrong. Called before the file is truncated.
    """
    size, left = segment.size_bytes, segment.file.size - segment.size_bytes
    with suppress(CorruptMessageError):
        following = read_header(segment.file.pread(HEADER_BYTES, size))
        if not size or following.size_bytes > left:
            return None
        if not crc_is_valid(segment.file.pread(following.size_bytes, size), 0, following):
            return None
        last = next(segment.headers(segment.next_offset - 1))
        is_below = following.base_offset < last.next_offset
        if is_below or following.partition_leader_epoch < last.partition_leader_epoch:
            return Gap(last.base_offset, last.base_offset)
    return None


def check_end(segment: Segment, following: Segment) -> None:
    """Checks that nothing is missing between the last batch of a segment and the next segment.

    Raises CorruptLogError if something is, and compaction does not explain it.
    """
    end, base = segment.next_offset, following.base_offset
    if end >= base:
        return
    position, problem = segment.fault or (segment.size_bytes, "")
    if not problem:
        if segment.config.is_compacted or _is_too_far(segment, following):
            return
        if segment.directory.exists(GAPS_FILE) or _was_compacted(segment):
            return
        problem = "the file is cut"
    raise CorruptLogError(
        f"{segment.directory.path}/{segment.log_file}",
        position,
        f"{problem}; its records end before offset {end}, the next segment begins at {base}",
    )


def _is_too_far(segment: Segment, following: Segment) -> bool:
    """Whether the next segment had to begin at its first batch, because of 32-bit offsets."""
    if not following.size_bytes:
        return False
    return following.header_at(0).last_offset - segment.next_offset > MAX_RELATIVE_OFFSET


def _was_compacted(segment: Segment) -> bool:
    """Whether a gap between batches, or a batch with fewer records than offsets, shows that
    compaction removed records.
    """
    end = segment.base_offset
    try:
        for header in segment.headers():
            if header.base_offset > end or _lacks_records(segment, header):
                return True
            end = header.next_offset
    except CorruptMessageError:
        pass
    return False


def _lacks_records(segment: Segment, header: Header) -> bool:
    if header.record_count > header.last_offset_delta:
        return False
    return crc_is_valid(segment.read_batch(header), 0, header)


def contradicts(epochs: LeaderEpochCache, segments: Sequence[Segment]) -> bool:
    """Whether the last two batches of a log agree on a leader epoch that its lineage does not
    have there. One alone may be damaged. False if the active segment is empty.
    """
    if not segments[-1].size_bytes:
        return False
    with suppress(CorruptMessageError):
        last = next(segments[-1].headers(segments[-1].next_offset - 1))
        if epochs.epoch_for_offset(last.base_offset) in (None, last.partition_leader_epoch):
            return False
        for segment in reversed(segments[-2:]):
            end = min(last.base_offset, segment.next_offset)
            for header in segment.headers(end - 1):
                if header.base_offset < last.base_offset:
                    return header.partition_leader_epoch == last.partition_leader_epoch
                break
    return False


def check_begun(segments: Sequence[Segment], epochs: LeaderEpochCache, newest: int) -> None:
    """Checks that no batch is of a leader epoch after `newest`, which has not begun. Recovery takes
    the epoch of the last batch from its header. Raises CorruptLogError.
    """
    for epoch, start_offset in epochs.entries():
        if epoch > newest:
            holds = (s for s in reversed(segments) if s.base_offset <= start_offset)
            segment = next(holds, segments[0])
            path = f"{segment.directory.path}/{segment.log_file}"
            problem = f"offset {start_offset} is of leader epoch {epoch}, the newest is {newest}"
            raise CorruptLogError(path, 0, problem)


def check_epochs(
    segments: Sequence[Segment], index: int, found: FetchResult, epochs: LeaderEpochCache
) -> None:
    """Checks the leader epochs of batches that were read from a segment, where the first or the
    last one differs from the lineage. Raises CorruptLogError.
    """
    segment = segments[index]
    near = _around(segments, index, found)
    of_near = [header.partition_leader_epoch for header in near]
    for row, header in enumerate(near):
        base, epoch = header.base_offset, of_near[row]
        known = epochs.epoch_for_offset(base)
        if known in (None, epoch) or not found.base_offset <= base < found.next_offset:
            continue
        beside = of_near[max(0, row - 1) : row] + of_near[row + 1 : row + 2]
        is_first = row == 0 and len(beside) == 1
        if (len(beside) < 2 and not is_first) or any(other != epoch for other in beside):
            raise CorruptLogError(
                f"{segment.directory.path}/{segment.log_file}",
                header.position,
                f"the batch at offset {base} is of leader epoch {epoch}, not {known}",
            )


def _around(segments: Sequence[Segment], index: int, found: FetchResult) -> list[Header]:
    """Returns the headers of the batches read, with those of the batches before and behind them."""
    near: list[Header] = []
    with suppress(CorruptMessageError):
        if found.position == 0 and index:
            near = list(segments[index - 1].headers(segments[index - 1].next_offset - 1))
        begin = max(segments[index].base_offset, found.base_offset - 1)
        for header in segments[index].headers(begin):
            near.append(header)
            if header.base_offset >= found.next_offset:
                return near
        following = segments[index + 1 : index + 2]
        near += [segment.header_at(0) for segment in following if segment.size_bytes]
    return near
