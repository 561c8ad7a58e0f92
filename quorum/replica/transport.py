"""Transports of quorum requests: gRPC in production, an in-memory network in tests. Both have the
same calls and the same failures.

A transport carries one request and returns its response; every failure is a NetworkError. It never
retries: the replica decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from quorum.raft import messages as m
from quorum.replica import codec as wire
from quorum.replica import voters_codec as voters
from tidemark.errors import ErrorCode, NetworkError, code_of
from tidemark.types import Endpoint
from tidemark.v1 import raft_pb2, raft_pb2_grpc
from tidemark.wire.exchange import Exchange
from tidemark.wire.network import Channels

FETCH_STREAM = "/tidemark.v1.Raft/FetchStream"

Handler = Callable[[m.Request], Awaitable[m.Response]]


class Transport(Protocol):
    """Carries quorum requests to the node behind an endpoint."""

    async def call(self, endpoint: Endpoint, request: m.Request, timeout_ms: int) -> m.Response:
        """Returns the response. Raises NetworkError if there is none in time."""
        ...

    async def close(self) -> None: ...


class _Peer:
    """The connection to one endpoint."""

    def __init__(self, endpoint: Endpoint, channels: Channels) -> None:
        self.channel = channels.open(endpoint.address)
        self.stub: Any = raft_pb2_grpc.RaftStub(self.channel)
        self._fetches: Exchange | None = None
        self._streams = True  # an older node may not know FetchStream

    async def fetch(self, request: m.FetchRequest, timeout_s: float) -> m.FetchResponse:
        """Fetches over the open call, or call by call from a node that knows no open one. After a
        failure the next fetch opens a call again: the node may have been replaced by a newer one.
        """
        if not self._streams:
            self._streams = True
            answer = await self.stub.Fetch(wire.fetch_request_to_proto(request), timeout=timeout_s)
            self._streams = False
            return wire.fetch_response_from_proto(answer)
        try:
            return await self._fetch_over_stream(request, timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            self._streams = False
            return await self.fetch(request, timeout_s)

    async def _fetch_over_stream(
        self, request: m.FetchRequest, timeout_s: float
    ) -> m.FetchResponse:
        if self._fetches is None or not self._fetches.is_open:
            self._fetches = Exchange(self.channel, FETCH_STREAM)
        fetches = self._fetches
        try:
            message = wire.fetch_request_to_proto(request).SerializeToString()
            answer = raft_pb2.QuorumFetchResponse.FromString(await fetches.ask(message, timeout_s))
        except BaseException:  # abandoned: the leader must not answer on this call
            fetches.close()
            raise
        response = wire.fetch_response_from_proto(answer)
        if response.header.error != ErrorCode.NONE:
            fetches.close()
        return response

    async def close(self) -> None:
        if self._fetches is not None:
            self._fetches.close()
        await self.channel.close(None)


class GrpcTransport:
    """One channel per endpoint, opened on first use and kept. Fetches, nearly all the traffic of a
    busy quorum, share one open call (`tidemark.wire.exchange`).
    """

    def __init__(self, channels: Channels | None = None) -> None:
        self._channels = channels or Channels()
        self._peers: dict[Endpoint, _Peer] = {}

    def _peer(self, endpoint: Endpoint) -> _Peer:
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = self._peers[endpoint] = _Peer(endpoint, self._channels)
        return peer

    async def call(self, endpoint: Endpoint, request: m.Request, timeout_ms: int) -> m.Response:
        peer = self._peer(endpoint)
        stub = peer.stub
        timeout_s = timeout_ms / 1000
        try:
            match request:
                case m.VoteRequest():
                    message = wire.vote_request_to_proto(request)
                    return wire.vote_response_from_proto(
                        await stub.Vote(message, timeout=timeout_s)
                    )
                case m.BeginQuorumEpochRequest():
                    begin = wire.begin_request_to_proto(request)
                    answer = await stub.BeginQuorumEpoch(begin, timeout=timeout_s)
                    return wire.begin_response_from_proto(answer)
                case m.EndQuorumEpochRequest():
                    end = wire.end_request_to_proto(request)
                    return wire.end_response_from_proto(
                        await stub.EndQuorumEpoch(end, timeout=timeout_s)
                    )
                case m.FetchRequest():
                    return await peer.fetch(request, timeout_s)
                case m.FetchSnapshotRequest():
                    piece = wire.snapshot_request_to_proto(request)
                    answer = await stub.FetchSnapshot(piece, timeout=timeout_s)
                    return wire.snapshot_response_from_proto(answer)
                case m.AddVoterRequest():
                    add = voters.add_request_to_proto(request)
                    changed = await stub.AddRaftVoter(add, timeout=timeout_s)
                    return voters.response_from_proto(changed)
                case m.RemoveVoterRequest():
                    remove = voters.remove_request_to_proto(request)
                    changed = await stub.RemoveRaftVoter(remove, timeout=timeout_s)
                    return voters.response_from_proto(changed)
                case m.UpdateVoterRequest():
                    update = voters.update_request_to_proto(request)
                    changed = await stub.UpdateRaftVoter(update, timeout=timeout_s)
                    return voters.response_from_proto(changed)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older node
                return m.error_response(request, m.Header(ErrorCode.UNSUPPORTED_VERSION, None, -1))
            if self._channels.is_outdated(peer.channel) and self._peers.get(endpoint) is peer:
                del self._peers[endpoint]
                await peer.close()
            raise NetworkError(f"{endpoint.address}: {error.code().name}") from error

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()
        self._peers.clear()


class MemoryNetwork:
    """Nodes by endpoint within one process; `cut` isolates a node, `heal` reconnects all."""

    def __init__(self) -> None:
        self._handlers: dict[Endpoint, Handler] = {}
        self._cut: set[Endpoint] = set()

    def serve(self, endpoint: Endpoint, handler: Handler) -> None:
        self._handlers[endpoint] = handler

    def stop(self, endpoint: Endpoint) -> None:
        self._handlers.pop(endpoint, None)

    def cut(self, endpoint: Endpoint) -> None:
        """Isolates a node: no request or response reaches it or leaves it."""
        self._cut.add(endpoint)

    def heal(self) -> None:
        self._cut.clear()

    def transport(self, own: Endpoint | None) -> MemoryTransport:
        return MemoryTransport(self, own)

    async def deliver(
        self, source: Endpoint | None, endpoint: Endpoint, request: m.Request
    ) -> m.Response:
        handler = self._handlers.get(endpoint)
        if handler is None or endpoint in self._cut or source in self._cut:
            raise NetworkError(f"{endpoint.address}: UNAVAILABLE")
        response = await handler(request)
        if endpoint in self._cut or source in self._cut:
            raise NetworkError(f"{endpoint.address}: UNAVAILABLE")
        return response


class MemoryTransport:
    """The transport of one node of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, own: Endpoint | None) -> None:
        self._network = network
        self._own = own

    async def call(self, endpoint: Endpoint, request: m.Request, timeout_ms: int) -> m.Response:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._network.deliver(self._own, endpoint, request)
        except TimeoutError as error:
            raise NetworkError(f"{endpoint.address}: DEADLINE_EXCEEDED") from error
        except NetworkError:
            raise
        except Exception as error:
            raise NetworkError(f"{endpoint.address}: {code_of(error).name}") from error

    async def close(self) -> None:
        return None
