"""The sidecar of a remote segment: what was encoded is decoded, and no other bytes are."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.tiering.builders import STARTED, segment
from tidemark.types import TopicIdPartition
from tiering.errors import (
    CorruptRemoteObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiering.store.manager import IndexType, LogSegmentData
from tiering.store.sidecar import (
    HEAD_BYTES,
    SidecarBuilder,
    decode_table,
    decode_unpinned,
    pin_of,
    table_bytes,
)

CHUNK = 64


class Source:
    """Bytes as a ByteSource; `reads` are those made of it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def pread(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        return self.content[position : position + size]


offsets = st.integers(0, 2**62)
times = st.integers(-1, 2**62)


@st.composite
def metadatas(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(offsets)
    partition = TopicIdPartition(
        draw(st.uuids()), draw(st.text(max_size=249)), draw(st.integers(0, 2**31 - 1))
    )
    epochs = st.builds(EpochEntry, st.integers(0, 2**31 - 1), offsets)
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, draw(st.uuids())),
        start,
        draw(st.integers(start, 2**63 - 1)),
        draw(times),
        draw(st.integers(0, 2**31 - 1)),
        draw(times),
        0,
        tuple(draw(st.lists(epochs, min_size=1, max_size=5))),
        txn_index_empty=draw(st.booleans()),
    )


parts = st.dictionaries(st.sampled_from(IndexType), st.binary(max_size=50))
logs = st.binary(min_size=1, max_size=5 * CHUNK)


def build(
    metadata: RemoteLogSegmentMetadata, log: bytes, indexes: dict[IndexType, bytes]
) -> tuple[bytes, RemoteLogSegmentMetadata]:
    """Returns a sidecar, and the segment with its pin."""
    metadata = replace(metadata, segment_size_bytes=len(log))
    builder = SidecarBuilder(metadata, LogSegmentData(Source(log), indexes), CHUNK)
    sidecar, pin = builder.finish()
    return sidecar, replace(metadata, custom_metadata=pin)


@given(metadatas(), logs, parts)
def test_the_table_describes_segment_parts_and_log(
    metadata: RemoteLogSegmentMetadata, log: bytes, indexes: dict[IndexType, bytes]
) -> None:
    sidecar, pinned = build(metadata, log, indexes)
    pin = pin_of(pinned)
    assert pin is not None and len(pinned.custom_metadata or b"") == 12
    assert table_bytes(sidecar[:HEAD_BYTES], pinned) == pin.table_bytes
    head = sidecar[: pin.table_bytes]
    for table in (decode_table(head, pinned), decode_unpinned(sidecar)):
        assert table.metadata == replace(pinned, custom_metadata=None)
        assert table.encode() == head
        assert table.parts.keys() == indexes.keys()
        for kind, content in indexes.items():
            part = table.part(kind)
            assert sidecar[part.position : part.position + part.length] == content
            assert table.check_part(kind, content) == content
        table.check_log(0, log)
        for at in range(0, len(log), CHUNK):
            table.check_log(at, log[at : at + CHUNK])
    assert len(sidecar) == len(head) + sum(map(len, indexes.values()))


