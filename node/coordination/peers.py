"""Calls of this broker to other brokers, by their ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from node.replication.client import answer_of
from node.replication.peer_listener import PeerListener
from quorum.services.admin_service import ImageSource
from tidemark.config import ServerConfig
from tidemark.errors import NetworkError
from tidemark.wire.network import Channels
from tidemark.wire.rpcs import Rpc

Local = Callable[[Any], Awaitable[Message]]


class BrokerPeers:
    """One channel to each peer. A call to this broker itself is a call of its own method."""

    def __init__(self, config: ServerConfig, images: ImageSource) -> None:
        self._node_id = config.node_id
        self._images = images
        self._listener = PeerListener(config)
        self._channels: dict[int, tuple[str, grpc.aio.Channel]] = {}
        self._opening = Channels(config.channel_security(config.inter_broker_listener))
        self._local: dict[str, Local] = {}

    def serve(self, path: str, method: Local) -> None:
        """This broker's own method for an RPC, by the RPC's path."""
        self._local[path] = method

    async def call(self, broker_id: int, rpc: Rpc, request: Message, timeout_ms: int) -> Any:
        """The answer of a broker. Raises NetworkError if it is not known, does not answer, or not
        in time."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if broker_id == self._node_id:
                    return await self._local[rpc.path](request)
                channel = await self._channel(broker_id)
                ask = channel.unary_unary(
                    rpc.path,
                    request_serializer=rpc.request.SerializeToString,
                    response_deserializer=rpc.response.FromString,
                )
                return await answer_of(f"broker {broker_id}", ask(request))
        except TimeoutError:
            raise NetworkError(f"broker {broker_id} did not answer in {timeout_ms} ms") from None

    async def _channel(self, broker_id: int) -> grpc.aio.Channel:
        endpoint = self._listener.endpoint_of(self._images.image.brokers.get(broker_id))
        if endpoint is None:
            raise NetworkError(f"broker {broker_id} is not known")
        known = self._channels.get(broker_id)
        is_same = known is not None and known[0] == endpoint.address
        if known is not None and is_same and not self._opening.is_outdated(known[1]):
            return known[1]
        opened = self._opening.open(endpoint.address)
        self._channels[broker_id] = endpoint.address, opened
        if known is not None:
            await known[1].close(None)
        return opened

    async def close(self) -> None:
        """Closes all channels."""
        channels, self._channels = list(self._channels.values()), {}
        for _, channel in channels:
            await channel.close(None)
