"""Answers of a live Kafka 4.3 broker about its logs, and the answers of this log about its files.

`answers.json` beside the files has ListOffsets (error, timestamp, offset, leader epoch) for special
offsets and for timestamps. It also has read_committed fetches by offset: error, first offset
returned, the offset after the last one, aborted transactions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from commitlog.types import TimestampOffset
from tests.commitlog.builders import NOW
from tidemark.config import TopicConfig
from tidemark.records import iter_batches
from tidemark.types import TopicPartition

MORE = Path(__file__).parents[2] / "golden" / "kafka-4.3.0-more"
LOG_STARTS = {"open-transactions-0": 0, "trimmed-0": 83}
Answers = dict[str, Any]


def opened(name: str, target: Path, *, clean: bool) -> Log:
    directory = target / name
    shutil.copytree(MORE / name, directory, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    log = open_log(
        OsDirectory(directory),
        TopicPartition(name[:-2], 0),
        TopicConfig(index_interval_bytes=100 if name == "trimmed-0" else 4096),
        now_ms=NOW,
        clean=clean,
        log_start_offset=LOG_STARTS[name],
    )
    log.update_high_watermark(log.log_end_offset)
    return log


def listed(found: TimestampOffset | None) -> list[int | None]:
    if found is None:
        return [0, -1, -1, -1]
    return [0, found.timestamp_ms, found.offset, found.leader_epoch]


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("name", LOG_STARTS)
def test_our_log_answers_what_the_broker_answered(name: str, clean: bool, tmp_path: Path) -> None:
    log = opened(name, tmp_path, clean=clean)
    answers: Answers = json.loads((MORE / name / "answers.json").read_text())
    assert log.log_start_offset == answers["earliest"][2]
    assert log.local_log_start_offset == answers["earliest_local"][2]
    assert log.log_end_offset == answers["latest"][2]
    assert log.last_stable_offset == answers["last_stable_offset"]
    assert log.last_stable_offset == answers["latest_read_committed"][2]
    assert listed(log.offset_of_max_timestamp()) == answers["max_timestamp"]
    times = answers["offsets_for_times"]
    assert len(times) > 50
    assert {t: listed(log.offset_for_timestamp(int(t))) for t in times} == times
    for offset, (error, first, following, aborted) in answers["read_committed"].items():
        assert error == 0
        if first is not None:
            found = log.aborted_transactions(int(offset), following)
            assert [[a.producer_id, a.first_offset] for a in found] == [
                pair for pair in aborted if pair[1] < following
            ]


@pytest.mark.parametrize("name", LOG_STARTS)
def test_recovery_makes_the_indexes_and_snapshots_that_kafka_made(
    name: str, tmp_path: Path
) -> None:
    """The folder after a crash: all indexes are lost, and all snapshots except the first."""
    log_files = sorted((MORE / name).glob("*.log"))
    directory = tmp_path / name
    directory.mkdir()
    kept = [*log_files, MORE / name / "leader-epoch-checkpoint"]
    kept += sorted((MORE / name).glob("*.snapshot"))[:1]
    for path in kept:
        shutil.copyfile(path, directory / path.name)
    settings = TopicConfig(index_interval_bytes=100 if name == "trimmed-0" else 4096)
    log = open_log(
        OsDirectory(directory),
        TopicPartition(name[:-2], 0),
        settings,
        now_ms=NOW,
        log_start_offset=LOG_STARTS[name],
    )
    log.close()
    last = sorted((MORE / name).glob("*.snapshot"))[-1]
    for path in [*(MORE / name).glob("*index"), last]:
        assert (directory / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_same_batches_roll_where_kafka_rolled_and_leave_the_same_files() -> None:
    golden = MORE / "open-transactions-0"
    directory = MemoryDirectory()
    settings = TopicConfig(segment_bytes=2500)
    log = open_log(directory, TopicPartition("open-transactions", 0), settings, now_ms=NOW)
    for path in sorted(golden.glob("*.log")):
        data = path.read_bytes()
        for position, header in iter_batches(data):
            log.append_as_follower(data[position : position + header.size_bytes], NOW)
            log.update_high_watermark(log.log_end_offset)
    log.close()
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    for path in golden.iterdir():
        if path.suffix in suffixes:
            assert directory.read(path.name) == path.read_bytes(), path.name
    assert log.producers.first_unstable_offset == 33
