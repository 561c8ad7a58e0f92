"""UpdateFeatures: raises or lowers feature levels when all nodes that are known support it
(KIP-584)."""

from __future__ import annotations

from collections import Counter

from quorum.controller.result import ControllerResult
from quorum.features import SUPPORTED, supported_level
from quorum.image import MetadataImage
from quorum.image.image import METADATA_VERSION
from quorum.image.records import feature_record
from tidemark.errors import ApiError, InvalidRequestError, InvalidUpdateVersionError
from tidemark.v1 import admin_pb2

_Request = admin_pb2.UpdateFeaturesRequest


def update_features(
    image: MetadataImage, request: admin_pb2.UpdateFeaturesRequest
) -> ControllerResult[admin_pb2.UpdateFeaturesResponse]:
    """All updates in one batch, or none when one of them can not be."""
    response = admin_pb2.UpdateFeaturesResponse()
    counts = Counter(update.feature for update in request.updates)
    failed = False
    records = []
    for update in request.updates:
        result = response.results.add(feature=update.feature)
        try:
            if counts[update.feature] > 1:
                raise InvalidRequestError("the request names the feature more than once")
            _check(image, update)
        except ApiError as error:
            failed = True
            result.error_code = int(error.code)  # type: ignore[assignment]
            result.error_message = str(error)
        else:
            if image.features.get(update.feature, 0) != update.level:
                records.append(feature_record(update.feature, update.level))
    if failed or request.validate_only:
        records = []
    return ControllerResult.atomic(records, response)


def _check(image: MetadataImage, update: _Request.Update) -> None:
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
    if level < before:
        if update.type == _Request.UPGRADE:
            raise InvalidUpdateVersionError(
                f"{name}: level {level} is below {before}, which is in effect; a downgrade has to "
                "be asked for"
            )
        if name == METADATA_VERSION:
            raise InvalidUpdateVersionError(
                f"{METADATA_VERSION} can not be lowered: the log has records of level {before}"
            )
    for broker_id in sorted(image.brokers):
        if not supported_level(image.brokers[broker_id].feature_ranges, name, level):
            raise InvalidUpdateVersionError(f"{name}: broker {broker_id} does not support {level}")
