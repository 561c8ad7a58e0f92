"""The gRPC service `tidemark.v1.Raft` in front of a RaftServer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from quorum.raft import messages as m
from quorum.replica import codec as wire
from quorum.replica import voters_codec as voters
from quorum.replica.client import QuorumInfo, ReplicaInfo
from quorum.replica.unforeseen import UnforeseenErrors
from tidemark.errors import ErrorCode, code_of
from tidemark.v1 import common_pb2, raft_pb2, raft_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
P = TypeVar("P")
R = TypeVar("R")
END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it


class RaftService(raft_pb2_grpc.RaftServicer):
    """Converts calls to requests of the replica; every error becomes the response's error_code."""

    def __init__(
        self,
        handle: Callable[[m.Request], Awaitable[m.Response]],
        describe: Callable[[], QuorumInfo],
    ) -> None:
        self._handle = handle
        self._describe = describe
        self._unforeseen = UnforeseenErrors()

    async def _answer(
        self, decode: Callable[[P], m.Request], message: P, response: Callable[[m.Header], R]
    ) -> R:
        """Returns the replica's answer. An error becomes the error code of a `response` without
        content; a message that does not decode is one, too.
        """
        try:
            answer: Any = await self._handle(decode(message))
        except Exception as error:
            self._unforeseen.log(type(message).__name__, error)
            return response(m.Header(code_of(error), None, -1))
        answered: R = answer
        return answered

    async def Vote(self, request: raft_pb2.VoteRequest, context: Context) -> raft_pb2.VoteResponse:
        def refused(header: m.Header) -> m.VoteResponse:
            return m.VoteResponse(header, vote_granted=False)

        response = await self._answer(wire.vote_request_from_proto, request, refused)
        return wire.vote_response_to_proto(response)

    async def BeginQuorumEpoch(
        self, request: raft_pb2.BeginQuorumEpochRequest, context: Context
    ) -> raft_pb2.BeginQuorumEpochResponse:
        response = await self._answer(
            wire.begin_request_from_proto, request, m.BeginQuorumEpochResponse
        )
        return wire.begin_response_to_proto(response)

    async def EndQuorumEpoch(
        self, request: raft_pb2.EndQuorumEpochRequest, context: Context
    ) -> raft_pb2.EndQuorumEpochResponse:
        response = await self._answer(
            wire.end_request_from_proto, request, m.EndQuorumEpochResponse
        )
        return wire.end_response_to_proto(response)

    async def _fetch(self, request: raft_pb2.QuorumFetchRequest) -> m.FetchResponse:
        return await self._answer(wire.fetch_request_from_proto, request, m.FetchResponse)

    async def Fetch(
        self, request: raft_pb2.QuorumFetchRequest, context: Context
    ) -> raft_pb2.QuorumFetchResponse:
        return wire.fetch_response_to_proto(await self._fetch(request))

    async def FetchStream(  # type: ignore[override]  # it writes its answers itself
        self, requests: Any, context: Context
    ) -> None:
        """Answers a follower's fetches, one after another. An error ends the call, so that
        followers leave a node that no longer leads or is stopping."""
        while (request := await context.read()) is not END:
            response = await self._fetch(request)
            await context.write(wire.fetch_response_to_proto(response))
            if response.header.error != ErrorCode.NONE:
                return

    async def FetchSnapshot(
        self, request: raft_pb2.FetchSnapshotRequest, context: Context
    ) -> raft_pb2.FetchSnapshotResponse:
        response = await self._answer(
            wire.snapshot_request_from_proto, request, m.FetchSnapshotResponse
        )
        return wire.snapshot_response_to_proto(response)

    async def _change_voters(self, request: Callable[[], m.Request]) -> raft_pb2.RaftVoterResponse:
        try:
            response = await self._handle(request())
        except Exception as error:  # becomes the response's error code
            self._unforeseen.log("change of voters", error)
            response = m.VoterChangeResponse(m.Header(code_of(error), None, -1), str(error))
        assert isinstance(response, m.VoterChangeResponse)
        return voters.response_to_proto(response)

    async def AddRaftVoter(
        self, request: raft_pb2.AddRaftVoterRequest, context: Context
    ) -> raft_pb2.RaftVoterResponse:
        return await self._change_voters(lambda: voters.add_request_from_proto(request))

    async def RemoveRaftVoter(
        self, request: raft_pb2.RemoveRaftVoterRequest, context: Context
    ) -> raft_pb2.RaftVoterResponse:
        return await self._change_voters(lambda: voters.remove_request_from_proto(request))

    async def UpdateRaftVoter(
        self, request: raft_pb2.UpdateRaftVoterRequest, context: Context
    ) -> raft_pb2.RaftVoterResponse:
        return await self._change_voters(lambda: voters.update_request_from_proto(request))

    async def DescribeQuorum(
        self, request: raft_pb2.DescribeQuorumRequest, context: Context
    ) -> raft_pb2.DescribeQuorumResponse:
        return describe_to_proto(self._describe())


def describe_to_proto(info: QuorumInfo) -> raft_pb2.DescribeQuorumResponse:
    """Returns the DescribeQuorumResponse for a description of the quorum."""
    return raft_pb2.DescribeQuorumResponse(
        leader_id=-1 if info.leader_id is None else info.leader_id,
        leader_epoch=info.leader_epoch,
        high_watermark=-1 if info.high_watermark is None else info.high_watermark,
        current_voters=[_replica_state(replica) for replica in info.voters],
        observers=[_replica_state(replica) for replica in info.observers],
        nodes=[
            common_pb2.Node(node_id=node, host=endpoint.host, port=endpoint.port)
            for node, endpoint in sorted(info.endpoints.items())
        ],
    )


def _replica_state(replica: ReplicaInfo) -> raft_pb2.DescribeQuorumResponse.ReplicaState:
    def known(value: int | None) -> int:
        return -1 if value is None else value

    return raft_pb2.DescribeQuorumResponse.ReplicaState(
        replica_id=replica.replica_id,
        replica_directory_id=b"" if replica.directory_id is None else replica.directory_id.bytes,
        log_end_offset=known(replica.log_end_offset),
        last_fetch_timestamp_ms=known(replica.last_fetch_timestamp_ms),
        last_caught_up_timestamp_ms=known(replica.last_caught_up_timestamp_ms),
        listeners=[
            common_pb2.Endpoint(name=e.name, host=e.host, port=e.port) for e in replica.listeners
        ],
        own_damage=int(replica.own_damage),  # type: ignore[arg-type]
    )
