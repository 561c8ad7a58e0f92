"""The listener on which a broker connects to its peers (inter.broker.listener.name)."""

from __future__ import annotations

import logging

from quorum.image import BrokerRegistration
from tidemark.config import ServerConfig
from tidemark.types import Endpoint

logger = logging.getLogger(__name__)


class PeerListener:
    """Finds a peer's endpoint. Without the setting any first listener of a peer serves."""

    def __init__(self, config: ServerConfig) -> None:
        self._name = config.inter_broker_listener
        self._is_set = bool(config.inter_broker_listener_name)
        self._told: dict[int, int] = {}  # broker epoch of peers whose lack was logged

    def endpoint_of(self, peer: BrokerRegistration | None) -> Endpoint | None:
        """The peer's endpoint; None if it is unknown or does not have the listener that is set."""
        if peer is None:
            return None
        found = peer.endpoint(self._name)
        if found is None and not self._is_set:
            return peer.endpoint()
        if found is None and self._told.get(peer.broker_id) != peer.epoch:
            self._told[peer.broker_id] = peer.epoch
            logger.error(
                "broker %d has no listener %s, which is inter.broker.listener.name here, only %s:"
                " what it leads is not fetched until it has one",
                peer.broker_id,
                self._name,
                ", ".join(listener.name for listener in peer.endpoints),
            )
        return found
