"""Hosts partitions: makes the leaders, followers and logs that the metadata assigns to this node.

The metadata is the only authority. `on_metadata_update(delta, image)` brings every changed
partition to the state of the image: its log is created or deleted, its role set, its fetcher
assigned. A few partitions change at once, many in slices (`node.replication.reconciling`). The
change of one partition runs to its end without waiting, so a request sees the state before it or
after it. Requests are served by `node.serving`, on the partitions of the registry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import Protocol
from uuid import UUID

from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.manager.new_logs import NewLog
from commitlog.types import CorruptLogError
from node.membership.directory_assignments import DirectoryAssignments
from node.partition.cluster_view import ClusterView
from node.partition.core import Partition, Registration
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.replication.full_disk import ReplicasWithoutSpace, is_full
from node.replication.isr import IsrKeeper
from node.replication.peer_listener import PeerListener
from node.replication.reconciling import Changed, Reconciler
from node.replication.replica_fetcher import ReplicaFetchers
from node.replication.tier_restore import Histories, TierRestore
from node.runtime.clock import Clock
from node.runtime.tasks import cancel_all, spawn
from quorum.image import (
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
)
from quorum.image.types import LOST_DIRECTORY
from tidemark.config import ServerConfig
from tidemark.errors import FatalError, StorageError, TidemarkError
from tidemark.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_TOPIC = ConfigResourceType.TOPIC


class TierFollower(Histories, Protocol):
    """The remote log manager, as far as it follows leaders, followers and removed replicas."""

    def on_leadership_change(
        self,
        leaders: Mapping[TopicIdPartition, tuple[Log, int]],
        followers: Mapping[TopicIdPartition, Log],
    ) -> None: ...

    def segment_copyable(self, partition: TopicIdPartition) -> None: ...

    def tiering_switched(self, partition: TopicIdPartition) -> None: ...

    async def stop_partitions(
        self, partitions: Collection[TopicIdPartition], delete_remote: bool
    ) -> None: ...


class Hosting:
    """Keeps the registry's partitions as the metadata assigns them; one per broker. `cluster` must
    receive each image first."""

    def __init__(
        self,
        config: ServerConfig,
        cluster: ClusterView,
        logs: LogManager,
        partitions: PartitionRegistry,
        isr: IsrKeeper,
        fetchers: ReplicaFetchers,
        assignments: DirectoryAssignments,
        tier: TierFollower | None,
        clock: Clock,
        pool: Executor | None = None,
    ) -> None:
        """New logs are made in `pool`, if there is one; `stop` shuts it down."""
        self._pool = pool
        self._config = config
        self._cluster = cluster
        self._logs = logs
        self._partitions = partitions
        self._isr = isr
        self._fetchers = fetchers
        self._assignments = assignments
        self._tier = tier
        self._clock = clock
        self._saw_image = False
        self._looked_for_strays = False
        self._peer_listener = PeerListener(config)
        self._without_space = ReplicasWithoutSpace(self._make_again, partitions.fatal)
        self._restore = TierRestore(config, clock, partitions.fatal)
        self._given_up: set[TopicIdPartition] = set()
        self._no_log: dict[TopicIdPartition, UUID | None] = {}  # and where the metadata notes it
        self._leaving: set[asyncio.Task[None]] = set()
        self._unhosted: dict[TopicPartition, UUID] = {}  # topics of logs that are made here
        self._reconciler = Reconciler(
            logs.new_logs, self._apply, self._at_rest, pool, partitions.fatal
        )

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Applies a new image; called by the metadata loader, in order. `settled` waits for the
        rest of a large one.
        """
        note = self._reconciler.note
        state = Changed.STATE if self._saw_image else Changed.STATE | Changed.FIRST
        self._saw_image = True
        for topic in delta.topics_deleted.values():
            for index in topic.partitions:
                note(TopicIdPartition(topic.topic_id, topic.name, index), state)
        for change in delta.topics_changed.values():
            for index in sorted(change.partitions):
                note(TopicIdPartition(change.topic_id, change.name, index), state)
        all_topics = self._cluster.alters_broker(delta)
        names = {resource.name for resource in delta.configs_changed if resource.type == _TOPIC}
        for hosted in self._partitions if all_topics or names or delta.brokers_changed else ():
            if all_topics or hosted.topic_partition.topic in names:
                note(hosted.core.identity, Changed.SETTINGS)
            if not hosted.is_leader and hosted.core.leader in delta.brokers_changed:
                note(hosted.core.identity, Changed.PEERS)
        self._reconciler.run()

    async def settled(self) -> None:
        """Waits until every replica is in the state of the newest image."""
        await self._reconciler.settled()

    def _apply(self, changed: Mapping[TopicIdPartition, Changed]) -> None:
        """Brings replicas to the state of the newest image."""
        leaders: dict[TopicIdPartition, tuple[Log, int]] = {}
        followers: dict[TopicIdPartition, Log] = {}
        for identity, change in changed.items():
            if self._reconciler.is_opening(identity):
                continue
            registration = self._registration(identity)
            if change & (Changed.STATE | Changed.FIRST):
                is_first = Changed.FIRST in change
                self._reconcile(identity, registration, is_first, leaders, followers)
            hosted = self._partitions.find(identity.topic_partition)
            if hosted is None or hosted.core.identity != identity:
                continue
            if Changed.SETTINGS in change:
                self._reconfigure(hosted, leaders, followers)
            if Changed.PEERS in change and not hosted.is_leader and not hosted.offline:
                self._follow(hosted)
        if self._tier is not None and (leaders or followers):
            self._tier.on_leadership_change(leaders, followers)

    def _at_rest(self) -> None:
        if not self._looked_for_strays:
            self._looked_for_strays = True
            self._set_strays_aside(self._cluster.image)

    def _registration(self, identity: TopicIdPartition) -> PartitionRegistration | None:
        return self._cluster.image.topics.partition(identity.topic_id, identity.partition)

    def _set_strays_aside(self, image: MetadataImage) -> None:
        """Renames logs that the image does not assign here (strays). Called once, with the first
        image."""
        node_id = self._config.node_id
        strays = []
        for log in self._logs.logs():
            topic = image.topics.get(log.topic_partition.topic)
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
        registration: PartitionRegistration | None,
        is_first: bool,
        leaders: dict[TopicIdPartition, tuple[Log, int]],
        followers: dict[TopicIdPartition, Log],
    ) -> None:
        if registration is None or self._config.node_id not in registration.replicas:
            is_deleted = self._cluster.image.topics.by_id(identity.topic_id) is None
            self._stop(identity, topic_deleted=is_deleted)
            return
        hosted = self._partitions.find(identity.topic_partition)
        if hosted is not None and hosted.topic_id != identity.topic_id:
            self._stop(hosted.core.identity, topic_deleted=True)
            hosted = None
        try:
            hosted = hosted or self._host(identity, registration, is_first)
        except FatalError:
            raise
        except (StorageError, OSError) as error:
            self._partitions.offline[identity.topic_partition] = str(error)
            self._no_log[identity] = registration.directory_of(self._config.node_id)
            if is_full(error):
                self._without_space.add(identity)
                return
            logger.error("%s is offline: %s", identity.topic_partition, error)
            self._report_lost(identity, registration, error)
            return
        if hosted is None:
            return
        self._report_directory(identity, registration)
        if hosted.offline:
            return
        isr_before = hosted.core.isr
        new_epoch = hosted.core.apply(
            registration_of(registration), hosted.log.log_end_offset, self._clock.mono_ms()
        )
        hosted.core.log_end_offset = hosted.counted_end
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
            self._report_lost(identity, registration, error)
            return
        if not hosted.config.has_tier or hosted.core.leader is None:
            return
        if new_epoch and hosted.is_leader and not hosted.core.restoring:
            leaders[identity] = (hosted.log, hosted.core.leader_epoch)
        elif new_epoch:
            followers[identity] = hosted.log

    async def _make_again(self, identity: TopicIdPartition) -> bool:
        """Makes a replica for which there was no space; false if there still is none."""
        self._reconciler.note(identity, Changed.STATE)
        self._reconciler.run()
        await self._reconciler.settled()
        is_there = self._partitions.find(identity.topic_partition) is not None
        return is_there or self._registration(identity) is None

    def _host(
        self, identity: TopicIdPartition, registration: PartitionRegistration, is_first: bool
    ) -> HostedPartition | None:
        """Registers a replica with its log. If there is no log, has one made; the replica is
        registered when that is durable. Raises if the log cannot be opened or made."""
        topic_partition = identity.topic_partition
        config = self._cluster.topic_config(identity.topic)
        failure = self._reconciler.take_failure(topic_partition)
        if failure is not None:
            self._unhosted.pop(topic_partition, None)
            raise failure
        assigned = registration.directory_of(self._config.node_id)
        log = self._logs.get_or_plan(
            topic_partition,
            identity.topic_id,
            config,
            assigned=None if assigned == LOST_DIRECTORY else assigned,
            may_hold_data=self._may_hold_data(identity, registration, is_first),
            is_placed=assigned is not None,
            leader_epoch=registration.leader_epoch,
        )
        self._partitions.offline.pop(topic_partition, None)
        self._given_up.discard(identity)
        self._no_log.pop(identity, None)
        if isinstance(log, NewLog):
            self._unhosted[topic_partition] = identity.topic_id
            self._reconciler.make(identity, log)
            return None
        self._unhosted.pop(topic_partition, None)
        if config.remote_storage_enable and self._tier is None:
            logger.error(
                "%s has remote.storage.enable=true and this node has no tier: nothing is copied,"
                " and no local segment deleted, until remote.log.storage.system.enable=true here",
                topic_partition,
            )
        hosted = HostedPartition(
            Partition(
                identity=identity,
                node_id=self._config.node_id,
                brokers=self._cluster.brokers,
                min_insync_replicas=config.min_insync_replicas,
                lag_max_ms=self._config.replica_lag_time_max_ms,
            ),
            log,
            config,
            segment_copyable=None if self._tier is None else self._tier.segment_copyable,
            role_listener=self._partitions.role_listeners.get(identity.topic),
            watched=self._isr.watched,
            give_up=self._give_up,
        )
        end = log.log_end_offset
        hosted.core.on_truncate(end, max(log.high_watermark, log.log_start_offset))
        self._partitions.add(hosted)
        return hosted

    def _may_hold_data(
        self, identity: TopicIdPartition, registration: PartitionRegistration, is_first: bool
    ) -> bool:
        """Whether the metadata counts on committed records in this replica.

        A replica without a directory, assigned after this start, is new and has none. One that had
        a directory was elected without its log, because an operator gave that up.
        """
        node_id = self._config.node_id
        leads_anyway = registration.leader == node_id and registration.leader_recovery_state
        was_placed = self._no_log.get(identity) is not None
        if leads_anyway and was_placed and registration.directory_of(node_id) is None:
            return False
        if identity in self._given_up and registration.directory_of(node_id) != LOST_DIRECTORY:
            return True  # until the controller knows: this image may be older than its ISR
        is_old = (
            registration.directory_of(node_id) is not None
            or is_first
            or (
                identity.topic_partition in self._partitions.offline
                and identity not in self._without_space
            )
        )
        return is_old and registration.counts_on(node_id)

    def _report_directory(
        self, identity: TopicIdPartition, registration: PartitionRegistration
    ) -> None:
        """Reports the directory of a replica if the image has another one.

        A node with a single directory reports nothing: it stops when that directory fails, and its
        next registration shows whether it was replaced.
        """
        home = self._logs.directory_of(identity.topic_partition)
        actual = None if home is None else home.directory_id
        known = registration.directory_of(self._config.node_id)
        future = self._logs.moves.get(identity.topic_partition)
        if actual is None or actual == known or (future is not None and future.is_promised):
            return
        if known is not None or len(self._logs.directories) > 1:
            self._assignments.submit(identity, actual)

    def _report_lost(
        self, identity: TopicIdPartition, registration: PartitionRegistration, error: Exception
    ) -> None:
        """Reports the directory of a replica as lost, although only its log is unusable.

        For the controller both are the same: others lead, and the ISR continues without it. It
        knows of directories that are offline, but not that a replica without one may be in them.
        """
        known = registration.directory_of(self._config.node_id)
        is_told = isinstance(error, LogDirectoryOfflineError) and known is not None
        if not is_told and known != LOST_DIRECTORY:
            self._assignments.submit(identity, LOST_DIRECTORY)

    def _give_up(self, hosted: HostedPartition, error: CorruptLogError) -> bool:
        """Takes a replica with a damaged log offline, unless no other replica is in sync.

        It is reported as lost: others lead, and the ISR continues without it. Once the metadata
        says so and does not count on it, `_host` copies it anew from the leader.
        """
        registration = self._known(hosted.topic_partition)
        core = hosted.core
        others = frozenset(() if registration is None else registration.isr) & core.isr
        if core.pending is not None:
            others &= {member.broker_id for member in core.pending.new_isr}
        if not others - {self._config.node_id}:
            return False
        identity = core.identity
        self._given_up.add(identity)
        self._offline(hosted, error)
        asyncio.get_running_loop().call_soon(self._drop_damaged, identity, hosted, error)
        return True

    def _drop_damaged(
        self, identity: TopicIdPartition, hosted: HostedPartition, error: CorruptLogError
    ) -> None:
        topic_partition = identity.topic_partition
        if self._partitions.find(topic_partition) is not hosted:
            return
        self._partitions.remove(topic_partition)
        self._partitions.offline[topic_partition] = str(error)
        self._logs.refuse(topic_partition, StorageError(str(error)))
        registration = self._known(topic_partition)
        if registration is not None:
            self._report_lost(identity, registration, error)

    def _known(self, topic_partition: TopicPartition) -> PartitionRegistration | None:
        topic = self._cluster.image.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def directories_failed(self) -> None:
        """Takes the partitions of failed log directories offline; the others continue.

        Replicas that the controller does not place in such a directory are reported as lost
        (KIP-858).
        """
        node_id = self._config.node_id
        for topic_partition in self._logs.drop_offline():
            hosted = self._partitions.find(topic_partition)
            home = self._logs.lost_in(topic_partition)
            if hosted is None or home is None:
                continue
            self._offline(hosted, home.state.offline())
            known = self._known(topic_partition)
            if home.directory_id is not None and (
                known is None or known.directory_of(node_id) != home.directory_id
            ):
                self._assignments.submit(hosted.core.identity, LOST_DIRECTORY)

    def _lead(self, hosted: HostedPartition, new_epoch: bool) -> None:
        self._fetchers.unfollow(hosted.topic_partition)
        tier = self._tier
        if new_epoch and tier is not None:
            self._restore.begin(tier, hosted, lambda: self._restored(hosted, tier))
        if not hosted.core.restoring:
            self._begin_to_lead(hosted, new_epoch)

    def _restored(self, hosted: HostedPartition, tier: TierFollower) -> None:
        self._begin_to_lead(hosted, new_epoch=True)
        tier.on_leadership_change(
            {hosted.core.identity: (hosted.log, hosted.core.leader_epoch)}, {}
        )

    def _begin_to_lead(self, hosted: HostedPartition, new_epoch: bool) -> None:
        if not hosted.config.remote_storage_enable:
            hosted.drop_tiered_part()
        if new_epoch:
            hosted.log.epochs.assign(hosted.core.leader_epoch, hosted.log.log_end_offset)
            logger.info(
                "%s: leading in epoch %d from offset %d",
                hosted.topic_partition,
                hosted.core.leader_epoch,
                hosted.log.log_end_offset,
            )
        self._isr.watched.add(hosted)
        self._isr.submit(hosted.core.maybe_recover())
        hosted.core.maybe_advance_high_watermark(self._clock.mono_ms())
        hosted.committed()
        if new_epoch:
            hosted.role_changed()

    def _follow(self, hosted: HostedPartition) -> None:
        hosted.role_changed()
        leader = hosted.core.leader
        broker = None if leader is None else self._cluster.image.brokers.get(leader)
        endpoint = self._peer_listener.endpoint_of(broker)
        if leader is None or endpoint is None:
            self._fetchers.unfollow(hosted.topic_partition)
        else:
            self._fetchers.follow(hosted, leader, endpoint)

    def _stop(self, identity: TopicIdPartition, *, topic_deleted: bool = False) -> None:
        """Removes a replica and its log from this node.

        Its remote data is deleted only with the topic, by the last leader: after a reassignment the
        other replicas still need it.
        """
        hosted = self._partitions.find(identity.topic_partition)
        if hosted is None:
            if self._unhosted.get(identity.topic_partition) == identity.topic_id:
                del self._unhosted[identity.topic_partition]
                if self._reconciler.take_failure(identity.topic_partition) is None:
                    self._logs.delete(identity.topic_partition)
            self._partitions.offline.pop(identity.topic_partition, None)
            self._no_log.pop(identity, None)
            self._logs.forget_lost(identity.topic_partition)
            if identity in self._given_up:
                self._given_up.discard(identity)
                with suppress(LogDirectoryOfflineError):
                    self._logs.set_damaged_aside(identity.topic_partition)
        if hosted is None or hosted.topic_id != identity.topic_id:
            return
        led = hosted.is_leader
        self._partitions.remove(identity.topic_partition)
        self._fetchers.unfollow(identity.topic_partition)
        hosted.stop()
        self._leave_tier(identity, delete_remote=topic_deleted and led)
        self._logs.delete(identity.topic_partition)

    def _leave_tier(self, identity: TopicIdPartition, *, delete_remote: bool) -> None:
        if self._tier is not None:
            gone = self._stop_in_tier(self._tier, identity, delete_remote)
            task = spawn(f"leave the tier {identity}", gone, self._partitions.fatal)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _stop_in_tier(
        self, tier: TierFollower, identity: TopicIdPartition, delete_remote: bool
    ) -> None:
        """Ends the tier's work on a partition; retries with backoff while remote deletion fails."""
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
        hosted.fail(f"{hosted.topic_partition} is offline: {error}")
        self._leave_tier(hosted.core.identity, delete_remote=False)

    def _reconfigure(
        self,
        hosted: HostedPartition,
        leaders: dict[TopicIdPartition, tuple[Log, int]],
        followers: dict[TopicIdPartition, Log],
    ) -> None:
        """Applies changed settings to log and core; notes a topic that is tiered from now on."""
        before, config = hosted.config, self._cluster.topic_config(hosted.topic_partition.topic)
        hosted.reconfigure(config)
        if hosted.offline:
            return
        # A smaller min.insync.replicas may let the high watermark advance.
        if hosted.core.maybe_advance_high_watermark(self._clock.mono_ms()):
            hosted.committed()
        switched = config.remote_storage_enable != before.remote_storage_enable
        if switched or config.remote_log_delete_on_disable:  # off and on may come at once
            self._tiering_switched(hosted)
        if config.has_tier and not before.has_tier:
            if hosted.is_leader and not hosted.core.restoring:
                leaders[hosted.core.identity] = (hosted.log, hosted.core.leader_epoch)
            elif hosted.core.leader is not None:
                followers[hosted.core.identity] = hosted.log

    def _tiering_switched(self, hosted: HostedPartition) -> None:
        """Takes nothing for copied until the tier is looked at again. Where tiering is off from
        now on, the log loses its tiered part before any of it is deleted."""
        hosted.log.highest_remote_offset = -1
        if not hosted.config.remote_storage_enable and not hosted.core.restoring:
            hosted.drop_tiered_part()
        if self._tier is not None:
            self._tier.tiering_switched(hosted.core.identity)

    async def stop(self) -> None:
        """Stops following; the log manager closes hosted logs."""
        await self._reconciler.stop()
        await self._fetchers.stop()
        await self._restore.stop()
        await self._without_space.stop()
        await cancel_all(*self._leaving)
        if self._pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        for hosted in self._partitions:
            hosted.stop()


def registration_of(found: PartitionRegistration) -> Registration:
    """Returns the facts of the metadata that a partition's core applies."""
    return Registration(
        found.replicas,
        found.isr,
        found.leader,
        found.leader_epoch,
        found.partition_epoch,
        found.adding,
        bool(found.leader_recovery_state),
        found.elr,
    )
