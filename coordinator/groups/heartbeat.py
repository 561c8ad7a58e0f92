"""The heartbeat of a consumer group's member (KIP-848): join, stay, leave.

A heartbeat does three things. It takes what the member says of itself; a change of subscription, or
of the topics themselves, raises the group's epoch. If that is newer than the target assignment, an
assignor makes a new one. And the member goes one step towards its target.

Nothing here changes the group: the outcome are records, which change it when they are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from coordinator.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from coordinator.groups.group import ConsumerGroup
from coordinator.groups.members import (
    LEAVE_STATIC_EPOCH,
    NO_PARTITIONS,
    Assignment,
    Member,
    MemberState,
    plain,
    reconcile,
    target_partitions,
)
from coordinator.groups.subscribers import MemberSubscription
from coordinator.groups.subscription import (
    SubscribedTopics,
    check_pattern,
    matching,
    subscribed_topics,
)
from coordinator.records.groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from quorum.image import MetadataImage
from tidemark.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)
from tidemark.types import COORDINATOR_TOPICS, REMOTE_LOG_METADATA_TOPIC

INTERNAL_TOPICS = COORDINATOR_TOPICS | {REMOTE_LOG_METADATA_TOPIC}
_MEMBER_ID_MAX = 36 * 4
_REJOIN = "give up all partitions and join again with epoch 0"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member's words; None, and -1 for the timeout (ms), where it says nothing."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether it tells all, as on joining and after any error."""
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms != -1
            and self.owned is not None
            and (self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None)
        )


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The member's epoch, and its partitions if they changed or were asked for."""

    member_id: str
    member_epoch: int
    assignment: Assignment | None = None


def check(request: Heartbeat) -> None:
    """Raises InvalidRequestError, UnsupportedAssignorError or InvalidRegularExpressionError."""
    for name, text in (
        ("group_id", request.group_id),
        ("member_id", request.member_id),
        ("instance_id", "-" if request.instance_id is None else request.instance_id),
        ("rack_id", "-" if request.rack_id is None else request.rack_id),
    ):
        if not text.strip():
            raise InvalidRequestError(f"{name} is empty")
    if len(request.member_id) > _MEMBER_ID_MAX:
        raise InvalidRequestError(
            f"member_id has more than {_MEMBER_ID_MAX} characters: use a UUID"
        )
    epoch = request.member_epoch
    if epoch == 0:
        if request.rebalance_timeout_ms <= 0:
            raise InvalidRequestError("rebalance_timeout_ms has to be set to join")
        if request.owned is None or any(request.owned.values()):
            raise InvalidRequestError("owned has to be there and empty to join: give up all first")
        if not request.subscribed_topic_names and not request.subscribed_topic_regex:
            raise InvalidRequestError("subscribe to topics, or to a pattern, to join")
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequestError("a member without instance_id leaves with epoch -1, not -2")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequestError(f"member_epoch {epoch} is not valid")
    if request.server_assignor and request.server_assignor not in ASSIGNORS:
        raise UnsupportedAssignorError(
            f"there is no assignor {request.server_assignor!r}: use one of {', '.join(ASSIGNORS)}"
        )
    if request.subscribed_topic_regex:
        check_pattern(request.subscribed_topic_regex)


