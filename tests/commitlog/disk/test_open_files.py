"""Descriptors are bounded: files close and reopen them, unnoticed by the log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from commitlog.disk import open_files, os_files
from commitlog.disk.open_files import OpenFiles
from commitlog.disk.os_files import OsDirectory
from tests.commitlog.builders import NOW, batch, open_log, records_of
from tidemark.errors import StorageError


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> OpenFiles:
    """A bound of four files."""
    found = OpenFiles(4)
    monkeypatch.setattr(os_files, "OPEN_FILES", found)
    return found


def test_the_share_of_the_process_follows_its_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1_000, 20_000)]
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert open_files.share_of_process() == 15_000
    assert limits.pop() == (20_000, 20_000)

    def refused(_: int, wanted: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise")

    monkeypatch.setattr(open_files.resource, "setrlimit", refused)
    assert open_files.share_of_process() == 750, "the soft limit holds"
    limits.append((open_files.resource.RLIM_INFINITY,) * 2)
    assert open_files.share_of_process() == open_files.DEFAULT_LIMIT


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_logs_share_a_few_descriptors(tmp_path: Path, bound: OpenFiles) -> None:
    root = OsDirectory(tmp_path)
    logs = [open_log(root.subdirectory(f"events-{n}")) for n in range(20)]
    before = descriptors()
    for round_number in range(3):
        for number, log in enumerate(logs):
            log.append_as_leader(batch(2, timestamp=NOW + number), 1, NOW)
            log.flush()
            assert bound.open_count <= 4
            assert descriptors() <= before + 4
        assert [log.log_end_offset for log in logs] == [2 * round_number + 2] * 20
    for log in logs:
        assert len(records_of(log)) == 6
        log.close()
    assert bound.evictions > 50
    assert bound.open_count == 0
    for number in range(20):
        assert open_log(root.subdirectory(f"events-{number}"), clean=True).log_end_offset == 6


def test_the_file_used_longest_ago_goes_first(tmp_path: Path, bound: OpenFiles) -> None:
    root = OsDirectory(tmp_path)
    found = [root.open(f"f{n}", create=True) for n in range(4)]
    for file in found:
        file.append(b"x")
    extra = root.open("f4", create=True)  # all are used: one round of second chances
    opens = bound.opens
    for file in (found[2], found[3], extra):
        assert file.pread(1, 0) in (b"x", b"")
    assert bound.opens == opens
    assert found[0].pread(1, 0) == b"x"
    assert bound.opens == opens + 1


def test_a_file_that_was_used_again_is_passed_over(tmp_path: Path, bound: OpenFiles) -> None:
    root = OsDirectory(tmp_path)
    found = [root.open(f"f{n}", create=True) for n in range(5)]  # takes f0's, and all chances
    found[1].append(b"x")
    sixth = root.open("f5", create=True)
    opens = bound.opens
    assert found[1].pread(1, 0) == b"x"
    assert bound.opens == opens  # f2, not f1, closed its descriptor
    sixth.close()


def test_a_file_in_use_keeps_its_descriptor(tmp_path: Path, bound: OpenFiles) -> None:
    root = OsDirectory(tmp_path)
    wanted = {n: bytes([n]) * 4096 for n in range(16)}
    for number, data in wanted.items():
        root.open(f"f{number}", create=True).append(data)
    found = {n: root.open(f"f{n}") for n in wanted}
    wrong: list[int] = []

    def read(first: int) -> None:
        for turn in range(400):
            number = (first + turn * 7) % 16
            if found[number].pread(4096, 0) != wanted[number]:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert bound.open_count <= 4 + len(threads)


def test_a_closed_file_stays_closed(tmp_path: Path, bound: OpenFiles) -> None:
    file = OsDirectory(tmp_path).open("f", create=True)
    file.close()
    file.close()
    with pytest.raises(StorageError):
        file.append(b"x")
    assert bound.open_count == 0


def test_a_lower_limit_closes_at_once(tmp_path: Path, bound: OpenFiles) -> None:
    root = OsDirectory(tmp_path)
    found = [root.open(f"f{n}", create=True) for n in range(4)]
    bound.limit = 1
    assert bound.open_count == 1
    found[0].append(b"still works")
    found[0].fsync()
    assert found[0].pread(5, 0) == b"still"


def test_the_process_has_one_bound() -> None:
    assert os_files.OPEN_FILES is open_files.OPEN_FILES
