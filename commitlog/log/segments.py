"""The local segments of one log (Kafka's LogSegments): the list, and the names of their files.

A log always has a segment, and the last one is active. The list is empty only within a truncation,
or before it is filled. A change here neither moves the log's offsets nor takes its lock; the log
does both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from commitlog.disk.files import Directory
from commitlog.log.deleted_files import DeletedFiles, rename_deleted
from commitlog.log.jitter import roll_jitter_ms
from commitlog.log.swap import swap_files, with_cleaned
from commitlog.segment.batches import Cut
from commitlog.segment.cutting import find_cut
from commitlog.segment.producer_state import ProducerStateManager
from commitlog.segment.segment import Segment
from tidemark.config import TopicConfig
from tidemark.types import TopicPartition


class Segments:
    """Segments in order of their offsets. `all` and `bases` (their base offsets) are read-only
    outside; the methods change them.
    """

    def __init__(
        self,
        directory: Directory,
        topic_partition: TopicPartition,
        config: TopicConfig,
        producers: ProducerStateManager,
    ) -> None:
        """`producers`: those of the log; their snapshots are among a segment's files."""
        self.directory = directory
        self.deleted_files = DeletedFiles(directory)
        self.all: list[Segment] = []
        self.bases: list[int] = []
        self.jitter_ms = 0
        """How much earlier than segment.ms the active segment is rolled."""
        self.name_changes = 1
        """How often names in the directory changed, so that it must be synced."""
        self.topic_partition = topic_partition
        self.config = config
        self._producers = producers
        self._fences = TimestampFences()

    # --- views

    @property
    def active(self) -> Segment:
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        """The number of bytes of records."""
        return sum(segment.size_bytes for segment in self.all)

    def index_of(self, offset: int) -> int:
        """Returns the index of the segment that holds `offset`; 0 for offsets before the first
        segment.
        """
        return max(0, bisect_right(self.bases, offset) - 1)

    def since(self, timestamp_ms: int) -> list[Segment]:
        """Returns the segments from the first one on that may hold a record at or after the
        timestamp.
        """
        segments = self.all  # another thread may replace the list meanwhile
        return segments[self._fences.first(segments, timestamp_ms) :]

    def validate(self) -> None:
        """Asserts that the segments are in order, and that one is active."""
        assert self.bases == [segment.base_offset for segment in self.all]
        assert self.all, "there is always an active segment"
        for one, following in pairwise(self.bases):
            assert one < following, self.all

    # --- changes

    def configure(self, config: TopicConfig) -> None:
        """Applies new settings of the topic."""
        self.config = config
        for segment in self.all:
            segment.config = config
        self._draw_jitter()

    def replace_all(self, segments: list[Segment]) -> None:
        """Replaces all segments by these."""
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self._draw_jitter()

    def begin(self, base_offset: int, now_ms: int) -> Segment:
        """Adds a new, empty active segment."""
        self.name_changes += 1
        segment = Segment.create(self.directory, base_offset, self.config, now_ms)
        self._add(segment)
        return segment

    def _add(self, segment: Segment) -> None:
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self._draw_jitter()

    def _draw_jitter(self) -> None:
        self.jitter_ms = roll_jitter_ms(self.config, self.topic_partition, self.bases[-1])

    def remove_newest(self) -> None:
        """Removes the active segment and its files."""
        self._fences = TimestampFences()  # the one before it is appended to again
        segment = self.all.pop()
        self.bases.pop()
        segment.close()
        for name in reversed(segment.file_names):  # the log last: its indexes are not left alone
            self.directory.remove(name)
        self.name_changes += 1

    def find_cut(self, offset: int) -> Cut:
        """Returns the place of `offset` in its segment. `offset` is at or above the first base.
        Raises CorruptLogError if damage hides the place.
        """
        return find_cut(self.all[self.index_of(offset)], offset)

    def drop_behind(self, cut: Cut) -> bool:
        """Removes the segments behind that of a cut, the newest first; returns whether there were
        any. It must be durable before the cut.
        """
        last = self.all[-1]
        while self.bases[-1] > cut.offset:
            self.remove_newest()
        if self.all[-1] is last:
            return False
        self.active.is_rolled = False
        return True

    def cut(self, cut: Cut) -> None:
        """Removes the batches of the active segment from a cut on; not durable yet."""
        active = self.active
        active.is_rolled = False
        active.truncate_to(cut)

    def restart_at(self, base_offset: int, now_ms: int) -> None:
        """Removes all segments, the newest first, and creates one at `base_offset`."""
        while self.all:
            self.remove_newest()
        self._begin_anew(base_offset, now_ms)

    def begin_in_place_of_newest(self, base_offset: int, now_ms: int) -> Segment:
        """Removes the active segment and creates one at `base_offset`."""
        self.remove_newest()
        return self._begin_anew(base_offset, now_ms)

    def _begin_anew(self, base_offset: int, now_ms: int) -> Segment:
        """As `begin`, after a removal. If the file cannot be created, the log still has an active
        segment, whose file the next append creates.
        """
        try:
            return self.begin(base_offset, now_ms)
        except BaseException:
            self._add(Segment(self.directory, base_offset, self.config, created_ms=now_ms))
            raise

    def delete_oldest(self, count: int, now_ms: int) -> None:
        """Deletes the `count` oldest segments."""
        assert count < len(self.all), "the active segment is never deleted"
        for segment in self.all[:count]:
            self.delete(segment, now_ms)
            self._producers.forget_snapshot(segment.base_offset)
        self.replace_all(self.all[count:])

    def delete(self, segment: Segment, now_ms: int) -> None:
        """Renames the files of a segment that leaves the log; they are removed after the delete
        delay.
        """
        names = rename_deleted(self.directory, segment)
        self.deleted_files.add(now_ms + self.config.file_delete_delay_ms, [names])
        self.name_changes += 1

    def swap_in(self, old: Sequence[Segment], new_bases: Sequence[int], now_ms: int) -> None:
        """Replaces `old` by the cleaned segments of `new_bases` (`commitlog.log.swap`)."""
        names = swap_files(self.directory, old, new_bases)
        self.deleted_files.add(now_ms + self.config.file_delete_delay_ms, names)
        self.replace_all(with_cleaned(self.all, old, new_bases, now_ms))
        for segment in old:
            if segment.base_offset not in new_bases:
                self._producers.forget_snapshot(segment.base_offset)

    def move_to(self, directory: Directory, segments: list[Segment]) -> None:
        """Continues with the same segments in another directory."""
        self.directory = self._producers.directory = directory
        self.deleted_files.restart(directory)
        self.replace_all(segments)


class TimestampFences:
    """The greatest timestamp up to the end of each rolled segment, so that a look-up need not scan
    the segments. Filled as far as look-ups need it, because that loads the segments' indexes.
    """

    def __init__(self) -> None:
        self._known: list[Segment] = []
        self._rebuilds = -1
        self._greatest: list[int] = []

    def first(self, segments: list[Segment], timestamp_ms: int) -> int:
        """Returns the index of the first segment that may hold a record at or after it."""
        rolled = segments[:-1]
        rebuilds = Segment.rebuilds
        if rebuilds != self._rebuilds or rolled[: len(self._known)] != self._known:
            self._known, self._greatest, self._rebuilds = [], [], rebuilds
        while not self._greatest or self._greatest[-1] < timestamp_ms:
            if len(self._known) == len(rolled):
                return len(rolled)
            segment = rolled[len(self._known)]
            self._greatest.append(max([segment.max_timestamp_ms, *self._greatest[-1:]]))
            self._known.append(segment)
        return bisect_left(self._greatest, timestamp_ms)
