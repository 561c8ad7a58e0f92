"""Levels of a node's loggers as settings, by Kafka's means (KIP-412).

The resource is BROKER_LOGGER with the node's id, of brokers and of controllers. Levels last until
the process ends. `root` is the logger of all that have no level of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorum.image import ConfigResourceType
from tidemark import logs
from tidemark.errors import ApiError, InvalidConfigError, InvalidRequestError, set_error
from tidemark.v1 import admin_pb2

_Request = admin_pb2.IncrementalAlterConfigsRequest
_Entry = admin_pb2.DescribeConfigsResponse.Entry

SOURCE = admin_pb2.DescribeConfigsResponse.DYNAMIC_BROKER_LOGGER_CONFIG


def names_loggers(request: _Request) -> bool:
    """Whether a request alters loggers, which the node itself does.

    Raises InvalidRequestError for one that also alters other things.
    """
    kinds = {
        asked.resource.resource_type == ConfigResourceType.BROKER_LOGGER
        for asked in request.resources
    }
    if len(kinds) > 1:
        raise InvalidRequestError("levels of loggers are altered by a request of their own")
    return kinds == {True}


def check_node(node_id: int, name: str) -> None:
    """Raises InvalidRequestError if the resource is not this node."""
    if name != str(node_id):
        raise InvalidRequestError(
            f"this is node {node_id}, not {name!r}: ask the node whose loggers are meant"
        )


def describe_loggers(node_id: int, name: str) -> Iterator[_Entry]:
    """All loggers with the levels in effect. Raises InvalidRequestError."""
    check_node(node_id, name)
    for logger, level in logs.levels().items():
        yield _Entry(name=logger, value=level, source=SOURCE, type="STRING")


def alter_loggers(node_id: int, request: _Request) -> admin_pb2.IncrementalAlterConfigsResponse:
    """Sets levels, those of each resource together or not at all."""
    response = admin_pb2.IncrementalAlterConfigsResponse()
    for asked in request.resources:
        answer = response.responses.add(resource=asked.resource)
        try:
            check_node(node_id, asked.resource.resource_name)
            changes = {op.name: _level(op) for op in asked.ops}
        except ApiError as error:
            set_error(answer, error)
            continue
        if not request.validate_only:
            for name, level in changes.items():
                logs.set_level(name, level)
    return response


def _level(op: _Request.Op) -> str | None:
    """The level that an operation sets; None: that of the logger above.

    Raises InvalidConfigError.
    """
    if op.type not in (_Request.SET, _Request.DELETE):
        raise InvalidConfigError(f"{op.name}: a level is no list: use SET or DELETE")
    level = op.value if op.type == _Request.SET else None
    try:
        logs.check_level(op.name, level)
    except ValueError as error:
        raise InvalidConfigError(f"{error}; tidemark configs describe lists loggers") from None
    return level
