"""Conversion of the quorum's messages between plain values and the protobuf of
proto/tidemark/v1/raft.proto.
"""

from __future__ import annotations

from uuid import UUID

from quorum.raft import messages as m
from quorum.raft.voters import ReplicaKey
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode, InvalidRequestError
from tidemark.types import Endpoint, OwnDamage
from tidemark.v1 import common_pb2, raft_pb2

CONTROLLER_LISTENER = "CONTROLLER"


def plain_id(value: int | None) -> int:
    return -1 if value is None else value


def optional_id(value: int) -> int | None:
    return None if value < 0 else value


def directory_bytes(key: ReplicaKey) -> bytes:
    return b"" if key.directory_id is None else key.directory_id.bytes


def key_from_proto(replica_id: int, directory_id: bytes) -> ReplicaKey:
    """Raises InvalidRequestError for a broken directory id. One of zeros is unknown, as none is."""
    if len(directory_id) not in (0, 16):
        raise InvalidRequestError(f"a directory id has 16 bytes, not {len(directory_id)}")
    return ReplicaKey(replica_id, UUID(bytes=directory_id) if any(directory_id) else None)


def endpoint_to_proto(endpoint: Endpoint | None) -> common_pb2.Endpoint | None:
    if endpoint is None:
        return None
    return common_pb2.Endpoint(name=CONTROLLER_LISTENER, host=endpoint.host, port=endpoint.port)


def endpoint_from_proto(message: common_pb2.Endpoint) -> Endpoint | None:
    """Returns None for an address that nobody can be reached at."""
    reachable = message.host and 0 < message.port < 65536
    return Endpoint(message.host, message.port) if reachable else None


def error_code(value: int) -> ErrorCode:
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _header(
    response: raft_pb2.VoteResponse
    | raft_pb2.BeginQuorumEpochResponse
    | raft_pb2.EndQuorumEpochResponse
    | raft_pb2.QuorumFetchResponse
    | raft_pb2.FetchSnapshotResponse,
) -> m.Header:
    return m.Header(
        error_code(response.error_code),
        optional_id(response.leader_id),
        response.leader_epoch,
        endpoint_from_proto(response.leader_endpoint),
    )


# --- Vote ---------------------------------------------------------------------------------------


def vote_request_to_proto(request: m.VoteRequest) -> raft_pb2.VoteRequest:
    return raft_pb2.VoteRequest(
        cluster_id=request.cluster_id,
        voter_id=request.voter.replica_id,
        voter_directory_id=directory_bytes(request.voter),
        replica_epoch=request.epoch,
        replica_id=request.candidate.replica_id,
        replica_directory_id=directory_bytes(request.candidate),
        last_offset_epoch=request.last_offset_epoch,
        last_offset=request.last_offset,
        pre_vote=request.pre_vote,
    )


def vote_request_from_proto(request: raft_pb2.VoteRequest) -> m.VoteRequest:
    return m.VoteRequest(
        request.cluster_id,
        key_from_proto(request.voter_id, request.voter_directory_id),
        request.replica_epoch,
        key_from_proto(request.replica_id, request.replica_directory_id),
        request.last_offset_epoch,
        request.last_offset,
        request.pre_vote,
    )


def vote_response_to_proto(response: m.VoteResponse) -> raft_pb2.VoteResponse:
    header = response.header
    return raft_pb2.VoteResponse(
        error_code=int(header.error),  # type: ignore[arg-type]
        leader_id=plain_id(header.leader_id),
        leader_epoch=header.epoch,
        leader_endpoint=endpoint_to_proto(header.leader_endpoint),
        vote_granted=response.vote_granted,
    )


def vote_response_from_proto(response: raft_pb2.VoteResponse) -> m.VoteResponse:
    return m.VoteResponse(_header(response), response.vote_granted)


# --- BeginQuorumEpoch, EndQuorumEpoch -------------------------------------------------------------


def begin_request_to_proto(
    request: m.BeginQuorumEpochRequest,
) -> raft_pb2.BeginQuorumEpochRequest:
    return raft_pb2.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id,
        voter_id=request.voter.replica_id,
        voter_directory_id=directory_bytes(request.voter),
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        leader_endpoint=endpoint_to_proto(request.leader_endpoint),
    )


def begin_request_from_proto(
    request: raft_pb2.BeginQuorumEpochRequest,
) -> m.BeginQuorumEpochRequest:
    return m.BeginQuorumEpochRequest(
        request.cluster_id,
        key_from_proto(request.voter_id, request.voter_directory_id),
        request.leader_id,
        request.leader_epoch,
        endpoint_from_proto(request.leader_endpoint),
    )


def begin_response_to_proto(
    response: m.BeginQuorumEpochResponse,
) -> raft_pb2.BeginQuorumEpochResponse:
    header = response.header
    return raft_pb2.BeginQuorumEpochResponse(
        error_code=int(header.error),  # type: ignore[arg-type]
        leader_id=plain_id(header.leader_id),
        leader_epoch=header.epoch,
        leader_endpoint=endpoint_to_proto(header.leader_endpoint),
    )


def begin_response_from_proto(
    response: raft_pb2.BeginQuorumEpochResponse,
) -> m.BeginQuorumEpochResponse:
    return m.BeginQuorumEpochResponse(_header(response))


def end_request_to_proto(request: m.EndQuorumEpochRequest) -> raft_pb2.EndQuorumEpochRequest:
    return raft_pb2.EndQuorumEpochRequest(
        cluster_id=request.cluster_id,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_candidates=[
            raft_pb2.ReplicaKey(replica_id=key.replica_id, directory_id=directory_bytes(key))
            for key in request.preferred_candidates
        ],
        leader_endpoint=endpoint_to_proto(request.leader_endpoint),
    )


