"""Calls of a group's coordinator, which is found first and found again when it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

from google.protobuf.message import Message

from tidemark.client.connections import Connections
from tidemark.client.metadata import MetadataCache, monotonic_ms
from tidemark.client.retry import RetryPolicy
from tidemark.errors import (
    ApiError,
    CoordinatorNotAvailableError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
    TidemarkError,
    raise_for,
)
from tidemark.v1 import group_pb2 as pb

R = TypeVar("R", bound=Message)

_SERVICE = "/tidemark.v1.Groups/"
_MOVED = (CoordinatorNotAvailableError, NotCoordinatorError, NetworkError, RequestTimedOutError)


class GroupCalls:
    """The coordinator of one group, for the requests of one client."""

    def __init__(
        self,
        group_id: str,
        connections: Connections,
        metadata: MetadataCache,
        retry: RetryPolicy,
        rng: Random,
    ) -> None:
        self._group_id = group_id
        self._connections = connections
        self._metadata = metadata
        self._retry = retry
        self._rng = rng
        self._address = ""

    async def attempt(
        self,
        request: Message,
        response: type[R],
        codes: Callable[[R], Iterable[tuple[int, str]]],
        timeout_ms: float | None = None,
    ) -> R:
        """Sends a request once. `codes` gives the errors of an answer, of which the first is
        raised."""
        address = await self._find()
        method = type(request).DESCRIPTOR.name.removesuffix("Request")
        try:
            answer = await self._connections.call(
                address, _SERVICE + method, request, response.FromString, timeout_ms=timeout_ms
            )
            for code, message in codes(answer):
                raise_for(code, message)
        except _MOVED:
            if self._address == address:
                self._address = ""
            raise
        return answer

    async def call(
        self,
        make: Callable[[], Message],
        response: type[R],
        codes: Callable[[R], Iterable[tuple[int, str]]],
        timeout_ms: float | None = None,
        retried: tuple[type[TidemarkError], ...] = (),
    ) -> R:
        """Sends what `make` gives until it succeeds, the error is final, or the time is up. Errors
        of the types `retried` are repeated, too. Raises the last error."""
        limit_ms = self._retry.timeout_ms if timeout_ms is None else timeout_ms
        started_ms, tries = monotonic_ms(), 0
        while True:
            left_ms = limit_ms - (monotonic_ms() - started_ms)
            tries += 1
            try:
                return await self.attempt(
                    make(), response, codes, min(self._connections.request_timeout_ms, left_ms)
                )
            except ApiError as error:
                wait_ms = self._retry.backoff(tries, self._rng)
                left_ms = limit_ms - (monotonic_ms() - started_ms)
                if not (error.retriable or isinstance(error, retried)) or wait_ms >= left_ms:
                    raise
            await asyncio.sleep(wait_ms / 1000)

    async def _find(self) -> str:
        if not self._address:
            request: Any = pb.FindCoordinatorRequest(coordinator_keys=[self._group_id])
            node = self._metadata.candidates()[0]
            answer = await self._connections.call(
                node,
                _SERVICE + "FindCoordinator",
                request,
                pb.FindCoordinatorResponse.FromString,
            )
            for found in answer.coordinators:
                raise_for(found.error_code, found.error_message)
                self._address = f"{found.host}:{found.port}"
            if not self._address:
                raise CoordinatorNotAvailableError(f"{node} names no coordinator")
        return self._address
