"""The reader of a checkpoint, with every check: framing, CRC of each batch, header first, footer
last, nothing after it.

Memory is bounded by the largest batch; a whole file is never loaded. Source: KIP-630 "Snapshot
Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from commitlog.disk.files import Directory, File
from snapshot.framing import ControlBatch, decode_batch_at, header_timestamp_ms
from snapshot.names import SUFFIX, SnapshotId, parse_name
from tidemark.errors import CorruptMessageError, SnapshotNotFoundError
from tidemark.records import ControlMessage, ControlType, KRaftVersion, Voters, verify_crc
from tidemark.records.header import HEADER_BYTES, OVERHEAD_BYTES, claimed_size, read_header


class SnapshotReader(Protocol):
    """A checkpoint as a state machine reads it."""

    @property
    def id(self) -> SnapshotId: ...

    @property
    def last_contained_log_timestamp_ms(self) -> int: ...

    def batches(self) -> Iterator[list[bytes]]:
        """Yields the values of each data batch, in order. Raises CorruptMessageError."""
        ...


def file_name(directory: Directory, snapshot_id: SnapshotId) -> str | None:
    """Returns the checkpoint's file name in the directory, with 10 or with 20 digits of epoch."""
    long_name = f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:020d}{SUFFIX}"
    for name in (snapshot_id.name, long_name):
        if directory.exists(name):
            return name
    return None


class FileSnapshotReader:
    """A checkpoint file. Each pass opens the file anew, so that an unused reader holds no file."""

    def __init__(
        self, directory: Directory, snapshot_id: SnapshotId, *, name: str | None = None
    ) -> None:
        """Reads the header batch. Raises SnapshotNotFoundError, CorruptMessageError,
        StorageError.
        """
        self._directory = directory
        self._id = snapshot_id
        found = name if name is not None else file_name(directory, snapshot_id)
        if found is None or not directory.exists(found):
            raise SnapshotNotFoundError(f"there is no {snapshot_id.name} in {directory.path}")
        self._name = found
        first = next(self._raw_batches(), None)
        if not isinstance(first, ControlBatch) or first.type is not ControlType.SNAPSHOT_HEADER:
            raise self._corrupt("it does not begin with a snapshot header")
        self._timestamp_ms = header_timestamp_ms(first)
        self._quorum = tuple(
            r.message for r in first.records if isinstance(r.message, KRaftVersion | Voters)
        )

    @property
    def id(self) -> SnapshotId:
        return self._id

    @property
    def size_bytes(self) -> int:
        return self._directory.size_of(self._name)

    @property
    def last_contained_log_timestamp_ms(self) -> int:
        """Append time in ms of the last record in the checkpoint."""
        return self._timestamp_ms

    @property
    def quorum(self) -> tuple[ControlMessage, ...]:
        """KRaftVersion and Voters after the header, in its batch; none with static voters."""
        return self._quorum

    def _corrupt(self, reason: str) -> CorruptMessageError:
        return CorruptMessageError(f"checkpoint {self._directory.path}/{self._name}: {reason}")

    def _raw_batches(self) -> Iterator[ControlBatch | list[bytes]]:
        for raw in self._framed():
            yield decode_batch_at(raw)

    def _framed(self) -> Iterator[bytes]:
        file = self._directory.open_read_only(self._name)
        try:
            position, size, offset = 0, file.size, 0
            while position < size:
                raw = self._read_batch(file, position, size)
                header = read_header(raw)
                # The CRC does not cover base offset and epoch; a checkpoint counts from 0 on.
                expected = (offset, self._id.epoch)
                if (header.base_offset, header.partition_leader_epoch) != expected:
                    raise self._corrupt(
                        f"the batch at byte {position} has offset {header.base_offset} and epoch "
                        f"{header.partition_leader_epoch}, not {offset} and {self._id.epoch}"
                    )
                offset = header.next_offset
                yield raw
                position += len(raw)
        finally:
            file.close()

    def _read_batch(self, file: File, position: int, size: int) -> bytes:
        prefix = file.pread(OVERHEAD_BYTES, position)
        length = claimed_size(prefix) if len(prefix) == OVERHEAD_BYTES else 0
        if not HEADER_BYTES <= length <= size - position:
            raise self._corrupt(f"the batch at byte {position} is torn")
        raw = file.pread(length, position)
        if len(raw) != length:
            raise self._corrupt(f"the batch at byte {position} is torn")
        return raw

    def batches(self) -> Iterator[list[bytes]]:
        """Yields the values of each data batch, in order. Raises CorruptMessageError at the first
        flaw.
        """
        ended = False
        for number, batch in enumerate(self._raw_batches()):
            if ended:
                raise self._corrupt("there is something behind the snapshot footer")
            if not isinstance(batch, ControlBatch):
                yield batch
            elif batch.type is ControlType.SNAPSHOT_FOOTER:
                ended = True
            elif batch.type is ControlType.SNAPSHOT_HEADER and number > 0:
                raise self._corrupt("there is a second snapshot header")
        if not ended:
            raise self._corrupt("it has no snapshot footer")

    def verify_checksums(self) -> None:
        """Reads everything as `verify` does, but decodes no data record: some ten times faster.
        Raises CorruptMessageError.
        """
        ended = False
        for raw in self._framed():
            if ended:
                raise self._corrupt("there is something behind the snapshot footer")
            header = read_header(raw)
            try:
                verify_crc(raw, 0, header)
            except CorruptMessageError as error:
                raise self._corrupt(str(error)) from error
            batch = decode_batch_at(raw) if header.is_control else None
            ended = isinstance(batch, ControlBatch) and batch.type is ControlType.SNAPSHOT_FOOTER
        if not ended:
            raise self._corrupt("it has no snapshot footer")

    def verify(self) -> int:
        """Reads everything; returns the number of data records. Raises CorruptMessageError."""
        return sum(len(batch) for batch in self.batches())


def list_snapshots(directory: Directory) -> list[SnapshotId]:
    """Returns the frozen checkpoints of a directory, oldest first; does not check that they are
    whole.
    """
    found = (parse_name(name) for name in directory.list())
    return sorted({snapshot_id for snapshot_id in found if snapshot_id is not None})
