"""All logs of a node: locks, clean and unclean restarts, checkpoints, deletion, strays, and their
small files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import (
    CleanShutdown,
    MetaProperties,
    OffsetCheckpoint,
    PartitionMetadata,
    format_epochs,
    parse_epochs,
)
from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.names import parse_directory_name
from commitlog.disk.os_files import OsDirectory
from commitlog.manager.manager import LogManager
from commitlog.manager.new_logs import NewLog
from tests.commitlog.builders import NOW, batch, config, offsets_of
from tidemark.config import parse_server_config
from tidemark.errors import StorageError
from tidemark.types import TopicPartition, random_uuid

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0"
TP = TopicPartition("events", 0)


def manager(*directories: Any, now: int = NOW) -> LogManager:
    settings = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "0@localhost:1",
    }
    return LogManager(directories, parse_server_config(settings), now_ms=lambda: now)


def test_logs_are_found_again_after_a_clean_stop_with_their_watermarks() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    assert logs.open() == -1
    topic_id = random_uuid()
    log = logs.get_or_create(TP, topic_id, config())
    for _ in range(40):
        log.append_as_leader(batch(3), 1, NOW)
    log.update_high_watermark(100)
    log.increment_log_start_offset(50)
    logs.close(True, 17)
    disk.crash(keep="nothing")
    again = manager(disk)
    assert again.open() == 17
    found = again.get(TP)
    assert found is not None
    assert found.topic_id == topic_id
    assert (found.log_start_offset, found.high_watermark, found.log_end_offset) == (50, 100, 120)
    assert not CleanShutdown(disk).exists()
    with pytest.raises(StorageError, match="locked by another process"):
        manager(disk).open()
    again.close(clean=False)


def test_an_unclean_stop_recovers_from_the_checkpointed_recovery_point() -> None:
    disk = MemoryDirectory(seed=3)
    logs = manager(disk)
    logs.open()
    log = logs.get_or_create(TP, random_uuid(), config())
    for _ in range(40):
        log.append_as_leader(batch(3), 1, NOW)
    logs.checkpoint_recovery_points()
    flushed = log.recovery_point
    assert flushed == log.active_segment.base_offset > 0
    checkpoint = OffsetCheckpoint(disk, "recovery-point-offset-checkpoint")
    assert checkpoint.read() == {TP: flushed}
    disk.crash()
    again = manager(disk)
    assert again.open() == -1
    found = again.get(TP)
    assert found is not None
    assert found.log_end_offset >= flushed
    assert offsets_of(found) == list(range(found.log_end_offset))
    found.truncate_to(9, NOW)
    assert checkpoint.read() == {TP: 9}


def test_a_new_log_goes_to_the_directory_with_the_fewest() -> None:
    first, second = MemoryDirectory("first"), MemoryDirectory("second")
    logs = manager(first, second)
    logs.open()
    for number in range(5):
        logs.get_or_create(TopicPartition("t", number), random_uuid(), config())
    found = [logs.directory_of(TopicPartition("t", number)) for number in range(5)]
    homes = [home.path for home in found if home is not None]
    assert homes == ["first", "second", "first", "second", "first"]
    first.write_atomic("recovery-point-offset-checkpoint", b"damaged")
    logs.close()
    assert len(OffsetCheckpoint(second, "recovery-point-offset-checkpoint").read()) == 2


@pytest.mark.parametrize("when", ["before", "while it flushes", "at the marker"])
def test_a_clean_stop_marks_only_the_directories_that_work(when: str) -> None:
    first, second = MemoryDirectory("first"), MemoryDirectory("second")
    logs = manager(first, second)
    logs.open()
    for number in range(2):
        logs.get_or_create(TopicPartition("t", number), random_uuid(), config()).append_as_leader(
            batch(3), 1, NOW
        )
    first.fail_fsync({"while it flushes": "*.log", "at the marker": "*clean*"}.get(when, "no"))
    if when == "before":
        logs.directories[0].state.fail("pulled out")
    logs.close(True, 17)
    assert [CleanShutdown(d).broker_epoch() for d in (first, second)] == [-1, 17]
    first.crash(keep="everything")
    again = manager(first, second)
    assert again.open() == -1
    assert [log.log_end_offset for log in again.logs()] == [3, 3]


def test_a_log_in_two_directories_is_the_one_that_the_metadata_knows() -> None:
    def made(name: str, topic_id: UUID, count: int) -> MemoryDirectory:
        disk = MemoryDirectory(name)
        logs = manager(disk)
        logs.open()
        logs.get_or_create(TP, topic_id, config()).append_as_leader(batch(count), 1, NOW)
        logs.close()
        return disk

    def opened(known: tuple[UUID, UUID | None] | None, *topics: UUID) -> LogManager:
        disks = [
            made(name, topic, n + 1)
            for n, (name, topic) in enumerate(zip("ab", topics, strict=True))
        ]
        directories = [LogDirectory(d, i) for d, i in zip(disks, ids, strict=True)]
        logs = LogManager(
            directories,
            manager(disks[0])._config,
            now_ms=lambda: NOW,
            known_replica=lambda _: known,
        )
        logs.open()
        return logs

    def offset(logs: LogManager) -> int:
        log = logs.get(TP)
        assert log is not None
        assert sum(any("-stray" in n for n in d.list()) for d in logs.directories) == 1
        return log.log_end_offset

    old, new, ids = random_uuid(), random_uuid(), (random_uuid(), random_uuid())
    assert offset(opened((new, None), old, new)) == 2
    assert offset(opened((new, None), new, old)) == 1
    assert offset(opened((new, ids[0]), new, new)) == 1
    assert offset(opened((new, ids[1]), new, new)) == 2
    for deleted in (None, (random_uuid(), None)):
        assert offset(opened(deleted, old, new)) == 1, "both are of topics that were deleted"
    for known in (None, (new, None), (random_uuid(), None)):
        with pytest.raises(StorageError, match="remove the older one"):
            opened(known, new, new)


def test_a_deleted_log_is_renamed_at_once_and_gone_after_the_delay() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    first = random_uuid()
    logs.get_or_create(TP, first, config()).append_as_leader(batch(3), 1, NOW)
    logs.delete(TP)
    logs.delete(TP)
    logs.new_logs.save()
    assert logs.get(TP) is None
    (name,) = [n for n in disk.list() if n.endswith("-delete")]
    disk.crash(keep="nothing")
    assert disk.exists(name)
    assert not disk.exists("events-0")
    fresh = logs.get_or_create(TP, random_uuid(), config())
    assert fresh.log_end_offset == 0
    assert logs.purge_deleted(NOW + 999) == 0
    assert logs.purge_deleted(NOW + 1000) == 1
    assert not disk.exists(name)


def test_a_deleted_log_is_not_back_beside_its_successor_in_another_directory() -> None:
    first, second = MemoryDirectory("first"), MemoryDirectory("second")
    ids = random_uuid(), random_uuid()
    logs = manager(LogDirectory(first, ids[0]), LogDirectory(second, ids[1]))
    logs.open()
    logs.get_or_create(TP, random_uuid(), config(), assigned=ids[0])
    logs.new_logs.save()
    logs.delete(TP)
    new = random_uuid()
    planned = logs.get_or_plan(TP, new, config(), assigned=ids[1])
    assert isinstance(planned, NewLog)
    logs.new_logs.make([planned])
    first.crash(keep="nothing")
    second.crash(keep="everything")
    again = manager(first, second)
    again.open()
    assert [log.topic_id for log in again.logs()] == [new]


def test_leftovers_of_a_deletion_go_with_the_next_start() -> None:
    disk = MemoryDirectory()
    disk.subdirectory("events-0.abc-delete").write_atomic("x", b"y")
    disk.subdirectory("__cluster_metadata-0")
    disk.subdirectory("events-1.abc-stray")
    logs = manager(disk)
    logs.open()
    assert logs.logs() == []
    assert [n for n in disk.list() if "-" in n] == ["__cluster_metadata-0", "events-1.abc-stray"]


def test_a_log_of_an_older_topic_of_the_same_name_is_set_aside() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    logs.get_or_create(TP, random_uuid(), config()).append_as_leader(batch(3), 1, NOW)
    fresh = logs.get_or_create(TP, random_uuid(), config(retention_ms=5))
    assert fresh.log_end_offset == 0
    assert fresh.config.retention_ms == 5
    assert len([n for n in disk.list() if n.endswith("-stray")]) == 1


def test_names_of_directories() -> None:
    assert parse_directory_name("a-b.c_d-12") == TopicPartition("a-b.c_d", 12)
    for name in ("t-0.123-delete", "t", "t-x", "recovery-point-offset-checkpoint", "t-0.1-stray"):
        assert parse_directory_name(name) is None


# --- the small files


def test_kafkas_checkpoints_and_properties_read_and_write_alike() -> None:
    golden = OsDirectory(GOLDEN, create=False)
    found = OffsetCheckpoint(golden, "replication-offset-checkpoint").read()
    assert found[TopicPartition("rolled-by-size", 0)] == 3800
    memory = MemoryDirectory()
    OffsetCheckpoint(memory, "x").write(found)
    kafka = golden.read("replication-offset-checkpoint").decode().splitlines()
    ours = memory.read("x").decode().splitlines()
    assert (ours[:2], sorted(ours[2:])) == (kafka[:2], sorted(kafka[2:]))
    properties = MetaProperties.read(golden)
    assert properties is not None
    assert (properties.node_id, properties.cluster_id) == (1, "MkU3OEVBNTcwNTJENDM2Qg")
    properties.write(memory)
    assert MetaProperties.read(memory) == properties
    raw = (GOLDEN / "idempotent-rolled-0" / "partition.metadata").read_bytes()
    memory.write_atomic("partition.metadata", raw)
    metadata = PartitionMetadata.read(memory)
    assert metadata is not None
    metadata.write(memory)
    assert memory.read("partition.metadata") == raw
    epochs = (GOLDEN / "idempotent-rolled-0" / "leader-epoch-checkpoint").read_bytes()
    assert format_epochs(parse_epochs(epochs)) == epochs


@pytest.mark.parametrize(
    "text", [b"", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na b c\n", b"0\nx\n"]
)
def test_a_malformed_checkpoint_says_what_to_do(text: bytes) -> None:
    disk = MemoryDirectory()
    disk.write_atomic("c", text)
    with pytest.raises(StorageError, match=r"c(:| is malformed)"):
        OffsetCheckpoint(disk, "c").read()


def test_a_directory_of_another_cluster_or_node_is_refused() -> None:
    properties = MetaProperties("cluster-a", 1, random_uuid())
    properties.check("/data", cluster_id="cluster-a", node_id=1)
    properties.check("/data", cluster_id=None, node_id=1)
    with pytest.raises(StorageError, match=r"of cluster cluster-a.*point log\.dirs"):
        properties.check("/data", cluster_id="cluster-b", node_id=1)
    with pytest.raises(StorageError, match=r"of node 1, this node is 2.*never share"):
        properties.check("/data", cluster_id="cluster-a", node_id=2)


@pytest.mark.parametrize("text", [b"version=2\n", b"version=1\ncluster.id=x\n", b"nonsense"])
def test_a_malformed_properties_file_is_refused(text: bytes) -> None:
    disk = MemoryDirectory()
    disk.write_atomic("meta.properties", text)
    with pytest.raises(StorageError, match=r"meta\.properties"):
        MetaProperties.read(disk)


def test_the_clean_shutdown_marker_keeps_the_broker_epoch() -> None:
    disk = MemoryDirectory()
    marker = CleanShutdown(disk)
    assert marker.broker_epoch() == -1
    marker.write(42)
    assert disk.read(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    assert marker.broker_epoch() == 42
    disk.write_atomic(".kafka_cleanshutdown", b"{")
    assert marker.broker_epoch() == -1
    marker.remove()
    assert not marker.exists()


def test_a_truncation_during_a_checkpoint_is_in_the_one_that_stays() -> None:
    """Otherwise records written there again would not be checked after a crash."""
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = logs.get_or_create(TP, None, config())
    for _ in range(40):
        log.append_as_leader(batch(3), 1, NOW)
    log.flush()
    lock = logs.checkpoints.lock

    class Taken:
        """A lock: the event loop cuts the log while the checkpoint thread waits for it."""

        def __enter__(self) -> None:
            logs.checkpoints.lock = lock
            log.truncate_to(50, NOW)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    logs.checkpoints.lock = Taken()  # type: ignore[assignment]
    logs.checkpoint_recovery_points()
    points = OffsetCheckpoint(logs.directories[0], "recovery-point-offset-checkpoint").read()
    assert points == {TP: log.recovery_point}
    assert log.recovery_point <= 50
