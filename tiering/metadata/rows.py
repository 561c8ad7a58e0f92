"""The segments of one partition as rows of bytes, found by id: 81 bytes each, and 4 of an index.

A broker may keep the metadata of millions of segments (KIP-405 counts 2.6 million), which as
objects take a kilobyte each. A row holds the fields of a segment; leader epochs, which repeat from
segment to segment, are an index into a table. Objects are made when a segment is asked for.

The index by id is a table of linear hashing. It grows by one bucket with each segment, so no
insertion pays for a rehash of all. Rows of removed segments are used again.
"""

from __future__ import annotations

from array import array
from struct import Struct
from uuid import UUID

from tidemark.types import TopicIdPartition
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)

# id, start, end, greatest timestamp, event timestamp, broker, size, epochs, next, flags, custom
_ROW = Struct("<16sqqqqiiIIBB15s")
_OFFSETS = Struct("<16sqq")
_PATTERN_AT, _NEXT_AT = _ROW.size - 25, _ROW.size - 21
_FLAGS_AT = _ROW.size - 17
_LINK = Struct("<I")
_PAGE_BITS = 7
_PAGE = (1 << _PAGE_BITS) - 1
_STATE_MASK, _TXN_INDEX_EMPTY = 0x3, 0x4
_CUSTOM_INLINE, _CUSTOM_ASIDE, _NO_CUSTOM = 15, 0xFE, 0xFF
_STATES = tuple(RemoteLogSegmentState)

Pattern = tuple[tuple[int, int], ...]
"""Leader epochs of a segment, with first offsets relative to the segment's."""


