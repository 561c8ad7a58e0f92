"""Conversion of voter changes between plain values and protobuf (KIP-853)."""

from __future__ import annotations

from collections.abc import Iterable

from quorum.raft import messages as m
from quorum.replica.codec import (
    CONTROLLER_LISTENER,
    directory_bytes,
    endpoint_from_proto,
    endpoint_to_proto,
    error_code,
    key_from_proto,
    optional_id,
    plain_id,
)
from tidemark.errors import InvalidRequestError
from tidemark.types import Listener
from tidemark.v1 import common_pb2, raft_pb2


def _listeners(
    first: common_pb2.Endpoint, others: Iterable[common_pb2.Endpoint]
) -> tuple[Listener, ...]:
    """Returns all listeners; requests of older nodes have only `first`."""
    found = []
    for message in list(others) or [first]:
        if not message.host or not 0 < message.port < 65536:
            raise InvalidRequestError("a voter needs the host and port of its controller listeners")
        found.append(Listener(message.name or CONTROLLER_LISTENER, message.host, message.port))
    if len({listener.name for listener in found}) != len(found):
        raise InvalidRequestError("a listener of the voter is named twice")
    return tuple(found)


def _listeners_to_proto(listeners: Iterable[Listener]) -> list[common_pb2.Endpoint]:
    return [common_pb2.Endpoint(name=e.name, host=e.host, port=e.port) for e in listeners]


def add_request_to_proto(request: m.AddVoterRequest) -> raft_pb2.AddRaftVoterRequest:
    return raft_pb2.AddRaftVoterRequest(
        cluster_id=request.cluster_id,
        timeout_ms=request.timeout_ms,
        voter_id=request.voter.replica_id,
        voter_directory_id=directory_bytes(request.voter),
        listener=endpoint_to_proto(request.endpoint),
        ack_when_committed=request.ack_when_committed,
        listeners=_listeners_to_proto(request.listeners),
    )


def add_request_from_proto(request: raft_pb2.AddRaftVoterRequest) -> m.AddVoterRequest:
    """Raises InvalidRequestError for a missing endpoint or a broken directory id."""
    listeners = _listeners(request.listener, request.listeners)
    return m.AddVoterRequest(
        request.cluster_id,
        key_from_proto(request.voter_id, request.voter_directory_id),
        listeners[0].endpoint,
        request.timeout_ms,
        request.ack_when_committed,
        listeners,
    )


def remove_request_to_proto(request: m.RemoveVoterRequest) -> raft_pb2.RemoveRaftVoterRequest:
    return raft_pb2.RemoveRaftVoterRequest(
        cluster_id=request.cluster_id,
        voter_id=request.voter.replica_id,
        voter_directory_id=directory_bytes(request.voter),
        timeout_ms=request.timeout_ms,
    )


def remove_request_from_proto(request: raft_pb2.RemoveRaftVoterRequest) -> m.RemoveVoterRequest:
    """Raises InvalidRequestError for a broken directory id."""
    voter = key_from_proto(request.voter_id, request.voter_directory_id)
    return m.RemoveVoterRequest(request.cluster_id, voter, request.timeout_ms)


def update_request_to_proto(request: m.UpdateVoterRequest) -> raft_pb2.UpdateRaftVoterRequest:
    return raft_pb2.UpdateRaftVoterRequest(
        cluster_id=request.cluster_id,
        current_leader_epoch=request.epoch,
        voter_id=request.voter.replica_id,
        voter_directory_id=directory_bytes(request.voter),
        listener=endpoint_to_proto(request.endpoint),
        listeners=_listeners_to_proto(request.listeners),
    )


def update_request_from_proto(request: raft_pb2.UpdateRaftVoterRequest) -> m.UpdateVoterRequest:
    """Raises InvalidRequestError for a missing endpoint or a broken directory id."""
    listeners = _listeners(request.listener, request.listeners)
    return m.UpdateVoterRequest(
        request.cluster_id,
        request.current_leader_epoch,
        key_from_proto(request.voter_id, request.voter_directory_id),
        listeners[0].endpoint,
        listeners,
    )


def response_to_proto(response: m.VoterChangeResponse) -> raft_pb2.RaftVoterResponse:
    header = response.header
    return raft_pb2.RaftVoterResponse(
        error_code=int(header.error),  # type: ignore[arg-type]
        error_message=response.message,
        leader_id=plain_id(header.leader_id),
        leader_epoch=header.epoch,
        leader_endpoint=endpoint_to_proto(header.leader_endpoint),
    )


def response_from_proto(response: raft_pb2.RaftVoterResponse) -> m.VoterChangeResponse:
    header = m.Header(
        error_code(response.error_code),
        optional_id(response.leader_id),
        response.leader_epoch,
        endpoint_from_proto(response.leader_endpoint),
    )
    return m.VoterChangeResponse(header, response.error_message)
