"""Administration of the voters of the metadata quorum (KIP-853)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tidemark.client.admin_calls import AdminCalls
from tidemark.errors import InvalidRequestError
from tidemark.types import Endpoint
from tidemark.v1 import common_pb2, raft_pb2

_LISTENER = "CONTROLLER"


class QuorumAdmin(AdminCalls):
    """Part of AsyncAdmin about the quorum: adds and removes voters."""

    async def add_raft_voter(
        self,
        voter_id: int,
        directory_id: UUID,
        endpoint: Endpoint | Mapping[str, Endpoint],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Makes a running controller that follows the log a voter; returns when that is committed.

        `endpoint` is its controller listener, or all of them by name.

        Raises DuplicateVoterError (also if an earlier attempt of this call succeeded). Raises
        RequestTimedOutError while another change is not finished or the controller does not catch
        up, and NotEnoughReplicasError while too many voters are silent. Raises
        UnsupportedVersionError with static voters. Raises InvalidRequestError if another node
        answers at the endpoint, or if the leader has no listener of the same name.
        """
        named = {_LISTENER: endpoint} if isinstance(endpoint, Endpoint) else endpoint
        listeners = [
            common_pb2.Endpoint(name=name, host=where.host, port=where.port)
            for name, where in named.items()
        ]
        if not listeners:
            raise InvalidRequestError("a voter needs a controller listener")
        request = raft_pb2.AddRaftVoterRequest(
            voter_id=voter_id,
            voter_directory_id=directory_id.bytes,
            listener=listeners[0],
            listeners=listeners,
            timeout_ms=timeout_ms or self._retry.timeout_ms,
            ack_when_committed=True,
        )
        await self._ask(request, raft_pb2.RaftVoterResponse, request.timeout_ms)

    async def remove_raft_voter(
        self, voter_id: int, directory_id: UUID, *, timeout_ms: int | None = None
    ) -> None:
        """Makes a voter an observer; returns when that is committed.

        If it is the leader, it resigns then.

        Raises VoterNotFoundError (also if an earlier attempt of this call succeeded),
        InvalidRequestError for the only voter, RequestTimedOutError, UnsupportedVersionError.
        Raises NotEnoughReplicasError while the voters left have no healthy majority.
        """
        request = raft_pb2.RemoveRaftVoterRequest(
            voter_id=voter_id,
            voter_directory_id=directory_id.bytes,
            timeout_ms=timeout_ms or self._retry.timeout_ms,
        )
        await self._ask(request, raft_pb2.RaftVoterResponse, request.timeout_ms)
