"""The Admin service of every node: one row per RPC says where it is answered and how.

    by_any_node       from the image that the node holds
    by_broker         by each broker, from its own disks; a controller refuses
    by_voter          by the leader of the quorum, through the node's own replica
    (no row)          by the active controller, if `quorum.controller.requests` has a rule for it

Requests that only the leader can answer are forwarded to it, one hop: a request that another node
forwarded is not forwarded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import grpc.aio
from google.protobuf.message import Message

from quorum.access.guard import access_of_call
from quorum.controller.requests import REQUESTS
from quorum.image import MetadataImage
from quorum.raft import messages as m
from quorum.replica import voters_codec
from quorum.replica.client import RaftClient
from quorum.replica.service import describe_to_proto
from quorum.services import admin_answers
from quorum.services.config_answers import describe_configs
from quorum.services.controller_client import FORWARDED, ControllerClient
from quorum.services.logger_answers import alter_loggers, names_loggers
from quorum.services.node_answers import FAILED_TASKS_MAX, describe_node, describe_node_log
from quorum.services.quota_answers import describe_client_quotas
from quorum.services.security_answers import describe_acls, describe_scram_users
from quorum.services.serving import Context, add_service, answered
from quorum.services.voter_admin import change_kraft_version, change_voters, changes_quorum
from tidemark.config import ServerConfig
from tidemark.errors import NotControllerError, TidemarkError, UnsupportedVersionError
from tidemark.v1 import admin_pb2, raft_pb2
from tidemark.wire.rpcs import ADMIN, Rpc, rpcs_of

Q = TypeVar("Q", bound=Message)

# For a request without a timeout of its own.
_DEFAULT_TIMEOUT_MS = 30_000
# While the quorum has no leader, a request that describes it is answered soon.
_QUORUM_TIMEOUT_MS = 3_000
# Part of the caller's time reserved for the answer. Without it the caller would get a timeout
# without the reason.
_ANSWER_MS = 500


class ImageSource(Protocol):
    """Holder of the newest committed image, e.g. a `MetadataLoader`."""

    @property
    def image(self) -> MetadataImage: ...


class ActiveController(Protocol):
    """The controller of this process.

    `handle` raises ApiError, NotControllerError while the controller is not active.
    """

    @property
    def is_active(self) -> bool: ...

    async def handle(self, request: Message) -> Any: ...


class LogDirAdmin(Protocol):
    """The requests that a broker answers from its own log directories."""

    async def describe_log_dirs(
        self, request: admin_pb2.DescribeLogDirsRequest
    ) -> admin_pb2.DescribeLogDirsResponse: ...

    async def alter_replica_log_dirs(
        self, request: admin_pb2.AlterReplicaLogDirsRequest
    ) -> admin_pb2.AlterReplicaLogDirsResponse: ...

    def failed_tasks(self, count: int) -> list[admin_pb2.DescribeNodeResponse.FailedTask]:
        """At most `count` tasks of the tier whose last try failed, the worst first."""


@dataclass(frozen=True, slots=True)
class AdminNode:
    """The state that the Admin service of one listener answers from.

    `listener` is the name of that listener: answers give the endpoint of each broker on it (None:
    its first endpoint). `controller` and `log_dirs` are None on a node without that role.
    """

    config: ServerConfig
    cluster_id: str
    images: ImageSource
    quorum: RaftClient
    client: ControllerClient
    listener: str | None = None
    controller: ActiveController | None = None
    log_dirs: LogDirAdmin | None = None

    @property
    def image(self) -> MetadataImage:
        return self.images.image


class _Call(NamedTuple):
    """One request of an RPC at a node."""

    node: AdminNode
    rpc: Rpc
    request: Any
    context: Context

    @property
    def is_forwarded(self) -> bool:
        """Whether another node forwarded the request: it must not be forwarded again."""
        metadata = self.context.invocation_metadata() or ()
        return any(key == FORWARDED[0] for key, _ in metadata)

    def active_controller(self) -> ActiveController | None:
        """The controller of this node if it is the active one, else None."""
        controller = self.node.controller
        return controller if controller is not None and controller.is_active else None

    async def forward(self, default_timeout_ms: int = _DEFAULT_TIMEOUT_MS) -> Any:
        """Returns the active controller's answer.

        Raises ApiError, NotControllerError if the request was already forwarded to this node.
        """
        if self.is_forwarded:
            raise NotControllerError()
        timeout_ms = getattr(self.request, "timeout_ms", 0)
        wanted_ms = timeout_ms if timeout_ms > 0 else default_timeout_ms
        left_s = self.context.time_remaining()
        if left_s is not None:
            wanted_ms = min(wanted_ms, max(1, int(left_s * 1000) - _ANSWER_MS))
        access = access_of_call()
        principal = access.principal if access.is_checked else ""
        return await self.node.client.call(self.rpc.name, self.request, wanted_ms, principal)


class _Row(NamedTuple):
    request: type[Message]
    serve: Callable[[_Call], Awaitable[Any]]


def _by_any_node(request: type[Q], answer: Callable[[AdminNode, Q], Message]) -> _Row:
    async def serve(call: _Call) -> Message:
        return answer(call.node, call.request)

    return _Row(request, serve)


def _by_broker(request: type[Q], answer: Callable[[LogDirAdmin, Q], Awaitable[Message]]) -> _Row:
    async def serve(call: _Call) -> Message:
        if call.node.log_dirs is None:
            raise UnsupportedVersionError("only brokers have log directories: ask a broker")
        return await answer(call.node.log_dirs, call.request)

    return _Row(request, serve)


def _by_voter(request: type[Q], decode: Callable[[Q], m.Request]) -> _Row:
    """Row of a change of voters: by the own replica if it leads the quorum, else by the leader."""

    async def serve(call: _Call) -> Any:
        try:
            return await change_voters(call.node.quorum, decode(call.request))
        except NotControllerError:
            if call.is_forwarded:
                raise
            return await call.forward()

    return _Row(request, serve)


async def _by_active_controller(call: _Call) -> Any:
    controller = call.active_controller()
    return await (call.forward() if controller is None else controller.handle(call.request))


async def _alter_configs(call: _Call) -> Any:
    """Serves IncrementalAlterConfigs: levels of loggers are of this node alone."""
    if names_loggers(call.request):
        return alter_loggers(call.node.config.node_id, call.request)
    return await _by_active_controller(call)


async def _update_features(call: _Call) -> Any:
    """Serves UpdateFeatures: kraft.version is changed by the quorum, other features as metadata."""
    if call.active_controller() is None or not changes_quorum(call.request):
        return await _by_active_controller(call)
    node = call.node
    voters = [voter.replica_id for voter in node.quorum.describe().voters]
    return await change_kraft_version(node.quorum, node.image, voters, call.request)


async def _describe_node(call: _Call) -> Any:
    """Serves DescribeNode. A disk that hangs holds up a thread, and not the loop."""
    node = call.node
    failed = [] if node.log_dirs is None else node.log_dirs.failed_tasks(FAILED_TASKS_MAX)
    return await asyncio.to_thread(describe_node, node.config, failed)


async def _describe_quorum(call: _Call) -> Any:
    """Returns the leader's description, or this node's own view if no leader answers."""
    if call.active_controller() is None:
        try:
            return await call.forward(_QUORUM_TIMEOUT_MS)
        except TidemarkError:
            pass
    return describe_to_proto(call.node.quorum.describe())


_ROWS = (
    _by_any_node(
        admin_pb2.ListTopicsRequest,
        lambda node, request: admin_answers.list_topics(node.image, request),
    ),
    _by_any_node(
        admin_pb2.DescribeTopicsRequest,
        lambda node, request: admin_answers.describe_topics(node.image, request),
    ),
    _by_any_node(
        admin_pb2.DescribeClusterRequest,
        lambda node, _: admin_answers.describe_cluster(
            node.image,
            cluster_id=node.cluster_id,
            controller_id=node.quorum.describe().leader_id,
            listener=node.listener,
        ),
    ),
    _by_any_node(
        admin_pb2.DescribeConfigsRequest,
        lambda node, request: describe_configs(node.image, node.config, request),
    ),
    _by_any_node(
        admin_pb2.DescribeFeaturesRequest,
        lambda node, _: admin_answers.describe_features(
            node.image, node.quorum.describe().kraft_version
        ),
    ),
    _by_any_node(
        admin_pb2.ListPartitionReassignmentsRequest,
        lambda node, request: admin_answers.list_reassignments(node.image, request),
    ),
    _by_any_node(
        admin_pb2.DescribeClientQuotasRequest,
        lambda node, request: describe_client_quotas(node.image, request),
    ),
    _by_any_node(
        admin_pb2.DescribeAclsRequest,
        lambda node, request: describe_acls(node.image, node.config, request),
    ),
    _by_any_node(
        admin_pb2.DescribeUserScramCredentialsRequest,
        lambda node, request: describe_scram_users(node.image, request),
    ),
    _by_broker(
        admin_pb2.DescribeLogDirsRequest,
        lambda log_dirs, request: log_dirs.describe_log_dirs(request),
    ),
    _by_broker(
        admin_pb2.AlterReplicaLogDirsRequest,
        lambda log_dirs, request: log_dirs.alter_replica_log_dirs(request),
    ),
    _by_voter(raft_pb2.AddRaftVoterRequest, voters_codec.add_request_from_proto),
    _by_voter(raft_pb2.RemoveRaftVoterRequest, voters_codec.remove_request_from_proto),
    _Row(raft_pb2.DescribeQuorumRequest, _describe_quorum),
    _Row(admin_pb2.DescribeNodeRequest, _describe_node),
    _by_any_node(admin_pb2.DescribeNodeLogRequest, lambda _, request: describe_node_log(request)),
    _Row(admin_pb2.UpdateFeaturesRequest, _update_features),
    _Row(admin_pb2.IncrementalAlterConfigsRequest, _alter_configs),
)

_SERVED = dict.fromkeys(REQUESTS, _by_active_controller) | dict(_ROWS)

ADMIN_REQUESTS: Mapping[type[Message], Callable[[_Call], Awaitable[Any]]] = {
    rpc.request: _SERVED[rpc.request] for rpc in rpcs_of(ADMIN)
}
"""How each request of the Admin service is served."""


def add_admin_service(server: grpc.aio.Server, node: AdminNode) -> None:
    """Serves Admin on `server` from the state of `node`."""

    async def serve(rpc: Rpc, request: Message, context: Context) -> Message:
        call = _Call(node, rpc, request, context)
        return await answered(rpc.response, ADMIN_REQUESTS[rpc.request](call))

    add_service(server, ADMIN, serve)
