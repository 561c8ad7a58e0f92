"""Registrations of controllers (KIP-919): which run, at which endpoints, with which levels.

Since metadata.version 2. The newest registration of an id counts. A running controller keeps its
own registration the newest (`quorum.services.controller_registration`).
"""

from __future__ import annotations

from uuid import UUID

from quorum.controller.result import ControllerResult
from quorum.image import ControllerRegistration, MetadataImage
from quorum.image.features import check_supported
from quorum.image.image import CONTROLLERS_REGISTER_LEVEL, METADATA_VERSION
from quorum.image.records import controller_record, listeners_of, ranges_of
from tidemark.errors import (
    InconsistentClusterIdError,
    InvalidRegistrationError,
    UnsupportedVersionError,
)
from tidemark.v1 import controller_pb2

_Response = controller_pb2.RegisterControllerResponse


def register_controller(
    image: MetadataImage, cluster_id: str, request: controller_pb2.RegisterControllerRequest
) -> ControllerResult[_Response]:
    """Registers a controller; writes nothing if the image has the same registration.

    Raises InconsistentClusterIdError, InvalidRegistrationError. Raises UnsupportedVersionError for
    a controller too old for the cluster, or while metadata.version has no records of controllers.
    """
    controller_id = request.controller_id
    if request.cluster_id != cluster_id:
        raise InconsistentClusterIdError(
            f"controller {controller_id} belongs to cluster {request.cluster_id!r}, this is "
            f"{cluster_id!r}: check meta.properties and controller.quorum.voters"
        )
    level = image.features.get(METADATA_VERSION, 0)
    if level < CONTROLLERS_REGISTER_LEVEL:
        raise UnsupportedVersionError(
            f"controllers register from {METADATA_VERSION} {CONTROLLERS_REGISTER_LEVEL} on, "
            f"{level} is in effect"
        )
    if controller_id < 0:
        raise InvalidRegistrationError(f"controller id {controller_id} is negative")
    if len(request.incarnation_id) != 16:
        raise InvalidRegistrationError(
            f"controller {controller_id}: the incarnation id is not 16 bytes"
        )
    if not request.listeners:
        raise InvalidRegistrationError(f"controller {controller_id} has no listeners")
    controller = ControllerRegistration(
        controller_id=controller_id,
        incarnation_id=UUID(bytes=request.incarnation_id),
        endpoints=listeners_of(request.listeners),
        features=ranges_of(request.features),
    )
    check_supported(image.features, controller.feature_ranges, f"controller {controller_id}")
    known = image.controllers.get(controller_id) == controller
    return ControllerResult.atomic([] if known else [controller_record(controller)], _Response())
