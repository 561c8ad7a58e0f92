"""Changes of settings: of topics, of brokers, and of all brokers together (KIP-226, KIP-339).

A request changes settings one by one: SET and DELETE, and for lists APPEND and SUBTRACT. The latter
begin at the default where the resource has no value of its own. Resources are independent: the
records of each are one atomic group, and each has its own error. The result is validated as a
whole, so contradicting settings are refused in whatever order they are made.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorum.controller.result import RECORDS_PER_BATCH_MAX, ControllerResult
from quorum.image import ConfigResource, ConfigResourceType, MetadataImage
from quorum.image.records import config_record
from quorum.image.types import EMPTY_MAP
from tidemark.config import (
    ServerConfig,
    TopicConfig,
    dynamic_settings,
    server_defaults,
    validate_dynamic_configs,
    validate_topic_configs,
)
from tidemark.config.definition import keys_of, text_of
from tidemark.errors import (
    ApiError,
    BrokerIdNotRegisteredError,
    InvalidConfigError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
    set_error,
)
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_Request = admin_pb2.IncrementalAlterConfigsRequest
_Op = _Request.Op
_TIERED = "remote.storage.enable"
_DELETES = "remote.log.delete.on.disable"
MIN_ISR = "min.insync.replicas"


def alter_configs(
    image: MetadataImage, config: ServerConfig, request: _Request
) -> ControllerResult[admin_pb2.IncrementalAlterConfigsResponse]:
    """Applies the changes, each resource with its own answer.

    `config` provides the defaults that lists begin at.
    """
    response = admin_pb2.IncrementalAlterConfigsResponse()
    result = ControllerResult(response)
    counts = Counter(
        (asked.resource.resource_type, asked.resource.resource_name) for asked in request.resources
    )
    for asked in request.resources:
        resource = ConfigResource(asked.resource.resource_type, asked.resource.resource_name)
        answer = response.responses.add(resource=asked.resource)
        try:
            if counts[resource] > 1:
                raise InvalidRequestError("the request names the resource more than once")
            records = _ConfigChange(image, config, resource).records(asked.ops)
        except ApiError as error:
            set_error(answer, error)
        else:
            if records and not request.validate_only:
                result.groups.append(records)
    return result


def check_resource(image: MetadataImage, resource: ConfigResource) -> None:
    """Checks that the resource exists.

    Raises UnknownTopicOrPartitionError, BrokerIdNotRegisteredError, InvalidRequestError.
    """
    if resource.type == ConfigResourceType.TOPIC:
        if resource.name not in image.topics:
            raise UnknownTopicOrPartitionError(f"there is no topic {resource.name!r}")
    elif resource.type == ConfigResourceType.BROKER:
        name = resource.name
        if name and not (name.isascii() and name.isdigit()):
            raise InvalidRequestError(f"{name!r} is no broker's id")
        if name and int(name) not in image.brokers:
            raise BrokerIdNotRegisteredError(f"no broker {name} is registered")
    else:
        raise InvalidRequestError(
            f"resources of type {resource.type} have no settings here; 2 is a topic, 4 a broker"
        )


@dataclass(slots=True)
class _ConfigChange:
    """Change of the settings of one resource."""

    image: MetadataImage
    config: ServerConfig
    resource: ConfigResource

    def records(self, ops: Sequence[_Op]) -> list[pb.MetadataRecord]:
        """Returns the records, none for settings that have the wanted value; raises ApiError."""
        check_resource(self.image, self.resource)
        if len(ops) > RECORDS_PER_BATCH_MAX:
            raise PolicyViolationError(f"more than {RECORDS_PER_BATCH_MAX} settings at once")
        repeated = [name for name, n in Counter(op.name for op in ops).items() if n > 1]
        if repeated:
            raise InvalidRequestError(f"the setting {repeated[0]!r} is named more than once")
        before: Mapping[str, str] = self.image.configs.get(self.resource, EMPTY_MAP)
        after = dict(before)
        for op in ops:
            value = self._value_after(op, before.get(op.name))
            if value is None:
                after.pop(op.name, None)
            else:
                after[op.name] = value
        self._validate(after)
        self._check_tier_stays(before, after)
        self._check_min_isr_stays(before, after)
        kind, name = self.resource
        return [
            config_record(kind, name, key, after.get(key))
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        ]

    def _value_after(self, op: _Op, before: str | None) -> str | None:
        """Value of the setting after `op`; None if it is no longer set."""
        if not op.name:
            raise InvalidRequestError("a setting without a name")
        if op.type == _Request.DELETE:
            return None
        if op.type not in (_Request.SET, _Request.APPEND, _Request.SUBTRACT):
            raise InvalidRequestError(f"no operation {op.type} on settings")
        if not op.HasField("value"):
            raise InvalidRequestError(f"{op.name}: a value is needed, or DELETE")
        if op.type == _Request.SET:
            return op.value
        default = self._default(op.name)
        items = _items(default if before is None else before)
        named = _items(op.value)
        if op.type == _Request.APPEND:
            return ",".join([*items, *(item for item in named if item not in items)])
        return ",".join(item for item in items if item not in named)

    def _default(self, key: str) -> str:
        """Default of a list setting; raises InvalidConfigError if the setting is no list."""
        is_topic = self.resource.type == ConfigResourceType.TOPIC
        known: Mapping[str, dataclasses.Field[Any]] = (
            keys_of(TopicConfig) if is_topic else dynamic_settings()
        )
        field = known.get(key)
        source: TopicConfig | ServerConfig = (
            server_defaults(self.config, self.image.broker_configs(None))
            if is_topic
            else self.config
        )
        value = None if field is None else getattr(source, field.name)
        if field is not None and not isinstance(value, tuple):
            raise InvalidConfigError(f"{key} is no list: use SET")
        # An unknown name is refused with the nearest known one, in `_validate`.
        return "" if value is None else text_of(value)

    def _validate(self, settings: Mapping[str, str]) -> None:
        if self.resource.type == ConfigResourceType.TOPIC:
            validate_topic_configs(settings, self.config, self.image.broker_configs(None))
            return
        if self.resource.name and MIN_ISR in settings:
            # The controller's elections depend on it: one value has to hold for all (KIP-966).
            raise InvalidConfigError(
                f"{MIN_ISR} is for topics and for all brokers together, not for one of them"
            )
        validate_dynamic_configs(settings)

    def _check_tier_stays(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Refuses to forget a tier that has records; to delete them has to be said (KIP-950)."""
        if self.resource.type != ConfigResourceType.TOPIC or _is_true(after, _TIERED):
            return
        if _is_true(before, _TIERED) and not _is_true(after, _DELETES):
            raise InvalidConfigError(
                f"{_TIERED}=false would leave the records in the tier without an owner: set "
                f"{_DELETES}=true with it to delete them, or keep {_TIERED}=true and set "
                "remote.log.copy.disable=true to read them and copy no more"
            )
        if _is_true(before, _DELETES) and not _is_true(after, _DELETES):
            raise InvalidConfigError(
                f"{_DELETES} stays true while {_TIERED} is false: by it brokers delete what is "
                "left in the tier"
            )

    def _check_min_isr_stays(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        # Brokers with different values in server.properties would disagree on who is eligible.
        cluster = self.resource == ConfigResource.broker(None)
        if cluster and MIN_ISR in before and MIN_ISR not in after and self.image.elr_enabled:
            raise InvalidConfigError(
                f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled: set the value "
                "that is wanted"
            )


def _is_true(settings: Mapping[str, str], key: str) -> bool:
    return settings.get(key, "false").lower() == "true"


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of topics that the controller's own decisions depend on.

    Each is looked up alone, because a lookup happens for each partition of a fenced broker.
    Precedence: the topic's own value, the one for all brokers, this node's server.properties.
    """

    image: MetadataImage
    config: ServerConfig

    def unclean_allowed(self, topic: str) -> bool:
        value = self._text(topic, "unclean.leader.election.enable")
        if value is None:
            return self.config.unclean_leader_election_enable
        return value.lower() == "true"

    def min_isr(self, topic: str) -> int:
        value = self._text(topic, MIN_ISR)
        return self.config.min_insync_replicas if value is None else int(value)

    def _text(self, topic: str, key: str) -> str | None:
        own = self.image.topic_configs(topic).get(key)
        return self.image.broker_configs(None).get(key) if own is None else own
