"""The flat files of remote log metadata: KIP-405's bytes, and one state after every crash."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from tests.tiering.builders import DELETED, DELETING, FINISHED, PARTITION, STARTED, segment
from tests.tiering.metadata.test_manager_contract import Broker, FakeTopic
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.types import TopicIdPartition, uuid_to_text
from tiering.errors import RetriableRemoteStorageError
from tiering.metadata.codec import encode
from tiering.metadata.flat_file import FlatFileReader, encode_entry, encode_header
from tiering.metadata.flat_store import DIRECTORY_NAME, OFFSETS_NAME
from tiering.metadata.followed import FlatFiles, FollowedPartition
from tiering.metadata.segments import (
    RemoteLogMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tiering.metadata.topic import MetadataRecord
from tiering.metadata.topic_based import TopicBasedRemoteLogMetadataManager

TOPIC_ID = FakeTopic.topic_id
OTHER = TopicIdPartition(UUID(int=5), "other", 0)
MARKED, BEGUN, REMOVED = RemotePartitionDeleteState


def deletion(state: RemotePartitionDeleteState) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(OTHER, state, 9, 3)


def history(rounds: int = 6) -> list[RemoteLogMetadata]:
    """Copies and deletions of two partitions, with refused records; one of them is removed."""
    records: list[RemoteLogMetadata] = []
    for number in range(rounds):
        for partition in (PARTITION, OTHER):
            one = segment(10 * number, 10 * number + 9, number + 1, partition=partition)
            begun = replace(one, state=STARTED, txn_index_empty=number % 2 == 0)
            records += [begun, one.update(FINISHED, number, 2, b"p" * 12 if number % 3 else None)]
        if number >= 2:
            oldest = segment(0, 0, number - 1)
            records += [oldest.update(DELETING, 1, 1), oldest.update(DELETED, 1, 1)]
            records.append(oldest.update(FINISHED, 1, 1))  # late: refused
    records += [deletion(MARKED), replace(segment(99, 99, 99, partition=OTHER), state=STARTED)]
    records.append(deletion(BEGUN))
    for number in range(rounds):
        one = segment(0, 0, number + 1, partition=OTHER)
        records += [one.update(DELETING, 1, 1), one.update(DELETED, 1, 1)]
    records.append(deletion(REMOVED))
    return records


RECORDS = [encode(record) for record in history()]


def state_of(followed: FollowedPartition) -> dict[str, Any]:
    return {
        str(partition): (cache.segments(), cache.partition_delete)
        for partition, cache in followed.caches.items()
        if len(cache) or cache.partition_delete
    }


def apply_to(followed: FollowedPartition, end: int) -> None:
    for offset in range(followed.position, end):
        followed.apply(MetadataRecord(0, offset, RECORDS[offset]))
    followed.position = max(followed.position, end)


def folded(end: int) -> dict[str, Any]:
    """The state after all records below `end`, from the topic alone."""
    followed = FollowedPartition()
    apply_to(followed, end)
    return state_of(followed)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


def test_a_file_has_the_bytes_that_kip_405_describes() -> None:
    header = encode_header(PARTITION, 300)
    assert header.hex() == (
        "00" + "0007" + b"flights".hex() + "1234567890abcdef1234567890abcdef" + "d804"
    )
    one = segment(16, 31, 0xAB, size_bytes=1000, max_timestamp_ms=2, event_timestamp_ms=3, e4=16)
    assert encode_entry(one).hex() == (
        "4b" + "00" + "00"  # length 75, type 0, version 0
        "000000000000000000000000000000ab"
        "0000000000000010" + "000000000000001f" + "00000001"
        "0000000000000002" + "0000000000000003"
        "00000001" + "00000004" + "0000000000000010"
        "000003e8" + "01"
    )  # fmt: skip
    assert (
        encode_entry(deletion(BEGUN)).hex() == "0f" + "01" + "00" + "00000003" + "00" * 7 + "0901"
    )
    pinned = replace(one, custom_metadata=b"pin", txn_index_empty=True)
    added = encode_entry(pinned)
    assert (
        added[:3].hex() == "53" + "00" + "01" and added[-8:].hex() == "00000003" + "70696e" + "01"
    )
    reader = FlatFileReader(header + encode_entry(one) + added + encode_entry(one.id), 3)
    assert reader.partition == PARTITION and reader.metadata_offset == 300
    assert list(reader.entries()) == [one, pinned, one.id]


def test_every_kind_of_entry_decodes_to_itself_and_damage_is_an_error() -> None:
    entries = [
        replace(segment(0, 9, 1, e0=0, e3=4, e9=5), custom_metadata=custom, txn_index_empty=empty)
        for custom in (None, b"", b"x" * 12, b"long" * 50)
        for empty in (False, True)
    ]
    whole = encode_header(PARTITION, 0) + b"".join(map(encode_entry, entries))
    assert list(FlatFileReader(whole, 3).entries()) == entries
    for size in range(len(encode_header(PARTITION, 0)) + 1, len(whole)):
        try:
            found = list(FlatFileReader(whole[:size], 3).entries())
        except CorruptMessageError:
            continue
        assert found == entries[: len(found)]  # cut between two entries


class Recorder(FakeTopic):
    """A topic that notes which offsets were read."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.read: list[int] = []

    async def poll(self) -> tuple[list[MetadataRecord], dict[int, int]]:
        records, moved = await super().poll()
        self.read += [record.offset for record in records]
        return records, moved