def end_request_from_proto(request: raft_pb2.EndQuorumEpochRequest) -> m.EndQuorumEpochRequest:
    return m.EndQuorumEpochRequest(
        request.cluster_id,
        request.leader_id,
        request.leader_epoch,
        tuple(key_from_proto(k.replica_id, k.directory_id) for k in request.preferred_candidates),
        endpoint_from_proto(request.leader_endpoint),
    )


def end_response_to_proto(response: m.EndQuorumEpochResponse) -> raft_pb2.EndQuorumEpochResponse:
    header = response.header
    return raft_pb2.EndQuorumEpochResponse(
        error_code=int(header.error),  # type: ignore[arg-type]
        leader_id=plain_id(header.leader_id),
        leader_epoch=header.epoch,
        leader_endpoint=endpoint_to_proto(header.leader_endpoint),
    )


def end_response_from_proto(
    response: raft_pb2.EndQuorumEpochResponse,
) -> m.EndQuorumEpochResponse:
    return m.EndQuorumEpochResponse(_header(response))


# --- Fetch --------------------------------------------------------------------------------------


def fetch_request_to_proto(request: m.FetchRequest) -> raft_pb2.QuorumFetchRequest:
    return raft_pb2.QuorumFetchRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica.replica_id,
        replica_directory_id=directory_bytes(request.replica),
        current_leader_epoch=request.epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        high_watermark=plain_id(request.high_watermark),
        max_wait_ms=request.max_wait_ms,
        max_bytes=request.max_bytes,
        own_damage=int(request.own_damage),  # type: ignore[arg-type]
    )


def fetch_request_from_proto(request: raft_pb2.QuorumFetchRequest) -> m.FetchRequest:
    return m.FetchRequest(
        request.cluster_id,
        key_from_proto(request.replica_id, request.replica_directory_id),
        request.current_leader_epoch,
        request.fetch_offset,
        request.last_fetched_epoch,
        optional_id(request.high_watermark),
        request.max_wait_ms,
        request.max_bytes,
        OwnDamage(request.own_damage),
    )


def fetch_response_to_proto(response: m.FetchResponse) -> raft_pb2.QuorumFetchResponse:
    header, diverging, snapshot = response.header, response.diverging_epoch, response.snapshot_id
    return raft_pb2.QuorumFetchResponse(
        error_code=int(header.error),  # type: ignore[arg-type]
        leader_id=plain_id(header.leader_id),
        leader_epoch=header.epoch,
        leader_endpoint=endpoint_to_proto(header.leader_endpoint),
        high_watermark=plain_id(response.high_watermark),
        log_start_offset=response.log_start_offset,
        diverging_epoch=None
        if diverging is None
        else common_pb2.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        snapshot_id=None if snapshot is None else _snapshot_id(snapshot),
        records=response.records,
        checksum=response.checksum,
    )


def fetch_response_from_proto(response: raft_pb2.QuorumFetchResponse) -> m.FetchResponse:
    diverging = response.diverging_epoch
    snapshot = response.snapshot_id
    return m.FetchResponse(
        _header(response),
        optional_id(response.high_watermark),
        response.log_start_offset,
        (diverging.epoch, diverging.end_offset) if response.HasField("diverging_epoch") else None,
        SnapshotId(snapshot.end_offset, snapshot.epoch)
        if response.HasField("snapshot_id")
        else None,
        response.records,
        response.checksum if response.HasField("checksum") else None,
    )


# --- FetchSnapshot ------------------------------------------------------------------------------


def _snapshot_id(snapshot: SnapshotId) -> raft_pb2.SnapshotId:
    return raft_pb2.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)


def snapshot_request_to_proto(request: m.FetchSnapshotRequest) -> raft_pb2.FetchSnapshotRequest:
    return raft_pb2.FetchSnapshotRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica.replica_id,
        replica_directory_id=directory_bytes(request.replica),
        current_leader_epoch=request.epoch,
        snapshot_id=_snapshot_id(request.snapshot_id),
        position=request.position,
        max_bytes=request.max_bytes,
    )


def snapshot_request_from_proto(
    request: raft_pb2.FetchSnapshotRequest,
) -> m.FetchSnapshotRequest:
    return m.FetchSnapshotRequest(
        request.cluster_id,
        key_from_proto(request.replica_id, request.replica_directory_id),
        request.current_leader_epoch,
        SnapshotId(request.snapshot_id.end_offset, request.snapshot_id.epoch),
        request.position,
        request.max_bytes,
    )


def snapshot_response_to_proto(
    response: m.FetchSnapshotResponse,
) -> raft_pb2.FetchSnapshotResponse:
    header, snapshot = response.header, response.snapshot_id
    return raft_pb2.FetchSnapshotResponse(
        error_code=int(header.error),  # type: ignore[arg-type]
        leader_id=plain_id(header.leader_id),
        leader_epoch=header.epoch,
        leader_endpoint=endpoint_to_proto(header.leader_endpoint),
        snapshot_id=None if snapshot is None else _snapshot_id(snapshot),
        size=response.size,
        position=response.position,
        unaligned_records=response.data,
    )


def snapshot_response_from_proto(
    response: raft_pb2.FetchSnapshotResponse,
) -> m.FetchSnapshotResponse:
    snapshot = response.snapshot_id
    return m.FetchSnapshotResponse(
        _header(response),
        SnapshotId(snapshot.end_offset, snapshot.epoch)
        if response.HasField("snapshot_id")
        else None,
        response.size,
        response.position,
        response.unaligned_records,
    )
