"""The pure core of the consumer's fetches: what is asked of which node, when, and from where.

Events come in as method calls: assign, seek, an answer, a failed call, new metadata. `step(now_ms)`
returns the effects: requests to send, calls to give up, whether to refresh the metadata, and when
to step again. There is no clock, task or socket here.

Each leader, or closest replica, is asked for all of its partitions that may be asked for, in one
request. Memory is bounded by `buffer_bytes`, one answer per node, and the batches that the reader
has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from tidemark.client.consuming.answers import error_of, extent_of_answer
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
    Resting,
)
from tidemark.client.errors import (
    CorruptBatchError,
    LogTruncationError,
    NoOffsetForPartitionError,
    TopicRecreatedError,
)
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

# Two, not one: a long poll on idle partitions must not delay busy ones of the same node.
REQUESTS_PER_NODE = 2
SLOW_CALL_MS = 2_000
_RESETS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


class FetchCore:
    """Decides for all assigned partitions; belongs to one event loop."""

    def __init__(self, settings: FetchSettings, leaders: Leaders, rng: Random) -> None:
        self.settings = settings
        self.assignment = Assignment(settings.retry, rng, self._release)
        self._leaders = leaders
        self._rng = rng
        self._requests: dict[int, Request] = {}
        self._fetches_of: dict[int, int] = {}  # under way, by node
        self.throttled = ThrottledNodes()
        self._cancelled: list[int] = []
        self._last_id = 0
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
        by_node: dict[tuple[int, bool, str], Request] = {}
        for partition in list(self.assignment.ready.values()):
            try:
                self._consider(partition, by_node, now_ms, effects)
            except Exception as error:  # the requests of the others must be sent
                self._failed(partition, None, error, now_ms)
        effects.requests = [request for request in by_node.values() if request.live]
        for request in effects.requests:
            self._requests[request.request_id] = request
            if request.is_fetch:
                self._fetches_of[request.node] = self._fetches_of.get(request.node, 0) + 1
            effects.wake(request.watch_at_ms)
        if self.assignment.partitions and self._leaders.is_stale:
            self._maybe_refresh(now_ms, effects)
        effects.cancelled, self._cancelled = self._cancelled, []
        return effects

    def _consider(
        self,
        partition: AssignedPartition,
        by_node: dict[tuple[int, bool, str], Request],
        now_ms: float,
        effects: FetchEffects,
    ) -> None:
        """Adds a partition to the request of its node, if it may be asked for."""
        node = self._node_to_ask(partition, now_ms, effects)
        if node is None:
            return
        is_fetch = isinstance(partition.target, Position)
        rack = rack_for(partition, self.settings.client_rack) if is_fetch else ""
        request = by_node.get((node, is_fetch, rack))
        if request is None:
            begun = sum(r.node == node and r.is_fetch for r in by_node.values())
            if is_fetch and self._fetches_of.get(node, 0) + begun >= REQUESTS_PER_NODE:
                return
            request = self._new_request(node, is_fetch, rack, now_ms)
            by_node[node, is_fetch, rack] = request
        self._ask(request, partition)

    def _node_to_ask(
        self, partition: AssignedPartition, now_ms: float, effects: FetchEffects
    ) -> int | None:
        phase, target = partition.phase, partition.target
        assert isinstance(phase, Ready), "indexed by phase"
        assert target is not None, "without a target there is an error"
        is_fetch = isinstance(target, Position)
        if is_fetch and not self._has_room(partition):
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
            and self.assignment.ahead_bytes < self.settings.buffer_bytes
        )

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

    def _new_request(self, node: int, is_fetch: bool, rack: str, now_ms: float) -> Request:
        self._last_id += 1
        slow_ms = SLOW_CALL_MS + (self.settings.fetch_max_wait_ms if is_fetch else 0)
        return Request(self._last_id, node, is_fetch, rack, now_ms, now_ms + slow_ms)

    def _ask(self, request: Request, partition: AssignedPartition) -> None:
        topic_partition, target, phase = (
            partition.topic_partition,
            partition.target,
            partition.phase,
        )
        assert isinstance(phase, Ready) and target is not None
        known = target.topic_id if isinstance(target, Position) else b""
        request.asked[topic_partition] = Ask(
            target,
            known or self._leaders.topic_id(topic_partition.topic),
            self._leaders.leader_epoch(topic_partition),
        )
        request.live[topic_partition] = partition
        self.assignment.enter(partition, Asked(request.request_id, phase.attempts))

    def _watch(self, now_ms: float, effects: FetchEffects) -> None:
        """Has the metadata refreshed while a call is slow: its node may lead no longer. A closest
        replica that is slow is left for the leader."""
        for request in list(self._requests.values()):
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
        filled: list[tuple[AssignedPartition, FetchPartitionData]] = []
        quiet: list[AssignedPartition] = []
        has_news = False
        for data in response.responses:
            topic_partition = TopicPartition(data.topic, data.partition_index)
            partition = request.live.get(topic_partition)
            if partition is None:
                logger.debug("%s does not wait for an answer", topic_partition)
            elif (
                data.error_code
                or data.diverging_epoch is not None
                or data.preferred_read_replica is not None
            ):
                has_news = True
                self._judge(request, partition, data, now_ms)
            elif len(data.payload):
                filled.append((partition, data))
            else:
                self._judge(request, partition, data, now_ms)
                quiet.append(partition)
        waited_ms = now_ms - request.sent_at_ms
        if not filled and not has_news and waited_ms < self.settings.fetch_max_wait_ms / 2:
            # A node that does not wait, and has nothing, is not asked at full speed.
            again_ms = now_ms + self.settings.retry.backoff(1, self._rng)
            for partition in quiet:
                self.assignment.enter(partition, Ready(0, again_ms, request.node))
        # A node fills an answer in the order of the request (KIP-74): those that got records are
        # behind the others in the next one.
        for partition in self._unnamed(request, filled):
            if filled or response.throttle_time_ms:  # a throttled answer names none
                self.assignment.enter(partition, Ready())
            else:
                problem = NetworkError(f"node {request.node} answered without the partition")
                self._retry(partition, request.node, problem, now_ms)
        for partition, data in filled:
            self._judge(request, partition, data, now_ms)
        self._end(request)

    def _unnamed(
        self, request: Request, filled: list[tuple[AssignedPartition, FetchPartitionData]]
    ) -> list[AssignedPartition]:
        """Takes the partitions out of a request that its answer says nothing of."""
        named = {partition.topic_partition for partition, _ in filled}
        return [request.live.pop(tp) for tp in list(request.live) if tp not in named]

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
        for topic_partition, partition in self._end(request).items():
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
            for partition in self._end(request).values():
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
        for topic_partition, partition in list(self.assignment.ready.items()):
            phase, leader = partition.phase, self._leaders.leader(topic_partition)
            assert isinstance(phase, Ready), "indexed by phase"
            if phase.not_before_ms > now_ms and leader not in (None, phase.leader):
                self.assignment.enter(partition, Ready(phase.attempts, now_ms, leader))
        for request in list(self._requests.values()):
            for topic_partition, partition in list(request.live.items()):
                if self._leaders.leader(topic_partition) not in (None, request.node) and not (
                    is_named(partition, request.node)
                ):
                    self.assignment.enter(partition, Ready())  # leaves a node that may hang

    def _end(self, request: Request) -> dict[TopicPartition, AssignedPartition]:
        """Forgets a request. Returns the partitions that waited for it."""
        del self._requests[request.request_id]
        if request.is_fetch:
            self._fetches_of[request.node] -= 1
        waiting, request.live = request.live, {}
        return waiting

    def _release(self, request_id: int, topic_partition: TopicPartition) -> None:
        """A partition left a request; nobody waits for one without partitions."""
        request = self._requests.get(request_id)
        left = request is not None and request.live.pop(topic_partition, None) is not None
        if left and request is not None and not request.live:
            self._cancelled.append(request_id)

    # Answers, partition by partition.

    def _judge(
        self,
        request: Request,
        partition: AssignedPartition,
        data: FetchPartitionData,
        now_ms: float,
    ) -> None:
        if request.live.pop(partition.topic_partition, None) is None:
            return  # named twice
        ask = request.asked[partition.topic_partition]
        try:
            if data.error_code:
                self._refused(request, partition, ask, data, now_ms)
            elif data.diverging_epoch is not None:
                self._diverged(request, partition, ask, data.diverging_epoch, now_ms)
            elif data.preferred_read_replica is not None and request.rack:
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
        if not buffer:
            partition.target = replace(target, topic_id=ask.topic_id)
            self.assignment.enter(partition, Ready())
            return
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
        asked: dict[TopicPartition, int] = {}
        for request in self._requests.values():
            for topic_partition, partition in request.live.items():
                assert self.assignment.partitions.get(topic_partition) is partition
                asked[topic_partition] = request.request_id
        for topic_partition, partition in self.assignment.partitions.items():
            phase = partition.phase
            found = phase.request_id if isinstance(phase, Asked) else None
            assert asked.get(topic_partition) == found, "asked for, or waits for nothing"
            assert partition.target is not None or topic_partition in self.assignment.halted
        for node, count in self._fetches_of.items():
            under_way = [r for r in self._requests.values() if r.is_fetch and r.node == node]
            assert count == len(under_way) <= REQUESTS_PER_NODE