@dataclass(slots=True)
class HeartbeatRules:
    """The heartbeats of one group; `max_size` are the members that it may have."""

    group: ConsumerGroup
    image: MetadataImage
    now_ms: int
    max_size: int = 2**31 - 1
    records: list[CoordinatorRecord] = field(default_factory=list)

    # --- join and stay

    def heartbeat(self, request: Heartbeat) -> tuple[CoordinatorResult[HeartbeatAnswer], Member]:
        """The result of a heartbeat, and the member after it. Raises FencedMemberEpochError,
        FencedInstanceIdError, UnknownMemberIdError, UnreleasedInstanceIdError and
        GroupMaxSizeReachedError."""
        group = self.group
        before = self._known_or_new(request)
        member = _told(before, request)
        is_new = member.member_id not in group.members
        changes: dict[str, Member | None] = {member.member_id: member}
        if is_new and member.instance_id in group.static_members:
            changes[group.static_members[member.instance_id]] = None
        subscribes_anew = (
            before.subscribed_topic_names != member.subscribed_topic_names
            or before.subscribed_topic_regex != member.subscribed_topic_regex
        )
        if is_new or member.subscription() != before.subscription():
            self._put(ConsumerGroupMemberMetadataKey, member, member.subscription())
        target_epoch, target = group.assignment_epoch, group.target_of(member)
        epoch = group.epoch
        if subscribes_anew or group.is_outdated or group.epoch > group.assignment_epoch:
            resolved = self._resolve(changes)
            topics = subscribed_topics(self._names(changes, resolved), self.image)
            metadata_hash = topics.hash()
            group.is_outdated &= metadata_hash != group.metadata_hash
            if subscribes_anew or metadata_hash != group.metadata_hash:
                epoch += 1
                self._put_epoch(epoch, metadata_hash)
            if epoch > group.assignment_epoch:
                targets = self._assign(epoch, changes, topics, resolved)
                target_epoch, target = epoch, targets.get(member.member_id, NO_PARTITIONS)
        after = reconcile(member, target_epoch, target, self._owner_in(changes), request.owned)
        if after != member or (is_new and after.member_id not in group.members):
            self._put(ConsumerGroupCurrentMemberAssignmentKey, after, after.current_assignment())
        has_news = request.is_full or plain(after.assigned) != plain(before.assigned)
        answer = HeartbeatAnswer(
            after.member_id, after.member_epoch, plain(after.assigned) if has_news else None
        )
        return CoordinatorResult(answer, tuple(self.records)), after

    def _owner_in(self, changes: Mapping[str, Member | None]) -> Callable[[UUID, int], str | None]:
        """The owners of partitions; those of a member that is replaced are free."""
        replaced = {member_id for member_id, member in changes.items() if member is None}

        def owner_of(topic_id: UUID, partition: int) -> str | None:
            owner = self.group.owner_of(topic_id, partition)
            return None if owner in replaced else owner

        return owner_of

    def _known_or_new(self, request: Heartbeat) -> Member:
        """The member that a heartbeat is of, as it is before it."""
        group, joins = self.group, request.member_epoch == 0
        known = group.members.get(request.member_id)
        if joins and known is None and len(group.members) >= self.max_size:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id} has {len(group.members)} members, as many as"
                " group.consumer.max.size allows"
            )
        if request.instance_id is not None:
            return self._known_or_new_static(request, group.static_member(request.instance_id))
        if joins:
            return Member(request.member_id) if known is None else _joined_again(known)
        if known is None:
            raise UnknownMemberIdError(
                f"group {group.group_id} has no member {request.member_id}: {_REJOIN}"
            )
        _check_epoch(known, request)
        return known

    def _known_or_new_static(self, request: Heartbeat, known: Member | None) -> Member:
        who = f"instance {request.instance_id} of group {self.group.group_id}"
        if request.member_epoch == 0:
            if known is None:
                return Member(request.member_id, request.instance_id)
            if known.member_id == request.member_id:
                return _joined_again(known)
            if known.member_epoch != LEAVE_STATIC_EPOCH:
                raise UnreleasedInstanceIdError(
                    f"{who} is in use by member {known.member_id}: it must leave first"
                )
            return self._replaced(known, request.member_id)
        if known is None:
            raise UnknownMemberIdError(f"{who} is not known: {_REJOIN}")
        if known.member_id != request.member_id:
            raise FencedInstanceIdError(f"{who} was taken over by member {known.member_id}")
        _check_epoch(known, request)
        return known

    def _replaced(self, known: Member, member_id: str) -> Member:
        """The successor of a static member; it takes over the partitions, without a rebalance."""
        successor = replace(
            known,
            member_id=member_id,
            member_epoch=0,
            previous_member_epoch=0,
            state=MemberState.STABLE,
            revoking={},
        )
        self.records += tombstones(self.group.group_id, known.member_id)
        self._put(ConsumerGroupMemberMetadataKey, successor, successor.subscription())
        target = ConsumerGroupTargetAssignmentMemberValue(
            target_partitions(self.group.target.get(known.member_id, NO_PARTITIONS))
        )
        self._put(ConsumerGroupTargetAssignmentMemberKey, successor, target)
        return successor

    def _resolve(self, changes: Mapping[str, Member | None]) -> dict[str, frozenset[str]]:
        """The topics of each pattern; records what changed."""
        group = self.group
        wanted = {m.subscribed_topic_regex for m in group.members_with(changes)} - {""}
        resolved: dict[str, frozenset[str]] = {}
        for pattern in sorted(wanted):
            resolved[pattern] = matching(pattern, self.image, INTERNAL_TOPICS)
            if resolved[pattern] != group.resolved.get(pattern):
                self.records.append(
                    (
                        ConsumerGroupRegularExpressionKey(group.group_id, pattern),
                        ConsumerGroupRegularExpressionValue(
                            tuple(sorted(resolved[pattern])), self.image.offset, self.now_ms
                        ),
                    )
                )
        for pattern in sorted(set(group.resolved) - wanted):
            self.records.append((ConsumerGroupRegularExpressionKey(group.group_id, pattern), None))
        return resolved

    def _names(
        self, changes: Mapping[str, Member | None], resolved: Mapping[str, frozenset[str]]
    ) -> set[str]:
        names: set[str] = set()
        for member in self.group.members_with(changes):
            names.update(member.subscribed_topic_names)
        return names.union(*resolved.values())

    def _assign(
        self,
        epoch: int,
        changes: Mapping[str, Member | None],
        topics: SubscribedTopics,
        resolved: Mapping[str, frozenset[str]],
    ) -> Mapping[str, Assignment]:
        """The new target assignment; records what differs from the last one."""
        group = self.group
        subscriptions: dict[str, MemberSubscription] = {}
        for member in group.members_with(changes):
            names = {*member.subscribed_topic_names}
            names |= resolved.get(member.subscribed_topic_regex, frozenset())
            subscriptions[member.member_id] = MemberSubscription(
                member.member_id,
                member.instance_id,
                member.rack_id,
                frozenset(topics.ids[name] for name in names if name in topics.ids),
                group.target_of(member),
            )
        assignor = ASSIGNORS[group.preferred_assignor(changes) or DEFAULT_ASSIGNOR]
        targets = assignor(subscriptions, topics)
        for member_id in subscriptions:
            target = targets.get(member_id, NO_PARTITIONS)
            if member_id not in group.target or target != group.target[member_id]:
                key = ConsumerGroupTargetAssignmentMemberKey(group.group_id, member_id)
                value = ConsumerGroupTargetAssignmentMemberValue(target_partitions(target))
                self.records.append((key, value))
        self.records.append(
            (
                ConsumerGroupTargetAssignmentMetadataKey(group.group_id),
                ConsumerGroupTargetAssignmentMetadataValue(epoch, self.now_ms),
            )
        )
        return targets

    def _put(self, key: type, member: Member, value: object) -> None:
        self.records.append((key(self.group.group_id, member.member_id), value))

    def _put_epoch(self, epoch: int, metadata_hash: int) -> None:
        self.records.append(
            (
                ConsumerGroupMetadataKey(self.group.group_id),
                ConsumerGroupMetadataValue(epoch, metadata_hash),
            )
        )

    # --- leave

    def leave(self, request: Heartbeat) -> CoordinatorResult[HeartbeatAnswer]:
        """A member leaves. One that is static and will be back keeps its partitions for the session
        timeout. Raises UnknownMemberIdError and FencedInstanceIdError."""
        group = self.group
        member = group.members.get(request.member_id)
        if request.instance_id is not None:
            known = group.static_member(request.instance_id)
            if known is not None and known.member_id != request.member_id:
                raise FencedInstanceIdError(
                    f"instance {request.instance_id} was taken over by member {known.member_id}"
                )
        if member is None:
            raise UnknownMemberIdError(f"group {group.group_id} has no member {request.member_id}")
        answer = HeartbeatAnswer(member.member_id, request.member_epoch)
        if request.member_epoch == LEAVE_STATIC_EPOCH and member.instance_id is not None:
            away = replace(
                member,
                member_epoch=LEAVE_STATIC_EPOCH,
                state=MemberState.STABLE,
                revoking={},
            )
            self._put(ConsumerGroupCurrentMemberAssignmentKey, away, away.current_assignment())
            return CoordinatorResult(answer, tuple(self.records))
        return CoordinatorResult(answer, self.fence([member]))

    def fence(self, members: Sequence[Member]) -> tuple[CoordinatorRecord, ...]:
        """The records that remove members and raise the group's epoch."""
        group = self.group
        changes: dict[str, Member | None] = {}
        for member in members:
            self.records += tombstones(group.group_id, member.member_id)
            changes[member.member_id] = None
        resolved = self._resolve(changes)
        topics = subscribed_topics(self._names(changes, resolved), self.image)
        self._put_epoch(group.epoch + 1, topics.hash())
        return tuple(self.records)


def tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Records that remove a member."""
    return [
        (ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        (ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        (ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def _told(member: Member, request: Heartbeat) -> Member:
    """The member with what the request says of it."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    assignor = request.server_assignor
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if assignor is None else assignor or None,
        subscribed_topic_names=(
            member.subscribed_topic_names if names is None else tuple(sorted(set(names)))
        ),
        subscribed_topic_regex=member.subscribed_topic_regex if pattern is None else pattern,
        client_id=request.client_id,
        client_host=request.client_host,
    )


def _joined_again(member: Member) -> Member:
    """A member that gave up everything, so that its partitions are free at once."""
    return replace(
        member,
        member_epoch=0,
        previous_member_epoch=0,
        state=MemberState.STABLE,
        assigned={},
        revoking={},
    )


def _check_epoch(member: Member, request: Heartbeat) -> None:
    """Takes the present epoch, and the one before from a member that did not get the answer."""
    told, known = request.member_epoch, member.member_epoch
    if told == known:
        return
    if told < known and told == member.previous_member_epoch and member.has_all_of(request.owned):
        return
    raise FencedMemberEpochError(
        f"member {member.member_id} has epoch {known}, not {told}: {_REJOIN}"
    )
