"""One suite over the operating system's directories and the memory disk, then the powers of the
memory disk alone: to lose data, and to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.disk.files import Directory
from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from tidemark.errors import FatalError, StorageError


@pytest.fixture(params=["os", "memory", "log directory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    if request.param == "memory":
        yield MemoryDirectory()
    else:
        found = OsDirectory(tmp_path / "disk")
        yield found if request.param == "os" else LogDirectory(found)


def test_appends_follow_one_another_and_say_where(directory: Directory) -> None:
    file = directory.open("a", create=True)
    assert file.append(b"one", memoryview(b"two")) == 0
    assert file.append(b"!") == 6
    assert (file.size, file.pread(100, 3), file.pread(2, 0)) == (7, b"two!", b"on")
    assert directory.size_of("a") == 7
    assert directory.read("a") == b"onetwo!"
    file.close()
    file.close()


def test_an_allocated_file_has_its_size_and_replaces_another(directory: Directory) -> None:
    directory.write_atomic("room", b"before")
    directory.allocate("room", 100_000)
    assert directory.read("room") == bytes(100_000)
    assert directory.list() == ["room"]


def test_a_memory_disk_without_room_leaves_no_allocated_file() -> None:
    directory = MemoryDirectory()
    directory.set_capacity(100)
    with pytest.raises(StorageError, match="the disk is full"):
        directory.allocate("room", 101)
    assert directory.list() == []


def test_more_buffers_than_one_call_takes_are_all_written(directory: Directory) -> None:
    file = directory.open("a", create=True)
    pieces = [bytes([i % 251]) * 3 for i in range(2500)]
    file.append(*pieces)
    assert directory.read("a") == b"".join(pieces)
    file.close()


def test_overwriting_truncating_and_reading_behind_the_end(directory: Directory) -> None:
    file = directory.open("a", create=True)
    file.append(b"0123456789")
    file.pwrite(b"ab", 9)
    file.pwrite(b"X", 0)
    assert directory.read("a") == b"X12345678ab"
    file.truncate(4)
    file.truncate(40)
    assert (file.size, file.pread(10, 4), file.pread(10, 2)) == (4, b"", b"23")
    with pytest.raises(ValueError):
        file.pwrite(b"z", 5)
    file.fsync()
    file.close()


def test_names_are_made_renamed_and_removed(directory: Directory) -> None:
    directory.open("b", create=True).close()
    directory.write_atomic("a", b"first")
    directory.write_atomic("a", b"second")
    below = directory.subdirectory("sub")
    below.write_atomic("x", b"y")
    assert directory.list() == ["a", "b", "sub"]
    assert directory.is_directory("sub")
    assert not directory.is_directory("a")
    directory.rename("a", "b")
    directory.rename("sub", "other")
    assert directory.read("b") == b"second"
    assert directory.subdirectory("other", create=False).read("x") == b"y"
    directory.remove("missing")
    directory.remove("b")
    directory.remove_tree("other")
    directory.remove_tree("missing")
    assert directory.list() == []
    directory.fsync()
    assert directory.usage().free_bytes > 0


def test_what_is_missing_is_a_typed_error_that_names_it(directory: Directory) -> None:
    for call in (
        lambda: directory.open("gone"),
        lambda: directory.open_read_only("gone"),
        lambda: directory.read("gone"),
        lambda: directory.size_of("gone"),
        lambda: directory.modified_ms("gone"),
        lambda: directory.rename("gone", "x"),
        lambda: directory.subdirectory("gone", create=False),
    ):
        with pytest.raises(StorageError, match="gone"):
            call()


def test_a_file_opened_for_reading_takes_no_writes(directory: Directory) -> None:
    directory.write_atomic("a", b"x")
    file = directory.open_read_only("a")
    assert file.pread(5, 0) == b"x"
    with pytest.raises(StorageError):
        file.append(b"y")
    assert directory.read("a") == b"x"
    file.close()


def test_a_lock_is_held_by_one_at_a_time(directory: Directory) -> None:
    lock = directory.lock()
    with pytest.raises(StorageError, match=r"locked by another process.*log\.dirs"):
        directory.lock()
    lock.release()
    lock.release()
    directory.lock().release()


# --- forgetting


def test_a_crash_takes_what_was_not_synced() -> None:
    disk = MemoryDirectory()
    file = disk.open("a", create=True)
    file.append(b"durable")
    file.fsync()
    disk.fsync()
    file.append(b" lost")
    file.pwrite(b"D", 0)
    file.truncate(3)
    disk.open("b", create=True).close()
    disk.rename("a", "c")
    disk.crash(keep="nothing")
    assert disk.list() == ["a"]
    assert disk.read("a") == b"durable"
    with pytest.raises(StorageError, match="closed"):
        file.append(b"x")


def test_a_name_without_a_synced_directory_is_lost_with_its_file() -> None:
    disk = MemoryDirectory()
    file = disk.open("a", create=True)
    file.append(b"x")
    file.fsync()
    disk.crash(keep="nothing")
    assert disk.list() == []


def test_a_crash_keeps_some_prefix_of_the_appends_maybe_torn() -> None:
    ends = set()
    for seed in range(60):
        disk = MemoryDirectory(seed=seed)
        file = disk.open("a", create=True)
        disk.fsync()
        for piece in (b"aaaa", b"bbbb", b"cccc"):
            file.append(piece)
        disk.crash()
        data = disk.read("a").rstrip(b"\0")
        assert b"aaaabbbbcccc".startswith(data)
        ends.add(len(data))
    assert {0, 12} < ends
    assert any(end % 4 for end in ends)


def test_an_atomic_write_is_old_or_new_after_any_crash() -> None:
    for seed in range(40):
        disk = MemoryDirectory(seed=seed)
        disk.write_atomic("a", b"old")
        file = disk.open("a.tmp", create=True)
        file.append(b"ne")
        disk.crash()
        assert disk.read("a") == b"old"
        disk.write_atomic("a", b"new")
        disk.crash()
        assert disk.read("a") == b"new"


# --- failing


def test_a_failed_fsync_is_fatal_and_stays_so() -> None:
    disk = MemoryDirectory()
    file = disk.open("a", create=True)
    disk.fail_fsync("*/a")
    for _ in range(2):
        with pytest.raises(FatalError, match=r"fsync of memory/a failed.*nothing is written"):
            file.fsync()
    disk.disk.failing_fsyncs.clear()
    with pytest.raises(FatalError):
        file.fsync()


def test_a_full_disk_says_what_to_do_and_keeps_nothing_of_the_append() -> None:
    disk = MemoryDirectory()
    file = disk.open("a", create=True)
    file.append(b"x" * 90)
    disk.set_capacity(100)
    with pytest.raises(StorageError, match=r"disk is full.*Free space"):
        file.append(b"y" * 11)
    assert file.size == 90
    file.append(b"z" * 10)
    assert disk.usage().free_bytes == 0


def test_input_and_output_errors_are_typed() -> None:
    disk = MemoryDirectory()
    file = disk.open("a", create=True)
    file.append(b"x")
    disk.fail_reads("*/a")
    disk.fail_writes("*/a")
    with pytest.raises(StorageError, match="input/output error"):
        file.pread(1, 0)
    with pytest.raises(StorageError, match="input/output error"):
        file.append(b"y")


def test_bits_flip_and_ends_go_silently() -> None:
    disk = MemoryDirectory()
    disk.write_atomic("a", b"\x00\x01\x02")
    disk.flip_bit("a", 1, 3)
    disk.cut("a", 2)
    assert disk.read("a") == b"\x00\x09"


def test_a_real_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    file = OsDirectory(tmp_path).open("a", create=True)
    file.append(b"x" * 1000)
    old, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, old[1]))
        with pytest.raises(StorageError, match="append to"):
            file.append(b"y" * 600, b"z" * 600)
        assert file.size == 1000
        assert (tmp_path / "a").stat().st_size == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    file.append(b"w")
    assert (tmp_path / "a").read_bytes() == b"x" * 1000 + b"w"
