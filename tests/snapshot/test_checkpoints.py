"""Checkpoint files: ours read back, Kafka's are valid, every flaw is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from snapshot import (
    FileSnapshotReader,
    SnapshotId,
    SnapshotInfo,
    SnapshotWriter,
    delete_snapshot,
    first_to_keep,
    install_part,
    list_snapshots,
    parse_name,
    read_piece,
    remove_leftovers,
    write_piece,
)
from snapshot.framing import encode_footer
from tidemark.errors import (
    CorruptMessageError,
    FatalError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.0" / "__cluster_metadata-0"
ID = SnapshotId(42, 3)


def write(directory, values, snapshot_id=ID, max_batch_bytes=1 << 20):
    writer = SnapshotWriter(directory, snapshot_id, 1_700_000_000_000, max_batch_bytes)
    writer.append(values)
    writer.freeze()


def read(directory, snapshot_id=ID):
    reader = FileSnapshotReader(directory, snapshot_id)
    return [value for batch in reader.batches() for value in batch]


@given(
    st.lists(st.binary(max_size=300), max_size=60),
    st.integers(min_value=1, max_value=2000),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back_in_order(values, max_batch_bytes):
    directory = MemoryDirectory()
    write(directory, values, max_batch_bytes=max_batch_bytes)
    assert read(directory) == values
    reader = FileSnapshotReader(directory, ID)
    assert reader.last_contained_log_timestamp_ms == 1_700_000_000_000


def test_a_batch_is_written_when_its_bytes_are_gathered():
    directory = MemoryDirectory()
    write(directory, [b"x" * 100] * 10, max_batch_bytes=300)
    sizes = [len(batch) for batch in FileSnapshotReader(directory, ID).batches()]
    assert sizes == [2, 2, 2, 2, 2]


def test_the_same_state_makes_the_same_bytes():
    one, other = MemoryDirectory(), MemoryDirectory()
    for directory in (one, other):
        write(directory, [b"a", b"b"])
    assert one.read(ID.name) == other.read(ID.name)


@pytest.mark.parametrize("name", sorted(p.name for p in GOLDEN.glob("*.checkpoint")))
def test_kafkas_checkpoints_read_as_valid(name):
    snapshot_id = parse_name(name)
    assert snapshot_id is not None
    reader = FileSnapshotReader(OsDirectory(str(GOLDEN)), snapshot_id)
    dump = (GOLDEN / f"{name}.dump.txt").read_text()
    header = dump[dump.index('"lastContainedLogTimestamp":') :]
    assert str(reader.last_contained_log_timestamp_ms) == header.split(":")[1].split("}")[0]
    assert reader.verify() == dump.count("payload:")


def test_our_control_batches_are_kafkas_bytes():
    """A checkpoint's header and footer differ from Kafka's only in time and CRC."""
    name = "00000000000000000043-0000000001.checkpoint"
    theirs = (GOLDEN / name).read_bytes()
    directory = MemoryDirectory()
    write(directory, [], SnapshotId(43, 1))
    ours = directory.read(name)
    header_size, footer_size = 83, len(ours) - 83
    assert ours[:17] == theirs[:17]
    assert ours[61 + 3 : 76] == theirs[61 + 3 : 76]
    assert ours[-(footer_size - 61) :] == theirs[-(footer_size - 61) :]
    assert len(theirs[:header_size]) == header_size


def test_names_with_10_and_with_20_digits_of_epoch_are_read():
    assert ID.name == "00000000000000000042-0000000003.checkpoint"
    assert parse_name(ID.name) == ID
    assert parse_name("00000000000000000042-00000000000000000003.checkpoint") == ID
    assert parse_name("00000000000000000042-0000000003.checkpoint.part") is None
    assert parse_name("00000000000000000042.snapshot") is None
    directory = MemoryDirectory()
    write(directory, [b"v"])
    directory.rename(ID.name, "00000000000000000042-00000000000000000003.checkpoint")
    assert list_snapshots(directory) == [ID]
    assert read(directory) == [b"v"]
    delete_snapshot(directory, ID)
    assert list_snapshots(directory) == []


def test_every_flipped_bit_is_found():
    directory = MemoryDirectory()
    write(directory, [b"some value", b"another"])
    good = directory.read(ID.name)
    silent = []
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        directory.write_atomic(ID.name, bytes(bad))
        try:
            FileSnapshotReader(directory, ID).verify()
        except CorruptMessageError:
            continue
        silent.append(position)
    assert (
        silent == []
    )  # base offset and epoch, which the CRC does not cover, are checked separately


def test_every_torn_length_is_found():
    directory = MemoryDirectory()
    write(directory, [b"value"] * 3, max_batch_bytes=30)
    good = directory.read(ID.name)
    for size in range(len(good)):
        directory.write_atomic(ID.name, good[:size])
        with pytest.raises(CorruptMessageError):
            FileSnapshotReader(directory, ID).verify()


def test_bytes_behind_the_footer_are_found():
    directory = MemoryDirectory()
    write(directory, [b"value"])
    good = directory.read(ID.name)
    directory.write_atomic(ID.name, good + encode_footer(3, ID.epoch, 0))
    with pytest.raises(CorruptMessageError, match="footer"):
        FileSnapshotReader(directory, ID).verify()


def test_a_checkpoint_appears_only_whole_and_an_aborted_one_never():
    directory = MemoryDirectory()
    writer = SnapshotWriter(directory, ID, 0)
    writer.append([b"v"])
    assert list_snapshots(directory) == []
    writer.abort()
    assert directory.list() == []
    with pytest.raises(SnapshotNotFoundError):
        FileSnapshotReader(directory, ID)


def test_a_failed_fsync_is_fatal_and_names_nothing():
    directory = MemoryDirectory()
    writer = SnapshotWriter(directory, ID, 0)
    directory.disk.failing_fsyncs.append("*.part")
    with pytest.raises(FatalError):
        writer.freeze()
    assert list_snapshots(directory) == []


@given(st.integers(min_value=1, max_value=500))
@settings(max_examples=30, deadline=None)
def test_a_checkpoint_travels_by_pieces_of_any_size(piece_bytes):
    source, target = MemoryDirectory(), MemoryDirectory()
    write(source, [b"v%d" % i for i in range(50)], max_batch_bytes=200)
    size, position = source.size_of(ID.name), 0
    while position < size:
        piece = read_piece(source, ID, position, piece_bytes)
        write_piece(target, ID, position, piece)
        position += len(piece)
    assert list_snapshots(target) == []
    install_part(target, ID)
    assert target.read(ID.name) == source.read(ID.name)
    assert remove_leftovers(target) == []


def test_pieces_out_of_order_or_corrupt_never_become_a_checkpoint():
    source, target = MemoryDirectory(), MemoryDirectory()
    write(source, [b"value"])
    whole = source.read(ID.name)
    write_piece(target, ID, 0, whole[:50])
    with pytest.raises(PositionOutOfRangeError):
        write_piece(target, ID, 60, whole[60:])
    write_piece(target, ID, 50, b"\0" * (len(whole) - 50))
    with pytest.raises(CorruptMessageError):
        install_part(target, ID)
    assert target.list() == []
    with pytest.raises(PositionOutOfRangeError):
        read_piece(source, ID, len(whole), 10)
    with pytest.raises(SnapshotNotFoundError):
        read_piece(target, ID, 0, 10)


def info(end_offset, size_bytes, timestamp_ms):
    return SnapshotInfo(SnapshotId(end_offset, 1), size_bytes, timestamp_ms)


def test_cleaning_drops_the_oldest_while_too_large_or_too_old_and_keeps_one():
    snapshots = [info(10, 100, 0), info(20, 100, 1000), info(30, 100, 2000)]

    def keep(log_bytes, **limits):
        chosen = {"retention_bytes": -1, "retention_ms": -1, "now_ms": 2000} | limits
        return first_to_keep(snapshots, log_bytes, **chosen)

    assert keep(0) is None
    assert keep(0, retention_bytes=300) is None
    assert keep(1, retention_bytes=300) == SnapshotId(20, 1)
    assert keep(0, retention_bytes=0) == SnapshotId(30, 1)
    assert keep(0, retention_ms=1500) == SnapshotId(20, 1)
    assert keep(0, retention_ms=0) == SnapshotId(30, 1)
    assert first_to_keep([], 10**9, retention_bytes=0, retention_ms=0, now_ms=9) is None
