"""A metadata partition is read in slices: a long one holds up nothing else on the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests import virtual_time
from tests.tiering.builders import PARTITION, STARTED, segment, server_config
from tests.tiering.metadata.test_manager_contract import Broker, FakeTopic
from tidemark.errors import CorruptMessageError
from tidemark.records import Record, encode_batch
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition, TopicPartition
from tiering.metadata.codec import encode
from tiering.metadata.segments import RemoteLogSegmentId
from tiering.metadata.topic import SLICE_RECORDS, ClientMetadataTopic, MetadataRecord
from tiering.metadata.topic_based import TopicBasedRemoteLogMetadataManager

OTHER = TopicIdPartition(UUID(int=5), "other", 0)


def test_other_work_of_the_loop_gets_its_turn_after_every_slice() -> None:
    async def scenario() -> None:
        broker, count = Broker(1), 10 * SLICE_RECORDS + 7
        for number in range(count):
            one = segment(number, number, state=STARTED)
            identity = RemoteLogSegmentId(PARTITION, UUID(int=number))
            broker.append(0, encode(replace(one, remote_log_segment_id=identity)))
        manager = TopicBasedRemoteLogMetadataManager(FakeTopic(broker))
        await manager.start()
        manager.on_partition_leadership_changes([PARTITION], [])
        seen = 0
        while not manager.is_ready(PARTITION):
            await asyncio.sleep(0)
            position = manager._followed[0].position if manager._followed else 0
            assert position - seen <= SLICE_RECORDS
            seen = position
        assert len(manager.list_remote_log_segments(PARTITION)) == count
        await manager.close()

    asyncio.run(scenario())


def batch(values: list[bytes], base_offset: int = 0) -> bytes:
    records = [
        Record(offset=number, timestamp_ms=1, key=None, value=value)
        for number, value in enumerate(values)
    ]
    return encode_batch(records, base_offset=base_offset)


class Reader:
    """A consumer with answers in order, which notes seeks."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.sought: list[tuple[TopicPartition, int]] = []

    async def fetch_batches(self, timeout_ms: float) -> list[Any]:
        return self.answers.pop(0) if self.answers else []

    def seek(self, partition: TopicPartition, offset: int, epoch: int | None) -> None:
        self.sought.append((partition, offset))


def raw(number: int, buffer: bytes, first_offset: int, next_offset: int) -> Any:
    partition = TopicPartition(REMOTE_LOG_METADATA_TOPIC, number)
    return SimpleNamespace(
        topic_partition=partition,
        buffer=buffer,
        first_offset=first_offset,
        next_offset=next_offset,
    )


def test_an_answer_of_many_records_is_decoded_a_slice_at_a_time() -> None:
    async def main() -> None:
        topic = ClientMetadataTopic(server_config(), "127.0.0.1:1")
        count = 3 * SLICE_RECORDS
        values = [b"%d" % number for number in range(count)]
        reader = Reader([raw(0, batch(values), 5, count), raw(1, batch([b"x"]), 0, 1)])
        topic._consumer = reader  # type: ignore[assignment]
        found, positions = [], []
        for _ in range(5):
            records, moved = await topic.poll()
            assert len(records) <= SLICE_RECORDS
            found += records
            positions.append(moved)
        assert [r.offset for r in found if r.partition == 0] == list(range(5, count))
        assert [r.value for r in found if r.partition == 1] == [b"x"]
        assert positions[:2] == [{}, {}] and {**positions[2], **positions[3]} == {0: count, 1: 1}

    asyncio.run(main())


def test_what_can_not_be_decoded_is_fetched_again_and_nothing_is_skipped() -> None:
    async def main() -> None:
        topic = ClientMetadataTopic(server_config(), "127.0.0.1:1")
        values = [b"v%d" % number for number in range(SLICE_RECORDS)]
        good, broken = batch(values), bytearray(batch([b"lost"], base_offset=SLICE_RECORDS))
        broken[-1] ^= 0xFF
        answer = raw(0, good + bytes(broken), 0, SLICE_RECORDS + 1)
        reader = Reader([answer, raw(1, batch([b"x"]), 0, 1)])
        topic._consumer = reader  # type: ignore[assignment]
        records, _ = await topic.poll()
        assert len(records) == SLICE_RECORDS
        with pytest.raises(CorruptMessageError):
            await topic.poll()
        assert sorted((p.partition, offset) for p, offset in reader.sought) == [
            (0, SLICE_RECORDS),
            (1, 0),
        ]
        assert await topic.poll() == ([], {})

    asyncio.run(main())


def test_a_partition_assigned_later_waits_for_no_poll_without_records() -> None:
    """A follower that starts from the tier waits for it, for as long as the poll is."""

    class Parked(FakeTopic):
        async def poll(self) -> tuple[list[MetadataRecord], dict[int, int]]:
            while all(p == len(self.broker.logs[n]) for n, p in self.positions.items()):
                self.broker.appended.clear()
                await self.broker.appended.wait()
            return await super().poll()

    async def scenario(partitions: int) -> None:
        broker = Broker(partitions)
        one = segment(0, 9, 1, state=STARTED)
        for number in range(partitions):
            broker.append(number, encode(one))
        manager = TopicBasedRemoteLogMetadataManager(Parked(broker))
        await manager.start()
        manager.on_partition_leadership_changes([PARTITION], [])
        await asyncio.sleep(5)
        assert manager.is_ready(PARTITION)
        began = asyncio.get_running_loop().time()
        manager.on_partition_leadership_changes([], [OTHER])
        while not manager.is_ready(OTHER):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert asyncio.get_running_loop().time() - began < 0.02
        for number in range(partitions):
            broker.append(number, encode(one))
        await asyncio.sleep(1)
        assert {each.position for each in manager._followed.values()} == {2}
        await manager.close()

    for partitions in (1, 2, 5):
        virtual_time.run(scenario(partitions))
