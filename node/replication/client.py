"""Calls of a follower to its leader: Fetch with the hand-made codec, the others with protobuf.

`ReplicationClient` is the protocol that fetchers use. `GrpcReplicationClient` uses one gRPC channel
per peer and fetches over one call that stays open (`tidemark.wire.exchange`). ListOffsets and
OffsetForLeaderEpoch are protobuf messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from tidemark.errors import NetworkError, raise_for
from tidemark.types import Endpoint
from tidemark.v1 import log_pb2 as pb
from tidemark.wire import (
    REPLICA_FETCH_STREAM,
    FetchResponse,
    decode_fetch_response,
)
from tidemark.wire.exchange import Exchange
from tidemark.wire.network import Channels

_LIST_OFFSETS = "/tidemark.v1.Log/ListOffsets"
_EPOCH_END = "/tidemark.v1.Replication/OffsetForLeaderEpoch"


T = TypeVar("T")


async def answer_of(peer: str, call: Awaitable[T]) -> T:
    """The answer of a peer. Raises NetworkError for a call that failed, or was cancelled by gRPC
    and not by the caller."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise NetworkError(f"{peer}: {error.code().name} {error.details()}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise NetworkError(f"{peer}: the call was cancelled") from None


class ReplicationClient(Protocol):
    """A follower's calls to one peer; all raise NetworkError if the peer cannot be reached."""

    async def fetch(self, request: pb.ReplicaFetchRequest, timeout_ms: int) -> FetchResponse:
        """Sends a request behind those under way; their answers come in the same order."""
        ...

    async def list_offset(
        self, request: pb.ListOffsetsRequest, timeout_ms: int
    ) -> pb.ListOffsetsResponse.PartitionResponse:
        """Sends a request for one partition. Raises the error of the answer."""
        ...

    async def epoch_end(
        self, request: pb.OffsetForLeaderEpochRequest, timeout_ms: int
    ) -> pb.OffsetForLeaderEpochResponse.Partition:
        """Sends a request for one partition. Raises the error of the answer."""
        ...

    async def close(self) -> None: ...


class GrpcReplicationClient:
    """One channel to one peer. It is opened anew for a certificate that changed."""

    def __init__(self, endpoint: Endpoint, channels: Channels | None = None) -> None:
        self._endpoint = endpoint
        self._channels = channels or Channels()
        self._open()

    def _open(self) -> None:
        self._channel = self._channels.open(self._endpoint.address)
        self._fetches: Exchange | None = None
        self._list: Callable[..., Awaitable[Any]] = self._channel.unary_unary(
            _LIST_OFFSETS,
            request_serializer=pb.ListOffsetsRequest.SerializeToString,
            response_deserializer=pb.ListOffsetsResponse.FromString,
        )
        self._epoch: Callable[..., Awaitable[Any]] = self._channel.unary_unary(
            _EPOCH_END,
            request_serializer=pb.OffsetForLeaderEpochRequest.SerializeToString,
            response_deserializer=pb.OffsetForLeaderEpochResponse.FromString,
        )

    async def fetch(self, request: pb.ReplicaFetchRequest, timeout_ms: int) -> FetchResponse:
        fetches = self._fetches
        if fetches is None or not fetches.is_open:
            fetches = self._fetches = Exchange(self._channel, REPLICA_FETCH_STREAM)
        try:
            ask = fetches.ask(request.SerializeToString(), timeout_ms / 1000)
            return decode_fetch_response(await self._mapped(ask))
        except (NetworkError, asyncio.CancelledError):
            fetches.close()  # the leader must stop working on an abandoned fetch
            raise

    async def list_offset(
        self, request: pb.ListOffsetsRequest, timeout_ms: int
    ) -> pb.ListOffsetsResponse.PartitionResponse:
        response = await self._mapped(self._list(request, timeout=timeout_ms / 1000))
        answer: pb.ListOffsetsResponse.PartitionResponse = response.partitions[0]
        raise_for(answer.error_code, answer.error_message)
        return answer

    async def epoch_end(
        self, request: pb.OffsetForLeaderEpochRequest, timeout_ms: int
    ) -> pb.OffsetForLeaderEpochResponse.Partition:
        response = await self._mapped(self._epoch(request, timeout=timeout_ms / 1000))
        answer: pb.OffsetForLeaderEpochResponse.Partition = response.partitions[0]
        raise_for(answer.error_code)
        return answer

    async def _mapped(self, call: Awaitable[T]) -> T:
        try:
            return await answer_of(self._endpoint.address, call)
        except NetworkError:
            if self._channels.is_outdated(self._channel):
                await self.close()
                self._open()
            raise

    async def close(self) -> None:
        if self._fetches is not None:
            self._fetches.close()
        await self._channel.close(None)
