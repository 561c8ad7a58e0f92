"""Changes of the quorum itself by administrators (KIP-853).

AddRaftVoter and RemoveRaftVoter on every node, and kraft.version, which turns static voters into
voters of the log. All are answered by the leader of the quorum, and forwarded to it by other nodes,
one hop.

If an answer is lost with the leadership, the client repeats the request. The change may be in
effect by then: the answer is DUPLICATE_VOTER or VOTER_NOT_FOUND, and success for kraft.version.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from quorum.image import MetadataImage
from quorum.image.features import KRAFT_VERSION, obstacles
from quorum.raft import messages as m
from quorum.replica import voters_codec
from tidemark.errors import (
    ErrorCode,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
    error_for,
)
from tidemark.v1 import admin_pb2, raft_pb2

_DEFAULT_TIMEOUT_MS = 30_000


class VoterChanger(Protocol):
    """Answers quorum requests in this process: the Raft server."""

    async def handle(self, request: m.AnyRequest) -> m.Response: ...


async def change_voters(quorum: VoterChanger, request: m.Request) -> raft_pb2.RaftVoterResponse:
    """Passes a change to this process's own replica.

    Raises NotControllerError if that does not lead the quorum, or no longer.
    """
    return voters_codec.response_to_proto(await _ask_leader(quorum, request))


async def _ask_leader(quorum: VoterChanger, request: m.AnyRequest) -> m.VoterChangeResponse:
    response = await quorum.handle(request)
    if not isinstance(response, m.VoterChangeResponse):
        raise error_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(response).__name__}?")
    if response.header.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        raise NotControllerError("this node does not lead the quorum")
    return response


def changes_quorum(request: admin_pb2.UpdateFeaturesRequest) -> bool:
    """Whether an UpdateFeatures concerns kraft.version."""
    return any(update.feature == KRAFT_VERSION for update in request.updates)


async def change_kraft_version(
    quorum: VoterChanger,
    image: MetadataImage,
    voters: Collection[int],
    request: admin_pb2.UpdateFeaturesRequest,
) -> admin_pb2.UpdateFeaturesResponse:
    """Carries out an UpdateFeatures of kraft.version, which must be alone in its request.

    It is no record of the metadata, so it can not be atomic with other features. Raises
    NotControllerError.
    """
    if len(request.updates) > 1:
        raise InvalidRequestError(f"{KRAFT_VERSION} is changed by a request of its own")
    (update,) = request.updates
    in_the_way = list(obstacles(image, voters, KRAFT_VERSION, update.level))
    if in_the_way:
        raise InvalidUpdateVersionError(
            f"{KRAFT_VERSION}: level {update.level} is not supported by every node: "
            + "; ".join(in_the_way)
        )
    timeout_ms = request.timeout_ms if request.timeout_ms > 0 else _DEFAULT_TIMEOUT_MS
    wanted = m.UpgradeVersionRequest("", update.level, request.validate_only, timeout_ms)
    answer = await _ask_leader(quorum, wanted)
    response = admin_pb2.UpdateFeaturesResponse()
    response.results.add(
        feature=KRAFT_VERSION,
        error_code=int(answer.header.error),  # type: ignore[arg-type]
        error_message="" if answer.header.error == ErrorCode.NONE else answer.message,
    )
    return response
