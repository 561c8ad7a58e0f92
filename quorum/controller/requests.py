"""The requests that the active controller decides on: one row per request message.

A row has the message, the rule that generates its records and its answer, and the arguments that
the rule takes. Everything else derives from this table: dispatch in `ControllerCore`, queueing and
timeouts in `QuorumController`, and the services that receive these requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from quorum.controller.alter_partition import alter_partitions
from quorum.controller.client_quotas import alter_client_quotas
from quorum.controller.cluster_control import BrokerControl
from quorum.controller.configs import alter_configs
from quorum.controller.controllers import register_controller
from quorum.controller.directories import assign_replicas
from quorum.controller.elections import ElectionRules
from quorum.controller.eligible import settle
from quorum.controller.features import update_features
from quorum.controller.leader_requests import elect_leaders
from quorum.controller.partitions import create_partitions
from quorum.controller.producer_ids import allocate_producer_ids
from quorum.controller.reassignments import alter_reassignments
from quorum.controller.result import ControllerResult
from quorum.controller.security import alter_scram_credentials, create_acls, delete_acls
from quorum.controller.topics import create_topics, delete_topics
from quorum.controller.unregister import unregister
from quorum.image import MetadataImage
from tidemark.config import ServerConfig
from tidemark.v1 import admin_pb2, controller_pb2

Q = TypeVar("Q", bound=Message)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The state that a rule reads. `next_offset` is the offset that the first record will have."""

    rules: ElectionRules
    brokers: BrokerControl
    cluster_id: str
    rng: random.Random
    voters: Callable[[], Collection[int]]
    next_offset: int
    now_ms: int

    @property
    def image(self) -> MetadataImage:
        return self.rules.image

    @property
    def config(self) -> ServerConfig:
        return self.rules.config


class RequestRule(NamedTuple):
    """One row. `urgent` requests go ahead of the others in the controller's queue."""

    request: type[Message]
    generate: Callable[[RequestContext, Any], ControllerResult[Any]]
    urgent: bool


def _rule(
    request: type[Q],
    generate: Callable[[RequestContext, Q], ControllerResult[Any]],
    *,
    urgent: bool = False,
) -> RequestRule:
    """Makes a row; the type checker holds the message against the rule."""
    return RequestRule(request, generate, urgent)


_ROWS = (
    # Service Controller: requests of brokers and controllers.
    _rule(
        controller_pb2.RegisterBrokerRequest,
        lambda c, r: c.brokers.register(c.rules, r, c.next_offset, c.now_ms),
        urgent=True,
    ),
    _rule(
        controller_pb2.BrokerHeartbeatRequest,
        lambda c, r: c.brokers.heartbeat(c.rules, r, c.now_ms),
        urgent=True,
    ),
    _rule(controller_pb2.AlterPartitionRequest, lambda c, r: alter_partitions(c.rules, r)),
    _rule(
        controller_pb2.AllocateProducerIdsRequest, lambda c, r: allocate_producer_ids(c.image, r)
    ),
    _rule(controller_pb2.AssignReplicasToDirsRequest, lambda c, r: assign_replicas(c.rules, r)),
    _rule(
        controller_pb2.RegisterControllerRequest,
        lambda c, r: register_controller(c.image, c.cluster_id, r),
    ),
    # Service Admin: requests of administrators.
    _rule(admin_pb2.CreateTopicsRequest, lambda c, r: create_topics(c.image, c.config, c.rng, r)),
    _rule(admin_pb2.DeleteTopicsRequest, lambda c, r: delete_topics(c.image, r)),
    _rule(
        admin_pb2.IncrementalAlterConfigsRequest,
        lambda c, r: settle(c.rules, c.brokers.sweeps, alter_configs(c.image, c.config, r)),
    ),
    _rule(admin_pb2.CreatePartitionsRequest, lambda c, r: create_partitions(c.image, c.rng, r)),
    _rule(
        admin_pb2.AlterPartitionReassignmentsRequest, lambda c, r: alter_reassignments(c.rules, r)
    ),
    _rule(admin_pb2.AlterClientQuotasRequest, lambda c, r: alter_client_quotas(c.image, r)),
    _rule(admin_pb2.ElectLeadersRequest, lambda c, r: elect_leaders(c.rules, r)),
    _rule(
        admin_pb2.UpdateFeaturesRequest,
        lambda c, r: settle(
            c.rules, c.brokers.sweeps, update_features(c.image, c.config, r, c.voters())
        ),
    ),
    _rule(
        admin_pb2.UnregisterBrokerRequest,
        lambda c, r: unregister(c.rules, c.brokers, c.voters(), r),
    ),
    _rule(admin_pb2.CreateAclsRequest, lambda c, r: create_acls(c.image, c.config, c.rng, r)),
    _rule(admin_pb2.DeleteAclsRequest, lambda c, r: delete_acls(c.image, c.config, r)),
    _rule(
        admin_pb2.AlterUserScramCredentialsRequest,
        lambda c, r: alter_scram_credentials(c.image, r),
    ),
)

REQUESTS: Mapping[type[Message], RequestRule] = {row.request: row for row in _ROWS}
