"""Fetches of a follower over gRPC: one call stays open for all of them. Any failure ends it, so
that neither side waits for the other in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio
import pytest

from quorum.raft import messages as m
from quorum.raft.voters import ReplicaKey
from quorum.replica.service import RaftService
from quorum.replica.transport import GrpcTransport
from tidemark.errors import ErrorCode, NetworkError
from tidemark.types import Endpoint
from tidemark.v1 import raft_pb2_grpc
from tidemark.wire import CHANNEL_OPTIONS

TIMEOUT_MS = 60_000
"""Limit of calls that are answered; no test waits for it."""


def fetch(offset: int) -> m.FetchRequest:
    return m.FetchRequest("c", ReplicaKey(2, None), 1, offset, 1, None, 500, 1000)


def answer(request: m.FetchRequest, error: ErrorCode = ErrorCode.NONE) -> m.FetchResponse:
    header = m.Header(error, 1, request.epoch)
    return m.FetchResponse(header, request.fetch_offset, records=b"of %d" % request.fetch_offset)


class CountingService(RaftService):
    """Counts the opened calls, and signals the end of the last one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls = 0
        self.none_open = asyncio.Event()

    async def FetchStream(self, requests: Any, context: Any) -> None:
        self.calls += 1
        self.none_open.clear()
        try:
            await super().FetchStream(requests, context)
        finally:
            self.none_open.set()


Handle = Callable[[Any], Coroutine[Any, Any, Any]]
Scenario = Callable[[GrpcTransport, Endpoint, CountingService], Coroutine[Any, Any, None]]


def served(handle: Handle, scenario: Scenario) -> None:
    """Runs the scenario between a transport and a service that answers with `handle`."""

    async def run() -> None:
        service = CountingService(handle, lambda: pytest.fail("not asked"))
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        raft_pb2_grpc.add_RaftServicer_to_server(service, server)
        endpoint = Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        transport = GrpcTransport()
        try:
            await scenario(transport, endpoint, service)
        finally:
            await transport.close()
            await server.stop(None)

    asyncio.run(run())


class Limit:
    """The time limit of a fetch: it passes when the test says, not with the clock."""

    def __init__(self, loop: Any) -> None:
        self._set_timer = loop.call_later
        self._timers: list[tuple[Any, Any]] = []
        loop.call_later = self._call_later

    def _call_later(self, delay_s: float, callback: Any, *args: Any, **options: Any) -> Any:
        if delay_s == TIMEOUT_MS / 1000:
            self._timers.append((callback, args))
        return self._set_timer(delay_s, callback, *args, **options)

    def pass_now(self) -> None:
        [(callback, args)] = self._timers
        callback(*args)


async def ended(service: CountingService) -> None:
    async with asyncio.timeout(30):
        await service.none_open.wait()


def test_all_fetches_of_a_follower_go_over_one_call():
    async def handle(request):
        return answer(request)

    async def scenario(transport, endpoint, service):
        for offset in range(20):
            response = await transport.call(endpoint, fetch(offset), TIMEOUT_MS)
            assert response == answer(fetch(offset))
        assert service.calls == 1

    served(handle, scenario)


def test_an_error_ends_the_call_and_the_next_fetch_begins_another():
    async def handle(request):
        leads = request.fetch_offset != 1
        return answer(request, ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def scenario(transport, endpoint, service):
        await transport.call(endpoint, fetch(0), TIMEOUT_MS)
        response = await transport.call(endpoint, fetch(1), TIMEOUT_MS)
        assert response.header.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await ended(service)
        assert (await transport.call(endpoint, fetch(2), TIMEOUT_MS)).records == b"of 2"
        assert service.calls == 2

    served(handle, scenario)


def test_a_fetch_that_is_not_answered_in_time_is_given_up_at_the_leader_too():
    given_up: list[int] = []
    asked = asyncio.Event()

    async def handle(request):
        try:
            if request.fetch_offset == 0:
                asked.set()
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            given_up.append(request.fetch_offset)
            raise
        return answer(request)

    async def scenario(transport, endpoint, service):
        limit = Limit(asyncio.get_running_loop())
        fetching = asyncio.ensure_future(transport.call(endpoint, fetch(0), TIMEOUT_MS))
        await asked.wait()
        limit.pass_now()
        with pytest.raises(NetworkError, match="DEADLINE_EXCEEDED"):
            await fetching
        await ended(service)
        assert given_up == [0]
        assert (await transport.call(endpoint, fetch(1), TIMEOUT_MS)).records == b"of 1"

    served(handle, scenario)


def test_a_leader_that_can_not_be_reached_is_a_network_error_each_time():
    async def handle(request):
        return answer(request)

    async def scenario(transport, _, service):
        nobody = Endpoint("127.0.0.1", 1)
        for offset in range(2):
            with pytest.raises(NetworkError, match="UNAVAILABLE"):
                await transport.call(nobody, fetch(offset), TIMEOUT_MS)
        assert service.calls == 0

    served(handle, scenario)
