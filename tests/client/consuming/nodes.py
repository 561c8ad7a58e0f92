"""Two nodes in this process, and an AsyncConsumer of them in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import virtual_time
from tests.client.consuming.harness import A, B, FakeLog
from tests.client.fetch_sessions import FakeSession
from tidemark import wire
from tidemark.client import AsyncConsumer
from tidemark.client.connections import Connections
from tidemark.client.consuming import reading
from tidemark.client.metadata import METADATA
from tidemark.errors import RequestTimedOutError
from tidemark.records.arrow import warm_up
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

NODE_1, NODE_2 = "n:1", "n:2"


class Nodes(Connections):
    """Two nodes that share logs; `trip` may raise, or wait, in any call."""

    def __init__(self) -> None:
        super().__init__(request_timeout_ms=30_000)
        self.logs = {A: FakeLog(), B: FakeLog()}
        self.leaders = {A: 1, B: 1}
        self.hung: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.trip: Callable[[str, str], None] = lambda address, name: None
        self.throttle_time_ms = 0
        self.open_calls: list[_FetchCall] = []

    async def call(
        self,
        address: str,
        path: str,
        request: Any,
        decode: Callable[[bytes], Any],
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        await self.begin(address, path.rpartition("/")[2], timeout_ms or self.request_timeout_ms)
        if path == METADATA:
            return self._metadata()
        return self._offsets(request)

    async def begin(self, address: str, name: str, timeout_ms: float) -> None:
        self.calls.append((address, name))
        if address in self.hung:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOutError(address)
        self.trip(address, name)

    def open_call(self, address: str, path: str) -> Any:
        assert path == wire.FETCH_STREAM
        self.open_calls.append(_FetchCall(self, address))
        return self.open_calls[-1]

    def _offsets(self, request: log_pb2.ListOffsetsRequest) -> log_pb2.ListOffsetsResponse:
        answer = log_pb2.ListOffsetsResponse()
        for item in request.partitions:
            log = self.logs[TopicPartition(item.topic, item.partition_index)]
            answer.partitions.add(
                topic=item.topic,
                partition_index=item.partition_index,
                offset=log.end if item.timestamp == -1 else log.start,
                leader_epoch=-1,
            )
        return answer

    def _metadata(self) -> log_pb2.MetadataResponse:
        answer = log_pb2.MetadataResponse()
        for number in (1, 2):
            answer.brokers.add(node_id=number, host="n", port=number)
        topic = answer.topics.add(name="t", topic_id=b"i" * 16)
        for partition, leader in self.leaders.items():
            topic.partitions.add(partition_index=partition.partition, leader_id=leader)
        return answer

    async def fetch(self, request: log_pb2.FetchRequest) -> wire.FetchResponse:
        found = []
        for item in request.partitions:
            log = self.logs[TopicPartition(item.topic, item.partition)]
            data = wire.FetchPartitionData(item.topic, item.partition, high_watermark=log.end)
            data.records = log.read(item.fetch_offset, item.partition_max_bytes)
            found.append(data)
        if not any(data.records for data in found):
            await asyncio.sleep(request.max_wait_ms / 1000)
        return wire.FetchResponse(found, throttle_time_ms=self.throttle_time_ms)

    def fetches(self, address: str = NODE_1) -> int:
        return self.calls.count((address, "Fetch"))


class _FetchCall:
    """A consumer's open call to one of the nodes."""

    is_open = True

    def __init__(self, nodes: Nodes, address: str) -> None:
        self._nodes = nodes
        self._address = address
        self._session = FakeSession()

    async def ask(self, request: bytes, decode: Any, timeout_ms: float) -> wire.FetchResponse:
        whole = self._session.whole(log_pb2.FetchRequest.FromString(request))
        await self._nodes.begin(self._address, "Fetch", timeout_ms)
        answer = await self._nodes.fetch(whole)
        answer.responses = self._session.news(answer.responses)
        return answer

    def close(self) -> None:
        self.is_open = False
        self._nodes.open_calls.remove(self)


def run(
    scenario: Callable[[Nodes, AsyncConsumer], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    **settings: Any,
) -> None:
    warm_up()  # no hop to a thread for small batches
    nodes = Nodes()
    monkeypatch.setattr("tidemark.client.consumer.Connections", lambda **_: nodes)

    async def main() -> None:
        chosen = {"random_seed": 1, "max_partition_fetch_bytes": 1} | settings
        async with AsyncConsumer(f"{NODE_1},{NODE_2}", **chosen) as consumer:
            consumer.assign([A, B])
            for partition in (A, B):
                consumer.seek(partition, 0)
            await scenario(nodes, consumer)

    virtual_time.run(main())


def slow_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each hop to a thread take a second."""
    monkeypatch.setattr(reading, "_INLINE_BYTES", -1)
    loop = asyncio.get_running_loop()

    def in_a_second(_: object, work: Callable[[], Any]) -> Awaitable[Any]:
        async def later() -> Any:
            await asyncio.sleep(1)
            return work()

        return asyncio.ensure_future(later())

    monkeypatch.setattr(loop, "run_in_executor", in_a_second)


def fill(nodes: Nodes, batches: int = 10, each: int = 3) -> None:
    for log in nodes.logs.values():
        for _ in range(batches):
            log.append(each)
