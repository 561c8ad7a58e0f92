"""DescribeClientQuotas, answered by any node from its image (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable

from quorum.image import MetadataImage
from tidemark.errors import InvalidRequestError
from tidemark.quotas.entities import (
    CLIENT_ID,
    DEFAULT,
    USER,
    QuotaEntity,
    check_type,
    parts_to_wire,
    sort_key,
)
from tidemark.v1 import admin_pb2

_Request = admin_pb2.DescribeClientQuotasRequest


def describe_client_quotas(
    image: MetadataImage, request: _Request
) -> admin_pb2.DescribeClientQuotasResponse:
    """Quotas whose entity matches every component, in the order of entities.

    With `strict`, without entities that have a type which no component names. Raises
    InvalidRequestError.
    """
    tests: dict[str, Callable[[str], bool]] = {}
    for component in request.components:
        check_type(component.entity_type)
        if component.entity_type in tests:
            raise InvalidRequestError(f"{component.entity_type} is named more than once")
        tests[component.entity_type] = _test_of(component)
    response = admin_pb2.DescribeClientQuotasResponse()
    for entity in sorted(image.client_quotas, key=sort_key):
        if _matches(entity, tests, request.strict):
            quotas = image.client_quotas[entity]
            response.entries.add(entity=parts_to_wire(entity), values=dict(quotas))
    return response


def _test_of(component: _Request.Component) -> Callable[[str], bool]:
    if component.match_type == _Request.ANY:
        return lambda _: True
    if component.match_type == _Request.DEFAULT:
        return lambda name: name == DEFAULT
    if component.match_type != _Request.EXACT:
        raise InvalidRequestError(f"no match type {component.match_type}")
    if not component.match:
        raise InvalidRequestError(f"{component.entity_type}: an exact match needs a name")
    wanted = component.match
    return lambda name: name == wanted


def _matches(entity: QuotaEntity, tests: dict[str, Callable[[str], bool]], strict: bool) -> bool:
    for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id)):
        test = tests.get(kind)
        if test is None:
            if strict and name is not None:
                return False
        elif name is None or not test(name):
            return False
    return True
