"""Producer snapshots made again: from an earlier one, and the batches behind it.

The tier needs the snapshot at the end of each segment it copies. A follower that starts from the
tier has no batches before that to find the producers in. So an empty snapshot in place of a lost
one lets duplicates of an idempotent producer pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commitlog.disk.files import Directory, DiskError
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.segment.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, snapshot_name
from commitlog.segment.producer_state import (
    ProducerStateManager,
    decode_snapshot,
    encode_snapshot,
    in_kafkas_order,
)
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.records import iter_batches
from tidemark.records.control import end_transaction
from tidemark.records.header import BatchHeader, verify_crc

NO_PRODUCERS = encode_snapshot(())
_PIECE_BYTES = 4 << 20

Read = Callable[[int, int], bytes]
"""Returns the bytes of a segment's log from a position on, up to another one."""


def producers_after(
    snapshot: bytes, read: Read, size_bytes: int, begin_offset: int, end_offset: int
) -> bytes:
    """Returns the snapshot after the batches of a segment's log in [begin, end).

    Raises CorruptMessageError, StorageError if `snapshot` is damaged, and what `read` raises.
    """
    state = ProducerStateManager(MemoryDirectory(), 0)
    state.install(snapshot, begin_offset)
    for header, batch in _batches(read, size_bytes):
        if header.base_offset >= end_offset:
            break
        if header.last_offset >= begin_offset and header.producer_id >= 0:
            verify_crc(batch, 0, header)
            state.update(header, end_transaction(batch, 0) if header.is_control else None)
    return encode_snapshot(in_kafkas_order(state.producers))


def _batches(read: Read, size_bytes: int) -> Iterator[tuple[BatchHeader, bytes]]:
    position, wanted = 0, _PIECE_BYTES
    while position < size_bytes:
        data = read(position, min(position + wanted, size_bytes))
        taken = 0
        for at, header in iter_batches(data):
            taken = at + header.size_bytes
            yield header, data[at:taken]
        if not taken and position + wanted >= size_bytes:
            raise CorruptMessageError(f"the batch at position {position} is incomplete")
        position, wanted = position + taken, _PIECE_BYTES if taken else 2 * wanted


def snapshot_of(
    directory: Directory, base_offset: int, next_offset: int, log_start_offset: int
) -> bytes:
    """Returns the producer snapshot at the end of the rolled segment [base, next) of a log; any
    thread. One that is missing or damaged is made again. Raises StorageError if the batches since
    the newest sound one are not on this disk, or CorruptMessageError if they are damaged.
    """
    own = _sound(directory, next_offset)
    if own is not None:
        return own
    names = directory.list()
    bases = _numbers(names, LOG_SUFFIX)
    known = [offset for offset in _numbers(names, SNAPSHOT_SUFFIX) if offset < next_offset]
    for offset in reversed(known):
        snapshot = _sound(directory, offset)
        if snapshot is not None:
            break
    else:
        offset, snapshot = log_start_offset, NO_PRODUCERS
    needed = [base for base in bases if base <= base_offset]
    while len(needed) > 1 and needed[1] <= offset:
        del needed[0]
    if not needed or needed[0] > offset:
        raise StorageError(
            f"{directory.path} has no sound producer snapshot below offset {next_offset}, and no"
            f" batches from {offset} on to make one of: the segment at {base_offset} is not copied,"
            " since a follower that starts from it would let duplicates pass. Another replica may"
            " have the snapshot: elect it as leader"
        )
    for base in needed:
        file = directory.open_read_only(f"{base:020d}{LOG_SUFFIX}")
        try:
            snapshot = producers_after(
                snapshot,
                lambda start, end, file=file: file.pread(end - start, start),  # type: ignore[misc]
                file.size,
                offset,
                next_offset,
            )
        finally:
            file.close()
    return snapshot


def _numbers(names: list[str], suffix: str) -> list[int]:
    return sorted(
        int(name[:20])
        for name in names
        if name.endswith(suffix) and len(name) == 20 + len(suffix) and name[:20].isdigit()
    )


def _sound(directory: Directory, offset: int) -> bytes | None:
    name = snapshot_name(offset)
    if not directory.exists(name):
        return None
    data = directory.read(name)
    try:
        decode_snapshot(data, name)
    except DiskError:
        raise
    except StorageError:
        return None
    return data
