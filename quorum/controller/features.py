"""UpdateFeatures: raises or lowers feature levels when all nodes support it (KIP-584).

A safe downgrade of metadata.version loses nothing: it is refused while the image contains anything
that the lower level has no records for. An unsafe downgrade is not refused for that (KIP-778).
kraft.version is not part of the image: the quorum itself changes it
(`quorum.services.voter_admin`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorum.controller.eligible import safety_records
from quorum.controller.result import ControllerResult
from quorum.image import MetadataImage
from quorum.image.features import SUPPORTED, obstacles
from quorum.image.image import (
    CLIENT_QUOTAS_LEVEL,
    CONTROLLERS_REGISTER_LEVEL,
    ELR_VERSION,
    METADATA_VERSION,
    SECURITY_LEVEL,
)
from quorum.image.records import feature_record
from tidemark.config import ServerConfig
from tidemark.errors import ApiError, InvalidRequestError, InvalidUpdateVersionError, set_error
from tidemark.v1 import admin_pb2

_Request = admin_pb2.UpdateFeaturesRequest

# An answer names this many nodes that stand in the way, and counts the others.
_NAMED_MAX = 5


def update_features(
    image: MetadataImage,
    config: ServerConfig,
    request: admin_pb2.UpdateFeaturesRequest,
    voters: Collection[int] = (),
) -> ControllerResult[admin_pb2.UpdateFeaturesResponse]:
    """Applies all updates in one batch, or none if one of them fails.

    `voters` are the ids of the quorum's voters, each of which has to be registered. `config` has
    the min.insync.replicas that holds for all brokers once eligible replicas are kept.
    """
    response = admin_pb2.UpdateFeaturesResponse()
    counts = Counter(update.feature for update in request.updates)
    failed = False
    records = []
    for update in request.updates:
        result = response.results.add(feature=update.feature)
        try:
            if counts[update.feature] > 1:
                raise InvalidRequestError("the request names the feature more than once")
            _check(image, update, voters)
        except ApiError as error:
            failed = True
            set_error(result, error)
        else:
            if image.features.get(update.feature, 0) != update.level:
                records.append(feature_record(update.feature, update.level))
                if update.feature == ELR_VERSION and update.level:
                    records += safety_records(image, config)
    if failed or request.validate_only:
        records = []
    return ControllerResult.atomic(records, response)


def _check(image: MetadataImage, update: _Request.Update, voters: Collection[int]) -> None:
    """Raises InvalidUpdateVersionError."""
    name, level = update.feature, update.level
    supported = SUPPORTED.get(name)
    if supported is None:
        raise InvalidUpdateVersionError(
            f"there is no feature {name!r}; there are {', '.join(sorted(SUPPORTED))}"
        )
    if not supported.supports(level):
        raise InvalidUpdateVersionError(
            f"{name}: level {level} is not within {supported.lowest} and {supported.highest}, "
            "which the active controller supports"
        )
    before = image.features.get(name, 0)
    if level == before:
        return
    if level < before and update.type == _Request.UPGRADE:
        raise InvalidUpdateVersionError(
            f"{name}: level {level} is below {before}, which is in effect; a downgrade has to "
            "be asked for"
        )
    if name == METADATA_VERSION and update.type != _Request.UNSAFE_DOWNGRADE:
        lost = _lost(image, level)
        if lost:
            raise InvalidUpdateVersionError(
                f"{name}: level {level} has no records for {lost}, which would be forgotten; an "
                "unsafe downgrade does that"
            )
    in_the_way = list(obstacles(image, voters, name, level))
    if in_the_way:
        more = len(in_the_way) - _NAMED_MAX
        text = "; ".join(in_the_way[:_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
        raise InvalidUpdateVersionError(
            f"{name}: level {level} is not supported by every node: {text}"
        )


def _lost(image: MetadataImage, level: int) -> str:
    """Describes the part of the image that a metadata.version has no records for; empty if none."""
    lost = []
    if level < CONTROLLERS_REGISTER_LEVEL and image.controllers:
        ids = ", ".join(map(str, sorted(image.controllers)))
        lost.append(f"the registrations of controllers {ids}")
    if level < CLIENT_QUOTAS_LEVEL and image.client_quotas:
        lost.append(f"the client quotas of {len(image.client_quotas)} entities")
    if level < SECURITY_LEVEL and (image.acls or image.scram_users):
        lost.append(f"{len(image.acls)} ACLs and {len(image.scram_users)} users of SCRAM")
    return " and ".join(lost)