async def caught_up(
    broker: Broker, directory: MemoryDirectory, topic_id: UUID = TOPIC_ID
) -> tuple[TopicBasedRemoteLogMetadataManager, Recorder]:
    topic = Recorder(broker)
    topic.topic_id = topic_id
    manager = TopicBasedRemoteLogMetadataManager(topic, directory=directory)
    await manager.start()
    manager.on_partition_leadership_changes([PARTITION, OTHER], [])
    while not manager.is_ready(PARTITION):  # noqa: ASYNC110
        await asyncio.sleep(0)
    return manager, topic


async def restarted(
    broker: Broker, directory: MemoryDirectory, topic_id: UUID = TOPIC_ID
) -> list[int]:
    """Starts a manager that must have the whole state; returns the offsets it read."""
    manager, topic = await caught_up(broker, directory, topic_id)
    assert state_of(manager._followed[0]) == folded(len(broker.logs[0]))
    await manager.close()
    return topic.read


def test_a_restart_reads_no_record_twice() -> None:
    async def scenario() -> None:
        broker, directory = Broker(1), MemoryDirectory("node")
        broker.logs[0] = RECORDS[:20]
        assert await restarted(broker, directory) == list(range(20))
        broker.logs[0] = RECORDS[:31]
        assert await restarted(broker, directory) == list(range(20, 31))
        broker.logs[0] = list(RECORDS)
        assert await restarted(broker, directory) == list(range(31, len(RECORDS)))
        assert await restarted(broker, directory) == []
        assert directory.read(OFFSETS_NAME) == b"0\n0 %d\n" % len(RECORDS)

    run(scenario)


def test_files_of_another_topic_or_beyond_its_end_are_not_used() -> None:
    async def scenario() -> None:
        broker, directory = Broker(1), MemoryDirectory("node")
        broker.logs[0] = list(RECORDS)
        await restarted(broker, directory)
        broker.logs[0] = RECORDS[:12]  # an unclean election
        assert await restarted(broker, directory) == list(range(12))
        broker.logs[0] = list(RECORDS)
        assert await restarted(broker, directory) == list(range(12, len(RECORDS)))
        made_anew = UUID(int=78)
        assert await restarted(broker, directory, made_anew) == list(range(len(RECORDS)))

    run(scenario)


def state_after(values: list[bytes]) -> dict[str, Any]:
    followed = FollowedPartition()
    for offset, value in enumerate(values):
        followed.apply(MetadataRecord(0, offset, value))
    return state_of(followed)


