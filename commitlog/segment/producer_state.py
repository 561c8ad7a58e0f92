"""The idempotent and transactional producers of a log (Kafka's ProducerStateManager).

Each producer id has its epoch, its last five batches, and the first offset of its open transaction.
A batch that is sent again is answered with the offsets of the first time. The open transactions
determine the first unstable offset, which read_committed consumers do not pass.

The state is a function of the log. It is written to a snapshot at each roll (`%020d.snapshot`) and
on a clean close, and otherwise replayed from batch headers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from crc32c import crc32c

from commitlog.disk.files import Directory, DiskError
from commitlog.segment.names import SNAPSHOT_SUFFIX, snapshot_name
from commitlog.types import AbortedTransaction
from tidemark.errors import StorageError
from tidemark.records.control import EndTransactionMarker
from tidemark.records.header import MAX_SEQUENCE
from tidemark.records.header import BatchHeader as Header

RETAINED_BATCHES = 5
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """One of the last batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer id; -1 stands for unknown epochs, as in the snapshot file."""

    producer_id: int
    producer_epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    current_txn_first_offset: int | None = None
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=RETAINED_BATCHES))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def find_duplicate(self, header: Header) -> ProducerBatch | None:
        """Returns the retained batch with the same epoch and sequences."""
        if header.producer_epoch != self.producer_epoch:
            return None
        for batch in self.batches:
            if (
                batch.first_sequence == header.base_sequence
                and batch.last_sequence == header.last_sequence
            ):
                return batch
        return None


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Encodes the entries as a snapshot file (version 1)."""
    body = bytearray()
    count = 0
    for entry in entries:
        last = entry.batches[-1] if entry.batches else ProducerBatch(-1, -1, 0, -1)
        first = entry.current_txn_first_offset
        body += _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            entry.last_timestamp_ms,
            entry.coordinator_epoch,
            -1 if first is None else first,
        )
        count += 1
    tail = _COUNT.pack(count) + bytes(body)
    return _HEAD.pack(1, crc32c(tail)) + tail