@given(metadatas(), logs, parts, st.data())
def test_no_flipped_bit_of_sidecar_or_log_passes(
    metadata: RemoteLogSegmentMetadata,
    log: bytes,
    indexes: dict[IndexType, bytes],
    data: st.DataObject,
) -> None:
    sidecar, pinned = build(metadata, log, indexes)
    pin = pin_of(pinned)
    assert pin is not None
    table = decode_table(sidecar, pinned)
    damaged = bytearray(sidecar)
    at = data.draw(st.integers(0, len(sidecar) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    if at < pin.table_bytes:
        with pytest.raises(CorruptRemoteObjectError):
            decode_table(bytes(damaged), pinned)
    else:
        (hit,) = [
            kind
            for kind, part in table.parts.items()
            if part.position <= at < part.position + part.length
        ]
        part = table.part(hit)
        with pytest.raises(CorruptRemoteObjectError, match=rf"byte {part.position}.*{hit.value}"):
            table.check_part(hit, bytes(damaged[part.position : part.position + part.length]))
    at = data.draw(st.integers(0, len(log) - 1))
    other = bytearray(log)
    other[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRemoteObjectError, match=f"byte {at // CHUNK * CHUNK}: .*chunk"):
        table.check_log(0, bytes(other))


@given(metadatas(), logs, parts, st.data())
def test_a_cut_sidecar_is_corrupt(
    metadata: RemoteLogSegmentMetadata,
    log: bytes,
    indexes: dict[IndexType, bytes],
    data: st.DataObject,
) -> None:
    sidecar, pinned = build(metadata, log, indexes)
    pin = pin_of(pinned)
    assert pin is not None
    cut = data.draw(st.integers(0, pin.table_bytes - 1))
    with pytest.raises(CorruptRemoteObjectError):
        decode_table(sidecar[:cut], pinned)


@given(st.binary(max_size=300))
def test_foreign_bytes_are_no_table(content: bytes) -> None:
    with pytest.raises(CorruptRemoteObjectError):
        decode_unpinned(content)


@given(logs, st.data())
def test_the_aligned_range_is_checked_and_another_is_refused(
    log: bytes, data: st.DataObject
) -> None:
    sidecar, pinned = build(segment(0, 9), log, {})
    table = decode_table(sidecar, pinned)
    start = data.draw(st.integers(0, len(log)))
    end = data.draw(st.integers(start, len(log)))
    first, last = table.aligned(start, end)
    assert first <= start <= end <= last <= len(log)
    table.check_log(first, log[first:last])
    if (start, end) != (first, last):
        with pytest.raises(ValueError, match="whole chunks"):
            table.check_log(start, log[start:end])


def test_a_sound_sidecar_of_another_copy_is_corrupt() -> None:
    mine, pinned = build(segment(0, 9, 1), b"log", {})
    other, _ = build(segment(0, 9, 2), b"log", {})
    newer, _ = build(segment(0, 9, 1, e0=0, e1=3), b"log", {})
    assert decode_table(mine, pinned)
    for wrong in (other, newer):
        with pytest.raises(CorruptRemoteObjectError, match="not the one of the metadata"):
            decode_table(wrong, pinned)
    with pytest.raises(CorruptRemoteObjectError, match="the sidecar is of"):
        decode_table(other, replace(pinned, custom_metadata=None))


def test_a_newer_version_says_to_upgrade() -> None:
    sidecar, pinned = build(segment(0, 9), b"log", {})
    table = decode_unpinned(sidecar).encode()
    body = table[:4] + (2).to_bytes(2, "big") + table[6:-4]
    with pytest.raises(RemoteStorageError, match="version 2: upgrade this node"):
        decode_unpinned(body + crc32c(body).to_bytes(4, "big"))
    assert pin_of(pinned)


def test_other_custom_metadata_is_no_pin() -> None:
    for custom in (None, b"", b"where it lies", bytes(12), b"TMsc"):
        assert pin_of(replace(segment(0, 9), custom_metadata=custom)) is None


def test_a_part_that_the_segment_lacks_is_not_found() -> None:
    sidecar, pinned = build(segment(0, 9), b"log", {IndexType.OFFSET: b"1"})
    with pytest.raises(RemoteResourceNotFoundError, match="txnindex"):
        decode_table(sidecar, pinned).part(IndexType.TRANSACTION)


@given(logs, st.integers(1, 3), st.booleans())
def test_the_log_is_read_once_in_whatever_order(log: bytes, chunks: int, backwards: bool) -> None:
    source = Source(log)
    metadata = replace(segment(0, 9), segment_size_bytes=len(log))
    builder = SidecarBuilder(metadata, LogSegmentData(source, {}), CHUNK)
    step = chunks * CHUNK
    starts = list(range(0, len(log), step))
    for at in reversed(starts) if backwards else starts:
        builder.log.pread(at, min(step, len(log) - at))
    reads = len(source.reads)
    sidecar, _ = builder.finish()
    assert len(source.reads) == reads == len(starts)
    assert sidecar == build(metadata, log, {})[0]


def test_pieces_that_are_no_whole_chunks_are_read_again() -> None:
    log = bytes(range(200))
    metadata = replace(segment(0, 9), segment_size_bytes=200)
    builder = SidecarBuilder(metadata, LogSegmentData(Source(log), {}), CHUNK)
    for at in range(0, 200, 30):
        builder.log.pread(at, 30)
    assert builder.finish()[0] == build(metadata, log, {})[0]


def test_a_log_that_changes_or_ends_early_is_not_described() -> None:
    metadata = replace(segment(0, 9), segment_size_bytes=200)
    source = Source(bytes(200))
    builder = SidecarBuilder(metadata, LogSegmentData(source, {}), CHUNK)
    builder.log.pread(0, 128)
    source.content = bytes(100) + b"x" + bytes(99)
    with pytest.raises(RetriableRemoteStorageError, match="changed at 64"):
        builder.log.pread(64, 64)

    class Short(Source):
        size_bytes = 300

    builder = SidecarBuilder(metadata, LogSegmentData(Short(bytes(200)), {}), CHUNK)
    with pytest.raises(RetriableRemoteStorageError, match="ends early"):
        builder.finish()


def test_the_layout_does_not_change() -> None:
    """Objects of earlier releases stay readable."""
    metadata = segment(0, 9, 5, state=STARTED, partition=TopicIdPartition(UUID(int=7), "t", 3))
    indexes = {IndexType.OFFSET: b"1", IndexType.LEADER_EPOCH: b"22"}
    sidecar, pinned = build(metadata, bytes(100), indexes)
    assert pinned.custom_metadata == bytes.fromhex("544d7363000000b3ca5e3a85")
    assert sidecar == bytes.fromhex(
        "544d73630001000000000000000000b3000000000000000000000000000000070000000000000000"
        "0000000000000005000000030001740000000000000000000000000000000900000000000003e800"
        "00000000001388000000010000000000000064000000000100000000000000000000000000000040"
        "0000000203c8eb67fa2626d2020000000000000000b3000000000000000190f599e3040000000000"
        "0000b4000000000000000247b26cf9ca5e3a85313232"
    )
