"""The batches of one segment: framing, CRC, rising offsets, leader epochs that never go back.

No CRC covers base offset, length and leader epoch; neighbours contradict a wrong one. A chunk is
read and checked in one call, so a caller can limit its rate between two chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from commitlog.disk.files import File
from commitlog.segment.batch_table import BatchTable, sound_batches
from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, crc_is_valid, read_header

CHUNK_BYTES = 1 << 20
_REACH = (1 << 31) - 1  # offsets of a segment relative to its base


@dataclass(slots=True)
class BatchRun:
    """The result for the batches checked so far, and the bounds for those that follow.

    `starts` are the leader epochs, each with the first base offset of it; `ends` are where the
    batches before each of them end. `faults` are (byte, reason). `on_batches` receives the sound
    batches.
    """

    base_offset: int
    next_offset: int = -1
    epoch: int = -1
    position: int = 0
    ends_with_control: bool = False
    max_timestamp_ms: int = -1
    starts: list[tuple[int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)
    on_batches: Callable[[BatchTable], None] = lambda _: None

    def __post_init__(self) -> None:
        self.next_offset = max(self.next_offset, self.base_offset)


def check_batches(
    file: File, size_bytes: int, run: BatchRun, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[int]:
    """Yields the bytes of each chunk checked, up to `size_bytes`; the results are in `run`.

    A batch whose CRC fails is passed over, as its header says where the next one begins. At a
    header that makes no sense the check ends. Raises StorageError if the disk fails.
    """
    while run.position < size_bytes:
        begin = run.position
        data = file.pread(min(chunk_bytes, size_bytes - begin), begin)
        if len(data) < min(chunk_bytes, size_bytes - begin):
            return  # truncated meanwhile
        if not _take_sound(run, memoryview(data)) and not _take_one(file, size_bytes, run):
            return
        yield run.position - begin


def _take_sound(run: BatchRun, view: memoryview) -> bool:
    """Takes the sound batches that `view` begins with. Returns whether there was one."""
    positions, end, _ = sound_batches(view)
    if not end:
        return False
    table = BatchTable(view[:end], positions)
    count = table.in_order(run.base_offset, run.next_offset, _REACH)
    if count < len(table):
        if not count:
            return False
        table.keep(count)
    begin = run.position
    _take_epochs(run, table)
    run.on_batches(table)
    last = table.header(-1)
    run.next_offset = last.next_offset
    run.ends_with_control = last.is_control
    run.max_timestamp_ms = max(run.max_timestamp_ms, int(table.column("max_timestamp_ms").max()))
    run.position = begin + last.end_position
    return True


def _take_epochs(run: BatchRun, table: BatchTable) -> None:
    """Notes the leader epochs of the table, and reports the first batch whose epoch goes back."""
    epochs, offsets = table.column("partition_leader_epoch"), table.column("base_offset")
    floors = np.maximum.accumulate(np.concatenate(([run.epoch], epochs)))
    for row in np.nonzero(epochs < floors[:-1])[0][:1].tolist():
        reason = f"leader epoch {epochs[row]} after epoch {floors[row]}"
        run.faults.append((run.position + int(table.positions[row]), reason))
    for row in np.nonzero(epochs > floors[:-1])[0].tolist():
        run.starts.append((int(epochs[row]), int(offsets[row])))
        run.ends.append(table.header(row - 1).next_offset if row else run.next_offset)
    run.epoch = int(floors[-1])


def _take_one(file: File, size_bytes: int, run: BatchRun) -> bool:
    """Takes one large or damaged batch. Returns whether the next one can be found."""
    left = size_bytes - run.position
    try:
        head = file.pread(HEADER_BYTES, run.position)
        if len(head) < HEADER_BYTES:
            raise CorruptMessageError(f"{left} bytes are left, fewer than a batch header has")
        header = read_header(head)
        if header.size_bytes > left:
            raise CorruptMessageError(f"the batch says {header.size_bytes} bytes, {left} are left")
        if header.base_offset < run.next_offset:
            raise CorruptMessageError(
                f"offset {header.base_offset} where {run.next_offset} or more is expected"
            )
        if header.last_offset > run.base_offset + _REACH:
            raise CorruptMessageError(f"offset {header.last_offset} is too far from the segment's")
    except CorruptMessageError as error:
        run.faults.append((run.position, str(error)))
        return False
    data = file.pread(header.size_bytes, run.position)
    if len(data) < header.size_bytes:
        return False
    if crc_is_valid(data, 0, header):
        if _take_sound(run, memoryview(data)):
            return True
        run.faults.append((run.position, "its counts contradict each other"))
        return False
    run.faults.append((run.position, "the CRC check fails"))
    run.next_offset = header.next_offset
    run.position += header.size_bytes
    return True