class SegmentRows:
    """The rows of one partition; a row's number is valid until `remove`."""

    __slots__ = ("_aside", "_count", "_free", "_heads", "_numbers", "_pages", "_partition",
                 "_patterns", "_used")  # fmt: skip

    def __init__(self) -> None:
        self._partition: TopicIdPartition | None = None
        self._pages: list[bytearray] = []
        self._used = 0
        self._count = 0
        self._free: list[int] = []
        self._heads = array("I", [0])  # row number + 1 of a bucket's first row; 0: none
        self._patterns: list[Pattern] = []
        self._numbers: dict[Pattern, int] = {}
        self._aside: dict[int, bytes] = {}  # custom metadata too long for a row

    def __len__(self) -> int:
        return self._count

    def find(self, identity: UUID) -> int | None:
        """Returns the number of the row with this id."""
        wanted = identity.bytes
        row = self._heads[self._bucket(wanted)]
        while row and self._id(row - 1) != wanted:
            row = self._next(row - 1)
        return row - 1 if row else None

    def insert(self, segment: RemoteLogSegmentMetadata) -> int:
        """Adds a segment with a new id; returns its row."""
        if self._partition is None:
            self._partition = segment.topic_id_partition
        if self._free:
            row = self._free.pop()
        else:
            row = self._used
            self._used += 1
            self._make_room(row)
        self._count += 1
        if self._count > len(self._heads):
            self._split()
        bucket = self._bucket(segment.id.bytes)
        self._write(row, segment, self._heads[bucket])
        self._heads[bucket] = row + 1
        return row

    def replace(self, row: int, segment: RemoteLogSegmentMetadata) -> None:
        """Writes a segment over the row with its id."""
        self._write(row, segment, self._next(row))

    def remove(self, row: int) -> None:
        """Removes a row; its number is used again."""
        bucket, link = self._bucket(self._id(row)), row + 1
        before = self._heads[bucket]
        if before == link:
            self._heads[bucket] = self._next(row)
        else:
            while (after := self._next(before - 1)) != link:
                before = after
            self._set_next(before - 1, self._next(row))
        self._aside.pop(row, None)
        self._free.append(row)
        self._count -= 1
        if not self._count:
            self.__init__()  # type: ignore[misc]  # the memory of an emptied partition is freed

    def get(self, row: int) -> RemoteLogSegmentMetadata:
        """Makes the segment of a row."""
        assert self._partition is not None
        (
            identity,
            start_offset,
            end_offset,
            max_timestamp_ms,
            event_timestamp_ms,
            broker_id,
            size_bytes,
            pattern,
            _,
            flags,
            custom_size,
            custom,
        ) = _ROW.unpack_from(self._pages[row >> _PAGE_BITS], (row & _PAGE) * _ROW.size)
        kept: bytes | None = custom[:custom_size]
        if custom_size > _CUSTOM_INLINE:
            kept = None if custom_size == _NO_CUSTOM else self._aside[row]
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(self._partition, UUID(bytes=identity)),
            start_offset,
            end_offset,
            max_timestamp_ms,
            broker_id,
            event_timestamp_ms,
            size_bytes,
            tuple(EpochEntry(e, start_offset + first) for e, first in self._patterns[pattern]),
            _STATES[flags & _STATE_MASK],
            kept,
            bool(flags & _TXN_INDEX_EMPTY),
        )

    def identity(self, row: int) -> UUID:
        """Returns the id of a row's segment."""
        return UUID(bytes=self._id(row))

    def start_offset(self, row: int) -> int:
        """Returns the first offset of a row's segment."""
        offset: int = self._offsets(row)[1]
        return offset

    def state(self, row: int) -> RemoteLogSegmentState:
        """Returns the state of a row's segment."""
        return _STATES[self._flags(row) & _STATE_MASK]

    def has_txn_index(self, row: int) -> bool:
        """Returns whether transactions were aborted in a row's segment."""
        return not self._flags(row) & _TXN_INDEX_EMPTY

    def epochs(self, row: int) -> Pattern:
        """Returns the leader epochs of a row's segment, with offsets relative to its start."""
        page, at = self._pages[row >> _PAGE_BITS], (row & _PAGE) * _ROW.size
        number: int = _LINK.unpack_from(page, at + _PATTERN_AT)[0]
        return self._patterns[number]

    def epoch_range(self, row: int, epoch: int) -> tuple[int, int] | None:
        """Returns first and last offset (inclusive) of `epoch` in a row's segment, or None."""
        _, start, end = self._offsets(row)
        first = None
        for known, relative in self.epochs(row):
            if first is not None:
                return first, start + relative - 1
            if known == epoch:
                first = start + max(relative, 0)
        return None if first is None else (first, end)

    def _write(self, row: int, segment: RemoteLogSegmentMetadata, link: int) -> None:
        start, custom = segment.start_offset, segment.custom_metadata
        pattern = tuple((e.epoch, e.start_offset - start) for e in segment.segment_leader_epochs)
        number = self._numbers.get(pattern)
        if number is None:
            number = self._numbers[pattern] = len(self._patterns)
            self._patterns.append(pattern)
        self._aside.pop(row, None)
        size = _NO_CUSTOM if custom is None else len(custom)
        if custom is not None and size > _CUSTOM_INLINE:
            self._aside[row], custom, size = custom, None, _CUSTOM_ASIDE
        _ROW.pack_into(
            self._pages[row >> _PAGE_BITS],
            (row & _PAGE) * _ROW.size,
            segment.id.bytes,
            start,
            segment.end_offset,
            segment.max_timestamp_ms,
            segment.event_timestamp_ms,
            segment.broker_id,
            segment.segment_size_bytes,
            number,
            link,
            segment.state | (_TXN_INDEX_EMPTY if segment.txn_index_empty else 0),
            size,
            custom or b"",
        )

    def _bucket(self, identity: bytes) -> int:
        count = len(self._heads)
        number = int.from_bytes(identity[8:], "big")
        bucket = number & ((1 << count.bit_length()) - 1)
        while bucket >= count:  # not split yet: the bucket that has its rows
            bucket ^= 1 << (bucket.bit_length() - 1)
        return bucket

    def _split(self) -> None:
        """Adds a bucket, which takes its rows from the one that had them."""
        new = len(self._heads)
        old = new ^ (1 << (new.bit_length() - 1))
        row, self._heads[old] = self._heads[old], 0
        self._heads.append(0)
        while row:
            after = self._next(row - 1)
            bucket = self._bucket(self._id(row - 1))
            self._set_next(row - 1, self._heads[bucket])
            self._heads[bucket] = row
            row = after

    def _make_room(self, row: int) -> None:
        """Adds room for a new row. Only the first page grows, so that small partitions stay small;
        no page is ever copied to another place.
        """
        page, within = row >> _PAGE_BITS, row & _PAGE
        if page == len(self._pages):
            self._pages.append(bytearray(_ROW.size * (_PAGE + 1) if page else 0))
        if len(self._pages[page]) <= within * _ROW.size:
            self._pages[page].extend(bytes(_ROW.size * 4))

    def _id(self, row: int) -> bytes:
        at = (row & _PAGE) * _ROW.size
        return bytes(self._pages[row >> _PAGE_BITS][at : at + 16])

    def _offsets(self, row: int) -> tuple[bytes, int, int]:
        page, at = self._pages[row >> _PAGE_BITS], (row & _PAGE) * _ROW.size
        found: tuple[bytes, int, int] = _OFFSETS.unpack_from(page, at)
        return found

    def _flags(self, row: int) -> int:
        return self._pages[row >> _PAGE_BITS][(row & _PAGE) * _ROW.size + _FLAGS_AT]

    def _next(self, row: int) -> int:
        page, at = self._pages[row >> _PAGE_BITS], (row & _PAGE) * _ROW.size
        link: int = _LINK.unpack_from(page, at + _NEXT_AT)[0]
        return link

    def _set_next(self, row: int, link: int) -> None:
        page, at = self._pages[row >> _PAGE_BITS], (row & _PAGE) * _ROW.size
        _LINK.pack_into(page, at + _NEXT_AT, link)
