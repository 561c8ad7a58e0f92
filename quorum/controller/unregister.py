"""UnregisterBroker: removes the registration of a broker or of a former voter.

A controller can be unregistered when it is no longer a voter (KIP-185, KIP-919).
"""

from __future__ import annotations

from collections.abc import Collection

from quorum.controller import elections
from quorum.controller.cluster_control import BrokerControl
from quorum.controller.elections import ElectionRules
from quorum.controller.result import ControllerResult
from quorum.image import MetadataImage
from tidemark.errors import (
    BrokerIdNotRegisteredError,
    InvalidRequestError,
    ThrottlingQuotaExceededError,
)
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb


def unregister(
    rules: ElectionRules,
    brokers: BrokerControl,
    voters: Collection[int],
    request: admin_pb2.UnregisterBrokerRequest,
) -> ControllerResult[admin_pb2.UnregisterBrokerResponse]:
    """Unregisters a broker or, if none has the id, a controller that is no voter.

    Raises BrokerIdNotRegisteredError, InvalidRequestError, ThrottlingQuotaExceededError.
    """
    node_id = request.broker_id
    records = _broker(rules, brokers, node_id) or _controller(rules.image, node_id, voters)
    if not records:
        raise BrokerIdNotRegisteredError(f"no broker {node_id} is registered")
    return ControllerResult.each(records, admin_pb2.UnregisterBrokerResponse())


def _broker(
    rules: ElectionRules, brokers: BrokerControl, broker_id: int
) -> list[pb.MetadataRecord]:
    """Records that unregister a broker; its replicas stay assigned. Empty if it is unknown.

    Raises ThrottlingQuotaExceededError, which is retriable, while very many partitions change.

    The registration's log directories are noted where they count, because a later broker of this id
    may have other disks.
    """
    broker = rules.image.brokers.get(broker_id)
    if broker is None:
        return []
    record = pb.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    task = elections.forgotten(broker, unclean=True, gone=broker.log_dirs)
    changes = brokers.taken_out(rules, broker, task)
    if changes is None:
        raise ThrottlingQuotaExceededError(
            f"broker {broker_id} is being taken out of its partitions: ask again in a moment"
        )
    return [*changes, pb.MetadataRecord(unregister_broker=record)]


def _controller(
    image: MetadataImage, controller_id: int, voters: Collection[int]
) -> list[pb.MetadataRecord]:
    """Records that unregister a controller; empty if it is unknown.

    Raises InvalidRequestError for a voter.
    """
    if controller_id not in image.controllers:
        return []
    if controller_id in voters:
        raise InvalidRequestError(
            f"controller {controller_id} is a voter of the quorum: remove it from the voters first"
        )
    record = pb.UnregisterControllerRecord(controller_id=controller_id)
    return [pb.MetadataRecord(unregister_controller=record)]
