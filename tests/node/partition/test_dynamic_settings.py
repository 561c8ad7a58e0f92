"""Settings of a broker that are altered while it runs: who is notified, and the effects."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from commitlog.cleaner.io import Throttle
from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.manager.manager import LogManager
from node.partition.cluster_view import ClusterView
from node.upkeep.cleaning import CleanerWorkers
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from quorum.image.records import config_record
from tests.node.upkeep.test_cleaning import NOW, SERVER, TOPIC
from tidemark.config import ServerConfig, altered_server, validate_dynamic_configs
from tidemark.errors import FatalError, InvalidConfigError
from tidemark.records import Record, encode_batch
from tidemark.types import ConfigResourceType, TopicPartition


def altered(image: MetadataImage, settings: ClusterView, **values: str | None) -> MetadataImage:
    """Sets settings of broker 1 (`own_...`) or of all, and publishes the image."""
    delta = MetadataDelta(image)
    for name, value in values.items():
        broker, key = ("1", name[4:]) if name.startswith("own_") else ("", name)
        delta.replay(config_record(ConfigResourceType.BROKER, broker, key.replace("_", "."), value))
    after = delta.apply(image.offset + 1, 1)
    settings.on_metadata_update(delta, after)
    return after


def test_a_brokers_own_setting_counts_then_that_of_all_then_the_files() -> None:
    heard: list[ServerConfig] = []
    settings = ClusterView(SERVER)
    settings.subscribe(heard.append)
    image = altered(EMPTY_IMAGE, settings, log_cleaner_threads="5")
    image = altered(image, settings, own_log_cleaner_threads="3", log_cleaner_backoff_ms="7")
    image = altered(image, settings, log_cleaner_threads="6")
    image = altered(image, settings, own_log_cleaner_threads=None)
    altered(image, settings, log_cleaner_threads=None, log_cleaner_backoff_ms=None)
    assert [c.log_cleaner_threads for c in heard] == [5, 3, 6, 2], "6 changed nothing for broker 1"
    assert heard[1].log_cleaner_backoff_ms == 7
    assert settings.settings == SERVER


def test_only_what_can_change_while_a_node_runs_is_taken() -> None:
    for key, value in {
        "log.cleaner.threads": "1",
        "log.cleaner.dedupe.buffer.size": "100000",
        "log.cleaner.io.buffer.size": "100000",
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.backoff.ms": "0",
        "producer.id.expiration.ms": "1000",
    }.items():
        assert validate_dynamic_configs({key: value})
    assert altered_server(SERVER, {"log.cleaner.io.max.bytes.per.second": "5000"}) != SERVER
    with pytest.raises(InvalidConfigError, match=r"set it in server\.properties"):
        validate_dynamic_configs({"log.cleaner.enable": "false"})
    with pytest.raises(InvalidConfigError):
        validate_dynamic_configs({"log.cleaner.threads": "0"})


def test_cleaners_come_and_go_with_their_setting() -> None:
    async def scenario() -> None:
        logs = LogManager([MemoryDirectory()], SERVER, now_ms=lambda: NOW)
        logs.open()
        fatal: list[FatalError] = []
        workers = CleanerWorkers(SERVER, LogCleaner(logs, SERVER, now_ms=lambda: NOW), fatal.append)
        workers.start()
        assert workers.running == 2
        workers.reconfigure(altered_server(SERVER, {"log.cleaner.threads": "4"}))
        assert workers.running == 4
        workers.reconfigure(altered_server(SERVER, {"log.cleaner.threads": "1"}))
        for _ in range(20):
            await asyncio.sleep(0)
        assert workers.running == 1
        await workers.stop()
        assert not fatal

    asyncio.run(scenario())


def test_memory_and_rate_follow_the_settings() -> None:
    waits: list[float] = []
    throttle = Throttle(1e9, clock_s=lambda: 0.0, sleep_s=waits.append)
    logs = LogManager([MemoryDirectory()], SERVER, now_ms=lambda: NOW)
    logs.open()
    cleaner = LogCleaner(logs, SERVER, now_ms=lambda: NOW, throttle=throttle)
    before = cleaner.new_map().entries_max
    cleaner.reconfigure(
        altered_server(
            SERVER,
            {
                "log.cleaner.dedupe.buffer.size": str(24 * 2000),
                "log.cleaner.io.max.bytes.per.second": "1000",
                "log.cleaner.threads": "1",
            },
        )
    )
    assert cleaner.new_map().entries_max < before
    throttle.spend(500)
    assert waits == [0.5]


def test_a_log_that_did_not_fit_is_named_until_the_restart() -> None:
    """DescribeLogDirs reports this reason (node.serving.broker_admin)."""
    small = altered_server(SERVER, {"log.cleaner.dedupe.buffer.size": "4096"})
    logs = LogManager([MemoryDirectory()], small, now_ms=lambda: NOW)
    logs.open()
    partition = TopicPartition("t", 0)
    log = logs.get_or_create(partition, None, replace(TOPIC, segment_bytes=1 << 20))
    records = [Record(0, NOW, b"k%d" % number, b"v") for number in range(400)]
    log.append_as_leader(encode_batch(records), 1, NOW)
    log.update_high_watermark(400)
    log.roll(NOW)
    cleaner = LogCleaner(logs, small, now_ms=lambda: NOW)
    cleaner.clean_once()
    assert "log.cleaner.dedupe.buffer.size" in cleaner.uncleanable[partition]
    assert cleaner.clean_once() is None
