"""The coordinators of a broker, put together: groups and transactions, and what they need."""

from __future__ import annotations

from collections import Counter

import grpc.aio

from node.coordination.groups import GroupCoordinator, group_topic
from node.coordination.internal_topics import CoordinatorTopic, InternalTopics
from node.coordination.leaderships import Leaderships
from node.coordination.marker_writer import MarkerWriter
from node.coordination.peers import BrokerPeers
from node.coordination.transactions import TransactionCoordinator, transaction_topic
from node.coordination.verification import TransactionVerifier
from node.membership.controller_calls import ControllerCaller
from node.partition.registry import PartitionRegistry
from node.runtime.clock import Clock
from node.runtime.tasks import OnFatal
from node.serving.produce import ProduceHandler
from node.serving.producer_ids import ProducerIdManager
from node.serving.throttling import Throttling
from quorum.image import MetadataDelta, MetadataImage
from quorum.services.admin_service import ImageSource
from tidemark.config import ServerConfig
from tidemark.types import GROUP_TOPIC, TRANSACTION_TOPIC


class Coordinators:
    """One per broker. `verifier` is there from the beginning, the rest after `begin`."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator

    def __init__(
        self,
        config: ServerConfig,
        images: ImageSource,
        client: ControllerCaller,
        partitions: PartitionRegistry,
        clock: Clock,
        on_fatal: OnFatal,
    ) -> None:
        self._config = config
        self._images = images
        self._partitions = partitions
        self._clock = clock
        self._on_fatal = on_fatal
        self._topics = InternalTopics(client, lambda name: name in images.image.topics, on_fatal)
        self._peers = BrokerPeers(config, images)
        self._of_groups = CoordinatorTopic(group_topic(config), self._topics, images)
        self._of_transactions = CoordinatorTopic(transaction_topic(config), self._topics, images)
        self.verifier = TransactionVerifier(partitions, self._of_transactions, self._peers)

    def begin(
        self, produce: ProduceHandler, producer_ids: ProducerIdManager, throttling: Throttling
    ) -> None:
        """Makes both coordinators, which append by `produce`."""
        self.groups = GroupCoordinator(
            self._config,
            self._images,
            self._of_groups,
            self._of_transactions,
            self.verifier,
            self._clock,
            throttling,
        )
        self.transactions = TransactionCoordinator(
            self._config,
            self._images,
            self._of_transactions,
            producer_ids,
            self._peers,
            self._clock,
            throttling,
            self._on_fatal,
        )
        writer = MarkerWriter(self._partitions, produce, self.groups.runtime, self._clock)
        self.transactions.serves(writer)
        listeners = self._partitions.role_listeners
        listeners[GROUP_TOPIC] = Leaderships(self.groups.runtime, produce).role_changed
        listeners[TRANSACTION_TOPIC] = Leaderships(self.transactions.runtime, produce).role_changed

    def add_to(self, server: grpc.aio.Server, listener: str) -> None:
        """Serves Groups and Transactions on a listener, TransactionMarkers where brokers meet."""
        self.groups.add_to(server, listener)
        serves_nodes = listener == self._config.inter_broker_listener
        self.transactions.add_to(server, listener, serves_nodes=serves_nodes)

    def counts(self) -> dict[str, Counter[str]]:
        """Groups and transactions by state, and the partitions that are coordinated here."""
        groups = [shard.counts() for _, shard in self.groups.runtime.shards()]
        transactions = [shard.counts() for _, shard in self.transactions.runtime.shards()]
        loaded = {GROUP_TOPIC: len(groups), TRANSACTION_TOPIC: len(transactions)}
        return {
            "groups": sum(groups, Counter()),
            "transactions": sum(transactions, Counter()),
            "partitions": Counter(loaded),
        }

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Publishes to the groups."""
        self.groups.on_metadata_update(delta, image)

    async def stop(self) -> None:
        """Drops all partitions, and ends the calls to other brokers."""
        await self.groups.stop()
        await self.transactions.stop()
        await self.verifier.stop()
        await self._topics.stop()
        await self._peers.close()
