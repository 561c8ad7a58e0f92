"""The pure core of the consumer's fetches: what is asked of which node, when, and from where.

Events come in as method calls: assign, seek, an answer, a failed call, new metadata. `step(now_ms)`
returns the effects: requests to send, calls to give up, whether to refresh the metadata, and when
to step again. There is no clock, task or socket here.

Each leader, or closest replica, is asked for all of its partitions that may be asked for, in one
request. A fetch stays: it is sent again with what changed, so a step costs what moved. Memory is
bounded by `buffer_bytes`, one answer per node, and the batches that the reader has begun.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from tidemark.client.consuming.answers import error_of, extent_of_answer, is_news
from tidemark.client.consuming.assignment import Assignment
from tidemark.client.consuming.closest import is_named, leave, node_of, rack_for
from tidemark.client.consuming.partition import (
    Asked,
    AssignedPartition,
    Draining,
    Position,
    Preference,
    Ready,
    Reset,
    Target,
)
from tidemark.client.consuming.requests import (
    Ask,
    FetchEffects,
    FetchSettings,
    Leaders,
    Refreshing,
    Request,
    Requests,
    Resting,
)
from tidemark.client.errors import (
    CorruptBatchError,
    LogTruncationError,
    NoOffsetForPartitionError,
    TopicRecreatedError,
)
from tidemark.client.metering import ConsumerMeter
from tidemark.client.models import OffsetAndTimestamp
from tidemark.client.records import RawBatches
from tidemark.client.retry import is_retriable
from tidemark.client.throttled import ThrottledNodes
from tidemark.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    LeaderNotAvailableError,
    NetworkError,
    OffsetOutOfRangeError,
    TidemarkError,
    UnknownServerError,
    UnknownTopicIdError,
)
from tidemark.types import OffsetSpec, TopicPartition
from tidemark.wire import FetchPartitionData, FetchResponse

logger = logging.getLogger(__name__)

SLOW_CALL_MS = 2_000
IDLE_MS = 300_000
_RESETS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


class FetchCore:
    """Decides for all assigned partitions; belongs to one event loop."""

    def __init__(self, settings: FetchSettings, leaders: Leaders, rng: Random) -> None:
        self.settings = settings
        self.assignment = Assignment(settings.retry, rng, self._release, self._doubt)
        self._leaders = leaders
        self._rng = rng
        self._requests = Requests()
        self.throttled = ThrottledNodes()
        self.meter = ConsumerMeter()
        self._left: list[int] = []  # requests
        self._refresh: Refreshing | Resting = Resting()

    # Events of the caller.

    def assign(self, partitions: Iterable[TopicPartition], now_ms: float) -> None:
        """Fetches these partitions and no others; those that stay keep position and batches."""
        wanted, known = dict.fromkeys(partitions), self.assignment.partitions
        for partition in [found for tp, found in known.items() if tp not in wanted]:
            self.assignment.remove(partition)
        for topic_partition in wanted:
            if topic_partition not in known:
                problem = NoOffsetForPartitionError(
                    f"{topic_partition} has no position, and auto_offset_reset is none: seek first"
                )
                added = self.assignment.add(topic_partition)
                self._reset_by_policy(added, problem, now_ms, until_seek=True)

    def seek(self, partition: AssignedPartition, to: Target) -> None:
        """Moves the position; forgets what was fetched, and any error."""
        self.assignment.drop_batches(partition)
        self.assignment.move(partition, to)

    # The step.

    def step(self, now_ms: float) -> FetchEffects:
        """Returns the actions due now; marks the partitions of new requests as asked."""
        effects = FetchEffects()
        self._watch(now_ms, effects)
        effects.cancelled = self._unwanted()
        for fetch in self._requests.resting():
            self._look_again(fetch, now_ms)
        joined: dict[tuple[int, bool, str], Request | None] = {}
        for partition in list(self.assignment.ready.values()):
            try:
                self._consider(partition, joined, now_ms, effects)
            except Exception as error:  # the requests of the others must be sent
                self._failed(partition, None, error, now_ms)
        for request in joined.values():
            if request is not None and request.live:
                self._send(request, now_ms, effects)
        for fetch in self._requests.resting():
            self._repeat(fetch, now_ms, effects)
        if self.assignment.partitions and self._leaders.is_stale:
            self._maybe_refresh(now_ms, effects)
        effects.ended, self._requests.ended = self._requests.ended, []
        return effects

    def _unwanted(self) -> list[int]:
        """Requests under way that all partitions have left."""
        left, self._left = self._left, []
        found = {i: self._requests.get(i) for i in left}
        return [i for i, request in found.items() if request is not None and request.is_under_way]

    def _look_again(self, fetch: Request, now_ms: float) -> None:
        """Takes partitions out that should not be asked for again as they are."""
        doubtful, fetch.doubtful = list(fetch.doubtful), {}
        if fetch.prefers_until_ms <= now_ms:
            doubtful, fetch.prefers_until_ms = list(fetch.live), math.inf
        for key in doubtful:
            if key in fetch.live:
                self.assignment.enter(fetch.live[key], Ready())

    def _consider(
        self,
        partition: AssignedPartition,
        joined: dict[tuple[int, bool, str], Request | None],
        now_ms: float,
        effects: FetchEffects,
    ) -> None:
        """Adds a partition to a request to its node, if it may be asked for."""
        node = self._node_to_ask(partition, now_ms, effects)
        if node is None:
            return
        is_fetch = isinstance(partition.target, Position)
        rack = rack_for(partition, self.settings.client_rack) if is_fetch else ""
        key = (node, is_fetch, rack)
        if key not in joined:
            joined[key] = self._requests.to(node, is_fetch, rack, now_ms)
        request = joined[key]
        if request is not None:
            self._ask(request, partition)

    def _send(self, request: Request, now_ms: float, effects: FetchEffects) -> None:
        request.begin(
            now_ms, SLOW_CALL_MS + (self.settings.fetch_max_wait_ms if request.is_fetch else 0)
        )
        self._requests.add(request)
        effects.requests.append(request)
        effects.wake(request.watch_at_ms)

    def _repeat(self, fetch: Request, now_ms: float, effects: FetchEffects) -> None:
        """Sends an answered fetch again, if partitions wait for it and its node may be asked."""
        if not fetch.live:
            if now_ms >= fetch.rests_since_ms + IDLE_MS:
                self._requests.end(fetch)
            else:
                effects.wake(fetch.rests_since_ms + IDLE_MS)
            return
        at_ms = max(fetch.not_before_ms, self.throttled.until_ms(fetch.node))
        if at_ms > now_ms:
            effects.wake(at_ms)
        elif self._is_buffer_open():
            self._send(fetch, now_ms, effects)

    def _node_to_ask(
        self, partition: AssignedPartition, now_ms: float, effects: FetchEffects
    ) -> int | None:
        phase, target = partition.phase, partition.target
        assert isinstance(phase, Ready), "indexed by phase"
        assert target is not None, "without a target there is an error"
        is_fetch = isinstance(target, Position)
        if is_fetch and not self._has_room(partition):
            self.assignment.park(partition)
            return None
        if is_fetch and not self._is_buffer_open():
            return None
        if phase.not_before_ms > now_ms:
            effects.wake(phase.not_before_ms)
            return None
        node = self._leaders.leader(partition.topic_partition)
        if node is None:
            self._without_leader(partition, now_ms, effects)
            return None
        if is_fetch:
            node = node_of(partition, node, now_ms)
        muted_until_ms = self.throttled.until_ms(node)
        if muted_until_ms > now_ms:
            effects.wake(muted_until_ms)
            return None
        if is_fetch and self._is_ahead_of_metadata(partition, target):
            problem = LeaderNotAvailableError(
                f"{partition.topic_partition}: the position is of a newer leader epoch"
            )
            self._retry(partition, node, problem, now_ms)
            self._wake_for(partition, effects)
            return None
        return node

    def _has_room(self, partition: AssignedPartition) -> bool:
        return (
            not partition.is_paused
            and partition.ahead_bytes < self.settings.max_partition_fetch_bytes
        )

    def _is_buffer_open(self) -> bool:
        return self.assignment.ahead_bytes < self.settings.buffer_bytes

    def _is_ahead_of_metadata(self, partition: AssignedPartition, target: Target) -> bool:
        """Whether the position is of a leader epoch that the metadata does not have yet."""
        assert isinstance(target, Position)
        known = self._leaders.leader_epoch(partition.topic_partition)
        topic_id = self._leaders.topic_id(partition.topic_partition.topic)
        return target.epoch > known >= 0 and target.topic_id in (b"", topic_id)

    def _without_leader(
        self, partition: AssignedPartition, now_ms: float, effects: FetchEffects
    ) -> None:
        topic_partition = partition.topic_partition
        problem = self._leaders.topic_error(topic_partition.topic) or LeaderNotAvailableError(
            f"{topic_partition} has no leader that is known"
        )
        self._failed(partition, None, problem, now_ms)
        self._wake_for(partition, effects)

    def _wake_for(self, partition: AssignedPartition, effects: FetchEffects) -> None:
        if isinstance(partition.phase, Ready):
            effects.wake(partition.phase.not_before_ms)

    def _ask(self, request: Request, partition: AssignedPartition) -> None:
        topic_partition, target, phase = (
            partition.topic_partition,
            partition.target,
            partition.phase,
        )
        assert isinstance(phase, Ready) and target is not None
        known = target.topic_id if isinstance(target, Position) else b""
        ask = Ask(
            target,
            known or self._leaders.topic_id(topic_partition.topic),
            self._leaders.leader_epoch(topic_partition),
        )
        request.join(partition, ask)
        self.assignment.enter(partition, Asked(request.request_id, phase.attempts))

    def _watch(self, now_ms: float, effects: FetchEffects) -> None:
        """Has the metadata refreshed while a call is slow: its node may lead no longer. A closest
        replica that is slow is left for the leader."""
        for request in self._requests.under_way():
            if now_ms >= request.watch_at_ms:
                request.watch_at_ms = now_ms + SLOW_CALL_MS
                self._leaders.mark_stale()
                for partition in list(request.live.values()):
                    if request.is_fetch and leave(partition, request.node, now_ms):
                        self.assignment.enter(partition, Ready())
            effects.wake(request.watch_at_ms)

    def _maybe_refresh(self, now_ms: float, effects: FetchEffects) -> None:
        state = self._refresh
        if isinstance(state, Refreshing):
            return
        if state.until_ms > now_ms:
            effects.wake(state.until_ms)
            return
        self._refresh = Refreshing(state.attempts)
        effects.refresh_metadata = True

    def metrics(self, now_ms: float) -> dict[str, float]:
        """See `AsyncConsumer.metrics`."""
        partitions = [*self.assignment.partitions.values()]
        return {
            **self.throttled.metrics("fetch"),
            **self.meter.report(now_ms),
            "assigned-partitions": float(len(partitions)),
            "records-lag-max": float(max((one.lag for one in partitions), default=0)),
        }

    # Events of the edge.

    def answered(self, request_id: int, response: FetchResponse, now_ms: float) -> None:
        """The answer to a fetch."""
        request = self._requests.get(request_id)
        if request is None:
            return
        self.throttled.answered(request.node, response.throttle_time_ms, now_ms)
        if response.error_code:
            text = f"node {request.node}: {response.error_message}"
            self.failed(request_id, error_of(response.error_code, text), now_ms)
            return
        size_bytes = sum(len(data.payload) for data in response.responses)
        self.meter.fetched(size_bytes, now_ms - request.sent_at_ms, now_ms)
        request.rest(now_ms)
        has_news = False
        self._leaders.hint_nodes(response.node_endpoints)
        for data in response.responses:
            if is_news(data):
                has_news = True
                self._judge(request, data, now_ms)
        if response.responses or not response.throttle_time_ms:  # a throttled answer may name none
            for partition, ask in request.confirmed():
                assert isinstance(ask.target, Position)
                at = replace(ask.target, topic_id=ask.topic_id)
                request.asked[partition.topic_partition] = replace(ask, target=at)
                self.assignment.confirm(partition, at)
        if not has_news and now_ms - request.sent_at_ms < self.settings.fetch_max_wait_ms / 2:
            # A node that does not wait, and has nothing, is not asked at full speed.
            request.not_before_ms = now_ms + self.settings.retry.backoff(1, self._rng)

    def found(
        self,
        request_id: int,
        results: Mapping[TopicPartition, OffsetAndTimestamp | Exception | None],
        now_ms: float,
    ) -> None:
        """The answer to a look-up, by partition; None stands for the start of an empty log."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for topic_partition, partition in self._requests.end(request).items():
            result = results.get(topic_partition, NetworkError(f"no answer for {topic_partition}"))
            if isinstance(result, Exception):
                self._failed(partition, request.node, result, now_ms)
                continue
            to = Position(0) if result is None else Position(result.offset, result.leader_epoch)
            assert isinstance(partition.phase, Asked), "it waited for this answer"
            # Until a fetch succeeds: the log may not have this position either.
            self.assignment.move(partition, to, Ready(partition.phase.attempts))

    def failed(self, request_id: int, error: BaseException, now_ms: float) -> None:
        """The request failed as a whole. Does nothing if it has ended."""
        request = self._requests.get(request_id)
        if request is not None:
            for partition in self._requests.end(request).values():
                if request.is_fetch and leave(partition, request.node, now_ms):
                    logger.info("%s: node %d: %s", partition.topic_partition, request.node, error)
                    self.assignment.enter(partition, Ready())
                else:
                    self._failed(partition, request.node, error, now_ms)

    def refreshed(self, error: BaseException | None, now_ms: float) -> None:
        """The metadata was refreshed, or that failed."""
        attempts = 0 if error is None else self._refresh.attempts + 1
        wait_ms = self.settings.retry.backoff(max(1, attempts), self._rng)
        self._refresh = Resting(now_ms + wait_ms, attempts)

    def leaders_changed(self, now_ms: float) -> None:
        """The metadata is new, whoever asked for it."""
        for topic_partition, partition in list(self.assignment.ready.items()):
            phase, leader = partition.phase, self._leaders.leader(topic_partition)
            assert isinstance(phase, Ready), "indexed by phase"
            if phase.not_before_ms > now_ms and leader not in (None, phase.leader):
                self.assignment.enter(partition, Ready(phase.attempts, now_ms, leader))
        for request in list(self._requests.all()):
            for topic_partition, partition in list(request.live.items()):
                if self._leaders.leader(topic_partition) not in (None, request.node) and not (
                    is_named(partition, request.node)
                ):
                    self.assignment.enter(partition, Ready())  # leaves a node that may hang
                elif request.asked[topic_partition].leader_epoch != (
                    self._leaders.leader_epoch(topic_partition)
                ):
                    request.doubtful[topic_partition] = None

    def _release(self, request_id: int, topic_partition: TopicPartition) -> None:
        """A partition left a request; nobody waits for one without partitions."""
        request = self._requests.get(request_id)
        if request is not None and request.leave(topic_partition) and not request.live:
            self._left.append(request_id)

    def _doubt(self, request_id: int, topic_partition: TopicPartition) -> None:
        self._requests[request_id].doubtful[topic_partition] = None

    # Answers, partition by partition.

    def _judge(self, request: Request, data: FetchPartitionData, now_ms: float) -> None:
        taken = request.take(TopicPartition(data.topic, data.partition_index))
        if taken is None:
            logger.debug("%s-%d waits for no answer", data.topic, data.partition_index)
            return
        partition, ask = taken
        try:
            if data.error_code:
                self._refused(request, partition, ask, data, now_ms)
            elif data.diverging_epoch is not None:
                self._diverged(request, partition, ask, data.diverging_epoch, now_ms)
            elif data.preferred_read_replica is not None:
                if not request.rack:
                    raise NetworkError(f"node {request.node} names a replica, and was not asked to")
                until_ms = now_ms + self.settings.preference_max_age_ms
                partition.preference = Preference(data.preferred_read_replica, until_ms)
                self.assignment.enter(partition, Ready())
            else:
                self._take(partition, ask, data)
        except Exception as error:
            self._failed(partition, request.node, error, now_ms)

    def _take(self, partition: AssignedPartition, ask: Ask, data: FetchPartitionData) -> None:
        target = ask.target
        assert isinstance(target, Position)
        buffer = memoryview(data.payload)
        try:
            extent = extent_of_answer(
                buffer, target, ask.leader_epoch, data.high_watermark, data.next_offset
            )
        except CorruptMessageError as error:
            problem = CorruptBatchError(partition.topic_partition, target.offset, str(error))
            self.assignment.halt(partition, problem, until_seek=True)
            return
        raw = RawBatches(
            partition.topic_partition,
            buffer[: extent.size_bytes],
            target.offset,
            extent.next_offset,
            data.high_watermark,
            data.log_start_offset,
            data.aborted_transactions if self.settings.isolation_level else (),
        )
        partition.high_watermark = data.high_watermark
        self.assignment.push(partition, raw, extent)
        partition.target = Position(extent.next_offset, extent.last_epoch, ask.topic_id, True)
        self.assignment.enter(partition, Ready())

    def _refused(
        self,
        request: Request,
        partition: AssignedPartition,
        ask: Ask,
        data: FetchPartitionData,
        now_ms: float,
    ) -> None:
        target, topic_partition = ask.target, partition.topic_partition
        assert isinstance(target, Position)
        error = error_of(data.error_code, f"{topic_partition}: {data.error_message}")
        if data.current_leader is not None:
            self._leaders.hint_leader(topic_partition, *data.current_leader)
        if leave(partition, request.node, now_ms):
            logger.info("%s: node %d: %s", topic_partition, request.node, error)
            self.assignment.enter(partition, Ready())
        elif isinstance(error, OffsetOutOfRangeError):
            problem = OffsetOutOfRangeError(f"{topic_partition} at {target.offset}: {error}")
            self._reset_by_policy(partition, problem, now_ms, until_seek=False)
        elif isinstance(
            error, UnknownTopicIdError | InconsistentTopicIdError
        ) and self._is_recreated(partition, target):
            recreated = TopicRecreatedError(topic_partition, target.offset)
            self._reset_by_policy(partition, recreated, now_ms, until_seek=True)
        else:
            self._failed(partition, request.node, error, now_ms)

    def _is_recreated(self, partition: AssignedPartition, target: Position) -> bool:
        """Whether a leader's refusal of the topic id means that the topic was made anew.

        The metadata name another id, and this one was refused before. One node that lags behind
        the client may do both once.
        """
        known = self._leaders.topic_id(partition.topic_partition.topic)
        was_refused = isinstance(partition.phase, Asked) and partition.phase.attempts > 0
        return was_refused and bool(known) and target.topic_id not in (b"", known)

    def _diverged(
        self,
        request: Request,
        partition: AssignedPartition,
        ask: Ask,
        diverging: tuple[int, int],
        now_ms: float,
    ) -> None:
        """The leader's log does not have the records before the position, or not in that epoch."""
        target, (epoch, end_offset) = ask.target, diverging
        assert isinstance(target, Position)
        if epoch < 0 or end_offset < 0:
            # The leader knows no epoch as old as this one: nothing says where the logs part.
            lost = LogTruncationError(partition.topic_partition, target.offset, None)
            self._reset_by_policy(partition, lost, now_ms, until_seek=True)
        elif end_offset >= target.offset:
            # The offsets are there, in an older epoch. Kafka takes the position for confirmed. At
            # the end of that epoch it is: a look-up names the epoch of a leader that wrote
            # nothing. Else records of the epoch that was read are gone; a policy reads on.
            problem = NetworkError(f"{partition.topic_partition}: diverges from epoch {epoch}")
            tells = self.settings.auto_offset_reset not in _RESETS
            if epoch < target.epoch and end_offset > target.offset and tells:
                gone = LogTruncationError(partition.topic_partition, target.offset, None)
                self.assignment.halt(partition, gone, until_seek=True)
            elif epoch < target.epoch:
                partition.target = replace(target, epoch=epoch)
                self.assignment.enter(partition, Ready())
            else:
                self._retry(partition, request.node, problem, now_ms)
        elif self.settings.auto_offset_reset in _RESETS:
            logger.warning(
                "%s was truncated below %d: going on at %d, where its log and what was read part",
                partition.topic_partition,
                target.offset,
                end_offset,
            )
            self.assignment.move(partition, Position(end_offset, epoch))
        else:
            truncated = LogTruncationError(partition.topic_partition, target.offset, diverging)
            self.assignment.halt(partition, truncated, until_seek=True)

    def _failed(
        self, partition: AssignedPartition, node: int | None, error: BaseException, now_ms: float
    ) -> None:
        """Delays the next request after a retriable error; passes any other to the reader.

        A refusal passes to a reader that has got there. Behind fetched batches the request is
        repeated: the cause may be gone when they are read.
        """
        is_told = isinstance(error, CorruptMessageError) or not is_retriable(error)
        if isinstance(error, TidemarkError) and (not is_told or partition.buffered):
            self._retry(partition, node, error, now_ms)
            return
        if not isinstance(error, TidemarkError):
            logger.error("%s: fetching failed", partition.topic_partition, exc_info=error)
            unforeseen = UnknownServerError(f"{partition.topic_partition}: {error!r}")
            unforeseen.__cause__ = error
            error = unforeseen
        self.assignment.halt(partition, error, until_seek=False)

    def _retry(
        self, partition: AssignedPartition, node: int | None, error: TidemarkError, now_ms: float
    ) -> None:
        phase, target = partition.phase, partition.target
        logger.debug("%s: %s", partition.topic_partition, error)
        self._leaders.mark_stale()
        retry = self.settings.retry
        if isinstance(target, Reset) and now_ms - target.since_ms >= retry.timeout_ms:
            partition.target = replace(target, since_ms=now_ms)
            self.assignment.halt(partition, error, until_seek=False)
            return
        attempts = 1 if isinstance(phase, Draining) else phase.attempts + 1
        leader = self._leaders.leader(partition.topic_partition)
        moved = node is not None and leader not in (None, node)
        wait_ms = 0.0 if moved else retry.backoff(attempts, self._rng)
        self.assignment.enter(partition, Ready(attempts, now_ms + wait_ms, node))

    def _reset_by_policy(
        self,
        partition: AssignedPartition,
        problem: TidemarkError,
        now_ms: float,
        *,
        until_seek: bool,
    ) -> None:
        where = _RESETS.get(self.settings.auto_offset_reset)
        if where is None:
            self.assignment.halt(partition, problem, until_seek=until_seek)
            return
        if partition.target is not None:
            logger.info("%s; going on at the %s", problem, self.settings.auto_offset_reset)
        then, phase = Ready(), partition.phase
        if isinstance(problem, OffsetOutOfRangeError) and isinstance(phase, Asked):
            # A position that was looked up and is refused again is looked up with growing pauses.
            attempts = phase.attempts
            wait_ms = self.settings.retry.backoff(attempts, self._rng) if attempts else 0
            then = Ready(attempts + 1, now_ms + wait_ms)
        self.assignment.move(partition, Reset(where, now_ms), then)

    def validate(self) -> None:
        """Asserts the invariants of the assignment and of the requests under way."""
        self.assignment.validate()
        self._requests.validate()
        asked: dict[TopicPartition, int] = {}
        for request in self._requests.all():
            for topic_partition, partition in request.live.items():
                assert self.assignment.partitions.get(topic_partition) is partition
                asked[topic_partition] = request.request_id
        for topic_partition, partition in self.assignment.partitions.items():
            phase = partition.phase
            found = phase.request_id if isinstance(phase, Asked) else None
            assert asked.get(topic_partition) == found, "asked for, or waits for nothing"
            assert partition.target is not None or topic_partition in self.assignment.halted
