"""Settings that are altered while a node without a broker runs.

A broker follows them by its `ClusterView`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from quorum.image import MetadataDelta, MetadataImage
from tidemark.config import ServerConfig, altered_server
from tidemark.errors import TidemarkError

logger = logging.getLogger(__name__)

T = TypeVar("T")


def altered(combine: Callable[..., T], config: ServerConfig, image: MetadataImage) -> T:
    """Combines server.properties with the altered settings; without them if one is not valid."""
    of_all, own = (image.broker_configs(i) for i in (None, config.node_id))
    try:
        return combine(config, of_all, own)
    except TidemarkError as error:
        logger.error("settings of this node: %s; using server.properties", error)
        return combine(config)


class FollowedSettings:
    """A metadata publisher that calls `listener` with each changed state of the settings."""

    def __init__(self, config: ServerConfig, listener: Callable[[ServerConfig], None]) -> None:
        self._config = config
        self._listener = listener
        self._settings = config

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Called by the metadata loader, in order."""
        if not delta.configs_changed:
            return
        settings = altered(altered_server, self._config, image)
        if settings != self._settings:
            self._settings = settings
            self._listener(settings)
