"""The checks of log directories: files of Kafka and of Tidemark are sound, and damage is found.

What is flipped here is a file of a closed log directory that Apache Kafka wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from commitlog.verify import Finding, bytes_of, verify_directory
from tests.commitlog.builders import batch
from tidemark.errors import StorageError

GOLDEN = Path(__file__).parents[2] / "golden"
KAFKA = GOLDEN / "kafka-4.3.0"
CLEAN = ".kafka_cleanshutdown"
LOG = f"{0:020d}.log"


def copied(source: Path, *names: str, clean: bool = True) -> MemoryDirectory:
    """A log directory in memory: the files of `source`, and some of its logs."""
    directory = MemoryDirectory()
    for place, into in [(source, directory)] + [
        (source / name, directory.subdirectory(name)) for name in names
    ]:
        for file in place.iterdir():
            if file.is_file() and file.suffix != ".txt":
                into.write_atomic(file.name, file.read_bytes())
    if clean:
        directory.write_atomic(CLEAN, b'{"version":0,"brokerEpoch":1}')
    return directory


def findings(directory: MemoryDirectory, only: str | None = None) -> list[Finding]:
    return list(verify_directory(directory, only=only))


def damage(directory: MemoryDirectory) -> list[str]:
    return [found.reason for found in findings(directory) if found.is_damage]


@pytest.mark.parametrize(
    "place",
    [
        KAFKA,
        KAFKA / "tier",
        GOLDEN / "tidemark-0.1",
        GOLDEN / "kafka-4.3.0-more" / "open-transactions-0",
        GOLDEN / "kafka-4.3.0-more" / "trimmed-0",
        GOLDEN / "kafka-4.3.0-more" / "compacted-lz4-0",
    ],
    ids=lambda place: place.name,
)
def test_golden_files_are_sound_and_every_byte_of_a_log_is_read(place: Path) -> None:
    directory, checked = OsDirectory(str(place), create=False), 0

    def on_bytes(count: int) -> None:
        nonlocal checked
        checked += count

    assert list(verify_directory(directory, on_bytes)) == []
    logs = sum(file.stat().st_size for file in place.rglob("*.log"))
    assert logs <= checked <= bytes_of(directory)


def flips(data: bytes) -> Iterator[bytes]:
    """Every bit of a small file, one bit of every fifth byte of a large one."""
    small = len(data) < 200
    for number in range(8 * len(data) if small else len(data) // 5):
        byte, bit = divmod(number, 8) if small else (5 * number, number % 8)
        flipped = bytearray(data)
        flipped[byte] ^= 1 << bit
        yield bytes(flipped)


def test_no_flipped_bit_of_a_closed_log_is_missed() -> None:
    directory = copied(KAFKA, "transactional-0")
    log = directory.subdirectory("transactional-0")
    tried = 0
    for name in log.list():
        if name == "partition.metadata":
            continue  # another id that is well-formed contradicts the metadata, not the log
        data = log.read(name)
        for flipped in flips(data):
            log.write_atomic(name, flipped)
            still_means_the_same = name == "leader-epoch-checkpoint" and (
                flipped.split() == data.split()
            )
            assert damage(directory) or still_means_the_same, (name, flipped)
            tried += 1
        log.write_atomic(name, data)
    assert tried > 6000
    assert damage(directory) == []


def test_no_flipped_bit_of_a_metadata_checkpoint_is_missed() -> None:
    directory = copied(KAFKA, "__cluster_metadata-0")
    log = directory.subdirectory("__cluster_metadata-0")
    name = "00000000000000000043-0000000001.checkpoint"
    data = log.read(name)
    for flipped in flips(data):
        log.write_atomic(name, flipped)
        assert damage(directory)
    log.write_atomic(name, data[: data.rindex(b"\x00\x00\x00\x00", 0, len(data) - 30)])
    assert damage(directory)


def cuts(data: bytes) -> list[int]:
    return sorted({*range(0, len(data), 211), len(data) - 1})


def test_a_segment_that_is_cut_anywhere_is_found_and_one_that_is_gone_too() -> None:
    directory = copied(KAFKA, "transactional-0")
    log = directory.subdirectory("transactional-0")
    for name in [name for name in log.list() if name.endswith(".log")]:
        data = log.read(name)
        for size in cuts(data):
            log.write_atomic(name, data[:size])
            assert damage(directory), (name, size)
        log.remove(name)
        if name != LOG:  # before the log start nothing is missed
            assert damage(directory), name
        log.write_atomic(name, data)


def test_exchanged_files_of_two_segments_are_found() -> None:
    directory = copied(KAFKA, "rolled-by-size-0")
    log = directory.subdirectory("rolled-by-size-0")
    first, second = f"{0:020d}", f"{1869:020d}"
    for suffix in (".log", ".index", ".timeindex"):
        one, other = log.read(first + suffix), log.read(second + suffix)
        log.write_atomic(first + suffix, other)
        log.write_atomic(second + suffix, one)
        assert damage(directory), suffix
        log.write_atomic(first + suffix, one)
        log.write_atomic(second + suffix, other)
    assert damage(directory) == []


def test_checkpoints_beyond_the_end_and_unreadable_ones_are_found() -> None:
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        directory = copied(KAFKA, "codec-none-0")
        directory.write_atomic(name, b"0\n1\ncodec-none 0 301\n")
        assert damage(directory) == ["codec-none-0 ends at offset 300, below 301"]
        directory.write_atomic(name, b"0\n2\ncodec-none 0 300\n")
        assert len(damage(directory)) == 1
    directory = copied(KAFKA, "codec-none-0")
    directory.write_atomic("meta.properties", b"version=1\n")
    assert len(damage(directory)) == 1


def test_the_tail_that_a_start_recovers_is_a_note_and_what_is_durable_is_not() -> None:
    def torn(recovery_point: int, *, clean: bool) -> list[bool]:
        directory = copied(KAFKA, "codec-none-0", clean=clean)
        log = directory.subdirectory("codec-none-0")
        log.write_atomic(LOG, log.read(LOG) + batch(2)[:70])
        text = f"0\n1\ncodec-none 0 {recovery_point}\n"
        directory.write_atomic("recovery-point-offset-checkpoint", text.encode())
        return [found.is_damage for found in findings(directory)]

    assert torn(300, clean=False) == [False]
    assert torn(300, clean=True) == [True]
    assert True in torn(301, clean=False)


def test_gaps_that_compaction_left_are_none_and_others_are_damage() -> None:
    directory = MemoryDirectory()
    after = GOLDEN / "kafka-4.3.0-more" / "cleaning" / "0" / "after"
    log = directory.subdirectory("compacted-0")
    for file in after.iterdir():
        log.write_atomic(file.name, file.read_bytes())
    directory.write_atomic("cleaner-offset-checkpoint", b"0\n1\ncompacted 0 1000\n")
    directory.write_atomic(CLEAN, b"{}")
    assert damage(directory) == []
    directory.write_atomic("cleaner-offset-checkpoint", b"0\n0\n")
    assert any("ends before offset" in reason for reason in damage(directory))
    alone = [found.is_damage for found in verify_directory(log)]
    assert alone and not any(alone), "without the checkpoint a gap is a note"


def test_files_that_vanish_are_passed_over_and_one_log_can_be_named() -> None:
    directory = copied(KAFKA, "codec-none-0", "codec-gzip-0", clean=False)
    check = verify_directory(directory)
    damaged = directory.subdirectory("codec-gzip-0")
    damaged.write_atomic(LOG, next(flips(damaged.read(LOG))))
    assert findings(directory, only="codec-none-0") == []
    directory.remove_tree("codec-gzip-0")
    assert [found for found in check if found.is_damage] == []


def test_a_directory_without_logs_is_refused() -> None:
    with pytest.raises(StorageError, match="no log directory"):
        findings(MemoryDirectory())
