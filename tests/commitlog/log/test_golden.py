"""Files that Apache Kafka wrote open as logs, and this log writes the same files for the same
batches.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from commitlog.dump import DumpOptions, dump_file, format_entry
from commitlog.log.opening import open_log
from commitlog.types import AppendOrigin
from coordinator.records.text import decoder
from coordinator.records.transactions import TRANSACTION_RECORDS
from tests.commitlog.builders import NOW, records_of
from tidemark.config import TopicConfig
from tidemark.records import decode_batch, iter_batches
from tidemark.types import TopicPartition

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0"
LOGS = [
    "codec-none-0",
    "codec-gzip-0",
    "codec-snappy-0",
    "codec-lz4-0",
    "codec-zstd-0",
    "idempotent-rolled-0",
    "transactional-0",
    "compacted-0",
    "rolled-by-size-0",
    "__transaction_state-0",
]
DUMPS = sorted(
    path
    for folder in LOGS
    for path in (GOLDEN / folder).glob("*.dump.txt")
    if path.with_name(path.name.removesuffix(".dump.txt")).exists()
)


def copy_of(name: str, target: Path) -> OsDirectory:
    """Copies the files to a writable directory, without the dumps."""
    directory = target / name
    directory.mkdir(parents=True)
    for path in (GOLDEN / name).iterdir():
        if not path.name.endswith(".dump.txt"):
            shutil.copyfile(path, directory / path.name)
    return OsDirectory(directory)


def lines_of(dump: Path) -> list[str]:
    """Returns Kafka's lines except the first, which names the file."""
    return [line.rstrip() for line in dump.read_text().splitlines() if line.strip()][1:]


@pytest.mark.parametrize("dump", DUMPS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_dump_says_what_kafkas_own_tool_says(dump: Path) -> None:
    wanted = lines_of(dump)
    options = DumpOptions(print_data_log=any("payload:" in line for line in wanted))
    if dump.parent.name == "__transaction_state-0":
        options = DumpOptions(decode_record=decoder(TRANSACTION_RECORDS))
    directory = OsDirectory(dump.parent, create=False)
    name = dump.name.removesuffix(".dump.txt")
    shown = "\n".join(format_entry(entry) for entry in dump_file(directory, name, options))
    assert shown.replace(f"{dump.parents[1]}/", "").split("\n")[1:] == wanted


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_kafka_opens_with_all_its_records(name: str, clean: bool, tmp_path: Path) -> None:
    directory = copy_of(name, tmp_path)
    before = {n: directory.read(n) for n in directory.list()}
    settings = TopicConfig(cleanup_policy=("compact",) if name == "compacted-0" else ("delete",))
    log = open_log(directory, TopicPartition(name[:-2], 0), settings, now_ms=NOW, clean=clean)
    wanted = [
        record
        for file in sorted(before)
        if file.endswith(".log")
        for position, _ in iter_batches(before[file])
        for record in decode_batch(before[file], position)
    ]
    found = records_of(log, 4096)
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in found] == [
        (r.offset, r.timestamp_ms, r.key, r.value) for r in wanted
    ]
    assert log.recovered_bytes_cut == 0
    assert log.epochs.entries() == ((0, 0),)
    for timestamp in sorted({r.timestamp_ms for r in wanted})[:: max(1, len(wanted) // 40)]:
        first = next(r for r in wanted if r.timestamp_ms >= timestamp)
        hit = log.offset_for_timestamp(timestamp)
        assert hit is not None
        assert (hit.offset, hit.timestamp_ms) == (first.offset, first.timestamp_ms)
    assert log.offset_for_timestamp(max(r.timestamp_ms for r in wanted) + 1) is None
    log.close()
    after = {n: directory.read(n) for n in directory.list()}
    for file in before:
        if file.endswith((".log", ".txnindex", ".snapshot")):
            assert after[file] == before[file], file
        if file.endswith((".index", ".timeindex")) and name == "rolled-by-size-0":
            assert after[file] == before[file], file


@pytest.mark.parametrize("name", ["rolled-by-size-0", "idempotent-rolled-0", "transactional-0"])
def test_the_same_appends_write_the_same_files_as_kafka(name: str, tmp_path: Path) -> None:
    golden = OsDirectory(GOLDEN / name, create=False)
    stems = sorted(n[:20] for n in golden.list() if n.endswith(".log"))
    directory = MemoryDirectory()
    settings = TopicConfig(
        message_timestamp_after_max_ms=1 << 60, message_timestamp_type="CreateTime"
    )
    log = open_log(directory, TopicPartition(name[:-2], 0), settings, now_ms=NOW)
    for stem in stems:
        if int(stem):
            log.roll(NOW)
        data = golden.read(stem + ".log")
        for position, header in iter_batches(data):
            log.append_as_follower(data[position : position + header.size_bytes], NOW)
            log.update_high_watermark(log.log_end_offset)
    log.close()
    for file in golden.list():
        suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "epoch-checkpoint")
        if file.endswith(suffixes):
            assert directory.read(file) == golden.read(file), file


def test_open_transactions_hold_the_last_stable_offset_back(tmp_path: Path) -> None:
    data = (GOLDEN / "transactional-0" / "00000000000000000000.log").read_bytes()
    log = open_log(MemoryDirectory(), TopicPartition("t", 0), TopicConfig(), now_ms=NOW)
    stable = []
    for position, header in iter_batches(data):
        log.append_as_leader(
            data[position : position + header.size_bytes],
            0,
            NOW + (1 << 40),
            origin=AppendOrigin.COORDINATOR,
        )
        log.update_high_watermark(log.log_end_offset)
        stable.append((log.log_end_offset, log.last_stable_offset))
    # two producers open at 0 and 20; the first commits (marker at 40), the second aborts (at 41)
    assert stable == [(20, 0), (40, 0), (41, 20), (42, 42)]
    (aborted,) = log.aborted_transactions(0, 42)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (2, 20, 41)
