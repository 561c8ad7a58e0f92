"""Sends administrative requests to any node, and to another one while errors are retriable.

A request may rightly take long, so its own timeout does not show that a node hangs. A node that
leaves a request and then a probe unanswered is given up for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from tidemark.client.admin_nodes import AsyncNodeAdmin
from tidemark.client.admin_security import AsyncSecurityAdmin
from tidemark.client.closing import AsyncCloses
from tidemark.client.connections import Connections, Security, parse_bootstrap_servers
from tidemark.client.groups.admin import AsyncGroupAdmin
from tidemark.client.metadata import METADATA, MetadataCache, monotonic_ms
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.client.transactions.admin import AsyncTransactionAdmin
from tidemark.errors import ApiError, NetworkError, RequestTimedOutError, raise_for
from tidemark.surroundings import make_rng
from tidemark.v1 import log_pb2
from tidemark.wire.rpcs import ADMIN, rpcs_of

T = TypeVar("T")
R = TypeVar("R", bound=Message)

_PATHS = {rpc.request: rpc.path for rpc in rpcs_of(ADMIN)}
_PROBE = "/grpc.health.v1.Health/Check"
_PROBE_AFTER_MS = 3_000
_PROBE_TIMEOUT_MS = 2_000


class AdminCalls(AsyncCloses):
    """Connections of an admin client to its cluster."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        random_seed: int | None = None,
        security: Security = None,
    ) -> None:
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._connections = Connections(request_timeout_ms=request_timeout_ms, security=security)
        self._retry = RetryPolicy(default_api_timeout_ms, retry_backoff_ms, retry_backoff_max_ms)
        self._rng = make_rng(random_seed)
        self._metadata = MetadataCache(
            self._connections, self._bootstrap, retry=self._retry, rng=self._rng
        )
        self.groups = AsyncGroupAdmin(self._connections, self._metadata, self._retry, self._rng)
        self.transactions = AsyncTransactionAdmin(
            self._connections, self._metadata, self._retry, self._rng
        )
        self.security = AsyncSecurityAdmin(self._ask, default_api_timeout_ms)
        self.nodes = AsyncNodeAdmin(self._ask, self._send, self._with_retries, self._metadata)

    async def close(self) -> None:
        """Closes the connections."""
        self._connections.check_fork()
        await self._metadata.close()
        await self._connections.close()

    # Sending and retrying.

    async def _send(self, address: str, request: Message, response: type[R]) -> R:
        """Returns the answer of one node; raises ApiError, also for an error within the answer."""
        path = _PATHS[type(request)]
        call = self._connections.call(address, path, request, response.FromString)
        answer: Any = await self._unless_hung(address, call)
        raise_for(answer.error_code, answer.error_message)
        checked: R = answer
        return checked

    async def _unless_hung(self, address: str, call: Coroutine[Any, Any, T]) -> T:
        """Returns the answer of `call`; raises NetworkError as soon as its node hangs."""
        under_way = asyncio.ensure_future(call)
        try:
            while not under_way.done():
                await asyncio.wait((under_way,), timeout=_PROBE_AFTER_MS / 1000)
                if not under_way.done() and not await self._answers(address):
                    self._connections.disconnect(address)
                    raise NetworkError(
                        f"{address} answers neither the request nor a probe: it hangs"
                    )
            return under_way.result()
        finally:
            under_way.cancel()

    async def _answers(self, address: str) -> bool:
        """Whether a node answers a probe, with whatever."""
        try:
            await self._connections.call(address, _PROBE, b"", bytes, timeout_ms=_PROBE_TIMEOUT_MS)
        except (NetworkError, RequestTimedOutError):
            return False
        except ApiError:
            return True
        return True

    async def _ask(self, request: Message, response: type[R], timeout_ms: int | None = None) -> R:
        """Returns the answer of any node; retries as `_with_retries`."""

        async def attempt(address: str) -> R:
            return await self._send(address, request, response)

        return await self._with_retries(attempt, timeout_ms)

    async def _with_retries(
        self, attempt: Callable[[str], Awaitable[T]], timeout_ms: int | None = None
    ) -> T:
        """Tries node after node until one succeeds, the error is final, or the time is up.

        Raises the last error.
        """
        policy = self._retry
        if timeout_ms is not None:
            policy = RetryPolicy(timeout_ms, policy.backoff_ms, policy.backoff_max_ms)
        started_ms, tries = monotonic_ms(), 0
        while True:
            address = self._metadata.candidates()[0]
            tries += 1
            try:
                return await attempt(address)
            except Final as final:
                raise final.error from None
            except ApiError as error:
                elapsed_ms = monotonic_ms() - started_ms
                wait_ms = policy.next_wait_ms(error, tries, elapsed_ms, self._rng)
                if wait_ms is None:
                    raise
                await asyncio.sleep(wait_ms / 1000)

    async def _refresh_metadata(self) -> None:
        async def attempt(_: str) -> None:
            await self._metadata.refresh()

        await self._with_retries(attempt)

    async def _wait_on_all_brokers(
        self,
        names: list[str],
        reached: Callable[[log_pb2.MetadataResponse, list[str]], bool],
        timeout_ms: int | None,
    ) -> None:
        """Waits until each live broker has applied a change.

        Each is asked, because the answer of one says nothing about the others.
        """
        await self._refresh_metadata()
        request = log_pb2.MetadataRequest(topics=names)
        decode = log_pb2.MetadataResponse.FromString

        async def of_broker(broker_id: int) -> None:
            async def attempt(_: str) -> None:
                address = self._metadata.address(broker_id)
                if address is None:
                    return  # it stopped meanwhile: no client will be sent there
                try:
                    answer = await self._connections.call(address, METADATA, request, decode)
                except ApiError as error:
                    if is_retriable(error):
                        await self._metadata.refresh()
                    raise
                if not reached(answer, names):
                    raise RequestTimedOutError(
                        f"broker {broker_id} has not caught up with the change of {names}"
                    )

            await self._with_retries(attempt, timeout_ms)

        await asyncio.gather(*(of_broker(broker_id) for broker_id in self._metadata.brokers))


class Final(Exception):
    """Carries an error that is retriable by the table, but final here.

    Example: a topic that does not exist.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error
