"""AlterClientQuotas: sets and removes quotas of users and client ids (KIP-546).

Entities are independent: the records of each are one atomic group, and each has its own error. A
quota that has the wanted value already is not written again. Quotas are enforced by brokers.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorum.controller.result import ControllerResult, check_level, check_operations
from quorum.image import MetadataImage
from quorum.image.image import CLIENT_QUOTAS_LEVEL
from quorum.image.records import client_quota_record
from quorum.image.types import EMPTY_MAP
from tidemark.errors import ApiError, InvalidRequestError, set_error
from tidemark.quotas.entities import QuotaEntity, check_quota, entity_from_wire
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_Request = admin_pb2.AlterClientQuotasRequest


def alter_client_quotas(
    image: MetadataImage, request: _Request
) -> ControllerResult[admin_pb2.AlterClientQuotasResponse]:
    """Applies the changes, each entity with its own answer.

    Raises UnsupportedVersionError while metadata.version has no records of quotas.
    """
    check_level(image, CLIENT_QUOTAS_LEVEL, "client quotas")
    check_operations(sum(len(entry.ops) for entry in request.entries))
    response = admin_pb2.AlterClientQuotasResponse()
    result = ControllerResult(response)
    seen: set[QuotaEntity] = set()
    for entry in request.entries:
        answer = response.entries.add(entity=entry.entity)
        try:
            entity = entity_from_wire(entry.entity)
            if entity in seen:
                raise InvalidRequestError("the request names the entity more than once")
            seen.add(entity)
            records = _records(image, entity, entry.ops)
        except ApiError as error:
            set_error(answer, error)
        else:
            if records and not request.validate_only:
                result.groups.append(records)
    return result


def _records(
    image: MetadataImage, entity: QuotaEntity, ops: Sequence[_Request.Op]
) -> list[pb.MetadataRecord]:
    before = image.client_quotas.get(entity, EMPTY_MAP)
    after: dict[str, float | None] = {}
    for op in ops:
        if op.key in after:
            raise InvalidRequestError(f"{op.key} is named more than once")
        if not op.remove:
            check_quota(op.key, op.value)
        after[op.key] = None if op.remove else op.value
    return [
        client_quota_record(entity, key, value)
        for key, value in sorted(after.items())
        if before.get(key) != value
    ]