@pytest.mark.parametrize("end", [20, 23])
def test_records_that_an_unclean_election_replaced_are_read_though_the_end_is_beyond(
    end: int,
) -> None:
    """The files are of a log that is gone. New records passed the position, or end there."""

    async def scenario() -> None:
        broker, directory, kept = Broker(1), MemoryDirectory("node"), 12
        broker.logs[0] = RECORDS[:20]
        broker.epochs = {(0, offset): 3 for offset in range(20)}
        manager, _ = await caught_up(broker, directory)
        await manager.close()
        broker.logs[0] = [*RECORDS[:kept], *RECORDS[20 : 20 + end - kept]]
        broker.epochs |= {(0, offset): 4 for offset in range(kept, end)}
        for read in ([19, *range(19, end)], [end - 1]):
            manager, topic = await caught_up(broker, directory)
            assert state_of(manager._followed[0]) == state_after(broker.logs[0])
            assert topic.read[0] == read[0]
            assert (read == [end - 1]) == (topic.read == read)
            await manager.close()

    run(scenario)


def test_records_that_are_read_again_below_the_position_are_of_a_log_that_was_cut() -> None:
    """The reader of the topic went back to where the logs part; so all is read anew."""

    async def scenario() -> None:
        broker, directory = Broker(1), MemoryDirectory("node")
        broker.logs[0] = RECORDS[:20]
        manager, topic = await caught_up(broker, directory)
        broker.logs[0] = [*RECORDS[:12], *RECORDS[20:26]]
        topic.positions[0] = 12
        topic.read.clear()
        while topic.read.count(17) < 2 or not manager.is_ready(PARTITION):
            topic.polled.clear()
            await topic.polled.wait()
        assert state_of(manager._followed[0]) == state_after(broker.logs[0])
        await manager.close()

    run(scenario)


def test_a_write_whose_record_was_cut_off_is_repeated() -> None:
    async def scenario() -> None:
        broker = Broker(1)
        broker.logs[0] = RECORDS[:20]
        manager, topic = await caught_up(broker, MemoryDirectory("node"))
        topic.hold = True
        begun = replace(segment(900, 909, 900), state=STARTED)
        writing = asyncio.ensure_future(manager.add_remote_log_segment_metadata(begun))
        while len(broker.logs[0]) < 21:
            topic.polled.clear()
            await topic.polled.wait()
        broker.logs[0] = [*RECORDS[:12], *RECORDS[20:30]]
        topic.positions[0] = 12
        topic.hold = False
        with pytest.raises(RetriableRemoteStorageError, match="lost records"):
            await writing
        await manager.close()

    run(scenario)


def test_a_file_where_the_directory_should_be_stops_no_reading() -> None:
    async def scenario() -> None:
        broker, directory = Broker(1), MemoryDirectory("node")
        directory.write_atomic(DIRECTORY_NAME, b"")
        broker.logs[0] = list(RECORDS)
        assert await restarted(broker, directory) == list(range(len(RECORDS)))

    run(scenario)


class Killed(BaseException):
    """The process ends here."""


class Crashing:
    """A directory, or a file of it, that ends the process at the n-th call that writes."""

    WRITES = frozenset(
        ("append", "fsync", "truncate", "write_atomic", "remove", "open", "rename", "close")
    )

    def __init__(self, inner: Any, fuse: list[int]) -> None:
        self._inner, self._fuse = inner, fuse

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **named: Any) -> Any:
            if name in self.WRITES:
                self._tick()
            result = value(*args, **named)
            if name in self.WRITES:
                self._tick()
            return Crashing(result, self._fuse) if name in ("open", "subdirectory") else result

        return call

    def _tick(self) -> None:
        self._fuse[0] -= 1
        if self._fuse[0] == 0:
            raise StorageError("killed")


