"""The replicas of a node: makes leaders and followers of what the metadata says, and serves
requests on them.

The metadata is the only authority: `on_metadata_update(delta, image)` brings every partition that
changed to the state the image asks for (log made or deleted, role taken, fetcher assigned). It runs
to its end without waiting, so a request sees either the state before or the one after. Requests go
to the parts: `producer`, `fetcher`, `offsets`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol
from uuid import UUID

from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from node.partition.core import BrokerView, Partition, Registration
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.replication.isr import IsrKeeper
from node.replication.replica_fetcher import ReplicaFetchers
from node.runtime.clock import Clock
from node.runtime.tasks import cancel_all, spawn
from node.serving.fetching import FetchHandler
from node.serving.offsets import OffsetFinder
from node.serving.produce import ProduceHandler
from node.serving.tier_reads import TierReads
from quorum.image import (
    EMPTY_IMAGE,
    ConfigResource,
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
)
from quorum.image.types import LOST_DIRECTORY
from tidemark.config import ServerConfig, TopicConfig, effective_topic_config, server_defaults
from tidemark.errors import FatalError, StorageError, TidemarkError
from tidemark.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_TOPIC = ConfigResourceType.TOPIC


class TierFollower(Protocol):
    """What the remote log manager is told of leaders, followers, and replicas that go."""

    def on_leadership_change(
        self,
        leaders: Mapping[TopicIdPartition, tuple[Log, int]],
        followers: Mapping[TopicIdPartition, Log],
    ) -> None: ...

    def segment_copyable(self, partition: TopicIdPartition) -> None: ...

    async def stop_partitions(
        self, partitions: Collection[TopicIdPartition], delete_remote: bool
    ) -> None: ...


class ReplicaManager:
    """All hosted partitions; one per broker."""

    def __init__(
        self,
        config: ServerConfig,
        logs: LogManager,
        partitions: PartitionRegistry,
        isr: IsrKeeper,
        fetchers: ReplicaFetchers,
        tier: TierFollower | None,
        remote_reads: TierReads,
        offsets: OffsetFinder,
        clock: Clock,
    ) -> None:
        self._config = config
        self._defaults = server_defaults(config)
        self._configs: dict[str, tuple[TopicConfig, Mapping[str, str], TopicConfig]] = {}
        self._logs = logs
        self._clock = clock
        self._fetchers = fetchers
        self._tier = tier
        self._own_resources = {ConfigResource.broker(None), ConfigResource.broker(config.node_id)}
        self._saw_image = False
        self._leaving: set[asyncio.Task[None]] = set()
        self.partitions = partitions
        self.isr = isr
        self.image: MetadataImage = EMPTY_IMAGE
        self.brokers: dict[int, BrokerView] = {}
        self.producer = ProduceHandler(partitions, clock)
        self.fetcher = FetchHandler(partitions, isr, remote_reads, clock)
        self.offsets = offsets
        self.tell_directory: Callable[[TopicIdPartition, UUID], None] = lambda _identity, _id: None
        partitions.leader_in_image = self._leader_in_image
        partitions.topic_name = self._topic_name

    # --- what the metadata says ----------------------------------------------------------------

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes over a new image; called by the metadata loader, in order."""
        self.image = image
        if delta.brokers_changed or not self._saw_image:
            self.brokers = {
                broker.broker_id: BrokerView(broker.epoch, broker.is_active)
                for broker in image.brokers.values()
            }
        all_topics = bool(self._own_resources & delta.configs_changed.keys())
        if all_topics:
            self._defaults = self._altered_defaults()
        leaders: dict[TopicIdPartition, tuple[Log, int]] = {}
        followers: dict[TopicIdPartition, Log] = {}
        for topic in delta.topics_deleted.values():
            self._configs.pop(topic.name, None)
            for index in topic.partitions:
                self._stop(TopicIdPartition(topic.topic_id, topic.name, index), topic_deleted=True)
        for change in delta.topics_changed.values():
            for index, registration in sorted(change.partitions.items()):
                identity = TopicIdPartition(change.topic_id, change.name, index)
                self._reconcile(identity, registration, leaders, followers)
        self._update_configs(delta, all_topics, leaders, followers)
        if delta.brokers_changed:
            self._peers_changed(set(delta.brokers_changed))
        if self._tier is not None and (leaders or followers):
            self._tier.on_leadership_change(leaders, followers)
        if not self._saw_image:
            self._saw_image = True
            self._set_strays_aside()

    def _set_strays_aside(self) -> None:
        """Once at start: logs that no partition of the image claims."""
        node_id = self._config.node_id
        strays = []
        for log in self._logs.logs():
            topic = self.image.topics.get(log.topic_partition.topic)
            registration = None
            if topic is not None and log.topic_id in (None, topic.topic_id):
                registration = topic.partitions.get(log.topic_partition.partition)
            if registration is None or node_id not in registration.replicas:
                strays.append(log.topic_partition)
        for topic_partition in strays:
            logger.warning("%s is in no topic of this node: set aside as stray", topic_partition)
            self._logs.set_aside(topic_partition)

    def _reconcile(
        self,
        identity: TopicIdPartition,
        registration: PartitionRegistration,
        leaders: dict[TopicIdPartition, tuple[Log, int]],
        followers: dict[TopicIdPartition, Log],
    ) -> None:
        if self._config.node_id not in registration.replicas:
            self._stop(identity)
            return
        hosted = self.partitions.find(identity.topic_partition)
        if hosted is not None and hosted.topic_id != identity.topic_id:
            self._stop(hosted.core.identity, topic_deleted=True)
            hosted = None
        try:
            hosted = hosted or self._host(identity, registration)
        except FatalError:
            raise
        except (StorageError, OSError) as error:
            logger.error("%s is offline: %s", identity.topic_partition, error)
            self.partitions.offline[identity.topic_partition] = str(error)
            self._tell_lost(identity, registration, error)
            return
        self._tell_directory(identity, registration)
        if hosted.offline:
            return
        isr_before = hosted.core.isr
        new_epoch = hosted.core.apply(
            _registration(registration), hosted.log.log_end_offset, self._clock.mono_ms()
        )
        try:
            if hosted.is_leader:
                self._lead(hosted, new_epoch)
                if isr_before - hosted.core.isr:
                    hosted.isr_shrank()
            else:
                self._follow(hosted)
        except FatalError:
            raise
        except (StorageError, OSError) as error:
            self._offline(hosted, error)
            self._tell_lost(identity, registration, error)
            return
        if not hosted.config.remote_storage_enable or hosted.core.leader is None:
            return
        if new_epoch and hosted.is_leader:
            leaders[identity] = (hosted.log, hosted.core.leader_epoch)
        elif new_epoch:
            followers[identity] = hosted.log

    def _host(
        self, identity: TopicIdPartition, registration: PartitionRegistration
    ) -> HostedPartition:
        """Opens or makes the log; a log that can not be opened leaves an offline partition."""
        config = self.topic_config(identity.topic, self.image)
        core = Partition(
            identity=identity,
            node_id=self._config.node_id,
            brokers=lambda: self.brokers,
            min_insync_replicas=config.min_insync_replicas,
            lag_max_ms=self._config.replica_lag_time_max_ms,
        )
        log = self._logs.get_or_create(
            identity.topic_partition,
            identity.topic_id,
            config,
            assigned=registration.directory_of(self._config.node_id),
            may_hold_data=self._may_hold_data(identity.topic_partition, registration),
        )
        hosted = HostedPartition(core, log, config, watched=self.isr.watched)
        self._set_nudge(hosted)
        core.on_truncate(log.log_end_offset, max(log.high_watermark, log.log_start_offset))
        self.partitions.add(hosted)
        return hosted

    def _may_hold_data(
        self, topic_partition: TopicPartition, registration: PartitionRegistration
    ) -> bool:
        """Does the metadata take this replica for one that has the committed records? One that has
        no directory yet, and is not from before this start, is new: it has none."""
        node_id = self._config.node_id
        is_old = (
            registration.directory_of(node_id) is not None
            or not self._saw_image
            or topic_partition in self.partitions.offline
        )
        counted_on = (*registration.isr, *registration.elr, *registration.last_known_elr)
        return is_old and node_id in counted_on

    def _tell_directory(
        self, identity: TopicIdPartition, registration: PartitionRegistration
    ) -> None:
        """Has the controller know the directory of a replica, where the image says another one. A
        node with a single directory has nothing to tell: it stops when that fails."""
        home = self._logs.directory_of(identity.topic_partition)
        actual = None if home is None else home.directory_id
        known = registration.directory_of(self._config.node_id)
        future = self._logs.moves.get(identity.topic_partition)
        if actual is None or actual == known or (future is not None and future.is_promised):
            return
        if known is not None or len(self._logs.directories) > 1:
            self.tell_directory(identity, actual)

    def _tell_lost(
        self, identity: TopicIdPartition, registration: PartitionRegistration, error: Exception
    ) -> None:
        """A log alone is of no use, its directory works: to the controller that is the same as a
        directory that it did not know of, so that others lead and the ISR goes on."""
        known = registration.directory_of(self._config.node_id)
        if not isinstance(error, LogDirectoryOfflineError) and known != LOST_DIRECTORY:
            self.tell_directory(identity, LOST_DIRECTORY)

    def directories_failed(self) -> None:
        """Log directories went offline: their partitions do, the others go on. What the controller
        does not know to lie there, it is told to be lost (KIP-858)."""
        node_id = self._config.node_id
        for topic_partition in self._logs.drop_offline():
            hosted = self.partitions.find(topic_partition)
            home = self._logs.lost_in(topic_partition)
            if hosted is None or home is None:
                continue
            self._offline(hosted, home.state.offline())
            topic = self.image.topics.get(topic_partition.topic)
            known = None if topic is None else topic.partitions.get(topic_partition.partition)
            if home.directory_id is not None and (
                known is None or known.directory_of(node_id) != home.directory_id
            ):
                self.tell_directory(hosted.core.identity, LOST_DIRECTORY)

    def _lead(self, hosted: HostedPartition, new_epoch: bool) -> None:
        self._fetchers.unfollow(hosted.topic_partition)
        if new_epoch:
            hosted.log.epochs.assign(hosted.core.leader_epoch, hosted.log.log_end_offset)
            logger.info(
                "%s: leading in epoch %d from offset %d",
                hosted.topic_partition,
                hosted.core.leader_epoch,
                hosted.log.log_end_offset,
            )
        self.isr.watched.add(hosted)
        self.isr.submit(hosted.core.maybe_recover())
        hosted.core.maybe_advance_high_watermark(self._clock.mono_ms())
        hosted.committed()
        if new_epoch:
            hosted.role_changed()

    def _follow(self, hosted: HostedPartition) -> None:
        hosted.role_changed()
        leader = hosted.core.leader
        broker = None if leader is None else self.image.brokers.get(leader)
        endpoint = None if broker is None else broker.endpoint()
        if leader is None or endpoint is None:
            self._fetchers.unfollow(hosted.topic_partition)
        else:
            self._fetchers.follow(hosted, leader, endpoint)

    def _peers_changed(self, changed: set[int]) -> None:
        """A peer may have come back elsewhere: its followers' fetchers learn the endpoint."""
        for hosted in self.partitions:
            if not hosted.is_leader and hosted.core.leader in changed and not hosted.offline:
                self._follow(hosted)

    def _stop(self, identity: TopicIdPartition, *, topic_deleted: bool = False) -> None:
        """The replica leaves this node with its log. What is in the tier goes only with the topic,
        and by its last leader: after a reassignment the other replicas still need it."""
        hosted = self.partitions.find(identity.topic_partition)
        if hosted is None:
            self.partitions.offline.pop(identity.topic_partition, None)
            self._logs.forget_lost(identity.topic_partition)
        if hosted is None or hosted.topic_id != identity.topic_id:
            return
        led = hosted.is_leader
        self.partitions.remove(identity.topic_partition)
        self._fetchers.unfollow(identity.topic_partition)
        hosted.stop()
        self._tell_tier_to_leave(identity, delete_remote=topic_deleted and led)
        self._logs.delete(identity.topic_partition)

    def _tell_tier_to_leave(self, identity: TopicIdPartition, *, delete_remote: bool) -> None:
        if self._tier is not None:
            gone = self._leave_tier(self._tier, identity, delete_remote)
            task = spawn(f"leave the tier {identity}", gone, self.partitions.fatal)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave_tier(
        self, tier: TierFollower, identity: TopicIdPartition, delete_remote: bool
    ) -> None:
        """Tells the tier, again and again while remote deletion fails."""
        backoff_ms = self._config.remote_log_manager_task_retry_backoff_ms
        while True:
            try:
                await tier.stop_partitions((identity,), delete_remote)
                return
            except FatalError:
                raise
            except TidemarkError as error:
                logger.warning("leaving the tier with %s: %s", identity, error)
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(
                2 * backoff_ms, self._config.remote_log_manager_task_retry_backoff_max_ms
            )

    def _offline(self, hosted: HostedPartition, error: Exception) -> None:
        logger.error("%s is offline: %s", hosted.topic_partition, error)
        self._fetchers.unfollow(hosted.topic_partition)
        hosted.segment_copyable = None
        hosted.fail(f"{hosted.topic_partition} is offline: {error}")
        self._tell_tier_to_leave(hosted.core.identity, delete_remote=False)

    def _update_configs(
        self,
        delta: MetadataDelta,
        all_topics: bool,
        leaders: dict[TopicIdPartition, tuple[Log, int]],
        followers: dict[TopicIdPartition, Log],
    ) -> None:
        """Settings changed: logs and cores take them over, and the tier hears of topics that are
        tiered from now on."""
        names = {resource.name for resource in delta.configs_changed if resource.type == _TOPIC}
        configs: dict[str, TopicConfig] = {}
        for hosted in self.partitions if all_topics or names else ():
            topic = hosted.topic_partition.topic
            if not all_topics and topic not in names:
                continue
            if topic not in configs:
                configs[topic] = self.topic_config(topic, self.image)
            before, config = hosted.config, configs[topic]
            hosted.config = hosted.log.config = config
            hosted.core.min_insync_replicas = config.min_insync_replicas
            self._set_nudge(hosted)
            if hosted.offline:
                continue
            # A smaller min.insync.replicas may let the watermark go on.
            if hosted.core.maybe_advance_high_watermark(self._clock.mono_ms()):
                hosted.committed()
            if config.remote_storage_enable and not before.remote_storage_enable:
                if hosted.is_leader:
                    leaders[hosted.core.identity] = (hosted.log, hosted.core.leader_epoch)
                elif hosted.core.leader is not None:
                    followers[hosted.core.identity] = hosted.log

    def _altered_defaults(self) -> TopicConfig:
        """What topics take that set nothing themselves: server.properties, and what was altered
        since."""
        image = self.image
        try:
            return server_defaults(
                self._config, image.broker_configs(None), image.broker_configs(self._config.node_id)
            )
        except TidemarkError as error:
            logger.error("settings of this broker: %s; using server.properties", error)
            return server_defaults(self._config)

    def _set_nudge(self, hosted: HostedPartition) -> None:
        tiered = self._tier is not None and hosted.config.remote_storage_enable
        hosted.segment_copyable = self._tier.segment_copyable if self._tier and tiered else None

    def topic_config(self, topic: str, image: MetadataImage) -> TopicConfig:
        """The topic's effective settings, one object for all of its partitions; a setting that this
        version can not read takes its default, and only that one."""
        own = image.topic_configs(topic)
        if not own:
            return self._defaults
        known = self._configs.get(topic)
        if known is None or known[0] is not self._defaults or known[1] != own:
            config = effective_topic_config(
                self._defaults,
                own,
                lambda error: logger.error(
                    "settings of topic %s: %s; its default counts", topic, error
                ),
            )
            self._configs[topic] = known = (self._defaults, own, config)
        return known[2]

    # --- questions -----------------------------------------------------------------------------

    def _leader_in_image(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        topic = self.image.topics.get(topic_partition.topic)
        found = None if topic is None else topic.partitions.get(topic_partition.partition)
        if found is None:
            return None
        return (-1 if found.leader is None else found.leader), found.leader_epoch

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self.image.topics.by_id(topic_id)
        return None if topic is None else topic.name

    async def stop(self) -> None:
        """Stops following; hosted logs are closed by the log manager."""
        await self._fetchers.stop()
        await cancel_all(*self._leaving)
        for hosted in self.partitions:
            hosted.stop()


def _registration(found: PartitionRegistration) -> Registration:
    return Registration(
        found.replicas,
        found.isr,
        found.leader,
        found.leader_epoch,
        found.partition_epoch,
        found.adding,
        bool(found.leader_recovery_state),
    )
