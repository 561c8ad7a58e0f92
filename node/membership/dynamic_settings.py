"""Settings of the broker itself that are altered while it runs (Kafka's DynamicBrokerConfig).

A metadata publisher: what was set for all brokers, then what was set for this one, lies over
server.properties, and whoever acts on it hears of each change. Settings that topics take their
defaults from are the replica manager's. A value that can not be read leaves all settings as they
are in server.properties, as at a start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quorum.image import MetadataDelta, MetadataImage
from tidemark.config import ServerConfig, altered_server
from tidemark.errors import TidemarkError
from tidemark.types import ConfigResource, ConfigResourceType

logger = logging.getLogger(__name__)

Listener = Callable[[ServerConfig], None]


class DynamicSettings:
    """`current` is what is in force; `listeners` are called with it after each change."""

    def __init__(self, config: ServerConfig, *listeners: Listener) -> None:
        self._static = config
        self._listeners = listeners
        self._resources = {
            ConfigResource(ConfigResourceType.BROKER, name) for name in ("", str(config.node_id))
        }
        self.current = config

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes over what the image says of this broker."""
        if not self._resources & delta.configs_changed.keys():
            return
        try:
            config = altered_server(
                self._static,
                image.broker_configs(None),
                image.broker_configs(self._static.node_id),
            )
        except TidemarkError as error:
            logger.error("settings of this broker: %s; using server.properties", error)
            config = self._static
        if config != self.current:
            self.current = config
            for listener in self._listeners:
                listener(config)