def decode_snapshot(data: bytes, name: str = "producer snapshot") -> list[ProducerEntry]:
    """Decodes a snapshot file. Raises StorageError if it is damaged."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise StorageError(f"{name} is too short to be a producer snapshot")
    version, crc = _HEAD.unpack_from(data)
    if version != 1:
        raise StorageError(f"{name} has version {version}; expected 1")
    if crc32c(data[_HEAD.size :]) != crc:
        raise StorageError(f"{name} fails its CRC check")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    body = data[_HEAD.size + _COUNT.size :]
    if len(body) != count * _ENTRY.size:
        raise StorageError(f"{name} announces {count} producers and has {len(body)} bytes of them")
    entries = []
    for fields in _ENTRY.iter_unpack(body):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator, first = fields
        entry = ProducerEntry(
            producer_id, epoch, coordinator, timestamp, first if first >= 0 else None
        )
        if offset >= 0:
            entry.batches.append(ProducerBatch(sequence, offset, delta, timestamp))
        entries.append(entry)
    return entries


def in_kafkas_order(producers: dict[int, ProducerEntry]) -> list[ProducerEntry]:
    """Returns the entries in the order of Kafka's hash map: by bucket, then by age. So a snapshot
    has the same bytes whether Kafka or this code wrote it.
    """
    buckets = 16
    while len(producers) * 4 > buckets * 3:
        buckets *= 2

    def bucket(producer_id: int) -> int:
        folded = (producer_id ^ producer_id >> 32) & 0xFFFFFFFF
        return (folded ^ folded >> 16) & (buckets - 1)

    return [producers[producer_id] for producer_id in sorted(producers, key=bucket)]


class ProducerStateManager:
    """The producers of one log up to `end_offset`, and their snapshot files."""

    def __init__(self, directory: Directory, expiration_ms: int) -> None:
        self.directory = directory
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        self.end_offset = 0
        self._ongoing: dict[int, int] = {}  # first offset of an open transaction -> producer id
        self._unreplicated: dict[int, int] = {}  # ended: first offset -> offset of its marker
        self._unsynced: list[str] = []
        self._snapshots = self._list()

    # --- appends

    def find_duplicate(self, header: Header) -> ProducerBatch | None:
        """Returns the earlier append of this batch, if it is among the producer's last five."""
        entry = self.producers.get(header.producer_id)
        return entry.find_duplicate(header) if entry else None

    def update(
        self, header: Header, ended: EndTransactionMarker | None
    ) -> AbortedTransaction | None:
        """Applies an appended batch, or one read back from the log.

        `ended` is the content of its control record, if it has one. Returns the transaction that it
        aborted, for the transaction index.
        """
        self.end_offset = header.next_offset
        if header.producer_id < 0:
            return None
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_id)
        if header.producer_epoch != entry.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_timestamp_ms = header.max_timestamp_ms
        if header.is_control:
            return self._end(entry, header, ended) if ended else None
        entry.batches.append(
            ProducerBatch(
                header.last_sequence,
                header.last_offset,
                header.last_offset_delta,
                header.max_timestamp_ms,
            )
        )
        if header.is_transactional and entry.current_txn_first_offset is None:
            entry.current_txn_first_offset = header.base_offset
            self._ongoing[header.base_offset] = header.producer_id
        return None

    def _end(
        self, entry: ProducerEntry, header: Header, end: EndTransactionMarker
    ) -> AbortedTransaction | None:
        entry.coordinator_epoch = end.coordinator_epoch
        first = entry.current_txn_first_offset
        if first is None:
            return None
        entry.current_txn_first_offset = None
        self._ongoing.pop(first, None)
        self._unreplicated[first] = header.last_offset
        if end.committed:
            return None
        stable = min(self._ongoing, default=header.last_offset + 1)
        return AbortedTransaction(entry.producer_id, first, header.last_offset, stable)

    # --- stability

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose end is not replicated yet."""
        if not self._ongoing and not self._unreplicated:
            return None
        ongoing = min(self._ongoing, default=None)
        ended = min(self._unreplicated, default=None)
        if ongoing is None or ended is None:
            return ended if ongoing is None else ongoing
        return min(ongoing, ended)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Drops ended transactions whose marker is replicated."""
        if self._unreplicated:
            for first, last in list(self._unreplicated.items()):
                if last < high_watermark:
                    del self._unreplicated[first]

    def remove_expired(self, now_ms: int) -> int:
        """Drops producers without an open transaction that were idle for the expiration time."""
        expired = [
            entry.producer_id
            for entry in self.producers.values()
            if self._is_expired(entry, now_ms)
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return (
            entry.current_txn_first_offset is None
            and now_ms - entry.last_timestamp_ms >= self.expiration_ms
        )

    # --- snapshots

    def _list(self) -> list[int]:
        names = (name for name in self.directory.list() if name.endswith(SNAPSHOT_SUFFIX))
        return sorted(int(name[:20]) for name in names if len(name) == 29 and name[:20].isdigit())

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The offsets of the snapshot files."""
        return tuple(self._snapshots)

    def take_snapshot(self) -> bool:
        """Writes the state at `end_offset`; the log's next flush makes it durable. False if that
        was done before.
        """
        if self.end_offset in self._snapshots or not self.end_offset:
            return False
        name = snapshot_name(self.end_offset)
        self.directory.remove(name)
        file = self.directory.open(name, create=True)
        try:
            file.append(encode_snapshot(in_kafkas_order(self.producers)))
        finally:
            file.close()
        self._unsynced.append(name)
        self._snapshots.append(self.end_offset)
        self._snapshots.sort()
        return True

    def take_unsynced(self) -> list[str]:
        """Returns the names of snapshot files that no flush has synced yet. The caller then syncs
        them.
        """
        names, self._unsynced = self._unsynced, []
        return names

    def forget_snapshot(self, offset: int) -> None:
        """Drops a snapshot whose file the log renamed or removed."""
        if offset in self._snapshots:
            self._snapshots.remove(offset)

    def remove_stray(self, base_offsets: set[int]) -> None:
        """Removes snapshots that belong to no segment; keeps the newest."""
        for offset in self._snapshots[:-1]:
            if offset not in base_offsets:
                self._remove(offset)

    def remove_damaged(self) -> int:
        """Removes snapshots that can not be decoded, and forgets those that are gone, since batches
        give the same state. Returns how many.
        """
        damaged = [offset for offset in self._snapshots if not self._is_sound(offset)]
        for offset in damaged:
            self._remove(offset)
        return len(damaged)

    def _is_sound(self, offset: int) -> bool:
        name = snapshot_name(offset)
        if not self.directory.exists(name):
            return False
        try:
            decode_snapshot(self.directory.read(name))
        except DiskError:
            raise
        except StorageError:
            return False
        return True

    def drop_snapshots(self) -> None:
        """Removes all snapshots, since the log continues elsewhere, perhaps after other batches."""
        for offset in self._snapshots.copy():
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        self.directory.remove(snapshot_name(offset))
        self._snapshots.remove(offset)

    def reload(self, start_offset: int, end_offset: int, now_ms: int) -> None:
        """Loads the newest valid snapshot within [start, end], and removes those above the end.

        Sets `end_offset` to that snapshot's offset, or to the start if there is none. The batches
        from there to the log end must then be replayed with `update`.
        """
        self.clear(start_offset)
        for offset in reversed(self._snapshots.copy()):
            if offset > end_offset:
                self._remove(offset)
                continue
            if offset < start_offset:
                break
            try:
                entries = decode_snapshot(self.directory.read(snapshot_name(offset)))
            except StorageError:
                self._remove(offset)
                continue
            self._take(entries, now_ms)
            self.end_offset = offset
            return

    def restore(self, offset: int) -> None:
        """Loads the newest valid snapshot at or below `offset`, if there is one, and sets
        `end_offset` to its offset. Changes no file.
        """
        self.clear(0)
        for known in reversed(self._snapshots):
            if known <= offset:
                try:
                    entries = decode_snapshot(self.directory.read(snapshot_name(known)))
                except StorageError:
                    continue
                self._take(entries, 0)
                self.end_offset = known
                return

    def _take(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.producers[entry.producer_id] = entry
                if entry.current_txn_first_offset is not None:
                    self._ongoing[entry.current_txn_first_offset] = entry.producer_id

    def clear(self, end_offset: int) -> None:
        """Drops all producers; the state is that of an empty log at `end_offset`."""
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.end_offset = end_offset

    def install(self, data: bytes, end_offset: int) -> None:
        """Starts with a snapshot from elsewhere (the tier); changes no file. Expired producers are
        removed by a later pass. Raises StorageError if the snapshot is damaged.
        """
        entries = decode_snapshot(data)
        self.clear(end_offset)
        self._take(entries, 0)

    def keep_snapshot(self, data: bytes, offset: int) -> None:
        """Durably writes a snapshot from elsewhere, and removes all others."""
        self.directory.write_atomic(snapshot_name(offset), data)
        self._snapshots = sorted({*self._snapshots, offset})
        for other in self._snapshots.copy():
            if other != offset:
                self._remove(other)

    def validate(self) -> None:
        """Asserts that open transactions and entries agree."""
        for first, producer_id in self._ongoing.items():
            assert self.producers[producer_id].current_txn_first_offset == first
        for entry in self.producers.values():
            assert len(entry.batches) <= RETAINED_BATCHES
