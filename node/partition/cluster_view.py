"""The cluster as the published metadata shows it to this node: brokers, leaders, settings.

The view is a metadata publisher. It is registered before those that read it, so that all of them
see one image.

Settings of this broker and defaults of topics come from server.properties. Settings altered for all
brokers override them, and those altered for this broker override both (Kafka's
DynamicBrokerConfig).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

from node.partition.core import BrokerView
from node.runtime.settings import altered
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from tidemark.config import (
    ServerConfig,
    TopicConfig,
    altered_server,
    effective_topic_config,
    server_defaults,
)
from tidemark.errors import InvalidConfigError
from tidemark.types import ConfigResource, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")
SettingsListener = Callable[[ServerConfig], None]


class ClusterView:
    """One per broker. `image` is the latest published image, empty before the first update;
    `settings` are the broker's settings in force."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._resources = {ConfigResource.broker(None), ConfigResource.broker(config.node_id)}
        self._brokers: Mapping[int, BrokerView] = {}
        self._topic_defaults = server_defaults(config)
        self._topic_configs: dict[str, tuple[TopicConfig, Mapping[str, str], TopicConfig]] = {}
        self._listeners: list[SettingsListener] = []
        self.image: MetadataImage = EMPTY_IMAGE
        self.settings = config

    def subscribe(self, listener: SettingsListener) -> None:
        """Calls `listener` with the new settings after each change of this broker's settings."""
        self._listeners.append(listener)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Replaces the image; called by the metadata loader, in order."""
        self.image = image
        if delta.brokers_changed:
            self._brokers = {
                broker.broker_id: BrokerView(broker.epoch, broker.is_active, broker.rack or "")
                for broker in image.brokers.values()
            }
        for topic in delta.topics_deleted.values():
            self._topic_configs.pop(topic.name, None)
        if self.alters_broker(delta):
            self._alter_settings()

    def alters_broker(self, delta: MetadataDelta) -> bool:
        """Whether the delta changes settings of this broker, and thereby defaults of topics."""
        return not self._resources.isdisjoint(delta.configs_changed)

    def _alter_settings(self) -> None:
        before = self._topic_defaults.min_insync_replicas
        self._topic_defaults = altered(server_defaults, self._config, self.image)
        least, own = self._topic_defaults.min_insync_replicas, self._config.min_insync_replicas
        if least < own and least != before:
            # ELR begins with the controllers' value (KIP-966), which overrides a safer one.
            logger.warning(
                "min.insync.replicas is %d for the whole cluster, %d in this broker's "
                "server.properties is not used: tidemark configs alter --broker-defaults --set "
                "min.insync.replicas=%d if topics are to have it",
                least,
                own,
                own,
            )
        settings = altered(altered_server, self._config, self.image)
        if settings != self.settings:
            self.settings = settings
            for listener in self._listeners:
                listener(settings)

    def brokers(self) -> Mapping[int, BrokerView]:
        """Registered brokers by id; an update replaces the mapping, and never changes it."""
        return self._brokers

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        """(leader, epoch) of any partition of the cluster, leader -1 for none; None if it is
        unknown."""
        topic = self.image.topics.get(topic_partition.topic)
        found = None if topic is None else topic.partitions.get(topic_partition.partition)
        if found is None:
            return None
        return (-1 if found.leader is None else found.leader), found.leader_epoch

    def topic_id(self, topic: str) -> UUID | None:
        found = self.image.topics.get(topic)
        return None if found is None else found.topic_id

    @property
    def metadata_offset(self) -> int:
        """Offset of the image's last record, -1 before the first update."""
        return self.image.offset

    def topic_name(self, topic_id: UUID) -> str | None:
        topic = self.image.topics.by_id(topic_id)
        return None if topic is None else topic.name

    def topic_config(self, topic: str, image: MetadataImage | None = None) -> TopicConfig:
        """The effective settings of a topic, one object for all of its partitions.

        `image` is by default the latest published one. A setting that this version cannot read
        takes its default; the others hold.
        """
        own = (self.image if image is None else image).topic_configs(topic)
        if not own:
            return self._topic_defaults
        known = self._topic_configs.get(topic)
        if known is None or known[0] is not self._topic_defaults or known[1] != own:

            def skipped(error: InvalidConfigError) -> None:
                logger.error("settings of topic %s: %s; its default counts", topic, error)

            config = effective_topic_config(self._topic_defaults, own, skipped)
            self._topic_configs[topic] = known = (self._topic_defaults, own, config)
        return known[2]
