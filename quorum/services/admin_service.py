"""The Admin service as every node serves it: reads from its own image, changes through the
controller.

A broker serves `AdminService` as it is (and adds DescribeLogDirs); a controller serves
`ControllerAdminService`, which carries changes out itself while it is active.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import grpc.aio
from google.protobuf.message import Message

from quorum.image import MetadataImage
from quorum.raft import messages as m
from quorum.replica.client import QuorumInfo
from quorum.replica.service import describe_to_proto
from quorum.services import admin_answers
from quorum.services.config_answers import describe_configs
from quorum.services.controller_client import FORWARDED, ControllerClient
from quorum.services.voter_admin import change_kraft_version, change_voters, changes_quorum
from tidemark.config import ServerConfig
from tidemark.errors import (
    ApiError,
    NotControllerError,
    TidemarkError,
    UnsupportedVersionError,
    code_of,
)
from tidemark.v1 import admin_pb2, admin_pb2_grpc, raft_pb2

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

Context = grpc.aio.ServicerContext[Any, Any] | Any

# For a request that names no time of its own.
_DEFAULT_TIMEOUT_MS = 30_000
# Whoever asks about the quorum while it has no leader wants to hear so soon.
_QUORUM_TIMEOUT_MS = 3_000
# Kept of the asker's time for the way back: else it would learn that time is up, but not why.
_ANSWER_MS = 500


def failure(response: type[R], error: BaseException) -> R:
    """The answer that says only what went wrong."""
    if not isinstance(error, ApiError):
        logger.error("a request failed", exc_info=error)
    return response(error_code=int(code_of(error)), error_message=str(error))


async def answered(response: type[R], work: Awaitable[R]) -> R:
    """What `work` gives, or its error as an answer; being cancelled stays an exception."""
    try:
        return await work
    except asyncio.CancelledError:
        raise
    except Exception as error:
        return failure(response, error)


def is_forwarded(context: Context) -> bool:
    """Whether another node sent the request on: it must not be sent on once more."""
    metadata = context.invocation_metadata() or ()
    return any(key == FORWARDED[0] for key, _ in metadata)


class ImageSource(Protocol):
    """Who holds the newest committed image: a `MetadataLoader`."""

    @property
    def image(self) -> MetadataImage: ...


class QuorumView(Protocol):
    """What a node knows of the quorum: the Raft client."""

    def describe(self) -> QuorumInfo: ...

    async def handle(self, request: m.AnyRequest) -> m.Response:
        """Answers a request of the quorum."""
        ...


class AdminService(admin_pb2_grpc.AdminServicer):
    """Serves reads from `images`, and sends changes to the active controller through `client`.

    `listener` is the name of the listener this service answers on: brokers are told to clients as
    that listener reaches them (None: by their first).
    """

    def __init__(
        self,
        *,
        config: ServerConfig,
        cluster_id: str,
        images: ImageSource,
        quorum: QuorumView,
        client: ControllerClient,
        listener: str | None = None,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._images = images
        self._quorum = quorum
        self._client = client
        self._listener = listener

    # What changes metadata.

    async def CreateTopics(
        self, request: admin_pb2.CreateTopicsRequest, context: Context
    ) -> admin_pb2.CreateTopicsResponse:
        return await self._change("CreateTopics", request, admin_pb2.CreateTopicsResponse, context)

    async def DeleteTopics(
        self, request: admin_pb2.DeleteTopicsRequest, context: Context
    ) -> admin_pb2.DeleteTopicsResponse:
        return await self._change("DeleteTopics", request, admin_pb2.DeleteTopicsResponse, context)

    async def IncrementalAlterConfigs(
        self, request: admin_pb2.IncrementalAlterConfigsRequest, context: Context
    ) -> admin_pb2.IncrementalAlterConfigsResponse:
        return await self._change(
            "IncrementalAlterConfigs", request, admin_pb2.IncrementalAlterConfigsResponse, context
        )

    async def CreatePartitions(
        self, request: admin_pb2.CreatePartitionsRequest, context: Context
    ) -> admin_pb2.CreatePartitionsResponse:
        return await self._change(
            "CreatePartitions", request, admin_pb2.CreatePartitionsResponse, context
        )

    async def AlterPartitionReassignments(
        self, request: admin_pb2.AlterPartitionReassignmentsRequest, context: Context
    ) -> admin_pb2.AlterPartitionReassignmentsResponse:
        return await self._change(
            "AlterPartitionReassignments",
            request,
            admin_pb2.AlterPartitionReassignmentsResponse,
            context,
        )

    async def ElectLeaders(
        self, request: admin_pb2.ElectLeadersRequest, context: Context
    ) -> admin_pb2.ElectLeadersResponse:
        return await self._change("ElectLeaders", request, admin_pb2.ElectLeadersResponse, context)

    async def UpdateFeatures(
        self, request: admin_pb2.UpdateFeaturesRequest, context: Context
    ) -> admin_pb2.UpdateFeaturesResponse:
        return await self._change(
            "UpdateFeatures", request, admin_pb2.UpdateFeaturesResponse, context
        )

    async def UnregisterBroker(
        self, request: admin_pb2.UnregisterBrokerRequest, context: Context
    ) -> admin_pb2.UnregisterBrokerResponse:
        return await self._change(
            "UnregisterBroker", request, admin_pb2.UnregisterBrokerResponse, context
        )

    # What is read.

    async def ListTopics(
        self, request: admin_pb2.ListTopicsRequest, context: Context
    ) -> admin_pb2.ListTopicsResponse:
        return admin_answers.list_topics(self._images.image, request)

    async def DescribeTopics(
        self, request: admin_pb2.DescribeTopicsRequest, context: Context
    ) -> admin_pb2.DescribeTopicsResponse:
        return admin_answers.describe_topics(self._images.image, request)

    async def DescribeCluster(
        self, request: admin_pb2.DescribeClusterRequest, context: Context
    ) -> admin_pb2.DescribeClusterResponse:
        return admin_answers.describe_cluster(
            self._images.image,
            cluster_id=self._cluster_id,
            controller_id=self._quorum.describe().leader_id,
            listener=self._listener,
        )

    async def DescribeMetadataQuorum(
        self, request: raft_pb2.DescribeQuorumRequest, context: Context
    ) -> raft_pb2.DescribeQuorumResponse:
        """The leader's answer, or, when none answers, what this node itself knows."""
        try:
            answer: raft_pb2.DescribeQuorumResponse = await self._forward(
                "DescribeMetadataQuorum", request, _QUORUM_TIMEOUT_MS, context
            )
        except TidemarkError:
            answer = describe_to_proto(self._quorum.describe())
        return answer

    async def AddRaftVoter(
        self, request: raft_pb2.AddRaftVoterRequest, context: Context
    ) -> raft_pb2.RaftVoterResponse:
        work = self._change_voters("AddRaftVoter", request, context)
        return await answered(raft_pb2.RaftVoterResponse, work)

    async def RemoveRaftVoter(
        self, request: raft_pb2.RemoveRaftVoterRequest, context: Context
    ) -> raft_pb2.RaftVoterResponse:
        work = self._change_voters("RemoveRaftVoter", request, context)
        return await answered(raft_pb2.RaftVoterResponse, work)

    async def _change_voters(
        self, method: str, request: Any, context: Context
    ) -> raft_pb2.RaftVoterResponse:
        """By the own replica if it leads the quorum, else by the one that does."""
        try:
            return await change_voters(self._quorum, request)
        except NotControllerError:
            if is_forwarded(context):
                raise
            answer: raft_pb2.RaftVoterResponse = await self._forward(
                method, request, request.timeout_ms, context
            )
            return answer

    async def ListPartitionReassignments(
        self, request: admin_pb2.ListPartitionReassignmentsRequest, context: Context
    ) -> admin_pb2.ListPartitionReassignmentsResponse:
        return admin_answers.list_reassignments(self._images.image, request)

    async def DescribeFeatures(
        self, request: admin_pb2.DescribeFeaturesRequest, context: Context
    ) -> admin_pb2.DescribeFeaturesResponse:
        kraft_version = self._quorum.describe().kraft_version
        return admin_answers.describe_features(self._images.image, kraft_version)

    async def DescribeConfigs(
        self, request: admin_pb2.DescribeConfigsRequest, context: Context
    ) -> admin_pb2.DescribeConfigsResponse:
        return describe_configs(self._images.image, self._config, request)

    async def DescribeLogDirs(
        self, request: admin_pb2.DescribeLogDirsRequest, context: Context
    ) -> admin_pb2.DescribeLogDirsResponse:
        error = UnsupportedVersionError("only brokers have log directories: ask a broker")
        return failure(admin_pb2.DescribeLogDirsResponse, error)

    async def AlterReplicaLogDirs(
        self, request: admin_pb2.AlterReplicaLogDirsRequest, context: Context
    ) -> admin_pb2.AlterReplicaLogDirsResponse:
        error = UnsupportedVersionError("only brokers have log directories: ask a broker")
        return failure(admin_pb2.AlterReplicaLogDirsResponse, error)

    async def _change(self, method: str, request: Any, response: type[R], context: Context) -> R:
        """The active controller's answer to a change, or the error of getting there."""
        work = self._forward(method, request, request.timeout_ms, context)
        return await answered(response, work)

    async def _forward(
        self, method: str, request: Message, timeout_ms: int, context: Context
    ) -> Any:
        if is_forwarded(context):
            raise NotControllerError()
        left_s = context.time_remaining()
        wanted_ms = timeout_ms if timeout_ms > 0 else _DEFAULT_TIMEOUT_MS
        if left_s is not None:
            wanted_ms = min(wanted_ms, max(1, int(left_s * 1000) - _ANSWER_MS))
        return await self._client.call(method, request, wanted_ms)


