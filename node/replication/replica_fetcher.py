"""Follower fetchers: one per peer, with all partitions that the peer leads in one long poll.

`fetcher_core.FetcherCore` has the states of the partitions and the session (KIP-227). The fetcher
sends its requests, applies answers to the logs, and finds out where to fetch from where the core
says so. The divergence check is part of each fetch (`last_fetched_epoch`, KIP-595), so no separate
truncation phase is needed.

A request that becomes due while another one is parked is sent behind it: the leader ends the wait
of the first. No fetch is cancelled, and a change of the metadata names only what it changed.

A partition whose log cannot take the answer fails alone (Kafka's FailedPartitionsCount). The next
change of its metadata has it fetched again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from commitlog.log.continuity import check_begun
from commitlog.log.log import Work
from commitlog.types import CorruptLogError
from node.membership.identity import BrokerIdentity
from node.partition.hosted import HostedPartition
from node.quotas.replication import ReplicationThrottle
from node.replication import follower_log
from node.replication.client import ReplicationClient
from node.replication.fetcher_core import Command, FetcherCore, FetchPlan, Followed, FollowerState
from node.replication.full_disk import is_full
from node.replication.tier_bootstrap import TierBootstrap, leader_offset
from node.runtime.clock import Clock
from node.runtime.tasks import cancel_all, spawn
from tidemark.config import ServerConfig
from tidemark.errors import (
    CorruptMessageError,
    ErrorCode,
    FatalError,
    InvalidFetchSessionEpochError,
    NetworkError,
    OffsetOutOfRangeError,
    TidemarkError,
    error_for,
)
from tidemark.types import Endpoint, TopicPartition
from tidemark.v1 import log_pb2 as pb
from tidemark.wire import FetchPartitionData, FetchResponse

logger = logging.getLogger(__name__)

FAILED_PARTITIONS_COUNT = (
    "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica"
)
_FETCHES_MAX = 2  # tasks; each sends a request and applies its answer

Item = Followed[HostedPartition]


class ReplicaFetcher:
    """Fetches from one peer."""

    def __init__(
        self,
        config: ServerConfig,
        identity: BrokerIdentity,
        cluster_id: str,
        client: ReplicationClient,
        bootstrap: TierBootstrap | None,
        on_fatal: Callable[[FatalError], None],
        clock: Clock,
        throttle: ReplicationThrottle | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Logs are cut in `pool`, if there is one."""
        self._pool = pool
        self._clock = clock
        self._throttle = throttle
        self._config = config
        self._identity = identity
        self._cluster_id = cluster_id
        self.client = client
        self._bootstrap = bootstrap
        self._on_fatal = on_fatal
        self._core = FetcherCore[HostedPartition](
            config.replica_fetch_backoff_ms / 1000,
            config.remote_log_manager_task_retry_backoff_max_ms / 1000,
        )
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._fetches: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._stopped = False

    @property
    def partitions(self) -> Mapping[TopicPartition, object]:
        return self._core.partitions

    @property
    def failed_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._core.failed)

    def follow(self, hosted: HostedPartition) -> None:
        """Follows the partition in its current leader epoch; no change if it does already."""
        if self._core.follow(hosted.topic_partition, hosted, hosted.core.leader_epoch):
            self._look()

    def unfollow(self, topic_partition: TopicPartition) -> None:
        self._core.unfollow(topic_partition)

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await cancel_all(*self._fetches, *self._side_tasks)
        await self.client.close()

    # --- fetches -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Has a task look for the next request, after all that happens in this turn."""
        if not self._stopped and len(self._fetches) < _FETCHES_MAX:
            task = spawn("fetch", self._fetch(), self._on_fatal)
            self._fetches.add(task)
            task.add_done_callback(self._fetches.discard)

    async def _fetch(self) -> None:
        """Fetches until the core has no request to send."""
        loop = asyncio.get_running_loop()
        while (request := self._core.next_request(loop.time())) is not None:
            self._arm()
            await self._fetch_once(request)
        self._arm()

    def _arm(self) -> None:
        """Looks for a request again when time alone makes one due."""
        due = self._core.next_deadline()
        if self._timer is not None:
            if self._timer_at == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            # uvloop's handle of a time that has passed is no TimerHandle.
            self._timer, self._timer_at = asyncio.get_running_loop().call_at(due, self._due), due

    def _due(self) -> None:
        self._timer = None
        self._look()

    async def _fetch_once(self, request: FetchPlan[HostedPartition]) -> None:
        core, loop = self._core, asyncio.get_running_loop()
        message = self._message(request)
        timeout_ms = message.max_wait_ms + self._config.request_timeout_ms
        try:
            response = await self.client.fetch(message, timeout_ms)
            if response.error_code != ErrorCode.NONE:
                raise error_for(response.error_code, response.error_message)
        except FatalError:
            raise
        except InvalidFetchSessionEpochError:
            core.lost(request.number, loop.time(), delays=False)
        except (TidemarkError, OSError) as error:
            if core.lost(request.number, loop.time(), delays=True):
                level = logging.INFO if isinstance(error, NetworkError) else logging.WARNING
                logger.log(level, "fetch failed: %s", error)
        else:
            if core.answered(request.number, response.session_id):
                self._take_all(request.number, response)

    def _message(self, request: FetchPlan[HostedPartition]) -> pb.ReplicaFetchRequest:
        config = self._config
        message = pb.ReplicaFetchRequest(
            replica_id=self._identity.id,
            replica_epoch=self._identity.epoch,
            cluster_id=self._cluster_id,
            max_wait_ms=config.replica_fetch_wait_max_ms if request.waits else 0,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=request.session_id,
        )
        for key in request.forgotten:
            message.forgotten.add(topic=key.topic, partition=key.partition)
        for item in request.named:
            self._add(message, item)
        return message

    def _add(self, message: pb.ReplicaFetchRequest, item: Item) -> None:
        hosted = item.hosted
        last_epoch = follower_log.last_fetched_epoch(hosted)
        message.partitions.add(
            topic=hosted.topic_partition.topic,
            topic_id=hosted.topic_id.bytes,
            partition=hosted.topic_partition.partition,
            current_leader_epoch=item.epoch,
            fetch_offset=hosted.log.log_end_offset,
            last_fetched_epoch=-1 if last_epoch is None else last_epoch,
            log_start_offset=hosted.log.log_start_offset,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
            high_watermark=hosted.core.high_watermark,
        )

    def _is_current(self, item: Item) -> bool:
        """Whether the partition is still followed here, in the epoch of the request."""
        hosted = item.hosted
        return (
            self._core.follows(item)
            and not hosted.is_leader
            and not hosted.deleted
            and hosted.core.leader_epoch == item.epoch
        )

    def _take_all(self, number: int, response: FetchResponse) -> None:
        now = asyncio.get_running_loop().time()
        for answer in response.responses:
            key = TopicPartition(answer.topic, answer.partition_index)
            found = self._core.on_answer(
                number,
                key,
                answer.error_code,
                now,
                has_records=bool(answer.records),
                diverges=answer.diverging_epoch is not None,
            )
            if found is not None and self._is_current(found[0]):
                self._take(*found, answer)

    def _take(self, item: Item, command: Command, answer: FetchPartitionData) -> None:
        """Does for one partition what the core commands. Its error concerns no other."""
        try:
            self._carry_out(item, command, answer)
        except FatalError:
            raise
        except CorruptMessageError as error:
            self._failed(item, error)  # of the answer, not of the log: it is asked again
        except Exception as error:
            self._cannot(item, error)

    def _carry_out(self, item: Item, command: Command, answer: FetchPartitionData) -> None:
        hosted = item.hosted
        if command is Command.APPEND:
            start = hosted.log.log_start_offset
            follower_log.append(hosted, answer, item.epoch, self._clock.wall_ms())
            if hosted.log.log_start_offset != start:
                self._core.name_again(item)  # the leader waits for it (DeleteRecords)
            if hosted.is_flush_due:
                self._aside(item, self._flush(item, answer), FollowerState.FLUSHING)
            else:
                self._hold_back(item, answer)
        elif command is Command.TRUNCATE:
            assert answer.diverging_epoch is not None
            target = follower_log.divergence(hosted, *answer.diverging_epoch)
            if follower_log.needs_tier(hosted, target):
                follower_log.note_loss(hosted, target)
                self._aside(item, self._from_tier(item), FollowerState.BUILDING_REMOTE_LOG_AUX)
            else:
                self._aside(item, self._truncate(item, target), FollowerState.TRUNCATING)
        elif command is Command.FIND_RANGE:
            check_begun(hosted.log.segments, hosted.log.epochs, item.epoch)
            self._aside(item, self._find_range(item), FollowerState.TRUNCATING)
        elif command is Command.BUILD_AUX:
            self._aside(item, self._from_tier(item), FollowerState.BUILDING_REMOTE_LOG_AUX)
        else:
            logger.info("%s: %s", hosted.topic_partition, ErrorCode(answer.error_code).name)

    def _hold_back(self, item: Item, answer: FetchPartitionData) -> None:
        """Has a throttled replica that is not in sync wait until its rate is kept (KIP-73)."""
        hosted, throttle = item.hosted, self._throttle
        if throttle is None or hosted.log.log_end_offset >= answer.high_watermark:
            return
        if throttle.holds(hosted.config, hosted.topic_partition.partition):
            now_s = asyncio.get_running_loop().time()
            throttle.record(len(answer.payload), now_s)
            wait_s = throttle.wait_s(now_s)
            if wait_s > 0:
                self._core.hold(item, now_s + wait_s)

    def _failed(self, item: Item, error: Exception) -> None:
        """Tries again after a pause. Damage in the own log stays: the replica is given up."""
        if isinstance(error, CorruptLogError):
            item.hosted.found_damage(error)
        else:
            logger.warning("%s: %s", item.hosted.topic_partition, error)
        self._core.delay(item, asyncio.get_running_loop().time())

    def _cannot(self, item: Item, error: Exception) -> None:
        """Handles an error of the own log: damage has its own way, and a full disk may pass.
        Anything else fails the partition until its metadata changes."""
        if isinstance(error, CorruptLogError) or is_full(error):
            self._failed(item, error)
            return
        expected = isinstance(error, TidemarkError | OSError)
        logger.error(
            "%s: the replica is failed and not fetched until its metadata changes: %s: %s",
            item.hosted.topic_partition,
            type(error).__name__,
            error,
            exc_info=None if expected else error,
        )
        self._core.fail(item)

    # --- asking the leader where to continue ---------------------------------------------------

    def _aside(self, item: Item, work: Awaitable[None], state: FollowerState) -> None:
        """Runs the work in a task of its own; the other partitions are fetched meanwhile."""
        self._core.begin(item, state)

        async def run() -> None:
            try:
                await work
            except FatalError:
                raise
            except (TidemarkError, OSError) as error:
                self._failed(item, error)
            except Exception as error:
                self._cannot(item, error)
            finally:
                self._core.ended(item)
                self._look()

        task = spawn(f"find the way {item.hosted.topic_partition}", run(), self._on_fatal)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    async def _find_range(self, item: Item) -> None:
        """Handles an offset out of range: truncates to the leader's end, or restarts at its
        start."""
        timeout_ms = self._config.request_timeout_ms
        latest = await leader_offset(self.client, item.hosted, item.epoch, -1, timeout_ms)
        if latest.offset < item.hosted.log.log_end_offset:
            if follower_log.needs_tier(item.hosted, latest.offset):
                self._core.begin(item, FollowerState.BUILDING_REMOTE_LOG_AUX)
                await self._from_tier(item)
            elif self._is_current(item):
                await self._truncate(item, latest.offset)
            return
        earliest = await leader_offset(self.client, item.hosted, item.epoch, -2, timeout_ms)
        if earliest.offset <= item.hosted.log.log_end_offset:
            raise OffsetOutOfRangeError("the leader's range moved meanwhile; fetching again")
        if item.hosted.config.remote_storage_enable and self._bootstrap is not None:
            self._core.begin(item, FollowerState.BUILDING_REMOTE_LOG_AUX)
            await self._from_tier(item)
        elif self._is_current(item):
            now_ms = self._clock.wall_ms()
            await self._cut(item, follower_log.restart(item.hosted, earliest.offset, now_ms))

    async def _truncate(self, item: Item, offset: int) -> None:
        if self._is_current(item):
            now_ms = self._clock.wall_ms()
            if await self._cut(item, follower_log.truncate(item.hosted, offset, now_ms)):
                logger.info("%s: truncated to %d", item.hosted.topic_partition, offset)

    async def _cut(self, item: Item, steps: Work) -> bool:
        return await follower_log.carry_out(
            item.hosted, steps, self._pool, lambda: self._is_current(item)
        )

    async def _flush(self, item: Item, answer: FetchPartitionData) -> None:
        """Flushes the log before the next fetch acknowledges its records (flush.messages)."""
        if self._pool is None:
            item.hosted.log.flush()
        else:
            await asyncio.get_running_loop().run_in_executor(self._pool, item.hosted.log.flush)
        if self._is_current(item):
            self._hold_back(item, answer)

    async def _from_tier(self, item: Item) -> None:
        if self._bootstrap is None:
            raise OffsetOutOfRangeError("the leader uses a tier, this node has none configured")
        await self._bootstrap.run(
            self.client,
            item.hosted,
            item.epoch,
            is_current=lambda: self._is_current(item),
            now_ms=self._clock.wall_ms,
            cut=lambda steps: self._cut(item, steps),
        )


