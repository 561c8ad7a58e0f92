"""The writer of a checkpoint: header, data batches, footer; then frozen (KIP-630 "Snapshot
Format").

An unfinished checkpoint is `NAME.checkpoint.part`. `freeze` makes it durable and gives it its name:
fsync of the file, rename, fsync of the directory. So a file with a checkpoint's name is whole,
unless the disk damaged it later.

Offsets within the file count from 0. Every record has the timestamp of the last record contained,
so that replicas with the same state write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commitlog.disk.files import Directory, File
from snapshot.framing import encode_footer, encode_header
from snapshot.names import SnapshotId
from snapshot.values import MAX_BATCH_RECORDS, ValuesBatch
from tidemark.records import ControlMessage

DEFAULT_MAX_BATCH_BYTES = 1 << 20
_RECORD_OVERHEAD_BYTES = 21  # most that a record adds to its value


class SnapshotWriter:
    """One unfinished checkpoint. Blocks, so it runs on a worker thread. Ends with `freeze` or
    `abort`.
    """

    def __init__(
        self,
        directory: Directory,
        snapshot_id: SnapshotId,
        last_contained_log_timestamp_ms: int,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        quorum: Sequence[ControlMessage] = (),
    ) -> None:
        """Starts the part file anew. Raises StorageError.

        `quorum` are KRaftVersion and Voters as of the checkpoint's end (none with static voters).
        """
        self.id = snapshot_id
        self._directory = directory
        self._timestamp_ms = last_contained_log_timestamp_ms
        self._max_batch_bytes = max_batch_bytes
        self._offset = 0
        directory.remove(snapshot_id.part_name)
        self._file: File | None = directory.open(snapshot_id.part_name, create=True)
        epoch, timestamp_ms = snapshot_id.epoch, last_contained_log_timestamp_ms
        header = encode_header(self._offset, epoch, timestamp_ms, quorum)
        self._write(header, records=1 + len(quorum))
        self._pending = self._next_batch()

    def _open_file(self) -> File:
        if self._file is None:
            raise ValueError(f"checkpoint {self.id.name} is frozen or aborted")
        return self._file

    def _write(self, batch: bytes, records: int) -> None:
        self._open_file().append(batch)
        self._offset += records

    def append(self, values: Iterable[bytes]) -> None:
        """Adds records, and writes a batch whenever `max_batch_bytes` are collected. Raises
        StorageError.
        """
        pending = self._pending
        for value in values:
            full = pending.size_bytes + len(value) + _RECORD_OVERHEAD_BYTES > self._max_batch_bytes
            if pending.count and (full or pending.count >= MAX_BATCH_RECORDS):
                pending = self._flush_batch()
            pending.add(value)

    def _next_batch(self) -> ValuesBatch:
        return ValuesBatch(self._offset, self.id.epoch, self._timestamp_ms)

    def _flush_batch(self) -> ValuesBatch:
        self._write(self._pending.finish(), records=self._pending.count)
        self._pending = self._next_batch()
        return self._pending

    def freeze(self) -> None:
        """Writes the footer, syncs, renames, and syncs the directory. Raises FatalError if an fsync
        fails.
        """
        if self._pending.count:
            self._flush_batch()
        self._write(encode_footer(self._offset, self.id.epoch, self._timestamp_ms), records=1)
        file = self._open_file()
        file.fsync()
        file.close()
        self._file = None
        freeze_part(self._directory, self.id)

    def abort(self) -> None:
        """Removes the part file; does nothing after `freeze`."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._directory.remove(self.id.part_name)


def freeze_part(directory: Directory, snapshot_id: SnapshotId) -> None:
    """Gives a whole, synced part file its name, durably."""
    directory.rename(snapshot_id.part_name, snapshot_id.name)
    directory.fsync()
