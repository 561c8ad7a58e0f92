"""A damaged batch of __remote_log_metadata is fetched again: its replica may be copied anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tiering.builders import server_config
from tidemark.client import CorruptBatchError
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, TopicPartition
from tiering.metadata.topic import ClientMetadataTopic

ONE = TopicPartition(REMOTE_LOG_METADATA_TOPIC, 3)


class DamagedReader:
    """A consumer that is stopped until a seek."""

    def __init__(self) -> None:
        self.sought: list[tuple[TopicPartition, int]] = []

    async def fetch_batches(self, timeout_ms: float) -> list[Any]:
        if not self.sought:
            raise CorruptBatchError(ONE, 17, "CRC")
        return []

    def seek(self, partition: TopicPartition, offset: int) -> None:
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
