"""All groups of one partition of `__consumer_offsets`: replay, requests, deadlines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from coordinator.groups import commits
from coordinator.groups.description import described, listed, state_of
from coordinator.groups.group import EMPTY, ConsumerGroup
from coordinator.groups.heartbeat import (
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRules,
    check,
)
from coordinator.groups.members import Member, MemberState
from coordinator.groups.offsets import OffsetStore
from coordinator.records import groups as r
from coordinator.runtime.deadlines import KeyedDeadlines, earliest_ms
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from quorum.image import MetadataImage
from tidemark.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    UnknownMemberIdError,
)
from tidemark.v1 import group_pb2 as pb

logger = logging.getLogger(__name__)

_EXPIRED_MAX = 1_000  # tombstones of one decision: they fit into a batch
_EXPIRY = ("", "")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's group.consumer.* and offsets.*; times in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000


class GroupShard:
    """The state machine of a partition; `image` gives the newest metadata."""

    def __init__(self, settings: GroupSettings, image: Callable[[], MetadataImage]) -> None:
        self._settings = settings
        self._image = image
        self.groups: dict[str, ConsumerGroup] = {}
        self.classic: dict[str, r.GroupMetadataValue] = {}
        self.offsets = OffsetStore()
        self._sessions: KeyedDeadlines[tuple[str, str]] = KeyedDeadlines()
        self._rebalances: KeyedDeadlines[tuple[str, str]] = KeyedDeadlines()
        self._revoking: dict[tuple[str, str], int] = {}  # the member epoch of each rebalance
        self._check: KeyedDeadlines[tuple[str, str]] = KeyedDeadlines()
        self._to_check: list[str] = []

    # --- replay

    def replay(self, key: Any, value: Any | None, offset: int, producer_id: int) -> None:
        match key:
            case r.OffsetCommitKey():
                if type(key) is r.OffsetCommitKey:
                    self.offsets.replay(key, value, offset, producer_id)
            case r.GroupMetadataKey(group=group_id):
                if value is None:
                    self.classic.pop(group_id, None)
                else:
                    self.classic[group_id] = value
            case r.ConsumerGroupMetadataKey(group_id=group_id):
                self._replay_epoch(group_id, value)
            case r.ConsumerGroupPartitionMetadataKey():
                return  # of Kafka 4.0, in place of the hash
            case _:
                self._replay_of_group(key, value)

    def _replay_epoch(self, group_id: str, value: r.ConsumerGroupMetadataValue | None) -> None:
        if value is None:
            self.groups.pop(group_id, None)
            return
        group = self._group(group_id)
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        group.is_outdated = False

    def _replay_of_group(self, key: Any, value: Any | None) -> None:
        if value is None and key.group_id not in self.groups:
            return
        group = self._group(key.group_id)
        match key:
            case r.ConsumerGroupMemberMetadataKey(member_id=member_id):
                if value is None:
                    group.remove_member(member_id)
                    self._sessions.clear((key.group_id, member_id))
                    self._forget_rebalance((key.group_id, member_id))
                else:
                    known = group.members.get(member_id, Member(member_id))
                    group.put_member(known.subscribed_as(value))
            case r.ConsumerGroupTargetAssignmentMetadataKey():
                group.put_assignment_epoch(-1 if value is None else value.assignment_epoch)
            case r.ConsumerGroupTargetAssignmentMemberKey(member_id=member_id):
                if value is None:
                    group.remove_target(member_id)
                else:
                    topics = value.topic_partitions
                    target = {t.topic_id: frozenset(t.partitions) for t in topics}
                    group.put_target(member_id, target)
            case r.ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id):
                member = group.members.get(member_id)
                if value is not None:
                    group.put_member((member or Member(member_id)).assigned_as(value))
                elif member is not None:
                    group.put_member(Member(member_id).subscribed_as(member.subscription()))
            case r.ConsumerGroupRegularExpressionKey(regular_expression=pattern):
                if value is None:
                    group.resolved.pop(pattern, None)
                else:
                    group.resolved[pattern] = frozenset(value.topics)

    def _group(self, group_id: str) -> ConsumerGroup:
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ConsumerGroup(group_id)
        return found

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed)

    def loaded(self, epoch: int, now: Now) -> None:
        """Gives each member a whole session, and each one that revokes its whole time."""
        for group in self.groups.values():
            group.is_outdated = True
            for member in group.members.values():
                self._follow(group.group_id, member, now.mono_ms)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._check.set(_EXPIRY, now.mono_ms + interval_ms)

    def topics_changed(self, names: Iterable[str], *, everything: bool = False) -> None:
        """Has groups look at their topics again; called when topics, or racks, come or change."""
        changed = list(names)
        for group in self.groups.values():
            is_concerned = everything or group.patterns()
            if is_concerned or any(group.is_subscribed_to(name) for name in changed):
                group.is_outdated = True

    def has_offsets_of(self, topics: Mapping[UUID, str]) -> bool:
        """Whether offsets of one of these topics are committed."""
        return any(self._offsets_of(topics))

    def forget_topics(self, topics: Mapping[UUID, str]) -> CoordinatorResult[bool]:
        """Deletes offsets of deleted topics, some at a time; the answer is whether that was all."""
        keys = list(islice(self._offsets_of(topics), _EXPIRED_MAX))
        return CoordinatorResult(len(keys) < _EXPIRED_MAX, tuple((key, None) for key in keys))

    def _offsets_of(self, topics: Mapping[UUID, str]) -> Iterator[r.OffsetCommitKey]:
        names = set(topics.values())
        for group_id, by_topic in self.offsets.by_group.items():
            for name in names & by_topic.keys():
                for number, committed in by_topic[name].items():
                    if committed.topic_id in topics:
                        yield r.OffsetCommitKey(group_id, name, number)

    # --- members

    def heartbeat(self, request: Heartbeat, now: Now) -> CoordinatorResult[HeartbeatAnswer]:
        """A member's heartbeat. Raises what `heartbeat.check` and `HeartbeatRules` raise, and
        GroupIdNotFoundError."""
        check(request)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                raise UnknownMemberIdError(
                    f"group {request.group_id} is not known: join it again with epoch 0"
                )
            if request.group_id in self.classic and self.classic[request.group_id].members:
                raise GroupIdNotFoundError(
                    f"group {request.group_id} has members of the classic protocol"
                )
            group = ConsumerGroup(request.group_id)
        rules = HeartbeatRules(group, self._image(), now.wall_ms, self._settings.max_size)
        if request.member_epoch < 0:
            return rules.leave(request)
        result, member = rules.heartbeat(request)
        self._follow(request.group_id, member, now.mono_ms)
        return result

    def _follow(self, group_id: str, member: Member, mono_ms: int) -> None:
        key = (group_id, member.member_id)
        self._sessions.set(key, mono_ms + self._settings.session_timeout_ms)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._forget_rebalance(key)
        elif self._revoking.get(key) != member.member_epoch:
            self._revoking[key] = member.member_epoch
            self._rebalances.set(key, mono_ms + max(0, member.rebalance_timeout_ms))

    def _forget_rebalance(self, key: tuple[str, str]) -> None:
        self._rebalances.clear(key)
        self._revoking.pop(key, None)

    # --- offsets

    def commit(
        self, request: commits.Commit, now: Now
    ) -> CoordinatorResult[pb.OffsetCommitResponse]:
        """Stores offsets; raises what `commits.commit` raises."""
        check_group_id(request.group_id)
        most = self._settings.offset_metadata_max_bytes
        group = self.groups.get(request.group_id)
        return commits.commit(request, group, self._image(), most, now.wall_ms)

    def fetch(
        self, request: pb.OffsetFetchRequest.Group, require_stable: bool
    ) -> pb.OffsetFetchResponse.Group:
        """The offsets of a group; raises UnknownMemberIdError and StaleMemberEpochError."""
        epoch = request.member_epoch if request.HasField("member_epoch") else -1
        commits.check_fetcher(self.groups.get(request.group_id), request.member_id, epoch)
        return commits.fetch(request, self.offsets, require_stable, self._image())

    def delete_offsets(
        self, request: pb.OffsetDeleteRequest
    ) -> CoordinatorResult[pb.OffsetDeleteResponse]:
        """Deletes offsets. Raises GroupIdNotFoundError."""
        self._check_known(request.group_id)
        return commits.delete(request, self.groups.get(request.group_id), self.offsets)

    # --- groups

    def delete_group(self, group_id: str) -> CoordinatorResult[None]:
        """Deletes a group with its offsets. Raises GroupIdNotFoundError and NonEmptyGroupError."""
        self._check_known(group_id)
        group, classic = self.groups.get(group_id), self.classic.get(group_id)
        if (group is not None and group.members) or (classic is not None and classic.members):
            raise NonEmptyGroupError(f"group {group_id} has members: stop them first")
        records = [(key, None) for key in self.offsets.keys_of(group_id)]
        return CoordinatorResult(None, (*records, *self._tombstones_of(group_id)))

    def list_groups(self) -> Sequence[pb.ListGroupsResponse.ListedGroup]:
        """All groups, by id."""
        names = {*self.groups, *self.classic, *self.offsets.by_group}
        return [
            listed(name, self.groups.get(name), self.classic.get(name)) for name in sorted(names)
        ]

    def counts(self) -> Counter[str]:
        """The groups by state."""
        names = {*self.groups, *self.classic, *self.offsets.by_group}
        return Counter(state_of(self.groups.get(n), self.classic.get(n)) for n in names)

    def describe(self, group_id: str) -> pb.ConsumerGroupDescribeResponse.DescribedGroup:
        """A group with its members. Raises GroupIdNotFoundError."""
        self._check_known(group_id)
        group = self.groups.get(group_id)
        return described(group_id, group, self.classic.get(group_id), self._image())

    def _check_known(self, group_id: str) -> None:
        known = group_id in self.groups or group_id in self.classic
        if not known and not self.offsets.keys_of(group_id):
            raise GroupIdNotFoundError(f"there is no group {group_id}")

    def _tombstones_of(self, group_id: str) -> list[CoordinatorRecord]:
        """Records that remove a group without members."""
        found: list[CoordinatorRecord] = []
        group = self.groups.get(group_id)
        if group is not None:
            patterns = sorted(group.resolved)
            found += [(r.ConsumerGroupRegularExpressionKey(group_id, p), None) for p in patterns]
            found.append((r.ConsumerGroupTargetAssignmentMetadataKey(group_id), None))
            found.append((r.ConsumerGroupMetadataKey(group_id), None))
        if group_id in self.classic:
            found.append((r.GroupMetadataKey(group_id), None))
        return found

    # --- deadlines

    def next_deadline_ms(self) -> int | None:
        return earliest_ms(self._sessions, self._rebalances, self._check)

    def on_deadline(self, now: Now) -> Sequence[CoordinatorResult[None]]:
        for deadlines, why in (
            (self._sessions, "its session is over"),
            (self._rebalances, "it did not give up partitions in its rebalance timeout"),
        ):
            due = deadlines.take_due(now.mono_ms)
            if due is not None:
                return self._fence(*due, now, why)
        if self._check.take_due(now.mono_ms) is not None:
            self._to_check = self._to_check or sorted({*self.groups, *self.offsets.by_group})
            return self._expire(now)
        return []

    def _fence(
        self, group_id: str, member_id: str, now: Now, why: str
    ) -> Sequence[CoordinatorResult[None]]:
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return []
        # If the append fails, the next try has this as its reason to come.
        again_ms = now.mono_ms + self._settings.heartbeat_interval_ms
        self._sessions.set((group_id, member_id), again_ms)
        logger.info("group %s: member %s is removed, since %s", group_id, member_id, why)
        records = HeartbeatRules(group, self._image(), now.wall_ms).fence([member])
        return [CoordinatorResult(None, records)]

    def _expire(self, now: Now) -> Sequence[CoordinatorResult[None]]:
        """Looks at some groups, and at the next ones soon."""
        results: list[CoordinatorResult[None]] = []
        looked_at = 0
        while self._to_check and looked_at < _EXPIRED_MAX:
            group_id = self._to_check.pop()
            size = sum(map(len, self.offsets.by_group.get(group_id, {}).values()))
            looked_at += size + 1
            group = self.groups.get(group_id)
            retention_ms = self._settings.offsets_retention_ms
            records = commits.expired(group_id, group, self.offsets, retention_ms, now.wall_ms)
            is_empty = group is None or group.state == EMPTY
            if is_empty and len(records) == size and self._is_over(group_id):
                records += self._tombstones_of(group_id)
            for begin in range(0, len(records), _EXPIRED_MAX):
                results.append(
                    CoordinatorResult(None, tuple(records[begin : begin + _EXPIRED_MAX]))
                )
        interval_ms = self._settings.offsets_retention_check_interval_ms
        wait_ms = 0 if self._to_check else interval_ms
        self._check.set(_EXPIRY, now.mono_ms + wait_ms)
        return results

    def _is_over(self, group_id: str) -> bool:
        classic = self.classic.get(group_id)
        return not self.offsets.has_open_transactions(group_id) and not (
            classic and classic.members
        )


def check_group_id(group_id: str) -> None:
    """Raises InvalidGroupIdError for an empty id."""
    if not group_id:
        raise InvalidGroupIdError("the group id is empty")
