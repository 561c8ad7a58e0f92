"""Follower fetchers: one task per peer, with all partitions that the peer leads in one long poll.

A peer that keeps a session (`node.serving.fetch_session`) is sent only partitions that are new,
moved, or were in its last answer. Otherwise each request names all of them.

A partition is Fetching, Truncating or BuildingRemoteLogAux. The latter two mean asking the leader
where to continue: the offset is out of range, or in the tier. After an error it is delayed; while
the tier fails, for longer and longer (remote.log.manager.task.retry.backoff.max.ms). An answer
counts only while the partition is followed in the leader epoch of the request; a late one is
dropped. The divergence check is part of each fetch (`last_fetched_epoch`, KIP-595), so no separate
truncation phase is needed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from commitlog.log.continuity import check_begun
from commitlog.types import CorruptLogError
from node.membership.identity import BrokerIdentity
from node.partition.hosted import HostedPartition
from node.quotas.replication import ReplicationThrottle
from node.replication import follower_log
from node.replication.client import ReplicationClient
from node.replication.tier_bootstrap import TierBootstrap, leader_offset
from node.runtime.clock import Clock
from node.runtime.tasks import spawn
from tidemark.config import ServerConfig
from tidemark.errors import (
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

_GRAIN_S = 0.001  # due within this counts as due now
_GATHER_S = 0.005  # of partitions that may be fetched again, before a parked fetch ends for them


class _State(enum.Enum):
    """State of a follower, by the names of Kafka's ReplicaState and of KIP-405."""

    FETCHING = "Fetching"
    TRUNCATING = "Truncating"
    BUILDING_REMOTE_LOG_AUX = "BuildingRemoteLogAux"


@dataclass(slots=True)
class _FollowedPartition:
    """One partition of a fetcher. `epoch` is the leader epoch in which it is followed."""

    hosted: HostedPartition
    epoch: int
    retry_at: float = 0.0  # the loop's time; 0: now
    failures: int = 0  # of the way from the tier, since the last append
    state: _State = _State.FETCHING

    @property
    def is_busy(self) -> bool:
        return self.state is not _State.FETCHING


