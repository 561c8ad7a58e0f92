"""A damaged batch of __remote_log_metadata is fetched again: its replica may be copied anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tiering.builders import server_config
from tidemark.client import CorruptBatchError, LogTruncationError, TopicRecreatedError
from tidemark.errors import OffsetOutOfRangeError
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, TopicPartition
from tiering.metadata.topic import ClientMetadataTopic, MetadataTruncatedError

ONE = TopicPartition(REMOTE_LOG_METADATA_TOPIC, 3)


class DamagedReader:
    """A consumer that is stopped until a seek."""

    def __init__(self) -> None:
        self.sought: list[tuple[TopicPartition, int]] = []

    async def fetch_batches(self, timeout_ms: float) -> list[Any]:
        if not self.sought:
            raise CorruptBatchError(ONE, 17, "CRC")
        return []

    def seek(self, partition: TopicPartition, offset: int, epoch: int | None) -> None:
        self.sought.append((partition, offset))


def test_a_damaged_batch_of_remote_metadata_is_an_error_and_is_fetched_again() -> None:
    async def main() -> None:
        topic = ClientMetadataTopic(server_config(), "127.0.0.1:1")
        reader = DamagedReader()
        topic._consumer = reader  # type: ignore[assignment]
        with pytest.raises(CorruptBatchError):
            await topic.poll()
        assert reader.sought == [(ONE, 17)]
        assert await topic.poll() == ([], {})

    asyncio.run(main())


class TruncatedReader:
    """A consumer whose partition lost records; it has a second one."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def fetch_batches(self, timeout_ms: float) -> list[Any]:
        raise self.error

    def assignment(self) -> list[TopicPartition]:
        return [partition_of(2), ONE]

    async def beginning_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    async def position(self, partition: TopicPartition) -> int:
        return 17 if partition == ONE else 10


def partition_of(number: int) -> TopicPartition:
    return TopicPartition(REMOTE_LOG_METADATA_TOPIC, number)


@pytest.mark.parametrize(
    "error",
    [LogTruncationError(ONE, 17, (1, 5)), OffsetOutOfRangeError("17"), TopicRecreatedError(ONE, 9)],
)
def test_a_partition_that_lost_records_is_named(error: Exception) -> None:
    async def main() -> None:
        topic = ClientMetadataTopic(server_config(), "127.0.0.1:1")
        topic._consumer = TruncatedReader(error)  # type: ignore[assignment]
        with pytest.raises(MetadataTruncatedError) as caught:
            await topic.poll()
        assert caught.value.partition == 3

    asyncio.run(main())
