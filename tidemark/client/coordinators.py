"""Calls of the coordinator of a group or of a transactional id, which is found first and found
again when it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

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
    UnknownServerError,
    raise_for,
)
from tidemark.v1 import group_pb2 as pb
from tidemark.v1 import log_pb2, transaction_pb2
from tidemark.wire.rpcs import rpcs_of

R = TypeVar("R", bound=Message)
Codes = Callable[[R], Iterable[tuple[int, str]]]

# A node that hangs must not hold up the search: another one is asked after this time.
_FIND_TIMEOUT_MS = 5_000
_MOVED = (CoordinatorNotAvailableError, NotCoordinatorError, NetworkError, RequestTimedOutError)
_PATHS = {
    rpc.request: rpc.path
    for service in (
        pb.DESCRIPTOR.services_by_name["Groups"],
        transaction_pb2.DESCRIPTOR.services_by_name["Transactions"],
        log_pb2.DESCRIPTOR.services_by_name["Log"],
    )
    for rpc in rpcs_of(service)
}


async def call_at(
    connections: Connections,
    address: str,
    request: Message,
    response: type[R],
    codes: Codes[R],
    timeout_ms: float | None = None,
) -> R:
    """Sends a request of the services Groups, Transactions or Log to the broker at `address`.
    `codes` gives the errors of an answer, of which the first is raised. Raises UnknownServerError
    for an answer that can not be read."""

    def decode(answer: bytes) -> R:
        try:
            return response.FromString(answer)
        except DecodeError as error:
            raise UnknownServerError(f"{address}: the answer can not be read: {error}") from error

    answer = await connections.call(
        address, _PATHS[type(request)], request, decode, timeout_ms=timeout_ms
    )
    for code, message in codes(answer):
        raise_for(code, message)
    return answer


class CoordinatorCalls:
    """The coordinator of `key`, for the requests of one client.

    `key_type` is group_pb2.GROUP, with a group's id as key, or TRANSACTION, with a transactional
    id.
    """

    def __init__(
        self,
        key: str,
        key_type: pb.CoordinatorType.ValueType,
        connections: Connections,
        metadata: MetadataCache,
        retry: RetryPolicy,
        rng: Random,
    ) -> None:
        self._key = key
        self._key_type = key_type
        self._connections = connections
        self._metadata = metadata
        self._retry = retry
        self._rng = rng
        self._address = ""

    async def attempt(
        self,
        request: Message,
        response: type[R],
        codes: Codes[R],
        timeout_ms: float | None = None,
    ) -> R:
        """Sends a request once. `codes` gives the errors of an answer, of which the first is
        raised."""
        address = await self.address(timeout_ms)
        try:
            return await call_at(self._connections, address, request, response, codes, timeout_ms)
        except _MOVED:
            if self._address == address:
                self._address = ""
            raise

    async def call(
        self,
        make: Callable[[], Message],
        response: type[R],
        codes: Codes[R],
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

    async def address(self, timeout_ms: float | None = None) -> str:
        """The coordinator's "host:port", as far as it is known. Raises CoordinatorNotAvailableError
        and errors of the node that was asked."""
        if not self._address:
            request = pb.FindCoordinatorRequest(
                key_type=self._key_type, coordinator_keys=[self._key]
            )
            node = self._metadata.candidates()[0]
            answer = await call_at(
                self._connections,
                node,
                request,
                pb.FindCoordinatorResponse,
                lambda _: (),
                min(
                    _FIND_TIMEOUT_MS,
                    self._connections.request_timeout_ms,
                    inf if timeout_ms is None else timeout_ms,
                ),
            )
            for found in answer.coordinators:
                raise_for(found.error_code, found.error_message)
                self._address = f"{found.host}:{found.port}"
            if not self._address:
                raise CoordinatorNotAvailableError(f"{node} names no coordinator")
        return self._address
