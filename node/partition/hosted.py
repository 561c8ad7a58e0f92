"""A hosted partition: the pure core, its log, and those who wait for either.

Followers' fetches wait for the log's end, consumers' fetches for the high watermark. Produces with
acks=all wait until the high watermark passes their records. A waiter is a future or the watch of a
fetch session, and removes itself. Nothing here awaits, so a change of role, an append and a wake-up
are each atomic for all other tasks of the loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from uuid import UUID

from commitlog.log.log import Log
from commitlog.types import CorruptLogError
from node.partition.core import Partition, Role
from tidemark.config import TopicConfig
from tidemark.errors import ErrorCode
from tidemark.types import OrderedSet, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)


class Wakeable(Protocol):
    """A future, or an object that is notified of each wake-up."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


class PendingAck(NamedTuple):
    """A produce that waits until all in-sync replicas have everything below `required_offset`."""

    required_offset: int
    leader_epoch: int
    answer: Callable[[ErrorCode], None]


@dataclass(slots=True, eq=False)
class Traffic:
    """Bytes of batches, and records, since the replica came here."""

    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0


@dataclass(slots=True, eq=False)
class HostedPartition:
    """One replica of this node. While `offline` has a reason, the log is unusable and every request
    fails with it."""

    core: Partition
    log: Log
    config: TopicConfig
    offline: str = ""
    deleted: bool = False
    data_waiters: OrderedSet[Wakeable] = field(default_factory=OrderedSet)
    commit_waiters: OrderedSet[Wakeable] = field(default_factory=OrderedSet)
    acks: deque[PendingAck] = field(default_factory=deque)
    segment_copyable: Callable[[TopicIdPartition], None] | None = (
        None  # the tier's; called once per segment
    )
    role_listener: Callable[[HostedPartition], None] | None = None  # of a coordinator's topic
    watched: OrderedSet[HostedPartition] = field(default_factory=OrderedSet)  # IsrKeeper's, too
    give_up: Callable[[HostedPartition, CorruptLogError], bool] = lambda *_: False
    damage: str = ""  # found in the log, which is served as far as it can be read
    flushed_end: int = -1  # a leader's, while a flush of flush.messages is under way
    flush_acks: list[PendingAck] = field(default_factory=list)  # with acks=1
    confirmed_epoch: int = -1  # a follower's: the last one whose leader found no divergence
    reported_start: int = 0  # the log start at the last `start_moved`
    traffic: Traffic = field(default_factory=Traffic)
    _nudged_base: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def topic_id(self) -> UUID:
        return self.core.identity.topic_id

    @property
    def is_leader(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def is_gone(self) -> bool:
        """Whether the log is no longer this replica's, or unusable."""
        return self.deleted or bool(self.offline)

    def appended(self, now_ms: int) -> None:
        """Updates the core after an append as leader, and wakes the waiters concerned. While a
        flush is under way the records do not count yet."""
        if not self.is_flushing:
            self._count(self.log.log_end_offset, now_ms)

    def _count(self, end_offset: int, now_ms: int) -> None:
        if self.core.on_append(end_offset, now_ms):
            self.committed()
        self.watched.add(self)
        _wake(self.data_waiters)

    # --- flush.messages

    @property
    def is_flush_due(self) -> bool:
        """Whether the log has flush.messages that are not known to be durable."""
        log = self.log
        return log.log_end_offset - log.recovery_point >= self.config.flush_messages

    @property
    def is_flushing(self) -> bool:
        """Whether records of this leader wait for a flush."""
        return self.flushed_end >= 0

    @property
    def counted_end(self) -> int:
        """The end of the records that count: those of a leader that wait for no flush."""
        end: int = self.log.log_end_offset
        return min(self.flushed_end, end) if self.is_flushing and self.is_leader else end

    def begin_flush(self) -> None:
        """Notes that records from the core's end on count only after a flush."""
        self.flushed_end = self.core.log_end_offset

    def flushed(self, end_offset: int, now_ms: int) -> None:
        """Counts the leader's records below `end_offset`; answers produces with acks=1."""
        self.flushed_end = end_offset
        self._count(end_offset, now_ms)
        waiting, self.flush_acks = self.flush_acks, []
        for ack in waiting:
            if ack.required_offset <= end_offset:
                ack.answer(ErrorCode.NONE)
            else:
                self.flush_acks.append(ack)

    def end_flush(self, now_ms: int) -> None:
        """Counts all records again as they are appended."""
        self.flushed_end = -1
        if self.is_leader and not self.is_gone:
            self.flushed(self.log.log_end_offset, now_ms)
            self.flushed_end = -1

    def flush_failed(self) -> None:
        """Fails the produces that wait for a flush; a later one has their records count."""
        waiting, self.flush_acks = self.flush_acks, []
        while self.acks and self.acks[-1].required_offset > self.flushed_end:
            waiting.append(self.acks.pop())
        for ack in waiting:
            ack.answer(ErrorCode.KAFKA_STORAGE_ERROR)

    def committed(self) -> None:
        """Applies an advanced high watermark: updates the log, wakes consumers, answers
        produces."""
        self.log.update_high_watermark(self.core.high_watermark)
        _wake(self.commit_waiters)
        self.answer_acks()
        if self.segment_copyable is not None and self.config.remote_storage_enable:
            self._nudge_tier(self.segment_copyable)

    def leader_committed(self, high_watermark: int) -> None:
        """Applies the high watermark of a leader that found no divergence in this follower's log;
        wakes consumers if it moved."""
        self.confirmed_epoch = self.core.leader_epoch
        if self.core.on_leader_high_watermark(high_watermark):
            self.log.update_high_watermark(self.core.high_watermark)
            _wake(self.commit_waiters)

    def check_readable(self) -> None:
        """Raises NotLeaderOrFollowerError unless consumers may read here (KIP-392): from the
        leader, or from a follower whose log was compared with that of this epoch's leader."""
        if self.is_leader or self.confirmed_epoch != self.core.leader_epoch:
            self.core.check_leader()

    def _nudge_tier(self, segment_copyable: Callable[[TopicIdPartition], None]) -> None:
        """Reports once that a rolled segment is wholly below the high watermark and can be
        copied."""
        base = self.log.active_segment.base_offset
        if self._nudged_base < base <= self.core.high_watermark and not self.offline:
            self._nudged_base = base
            segment_copyable(self.core.identity)

    def reconfigure(self, config: TopicConfig) -> None:
        """Applies changed settings of the topic to the log and the core."""
        self.config = self.log.config = config
        self.core.min_insync_replicas = config.min_insync_replicas

    def drop_tiered_part(self) -> None:
        """Begins the log at what is on this disk: tiering was switched off (KIP-950).

        A new leader's high watermark may be behind for a moment; the tier's pass repeats it.
        """
        start = min(self.log.local_log_start_offset, self.core.high_watermark)
        if self.log.increment_log_start_offset(start):
            logger.warning(
                "%s: tiering is off, the log begins at %d now", self.topic_partition, start
            )
            self.start_moved()

    def start_moved(self) -> None:
        """Wakes waiters after the log start moved: followers must learn it, and DeleteRecords may
        wait for it."""
        self.reported_start = self.log.log_start_offset
        _wake(self.commit_waiters)

    def isr_shrank(self) -> None:
        """Wakes followers' fetches: a removed replica rejoins when its next fetch is processed."""
        _wake(self.data_waiters)

    def role_changed(self) -> None:
        """Wakes all waiters; produces fail unless this node leads on."""
        self.answer_acks()
        if not self.is_leader:
            self._answer_flush_acks(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        _wake(self.data_waiters)
        _wake(self.commit_waiters)
        self._tell_role()

    def _tell_role(self) -> None:
        if self.role_listener is not None:
            self.role_listener(self)

    def answer_acks(self) -> None:
        """Answers waiting produces in offset order, up to the first that must still wait."""
        while self.acks:
            first = self.acks[0]
            state = self.core.ack_state(first.required_offset, first.leader_epoch)
            if not state.done:
                return
            self.acks.popleft()
            first.answer(state.error)

    def found_damage(self, error: CorruptLogError) -> bool:
        """Reports damage in the log; returns whether the replica is given up for a new copy.

        It is not while no other replica is in sync. Then what can be read is served.
        """
        if self.offline or self.deleted:
            return True
        if self.give_up(self, error):
            return True
        if self.damage != str(error):
            self.damage = str(error)
            logger.error(
                "%s: %s. No other replica is in sync, so the rest is served: start the others, or"
                " restore the file",
                self.topic_partition,
                error,
            )
        return False

    def stop(self) -> None:
        """Ends all waiting: the replica leaves this node."""
        self.deleted = True
        self._send_away(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail(self, reason: str) -> None:
        """Takes the replica offline: present and later requests fail with KAFKA_STORAGE_ERROR."""
        self.offline = reason
        self._send_away(ErrorCode.KAFKA_STORAGE_ERROR)

    def _send_away(self, code: ErrorCode) -> None:
        while self.acks:
            self.acks.popleft().answer(code)
        self._answer_flush_acks(code)
        _wake(self.data_waiters)
        _wake(self.commit_waiters)
        self._tell_role()

    def _answer_flush_acks(self, code: ErrorCode) -> None:
        waiting, self.flush_acks = self.flush_acks, []
        for ack in waiting:
            ack.answer(code)


def _wake(waiters: OrderedSet[Wakeable]) -> None:
    if waiters:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()
