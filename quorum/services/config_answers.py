"""Answers of DescribeConfigs: every setting of a resource with its value and source.

Pure functions of an image and of the answering node's own settings. Precedence of a topic's
setting: the topic's own, the broker's, the one for all brokers, the node's server.properties, the
built-in default (KIP-226). Credentials of plug-ins (`rsm.config.*`) are never included. A secret
setting is told with its source, and without a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from quorum.controller.configs import check_resource
from quorum.image import ConfigResource, ConfigResourceType, MetadataImage
from quorum.services.logger_answers import describe_loggers
from tidemark.config import ServerConfig, TopicConfig, dynamic_settings, synonym_of
from tidemark.config.definition import keys_of, text_of, types_of, value_of
from tidemark.errors import ApiError, InvalidRequestError, set_error
from tidemark.v1 import admin_pb2

_Response = admin_pb2.DescribeConfigsResponse
_TYPES = {bool: "BOOLEAN", int: "LONG", float: "DOUBLE", str: "STRING"}


class _Said(NamedTuple):
    """A value and its source."""

    name: str
    value: str
    source: int


def describe_configs(
    image: MetadataImage, config: ServerConfig, request: admin_pb2.DescribeConfigsRequest
) -> admin_pb2.DescribeConfigsResponse:
    """Settings of the requested resources, each resource with its own error."""
    response = _Response()
    for asked in request.resources:
        resource = ConfigResource(asked.resource.resource_type, asked.resource.resource_name)
        result = response.results.add(resource=asked.resource)
        try:
            entries = list(_entries(image, config, resource))
        except ApiError as error:
            set_error(result, error)
            continue
        wanted = set(asked.names)
        for entry in entries:
            if not wanted or entry.name in wanted:
                if not request.include_synonyms:
                    entry.ClearField("synonyms")
                if not request.include_documentation:
                    entry.ClearField("documentation")
                result.configs.append(entry)
    return response


def _entries(
    image: MetadataImage, config: ServerConfig, resource: ConfigResource
) -> Iterable[_Response.Entry]:
    if resource.type == ConfigResourceType.BROKER_LOGGER:
        return describe_loggers(config.node_id, resource.name)
    if resource == ConfigResource.broker(config.node_id) and config.node_id not in image.brokers:
        return _broker_entries(image, config, resource)  # a controller's own settings
    check_resource(image, resource)
    if resource.type == ConfigResourceType.TOPIC:
        return _topic_entries(image, config, resource.name)
    if resource.name not in ("", str(config.node_id)):
        raise InvalidRequestError(
            f"node {config.node_id} does not know the settings of broker {resource.name}: ask that "
            "broker"
        )
    return _broker_entries(image, config, resource)


def _topic_entries(
    image: MetadataImage, config: ServerConfig, topic: str
) -> Iterable[_Response.Entry]:
    own = image.topic_configs(topic)
    for key, field in sorted(keys_of(TopicConfig).items()):
        said = [_Said(key, own[key], _Response.TOPIC_CONFIG)] if key in own else []
        said += _server_values(image, config, synonym_of(key))
        if not said:
            said = [_Said(key, text_of(field.default), _Response.DEFAULT_CONFIG)]
        yield _entry(key, field, types_of(TopicConfig), said, read_only=False)


def _broker_entries(
    image: MetadataImage, config: ServerConfig, resource: ConfigResource
) -> Iterable[_Response.Entry]:
    """All settings of a broker; of the default of all brokers only the altered ones."""
    altered = image.broker_configs(None)
    for key, field in sorted(keys_of(ServerConfig).items()):
        read_only = key not in dynamic_settings()
        if resource.name:
            said = _server_values(image, config, key)
        elif key in altered:
            said = [_Said(key, altered[key], _Response.DYNAMIC_DEFAULT_BROKER_CONFIG)]
        else:
            continue
        yield _entry(key, field, types_of(ServerConfig), said, read_only)


def _server_values(image: MetadataImage, config: ServerConfig, key: str) -> list[_Said]:
    """Values of a server setting by source, the strongest first; none for an unknown name."""
    field = keys_of(ServerConfig).get(key)
    if field is None:
        return []
    said = []
    dynamic = (
        (image.broker_configs(config.node_id), _Response.DYNAMIC_BROKER_CONFIG),
        (image.broker_configs(None), _Response.DYNAMIC_DEFAULT_BROKER_CONFIG),
    )
    for settings, source in dynamic:
        if key in settings:
            said.append(_Said(key, settings[key], source))
    value = value_of(config, key)
    if value != field.default:
        said.append(_Said(key, text_of(value), _Response.STATIC_BROKER_CONFIG))
    if field.default is not dataclasses.MISSING:
        said.append(_Said(key, text_of(field.default), _Response.DEFAULT_CONFIG))
    return said


def _entry(
    key: str,
    field: dataclasses.Field[Any],
    types: Mapping[str, Any],
    said: list[_Said],
    read_only: bool,
) -> _Response.Entry:
    if field.metadata["secret"]:
        said = [one._replace(value="") for one in said]
    return _Response.Entry(
        name=key,
        value=said[0].value,
        source=said[0].source,  # type: ignore[arg-type]
        read_only=read_only,
        type=_TYPES.get(types[field.name], "LIST"),
        documentation=field.metadata["doc"],
        synonyms=[
            _Response.Synonym(name=s.name, value=s.value, source=s.source)  # type: ignore[arg-type]
            for s in said
        ],
    )
