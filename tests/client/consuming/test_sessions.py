"""The consumer's fetch sessions: which calls they use, what they name, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests import virtual_time
from tests.client.consuming.harness import A, B, C
from tidemark import wire
from tidemark.client.connections import Connections
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.requests import Ask, FetchSettings, Request
from tidemark.client.consuming.sessions import FetchSessions
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ErrorCode, NetworkError
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2
from tidemark.wire import FetchPartitionData, FetchResponse

NODE = "n:1"


class Call:
    """An open call; the test answers its requests."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked: list[log_pb2.FetchRequest] = []
        self.answers: asyncio.Queue[FetchResponse | Exception] = asyncio.Queue()

    async def ask(self, request: bytes, decode: Any, timeout_ms: float) -> FetchResponse:
        self.asked.append(log_pb2.FetchRequest.FromString(request))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.is_open = False


class Opened:
    """Connections that count the calls opened."""

    request_timeout_ms = 30_000

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.open_call = self._open

    def _open(self, address: str, path: str) -> Call:
        assert path == wire.FETCH_STREAM
        self.calls.append(Call())
        return self.calls[-1]


class Session:
    """The sessions of a consumer, and its requests."""

    def __init__(self) -> None:
        self.opened = Opened()
        settings = FetchSettings(RetryPolicy(60_000, 100, 1_000, jitter=0))
        clock = asyncio.get_running_loop().time
        self.sessions = FetchSessions(cast(Connections, self.opened), settings, clock)

    def ask(
        self, positions: dict[TopicPartition, int], rack: str = ""
    ) -> asyncio.Future[FetchResponse]:
        asked = {key: Ask(Position(offset), b"i" * 16, 0) for key, offset in positions.items()}
        request = Request(1, 1, True, rack, 0.0, 0.0, asked)
        return asyncio.ensure_future(self.sessions.fetch(NODE, request))

    async def round(
        self, positions: dict[TopicPartition, int], *answers: FetchPartitionData
    ) -> FetchResponse:
        """Sends a request and has the newest call answer it."""
        waiting = self.ask(positions)
        await asyncio.sleep(0)
        self.opened.calls[-1].answers.put_nowait(FetchResponse(list(answers)))
        return await waiting

    @property
    def last(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Partitions with offsets that the last request of the newest call named and forgot."""
        message = self.opened.calls[-1].asked[-1]
        named = [(item.partition, item.fetch_offset) for item in message.partitions]
        return named, [item.partition for item in message.forgotten]


def run(scenario: Callable[[Session], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Session())

    virtual_time.run(main())


def of(response: FetchResponse) -> dict[int, int]:
    """Bytes by partition."""
    return {data.partition_index: len(data.payload) for data in response.responses}


RECORDS = FetchPartitionData(*A, records=b"records")


@pytest.mark.parametrize(
    "news",
    [
        RECORDS,
        FetchPartitionData(*A, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        FetchPartitionData(*A, diverging_epoch=(0, 5)),
        FetchPartitionData(*A, preferred_read_replica=2),
    ],
    ids=["records", "error", "divergence", "replica"],
)
def test_a_partition_with_news_is_named_again_and_the_others_are_not(
    news: FetchPartitionData,
) -> None:
    async def scenario(session: Session) -> None:
        everything = {A: 0, B: 0, C: 0}
        answer = await session.round(everything, news)
        assert session.last == ([(0, 0), (1, 0), (2, 0)], [])
        assert sorted(of(answer)) == [0, 1, 2], "the core gets an answer for each"
        await session.round(everything)
        assert session.last == ([(0, 0)], [])
        await session.round(everything, FetchPartitionData(*B, high_watermark=9))
        assert session.last == ([], [])
        await session.round(everything)
        assert session.last == ([], []), "a high watermark alone changes nothing"
        assert len(session.opened.calls) == 1

    run(scenario)


def test_moved_partitions_are_named_and_those_not_asked_for_are_forgotten() -> None:
    async def scenario(session: Session) -> None:
        await session.round({A: 0, B: 0})
        await session.round({A: 0, B: 3})
        assert session.last == ([(1, 3)], [])
        await session.round({B: 3})
        assert session.last == ([], [0])
        await session.round({A: 0, B: 3}, RECORDS)
        assert session.last == ([(0, 0)], [])
        await session.round({B: 3})
        assert session.last == ([], []), "the node reads it no more, so there is nothing to forget"

    run(scenario)


def test_a_request_beside_one_that_waits_has_a_session_of_its_own() -> None:
    async def scenario(session: Session) -> None:
        idle = session.ask({A: 0, B: 0})
        await asyncio.sleep(0)
        await session.round({C: 0})
        first, _ = session.opened.calls
        first.answers.put_nowait(FetchResponse([RECORDS]))
        await idle
        waiting = session.ask({A: 7, B: 0})
        await asyncio.sleep(0)
        assert len(first.asked) == 2, "the one whose node knows most"
        assert [item.partition for item in first.asked[1].partitions] == [0]
        session.ask({A: 0}, rack="r")
        await asyncio.sleep(0)
        assert len(session.opened.calls) == 3, "and one for each rack"
        assert session.opened.calls[2].asked[0].rack_id == "r"
        session.sessions.close()
        assert not any(call.is_open for call in session.opened.calls)
        waiting.cancel()

    run(scenario)


@pytest.mark.parametrize("way", ["fails", "is cancelled", "breaks between requests"])
def test_a_session_whose_request_has_no_answer_begins_anew_with_all_partitions(way: str) -> None:
    async def scenario(session: Session) -> None:
        await session.round({A: 0, B: 0})
        (call,) = session.opened.calls
        if way == "breaks between requests":
            call.is_open = False
        else:
            waiting = session.ask({A: 0, B: 5})
            await asyncio.sleep(0)
            if way == "fails":
                call.answers.put_nowait(NetworkError("gone"))
            else:
                waiting.cancel()
            await asyncio.wait((waiting,))
            assert not call.is_open
        await session.round({A: 0, B: 5})
        assert len(session.opened.calls) == 2
        assert session.last == ([(0, 0), (1, 5)], [])

    run(scenario)


def test_an_answer_of_a_node_that_throttles_is_passed_on_as_it_is() -> None:
    async def scenario(session: Session) -> None:
        waiting = session.ask({A: 0, B: 0})
        await asyncio.sleep(0)
        (call,) = session.opened.calls
        call.answers.put_nowait(FetchResponse(throttle_time_ms=500))
        assert (await waiting).responses == []
        await session.round({A: 0, B: 0})
        assert session.last == ([], []), "it was named"

    run(scenario)


def test_a_session_that_was_not_used_for_long_is_ended() -> None:
    async def scenario(session: Session) -> None:
        await session.round({A: 0})
        await asyncio.sleep(301)
        await session.round({A: 0})
        first, second = session.opened.calls
        assert not first.is_open
        assert second.is_open

    run(scenario)
