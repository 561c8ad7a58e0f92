"""The dump of damaged and unusual files: it never writes, and names the first bad byte."""

from __future__ import annotations

import pytest

from commitlog.dump import DumpOptions, dump_file, format_entry
from commitlog.memory_files import MemoryDirectory
from tests.commitlog.builders import batch, filled
from tidemark.errors import StorageError

LOG = f"{0:020d}.log"


def closed() -> MemoryDirectory:
    directory = MemoryDirectory()
    filled(directory, 10).close()
    return directory


def test_a_batch_that_fails_its_crc_is_shown_and_what_follows_is_too() -> None:
    directory = closed()
    size = len(batch(3))
    directory.flip_bit(LOG, size + 100)
    entries = list(dump_file(directory, LOG, DumpOptions(deep_iteration=False)))
    batches = [entry for entry in entries if entry["kind"] == "batch"]
    assert [entry["is_valid"] for entry in batches] == [True, False] + [True] * 8
    (damage,) = [entry for entry in entries if entry["kind"] == "damage"]
    assert damage["position"] == size
    assert f"from byte {size} on: the CRC check fails" in format_entry(damage)


def test_a_torn_tail_ends_the_dump_at_its_first_byte() -> None:
    directory = closed()
    size = directory.size_of(LOG)
    directory.cut(LOG, size - 5)
    *_, last = dump_file(directory, LOG)
    assert (last["kind"], last["position"]) == ("damage", size - len(batch(3)))
    directory.cut(LOG, 10)
    *_, last = dump_file(directory, LOG)
    assert (last["kind"], last["position"], last["size_bytes"]) == ("damage", 0, 10)


def test_an_index_is_checked_against_its_log() -> None:
    directory = closed()
    name = f"{0:020d}.index"
    options = DumpOptions(index_sanity_check=True)
    assert not [e for e in dump_file(directory, name, options) if e["kind"] == "damage"]
    directory.flip_bit(name, 7)
    directory.cut(name, directory.size_of(name) - 3)
    damages = [e for e in dump_file(directory, name, options) if e["kind"] == "damage"]
    assert [d["position"] for d in damages] == [0, directory.size_of(name) // 8 * 8]
    assert damages[1]["reason"] == "a torn entry"


def test_text_files_are_shown_line_by_line() -> None:
    directory = closed()
    directory.write_atomic("recovery-point-offset-checkpoint", b"0\n1\nevents 0 30\n")
    directory.write_atomic("meta.properties", b"#\nnode.id=1\nversion=1\n")
    directory.write_atomic("log-start-offset-checkpoint", b"0\n7\n")
    lines = {
        name: [format_entry(e) for e in dump_file(directory, name)][1:]
        for name in (
            "leader-epoch-checkpoint",
            "recovery-point-offset-checkpoint",
            "meta.properties",
        )
    }
    assert lines == {
        "leader-epoch-checkpoint": ["epoch: 1 startOffset: 0"],
        "recovery-point-offset-checkpoint": ["events-0: 30"],
        "meta.properties": ["node.id: 1", "version: 1"],
    }
    *_, last = dump_file(directory, "log-start-offset-checkpoint")
    assert last["kind"] == "damage"


def test_a_file_that_is_none_of_a_log_is_refused() -> None:
    directory = MemoryDirectory()
    directory.write_atomic("notes.txt", b"")
    with pytest.raises(StorageError, match="no file of a log"):
        list(dump_file(directory, "notes.txt"))