class ReplicaFetcher:
    """Fetches from one peer, in one task."""

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
    ) -> None:
        self._clock = clock
        self._throttle = throttle
        self._config = config
        self._identity = identity
        self._cluster_id = cluster_id
        self.client = client
        self._bootstrap = bootstrap
        self._on_fatal = on_fatal
        self._followed: dict[TopicPartition, _FollowedPartition] = {}
        self._session_id = 0
        self._in_session: dict[TopicPartition, _FollowedPartition] = {}
        self._unsent: dict[
            TopicPartition, _FollowedPartition
        ] = {}  # for the session's next request
        self._resting: dict[TopicPartition, _FollowedPartition] = {}  # delayed or busy: not fetched
        self._leaving: set[TopicPartition] = set()  # the session may have to drop them
        self._changed = asyncio.Event()
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._fetch: asyncio.Task[FetchResponse] | None = None
        self._ended_early = False  # the last fetch, for partitions that may be fetched again
        self._task: asyncio.Task[None] | None = None

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._followed)

    def follow(self, hosted: HostedPartition) -> None:
        """Follows the partition in its current leader epoch; no change if it does already."""
        key = hosted.topic_partition
        known = self._followed.get(key)
        if known is not None and known.hosted is hosted and known.epoch == hosted.core.leader_epoch:
            return
        self._followed[key] = self._unsent[key] = _FollowedPartition(
            hosted, hosted.core.leader_epoch
        )
        self._resting.pop(key, None)
        self._interrupt()

    def unfollow(self, topic_partition: TopicPartition) -> None:
        if self._followed.pop(topic_partition, None) is not None:
            self._unsent.pop(topic_partition, None)
            self._resting.pop(topic_partition, None)
            self._leaving.add(topic_partition)
            self._changed.set()

    def start(self) -> None:
        self._task = spawn("fetcher", self._run(), self._on_fatal)

    async def stop(self) -> None:
        tasks = [t for t in (self._task, *self._side_tasks) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def _interrupt(self) -> None:
        """Cancels a parked fetch, so that the next one includes a new partition."""
        self._changed.set()
        if self._fetch is not None and not self._fetch.done():
            self._fetch.cancel()

    def _interrupt_soon(self) -> None:
        """Ends a fetch that is parked, for partitions that may be fetched again.

        The fetch after it is never ended, because each end may throw an answer away. Otherwise many
        partitions that come from the tier one by one would hold back all others.
        """
        if self._fetch is not None and not self._ended_early:
            self._ended_early = True
            asyncio.get_running_loop().call_later(_GATHER_S, self._fetch.cancel)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now = loop.time()
            self._rouse(now + _GRAIN_S)
            if len(self._resting) == len(self._followed):
                await self._wait_for_work(now)
                continue
            try:
                await self._fetch_once()
            except FatalError:
                raise
            except InvalidFetchSessionEpochError:
                self._end_session()
            except (TidemarkError, OSError) as error:
                level = logging.INFO if isinstance(error, NetworkError) else logging.WARNING
                logger.log(level, "fetch failed: %s", error)
                self._end_session()
                for item in self._awake():
                    self._delay(item)

    def _rouse(self, due: float) -> None:
        """Fetches partitions again whose delay is over."""
        for key, item in list(self._resting.items()):
            if not item.is_busy and item.retry_at < due:
                del self._resting[key]
                self._unsent[key] = item

    def _awake(self) -> list[_FollowedPartition]:
        return [item for key, item in self._followed.items() if key not in self._resting]

    def _end_session(self) -> None:
        """Ends the session: the next request names everything."""
        self._session_id = 0
        self._in_session = {}
        self._leaving.clear()

    async def _wait_for_work(self, now: float) -> None:
        later = [f.retry_at for f in self._followed.values() if not f.is_busy]
        timeout = max(0.0, min(later) - now) if later else None
        # Not wait_for: in Python 3.11 it can lose a cancellation that comes with the event.
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    def _delay(self, item: _FollowedPartition) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        wait_ms = config.replica_fetch_backoff_ms * 2 ** min(max(0, item.failures - 1), 20)
        longest = max(
            config.replica_fetch_backoff_ms, config.remote_log_manager_task_retry_backoff_max_ms
        )
        item.retry_at = loop.time() + min(wait_ms, longest) / 1000
        self._rest(item)

    def _rest(self, item: _FollowedPartition) -> None:
        key = item.hosted.topic_partition
        if self._followed.get(key) is item:
            self._resting[key] = item
            self._unsent.pop(key, None)
            self._leaving.add(key)

    async def _fetch_once(self) -> None:
        request = self._request()
        timeout_ms = request.max_wait_ms + self._config.request_timeout_ms
        self._fetch = asyncio.ensure_future(self.client.fetch(request, timeout_ms))
        try:
            await asyncio.wait((self._fetch,))
            if self._fetch.cancelled():
                self._end_session()  # interrupted: the set of partitions changed
                return
            self._ended_early = False
            response = self._fetch.result()
        finally:
            self._fetch.cancel()
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, response.error_message)
        asked, self._session_id = self._in_session, response.session_id
        if not self._session_id:
            self._end_session()
        for answer in response.responses:
            key = TopicPartition(answer.topic, answer.partition_index)
            item = asked.get(key)
            if item is not None and self._is_current(item):
                self._unsent[key] = item
                self._take(item, answer)

    def _is_current(self, item: _FollowedPartition) -> bool:
        """Whether the partition is still followed here, in the epoch of the request."""
        hosted = item.hosted
        return (
            self._followed.get(hosted.topic_partition) is item
            and not hosted.is_leader
            and not hosted.deleted
            and hosted.core.leader_epoch == item.epoch
        )

    def _request(self) -> pb.ReplicaFetchRequest:
        """The next request: all fetched partitions, or those that the session does not have yet."""
        config = self._config
        request = pb.ReplicaFetchRequest(
            replica_id=self._identity.id,
            replica_epoch=self._identity.epoch,
            cluster_id=self._cluster_id,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
        )
        if self._session_id:
            for key in sorted(self._leaving & self._in_session.keys()):
                if key in self._resting or key not in self._followed:
                    del self._in_session[key]
                    request.forgotten.add(topic=key.topic, partition=key.partition)
            self._leaving.clear()
            named = list(self._unsent.values())
        else:
            named = self._awake()
        self._unsent.clear()
        for item in named:
            self._in_session[item.hosted.topic_partition] = item
            self._add(request, item)
        return request

    def _add(self, request: pb.ReplicaFetchRequest, item: _FollowedPartition) -> None:
        hosted = item.hosted
        last_epoch = follower_log.last_fetched_epoch(hosted)
        request.partitions.add(
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

    def _take(self, item: _FollowedPartition, answer: FetchPartitionData) -> None:
        code = answer.error_code
        hosted = item.hosted
        try:
            if code == ErrorCode.NONE and answer.diverging_epoch is not None:
                target = follower_log.divergence(hosted, *answer.diverging_epoch)
                if follower_log.needs_tier(hosted, target):
                    follower_log.note_loss(hosted, target)
                    self._aside(item, self._from_tier(item), _State.BUILDING_REMOTE_LOG_AUX)
                else:
                    follower_log.truncate(hosted, target, self._clock.wall_ms())
                    logger.info("%s: truncated to %d", hosted.topic_partition, target)
            elif code == ErrorCode.NONE:
                follower_log.append(hosted, answer, item.epoch, self._clock.wall_ms())
                item.retry_at, item.failures = 0.0, 0
                self._hold_back(item, answer)
            elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
                check_begun(hosted.log.segments, hosted.log.epochs, item.epoch)
                self._aside(item, self._find_range(item), _State.TRUNCATING)
            elif code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                self._aside(item, self._from_tier(item), _State.BUILDING_REMOTE_LOG_AUX)
            else:
                logger.info("%s: %s", hosted.topic_partition, ErrorCode(code).name)
                self._delay(item)
        except FatalError:
            raise
        except TidemarkError as error:
            self._failed(item, error)

    def _hold_back(self, item: _FollowedPartition, answer: FetchPartitionData) -> None:
        """Has a throttled replica that is not in sync wait until its rate is kept (KIP-73)."""
        hosted, throttle = item.hosted, self._throttle
        if throttle is None or hosted.log.log_end_offset >= answer.high_watermark:
            return
        if throttle.holds(hosted.config, hosted.topic_partition.partition):
            now_s = asyncio.get_running_loop().time()
            throttle.record(len(answer.payload), now_s)
            wait_s = throttle.wait_s(now_s)
            if wait_s > 0:
                item.retry_at = now_s + wait_s
                self._rest(item)

    def _failed(self, item: _FollowedPartition, error: TidemarkError | OSError) -> None:
        """Tries again after a pause. Damage in the own log stays: the replica is given up."""
        if isinstance(error, CorruptLogError):
            item.hosted.found_damage(error)
        else:
            logger.warning("%s: %s", item.hosted.topic_partition, error)
        self._delay(item)

    # --- asking the leader where to continue ---------------------------------------------------

    def _aside(self, item: _FollowedPartition, work: Awaitable[None], state: _State) -> None:
        """Runs the work in a task of its own; the other partitions are fetched meanwhile."""
        item.state = state
        self._rest(item)

        async def run() -> None:
            try:
                await work
            except FatalError:
                raise
            except (TidemarkError, OSError) as error:
                self._failed(item, error)
            finally:
                item.state = _State.FETCHING
                self._changed.set()
                if item.retry_at <= asyncio.get_running_loop().time():
                    self._interrupt_soon()

        task = spawn(f"find the way {item.hosted.topic_partition}", run(), self._on_fatal)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    async def _find_range(self, item: _FollowedPartition) -> None:
        """Handles an offset out of range: truncates to the leader's end, or restarts at its
        start."""
        timeout_ms = self._config.request_timeout_ms
        latest = await leader_offset(self.client, item.hosted, item.epoch, -1, timeout_ms)
        if latest.offset < item.hosted.log.log_end_offset:
            if follower_log.needs_tier(item.hosted, latest.offset):
                await self._from_tier(item)
            elif self._is_current(item):
                follower_log.truncate(item.hosted, latest.offset, self._clock.wall_ms())
            return
        earliest = await leader_offset(self.client, item.hosted, item.epoch, -2, timeout_ms)
        if earliest.offset <= item.hosted.log.log_end_offset:
            raise OffsetOutOfRangeError("the leader's range moved meanwhile; fetching again")
        if item.hosted.config.remote_storage_enable and self._bootstrap is not None:
            await self._from_tier(item)
        elif self._is_current(item):
            follower_log.restart_at(item.hosted, earliest.offset, self._clock.wall_ms())

    async def _from_tier(self, item: _FollowedPartition) -> None:
        if self._bootstrap is None:
            raise OffsetOutOfRangeError("the leader uses a tier, this node has none configured")
        item.state = _State.BUILDING_REMOTE_LOG_AUX
        item.failures += 1  # until an append
        await self._bootstrap.run(
            self.client,
            item.hosted,
            item.epoch,
            is_current=lambda: self._is_current(item),
            now_ms=self._clock.wall_ms,
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
            fetcher.start()
        self._peers[leader][1].follow(hosted)

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
