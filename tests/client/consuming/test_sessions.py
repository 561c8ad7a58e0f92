"""The consumer's fetch sessions: which calls they use, what they name, and when they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests import virtual_time
from tests.client.consuming.harness import RETRY, A, B
from tidemark import wire
from tidemark.client.connections import Connections
from tidemark.client.consuming.partition import AssignedPartition, Position
from tidemark.client.consuming.requests import Ask, FetchSettings, Request
from tidemark.client.consuming.sessions import FetchSessions
from tidemark.errors import NetworkError
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2
from tidemark.wire import FetchResponse

NODE, ELSEWHERE = "n:1", "n:2"


class Call:
    """An open call; the test answers its requests."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_open = True
        self.asked: list[log_pb2.FetchRequest] = []
        self.answer: Exception | None = None

    async def ask(self, request: bytes, decode: Any, timeout_ms: float) -> FetchResponse:
        assert timeout_ms == 30_000 + 700
        self.asked.append(log_pb2.FetchRequest.FromString(request))
        if self.answer is not None:
            raise self.answer
        return FetchResponse()

    def close(self) -> None:
        self.is_open = False


class Session:
    """The sessions of a consumer, its calls, and one request."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        opened: Any = self
        settings = FetchSettings(RETRY, "latest", 1, True, 700, 3, 900, 50)
        self.sessions = FetchSessions(cast(Connections, opened), settings)
        self.request = Request(1, 1, True, "r")

    request_timeout_ms = 30_000

    def open_call(self, address: str, path: str) -> Call:
        assert path == wire.FETCH_STREAM
        self.calls.append(Call(address))
        return self.calls[-1]

    def join(self, partition: TopicPartition, offset: int = 0) -> None:
        ask = Ask(Position(offset, 4), b"i" * 16, 6)
        self.request.join(AssignedPartition(partition), ask)

    async def round(self, address: str = NODE) -> tuple[list[tuple[int, int]], list[int]]:
        """Sends the request; returns partitions with offsets that it named, and those forgotten."""
        self.request.begin(0.0, 1.0)
        await self.sessions.fetch(address, self.request)
        self.request.rest(1.0)
        message = self.calls[-1].asked[-1]
        named = [(item.partition, item.fetch_offset) for item in message.partitions]
        return named, [item.partition for item in message.forgotten]


def run(scenario: Callable[[Session], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Session())

    virtual_time.run(main())


def test_a_call_is_told_what_changed() -> None:
    async def scenario(session: Session) -> None:
        session.join(A)
        session.join(B)
        assert await session.round() == ([(0, 0), (1, 0)], [])
        assert await session.round() == ([], [])
        session.request.leave(A)
        session.request.take(B)
        session.join(B, 7)
        assert await session.round() == ([(1, 7)], [0])
        assert [len(call.asked) for call in session.calls] == [3]
        session.sessions.close()
        assert not session.calls[0].is_open

    run(scenario)


def test_a_request_has_the_consumers_settings_and_all_that_a_node_checks() -> None:
    async def scenario(session: Session) -> None:
        session.join(A, 5)
        await session.round()
        partition = log_pb2.FetchRequest.FetchPartition(
            topic="t",
            topic_id=b"i" * 16,
            partition=0,
            current_leader_epoch=6,
            fetch_offset=5,
            last_fetched_epoch=4,
            log_start_offset=-1,
            partition_max_bytes=50,
            high_watermark=-1,
        )
        assert session.calls[0].asked == [
            log_pb2.FetchRequest(
                max_wait_ms=700,
                min_bytes=3,
                max_bytes=900,
                isolation_level=1,
                rack_id="r",
                partitions=[partition],
            )
        ]

    run(scenario)


@pytest.mark.parametrize("way", ["broke", "moved", "ended"])
def test_another_call_is_told_everything(way: str) -> None:
    async def scenario(session: Session) -> None:
        session.join(A)
        session.join(B)
        await session.round()
        (call,) = session.calls
        if way == "broke":
            call.is_open = False
        elif way == "ended":
            session.sessions.end(1)
        session.request.leave(A)
        found = await session.round(ELSEWHERE if way == "moved" else NODE)
        assert found == ([(1, 0)], [])
        assert not call.is_open
        assert len(session.calls) == 2
        assert session.calls[1].address == (ELSEWHERE if way == "moved" else NODE)
        assert await session.round(session.calls[1].address) == ([], [])

    run(scenario)


def test_each_request_has_its_own_call_and_an_error_is_the_callers() -> None:
    async def scenario(session: Session) -> None:
        session.join(A)
        await session.round()
        session.calls[0].answer = NetworkError("gone")
        with pytest.raises(NetworkError, match="gone"):
            await session.round()
        session.request = Request(2, 1, True, "")
        session.join(A)
        assert await session.round() == ([(0, 0)], [])
        session.sessions.end(1)
        session.sessions.end(1)
        assert [call.is_open for call in session.calls] == [False, True]

    run(scenario)
