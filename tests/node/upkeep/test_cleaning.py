"""The cleaner threads of a broker: long work in a pool, swaps on the loop, an orderly stop."""

from __future__ import annotations

import asyncio

import pytest

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.manager.manager import LogManager
from node.upkeep.cleaning import CleanerWorkers
from tidemark.config import TopicConfig, parse_server_config
from tidemark.errors import FatalError
from tidemark.records import Record, decode_arrow, encode_batch
from tidemark.types import TopicPartition

NOW = 1_700_000_000_000
TOPIC = TopicConfig(cleanup_policy=("compact",), segment_bytes=600, min_cleanable_dirty_ratio=0.0)
SERVER = parse_server_config(
    {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "9@localhost:1",
        "log.cleaner.threads": "2",
        "log.cleaner.backoff.ms": "0",
    }
)


def test_workers_clean_every_log_and_readers_see_the_last_values() -> None:
    async def scenario() -> None:
        logs = LogManager([MemoryDirectory()], SERVER, now_ms=lambda: NOW)
        logs.open()
        fatal: list[FatalError] = []
        cleaner = LogCleaner(logs, SERVER, now_ms=lambda: NOW)
        workers = CleanerWorkers(SERVER, cleaner, fatal.append)
        assert await workers.clean_one() is False, "nothing is compacted"
        partitions = [TopicPartition("t", index) for index in range(3)]
        for partition in partitions:
            log = logs.get_or_create(partition, None, TOPIC)
            for number in range(40):
                records = [Record(0, NOW, b"k%d" % (number % 4), b"v%d" % number)]
                producer = {"producer_id": 3, "producer_epoch": 0, "base_sequence": number}
                log.append_as_leader(encode_batch(records, **producer), 1, NOW)
            log.update_high_watermark(40)
            log.roll(NOW)
        assert all(await asyncio.gather(*(workers.clean_one() for _ in partitions)))
        assert [cleaner.checkpoint_of(partition) for partition in partitions] == [40] * 3
        workers.start()
        await workers.stop()
        assert not fatal
        for partition in partitions:
            log = logs.get_or_create(partition, None, TOPIC)
            offset, values = 0, []
            while offset < log.log_end_offset:
                result = log.read(offset, 100)
                values += decode_arrow(result.records)["value"].to_pylist()
                offset = result.next_offset
            assert values == [b"v36", b"v37", b"v38", b"v39"]

    asyncio.run(scenario())


def test_a_stop_in_the_middle_leaves_the_log_as_it_was() -> None:
    async def scenario() -> None:
        logs = LogManager([MemoryDirectory()], SERVER, now_ms=lambda: NOW)
        logs.open()
        cleaner = LogCleaner(logs, SERVER, now_ms=lambda: NOW)
        workers = CleanerWorkers(SERVER, cleaner, lambda error: None)
        partition = TopicPartition("t", 0)
        log = logs.get_or_create(partition, None, TOPIC)
        for number in range(40):
            log.append_as_leader(encode_batch([Record(0, NOW, b"k", b"%d" % number)]), 1, NOW)
        log.update_high_watermark(40)
        log.roll(NOW)
        cleaner.stop()
        before = log.segments
        assert await workers.clean_one() is False
        await workers.stop()
        assert log.segments == before
        assert cleaner.checkpoint_of(partition) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["write", "fsync of a file", "fsync of the swap"])
def test_a_directory_that_fails_in_a_cleaning_leaves_the_others_to_be_cleaned(fault: str) -> None:
    async def scenario() -> None:
        first, second = MemoryDirectory("first"), MemoryDirectory("second")
        logs = LogManager([first, second], SERVER, now_ms=lambda: NOW)
        logs.open()
        fatal: list[FatalError] = []
        cleaner = LogCleaner(logs, SERVER, now_ms=lambda: NOW)
        workers = CleanerWorkers(SERVER, cleaner, fatal.append)
        partitions = [TopicPartition("t", index) for index in range(2)]
        for partition in partitions:
            log = logs.get_or_create(partition, None, TOPIC)
            for number in range(40):
                log.append_as_leader(encode_batch([Record(0, NOW, b"k", b"%d" % number)]), 1, NOW)
            log.update_high_watermark(40)
            log.roll(NOW)
            log.flush()
        if fault == "write":
            first.fail_writes("*.cleaned")
        else:
            first.fail_fsync("*.cleaned" if fault == "fsync of a file" else "first/t-0")
        cleaned = await asyncio.gather(*(workers.clean_one() for _ in partitions))
        assert sorted(cleaned) == [False, True]
        assert [d.is_online for d in logs.directories] == [False, True]
        assert logs.drop_offline() == [partitions[0]]
        assert cleaner.checkpoint_of(partitions[1]) == 40
        assert await workers.clean_one() is False
        workers.start()
        await workers.stop()
        assert not fatal
        first.crash()
        again = LogManager(
            [first, second], SERVER, now_ms=lambda: NOW, topic_config=lambda _: TOPIC
        )
        second.crash()
        again.open()
        assert [log.log_end_offset for log in again.logs()] == [40, 40]

    asyncio.run(scenario())
