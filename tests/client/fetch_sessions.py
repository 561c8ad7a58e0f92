"""The node's half of a consumer's fetch session, for fakes that answer whole requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemark import wire
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2


class FakeSession:
    """The partitions of one open call."""

    def __init__(self) -> None:
        self._wanted: dict[TopicPartition, log_pb2.FetchRequest.FetchPartition] = {}

    def whole(self, request: log_pb2.FetchRequest) -> log_pb2.FetchRequest:
        """The request with all partitions that are to be read."""
        for gone in request.forgotten:
            self._wanted.pop(TopicPartition(gone.topic, gone.partition), None)
        for item in request.partitions:
            self._wanted[TopicPartition(item.topic, item.partition)] = item
        whole = log_pb2.FetchRequest(max_wait_ms=request.max_wait_ms)
        whole.partitions.extend(self._wanted.values())
        return whole

    def news(self, answers: Iterable[Any]) -> list[Any]:
        """The answers that say something; these partitions are read when they are named again."""
        found = [data for data in answers if data.records or data.error_code or _parts(data)]
        for data in found:
            del self._wanted[TopicPartition(data.topic, data.partition_index)]
        return found


def _parts(data: Any) -> bool:
    if isinstance(data, wire.FetchPartitionData):
        return data.diverging_epoch is not None
    return bool(data.HasField("diverging_epoch"))
