"""Calls of a node to the active controller: finds it, and retries while the leadership moves.

Brokers use it for RegisterBroker, BrokerHeartbeat, AlterPartition and AllocateProducerIds. Every
node except the active controller uses it to forward changes of the metadata.

A forwarded call carries the mark `FORWARDED`. A controller that is not active answers
NOT_CONTROLLER to it instead of forwarding it again. A call is repeated after a lost connection, so
it may be carried out twice. All calls of the controller are safe to repeat: a second CreateTopics
gets TOPIC_ALREADY_EXISTS. Modelled on Kafka's NodeToControllerChannelManager (KIP-590).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import Message

from quorum.access.guard import FORWARDED_PRINCIPAL
from tidemark.errors import ErrorCode, InvalidRequestError, RequestTimedOutError, error_for
from tidemark.types import Endpoint
from tidemark.wire.network import Channels
from tidemark.wire.rpcs import ADMIN, CONTROLLER, Rpc, rpcs_of

FORWARDED = ("tidemark-forwarded", "1")

# An attempt ends after this time without an answer (a stopped process keeps its sockets open), or
# sooner if another leader is known. The call itself may last longer.
_ATTEMPT_MS_MAX = 5_000
_BACKOFF_MS = 50
_LEADER_CHECK_S = 0.25
_RETRIED_STATUS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)


_RPCS = {rpc.name: rpc for service in (CONTROLLER, ADMIN) for rpc in rpcs_of(service)}


class ControllerClient:
    """Calls the active controller. Belongs to one event loop; must be closed.

    `leader` returns the active controller's endpoint as far as this node knows (None: unknown). A
    node that follows the metadata log passes `raft.leader_endpoint`.
    """

    def __init__(
        self,
        leader: Callable[[], Endpoint | None],
        channels: Channels | None = None,
        *,
        backoff_ms: int = _BACKOFF_MS,
        attempt_ms_max: int = _ATTEMPT_MS_MAX,
    ) -> None:
        self._leader = leader
        self._channels = channels or Channels()
        self._backoff_ms = backoff_ms
        self._attempt_ms_max = attempt_ms_max
        self._endpoint: Endpoint | None = None
        self._channel: grpc.aio.Channel | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(
        self, method: str, request: Message, timeout_ms: int, principal: str = ""
    ) -> Any:
        """Returns the active controller's answer to `method` (e.g. "BrokerHeartbeat").

        `principal` is whose request is forwarded; empty: this node's own.
        Any error but NOT_CONTROLLER is in the answer's `error_code`, and the caller handles it.
        Raises RequestTimedOutError if no active controller answers within `timeout_ms`, and the
        error of a gRPC status that a retry does not cure.
        """
        known = _RPCS.get(method)
        if known is None:
            raise InvalidRequestError(f"no controller method {method!r}")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        reason = "no leader is known"
        while not self._closed:
            left_ms = (deadline_s - loop.time()) * 1000
            if left_ms <= 0:
                break
            endpoint = self._leader()
            if endpoint is not None:
                answer, reason = await self._attempt(endpoint, known, request, left_ms, principal)
                if answer is not None:
                    return answer
            # The request may have used up its time waiting for the connection.
            left_s = deadline_s - loop.time()
            await asyncio.sleep(max(0.0, min(self._backoff_ms / 1000, left_s)))
        if self._closed:
            raise error_for(ErrorCode.BROKER_NOT_AVAILABLE, "this node is shutting down")
        raise RequestTimedOutError(
            f"{method}: no active controller answered within {timeout_ms} ms ({reason})"
        )

    async def close(self) -> None:
        """Closes the connection; calls in progress fail."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)
        if self._retired:
            await asyncio.gather(*self._retired, return_exceptions=True)

    async def _attempt(
        self, endpoint: Endpoint, rpc: Rpc, request: Message, left_ms: float, principal: str
    ) -> tuple[Any, str]:
        """Returns (answer, ""), or (None, reason) if another attempt is worth while."""
        call = self._connect(endpoint).unary_unary(
            rpc.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        timeout_s = min(left_ms, self._attempt_ms_max) / 1000
        metadata = [FORWARDED]
        if principal:
            metadata.append((FORWARDED_PRINCIPAL, quote(principal)))
        try:
            under_way = call(request, timeout=timeout_s, metadata=metadata)
            if not await self._answers(under_way, endpoint):
                return None, f"{endpoint.address} leads no more"
            answer = await under_way
        except grpc.aio.AioRpcError as error:
            if error.code() not in _RETRIED_STATUS:
                raise error_for(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"{error.code().name}: {error.details()}"
                ) from error
            self._drop(endpoint)
            return None, f"{endpoint.address}: {error.code().name}"
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            return None, f"{endpoint.address} is not the active controller"
        return answer, ""

    async def _answers(self, under_way: Any, endpoint: Endpoint) -> bool:
        """Waits for the end of the call.

        Returns False, and cancels the call, if another node becomes the leader meanwhile.
        """
        while not under_way.done():
            waiting = asyncio.ensure_future(_ended(under_way))
            try:
                await asyncio.wait((waiting,), timeout=_LEADER_CHECK_S)
            except asyncio.CancelledError:
                under_way.cancel()  # the caller was cancelled
                raise
            finally:
                waiting.cancel()
            if not under_way.done() and self._leader() not in (None, endpoint):
                under_way.cancel()
                return False
        return True

    def _connect(self, endpoint: Endpoint) -> grpc.aio.Channel:
        if self._channel is not None and self._endpoint == endpoint:
            return self._channel
        self._retire()
        self._endpoint = endpoint
        self._channel = self._channels.open(endpoint.address)
        return self._channel

    def _drop(self, endpoint: Endpoint) -> None:
        """Replaces a failed connection: gRPC's own reconnection backs off up to minutes."""
        if self._endpoint == endpoint:
            self._retire()

    def _retire(self) -> None:
        channel, self._channel, self._endpoint = self._channel, None, None
        if channel is None:
            return
        # Other calls may be in progress on it: it is closed after their time is up.
        task = asyncio.ensure_future(channel.close(self._attempt_ms_max / 1000))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


async def _ended(under_way: Any) -> None:
    """Waits for a call to end, with or without success; cancellation leaves the call alone."""
    ended = asyncio.get_running_loop().create_future()
    under_way.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
    await ended