class ActiveAdmin(Protocol):
    """What the active controller carries out: a change by the method's name. Raises ApiError,
    NotControllerError where it is not active."""

    @property
    def is_active(self) -> bool: ...

    async def administer(self, method: str, request: Any) -> Any: ...


class ControllerAdminService(AdminService):
    """The Admin service of a controller: carries changes out while it is active, else sends them
    on.
    """

    def __init__(self, controller: ActiveAdmin, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._controller = controller

    async def _change(self, method: str, request: Any, response: type[R], context: Context) -> R:
        if not self._controller.is_active:
            return await super()._change(method, request, response, context)
        return await answered(response, self._controller.administer(method, request))

    async def UpdateFeatures(
        self, request: admin_pb2.UpdateFeaturesRequest, context: Context
    ) -> admin_pb2.UpdateFeaturesResponse:
        if not (self._controller.is_active and changes_quorum(request)):
            return await super().UpdateFeatures(request, context)
        voters = [voter.replica_id for voter in self._quorum.describe().voters]
        work = change_kraft_version(self._quorum, self._images.image, voters, request)
        return await answered(admin_pb2.UpdateFeaturesResponse, work)

    async def DescribeMetadataQuorum(
        self, request: raft_pb2.DescribeQuorumRequest, context: Context
    ) -> raft_pb2.DescribeQuorumResponse:
        if not self._controller.is_active:
            return await super().DescribeMetadataQuorum(request, context)
        return describe_to_proto(self._quorum.describe())
