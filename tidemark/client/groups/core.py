"""The member's half of the consumer group protocol (KIP-848), without IO.

    OUT      no subscription, or left
    JOINING  asks with epoch 0
    MEMBER   has an epoch; `target` is the assignment that it was told, `owned` what it has
    LOST     fenced, or out for not polling: has to give up everything, then joins again

A member says what it owns when that changed, and all of itself after any failure. The answer to a
full heartbeat has the assignment, so a lost answer loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.errors import (
    ErrorCode,
    FencedMemberEpochError,
    TidemarkError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    error_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2 as pb

_LEAVES, _LEAVES_FOR_A_WHILE = -1, -2


class Membership(Enum):
    """See the module."""

    OUT = "out"
    JOINING = "joining"
    MEMBER = "member"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """A member's settings; times in ms. Empty: none."""

    group_id: str
    member_id: str
    instance_id: str = ""
    rack_id: str = ""
    assignor: str = ""
    max_poll_interval_ms: int = 300_000
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(slots=True)
class MembershipCore:
    """One member. `error` stops it for good; the reader of the consumer raises it."""

    settings: MemberSettings
    rng: Random
    state: Membership = Membership.OUT
    epoch: int = 0
    target: Mapping[TopicPartition, bytes] | None = None
    owned: Mapping[TopicPartition, bytes] = field(default_factory=dict)
    error: TidemarkError | None = None
    _names: tuple[str, ...] = ()
    _pattern: str = ""
    _due_ms: float = 0.0
    _polled_ms: float = 0.0
    _is_under_way: bool = False
    _is_leaving: bool = False
    _tells_all: bool = True
    _tells_owned: bool = False
    _failures: int = 0

    # --- the caller

    def subscribe(self, names: tuple[str, ...], pattern: str, now_ms: float) -> None:
        """Joins, or changes the subscription."""
        self._names, self._pattern = names, pattern
        self.error, self._tells_all = None, True
        self._due_ms = self._polled_ms = now_ms
        if self.state is Membership.OUT:
            self.state = Membership.JOINING

    def polled(self, now_ms: float) -> None:
        """The application asks for records."""
        self._polled_ms = now_ms

    @property
    def has_work(self) -> bool:
        """Whether the next poll has to change the assignment, or to raise an error."""
        if self.error is not None or self.state is Membership.LOST:
            return True
        return self.target is not None and self.target != self.owned

    def reconciled(self, owned: Mapping[TopicPartition, bytes], now_ms: float) -> None:
        """The consumer has these partitions and no others, and its listener was told."""
        if owned != self.owned:
            self.owned = owned
            self._tells_owned = True
            self._due_ms = now_ms

    def gave_up(self, now_ms: float) -> None:
        """A fenced member has given up everything: it joins again."""
        self.owned, self.target = {}, None
        if self.state is Membership.LOST:
            self.state, self.epoch = Membership.JOINING, 0
            self._tells_all = True
            self._due_ms = now_ms

    def leave(self) -> pb.ConsumerGroupHeartbeatRequest | None:
        """The last heartbeat; None if there is nothing to leave. A static member comes back."""
        was_in = self.state is Membership.MEMBER or self._is_under_way
        self.state, self.target, self.owned = Membership.OUT, None, {}
        if not was_in:
            return None
        is_static = bool(self.settings.instance_id)
        self.epoch = 0
        return self._request(_LEAVES_FOR_A_WHILE if is_static else _LEAVES)

    # --- heartbeats

    def next_ms(self) -> float | None:
        """When `heartbeat` has something to send; None while one is under way, or nobody is in."""
        if self._is_under_way or self.state not in (Membership.JOINING, Membership.MEMBER):
            return None
        if self.error is not None:
            return None
        return min(self._due_ms, self._polled_ms + self.settings.max_poll_interval_ms)

    def heartbeat(self, now_ms: float) -> pb.ConsumerGroupHeartbeatRequest | None:
        """The heartbeat that is due now, if there is one."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        if now_ms >= self._polled_ms + self.settings.max_poll_interval_ms:
            if self.state is Membership.JOINING:
                self._due_ms = self._polled_ms = now_ms  # nobody waits for what it would get
                return None
            return self._stop_waiting()
        self._is_under_way = True
        request = self._request(self.epoch)
        if self.epoch == 0 or self._tells_all:
            request.rebalance_timeout_ms = self.settings.max_poll_interval_ms
            request.subscribed_topic_names.SetInParent()
            request.subscribed_topic_names.names.extend(self._names)
            request.subscribed_topic_regex = self._pattern
            if self.settings.rack_id:
                request.rack_id = self.settings.rack_id
            if self.settings.assignor:
                request.server_assignor = self.settings.assignor
        if self.epoch == 0:
            request.owned.SetInParent()
        elif self._tells_all or self._tells_owned:
            _write(request.owned, self.owned)
        return request

    def _stop_waiting(self) -> pb.ConsumerGroupHeartbeatRequest:
        """The application does not poll: the member leaves, and joins with the next poll."""
        self.state, self.target = Membership.LOST, None
        self._is_leaving = True
        is_static = bool(self.settings.instance_id)
        return self._request(_LEAVES_FOR_A_WHILE if is_static else _LEAVES)

    def take_leaving(self) -> bool:
        """Whether the member left since the last call, because nobody polled."""
        was, self._is_leaving = self._is_leaving, False
        return was

    def _request(self, epoch: int) -> pb.ConsumerGroupHeartbeatRequest:
        request = pb.ConsumerGroupHeartbeatRequest(
            group_id=self.settings.group_id,
            member_id=self.settings.member_id,
            member_epoch=epoch,
        )
        if self.settings.instance_id:
            request.instance_id = self.settings.instance_id
        return request

    def answered(
        self,
        request: pb.ConsumerGroupHeartbeatRequest,
        answer: pb.ConsumerGroupHeartbeatResponse,
        now_ms: float,
    ) -> None:
        """The answer to a heartbeat."""
        code = int(answer.error_code)
        if code != ErrorCode.NONE:
            self.failed(error_for(code, answer.error_message), now_ms)
            return
        self._is_under_way = False
        if self.state not in (Membership.JOINING, Membership.MEMBER):
            return
        self._failures = 0
        if request.HasField("subscribed_topic_names"):
            told = (tuple(request.subscribed_topic_names.names), request.subscribed_topic_regex)
            self._tells_all = told != (self._names, self._pattern)
        if request.HasField("owned") and _read(request.owned) == self.owned:
            self._tells_owned = False
        self.state, self.epoch = Membership.MEMBER, answer.member_epoch
        if answer.HasField("assignment"):
            self.target = _read(answer.assignment)
        is_at_once = self._tells_all or self._tells_owned
        self._due_ms = now_ms if is_at_once else now_ms + answer.heartbeat_interval_ms

    def failed(self, error: TidemarkError, now_ms: float) -> None:
        """A heartbeat had no answer, or an error."""
        self._is_under_way = False
        if self.state not in (Membership.JOINING, Membership.MEMBER):
            return
        self._tells_all = True
        self._failures += 1
        if isinstance(error, FencedMemberEpochError | UnknownMemberIdError):
            self.target = None
            if self.state is Membership.MEMBER:
                self.state = Membership.LOST
                return
        elif not is_retriable(error) and not isinstance(error, UnreleasedInstanceIdError):
            self.error = error
            return
        self._due_ms = now_ms + self.settings.retry.backoff(self._failures, self.rng)


def _read(assignment: pb.Assignment) -> Mapping[TopicPartition, bytes]:
    """The partitions with their topic ids; those of a topic without a name are left out."""
    return {
        TopicPartition(topic.topic_name, number): topic.topic_id
        for topic in assignment.topic_partitions
        if topic.topic_name
        for number in topic.partitions
    }


def _write(assignment: pb.Assignment, owned: Mapping[TopicPartition, bytes]) -> None:
    assignment.SetInParent()
    topics: dict[bytes, pb.TopicPartitions] = {}
    for partition, topic_id in sorted(owned.items()):
        if topic_id not in topics:
            topics[topic_id] = assignment.topic_partitions.add(
                topic_id=topic_id, topic_name=partition.topic
            )
        topics[topic_id].partitions.append(partition.partition)
