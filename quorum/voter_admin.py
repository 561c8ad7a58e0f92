"""AddRaftVoter and RemoveRaftVoter as every node answers them (KIP-853): by the leader of the
quorum, wherever they are asked.

A node that does not lead sends the request on, one hop, as with everything an administrator asks.
An answer that is lost with the leadership is asked for again: the change may hold already, and then
the answer is DUPLICATE_VOTER or VOTER_NOT_FOUND.
"""

from __future__ import annotations

from typing import Any, Protocol

from quorum import raft_wire_voters as wire
from quorum.raft import messages as m
from tidemark.errors import ErrorCode, NotControllerError, error_for
from tidemark.v1 import raft_pb2


class VoterChanger(Protocol):
    """Who answers quorum requests of this process: the Raft server."""

    async def handle(self, request: m.Request) -> m.Response: ...


async def change_voters(quorum: VoterChanger, request: Any) -> raft_pb2.RaftVoterResponse:
    """Asks this process's own replica. NotControllerError where it does not lead (any more)."""
    plain: m.Request
    if isinstance(request, raft_pb2.AddRaftVoterRequest):
        plain = wire.add_request_from_proto(request)
    else:
        plain = wire.remove_request_from_proto(request)
    response = await quorum.handle(plain)
    if not isinstance(response, m.VoterChangeResponse):
        raise error_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(response).__name__}?")
    if response.header.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        raise NotControllerError("this node does not lead the quorum")
    return wire.response_to_proto(response)
