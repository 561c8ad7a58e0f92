"""Future log: the copy of a log in another log directory, which replaces the log when it is
complete (KIP-113).

It is in the directory `<topic>-<partition>.<32 hex digits>-future` and is made file by file. The
log is in use meanwhile, so a segment is copied in pieces. A piece ends where the segment ended when
the piece was made. Segments, indexes and producer snapshots are copied as they are. So nothing of
the log is rebuilt, and the `Log` object continues in the new directory (`Log.move_to`).

    pieces     `next_piece` (owner of the log) -> `CopyPiece.run` (any thread; every batch's CRC is
               checked) -> `take` (owner). A segment that was cut, cleaned or deleted meanwhile is
               detected by its object and its count of cuts. It is copied again, or not at all.
    complete   the owner copies what is left, at once. Afterwards both directories hold the same
               log, the future one durably.
    restart    a rolled segment gets its name only when it is durable. So a new process keeps those
               with the size and the outermost batches of the current log's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, format_epochs
from commitlog.disk.files import Directory
from commitlog.disk.names import FUTURE_SUFFIX, unique_name
from commitlog.log.continuity import GAPS_FILE
from commitlog.log.log import Log
from commitlog.segment.names import snapshot_name
from commitlog.segment.segment import Segment
from tidemark.errors import CorruptMessageError, StorageError, TidemarkError
from tidemark.records.header import HEADER_BYTES, read_header, whole_header
from tidemark.types import TopicPartition, random_uuid

MOVES_FILE = "moves"
PIECE_BYTES = 4 << 20
_UNFINISHED = ".copy"
_LEFT = "left"


class SourceError(StorageError):
    """The log that is copied cannot be read; its copy is intact."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Identity of a log across its moves, kept in the file `moves` of its directory.

    Of two logs with one `log_id` the one with the higher `count` of moves is the current one.
    `is_left`: the log may continue elsewhere, so that on its own it may lack records. A log that no
    move was ever begun for has no lineage.
    """

    log_id: str
    count: int
    is_left: bool = False

    @classmethod
    def read(cls, directory: Directory) -> Lineage | None:
        """Reads the lineage of the log in `directory`, None if it has none. Raises StorageError if
        the file is malformed.
        """
        if not directory.exists(MOVES_FILE):
            return None
        words = directory.read(MOVES_FILE).decode("ascii", "replace").split()
        if len(words) < 2 or not words[1].isdecimal() or words[2:] not in ([], [_LEFT]):
            raise StorageError(f"{directory.path}/{MOVES_FILE} is malformed")
        return cls(words[0], int(words[1]), len(words) == 3)

    def write(self, directory: Directory) -> None:
        """Writes the lineage durably."""
        left = f" {_LEFT}" if self.is_left else ""
        directory.write_atomic(MOVES_FILE, f"{self.log_id} {self.count}{left}\n".encode())

    def after(self, moves: int, *, is_left: bool = False) -> Lineage:
        """Returns the lineage after that many more moves."""
        return replace(self, count=self.count + moves, is_left=is_left)


@dataclass(slots=True, eq=False)
class _Copied:
    """Progress of the copy of one segment; valid as long as the log has this segment object, cut no
    further.
    """

    source: Segment
    cuts: int
    size_bytes: int = 0
    next_offset: int = 0
    finished: bool = False  # rolled, durable, with indexes and snapshot, under its own name

    def is_of(self, segment: Segment | None) -> bool:
        return segment is self.source and segment.cuts == self.cuts


@dataclass(frozen=True, slots=True)
class CopyPiece:
    """Bytes of one segment to copy, with all that `run` needs in any thread."""

    copied: _Copied
    source: Directory
    target: Directory
    begin: int
    end: int
    finishes: bool = False
    """Whether a piece that reaches `end` finishes the segment: all its files are copied durably."""
    syncs: bool = False

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    def run(self) -> tuple[int, int | None]:
        """Copies whole batches. Returns the position after them, and the offset after them (None:
        no batch).

        Raises SourceError or CorruptMessageError if the log cannot be read. Raises StorageError if
        the copy cannot be written, FatalError if it cannot be synced.
        """
        data, following = self._read() if self.end > self.begin else (b"", None)
        name = self.copied.source.log_file
        file = self.target.open(name + _UNFINISHED, create=True)
        try:
            file.truncate(self.begin)  # left by a piece whose result was not taken
            if data:
                file.append(data)
            end = self.begin + len(data)
            finished = self.finishes and end == self.end
            if finished:
                source = self.copied.source
                next_offset = self.copied.next_offset if following is None else following
                for beside in (*source.file_names[1:], snapshot_name(next_offset)):
                    copy_file(self.source, self.target, beside)
            if finished or self.syncs:
                file.fsync()
        finally:
            file.close()
        if finished:
            self.target.rename(name + _UNFINISHED, name)
        return end, following

    def _read(self) -> tuple[bytes | memoryview, int | None]:
        wanted = min(self.end - self.begin, PIECE_BYTES)
        from commitlog.segment.batch_table import sound_batches

        try:
            file = self.source.open_read_only(self.copied.source.log_file)
            try:
                data = file.pread(wanted, self.begin)
                if len(data) >= HEADER_BYTES:
                    first = read_header(data, 0).size_bytes
                    if len(data) < first <= self.end - self.begin:
                        data = file.pread(first, self.begin)
            finally:
                file.close()
        except StorageError as error:
            raise SourceError(str(error)) from error
        view = memoryview(data)
        positions, end, is_damaged = sound_batches(view)
        if is_damaged or not end:
            raise CorruptMessageError(
                f"{self.source.path}/{self.copied.source.log_file}: the batch at"
                f" {self.begin + end} is damaged, or fails its CRC check"
            )
        return view[:end], whole_header(view, int(positions[-1])).next_offset


def copy_file(source: Directory, target: Directory, name: str) -> None:
    """Copies a small file durably, but not its name; removes it if the source has none."""
    try:
        data = source.read(name) if source.exists(name) else None
    except StorageError as error:
        raise SourceError(str(error)) from error
    target.remove(name)
    if data is None:
        return
    file = target.open(name, create=True)
    try:
        file.append(data)
        file.fsync()
    finally:
        file.close()


class FutureLog:
    """Copy of `current` that grows in `home`; belongs to the owner of the log."""

    def __init__(self, current: Log, home: Directory, name: str) -> None:
        self.current = current
        self.home = home
        self.name = name
        self.directory = home.subdirectory(name)
        self.is_promised = False
        """Whether it is, or is about to be, reported to the controller that the log will be here
        (KIP-858).
        """
        self._copied: dict[int, _Copied] = {}
        self._snapshots: set[int] = set()

    @classmethod
    def begin(cls, current: Log, home: Directory) -> FutureLog:
        """Makes an empty copy in a durable directory. Raises StorageError if it cannot be made."""
        future = cls(
            current, home, unique_name(current.topic_partition, random_uuid().hex, FUTURE_SUFFIX)
        )
        lineage = Lineage.read(current.directory)
        if lineage is None:
            lineage = Lineage(random_uuid().hex, 0)
            lineage.write(current.directory)
        lineage.after(1).write(future.directory)
        home.fsync()
        return future

    @classmethod
    def resume(cls, current: Log, home: Directory, name: str) -> FutureLog:
        """Resumes the copy of an earlier process; removes files that do not match the log. Raises
        StorageError if it is the copy of another log.
        """
        future = cls(current, home, name)
        lineage = Lineage.read(current.directory)
        if lineage is None or Lineage.read(future.directory) != lineage.after(1):
            raise StorageError(f"{future.directory.path} is no copy of {current.directory.path}")
        names = set(future.directory.list())
        kept = {MOVES_FILE}
        for segment in current.segments:
            if segment.is_rolled and segment.log_file in names and future._is_copy_of(segment):
                future._note_finished(segment)
                kept.update(segment.file_names, (snapshot_name(segment.next_offset),))
        for name in sorted(names - kept):
            future.directory.remove(name)
        return future

    def _is_copy_of(self, segment: Segment) -> bool:
        """Returns whether size and outermost batches match.

        That suffices: a segment of this name is a durable copy of one that the log had. If that was
        cut and written again, its last leader epoch differs.
        """
        size = segment.size_bytes
        if size < HEADER_BYTES or self.directory.size_of(segment.log_file) != size:
            return False
        last = segment.position_of(segment.next_offset - 1)
        copy = self.directory.open_read_only(segment.log_file)
        try:
            return all(
                copy.pread(HEADER_BYTES, position) == segment.file.pread(HEADER_BYTES, position)
                for position in (0, last)
            )
        finally:
            copy.close()

    def _note_finished(self, segment: Segment) -> None:
        copied = _Copied(segment, segment.cuts, segment.size_bytes, segment.next_offset, True)
        self._copied[segment.base_offset] = copied
        self._snapshots.add(segment.next_offset)

    # --- what it is

    @property
    def topic_partition(self) -> TopicPartition:
        return self.current.topic_partition

    @property
    def end_offset(self) -> int:
        """Offset below which everything is copied; the local log start offset if nothing is."""
        end = self.current.local_log_start_offset
        for segment in self.current.segments:
            copied = self._copied.get(segment.base_offset)
            if copied is None or not copied.is_of(segment):
                break
            end = max(end, copied.next_offset)
            if not copied.finished:
                break
        return end

    @property
    def lag(self) -> int:
        """Number of offsets the log is ahead."""
        return max(0, self.current.log_end_offset - self.end_offset)

    @property
    def size_bytes(self) -> int:
        """Size of the copied records, in bytes."""
        return sum(copied.size_bytes for copied in self._copied.values())

    @property
    def bytes_left(self) -> int:
        """Size of the records that are not copied yet, in bytes."""
        left = 0
        for segment in self.current.segments:
            copied = self._copied.get(segment.base_offset)
            valid = copied is not None and copied.is_of(segment)
            left += segment.size_bytes - (copied.size_bytes if copied and valid else 0)
        return left

    # --- pieces

    def next_piece(self) -> CopyPiece | None:
        """Returns the next piece to copy, oldest first; None if the log has nothing more."""
        self._drop_what_went()
        for segment in self.current.segments:
            copied = self._copied.get(segment.base_offset)
            if copied is None:
                copied = _Copied(segment, segment.cuts, next_offset=segment.base_offset)
                self._copied[segment.base_offset] = copied
            if copied.finished:
                continue
            if segment.is_rolled or copied.size_bytes < segment.size_bytes:
                return self._piece(copied, segment.size_bytes, finishes=segment.is_rolled)
        return None

    def sync_piece(self) -> CopyPiece | None:
        """Returns a piece that syncs the copy of the active segment, so that `complete` has little
        to sync.
        """
        self._drop_what_went()
        copied = self._copied.get(self.current.active_segment.base_offset)
        return self._piece(copied, copied.size_bytes, syncs=True) if copied else None

    def _piece(
        self, copied: _Copied, end: int, *, finishes: bool = False, syncs: bool = False
    ) -> CopyPiece:
        source, target = self.current.directory, self.directory
        return CopyPiece(copied, source, target, copied.size_bytes, end, finishes, syncs)

    def take(self, piece: CopyPiece, result: tuple[int, int | None]) -> None:
        """Applies the result of `piece.run`. A piece that no longer matches the log is dropped with
        the next one.
        """
        end, following = result
        copied = piece.copied
        copied.size_bytes = end
        if following is not None:
            copied.next_offset = following
        if piece.finishes and end == piece.end:
            copied.finished = True
            self._snapshots.add(copied.next_offset)

    def still_fits(self, piece: CopyPiece) -> bool:
        """Returns whether the segment of this piece is still the log's; if not, an error of the
        piece has no meaning.
        """
        return any(piece.copied.is_of(segment) for segment in self.current.segments)

    def _drop_what_went(self) -> None:
        """Drops copies of segments that the log deleted, replaced or cut."""
        live = {segment.base_offset: segment for segment in self.current.segments}
        for base, copied in list(self._copied.items()):
            if not copied.is_of(live.get(base)):
                self._drop(copied)

    def _drop(self, copied: _Copied) -> None:
        source = copied.source
        del self._copied[source.base_offset]
        self._snapshots.discard(copied.next_offset)
        names = (source.log_file + _UNFINISHED, *source.file_names)
        for name in (*names, snapshot_name(copied.next_offset)):
            self.directory.remove(name)

    # --- the end

    def complete(self) -> None:
        """Copies everything that is left; afterwards the future log is durable.

        That holds until the log is written to, so the caller swaps at once. After an error the copy
        can be continued.
        """
        current = self.current
        while (piece := self.next_piece()) is not None:
            self.take(piece, piece.run())
        active = self._copied[current.active_segment.base_offset]
        try:
            current.active_segment.offset_index.write_out()
            current.active_segment.time_index.write_out()
            piece = self._piece(active, active.size_bytes, finishes=True)
            self.take(piece, piece.run())
            for offset in sorted(set(current.producers.snapshots) - self._snapshots):
                copy_file(current.directory, self.directory, snapshot_name(offset))
            for name in (PARTITION_METADATA, GAPS_FILE):
                copy_file(current.directory, self.directory, name)
            epochs = format_epochs(current.epochs.entries())
            self.directory.write_atomic(LEADER_EPOCH_CHECKPOINT, epochs)  # syncs all names, too
        except (TidemarkError, OSError):
            self._drop(active)  # the log continues after it
            raise

    def segments_in(self, directory: Directory) -> list[Segment]:
        """Returns the log's segments in this copy, which is now called `directory`; only after
        `complete`.
        """
        return [_moved(segment, directory) for segment in self.current.segments]


def _moved(segment: Segment, directory: Directory) -> Segment:
    moved = Segment(
        directory,
        segment.base_offset,
        segment.config,
        size_bytes=segment.size_bytes,
        created_ms=segment.created_ms,
    )
    moved.is_rolled = segment.is_rolled
    return moved