class ReplicaFetchers:
    """The fetchers of a node, by peer. A fetcher stops when it follows no partition any more."""

    def __init__(self, make: Callable[[Endpoint], ReplicaFetcher]) -> None:
        self._make = make
        self._peers: dict[int, tuple[Endpoint, ReplicaFetcher]] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def follow(self, hosted: HostedPartition, leader: int, endpoint: Endpoint) -> None:
        """Follows `leader` at `endpoint`, and no other peer."""
        self.unfollow(hosted.topic_partition, keep=leader)
        known = self._peers.get(leader)
        if known is not None and known[0] != endpoint:
            self._drop(leader)
            known = None
        if known is None:
            fetcher = self._make(endpoint)
            self._peers[leader] = (endpoint, fetcher)
        self._peers[leader][1].follow(hosted)

    def metrics(self) -> Mapping[str, int]:
        """Gauges under Kafka's names."""
        failed = sum(len(fetcher.failed_partitions) for _, fetcher in self._peers.values())
        return {FAILED_PARTITIONS_COUNT: failed}

    def unfollow(self, topic_partition: TopicPartition, keep: int | None = None) -> None:
        for peer, (_, fetcher) in list(self._peers.items()):
            if peer != keep:
                fetcher.unfollow(topic_partition)
                if not fetcher.partitions:
                    self._drop(peer)

    def _drop(self, peer: int) -> None:
        _, fetcher = self._peers.pop(peer)
        task = asyncio.ensure_future(fetcher.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def stop(self) -> None:
        for peer in list(self._peers):
            self._drop(peer)
        await asyncio.gather(*self._stopping, return_exceptions=True)
