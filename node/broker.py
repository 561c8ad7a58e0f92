"""A broker: its logs, partitions, fetchers, lifecycle and services, put together.

Order of a start:

1. Raft runs, so metadata arrives.
2. The listeners serve; health says NOT_SERVING.
3. The broker registers, and waits until the image contains the registration.
4. Logs are opened with their topics' settings, and recovered after an unclean stop.
5. The replicas of the image are hosted.
6. Heartbeats ask to be unfenced; once the controller agrees, health says SERVING.

A stop goes the other way round, after the controller has moved leaderships away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.reserve import Reserve
from commitlog.manager.manager import LogManager
from node.coordination.coordinators import Coordinators
from node.membership.directory_assignments import DirectoryAssignments
from node.membership.identity import BrokerIdentity
from node.membership.lifecycle import BrokerLifecycle
from node.metrics.harms import restart_harms
from node.partition.cluster_view import ClusterView
from node.partition.registry import PartitionRegistry
from node.quotas.clients import ClientQuotas
from node.quotas.replication import FOLLOWER, LEADER, ReplicationThrottle
from node.replication.client import GrpcReplicationClient
from node.replication.hosting import Hosting
from node.replication.isr import IsrKeeper
from node.replication.replica_fetcher import ReplicaFetcher, ReplicaFetchers
from node.replication.tier_bootstrap import TierBootstrap
from node.runtime.clock import Clock
from node.runtime.storage import NodeStorage
from node.runtime.tasks import OnFatal, cancel_all, spawn
from node.serving.broker_admin import BrokerLogDirs
from node.serving.fetching import FetchHandler
from node.serving.listeners import BrokerListeners
from node.serving.log_service import RequestHandlers
from node.serving.offsets import OffsetFinder
from node.serving.produce import ProduceHandler
from node.serving.producer_ids import ProducerIdManager
from node.serving.read_plans import ReadPlans
from node.serving.record_deletion import RecordDeleter
from node.serving.throttling import Throttling
from node.serving.tier_reads import TierReads
from node.upkeep.background import BackgroundWork
from node.upkeep.directory_mover import DirectoryMover
from quorum.replica.client import RaftClient
from quorum.replica.loader import MetadataLoader
from quorum.replica.settings import controller_channels
from quorum.services.admin_service import AdminNode
from quorum.services.controller_client import ControllerClient
from tidemark.config import ServerConfig, TopicConfig
from tidemark.errors import FatalError
from tidemark.types import Endpoint, TopicPartition
from tidemark.wire.metering import RequestMeters
from tidemark.wire.network import Channels
from tiering.manager import RemoteLogManager

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)

_PATIENCE_S = 5
_COLD_READ_THREADS = 8
_FLUSH_THREADS = 8
_LOG_CHANGE_THREADS = 2  # so that the making of many logs delays no truncation
_STILL_STARTING = (
    "not ready yet: logs are opened and recovered, and the record kernels loaded (the very first"
    " start of an installation compiles them, for a minute or two)"
)


class BrokerServer:
    """One per process. Call `start`, then `controlled_shutdown` and `stop`."""

    def __init__(
        self,
        config: ServerConfig,
        storage: NodeStorage,
        raft: RaftClient,
        loader: MetadataLoader,
        clock: Clock,
        on_fatal: OnFatal,
        meters: RequestMeters | None = None,
    ) -> None:
        """`meters` count the requests of the whole node."""
        self._config = config
        self._storage = storage
        self._raft = raft
        self._loader = loader
        self._on_fatal = on_fatal
        self._tasks: list[asyncio.Task[None]] = []
        self._client = ControllerClient(raft.leader_endpoint, controller_channels(config))
        self._logs = self._log_manager(clock)
        self._cluster = ClusterView(config)
        self._tier = make_tier(config, clock, storage, self._cluster, on_fatal)
        self._tier_reads = TierReads(
            self._tier, config.remote_fetch_max_wait_ms, config.request_timeout_ms
        )
        self._logs_open = False
        self._identity = BrokerIdentity(config.node_id)
        self.partitions = PartitionRegistry(config.node_id, self._cluster, on_fatal)
        self.lifecycle = BrokerLifecycle(
            config,
            self._identity,
            storage.cluster_id,
            [d.directory_id for d in self._logs.online_directories if d.directory_id is not None],
            storage.previous_broker_epoch(config),
            self._client,
            loader,
        )
        self._assignments = DirectoryAssignments(self._identity, self._client)
        isr = IsrKeeper(
            self._identity, self.partitions, self._client, clock, config.request_timeout_ms
        )
        log_changes = ThreadPoolExecutor(_LOG_CHANGE_THREADS, "log-changes")
        self._hosting = Hosting(
            config,
            self._cluster,
            self._logs,
            self.partitions,
            isr,
            self._replica_fetchers(clock, log_changes),
            self._assignments,
            self._tier,
            clock,
            log_changes,
        )
        self._background = BackgroundWork(config, self._logs, self.partitions, isr, clock, on_fatal)
        self._mover = DirectoryMover(
            config,
            self._logs,
            self.partitions,
            self._background.cleaner,
            self._assignments,
            on_fatal,
        )
        coordinators = Coordinators(config, loader, self._client, self.partitions, clock, on_fatal)
        handlers = self._request_handlers(isr, clock, coordinators, meters or RequestMeters())
        loader.add_publisher(coordinators)
        self._listeners = BrokerListeners(handlers, self._admin_node(), (coordinators,))

    def _log_manager(self, clock: Clock) -> LogManager:
        loop = asyncio.get_running_loop()
        return LogManager(
            self._storage.log_directories(self._config),
            self._config,
            now_ms=clock.wall_ms,
            topic_config=self._topic_config,
            locked=True,
            vital=self._config.metadata_directory,
            known_replica=self._replica_in_image,
            is_topic=lambda topic_id: self._loader.image.topics.by_id(topic_id) is not None,
            directory_failed=lambda d: loop.call_soon_threadsafe(self._directory_failed, d),
        )

    def _keep_room(self, reserve: Reserve) -> None:
        """Refuses appends in the metadata log's directory while its reserve is given back.

        Not until logs are open: on a disk that is full their recovery writes indexes, and only
        open logs have a retention that makes space.
        """
        for directory in self._logs.directories:
            if directory.path == self._config.metadata_directory:
                reserve.watch(partial(setattr, directory.state, "refuses_appends"))

    def _request_handlers(
        self,
        isr: IsrKeeper,
        clock: Clock,
        coordinators: Coordinators,
        meters: RequestMeters,
    ) -> RequestHandlers:
        config = self._config
        quotas = ClientQuotas(config.quota_window_num, config.quota_window_size_seconds)
        self._loader.add_publisher(quotas)
        timeout_ms = config.remote_list_offsets_request_timeout_ms
        flushes = ThreadPoolExecutor(_FLUSH_THREADS, "log-flushes")
        produce = ProduceHandler(self.partitions, clock, flushes, coordinators.verifier)
        producer_ids = ProducerIdManager(self._identity, self._client)
        throttling = Throttling(quotas)
        coordinators.begin(produce, producer_ids, throttling)
        return RequestHandlers(
            produce,
            FetchHandler(
                self.partitions,
                isr,
                self._tier_reads,
                clock,
                selects_closest=self._config.selects_closest_replica,
                throttle=self._replication_throttle(LEADER),
                cold_reads=ThreadPoolExecutor(_COLD_READ_THREADS, "cold-reads"),
            ),
            OffsetFinder(self.partitions, self._tier, timeout_ms),
            RecordDeleter(self.partitions),
            producer_ids,
            throttling,
            self.partitions.is_opening,
            coordinators.transactions.init_producer_id,
            ReadPlans(self.partitions, self._tier),
            meters,
        )

    def _replica_fetchers(self, clock: Clock, pool: Executor) -> ReplicaFetchers:
        timeout_ms = self._config.request_timeout_ms
        bootstrap = None
        if self._tier is not None:
            bootstrap = TierBootstrap(
                self._tier,
                timeout_ms,
                lambda: self._cluster.settings.follower_fetch_last_tiered_offset_enable,
            )

        throttle = self._replication_throttle(FOLLOWER)
        config = self._config
        channels = Channels(config.channel_security(config.inter_broker_listener))

        def make(endpoint: Endpoint) -> ReplicaFetcher:
            return ReplicaFetcher(
                self._config,
                self._identity,
                self._storage.cluster_id,
                GrpcReplicationClient(endpoint, channels),
                bootstrap,
                self._on_fatal,
                clock,
                throttle,
                pool,
            )

        return ReplicaFetchers(make)

    def _replication_throttle(self, side: str) -> ReplicationThrottle:
        throttle = ReplicationThrottle(side, self._config)
        self._cluster.subscribe(throttle.reconfigure)
        return throttle

    def _directory_failed(self, directory: LogDirectory) -> None:
        """Takes the partitions of a failed directory offline and reports it to the controller.

        The process ends if no directory is left, or if the metadata log is in the failed one
        (KIP-112, KIP-858).
        """
        self._hosting.directories_failed()
        if self._logs.has_failed:
            left = self._logs.online_directories
            why = "the metadata log is in there" if left else "no other one is left"
            self._on_fatal(FatalError(f"{directory.state.offline()} ({why})"))
        elif directory.directory_id is not None:
            self.lifecycle.directory_failed(directory.directory_id)
            reported = self.lifecycle.wait_until_reported()
            self._tasks.append(spawn(f"tell of {directory.path}", reported, self._on_fatal))

    @property
    def is_ready(self) -> bool:
        """Whether the controller has unfenced this broker."""
        return self.lifecycle.unfenced.is_set()

    @property
    def is_started(self) -> bool:
        """Whether logs are open and recovered."""
        return self._logs_open

    def families(self, wall_ms: int) -> Iterator[Metric]:
        """Metrics of the partitions, the memory and the tier of this broker."""
        from node.metrics.families import of_kafka
        from node.metrics.requests import of_counts, of_sessions
        from node.metrics.sources import of_memory, of_partitions, of_topics
        from node.metrics.tier import of_tiered_topics
        from node.metrics.upkeep import of_isr, of_upkeep

        hosted = list(self.partitions)
        yield from of_partitions(hosted, self.partitions.offline)
        yield from of_topics(hosted)
        yield from of_memory(self._listeners.requests, self._listeners.answers)
        yield of_sessions(self._listeners.meters)
        yield from of_counts(self._listeners.counts())
        yield from of_isr(self._background.isr)
        yield from of_upkeep(self._background.scrubber, self._background.cleaner)
        if self._tier is not None:
            bean = "kafka.log.remote:type=RemoteLogManager (KIP-405, KIP-963)"
            gauges = self._tier.gauges()
            yield from of_kafka("remote", bean, self._tier.report(wall_ms, gauges))
            yield from of_tiered_topics(gauges.topics, self._tier.metrics.topics)

    def directories(self) -> dict[str, bool]:
        """Whether a log directory serves, by path."""
        return {str(each.path): each.is_online for each in self._logs.directories}

    def restart_harms(self) -> list[str]:
        """The partitions that could not be written to while this broker is down."""
        image = self._loader.image
        return restart_harms(
            image,
            self._config.node_id,
            lambda topic: self._cluster.topic_config(topic, image).min_insync_replicas,
        )

    def _topic_config(self, topic: str) -> TopicConfig | None:
        """Settings of a topic whose log is being opened; None if the image has no such topic."""
        if topic not in self._loader.image.topics:
            return None
        return self._cluster.topic_config(topic, self._loader.image)

    def _replica_in_image(self, partition: TopicPartition) -> tuple[UUID, UUID | None] | None:
        """The topic id of a partition and the directory assigned to its replica here."""
        topic = self._loader.image.topics.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or found is None:
            return None
        return topic.topic_id, found.directory_of(self._config.node_id)

    async def start(self, reserve: Reserve) -> None:
        """Starts serving and registering; returns before the broker is ready. `reserve`: of the
        directory that has the metadata log.
        """
        # First, as it takes longest. Later the first produce would load them on the loop.
        kernels = spawn("record kernels", _load_kernels(), self._on_fatal)
        self._tasks.append(kernels)
        await self._listeners.start()
        self._tasks.append(spawn("lifecycle", self.lifecycle.run(), self._on_fatal))
        self._tasks.append(spawn("directory assignments", self._assignments.run(), self._on_fatal))
        ready = self._become_ready(reserve, kernels)
        self._tasks.append(spawn("become ready", ready, self._on_fatal))
        self._tasks.append(spawn("health", self._keep_health(), self._on_fatal))

    def _admin_node(self) -> AdminNode:
        return AdminNode(
            config=self._config,
            cluster_id=self._storage.cluster_id,
            images=self._loader,
            quorum=self._raft,
            client=self._client,
            log_dirs=BrokerLogDirs(
                partitions=self.partitions,
                logs=self._logs,
                tier=self._tier,
                mover=self._mover,
                uncleanable=self._background.cleaner.uncleanable,
            ),
        )

    async def _become_ready(self, reserve: Reserve, kernels: asyncio.Task[None]) -> None:
        """Opens the logs and hosts the replicas of the image, then asks to be unfenced.

        Waits first until the image contains this broker's registration: settings of topics decide
        how logs are opened.
        """
        await self.lifecycle.registered.wait()
        await self._loader.wait_for_offset(self._identity.epoch)
        notice = asyncio.get_running_loop().call_later(_PATIENCE_S, logger.info, _STILL_STARTING)
        try:
            await asyncio.gather(asyncio.to_thread(self._logs.open), kernels)
        finally:
            notice.cancel()
        self._logs_open = True
        self._keep_room(reserve)
        self._cluster.subscribe(self._background.reconfigure)
        self._cluster.subscribe(self._mover.reconfigure)
        self._cluster.subscribe(self._listeners.meters.reconfigure)
        if self._tier is not None:
            self._cluster.subscribe(self._tier.reconfigure)
        self._loader.add_publisher(self._cluster)
        self._loader.add_publisher(self._hosting)
        await self._hosting.settled()
        if self._tier is not None:
            await self._tier.start()
        self._background.start()
        self._mover.start()
        self.lifecycle.set_ready()

    async def _keep_health(self) -> None:
        while True:
            await self.lifecycle.unfenced.wait()
            await self._listeners.set_serving(True)
            logger.info("broker %d is ready", self._config.node_id)
            await self.lifecycle.fenced.wait()
            await self._listeners.set_serving(False)

    async def controlled_shutdown(self) -> None:
        """Has the controller move leaderships away; returns when it agrees to the stop, or after a
        timeout."""
        await self._listeners.set_serving(False)
        await self.lifecycle.begin_controlled_shutdown()

    async def stop(self, clean: bool) -> None:
        """Stops everything; `clean` writes the checkpoints and the clean-shutdown marker."""
        self._logs.full_disk.stop()
        await cancel_all(*self._tasks)
        await self._listeners.stop()
        await self._mover.stop()
        await self._background.stop()
        await self._hosting.stop()
        await self._tier_reads.close()
        if self._tier is not None:
            await self._tier.stop()
        await self._client.close()
        if self._logs_open:
            await asyncio.to_thread(self._logs.close, clean, self._identity.epoch)


async def _load_kernels() -> None:
    """Loads the kernels that walk over a leader's records, which were compiled at installation."""
    began = time.perf_counter()

    def load() -> list[str]:
        from tidemark.records.arrow import warm_up

        return warm_up()

    compiled = await asyncio.to_thread(load)
    seconds = time.perf_counter() - began
    logger.info("record kernels: loaded in %.1f s, %d compiled here", seconds, len(compiled))


def make_tier(
    config: ServerConfig,
    clock: Clock,
    storage: NodeStorage,
    cluster: ClusterView,
    on_fatal: OnFatal | None = None,
) -> RemoteLogManager | None:
    """The remote log manager as configured; None if remote.log.storage.system.enable is false.

    Its caches are in the first usable log directory; none is made in place of a missing disk.
    Those in other directories, from when that one was missing, are removed.
    """
    if not config.remote_log_storage_system_enable:
        return None
    from tiering.metadata.topic_based import create_metadata_manager
    from tiering.store.factory import create_storage_manager

    endpoint = config.broker_listeners()[config.inter_broker_listener]
    own = Endpoint(endpoint.host or "127.0.0.1", endpoint.port)
    return RemoteLogManager(
        config,
        create_storage_manager(config),
        create_metadata_manager(config, own.address, storage.first_usable(config)),
        clock.wall_ms,
        cluster=cluster,
        cache_directory=storage.first_usable(config),
        former_cache_directories=storage.usable(config)[1:],
        on_fatal=on_fatal,
    )