@pytest.mark.parametrize("keep", ["none", "random", "all"])
def test_killed_at_any_write_the_next_start_has_one_commit_and_reads_the_rest(keep: Any) -> None:
    async def scenario() -> None:
        steps = [7, 19, 30, 41, len(RECORDS)]
        for fuse in itertools.count(1):
            directory = MemoryDirectory("node", seed=fuse)
            files = FlatFiles(Crashing(directory, count := [fuse]))  # type: ignore[arg-type]
            await files.open(TOPIC_ID)
            followed = await files.load(0)
            committed = 0
            for end in steps:
                apply_to(followed, end)
                await files.close([followed])
                committed = end if files._store is not None else committed
            left = directory.after_crash(keep)
            files = FlatFiles(left)
            await files.open(TOPIC_ID)
            followed = await files.load(0)
            assert followed.position in (0, *steps) and followed.position >= committed
            assert state_of(followed) == folded(followed.position), fuse
            apply_to(followed, len(RECORDS))
            assert state_of(followed) == folded(len(RECORDS))
            await files.close([followed])
            again = FlatFiles(left)
            await again.open(TOPIC_ID)
            assert state_of(await again.load(0)) == folded(len(RECORDS))
            if count[0] > 0:
                assert fuse > 60
                return

    run(scenario)


def test_damage_of_any_file_is_noticed_and_the_topic_is_read_anew() -> None:
    async def scenario() -> None:
        broker = Broker(1)
        broker.logs[0] = list(RECORDS)
        whole = MemoryDirectory("node")
        await restarted(broker, whole)
        names = [(None, OFFSETS_NAME)]
        names += [(DIRECTORY_NAME, name) for name in whole.subdirectory(DIRECTORY_NAME).list()]
        assert len(names) == 4
        for folder, name in names:
            for damage in ("flip", "cut", "remove", "empty"):
                directory = MemoryDirectory("node")
                await restarted(broker, directory)
                place = directory.subdirectory(folder) if folder else directory
                assert isinstance(place, MemoryDirectory)
                if damage == "flip":
                    place.flip_bit(name, place.size_of(name) // 2, 3)
                elif damage == "remove":
                    place.remove(name)
                else:
                    place.cut(name, place.size_of(name) - 3 if damage == "cut" else 0)
                read = await restarted(broker, directory)
                assert read == list(range(len(RECORDS))), (name, damage)
                assert await restarted(broker, directory) == []  # the files are good again

    run(scenario)


@pytest.mark.parametrize("broken", ["fail_writes", "fail_fsync", "fail_reads"])
def test_a_disk_that_fails_takes_the_files_and_nothing_else(broken: str) -> None:
    async def scenario() -> None:
        broker, directory = Broker(1), MemoryDirectory("node")
        broker.logs[0] = RECORDS[:20]
        await restarted(broker, directory)
        getattr(directory, broken)("*")
        broker.logs[0] = list(RECORDS)
        assert (await restarted(broker, directory))[-1] == len(RECORDS) - 1
        assert (await restarted(broker, directory))[-1] == len(RECORDS) - 1

    run(scenario)


def test_a_file_of_outdated_entries_is_written_anew() -> None:
    async def scenario() -> None:
        directory = MemoryDirectory("node")
        files = FlatFiles(directory)
        await files.open(TOPIC_ID)
        followed = await files.load(0)
        sizes = []
        for number in range(200):  # one segment lives at a time
            one = segment(number, number, number, state=STARTED)
            for record in (one, one.update(DELETING, 1, 1), one.update(DELETED, 1, 1)):
                followed.apply(MetadataRecord(0, followed.position, encode(record)))
                followed.position += 1
            await files.close([followed])
            place = directory.subdirectory(DIRECTORY_NAME)
            found = [name for name in place.list() if uuid_to_text(PARTITION.topic_id) in name]
            assert len(found) == 1 and len(place.list()) == 2
            sizes.append(place.size_of(found[0]))
        assert max(sizes) < 70 * 80
        assert state_of(await files.load(0)) == {}

    run(scenario)
